"""Batches on real Spark: every record is counted, the transform is evaluated once, and errors name their cause."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Callable
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    FilesSink,
    Limits,
    open_log,
)
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError, StageError
from airflow_provider_streamsem.spark import gateway
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.spark.transforms import TRANSFORMS, drop_all_rows, first_two, grouped, joined, only_id, twice
from tests.spark_location import BAD_JSON, CSV, GOOD_JSON, JSON, Location

pytestmark = pytest.mark.spark


# CSV and JSON mark bad records in the same way. Text has no bad records.
CASES = [
    *(("json", *case) for case in TRANSFORMS),
    *(("text", *case) for case in TRANSFORMS),
    *(("csv", *case) for case in TRANSFORMS if case[0] in (only_id, grouped, joined)),
]


@pytest.mark.parametrize(("format", "transform", "written"), CASES, ids=lambda t: getattr(t, "__name__", str(t)))
def test_I14_records_are_accounted_for_with_any_transform(
    location: Location, format: str, transform: Callable[[DataFrame], DataFrame], written: Callable[[int], int] | None
) -> None:
    if format == "json":
        location.put("a.json", "\n".join([*GOOD_JSON, "", *BAD_JSON]))
        source, good, bad = JSON, len(GOOD_JSON), len(BAD_JSON)
    elif format == "csv":
        lines = ["id,name,n", "1,a,1", "2,b", "3,c,3,4", "x,d,4", '5,"e,e",5', "6,f,many", "7,,"]
        location.put("a.csv", "\n".join(lines))
        source, good, bad = CSV, 3, 4
    else:  # name the column id as in the other formats
        location.put("a.txt", "one\ntwo\n\nfour")
        source, good, bad = {"format": "text"}, 4, 0
        by_id = transform
        transform = lambda frame: by_id(frame.withColumnRenamed("value", "id"))  # noqa: E731
    result = location.run(location.pipeline(source=source, transform=transform))
    assert {name: result.counts[name] for name in ("read", "parsed", "quarantined")} == {
        "read": good + bad,
        "parsed": good,
        "quarantined": bad,
    }
    assert written is None or result.counts["written.out"] == written(good)
    assert len(location.quarantined()) == bad
    location.check()


def test_quarantined_records_keep_their_text_and_name_their_file(location: Location) -> None:
    path = location.put("dir with space/odd ü%20#1.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    location.run(location.pipeline(source=JSON))
    quarantined = location.quarantined()
    assert sorted(record["raw"] for record in quarantined) == sorted(BAD_JSON)
    assert {record["path"] for record in quarantined} == {str(path)}
    assert all("schema" in record["error"] for record in quarantined)


JSON_REASONS = {
    '{"id":1,"n":"x","day":"tomorrow"}': "not a json record of the schema: values that do not fit: n, day",
    '{"id":null,"n":5}': "not a json record of the schema: required values that are missing: id",
    '{"n":"secret"}': "not a json record of the schema: values that do not fit: n; required values that are missing: id",
    "[1]": "not a json record of the schema: no JSON object",
    '{"id":1} 2': "not a json record of the schema: text after the JSON object",
}
CSV_REASONS = {
    "1,x,tomorrow": "not a csv record of the schema: values that do not fit: n, day",
    ",5,2026-01-01": "not a csv record of the schema: required values that are missing: id",
    "1,5": "not a csv record of the schema: number of fields: 2 instead of 3",
}


@pytest.mark.parametrize(("format", "reasons"), [("json", JSON_REASONS), ("csv", CSV_REASONS)])
def test_quarantined_record_names_the_columns_whose_values_do_not_fit(
    location: Location, format: str, reasons: dict[str, str]
) -> None:
    location.put(f"records.{format}", "\n".join(reasons))
    location.run(location.pipeline(source={"format": format, "schema": "id long NOT NULL, n int, day date"}))
    assert {record["raw"]: record["error"] for record in location.quarantined()} == reasons


ODD = [
    "a b",
    " a",
    "-rf",
    "a%20b",
    "a%3Ab",
    "[x]{y}",
    "a*b?",
    "ü😀",
    "e\u0301",
    "a#b",
    "a\\b",
    "a'b\"c",
    "a\nb\rc\td",
    "\x01",
    "~$&;|<>",
]
COLONS = ["a:b", "orders_2024-01-01T10:00:00", "a[1]:2", "a[2]:2", "a*:?", ":x", "s3a:x", "x:y/z", "day=10:00/x"]


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_unusual_file_names_are_read(location: Location, spark: SparkSession, format: str) -> None:
    names = [f"{name}.{format}" for name in (*ODD, *COLONS)]
    for number, name in enumerate(names):
        if format == "json":
            location.put(name, f'{{"id": {number}}}\n{{broken\n')
        else:
            location.put(name, b"")
            pyarrow.parquet.write_table(pyarrow.table({"id": [number]}), location.root / "in" / name)
    result = location.run(location.pipeline(source={"format": format, "schema": "id long"}))
    assert sorted(row["id"] for row in location.rows(spark)) == list(range(len(names)))
    if format == "json":
        assert result.counts["read"] == 2 * len(names)
        assert sorted(row["path"] for row in location.quarantined()) == sorted(
            str(location.root / "in" / name) for name in names
        )


def test_incomplete_files_are_skipped_until_they_are_renamed(location: Location) -> None:
    for name in ("_a.json", ".b.json", "_tmp/c.json", "d.json._COPYING_"):
        location.put(name, '{"id": 1, "name": "x"}\n')
    assert location.run(location.pipeline(source=JSON)).status == "empty"
    os.rename(location.root / "in" / "_a.json", location.root / "in" / "a.json")
    assert location.run(location.pipeline(source=JSON)).counts["read"] == 1


def test_rows_filter_reconciles_the_rows_that_the_predicate_drops(location: Location, spark: SparkSession) -> None:
    location.put("a.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    result = location.run(location.pipeline(source=JSON, where="id > 2", rows="filter", transform=only_id))
    assert (result.counts["filtered"], result.counts["written.out"]) == (3, 5)
    assert [row["id"] for row in location.rows(spark)] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("transform", [first_two, twice, drop_all_rows], ids=lambda t: t.__name__)
def test_I14_transform_that_breaks_its_declaration_commits_nothing(
    location: Location, transform: Callable[[DataFrame], DataFrame]
) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="rows="):
        location.run(location.pipeline(source=JSON, rows="filter", transform=transform))
    assert open_log(str(location.root / "log")).head == -1


def test_nondeterministic_predicate_is_evaluated_once(location: Location) -> None:
    location.put("a.json", '{"id": 1, "name": "a"}\n' * 200)
    counts = location.run(location.pipeline(source=JSON, where="rand() < 0.5", rows="filter")).counts
    assert counts["filtered"] + counts["written.out"] == 200


def test_several_sinks_share_one_evaluation_of_the_transform(location: Location, spark: SparkSession) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))
    calls = []

    def with_random(frame: DataFrame) -> DataFrame:
        calls.append(1)
        return frame.withColumn("r", F.rand())

    sinks = {
        "one": FilesSink(path=str(location.root / "one")),
        "two": FilesSink(path=str(location.root / "two"), format="json"),
    }
    result = location.run(location.pipeline(source=JSON, sinks=sinks, transform=with_random))
    assert (result.counts["written.one"], result.counts["written.two"], len(calls)) == (8, 8, 1)
    one, two = ({row["r"] for row in location.rows(spark, sink=name)} for name in ("one", "two"))
    assert one == two
    with pytest.raises(InvalidError, match="several sinks"):
        location.rows(spark)


def test_transform_may_split_rows_between_sinks(location: Location, spark: SparkSession) -> None:
    location.put("a.json", "\n".join([*GOOD_JSON, *BAD_JSON]))
    sinks = {name: FilesSink(path=str(location.root / name)) for name in ("low", "high")}
    result = location.run(
        location.pipeline(
            source=JSON,
            sinks=sinks,
            transform=lambda frame: {"low": frame.where("id < 4"), "high": frame.where("id >= 4")},
        )
    )
    assert [row["id"] for row in location.rows(spark, sink="low")] == [1, 2, 3]
    assert [row["id"] for row in location.rows(spark, sink="high")] == [4, 5, 6, 7]
    assert result.counts["quarantined"] == len(BAD_JSON)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda frame: None, "neither"),
        (lambda frame: 5, "neither"),
        (lambda frame: {"out": 5}, "neither"),
        (lambda frame: {"other": frame}, "one DataFrame for each sink"),
    ],
)
def test_transform_with_an_invalid_return_value_is_reported(
    location: Location, returned: Callable[[DataFrame], Any], message: str
) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match=message):
        location.run(location.pipeline(source=JSON, transform=returned))


def test_transform_that_raises_fails_the_stage_and_its_message_is_not_quoted(location: Location) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))

    def fail(frame: DataFrame) -> DataFrame:
        raise RuntimeError("password=hunter2")

    with pytest.raises(StageError) as caught:
        location.run(location.pipeline(source=JSON, transform=fail))
    assert "hunter2" not in str(caught.value)
    assert "RuntimeError" in str(caught.value)


def test_unresolved_column_in_a_transform_is_not_retried(location: Location) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="UNRESOLVED_COLUMN"):
        location.run(location.pipeline(source=JSON, transform=lambda frame: frame.select("absent")))


def test_missing_partition_column_is_reported_by_name(location: Location) -> None:
    location.put("a.json", "\n".join(GOOD_JSON))
    with pytest.raises(DataError, match="absent"):
        location.run(location.pipeline(source=JSON, sink={"partition_by": ["absent"]}))


def test_added_columns_are_recorded_and_changed_types_refused(location: Location, spark: SparkSession) -> None:
    location.put("a.json", '{"id": 1, "name": "a"}\n')
    location.run(location.pipeline(source=JSON))
    location.put("b.json", '{"id": 2, "name": "b"}\n')
    location.run(location.pipeline(source=JSON, transform=lambda frame: frame.withColumn("more", F.lit(1))))
    assert location.rows(spark) == [{"id": 1, "name": "a", "more": None}, {"id": 2, "name": "b", "more": 1}]
    location.put("c.json", '{"id": 3, "name": "c"}\n')
    for transform, message in (
        (lambda frame: frame.selectExpr("string(id) id", "name", "1 more"), "type"),
        (only_id, "missing"),
    ):
        with pytest.raises(DataError, match=message):
            location.run(location.pipeline(source=JSON, transform=transform))


def test_file_that_grows_while_it_is_read_discards_the_attempt(location: Location) -> None:
    path = location.put("a.json", '{"id": 1, "name": "a"}\n')

    def append_line(frame: DataFrame) -> DataFrame:
        with path.open("a") as file:
            file.write('{"id": 2, "name": "b"}\n')
        return frame

    with pytest.raises(SourceChangedError, match=r"a\.json"):
        location.run(location.pipeline(source=JSON, transform=append_line))


def test_errors_about_records_name_a_file(location: Location) -> None:
    path = location.put("a.json", "\n".join([*BAD_JSON, *GOOD_JSON]))
    with pytest.raises(DataError, match="max_quarantined") as caught:
        location.run(location.pipeline(source=JSON, limits=Limits(max_quarantined=1)))
    assert caught.value.fields["first_file"] == str(path)

    def fail(frame: DataFrame) -> DataFrame:
        def fail_in_worker(id: int) -> int:
            raise RuntimeError

        return frame.select(F.udf(fail_in_worker, "long")("id"))

    with pytest.raises(StageError) as stage:
        location.run(location.pipeline(source=JSON, transform=fail))
    assert (stage.value.fields["files"], stage.value.fields["first_file"]) == (1, "a.json")


def test_session_of_an_attempt_is_not_mistaken_for_the_users_session(spark: SparkSession) -> None:
    """PySpark has one active session for the whole process. An attempt in another thread may have set it."""
    with gateway.cloned(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}) as attempt:
        assert SparkSession.getActiveSession() is attempt
        assert SparkEngine().session() is spark


def test_users_session_keeps_its_settings_and_the_batch_uses_its_own(location: Location, spark: SparkSession) -> None:
    location.put("a.json.gz", gzip.compress(b'{"id": 1, "name": "a"}\n' * 100_000)[:-200])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(DataError):
            location.run(location.pipeline(source=JSON))
        assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "true"
        assert SparkSession.getActiveSession() is spark
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_drain_on_spark_reads_each_file_once(location: Location, spark: SparkSession) -> None:
    for n in range(7):
        location.put(f"{n}.json", f'{{"id": {n}, "name": "x"}}\n')
    result = location.run(location.pipeline(source=JSON, limits=Limits(max_files=3)), drain=True)
    assert (result.batches, result.counts["read"]) == (3, 7)
    assert [row["id"] for row in location.rows(spark)] == list(range(7))
    assert [row["id"] for row in location.rows(spark, version=1, since=0)] == [3, 4, 5]
    location.check()


@pytest.mark.parametrize(("open_cost", "files"), [(None, 2), ("16777216", 120 // 8)])
def test_many_small_files_share_tasks_unless_the_user_set_open_cost(
    location: Location, spark: SparkSession, open_cost: str | None, files: int
) -> None:
    for number in range(120):
        location.put(f"{number}.json", f'{{"id": {number}}}')
    if open_cost:
        spark.conf.set("spark.sql.files.openCostInBytes", open_cost)
    try:
        result = location.run(location.pipeline(source=JSON), engine=SparkEngine())
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
    assert result.counts["read"] == 120
    assert len(pyarrow.parquet.ParquetDataset(location.root / "out").files) == files


def test_engine_cancelled_during_spark_start_does_not_blame_the_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SparkEngine()

    def ended(builder: object) -> SparkSession:
        engine.cancel()
        raise OSError("the JVM was killed")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", ended)
    with pytest.raises(StageError, match="the task was cancelled while Spark started") as caught:
        engine.session()
    assert "transform" not in str(caught.value)


def test_schema_that_is_not_ddl_is_reported(location: Location) -> None:
    location.put("a.json", "{}\n")
    with pytest.raises(InvalidError, match="DDL"):
        location.run(location.pipeline(source={"format": "json", "schema": "id long,,"}))


def test_files_written_by_spark_have_the_modes_of_the_tasks_umask(location: Location, spark: SparkSession) -> None:
    location.put("a.json", GOOD_JSON[0] + "\n{bad\n")
    before = os.umask(0o027)
    try:
        location.run(location.pipeline(source=JSON, sink={"partition_by": ["id"]}))
    finally:
        os.umask(before)
    written = [path for path in (location.root / "out").rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in written)
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.parent.stat().st_mode & 0o777 == 0o750
    location.check()


@pytest.mark.spark
@pytest.mark.parametrize("encoding", ["ISO-8859-1", "windows-1252"])
@pytest.mark.parametrize(
    ("format", "options", "lines"),
    [
        ("text", {}, ["Preis: 5 €", "Müller", ""]),
        ("csv", {}, ['"Preis: 5 €"', "Müller"]),
        ("csv", {"header": "true"}, ["vàlue", '"Preis: 5 €"', "Müller"]),
        ("json", {}, ['{"vàlue": "Preis: 5 €"}', '{"vàlue": "Müller"}']),
    ],
    ids=str,
)
def test_files_in_another_encoding_are_decoded(
    location: Location, spark: SparkSession, format: str, options: dict[str, str], lines: list[str], encoding: str
) -> None:
    data = "\n".join(lines).encode("cp1252")
    location.put("a", data)
    location.put("b", data)
    schema = {} if format == "text" else {"schema": "`vàlue` string"}
    source = {"format": format, "options": {"encoding": encoding, **options}, **schema}
    assert location.run(location.pipeline(source=source)).counts["quarantined"] == 0
    texts = {row["vàlue" if schema else "value"] for row in location.rows(spark)}
    euro = "€" if encoding == "windows-1252" else "\x80"
    assert texts - {""} == {f"Preis: 5 {euro}", "Müller"}


@pytest.mark.spark
def test_text_line_that_is_not_utf8_is_quarantined_with_its_bytes(location: Location) -> None:
    location.put("a.txt", "Möller\n".encode() + "Müller\n".encode("latin-1") + b"Maier\n")
    result = location.run(location.pipeline(source={"format": "text"}))
    assert (result.counts["read"], result.counts["parsed"], result.counts["quarantined"]) == (3, 2, 1)
    (bad,) = location.quarantined()
    assert (base64.b64decode(bad["raw"]), bad["encoding"]) == ("Müller".encode("latin-1"), "base64")
    assert "UTF-8" in bad["error"]
