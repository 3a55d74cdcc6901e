"""Batches on real Spark: every record is accounted for, the transform is evaluated once, errors are named."""

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
from airflow_provider_streamsem.engines import gateway
from airflow_provider_streamsem.engines.spark import SparkEngine
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError, StageError
from tests.engines.places import BAD_JSON, CSV, GOOD_JSON, JSON, Place

pytestmark = pytest.mark.spark


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
def test_odd_file_names_are_read_as_they_are(place: Place, spark: SparkSession, format: str) -> None:
    names = [f"{name}.{format}" for name in (*ODD, *COLONS)]
    for number, name in enumerate(names):
        if format == "json":
            place.put(name, f'{{"id": {number}}}\n{{broken\n')
        else:
            place.put(name, b"")
            pyarrow.parquet.write_table(pyarrow.table({"id": [number]}), place.root / "in" / name)
    result = place.run(place.pipeline(source={"format": format, "schema": "id long"}))
    assert sorted(row["id"] for row in place.rows(spark)) == list(range(len(names)))
    if format == "json":
        assert result.counts["read"] == 2 * len(names)
        assert sorted(row["path"] for row in place.quarantined()) == sorted(
            str(place.root / "in" / name) for name in names
        )


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


def test_predicate_that_answers_differently_each_time_is_asked_once(place: Place) -> None:
    place.put("a.json", '{"id": 1, "name": "a"}\n' * 200)
    counts = place.run(place.pipeline(source=JSON, where="rand() < 0.5", rows="filter")).counts
    assert counts["filtered"] + counts["written.out"] == 200


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


def test_file_that_grows_while_it_is_read_voids_the_attempt(place: Place) -> None:
    path = place.put("a.json", '{"id": 1, "name": "a"}\n')

    def appends(frame: DataFrame) -> DataFrame:
        with path.open("a") as file:
            file.write('{"id": 2, "name": "b"}\n')
        return frame

    with pytest.raises(SourceChangedError, match=r"a\.json"):
        place.run(place.pipeline(source=JSON, transform=appends))


def test_errors_about_records_name_a_file(place: Place) -> None:
    path = place.put("a.json", "\n".join(BAD_JSON))
    with pytest.raises(DataError, match="max_quarantined") as caught:
        place.run(place.pipeline(source=JSON, limits=Limits(max_quarantined=1)))
    assert caught.value.fields["first_file"] == str(path)

    def fails(frame: DataFrame) -> DataFrame:
        raise RuntimeError

    with pytest.raises(StageError) as stage:
        place.run(place.pipeline(source=JSON, transform=fails))
    assert (stage.value.fields["files"], stage.value.fields["first_file"]) == (1, "a.json")


def test_session_of_an_attempt_is_not_taken_for_the_users(spark: SparkSession) -> None:
    """pyspark keeps the active session for the whole process: the one that an attempt in another thread made active, too."""
    with gateway.cloned(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}) as attempt:
        assert SparkSession.getActiveSession() is attempt
        assert SparkEngine().session() is spark


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


@pytest.mark.parametrize(("open_cost", "files"), [(None, 2), ("16777216", 120 // 8)])
def test_many_small_files_share_tasks_unless_the_user_set_the_cost_of_a_file(
    place: Place, spark: SparkSession, open_cost: str | None, files: int
) -> None:
    for number in range(120):
        place.put(f"{number}.json", f'{{"id": {number}}}')
    if open_cost:
        spark.conf.set("spark.sql.files.openCostInBytes", open_cost)
    try:
        result = place.run(place.pipeline(source=JSON), engine=SparkEngine())
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
    assert result.counts["read"] == 120
    assert len(pyarrow.parquet.ParquetDataset(place.root / "out").files) == files


def test_engine_that_was_cancelled_while_spark_started_blames_no_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SparkEngine()

    def ended(builder: object) -> SparkSession:
        engine.cancel()
        raise OSError("the JVM was killed")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", ended)
    with pytest.raises(StageError, match="the task was ended while Spark started") as caught:
        engine.session()
    assert "transform" not in str(caught.value)


def test_schema_that_is_no_ddl_is_named(place: Place) -> None:
    place.put("a.json", "{}\n")
    with pytest.raises(InvalidError, match="DDL"):
        place.run(place.pipeline(source={"format": "json", "schema": "id long,,"}))


def test_files_that_spark_writes_have_the_modes_of_the_tasks_umask(place: Place, spark: SparkSession) -> None:
    place.put("a.json", GOOD_JSON[0] + "\n{bad\n")
    before = os.umask(0o027)
    try:
        place.run(place.pipeline(source=JSON, sink={"partition_by": ["id"]}))
    finally:
        os.umask(before)
    written = [path for path in (place.root / "out").rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in written)
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.parent.stat().st_mode & 0o777 == 0o750
    place.check()


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
def test_files_in_another_encoding_are_read_as_the_text_that_they_hold(
    place: Place, spark: SparkSession, format: str, options: dict[str, str], lines: list[str], encoding: str
) -> None:
    data = "\n".join(lines).encode("cp1252")
    place.put("a", data)
    place.put("b", data)
    schema = {} if format == "text" else {"schema": "`vàlue` string"}
    source = {"format": format, "options": {"encoding": encoding, **options}, **schema}
    assert place.run(place.pipeline(source=source)).counts["quarantined"] == 0
    texts = {row["vàlue" if schema else "value"] for row in place.rows(spark)}
    euro = "€" if encoding == "windows-1252" else "\x80"
    assert texts - {""} == {f"Preis: 5 {euro}", "Müller"}


@pytest.mark.spark
def test_line_of_text_that_is_not_utf8_is_quarantined_with_its_bytes(place: Place) -> None:
    place.put("a.txt", "Möller\n".encode() + "Müller\n".encode("latin-1") + b"Maier\n")
    result = place.run(place.pipeline(source={"format": "text"}))
    assert (result.counts["read"], result.counts["parsed"], result.counts["quarantined"]) == (3, 2, 1)
    (bad,) = place.quarantined()
    assert (base64.b64decode(bad["raw"]), bad["encoding"]) == ("Müller".encode("latin-1"), "base64")
    assert "UTF-8" in bad["error"]
