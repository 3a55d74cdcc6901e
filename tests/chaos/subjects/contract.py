"""The interface of a subject: how it drains a topic, and a checker of the result that shares no code with it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from tests.chaos.setting import Setting

Locations: TypeAlias = dict[int, list[tuple[int, int]]]
"""Number → (partition, offset) of each record with the number."""


@dataclass
class VisibleRows:
    """
    The rows that a reader of the dataset finds.

    :param counts: number → how often it is visible
    :param reached: partition → the highest visible offset
    :param unreadable: files that a reader finds and that are not complete Parquet files
    :param violations: conditions that must not exist at the end
    """

    counts: Counter[int] = field(default_factory=Counter)
    reached: dict[int, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def add(self, rows: Rows) -> None:
        self.counts.update(rows.numbers)
        for partition, offset in rows.reached.items():
            self.reached[partition] = max(self.reached.get(partition, -1), offset)


@dataclass(frozen=True)
class Rows:
    """The rows of one file."""

    numbers: list[int]
    reached: dict[int, int]


def rows_of(file: Any) -> Rows:
    """Read one Parquet file with Kafka's columns."""
    table = pyarrow.parquet.ParquetFile(file).read(columns=["value", "partition", "offset"])
    reached: dict[int, int] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        reached[partition] = max(reached.get(partition, -1), offset)
    return Rows([int(value) for value in table["value"].to_pylist()], reached)


def delta_files(entries: Iterable[str]) -> list[str]:
    """Replay the entries of a Delta table's log, and return the paths that they add and do not remove."""
    paths: dict[str, None] = {}
    for entry in entries:
        for action in map(json.loads, entry.splitlines()):
            if "add" in action:
                paths[unquote(action["add"]["path"])] = None
            if "remove" in action:
                paths.pop(unquote(action["remove"]["path"]), None)
    return list(paths)


class Subject:
    """
    One way to drain a topic.

    :cvar title: title in the report
    :cvar needs: servers besides Kafka and Spark: ``s3``, ``cluster``, ``postgres``
    """

    title: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.out = setting.root / "out"
        self._read: dict[tuple[str, int, int], Rows] = {}

    def prepare(self) -> None:
        """Create what the subject needs before its first run."""

    def fault_condition(self) -> Callable[[], bool]:
        """Return a function that returns whether a crash would do most harm now. Half of the faults wait until it returns true."""
        return HasUncommittedFiles(self)

    def drain(self, run_key: str) -> bool:
        """Read and write the new records, in a runner's process. Return ``True`` if there were none."""
        raise NotImplementedError

    def commits(self) -> int:
        """Return how many batches the subject counts as committed."""
        raise NotImplementedError

    def files_written(self) -> int:
        """Return the number of data files, committed or not."""
        return sum(1 for _ in self._files())

    def state(self) -> str:
        """Describe the state of the subject's log and data."""
        return f"{self.commits()} committed, {self.files_written()} files"

    def visible(self) -> VisibleRows:
        """Return the rows that a reader finds. By default, these are the rows of all files that are not hidden."""
        return self.rows_in(sorted(self._files()))

    def expected(self, locations: Locations) -> Locations:
        """Return the records of the whole topic that the subject must have made visible. By default, these are all records."""
        return locations

    def _files(self) -> Iterator[Path]:
        for location, below, names in os.walk(self.out):  # os.walk skips a directory that is deleted concurrently
            below[:] = [name for name in below if not name.startswith(("_", "."))]
            for name in names:
                if name.endswith(".parquet") and not name.startswith(("_", ".")):
                    yield Path(location, name)

    def rows_in(self, files: Any) -> VisibleRows:
        visible = VisibleRows()
        for path in map(Path, files):
            try:
                status = path.stat()
                key = (str(path), status.st_size, status.st_mtime_ns)
                if key not in self._read:
                    self._read[key] = rows_of(path)
                visible.add(self._read[key])
            except (OSError, pyarrow.ArrowInvalid):
                visible.unreadable.append(path.name)
        return visible


class HasUncommittedFiles:
    """Returns whether files were written since the last commit. A crash would lose them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._before = (-1, 0)

    def __call__(self) -> bool:
        commits, files = self._before
        now = (self._subject.commits(), self._subject.files_written())
        if now[0] != commits:
            self._before = now
            return False
        return now[1] > files
