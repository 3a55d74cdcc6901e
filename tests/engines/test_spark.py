"""A batch on real Spark: every physical record is parsed, filtered or quarantined, and what was written reads back as it was."""

from __future__ import annotations

import datetime
import gzip
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Limits,
    Pipeline,
    RunResult,
    open_log,
    read_committed,
    run_batch,
    verify,
)
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError, StageError

pytestmark = pytest.mark.spark


class Place:
    """Directories of one pipeline on Spark."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "in").mkdir()
        self.runs = 0

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def pipeline(self, *, source: dict[str, Any], sink: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
        sinks = changes.pop("sinks", None) or {"out": FilesSink(path=str(self.root / "out"), **(sink or {}))}
        return Pipeline(
            name="place", log=str(self.root / "log"), source=FilesSource(path=str(self.root / "in"), **source), sinks=sinks, **changes
        )  # fmt: skip

    def run(self, pipeline: Pipeline, **arguments: Any) -> RunResult:
        self.runs += 1
        return run_batch(pipeline, run_key=f"run-{self.runs}", **arguments)

    def rows(self, spark: SparkSession, **arguments: Any) -> list[dict[str, Any]]:
        frame = read_committed(spark, str(self.root / "log"), **arguments)
        return sorted((row.asDict() for row in frame.collect()), key=str)

    def quarantined(self) -> list[dict[str, Any]]:
        opened = open_log(str(self.root / "log"))
        return [
            json.loads(line)
            for version in opened.versions(newest_first=False)
            if version.outcome
            for key in version.outcome.quarantine.keys
            for line in (opened.log.read(key) or b"").splitlines()
        ]

    def check(self) -> None:
        verdict = verify(str(self.root / "log"))
        assert verdict.findings == []


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    return Place(tmp_path)


JSON = {"format": "json", "schema": "id long, name string"}
CSV = {"format": "csv", "schema": "id long, name string, n int", "options": {"header": "true"}}

BAD_JSON = [
    "{not json",
    '{"id": 1, "name": "x"',
    '{"id": "one"}',
    "[1, 2]",
    '[{"id": 1}, {"id": 2}]',
    "3",
    "null",
    '"text"',
    '{"id": 1} trailing',
    '{"id": 1}{"id": 2}',
    '{"id": 1}, {"id": 2}',
    '{"id": 1, "name": "}"} {"id": 2}',
]
GOOD_JSON = [
    '{"id": 1, "name": "a"}',
    '{"id": 2}',
    '{"name": "only"}',
    '{"id": 3, "name": "brace } inside"}',
    '{"id": 4, "name": "x", "unknown": {"a": [1, {"b": "}"}]}}',
    '  {"id": 5, "name": "é"}  ',
    '{"id": 6, "name": ""}',
    '{"id": 7, "name": null}',
]


def only_id(frame: DataFrame) -> DataFrame:
    return frame.select("id")


def nothing(frame: DataFrame) -> DataFrame:
    return frame.where("1 = 0")


def first_two(frame: DataFrame) -> DataFrame:
    return frame.limit(2)


def counted_first(frame: DataFrame) -> DataFrame:
    frame.take(1)
    return frame


def twice(frame: DataFrame) -> DataFrame:
    return frame.union(frame)


def ordered(frame: DataFrame) -> DataFrame:
    return frame.orderBy("id")


def spread(frame: DataFrame) -> DataFrame:
    return frame.repartitionByRange(2, "id")


def grouped(frame: DataFrame) -> DataFrame:
    return frame.groupBy("id").count().select("id")


def cached_limit(frame: DataFrame) -> DataFrame:
    return frame.limit(2).cache()


def cached_order(frame: DataFrame) -> DataFrame:
    return frame.orderBy("id").cache()


def joined(frame: DataFrame) -> DataFrame:
    return frame.join(frame.select("id").distinct(), "id", "left")


def constant(frame: DataFrame) -> DataFrame:
    return frame.select(F.lit(1).alias("one"))


def ignored(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(3)


TRANSFORMS: list[tuple[Callable[[DataFrame], DataFrame], Callable[[int], int] | None]] = [
    (only_id, lambda n: n),
    (nothing, lambda n: 0),
    (first_two, lambda n: 2),
    (counted_first, lambda n: n),
    (twice, lambda n: 2 * n),
    (ordered, lambda n: n),
    (spread, lambda n: n),
    (grouped, None),
    (cached_limit, lambda n: 2),
    (cached_order, lambda n: n),
    (joined, lambda n: n),
    (constant, lambda n: n),
    (ignored, lambda n: 3),
]


@pytest.mark.parametrize(("transform", "written"), TRANSFORMS, ids=lambda t: getattr(t, "__name__", ""))
@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_I14_records_are_accounted_for_whatever_the_transform_uses(
    place: Place, format: str, transform: Callable[[DataFrame], DataFrame], written: Callable[[int], int] | None
) -> None:
    if format == "json":
        place.put("a.json", "\n".join([*GOOD_JSON, "", *BAD_JSON]))
        source, good, bad = JSON, len(GOOD_JSON), len(BAD_JSON)
    elif format == "csv":
        lines = ["id,name,n", "1,a,1", "2,b", "3,c,3,4", "x,d,4", '5,"e,e",5', "6,f,many", "7,,"]
        place.put("a.csv", "\n".join(lines))
        source, good, bad = CSV, 3, 4
    else:  # the column is called id as in the others
        place.put("a.txt", "one\ntwo\n\nfour")
        source, good, bad = {"format": "text"}, 4, 0
        by_id = transform
        transform = lambda frame: by_id(frame.withColumnRenamed("value", "id"))  # noqa: E731
    result = place.run(place.pipeline(source=source, transform=transform))
    assert {name: result.counts[name] for name in ("read", "parsed", "quarantined")} == {
        "read": good + bad,
        "parsed": good,
        "quarantined": bad,
    }
    assert written is None or result.counts["written.out"] == written(good)
    assert len(place.quarantined()) == bad
    place.check()


def test_quarantined_records_keep_their_text_and_name_their_file(place: Place) -> None:
    path = place.put("dir with space/odd ü%20#1.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    place.run(place.pipeline(source=JSON))
    quarantined = place.quarantined()
    assert sorted(record["raw"] for record in quarantined) == sorted(BAD_JSON)
    assert {record["path"] for record in quarantined} == {str(path)}
    assert all("schema" in record["error"] for record in quarantined)


@pytest.mark.parametrize(
    "name", ["a b.json", "a%20b.json", "[x]{y}.json", "a*b?.json", "ü.json", "a#b.json", "a\\b.json"]
)
def test_odd_file_names_are_read_as_they_are(place: Place, spark: SparkSession, name: str) -> None:
    place.put(name, '{"id": 1, "name": "a"}\n')
    place.put("ab.json", '{"id": 2, "name": "b"}\n')
    assert place.run(place.pipeline(source=JSON)).counts["read"] == 2
    assert [row["id"] for row in place.rows(spark)] == [1, 2]


def test_files_that_are_not_finished_are_passed_over_until_they_are_renamed(place: Place) -> None:
    for name in ("_a.json", ".b.json", "_tmp/c.json", "d.json._COPYING_"):
        place.put(name, '{"id": 1, "name": "x"}\n')
    assert place.run(place.pipeline(source=JSON)).status == "empty"
    os.rename(place.root / "in" / "_a.json", place.root / "in" / "a.json")
    assert place.run(place.pipeline(source=JSON)).counts["read"] == 1


def test_rows_filter_reconciles_what_the_predicate_drops(place: Place, spark: SparkSession) -> None:
    place.put("a.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    result = place.run(place.pipeline(source=JSON, where="id > 2", rows="filter", transform=only_id))
    assert (result.counts["filtered"], result.counts["written.out"]) == (3, 5)
    assert [row["id"] for row in place.rows(spark)] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("transform", [first_two, twice, nothing], ids=lambda t: t.__name__)
def test_I14_transform_that_breaks_its_declaration_commits_nothing(
    place: Place, transform: Callable[[DataFrame], DataFrame]
) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="rows="):
        place.run(place.pipeline(source=JSON, rows="filter", transform=transform))
    assert open_log(str(place.root / "log")).head == -1


def odd_values(spark: SparkSession) -> DataFrame:
    at = datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=datetime.timezone.utc)
    texts = [
        None,
        "",
        " ",
        "a/b",
        "%2F",
        "..",
        ".",
        "a=b",
        "__HIVE_DEFAULT_PARTITION__",
        "é",
        "e\u0301",
        "😀",
        "A",
        "a",
        "x" * 300,
        "x" * 301,
        "\n",
        "\r\n",
        "two\nlines",
        "'\"\\",
    ]
    rows = [
        (
            i,
            t,
            [None, 0, -5][i % 3],
            [None, Decimal("1.50"), Decimal("-2.00")][i % 3],
            at if i % 2 else None,
            bool(i % 2),
            at.date(),
            [0.0, -0.0, 1.5][i % 3],
        )
        for i, t in enumerate(texts)
    ]
    return spark.createDataFrame(
        rows, "id long, s string, i int, d decimal(5,2), t timestamp, b boolean, day date, f double"
    )


@pytest.mark.parametrize("column", ["s", "i", "d", "t", "b", "day", "f"])
@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_partition_values_read_back_as_they_were_written(
    place: Place, spark: SparkSession, format: str, column: str
) -> None:
    place.put("a.txt", "x")
    result = place.run(
        place.pipeline(
            source={"format": "text"},
            sink={"format": format, "partition_by": [column]},
            transform=lambda frame: odd_values(frame.sparkSession),
        )
    )
    assert result.counts["written.out"] == 20
    expected = {row["id"]: row.asDict() for row in odd_values(spark).collect()}
    assert {row["id"]: row for row in place.rows(spark)} == expected
    place.check()


def test_one_file_holds_one_partition_value_and_the_manifest_names_it(place: Place) -> None:
    place.put("a.txt", "x")
    place.run(
        place.pipeline(
            source={"format": "text"},
            sink={"partition_by": ["s", "t"]},
            transform=lambda frame: odd_values(frame.sparkSession),
        )
    )
    files = open_log(str(place.root / "log")).files()
    for file in files:
        values = pyarrow.parquet.read_table(file.path)["s"].unique().to_pylist()
        assert values == [file.partition["s"]]
    assert {file.partition["t"] for file in files} == {None, "2024-03-31T01:30:00.123456Z"}


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_timestamps_are_microseconds_and_other_engines_agree(place: Place, format: str) -> None:
    place.put("a.txt", "x")
    place.run(
        place.pipeline(
            source={"format": "text"},
            sink={"format": format},
            transform=lambda frame: odd_values(frame.sparkSession).coalesce(1),
        )
    )
    (file,) = open_log(str(place.root / "log")).files()
    if format == "parquet":
        schema = pyarrow.parquet.ParquetFile(file.path).schema
        column = schema.column(schema.names.index("t"))
        assert (column.physical_type, column.logical_type.type) == ("INT64", "TIMESTAMP")
        (count, low, high) = duckdb.sql(f"select count(*), min(id), max(epoch_us(t)) from '{file.path}'").fetchall()[0]
        assert (count, low, high) == (20, 0, 1711848600123456)
    else:
        assert pyarrow.orc.ORCFile(file.path).nrows == 20


def test_codec_and_file_size_are_obeyed(place: Place, spark: SparkSession) -> None:
    place.put("a.txt", "x")
    big = place.pipeline(
        source={"format": "text"}, sink={"codec": "snappy", "target_file_bytes": 1 << 20},
        transform=lambda frame: frame.sparkSession.range(0, 20_000, 1, 8).selectExpr("id", "sha2(string(id), 256) h"),
    )  # fmt: skip
    place.run(big)
    files = open_log(str(place.root / "log")).files()
    assert len(files) < 8
    assert all("snappy" in file.path for file in files)
    assert sum(file.rows for file in files) == 20_000


def test_predicate_that_answers_differently_each_time_is_asked_once(place: Place) -> None:
    place.put("a.json", '{"id": 1, "name": "a"}\n' * 200)
    counts = place.run(place.pipeline(source=JSON, where="rand() < 0.5", rows="filter")).counts
    assert counts["filtered"] + counts["written.out"] == 200


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_in_another_order_are_read_back_under_their_names(
    place: Place, spark: SparkSession, format: str
) -> None:
    for name, columns in (("a", ["id", "name"]), ("b", ["name", "id"]), ("c", ["name", "1 added", "id"])):
        place.put(f"{name}.json", json.dumps({"id": 5, "name": "five"}) + "\n")
        place.run(
            place.pipeline(
                source=JSON,
                sink={"format": format},
                transform=lambda frame, columns=columns: frame.selectExpr(*columns),
            )
        )
    assert {(row["id"], row["name"]) for row in place.rows(spark)} == {(5, "five")}
    assert sorted(str(row["added"]) for row in place.rows(spark)) == ["1", "None", "None"]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columns_of_all_files_of_a_batch_are_read(place: Place, spark: SparkSession, format: str) -> None:
    for name, frame in (("a", spark.range(1)), ("b", spark.range(1).selectExpr("id", "'x' as name"))):
        frame.coalesce(1).write.format(format).save(str(place.root / name))
        (made,) = (place.root / name).glob(f"part-*.{format}")
        made.rename(place.root / "in" / f"{name}.{format}")
    place.run(place.pipeline(source={"format": format}))
    assert place.rows(spark) == [{"id": 0, "name": "x"}, {"id": 0, "name": None}]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_formats_keep_microseconds_and_long_fields(place: Place, spark: SparkSession, format: str) -> None:
    place.put("a.txt", "x")
    made = (
        "timestamp_ntz'2024-01-01 00:00:00.123456' ntz",
        "timestamp'1883-11-18 12:03:57.5 UTC' old",
        "repeat('y', 2000000) long",
    )
    place.run(
        place.pipeline(
            source={"format": "text"}, sink={"format": format}, transform=lambda frame: frame.selectExpr(*made)
        )
    )
    (row,) = place.rows(spark)
    assert row == spark.range(1).selectExpr(*made).first().asDict()  # type: ignore[union-attr]


def test_columns_that_cannot_partition_are_named(place: Place) -> None:
    place.put("a.txt", "x")
    with pytest.raises(DataError, match="cannot partition"):
        place.run(
            place.pipeline(
                source={"format": "text"},
                sink={"partition_by": ["a"]},
                transform=lambda frame: frame.selectExpr("array(value) a"),
            )
        )


def test_odd_column_names_and_dataset_paths_are_read_back(place: Place, spark: SparkSession) -> None:
    place.put("a.txt", "x")
    sinks = {"out": FilesSink(path=str(place.root / "out [1]{2}*?"), partition_by=["a`b.c"])}
    place.run(place.pipeline(source={"format": "text"}, sinks=sinks, transform=lambda frame: frame.toDF("a`b.c")))
    assert place.rows(spark) == [{"a`b.c": "x"}]


def test_several_sinks_share_one_evaluation_of_the_transform(place: Place, spark: SparkSession) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))
    calls = []

    def with_random(frame: DataFrame) -> DataFrame:
        calls.append(1)
        return frame.withColumn("r", F.rand())

    sinks = {
        "one": FilesSink(path=str(place.root / "one")),
        "two": FilesSink(path=str(place.root / "two"), format="json"),
    }
    result = place.run(place.pipeline(source=JSON, sinks=sinks, transform=with_random))
    assert (result.counts["written.one"], result.counts["written.two"], len(calls)) == (8, 8, 1)
    one, two = ({row["r"] for row in place.rows(spark, sink=name)} for name in ("one", "two"))
    assert one == two
    with pytest.raises(InvalidError, match="several sinks"):
        place.rows(spark)


def test_transform_may_split_rows_between_sinks(place: Place, spark: SparkSession) -> None:
    place.put("a.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    sinks = {name: FilesSink(path=str(place.root / name)) for name in ("low", "high")}
    result = place.run(
        place.pipeline(
            source=JSON,
            sinks=sinks,
            transform=lambda frame: {"low": frame.where("id < 4"), "high": frame.where("id >= 4")},
        )
    )
    assert [row["id"] for row in place.rows(spark, sink="low")] == [1, 2, 3]
    assert [row["id"] for row in place.rows(spark, sink="high")] == [4, 5, 6, 7]
    assert result.counts["quarantined"] == len(BAD_JSON)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda frame: None, "neither"),
        (lambda frame: 5, "neither"),
        (lambda frame: {"out": 5}, "neither"),
        (lambda frame: {"other": frame}, "other sinks"),
    ],
)
def test_transform_that_returns_something_else_is_named(
    place: Place, returned: Callable[[DataFrame], Any], message: str
) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match=message):
        place.run(place.pipeline(source=JSON, transform=returned))


def test_transform_that_raises_is_a_failed_stage_and_its_text_is_not_told(place: Place) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))

    def fails(frame: DataFrame) -> DataFrame:
        raise RuntimeError("password=hunter2")

    with pytest.raises(StageError) as caught:
        place.run(place.pipeline(source=JSON, transform=fails))
    assert "hunter2" not in str(caught.value)
    assert "RuntimeError" in str(caught.value)


def test_column_the_transform_does_not_find_is_not_retried(place: Place) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="UNRESOLVED_COLUMN"):
        place.run(place.pipeline(source=JSON, transform=lambda frame: frame.select("absent")))


def test_partition_column_that_is_missing_is_named(place: Place) -> None:
    place.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="absent"):
        place.run(place.pipeline(source=JSON, sink={"partition_by": ["absent"]}))


def test_added_columns_are_recorded_and_changed_types_refused(place: Place, spark: SparkSession) -> None:
    place.put("a.json", '{"id": 1, "name": "a"}\n')
    place.run(place.pipeline(source=JSON))
    place.put("b.json", '{"id": 2, "name": "b"}\n')
    place.run(place.pipeline(source=JSON, transform=lambda frame: frame.withColumn("more", F.lit(1))))
    assert place.rows(spark) == [{"id": 1, "name": "a", "more": None}, {"id": 2, "name": "b", "more": 1}]
    place.put("c.json", '{"id": 3, "name": "c"}\n')
    for transform, message in (
        (lambda frame: frame.selectExpr("string(id) id", "name", "1 more"), "type"),
        (only_id, "missing"),
    ):
        with pytest.raises(DataError, match=message):
            place.run(place.pipeline(source=JSON, transform=transform))


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_corrupt_columnar_file_fails_the_batch_and_is_named(place: Place, format: str) -> None:
    place.put(f"bad.{format}", b"not a columnar file at all")
    with pytest.raises(DataError) as caught:
        place.run(place.pipeline(source={"format": format, "schema": "id long"}))
    assert "bad." in str(caught.value)
    assert open_log(str(place.root / "log")).head == -1


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_empty_columnar_file_is_refused_where_spark_would_pass_over_it(place: Place, format: str) -> None:
    place.put(f"empty.{format}", b"")
    with pytest.raises(DataError, match="cannot be empty"):
        place.run(place.pipeline(source={"format": format, "schema": "id long"}))


def test_truncated_gzip_fails_the_batch(place: Place) -> None:
    place.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 100_000)[:-200])
    with pytest.raises(DataError, match=r"a\.json\.gz"):
        place.run(place.pipeline(source=JSON))


def test_gzip_and_empty_text_files_are_read(place: Place) -> None:
    place.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 10))
    place.put("empty.json", "")
    result = place.run(place.pipeline(source=JSON))
    assert (result.ranges, result.counts["read"]) == ({"files": (0, 2)}, 10)


def test_only_empty_files_commit_an_empty_batch(place: Place, spark: SparkSession) -> None:
    place.put("empty.json", "")
    assert place.run(place.pipeline(source=JSON, sink={"partition_by": ["name"]})).counts["read"] == 0
    assert place.rows(spark) == []
    place.check()


def test_csv_header_in_another_order_is_refused_instead_of_swapping_columns(place: Place) -> None:
    place.put("a.csv", "name,id,n\na,1,1\n")
    with pytest.raises(DataError):
        place.run(place.pipeline(source=CSV))


def test_columnar_files_are_read_with_their_own_types(place: Place, spark: SparkSession) -> None:
    odd_values(spark).write.parquet(str(place.root / "made"))
    for path in (place.root / "made").glob("part-*.parquet"):
        path.rename(place.root / "in" / path.name)
    result = place.run(place.pipeline(source={"format": "parquet"}, transform=only_id))
    assert (result.counts["read"], result.counts["parsed"]) == (20, 20)


def test_file_that_grows_while_it_is_read_voids_the_attempt(place: Place) -> None:
    path = place.put("a.json", '{"id": 1, "name": "a"}\n')

    def appends(frame: DataFrame) -> DataFrame:
        with path.open("a") as file:
            file.write('{"id": 2, "name": "b"}\n')
        return frame

    with pytest.raises(SourceChangedError, match=r"a\.json"):
        place.run(place.pipeline(source=JSON, transform=appends))


def test_users_session_keeps_its_settings_and_ours_bind_the_batch(place: Place, spark: SparkSession) -> None:
    place.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 100_000)[:-200])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(DataError):
            place.run(place.pipeline(source=JSON))
        assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "true"
        assert SparkSession.getActiveSession() is spark
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_drain_on_spark_reads_each_file_once(place: Place, spark: SparkSession) -> None:
    for n in range(7):
        place.put(f"{n}.json", f'{{"id": {n}, "name": "x"}}\n')
    result = place.run(place.pipeline(source=JSON, limits=Limits(max_files=3)), drain=True)
    assert (result.batches, result.counts["read"]) == (3, 7)
    assert [row["id"] for row in place.rows(spark)] == list(range(7))
    assert [row["id"] for row in place.rows(spark, version=1, since=0)] == [3, 4, 5]
    place.check()


def test_schema_that_is_no_ddl_is_named(place: Place) -> None:
    place.put("a.json", "{}\n")
    with pytest.raises(InvalidError, match="DDL"):
        place.run(place.pipeline(source={"format": "json", "schema": "id long,,"}))
