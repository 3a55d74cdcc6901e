"""Plans the batches of a source that reads a table: files of the initial snapshot, then the files of whole versions of the table."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.table_files.batches import Budget, adjacent, rows_of
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, position

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Selected:
    """The versions of a batch, up to ``end``, exclusive. ``lost`` are those that cannot be read any more."""

    end: int
    pins: dict[int, list[Any]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    table: Any = None
    hint: Json = None


class TablePlanner(Planner):
    """A source of a table that is bound to a commit log. A version is that of a Delta table, or the sequence number of a snapshot of an Iceberg table."""

    versions: ClassVar[str]
    initial: ClassVar[str]
    """Beginnings of the names of the two partitions. The id of the table follows."""
    number: ClassVar[str]
    """The field of an error that names a version."""
    recreated_error: ClassVar[str]
    missing_file_error: ClassVar[str]
    gaps_warning: ClassVar[str]

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """The ``id`` of the table is that of no recreated table, and its ``end`` is one past the newest version."""

    @abstractmethod
    def check_history(self, table: Any, first: int, last: int, hint: Json) -> None:
        """Refuse a table whose history was rewritten. The versions ``[first, last)`` are to be read."""

    @abstractmethod
    def snapshot(self, table: Any, version: int, unread_files: int) -> tuple[Any, list[Any], Json]:
        """Return the pin of the table at a version, the pins of all its files, and the hint."""

    @abstractmethod
    def select(self, table: Any, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> Selected:
        """Return the next versions. One that cannot be read fails the run only if no version before it has files."""

    def pin_for(self, table: Any, files: Sequence[Any]) -> Any:
        return table

    @abstractmethod
    def unread_times(self, start: Offsets) -> list[int]:
        """Return the commit time of each unread version, and a time for each unread file of the snapshot, in milliseconds UTC."""

    def poll(self, hint: Json) -> SourceEnd:
        """One past the newest version of the table, and 0 for the initial snapshot."""
        with self.opened() as table:
            return SourceEnd({f"{self.initial}{table.id}": 0, f"{self.versions}{table.id}": table.end})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Files of the initial snapshot or, after its last file, whole versions. Missing versions, and missing files of the snapshot, can become gaps."""
        with self.opened() as table:
            id = table.id
            known = {name.partition("@")[2] for name in start}
            if id not in known:
                raise SourceChangedError(
                    self.recreated_error, table=self._name, committed=sorted(known), found=id
                ).advising("restore the former table and run again. To read the new table, use a new log.")
            first, last = position(start, f"{self.versions}{id}"), position(end.offsets, f"{self.versions}{id}")
            self.check_history(table, first, last, hint)
            unread_files = -position(start, f"{self.initial}{id}")
            if position(end.offsets, f"{self.initial}{id}") > -unread_files:
                return self._of_snapshot(table, first - 1, unread_files, limits, on_data_loss)
            return self._of_versions(table, (first, last), limits, on_data_loss) if last > first else None

    def _of_snapshot(
        self, table: Any, version: int, unread_files: int, limits: Limits, on_data_loss: str
    ) -> SourceSlice:
        """``unread_files`` of the snapshot at ``version`` are not read yet."""
        pin, files, hint = self.snapshot(table, version, unread_files)
        if unread_files > len(files):
            summary = "the initial snapshot has fewer files than when the pipeline started; nothing was written"
            facts = {"table": self._name, self.number: version, "files_left": unread_files, "files": len(files)}
            raise SourceChangedError(summary, **facts).advising("start a new pipeline with a new log.")
        budget = Budget(limits)
        selected = [*takewhile(lambda pin: budget.fits([pin]), files[-unread_files:])]
        lost = self._missing(selected, on_data_loss)
        gaps = tuple((at - unread_files, at - unread_files + 1) for at, pin in enumerate(selected) if pin.key in lost)
        name = f"{self.initial}{table.id}"
        return SourceSlice(
            ranges={name: (-unread_files, len(selected) - unread_files)},
            gaps={name: gaps} if gaps else {},
            pins=[pin, *(pin for pin in selected if pin.key not in lost)],
            hint=hint,
            rows=budget.rows,
        )

    def _of_versions(self, table: Any, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> SourceSlice:
        selected = self.select(table, unread, limits, on_data_loss)
        lost = self._missing([pin for pins in selected.pins.values() for pin in pins], on_data_loss)
        lacking = {version for version, pins in selected.pins.items() if any(pin.key in lost for pin in pins)}
        name = f"{self.versions}{table.id}"
        gaps: Gaps = {name: adjacent([*selected.lost, *lacking])} if selected.lost or lacking else {}
        if gaps:
            logger.warning(self.gaps_warning, self._name, gaps)
        pins = [pin for version, pins in selected.pins.items() if version not in lacking for pin in pins]
        return SourceSlice(
            ranges={name: (unread[0], selected.end)},
            gaps=gaps,
            pins=[self.pin_for(selected.table, pins), *pins],
            hint=selected.hint,
            rows=sum(map(rows_of, pins)),
        )

    def _missing(self, pins: Sequence[Any], on_data_loss: str) -> set[str]:
        missing_files = missing(self._path, pins)
        if missing_files and on_data_loss == "fail":
            facts = {"table": self._name, **missing_files[0].facts, "files": len(missing_files)}
            raise SourceChangedError(self.missing_file_error, **facts).advising(OR_RECORD_GAP)
        return {pin.key for pin in missing_files}

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(ms < at_ms for ms in self.unread_times(start))

    def minimum_clock(self, start: Offsets) -> int | None:
        return min(self.unread_times(start), default=None)
