"""Formats on real Spark: written values are read back unchanged, and corrupt files are named."""

from __future__ import annotations

import datetime
import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    DeltaSink,
    FilesSink,
    HttpSink,
    open_log,
    read_committed,
)
from airflow_provider_streamsem.connectors.data_files import write
from airflow_provider_streamsem.errors import DataError
from tests.connectors.files.odd_rows import odd_values, supported_by
from tests.spark_location import CSV, JSON, Location

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("columns", [["s", "i", "d", "t"], ["b", "day", "f", "n"]], ids="-".join)
@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_partition_values_are_read_back_unchanged(
    location: Location, spark: SparkSession, format: str, columns: list[str]
) -> None:
    location.put("a.txt", "x")
    result = location.run(
        location.pipeline(
            source={"format": "text"},
            sink={"format": format, "partition_by": columns},
            transform=lambda frame: supported_by(format, odd_values(frame.sparkSession)),
        )
    )
    assert result.counts["written.out"] == 20
    expected = {row["id"]: row.asDict() for row in supported_by(format, odd_values(spark)).collect()}
    assert {row["id"]: row for row in location.rows(spark)} == expected
    location.check()


def test_each_file_has_one_partition_value_and_the_manifest_names_it(location: Location) -> None:
    location.put("a.txt", "x")
    location.run(
        location.pipeline(
            source={"format": "text"},
            sink={"partition_by": ["s", "t"]},
            transform=lambda frame: odd_values(frame.sparkSession),
        )
    )
    files = open_log(str(location.root / "log")).files()
    for file in files:
        values = pyarrow.parquet.read_table(file.path)["s"].unique().to_pylist()
        assert values == [file.partition["s"]]
    assert {file.partition["t"] for file in files} == {None, "2024-03-31T01:30:00.123456Z"}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("'web-1.a'", "web-1.a"),
        ("'New York'", "New_20York"),
        ("'_é*+/=%'", "_5F_C3_A9_2A_2B_2F_3D_25"),
        ("''", "_empty"),
        ("'_empty'", "_5Fempty"),
        ("string(null)", "_null"),
        ("'null'", "null"),
        (f"'{'x' * 100}'", "x" * 100),
        (f"'{'x' * 101}'", "_sha256-" + sha256(b"x" * 101).hexdigest()),
        ("date'2026-01-01'", "2026-01-01"),
        ("date'-0044-03-15'", "-0044-03-15"),
        ("timestamp'2026-01-01T12:00:00Z'", "2026-01-01~120000Z"),
        ("timestamp'2024-10-27T02:30:00+02:00'", "2024-10-27~003000Z"),
        ("timestamp'2024-10-27T02:30:00+01:00'", "2024-10-27~013000Z"),
        ("timestamp'1969-12-31T23:59:59.999999Z'", "1969-12-31~235959.999999Z"),
        ("timestamp_ntz'2024-03-31T02:30:00'", "2024-03-31~023000"),
        ("cast(null as timestamp_ntz)", "_null"),
        ("'2026-01-01~120000Z'", "2026-01-01_7E120000Z"),
        ("-5", "-5"),
        ("1.50", "1.50"),
        ("double('-0.0')", "0.0"),
        ("double('nan')", "NaN"),
        ("true", "true"),
    ],
)
def test_partition_directory_names_are_readable_and_distinct(spark: SparkSession, value: str, name: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Zurich")
    frame = session.sql(f"select {value} as v")
    assert frame.select(write.directory_value(F.col("v"), frame.schema[0].dataType)).collect()[0][0] == name


def test_partition_directories_are_named_by_column_and_value(location: Location) -> None:
    location.put("a.txt", "x")
    columns = ["date'2026-01-01' day", "value `two words`"]
    spec = location.pipeline(
        source={"format": "text"},
        sink={"partition_by": ["day", "two words"]},
        transform=lambda frame: frame.selectExpr(*columns),
    )
    location.run(spec)
    (file,) = open_log(str(location.root / "log")).files()
    assert "/__day=2026-01-01/__p0=x/" in file.path


def test_two_partition_columns_never_share_a_directory_name() -> None:
    for names in (["a b", "p0"], ["P0", "ä", "p1"], ["p0", "p1", "x.y", "_"]):
        columns = write.partition_columns(names)
        assert len({name.lower() for name in columns}) == len(names)


def test_column_with_the_name_of_a_partition_directory_is_refused(location: Location) -> None:
    location.put("a.txt", "x")
    spec = location.pipeline(
        source={"format": "text"},
        sink={"partition_by": ["day"]},
        transform=lambda frame: frame.selectExpr("value as day", "1 as __DAY"),
    )
    with pytest.raises(DataError, match=r"columns=\['__DAY'\].*rename the columns"):
        location.run(spec)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_timestamps_are_microseconds_and_other_engines_agree(location: Location, format: str) -> None:
    location.put("a.txt", "x")
    location.run(
        location.pipeline(
            source={"format": "text"},
            sink={"format": format},
            transform=lambda frame: supported_by(format, odd_values(frame.sparkSession)).coalesce(1),
        )
    )
    (file,) = open_log(str(location.root / "log")).files()
    if format == "parquet":
        schema = pyarrow.parquet.ParquetFile(file.path).schema
        column = schema.column(schema.names.index("t"))
        assert (column.physical_type, column.logical_type.type) == ("INT64", "TIMESTAMP")
        (count, low, high) = duckdb.sql(f"select count(*), min(id), max(epoch_us(t)) from '{file.path}'").fetchall()[0]
        assert (count, low, high) == (20, 0, 1711848600123456)
    else:
        times = pyarrow.orc.ORCFile(file.path).read()["t"].drop_null().unique().to_pylist()
        assert times == [1711848600123456], "Spark writes microseconds since 1970"


def test_codec_and_target_file_size_are_applied(location: Location, spark: SparkSession) -> None:
    location.put("a.txt", "x")
    big = location.pipeline(
        source={"format": "text"}, sink={"codec": "snappy", "target_file_bytes": 1 << 20},
        transform=lambda frame: frame.sparkSession.range(0, 20_000, 1, 8).selectExpr("id", "sha2(string(id), 256) h"),
    )  # fmt: skip
    location.run(big)
    files = open_log(str(location.root / "log")).files()
    assert len(files) < 8
    assert all("snappy" in file.path for file in files)
    assert sum(file.rows for file in files) == 20_000


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_in_another_order_are_read_back_by_name(location: Location, spark: SparkSession, format: str) -> None:
    for name, columns in (("a", ["id", "name"]), ("b", ["name", "id"]), ("c", ["name", "1 added", "id"])):
        location.put(f"{name}.json", json.dumps({"id": 5, "name": "five"}) + "\n")
        location.run(
            location.pipeline(
                source=JSON,
                sink={"format": format},
                transform=lambda frame, columns=columns: frame.selectExpr(*columns),
            )
        )
    assert {(row["id"], row["name"]) for row in location.rows(spark)} == {(5, "five")}
    assert sorted(str(row["added"]) for row in location.rows(spark)) == ["1", "None", "None"]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columns_of_all_files_of_a_batch_are_read(location: Location, spark: SparkSession, format: str) -> None:
    for name, frame in (("a", spark.range(1)), ("b", spark.range(1).selectExpr("id", "'x' as name"))):
        frame.coalesce(1).write.format(format).save(str(location.root / name))
        (file,) = (location.root / name).glob(f"part-*.{format}")
        file.rename(location.root / "in" / f"{name}.{format}")
    location.run(location.pipeline(source={"format": format}))
    assert location.rows(spark) == [{"id": 0, "name": "x"}, {"id": 0, "name": None}]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_formats_keep_microseconds_and_long_fields(location: Location, spark: SparkSession, format: str) -> None:
    location.put("a.txt", "x")
    expressions = (
        "timestamp_ntz'2024-01-01 00:00:00.123456' ntz",
        "timestamp'1883-11-18 12:03:57.5 UTC' old",
        "repeat('y', 2000000) long",
    )
    location.run(
        location.pipeline(
            source={"format": "text"}, sink={"format": format}, transform=lambda frame: frame.selectExpr(*expressions)
        )
    )
    (row,) = location.rows(spark)
    assert row == spark.range(1).selectExpr(*expressions).first().asDict()  # type: ignore[union-attr]


def test_columns_that_cannot_partition_are_reported_by_name(location: Location) -> None:
    location.put("a.txt", "x")
    with pytest.raises(DataError, match="cannot partition"):
        location.run(
            location.pipeline(
                source={"format": "text"},
                sink={"partition_by": ["a"]},
                transform=lambda frame: frame.selectExpr("array(value) a"),
            )
        )


def test_unusual_column_names_and_dataset_paths_are_read_back(location: Location, spark: SparkSession) -> None:
    location.put("a.txt", "x")
    sinks = {"out": FilesSink(path=str(location.root / "out [1]{2}*?"), partition_by=["a`b.c"])}
    location.run(location.pipeline(source={"format": "text"}, sinks=sinks, transform=lambda frame: frame.toDF("a`b.c")))
    assert location.rows(spark) == [{"a`b.c": "x"}]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_corrupt_columnar_file_fails_the_batch_and_is_reported_by_name(location: Location, format: str) -> None:
    location.put(f"bad.{format}", b"not a columnar file at all")
    with pytest.raises(DataError) as caught:
        location.run(location.pipeline(source={"format": format, "schema": "id long"}))
    assert "bad." in str(caught.value)
    assert open_log(str(location.root / "log")).head == -1


def test_damaged_file_becomes_a_gap_and_its_copy_is_read(location: Location, spark: SparkSession) -> None:
    """Follow the advice of the error message."""
    import pyarrow
    import pyarrow.parquet

    damaged = location.put("a.parquet", b"not a columnar file at all")
    source = {"format": "parquet", "schema": "id long"}
    with pytest.raises(DataError, match="put a good copy into the source under another name"):
        location.run(location.pipeline(source=source))
    damaged.unlink()
    pyarrow.parquet.write_table(pyarrow.table({"id": [1]}), location.root / "in" / "copy.parquet")
    with_gaps = location.pipeline(source=source, on_data_loss="record_gap")
    location.run(with_gaps)
    location.run(with_gaps)
    assert location.rows(spark) == [{"id": 1}]


LOST = {
    "a.parquet": b"",
    "a.orc": b"",
    "a.json.gz": b"",
    "a.json.bz2": b"BZh9",
    "a.json.ZST": b"",
    "a.json.snappy": b"x" * 99,
    "a.json.lz4": b"x" * 99,
}


@pytest.mark.parametrize("name", LOST)
def test_file_that_spark_would_ignore_is_refused_before_the_plan_or_becomes_a_gap(
    location: Location, name: str
) -> None:
    location.put(name, LOST[name])
    format = name.split(".")[1]
    source = {"format": format, "schema": "id long"}
    with pytest.raises(DataError, match="record_gap") as caught:
        location.run(location.pipeline(source=source))
    assert caught.value.fields["file"] == name
    assert open_log(str(location.root / "log")).log.plan(0) is None
    assert location.run(location.pipeline(source=source, on_data_loss="record_gap")).counts["gaps"] == 1
    location.check()


def test_truncated_gzip_fails_the_batch(location: Location) -> None:
    location.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 100_000)[:-200])
    with pytest.raises(DataError, match=r"a\.json\.gz"):
        location.run(location.pipeline(source=JSON))


def test_gzip_and_empty_text_files_are_read(location: Location) -> None:
    location.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 10))
    location.put("empty.json", "")
    result = location.run(location.pipeline(source=JSON))
    assert (result.ranges, result.counts["read"]) == ({"files": (0, 2)}, 10)


def test_only_empty_files_commit_an_empty_batch(location: Location, spark: SparkSession) -> None:
    location.put("empty.json", "")
    assert location.run(location.pipeline(source=JSON, sink={"partition_by": ["name"]})).counts["read"] == 0
    assert location.rows(spark) == []
    location.check()


def test_csv_header_in_another_order_is_refused_instead_of_swapping_columns(location: Location) -> None:
    location.put("a.csv", "name,id,n\nsecret,1,1\n")
    with pytest.raises(DataError, match="not the expected header") as raised:
        location.run(location.pipeline(source=CSV))
    assert raised.value.fields["expected"] == "id,name,n"
    assert "name,id,n" not in str(raised.value)  # the first line is a record if the file has no header


def test_columnar_files_are_read_with_their_own_types(location: Location, spark: SparkSession) -> None:
    odd_values(spark).write.parquet(str(location.root / "written"))
    for path in (location.root / "written").glob("part-*.parquet"):
        path.rename(location.root / "in" / path.name)
    result = location.run(location.pipeline(source={"format": "parquet"}, transform=lambda frame: frame.select("id")))
    assert (result.counts["read"], result.counts["parsed"]) == (20, 20)


def test_file_with_many_columns_is_read_and_its_bad_lines_are_quarantined(location: Location) -> None:
    columns = 500
    header = ",".join(f"c{i}" for i in range(columns))
    lines = [",".join(str(i) for i in range(columns)), ",".join(["x"] + ["1"] * (columns - 1))]
    location.put("a.csv", "\n".join([header, *lines]) + "\n")
    schema = ", ".join(f"c{i} int" for i in range(columns))
    result = location.run(
        location.pipeline(source={"format": "csv", "schema": schema, "options": {"header": "true"}},
                       transform=lambda frame: frame.select("c7"))
    )  # fmt: skip
    assert (result.counts["read"], result.counts["quarantined"], result.counts["written.out"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("columns", "named"), [(["'\\\\N' AS `odd name`", "1 AS n"], "odd name"), (["1 AS n", "binary(value) AS b"], "'b'")]
)
def test_value_that_csv_cannot_hold_is_refused_with_its_column_name(
    location: Location, columns: list[str], named: str
) -> None:
    location.put("a.txt", "x")
    pipeline = location.pipeline(
        source={"format": "text"},
        sink={"format": "csv"},
        transform=lambda frame: frame.selectExpr(*columns),
    )
    with pytest.raises(DataError, match=f"nothing became visible.*{named}"):
        location.run(pipeline)
    assert open_log(str(location.root / "log")).head == -1


BAD_BYTES = "cast(unhex('4DFC') as string)"


@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_long_lines_are_read_whatever_limit_the_session_sets(
    location: Location, spark: SparkSession, format: str
) -> None:
    lines = {"json": '{"value": "%s"}\n', "csv": "%s\n", "text": "%s\n"}[format]
    location.put("a.txt", "".join(lines % text for text in ("short", "long " * 20)))
    name = "mapreduce.input.linerecordreader.line.maxlength"
    source = {"format": format, **({} if format == "text" else {"schema": "value string"})}
    spark.conf.set(name, "20")
    try:
        assert location.run(location.pipeline(source=source, sink={"format": "json"})).counts["read"] == 2
        assert location.rows(spark) == [{"value": "long " * 20}, {"value": "short"}]
    finally:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("columns", "sink"),
    [
        ([f"{BAD_BYTES} name"], {"format": "json"}),
        ([f"{BAD_BYTES} name"], {"format": "csv"}),
        ([f"array(named_struct('v', {BAD_BYTES})) name"], {"format": "json"}),
        ([f"map('k', array(named_struct('a.b', {BAD_BYTES}, 'raw', unhex('4DFC')))) name"], {"format": "json"}),
        (["value", f"{BAD_BYTES} name"], {"format": "parquet", "partition_by": ["name"]}),
    ],
    ids=str,
)
def test_non_utf8_text_is_refused_if_the_sink_would_replace_bytes(
    location: Location, columns: list[str], sink: dict[str, Any]
) -> None:
    location.put("a.txt", "x")
    pipeline = location.pipeline(
        source={"format": "text"}, sink=sink, transform=lambda frame: frame.selectExpr(*columns)
    )
    with pytest.raises(DataError, match=r"not UTF-8.*column='name'"):
        location.run(pipeline)


def test_refused_column_with_an_unusual_name_is_reported_by_name(location: Location) -> None:
    location.put("a.txt", "x")
    name = "it's \"odd\\"
    refused = [f"{BAD_BYTES} `{name}`"]
    pipeline = location.pipeline(
        source={"format": "text"}, sink={"format": "json"}, transform=lambda frame: frame.selectExpr(*refused)
    )
    with pytest.raises(DataError, match="not UTF-8") as raised:
        location.run(pipeline)
    assert raised.value.fields["column"] == name


def test_bytes_beside_text_in_a_nested_column_are_kept(location: Location, spark: SparkSession) -> None:
    location.put("a.txt", "x")
    columns = "map('k', array(named_struct('raw', unhex('4DFC'), 'name', value))) m"
    location.run(
        location.pipeline(
            source={"format": "text"}, sink={"format": "json"}, transform=lambda frame: frame.selectExpr(columns)
        )
    )
    rows = read_committed(spark, str(location.root / "log")).selectExpr("hex(m.k[0].raw) raw", "m.k[0].name name")
    assert [tuple(row) for row in rows.collect()] == [("4DFC", "x")]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_map_with_a_duplicate_key_is_refused_by_json_and_kept_by_parquet(
    location: Location, spark: SparkSession, format: str, is_nested: bool
) -> None:
    """Spark creates no such map. A Parquet file may contain one."""
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int32())
    pairs = pyarrow.array([[("k", 1), ("k", 2)]], kind)
    if is_nested:
        pairs = pyarrow.array([[{"m": [("k", 1), ("k", 2)]}]], pyarrow.list_(pyarrow.struct([("m", kind)])))
    (location.root / "in").mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"m": pairs}), location.root / "in" / "a.parquet")
    pipeline = location.pipeline(source={"format": "parquet"}, sink={"format": format})
    if format == "json":
        with pytest.raises(DataError, match=r"a duplicate key.*column='m'"):
            location.run(pipeline)
    else:
        location.run(pipeline)
        assert (
            read_committed(spark, str(location.root / "log"))
            .selectExpr(f"size({'m[0].m' if is_nested else 'm'}) n")
            .collect()[0]["n"]
            == 2
        )


def test_non_utf8_text_keeps_its_bytes_in_parquet(location: Location, spark: SparkSession) -> None:
    location.put("a.txt", "x")
    location.run(
        location.pipeline(source={"format": "text"}, transform=lambda frame: frame.selectExpr(f"{BAD_BYTES} name"))
    )
    rows = read_committed(spark, str(location.root / "log")).selectExpr("hex(name) h").collect()
    assert [row["h"] for row in rows] == ["4DFC"]


@pytest.mark.parametrize(
    ("column", "message"),
    [(f"{BAD_BYTES} name", "not UTF-8"), ("date'0000-01-01' name", "outside the years 1 to 9999")],
)
def test_value_that_an_http_call_cannot_hold_is_refused_before_the_commit(
    location: Location, column: str, message: str
) -> None:
    location.put("a.txt", "x")
    sinks = {"push": HttpSink(staging=str(location.root / "staged"), url="http://127.0.0.1:1/")}
    pipeline = location.pipeline(
        source={"format": "text"}, sinks=sinks, transform=lambda frame: frame.selectExpr(column)
    )
    with pytest.raises(DataError, match=message):
        location.run(pipeline)
    assert open_log(str(location.root / "log")).head == -1


def test_json_row_with_a_very_long_text_is_read_back(location: Location, spark: SparkSession) -> None:
    """By default Spark reads a line with a text of more than 20 MB as a row of nulls."""
    location.put("a.txt", "x")
    columns = ["1 id", "repeat('x', 20000001) v"]
    location.run(
        location.pipeline(
            source={"format": "text"}, sink={"format": "json"}, transform=lambda frame: frame.selectExpr(*columns)
        )
    )
    rows = read_committed(spark, str(location.root / "log")).selectExpr("id", "length(v) n").collect()
    assert [tuple(row) for row in rows] == [(1, 20_000_001)]


def test_line_that_was_changed_to_invalid_json_is_an_error_for_readers(location: Location, spark: SparkSession) -> None:
    location.put("a.txt", "x")
    location.run(location.pipeline(source={"format": "text"}, sink={"format": "json"}))
    (file,) = open_log(str(location.root / "log")).files()
    Path(file.path).write_text("broken\n")
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        read_committed(spark, str(location.root / "log")).collect()


@pytest.mark.parametrize("format", ["csv", "json"])
def test_column_with_sparks_name_for_corrupt_records_keeps_its_values(
    location: Location, spark: SparkSession, format: str
) -> None:
    location.put("a.txt", "x")
    columns = ["1 id", "concat(value, '1') _corrupt_record"]
    location.run(
        location.pipeline(
            source={"format": "text"}, sink={"format": format}, transform=lambda frame: frame.selectExpr(*columns)
        )
    )
    assert location.rows(spark) == [{"id": 1, "_corrupt_record": "x1"}]


def test_missing_file_is_an_error_for_readers_with_any_session_settings(
    location: Location, spark: SparkSession
) -> None:
    location.put("a.txt", "x")
    location.run(location.pipeline(source={"format": "text"}))
    (file,) = open_log(str(location.root / "log")).files()
    session = spark.newSession()
    for name in ("Missing", "Corrupt"):
        session.conf.set(f"spark.sql.files.ignore{name}Files", "true")
    rows = read_committed(session, str(location.root / "log"))
    Path(file.path).unlink()
    with pytest.raises(Exception, match="not exist"):
        rows.collect()


@pytest.mark.parametrize(
    ("sink", "column", "message"),
    [
        ({"format": "json"}, "map(1, 'a') v", "maps whose keys are not strings"),
        (
            {"format": "json"},
            "array(named_struct('m', map(date'2026-01-01', 'a'))) v",
            "maps whose keys are not strings",
        ),
        ({"format": "orc"}, "current_timestamp() t", "cast the columns to timestamp_ntz"),
        ({"format": "orc"}, "array(map('k', current_timestamp())) t", "cast the columns to timestamp_ntz"),
        ({"format": "orc"}, "array(date'1582-10-10') d", "which ORC cannot store"),
        ({"format": "orc"}, "1 as `b``t`", r"columns=\['b`t'\]"),
        ({"format": "orc"}, "array(named_struct('b`t', 1)) v", r"columns=\['b`t'\]"),
    ],
)
def test_column_that_cannot_be_read_back_is_refused(
    location: Location, sink: dict[str, Any], column: str, message: str
) -> None:
    location.put("a.txt", "x")
    pipeline = location.pipeline(source={"format": "text"}, sink=sink, transform=lambda frame: frame.selectExpr(column))
    with pytest.raises(DataError, match=message):
        location.run(pipeline)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_float_widened_to_double_is_refused_if_earlier_rows_would_change(
    location: Location, spark: SparkSession, format: str
) -> None:
    location.put("a.txt", "0.1")
    first = location.pipeline(
        source={"format": "text"}, sink={"format": format}, transform=lambda frame: frame.selectExpr("float(value) v")
    )
    location.run(first)
    location.put("b.txt", "0.2")
    second = first.replace(transform=lambda frame: frame.selectExpr("double(value) v"))
    if format == "parquet":
        location.run(second)
        assert location.rows(spark) == [{"v": 0.10000000149011612}, {"v": 0.2}]
    else:
        with pytest.raises(DataError, match="changed its type"):
            location.run(second)


def test_old_dates_are_written_in_the_proleptic_gregorian_calendar(location: Location, spark: SparkSession) -> None:
    """Only Spark's own readers evaluate its calendar marker in the file."""
    setting = "spark.sql.parquet.datetimeRebaseModeInWrite"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "LEGACY")
    try:
        location.put("a.txt", "1500-01-01")
        location.run(
            location.pipeline(source={"format": "text"}, transform=lambda frame: frame.selectExpr("date(value) d"))
        )
    finally:
        spark.conf.set(setting, before)
    (file,) = open_log(str(location.root / "log")).files()
    assert pyarrow.parquet.ParquetFile(file.path).read()["d"].to_pylist() == [datetime.date(1500, 1, 1)]


def test_non_utf8_text_is_refused_for_delta_tables(location: Location) -> None:
    location.put("a.txt", "x")
    sinks = {"table": DeltaSink(str(location.root / "table"))}
    columns = f"{BAD_BYTES} name"
    pipeline = location.pipeline(
        source={"format": "text"}, sinks=sinks, transform=lambda frame: frame.selectExpr(columns)
    )
    with pytest.raises(DataError, match="not UTF-8"):
        location.run(pipeline)


def test_delta_partition_date_that_clients_cannot_read_is_refused(location: Location) -> None:
    location.put("a.txt", "x")
    sinks = {"table": DeltaSink(str(location.root / "table"), partition_by=["day"])}
    pipeline = location.pipeline(
        source={"format": "text"},
        sinks=sinks,
        transform=lambda frame: frame.selectExpr("value", "date'+10001-02-03' day"),
    )
    with pytest.raises(DataError, match="years 1 to 9999"):
        location.run(pipeline)


def test_names_and_texts_that_look_like_variables_of_spark_are_kept(location: Location, spark: SparkSession) -> None:
    location.put("day${a}=1/a.json", '{"a${b}": 1, "${env:HOME}": "${x}"}\n{"a${b}": 2, "${env:HOME}": "y"}\n')
    source = {"format": "json", "schema": "`a${b}` long, `${env:HOME}` string"}
    location.run(location.pipeline(source=source, where="`a${b}` > 0 AND `${env:HOME}` = '${x}'"))
    assert location.rows(spark) == [{"a${b}": 1, "${env:HOME}": "${x}", "day${a}": 1}]
