"""Parquet and ORC sources: every row of every file is read correctly, or the batch is refused and the file is named."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.errors import DataError
from tests.spark_location import Location

pytestmark = pytest.mark.spark

WRITERS: dict[str, Any] = {"parquet": pyarrow.parquet.write_table, "orc": pyarrow.orc.write_table}


def put(location: Location, name: str, columns: dict[str, Any], **options: Any) -> Path:
    path = location.root / "in" / name
    WRITERS[path.suffix[1:]](pyarrow.table(columns), path, **options)
    return path


def refused(location: Location, file: str, **source: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        location.run(location.pipeline(source=source))
    assert str(caught.value.fields["file"]).endswith(file)
    assert open_log(str(location.root / "log")).head == -1
    return caught.value


def test_page_with_a_wrong_checksum_is_refused_by_file(location: Location) -> None:
    put(location, "a.parquet", {"id": [1, 2]})
    path = put(location, "bad.parquet", {"id": list(range(1000))}, compression="none", use_dictionary=False, write_page_checksum=True)  # fmt: skip
    data = bytearray(path.read_bytes())
    data[4000] ^= 0xFF
    path.write_bytes(data)
    refused(location, "bad.parquet", format="parquet")


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columns_are_found_with_any_session_settings_for_case_and_position(
    location: Location, spark: SparkSession, format: str
) -> None:
    put(location, f"a.{format}", {"ID": [1, 2], "Amount": [5, 6]})
    given = {"spark.sql.caseSensitive": "true", "orc.force.positional.evolution": "true"}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        location.run(location.pipeline(source={"format": format, "schema": "amount bigint, id bigint"}))
    finally:
        for name in given:
            spark.conf.unset(name)
    assert location.rows(spark) == [{"amount": 5, "id": 1}, {"amount": 6, "id": 2}]


def test_fewer_rows_read_than_the_footer_counts_is_an_error(location: Location, spark: SparkSession) -> None:
    put(location, "a.parquet", {"id": [1, 2]})
    path = put(location, "bad.parquet", {"id": [7] * 25}, compression="none")
    # The offset of the first page becomes -64. The row group then starts before the file, and no split contains it.
    path.write_bytes(path.read_bytes().replace(b"\x26\x08", b"\x26\x7f", 1))
    assert pyarrow.parquet.read_metadata(path).num_rows == 25
    assert spark.read.parquet(str(path)).count() == 0
    error = refused(location, "bad.parquet", format="parquet")
    assert (error.fields["footer"], error.fields["read"]) == (25, 0)


def test_footer_that_contradicts_its_row_groups_is_refused(location: Location) -> None:
    path = put(location, "bad.parquet", {"id": [7] * 20})
    path.write_bytes(path.read_bytes().replace(b"\x16\x28", b"\x16\x32", 1))
    assert pyarrow.parquet.read_metadata(path).num_rows == 25
    refused(location, "bad.parquet", format="parquet")


NARROWED = {
    "int64 as tinyint": (pyarrow.array([300]), "tinyint"),
    "int32 as smallint": (pyarrow.array([70_000], pyarrow.int32()), "smallint"),
    "int32 as date": (pyarrow.array([1], pyarrow.int32()), "date"),
    "date as int": (pyarrow.array([datetime.date(2026, 1, 1)]), "int"),
    "double as float": (pyarrow.array([1e300]), "float"),
    "decimal as a smaller scale": (pyarrow.array([Decimal("1.25")], pyarrow.decimal128(9, 2)), "decimal(9,1)"),
    "decimal as fewer digits": (pyarrow.array([Decimal("1.25")], pyarrow.decimal128(9, 2)), "decimal(5,2)"),
    "decimal as binary": (pyarrow.array([Decimal("1.25")], pyarrow.decimal128(9, 2)), "binary"),
    "binary as string": (pyarrow.array([b"\xff"]), "string"),
    "string as int": (pyarrow.array(["x"]), "int"),
    "element of an array": (pyarrow.array([[300]], pyarrow.list_(pyarrow.int32())), "array<tinyint>"),
    "field of a struct": (pyarrow.array([{"a": 300}]), "struct<a:tinyint>"),
    "timestamp as number": (pyarrow.array([1], pyarrow.timestamp("us")), "int"),
}
PARQUET_ONLY = {
    "uint8 as tinyint": (pyarrow.array([200], pyarrow.uint8()), "tinyint"),
    "uint32 as decimal": (pyarrow.array([2**32 - 1], pyarrow.uint32()), "decimal(12,2)"),
    "uint64 as another decimal": (pyarrow.array([2**64 - 1], pyarrow.uint64()), "decimal(25,5)"),
    "int8 as decimal": (pyarrow.array([1], pyarrow.int8()), "decimal(9,2)"),
    "uint32 as double": (pyarrow.array([2**32 - 1], pyarrow.uint32()), "double"),
    "uint64 as bigint": (pyarrow.array([2**64 - 1], pyarrow.uint64()), "bigint"),
    "duration in ns as interval": (pyarrow.array([90_000], pyarrow.duration("ns")), "interval day to second"),
    "duration in s as interval": (pyarrow.array([90], pyarrow.duration("s")), "interval day to second"),
}


@pytest.mark.parametrize("case", [*NARROWED, *PARQUET_ONLY])
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_schema_that_cannot_hold_the_values_of_a_column_is_refused_by_file(
    location: Location, format: str, case: str
) -> None:
    if format == "orc" and case in PARQUET_ONLY:
        return
    values, type = {**NARROWED, **PARQUET_ONLY}[case]
    put(location, f"bad.{format}", {"c": values})
    error = refused(location, f"bad.{format}", format=format, schema=f"c {type}")
    assert error.fields["column"] == "c"


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_schema_that_holds_every_value_is_read_as_plain_spark_reads_it(
    location: Location, spark: SparkSession, format: str
) -> None:
    columns = {
        "i": pyarrow.array([300], pyarrow.int32()), "f": pyarrow.array([1.5], pyarrow.float32()),
        "d": pyarrow.array([Decimal("1.25")], pyarrow.decimal128(9, 2)), "s": ["x"], "b": [True],
        "day": [datetime.date(2026, 1, 1)], "at": pyarrow.array([1_000_000], pyarrow.timestamp("us")),
        "list": pyarrow.array([[1]], pyarrow.list_(pyarrow.int32())), "st": [{"A": 1, "b": "y"}],
    }  # fmt: skip
    if format == "parquet":
        columns |= {
            "u": pyarrow.array([2**64 - 1], pyarrow.uint64()),
            "ns": pyarrow.array([7], pyarrow.timestamp("ns")),
        }
        columns |= {"dict": pyarrow.array(["x"]).dictionary_encode(), "m": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int32()))}  # fmt: skip
    put(location, f"a.{format}", columns)
    schema = "I long, f double, d decimal(20,4), s string, b boolean, day date, at timestamp, list array<long>, st struct<a:long>"
    schema += ", u decimal(20,0), ns long, dict string, m map<string,long>" if format == "parquet" else ""
    location.run(location.pipeline(source={"format": format, "schema": schema}))
    expected = spark.read.schema(schema).format(format).load(str(location.root / "in"))
    assert location.rows(spark) == [row.asDict() for row in expected.collect()]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_column_missing_from_all_files_is_refused_or_null_by_missing_columns(
    location: Location, spark: SparkSession, format: str
) -> None:
    put(location, f"a.{format}", {"id": [1], "st": [{"a": 1}]})
    put(location, f"b.{format}", {"id": [2], "st": [{"a": 2}], "later": ["x"]})
    source = {"format": format, "schema": "id long, later string, st struct<a:long,bb:long>, nmae string"}
    error = refused(location, f"a.{format}", **source)
    assert error.fields["columns"] == ["nmae", "st.bb"]
    location.run(location.pipeline(source={**source, "missing_columns": "null"}))
    assert [(row["id"], row["later"], row["nmae"]) for row in location.rows(spark)] == [(1, None, None), (2, "x", None)]


@pytest.mark.parametrize("columns", [{"id": ["x"]}, {"a": [1], "A": [2]}], ids=["other type", "same name"])
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columns_that_cannot_be_merged_are_refused_by_file(
    location: Location, format: str, columns: dict[str, Any]
) -> None:
    put(location, f"a.{format}", {"id": [1]})
    put(location, f"bad.{format}", columns)
    refused(location, f"bad.{format}", format=format)


def test_files_that_contradict_each_other_in_different_directories_are_refused_by_file(location: Location) -> None:
    put(location, "a.parquet", {"id": [1]})
    (location.root / "in" / "day=1").mkdir()
    put(location, "day=1/b:1.parquet", {"id": ["x"]})
    error = refused(location, "", format="parquet")
    assert {error.fields["file"], error.fields["other_file"]} == {"a.parquet", "day=1/b:1.parquet"}


def test_file_beside_partition_directories_is_checked_against_the_whole_schema(location: Location) -> None:
    (location.root / "in" / "day=1").mkdir()
    put(location, "day=1/a.parquet", {"id": [1]})
    put(location, "bad.parquet", {"id": [2], "day": pyarrow.array([300])})
    refused(location, "bad.parquet", format="parquet", schema="id long, day tinyint")


def test_type_that_spark_lacks_is_refused_by_file(location: Location) -> None:
    put(location, "a.parquet", {"id": [1]})
    put(location, "bad.parquet", {"id": [1], "at": pyarrow.array([7], pyarrow.timestamp("ns"))})
    refused(location, "bad.parquet", format="parquet")


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("schema", [None, "id long"])
def test_truncated_file_is_refused_by_name(location: Location, format: str, schema: str | None) -> None:
    path = put(location, f"bad.{format}", {"id": list(range(10_000))})
    path.write_bytes(path.read_bytes()[:-500])
    refused(location, f"bad.{format}", format=format, schema=schema)


@pytest.mark.parametrize("values", [[300], ["no number"]], ids=str)
def test_orc_file_without_column_names_is_checked_against_the_schema_by_position(
    location: Location, values: list[Any]
) -> None:
    put(location, "a.orc", {"id": pyarrow.array([1], pyarrow.int8()), "s": ["x"]})
    put(location, "bad.orc", {"_col0": values, "_col1": ["y"]})
    refused(location, "bad.orc", format="orc", schema="id tinyint, s string")


def test_timestamps_in_different_units_are_not_read_into_one_number_column(location: Location) -> None:
    put(location, "a.parquet", {"at": pyarrow.array([1], pyarrow.timestamp("us"))})
    put(location, "b.parquet", {"at": pyarrow.array([1], pyarrow.timestamp("ms"))})
    error = refused(location, "", format="parquet", schema="at long")
    assert {error.fields["unit"], error.fields["other_unit"]} == {"us", "ms"}


def test_orc_timestamps_without_a_zone_are_refused_if_java_is_not_in_utc(
    location: Location, spark: SparkSession
) -> None:
    put(location, "a.orc", {"id": [1], "at": pyarrow.array([7], pyarrow.timestamp("us"))})
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    try:
        for schema in ("id long, at timestamp", None):
            with pytest.raises(DataError, match=r"columns=\['at'\], java_zone='America/New_York'.*user.timezone=UTC"):
                location.run(location.pipeline(source={"format": "orc", "schema": schema}))
    finally:
        zones.setDefault(before)
    location.run(location.pipeline(source={"format": "orc", "schema": "id long, at timestamp"}))
    assert location.rows(spark)[0]["at"] == datetime.datetime(1970, 1, 1, 0, 0, 0, 7)


UNTYPED: dict[str, tuple[Any, str, Any]] = {
    "nanoseconds": (pyarrow.array([1001], pyarrow.timestamp("ns")), "long", 1001),
    "nanoseconds in UTC": (pyarrow.array([1001], pyarrow.timestamp("ns", "UTC")), "long", 1001),
    "nested nanoseconds": (pyarrow.array([[{"t": 1001}]], pyarrow.list_(pyarrow.struct([("t", pyarrow.timestamp("ns"))]))), "array<struct<t: long>>", [(1001,)]),
    "time": (pyarrow.array([7], pyarrow.time64("ns")), "long", 7),
    "float16": (pyarrow.array([1.5], pyarrow.float16()), "binary", bytearray(b"\x00>")),
    "wide decimal": (pyarrow.array([Decimal("1.50")], pyarrow.decimal256(50, 2)), "binary", bytearray(b"\0" * 20 + b"\x96")),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTYPED)
def test_parquet_type_without_a_type_of_spark_is_reported_with_the_schema_that_reads_it(
    location: Location, spark: SparkSession, case: str
) -> None:
    values, type, read = UNTYPED[case]
    put(location, "a.parquet", {"id": [1], "t": values})
    error = refused(location, "a.parquet", format="parquet")
    assert error.fields["column"] == "t"
    assert f"the type {type.rpartition(': ')[2].rstrip('>')}:" in error.do
    assert "damaged" not in error.do
    location.run(location.pipeline(source={"format": "parquet", "schema": f"id long, t {type}"}))
    assert location.rows(spark) == [{"id": 1, "t": read}]


@pytest.mark.parametrize("type", ["timestamp", "timestamp_ntz"])
def test_schema_that_reads_nanoseconds_as_a_timestamp_is_refused_with_the_type_that_holds_them(
    location: Location, type: str
) -> None:
    put(location, "a.parquet", {"t": pyarrow.array([1001], pyarrow.timestamp("ns"))})
    error = refused(location, "a.parquet", format="parquet", schema=f"t {type}")
    assert "the type long" in error.do


def test_old_timestamps_of_parquet_are_read_as_microseconds(location: Location, spark: SparkSession) -> None:
    times = pyarrow.array([1_000], pyarrow.timestamp("ns"))
    put(location, "a.parquet", {"t": times}, use_deprecated_int96_timestamps=True)
    location.run(location.pipeline(source={"format": "parquet", "schema": "t timestamp_ntz"}))
    assert location.rows(spark) == [{"t": datetime.datetime(1970, 1, 1, 0, 0, 0, 1)}]


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("schema", [None, "id long", "n array<struct<x: long>>"])
def test_columns_that_differ_only_in_case_are_reported_by_name(
    location: Location, format: str, schema: str | None
) -> None:
    one = pyarrow.array([1])
    pair = pyarrow.StructArray.from_arrays([one, one], names=["X", "x"])
    nested = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1], pyarrow.int32()), pair)
    put(location, f"a.{format}", {"ID": one, "id": one, "n": nested})
    error = refused(location, f"a.{format}", format=format, **({} if schema is None else {"schema": schema}))
    names = ["n.element.X", "n.element.x"]
    assert error.fields["columns"] == {None: ["ID", "id", *names], "id long": ["ID", "id"]}.get(schema, names)
    assert "other column names" in error.do


def test_repeated_columns_that_the_schema_does_not_name_are_not_read(location: Location, spark: SparkSession) -> None:
    put(location, "a.parquet", {"ID": [1], "id": [2], "n": [3]})
    location.run(location.pipeline(source={"format": "parquet", "schema": "n long"}))
    assert location.rows(spark) == [{"n": 3}]
