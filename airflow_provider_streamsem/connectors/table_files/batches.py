"""Selects how many files or versions of a table a batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_streamsem.limits import Limits

ASSUMED_BYTES_PER_ROW = 100


class PlannedFile(Protocol):
    """A file of a table in a plan."""

    @property
    def key(self) -> str:
        """Path relative to the location of the table's files, without escapes."""
        ...

    @property
    def bytes(self) -> int:
        """Size in bytes; -1 if it is unknown."""
        ...

    @property
    def rows(self) -> int:
        """Number of rows in the file; -1 if it is unknown."""
        ...

    @property
    def deleted(self) -> int:
        """Number of these rows that are deleted from the table."""
        ...


@dataclass(slots=True)
class Budget:
    """The remaining capacity of a batch. The first item with files always fits."""

    limits: Limits
    files: int = 0
    bytes: int = 0
    rows: int = 0
    is_empty: bool = True

    def fits(self, files: Sequence[PlannedFile]) -> bool:
        """Return whether a batch has room for one more item, such as a version, with these files. If so, they count as part of it."""
        totals = (
            (self.limits.max_files, self.files + len(files)),
            (self.limits.max_bytes, self.bytes + sum(max(file.bytes, 0) for file in files)),
            (self.limits.max_rows, self.rows + sum(map(rows_of, files))),
        )
        if not self.is_empty and any(limit is not None and total > limit for limit, total in totals):
            return False
        self.files, self.bytes, self.rows = (total for _, total in totals)
        self.is_empty = self.is_empty and not files
        return True


def rows_of(file: PlannedFile) -> int:
    """Return the number of rows of a file that are in the table, or an estimate from its size."""
    return max(1, file.bytes // ASSUMED_BYTES_PER_ROW) if file.rows < 0 else file.rows - file.deleted


def adjacent(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges ``[start, end)``, in order. Adjacent numbers share a range."""
    ranges: list[tuple[int, int]] = []
    for number in sorted({*numbers}):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)
