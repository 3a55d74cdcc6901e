"""
Trino's rules for skipping files, applied to the statistics in Delta's log and in Iceberg's manifests, skip no file with a matching row.

Trino is not run. The rules are those of its Delta and Iceberg connectors, and of Iceberg's library, which Trino calls for constant predicates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyiceberg.conversions import from_bytes

from tests.connectors.odd_values import COLUMNS
from tests.connectors.table_files import filter_matrix as matrix

pytestmark = pytest.mark.slow
_MODERN = date(1900, 1, 2)
"""Trino ignores older bounds of Delta's dates and times."""


@dataclass(frozen=True)
class Domain:
    """
    What statistics say about the values of a column in a file.

    :param lower: no value is smaller; ``None`` if that is not known
    :param upper: no value is greater; ``None`` if that is not known
    """

    has_nulls: bool = True
    has_values: bool = True
    lower: Any = None
    upper: Any = None

    def may_match(self, operator: str, value: Any) -> bool:
        """Return whether the domain of a predicate overlaps this one."""
        if operator == "is null":
            return self.has_nulls
        if not self.has_values or operator == "is not null":
            return self.has_values
        above = self.upper is None or (value < self.upper if operator == ">" else value <= self.upper)
        below = self.lower is None or operator == ">" or self.lower <= value
        return below if operator == "<=" else above and below


def of_delta(stats: dict[str, Any], name: str) -> Domain:
    """Return a column's domain according to one entry of Delta's log. Numbers with a fraction were read as doubles, as Trino's JSON parser does."""
    nulls = stats.get("nullCount", {}).get(name)
    if nulls is None:
        return Domain()
    if nulls == stats["numRecords"]:
        return Domain(has_values=False)
    lower, upper = (_bound_of_delta(name, stats.get(bounds, {}).get(name)) for bounds in ("minValues", "maxValues"))
    if lower is None and upper is None:
        return Domain()
    return Domain(has_nulls=nulls > 0, lower=lower, upper=upper)


def _bound_of_delta(name: str, bound: Any) -> Any:
    kind = str(COLUMNS[name][0])
    if bound is None or kind == "timestamp_ntz":  # Trino reads only bounds with a time zone
        return None
    if kind.startswith("decimal"):
        return Decimal(repr(bound))
    if kind in ("date", "timestamp"):
        value = date.fromisoformat(bound[:10])
        if value < _MODERN:
            return None
        return value if kind == "date" else datetime.fromisoformat(bound.replace("Z", "+00:00"))
    return bound


def of_iceberg(file: Any, field: Any) -> Domain:
    """Return a column's domain according to one entry of a manifest. A count that is missing is not known."""
    values, nulls = (counts.get(field.field_id) for counts in (file.value_counts, file.null_value_counts))
    lower, upper = (
        _bound_of_iceberg(field, bounds.get(field.field_id)) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if nulls is not None and nulls == (file.record_count if values is None else values):
        return Domain(has_values=False)
    return Domain(has_nulls=nulls is None or nulls > 0, lower=lower, upper=upper)


def _bound_of_iceberg(field: Any, bound: bytes | None) -> Any:
    if bound is None:
        return None
    value = from_bytes(field.field_type, bound)
    return None if isinstance(value, float) and isnan(value) else value


def unscaled(kind: str, value: Any) -> Any:
    """Return a value as pyiceberg reads bounds: days and microseconds since 1970."""
    if kind == "date" and value is not None:
        return value.toordinal() - date(1970, 1, 1).toordinal()
    if kind.startswith("timestamp") and value is not None:
        epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
        return (value.replace(tzinfo=timezone.utc) - epoch) // datetime.resolution
    return value


def delta_files(table: DeltaTable) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """Yield the rows and the statistics of each file of a table."""
    location = Path(table.table_uri.removeprefix("file://"))
    entries = [json.loads(line) for log in location.glob("_delta_log/*.json") for line in log.read_text().splitlines()]
    added = {entry["add"]["path"]: json.loads(entry["add"]["stats"]) for entry in entries if "add" in entry}
    for path in pa.table(table.get_add_actions())["path"].to_pylist():
        yield pa.parquet.read_table(location / path, partitioning=None), added[path]


def check(files: list[tuple[pa.Table, Callable[[str], Domain]]], literal: Callable[[str, Any], Any]) -> None:
    """Compare, for each predicate, the skipped files with those that have a matching row."""
    assert sum(rows.num_rows for rows, _ in files) == matrix.EXPECTED.num_rows
    skipped, wrong = 0, []
    for name, operator, value in matrix.predicates():
        for rows, domain in files:
            if domain(name).may_match(operator, literal(str(COLUMNS[name][0]), value)):
                continue
            skipped += 1
            if rows.filter(matrix.expression(name, operator, value)).num_rows:
                wrong.append((name, operator, repr(value)[:40], domain(name)))
    assert wrong == []
    assert skipped or len(files) < matrix.FILES, "statistics without effect prove nothing"


@pytest.mark.parametrize("how", matrix.HOW)
def test_trino_skips_no_file_of_delta_with_a_matching_row(root: str, how: str) -> None:
    files = delta_files(DeltaTable(matrix.delta(root, how)))
    check([(rows, lambda name, stats=stats: of_delta(stats, name)) for rows, stats in files], lambda _, value: value)


@pytest.mark.parametrize("how", [how for how in matrix.HOW if how != "others"])
def test_trino_skips_no_file_of_iceberg_with_a_matching_row(root: str, how: str) -> None:
    table = matrix.lake(root, how).table()
    fields = {name: table.schema().find_field(name) for name in COLUMNS}
    files = [task.file for task in table.scan().plan_files()]
    check(
        [
            (
                pa.parquet.read_table(file.file_path.removeprefix("file://"), partitioning=None),
                lambda name, file=file: of_iceberg(file, fields[name]),
            )
            for file in files
        ],
        unscaled,
    )
