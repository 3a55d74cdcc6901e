"""
The replay source: reads the files of an unchanged directory one after another, as if they arrived at a fixed rate.

The log records the files when they are first listed, in the order of their paths. The files source reads them. Paths determine the order, and the arguments
determine the times, because a copy of a directory may have other modification times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.files.source import (
    PARTITION,
    READ_REASONS,
    FilesPlanner,
    FilesSource,
    ListedEnd,
)
from airflow_provider_streamsem.connectors.source import Loaded, Source
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import FoundFile, Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySource(Source):
    """
    Reads the files below a path one after another, as if they arrived at a fixed rate. For demonstrations and tests.

    The offset of a file is its number in the order of the paths: 0, 1, 2, …. The first run records the files in the log. A run fails if a file was added or
    changed since then. The records and their columns are those of a :class:`FilesSource` with the same arguments.

    :param path: the root of the files: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param format: format of the files, as in :class:`FilesSource`
    :param start: when file 0 arrives: a timestamp with a time zone
    :param files_per_minute: number of files that arrive in a minute, at equal intervals, 1 or more
    :param schema: columns as Spark DDL, as in :class:`FilesSource`
    :param options: options of Spark's reader, as in :class:`FilesSource`
    :param glob: pattern of the file names to replay, such as ``*.csv``
    :param hive_partitions: whether directories named ``column=value`` add columns to the records
    :param missing_columns: ``"refuse"``, ``"null"`` or ``None``, as in :class:`FilesSource`
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    unit: ClassVar[str] = FilesSource.unit
    limits: ClassVar[tuple[str, ...]] = FilesSource.limits
    reasons: ClassVar[tuple[str, ...]] = (
        "the log records the files and their order before the first batch; a directory with added or changed files is refused",
        *READ_REASONS,
    )
    path: str
    format: str
    start: str
    files_per_minute: int = 1
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    glob: str = "*"
    hive_partitions: bool = True
    missing_columns: str | None = None

    def __post_init__(self) -> None:
        self.files()  # validates the arguments of the files source
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "start", arguments.timestamp("source replay: start", self.start))
        arguments.integer("source replay: files_per_minute", self.files_per_minute, least=1)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return asdict(self)

    def files(self) -> FilesSource:
        """Return the source that reads the files."""
        return FilesSource(
            path=self.path,
            format=self.format,
            schema=self.schema,
            options=self.options,
            glob=self.glob,
            hive_partitions=self.hive_partitions,
            missing_columns=self.missing_columns,
        )

    @property
    def location(self) -> str:
        return self.path

    @property
    def reason_records_are_needed(self) -> str:
        return self.files().reason_records_are_needed

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return self.files().lineage(ranges)

    def immutable_config(self) -> Json:
        return {**self.files().immutable_config(), "type": "replay", "glob": self.glob}

    def initial_offsets(self) -> Offsets:
        return {PARTITION: 0}

    @property
    def reads_intervals(self) -> bool:
        return True

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """Return the first file that arrives at or after ``at_ms`` (milliseconds UTC), or the number of all files if there is none. Lists the path."""
        return {PARTITION: min(self.arrived_before(at_ms), len(self.files().listing(at_ms)))}

    def arrived_before(self, at_ms: int) -> int:
        """Return how many files of an endless directory arrive before ``at_ms`` (milliseconds UTC, exclusive)."""
        elapsed_ms = at_ms - arguments.time_ms("start", self.start)
        return max(0, -(-elapsed_ms * self.files_per_minute // _MINUTE_MS))

    def arrived_at_ms(self, file: int) -> int:
        """Return when a file arrives, in milliseconds UTC, rounded down."""
        return arguments.time_ms("start", self.start) + file * _MINUTE_MS // self.files_per_minute

    def open(self, log: CommitLog, hint: Json) -> ReplayPlanner:
        """Bind the source to a commit log, whose clock determines how many files have arrived."""
        return ReplayPlanner(self, log, hint)

    def read_pins(self, pins: Json) -> tuple[FilePin, ...]:
        return self.files().read_pins(pins)

    def next_hint(self, hint: Json, pins: Sequence[FilePin], counts: Mapping[str, int]) -> Json:
        return self.files().next_hint(hint, pins, counts)

    def check_pins(self, pins: Sequence[FilePin], *, was_read: bool) -> None:
        self.files().check_pins(pins, was_read=was_read)

    def load(self, spark: SparkSession, pins: Sequence[FilePin]) -> Loaded:
        return self.files().load(spark, pins)

    def load_in_order(self, spark: SparkSession, pins: Sequence[FilePin]) -> Loaded:
        return self.files().load_in_order(spark, pins)


class ReplayPlanner(FilesPlanner):
    """A :class:`ReplaySource` that is bound to a log, for one process. Batches are cut as those of the files source."""

    def __init__(self, source: ReplaySource, log: CommitLog, hint: Json) -> None:
        super().__init__(source.files(), log, hint)
        self._replay = source

    def poll(self, hint: Json) -> ListedEnd:
        """The first poll of a log records all files. Later polls raise ``SourceChangedError`` if a file was added or changed since."""
        if hint is None:
            self._source.refuse_tables(self._clock.now_ms())
        listed = self._listed()
        if self._ledger.newest() is None:
            if not listed:
                summary = "the source has no files to replay; nothing was written"
                raise InvalidError(summary, path=self._replay.path, glob=self._replay.glob).advising(
                    "put the files into the directory, or correct path or glob; then run again."
                )
            self._ledger.begin(listed)  # another process may have recorded its files first
        self._refuse_other_files(listed)
        arrived = self._arrived_before(self._clock.now_ms() + 1)
        return ListedEnd({PARTITION: arrived}, {file.path: (file.bytes, file.identity) for file in listed})

    def _listed(self) -> list[FoundFile]:
        """Without modification times, the log numbers the files in the order of their paths."""
        return [replace(file, mtime_ns=0) for file in self._source.listing(self._clock.now_ms())]

    def _refuse_other_files(self, listed: Sequence[FoundFile]) -> None:
        others = self._ledger.unseen(listed)
        if others:
            summary = (
                "a file was added to a replayed directory, or was changed, after the first run; nothing was written"
            )
            raise SourceChangedError(summary, path=self._replay.path, file=others[0].path, files=len(others)).advising(
                "restore the directory and run again. To replay the changed directory, give the pipeline a new log and new datasets. "
                "To read files as they arrive, use the files source."
            )

    def lag(self, start: Offsets, hint: Json) -> int:
        """Files from ``start`` (inclusive) that have arrived. Lists the path only before the first run."""
        return self.unread_before(start, self._clock.now_ms() + 1)

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        until_ms = min(at_ms, self._clock.now_ms() + 1)
        return max(0, self._arrived_before(until_ms) - position(start, PARTITION))

    def minimum_clock(self, start: Offsets) -> int | None:
        return self._replay.arrived_at_ms(position(start, PARTITION)) if self.lag(start, None) else None

    def _arrived_before(self, at_ms: int) -> int:
        recorded = self._ledger.newest()
        return min(self._replay.arrived_before(at_ms), len(self._listed()) if recorded is None else recorded.end)
