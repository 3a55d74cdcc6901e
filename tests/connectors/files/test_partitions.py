"""Partition columns: which directories define them, and which types are inferred for their values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.files import partitions
from airflow_provider_streamsem.errors import DataError


@pytest.mark.parametrize(
    ("path", "base", "values"),
    [
        ("a.json", "", ()),
        ("x/a=b.json", "x", ()),
        ("day=1/a.json", "", (("day", "1"),)),
        ("x/day=1/h=2/y/a.json", "x", (("day", "1"), ("h", "2"))),
        ("a=1/x/day=1/a.json", "a=1/x", (("day", "1"),)),
        ("a%20b=c=d%2F/a.json", "", (("a b", "c=d%2F"),)),
    ],
)
def test_partition_columns_come_from_the_last_consecutive_partition_directories(
    path: str, base: str, values: tuple[tuple[str, str], ...]
) -> None:
    layout = partitions.layout(path)
    assert layout.values == values
    assert not values or layout.base == base


@pytest.mark.parametrize("path", ["day=/a.json", "=1/a.json", "day=1/Day=2/a.json", "__streamsem_raw=1/a.json"])
def test_partition_directories_with_an_empty_duplicate_or_reserved_column_name_are_refused(path: str) -> None:
    with pytest.raises(DataError, match="hive_partitions=False") as caught:
        partitions.types_of([path], {})
    assert caught.value.fields["file"] == path


# The types that Spark 4.1 infers for a directory with these values.
INFERRED = {
    ("1", "007", "+5", "-1"): "int",
    ("1", "99999999999"): "bigint",
    ("1", "123456789012345678901"): "decimal(21,0)",
    ("1e5",): "decimal(6,0)",
    ("1", "1.5"): "double",
    ("1.5", "99999999999"): "string",
    ("NaN",): "double",
    ("2026-01-01", "2025-12-31"): "date",
    ("2026-01-01", "2026-1-2"): "string",
    ("2026-01-01", "2026"): "string",
    ("2026-01-01 10%3A00%3A00", "2026-01-01"): "timestamp",
    ("2026-02-30",): "string",
    ("1", "abc"): "string",
    ("__HIVE_DEFAULT_PARTITION__", "1"): "int",
    ("true",): "string",
    ("%31",): "string",
}


@given(st.text(alphabet="0123456789+-.eE٣ ", min_size=1, max_size=60))
@example("1e9999999999999999999")
@example("1e9999999")
@example("1.2345678901234567890123456789012345678")
def test_any_value_has_a_type_which_it_fits(value: str) -> None:
    """A decimal with a digit more than the column's scale does not fit, however many digits it has."""
    inferred = partitions._inferred(value)
    assert inferred == "string" or partitions.fits(value, inferred)
    number = re.fullmatch(r"[0-9]{1,10}\.([0-9]{0,37}[1-9])0*", value)
    assert number is None or partitions.fits(value, f"decimal(38,{len(number[1])})") == (
        len(value.partition(".")[0].lstrip("0")) + len(number[1]) <= 38
    )
    assert number is None or not partitions.fits(value, f"decimal(38,{len(number[1]) - 1})")


@pytest.mark.parametrize("values", INFERRED, ids=repr)
def test_types_are_inferred_as_spark_infers_them(values: tuple[str, ...]) -> None:
    paths = [f"c={value}/a.json" for value in values]
    assert partitions.types_of(paths, {}) == {"c": INFERRED[values]}


def test_java_only_numbers_and_columns_without_values_are_strings() -> None:
    for value in ("1d", "0x1p3", " 1", "1_000", "__HIVE_DEFAULT_PARTITION__"):
        assert partitions.types_of([f"c={value}/a.json"], {}) == {"c": "string"}


def test_recorded_column_type_overrides_the_inferred_type() -> None:
    assert partitions.types_of(["C=1/d=2/a.json"], {"c": "string"}) == {"c": "string", "d": "int"}
    assert partitions.types_of(["c=abc/a.json"], {"c": "int"}) == {"c": "int"}


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        ("tinyint", ["-128", "127"], ["128", "1.0", "%31", "abc"]),
        ("bigint", ["9223372036854775807"], ["9223372036854775808"]),
        ("decimal(5,2)", ["1.50", "999.99", "1e2"], ["1.999", "1000", "abc"]),
        ("float", ["1.5"], ["1e39", "abc"]),
        ("boolean", ["true", "False"], ["yes", "1"]),
        ("date", ["2024-02-29"], ["2023-02-29", "2026-01-01T00:00", "2026"]),
        ("timestamp", ["2026-01-01 10%3A00%3A00.123456", "2026-01-01T10:00:00", "2026-01-01"], ["2026-01-01 10", "x"]),
        ("string", ["", "%zz"], []),
        ("binary", [], ["x"]),
        ("array<int>", [], ["1"]),
    ],
)
def test_value_fits_a_type_only_if_spark_reads_it_unchanged(type: str, good: list[str], bad: list[str]) -> None:
    assert [value for value in good if not partitions.fits(value, type)] == []
    assert [value for value in bad if partitions.fits(value, type)] == []


@pytest.mark.parametrize("hint", [None, [], {}, {"partition_columns": {"day": 5}}, {"partition_columns": ["day"]}])
def test_hint_of_another_form_has_no_effect(hint: Any) -> None:
    assert partitions.recorded_types(hint) == {}
