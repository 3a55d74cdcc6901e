"""What sinks of other table formats have in common: the staged files become the table's own, or their rows are merged into it by key."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError, PublishError
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.protocol.keys import attempt_of_data
from airflow_provider_streamsem.sinks import keyed_rows
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.staged import StagedSink
from airflow_provider_streamsem.stores.dataset import open_dataset

_MODES = ("append", "upsert")


class TableSink(StagedSink):
    """
    A subclass is a dataclass with these fields, and publishes.

    :param path: the table, or where its files are staged
    :param partition_by: the table's partition columns
    :param mode: ``append`` or ``upsert``
    :param keys: of ``upsert``
    """

    __slots__ = ()

    delivery: ClassVar[str] = "exactly_once"
    once: ClassVar[str]
    """why a version is there once; ``{holds}`` stands for its files or its rows"""
    null_texts: ClassVar[Sequence[str]] = ()
    """those that merging would turn into null in a partition column"""
    path: str
    partition_by: Sequence[str]
    mode: str
    keys: Sequence[str]

    def take_arguments(self, where: str) -> None:
        """
        Check the fields, and take lists as tuples.

        :raises InvalidError: says which, and what is accepted
        """
        open_dataset(arguments.text(f"{where} path", self.path))
        for name in ("partition_by", "keys"):
            object.__setattr__(self, name, arguments.words(f"{where} {name}", getattr(self, name)))
        arguments.choice(f"{where} mode", self.mode, _MODES)
        if bool(self.keys) != self.merges:
            raise InvalidError("keys belong to mode upsert, which needs them", mode=self.mode, keys=list(self.keys))

    @property
    def merges(self) -> bool:
        """Whether rows take the place of those with their keys."""
        return self.mode == "upsert"

    @property
    def redoes(self) -> bool:
        """Whether the table still has the very files of a version."""
        return not self.merges

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the table's: of merged rows they are not."""
        return not self.merges

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why each record is there once."""
        kept = (
            self.once.format(holds="the rows merged by key" if self.merges else "its files"),
            "rows handed to the writer = rows in the files = rows in the manifest, or the attempt is void",
        )
        return (*kept, keyed_rows.LAST_STAYS) if self.merges else kept

    @property
    def place(self) -> str:
        """Where files are staged."""
        return self.path

    @property
    def partitions(self) -> Sequence[str]:
        """The table's partition columns. Rows that are merged are staged with all their columns in the files."""
        return () if self.merges else self.partition_by

    @property
    def guarded_mode(self) -> Json:
        """That rows are merged, and by what: of an appending sink vacuum must not take the staged files, and keys are checked before the decision."""
        return {"mode": self.mode, "keys": list(self.keys)} if self.merges else {}

    def check_staged(self, batch: Batch) -> None:
        """
        Look whether the files of a batch are still there, before the table is told of them: what cleans up tables takes files that no table names yet.

        :raises PublishError: they are not, and the table would name what nobody can read
        """
        names = [file.key for file in batch.committable.files]
        if not names:
            return
        directory = posixpath.commonpath([posixpath.dirname(name) for name in names])
        there = {stat.key: stat.bytes for stat in self.dataset().list(f"{directory}/" if directory else "")}
        gone = [file.key for file in batch.committable.files if there.get(file.key) != file.bytes]
        if gone:
            raise PublishError(
                "staged files were deleted or changed before the table had them: put them back, or give the version up with `streamsem skip`",
                place=self.place,
                version=batch.version,
                files=gone,
            )

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """As every staged sink; of rows that are merged, keys and partition columns are looked at."""
        found = StagedSink.collect(self, version, attempt_id, accepted)
        if self.merges:
            keyed_rows.check_values(self.place, found, self.keys, self.partition_by, null_texts=self.null_texts)
        return found


def attempts_named(paths: Iterable[str]) -> set[tuple[int, str]]:
    """
    Version and attempt of the files that a table's metadata names.

    Only the end of a path is read, since the same place can be spelt in many ways: with other schemes, with links, with escaped characters.
    """
    ends = (f"/{path}".rpartition("/data/")[2] for path in paths)
    return {attempt for end in ends if (attempt := attempt_of_data(f"data/{end}")) is not None}
