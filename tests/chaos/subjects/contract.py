"""What a subject is: a way to drain a topic, and a reader of its result that shares no code with it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from tests.chaos.setting import Setting


@dataclass
class Seen:
    """
    What a reader of the dataset finds.

    :param counts: number → how often it is visible
    :param reached: partition → the highest offset that is visible
    :param unreadable: files that a reader is led to and that are no whole Parquet files
    :param findings: what may not be so at the end
    """

    counts: Counter[int] = field(default_factory=Counter)
    reached: dict[int, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def add(self, rows: Rows) -> None:
        self.counts.update(rows.numbers)
        for partition, offset in rows.reached.items():
            self.reached[partition] = max(self.reached.get(partition, -1), offset)


@dataclass(frozen=True)
class Rows:
    """Of one file."""

    numbers: list[int]
    reached: dict[int, int]


def rows_of(file: Any) -> Rows:
    """Rows of one Parquet file, with Kafka's own columns."""
    table = pyarrow.parquet.ParquetFile(file).read(columns=["value", "partition", "offset"])
    reached: dict[int, int] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        reached[partition] = max(reached.get(partition, -1), offset)
    return Rows([int(value) for value in table["value"].to_pylist()], reached)


def in_delta(entries: Iterable[str]) -> list[str]:
    """Paths that the entries of a Delta table's log add and do not remove, folded one after the other."""
    there: dict[str, None] = {}
    for entry in entries:
        for action in map(json.loads, entry.splitlines()):
            if "add" in action:
                there[unquote(action["add"]["path"])] = None
            if "remove" in action:
                there.pop(unquote(action["remove"]["path"]), None)
    return list(there)


class Subject:
    """
    One way to drain a topic.

    :cvar title: for the report
    :cvar needs: parts beside Kafka and Spark: ``s3``, ``cluster``, ``postgres``
    """

    title: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.out = setting.root / "out"
        self._read: dict[tuple[str, int, int], Rows] = {}

    def prepare(self) -> None:
        """Make what the subject finds there, before its first run."""

    def exposed(self) -> Callable[[], bool]:
        """Says whether the moment has come in which a death costs most; asked anew for each fault. Half of the faults wait for it."""
        return Uncommitted(self)

    def drain(self, run_key: str) -> bool:
        """In a runner's process: read what is there and write it; ``True`` where nothing was new."""
        raise NotImplementedError

    def commits(self) -> int:
        """How many batches the subject holds for committed."""
        raise NotImplementedError

    def files_written(self) -> int:
        """How many data files lie there, committed or not."""
        return sum(1 for _ in self._files())

    def moment(self) -> str:
        """What it was about, as far as can be told from outside."""
        return f"{self.commits()} committed, {self.files_written()} files"

    def visible(self) -> Seen:
        """What a reader finds: here, in every file of the directory that is not hidden, as every reader that is not Spark passes over hidden ones."""
        return self.seen_in(sorted(self._files()))

    def _files(self) -> Iterator[Path]:
        for place, below, names in os.walk(self.out):  # passes over a directory that vanishes meanwhile
            below[:] = [name for name in below if not name.startswith(("_", "."))]
            for name in names:
                if name.endswith(".parquet") and not name.startswith(("_", ".")):
                    yield Path(place, name)

    def seen_in(self, files: Any) -> Seen:
        seen = Seen()
        for path in map(Path, files):
            try:
                at = path.stat()
                key = (str(path), at.st_size, at.st_mtime_ns)
                if key not in self._read:
                    self._read[key] = rows_of(path)
                seen.add(self._read[key])
            except (OSError, pyarrow.ArrowInvalid):
                seen.unreadable.append(path.name)
        return seen


class Uncommitted:
    """Whether files have come since the last commit: work that a death throws away."""

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
