"""Files that are written straight under their final names: what counts is what Spark accepted, and nothing else that lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink
from airflow_provider_streamsem.engines import spark as spark_engine
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.sinks import direct, write
from tests.engines.places import Place

pytestmark = pytest.mark.spark


def names(place: Path) -> set[str]:
    """All files below a place, by their names below it."""
    return {str(path.relative_to(place)) for path in place.rglob("*.*") if path.is_file() and path.suffix != ".crc"}


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("partition_by", [[], ["a"], ["a", "b"]], ids=len)
def test_names_are_those_of_the_files_that_hold_the_rows(
    spark: SparkSession, tmp_path: Path, format: str, partition_by: list[str]
) -> None:
    rows = spark.range(0, 100, 1, 3).selectExpr("id", "id % 2 AS a", "concat('v', id % 3) AS b")
    options = write.TEXT_OPTIONS.get(format, {})
    place = tmp_path / "place with ünï"
    found = direct.write(rows, str(place), format, partition_by=partition_by, options=options)
    assert found == names(place)
    read = spark.read.options(**options).schema("id long, a long, b string").format(format).load(str(place))
    assert sorted(map(tuple, read.select("id", "a", "b").collect())) == sorted(map(tuple, rows.collect()))


def test_columns_become_directories_in_the_order_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(4).selectExpr("id", "id % 2 AS a", "concat('v', id % 2) AS b")
    found = direct.write(rows, str(tmp_path / "p"), "parquet", partition_by=["b", "a"], options={})
    assert {name.rpartition("/")[0] for name in found} == {"b=v0/a=0", "b=v1/a=1"}


def test_temporary_directory_of_any_name_will_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "run_id=manual__2026-01-01T00:00:00+00:00 100% ü"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    found = direct.write(spark.range(3), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert found == names(tmp_path / "p")
    assert list(odd.iterdir()) == []


def test_settings_of_streaming_queries_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    inner: Any = spark
    session = SparkSession(inner._sc, inner._jsparkSession.cloneSession())
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1")
    session.conf.set("spark.sql.streaming.checkpointFileManagerClass", "no.such.Manager")
    before = settings(session)
    found = direct.write(session.range(3), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert found == names(tmp_path / "p")
    assert settings(session) == before


def settings(session: SparkSession) -> dict[str, str]:
    return dict(tuple(row)[:2] for row in session.sql("SET").collect())


@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize(
    ("columns", "format", "error"),
    [
        (["id", "id AS ID"], "parquet", "upper and lower case"),
        (["id", "id + 1 AS id"], "json", "upper and lower case"),
        (["id", "array(id) AS a"], "csv", "nothing became visible"),
    ],
    ids=["case", "twice", "no such type"],
)
def test_columns_that_a_format_cannot_hold_are_an_error_of_the_data(
    place: Place, monkeypatch: pytest.MonkeyPatch, directly: bool, columns: list[str], format: str, error: str
) -> None:
    if directly:
        monkeypatch.setattr(write, "_is_on_s3", lambda place: True)
    place.put("a.txt", "x")
    spec = place.pipeline(
        source={"format": "text"}, sink={"format": format}, transform=lambda f: f.sparkSession.range(3).selectExpr(*columns)
    )  # fmt: skip
    with pytest.raises(DataError, match=error):
        place.run(spec)


def test_no_rows_are_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    found = direct.write(spark.range(0), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert found == names(tmp_path / "p")
    assert spark.read.schema("id long").parquet(str(tmp_path / "p")).count() == 0


def test_file_of_a_task_attempt_that_spark_did_not_accept_is_in_no_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = FilesSink(str(tmp_path / "out"))
    place = Path(sink.attempt_place(0, "a"))
    accepted = direct.write(spark.range(10), str(place), "parquet", partition_by=[], options={})
    (some, *_) = accepted
    (place / "part-00000-late-c000.parquet").write_bytes((place / some).read_bytes())
    committable = sink.collect(0, "a", accepted)
    assert {Path(file.key).name for file in committable.files} == accepted
    assert committable.rows == 10
    assert sink.collect(0, "a").rows > 10  # where a committer moved them, all that lie there were accepted


def test_accepted_file_that_is_not_there_voids_the_attempt(spark: SparkSession, tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "out"))
    accepted = direct.write(spark.range(10), sink.attempt_place(0, "a"), "parquet", partition_by=[], options={})
    with pytest.raises(StageError, match="nothing became visible"):
        sink.collect(0, "a", accepted | {"part-9.parquet"})


def executions(spark: SparkSession) -> Any:
    inner: Any = spark
    inner._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(10_000)
    return inner._jsparkSession.sharedState().statusStore()


def test_write_is_one_execution_that_listeners_are_told_of(spark: SparkSession, tmp_path: Path) -> None:
    before = executions(spark).executionsCount()
    direct.write(spark.range(10), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert executions(spark).executionsCount() == before + 1


def test_failure_names_its_cause_and_leaves_no_file_of_a_failed_task(spark: SparkSession, tmp_path: Path) -> None:
    fails = spark.range(10).select(F.raise_error(F.lit("this row")).cast("int").alias("x"))
    with pytest.raises(Exception, match="this row") as failure:
        direct.write(fails, str(tmp_path / "p"), "parquet", partition_by=[], options={})
    conditions = [condition for condition, _ in spark_engine._conditions(failure.value)]
    assert "USER_RAISED_EXCEPTION" in conditions
    assert names(tmp_path / "p") == set()


def test_session_without_a_jvm_of_ours_is_told_apart() -> None:
    assert not direct.is_possible(object())  # type: ignore[arg-type]
