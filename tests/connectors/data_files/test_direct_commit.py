"""Files written directly under their final names: only the files that Spark accepted count, whatever else is in the directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink
from airflow_provider_streamsem.connectors.data_files import direct_commit as direct
from airflow_provider_streamsem.connectors.data_files import write
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.spark import jvm_exceptions
from tests.spark_location import Location

pytestmark = pytest.mark.spark


def names(location: Path) -> set[str]:
    """Return the names of all files below a location, relative to it."""
    return {
        str(path.relative_to(location)) for path in location.rglob("*.*") if path.is_file() and path.suffix != ".crc"
    }


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("partition_by", [[], ["a"], ["a", "b"]], ids=len)
def test_returned_names_are_those_of_the_files_with_the_rows(
    spark: SparkSession, tmp_path: Path, format: str, partition_by: list[str]
) -> None:
    rows = spark.range(0, 100, 1, 3).selectExpr("id", "id % 2 AS a", "concat('v', id % 3) AS b")
    options = write.TEXT_OPTIONS.get(format, {})
    location = tmp_path / "location with ünï"
    written = direct.write(rows, str(location), format, partition_by=partition_by, options=options)
    assert written == names(location)
    read = spark.read.options(**options).schema("id long, a long, b string").format(format).load(str(location))
    assert sorted(map(tuple, read.select("id", "a", "b").collect())) == sorted(map(tuple, rows.collect()))


def test_partition_columns_become_directories_in_the_given_order(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(4).selectExpr("id", "id % 2 AS a", "concat('v', id % 2) AS b")
    written = direct.write(rows, str(tmp_path / "p"), "parquet", partition_by=["b", "a"], options={})
    assert {name.rpartition("/")[0] for name in written} == {"b=v0/a=0", "b=v1/a=1"}


def test_temporary_directory_may_have_any_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "run_id=manual__2026-01-01T00:00:00+00:00 100% ü"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    written = direct.write(spark.range(3), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert written == names(tmp_path / "p")
    assert list(temporary.iterdir()) == []


def test_settings_of_streaming_queries_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    inner: Any = spark
    session = SparkSession(inner._sc, inner._jsparkSession.cloneSession())
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1")
    session.conf.set("spark.sql.streaming.checkpointFileManagerClass", "no.such.Manager")
    before = settings(session)
    written = direct.write(session.range(3), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert written == names(tmp_path / "p")
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
def test_columns_that_a_format_cannot_hold_are_a_data_error(
    location: Location, monkeypatch: pytest.MonkeyPatch, directly: bool, columns: list[str], format: str, error: str
) -> None:
    if directly:
        monkeypatch.setattr(write, "_is_on_s3", lambda location: True)
    location.put("a.txt", "x")
    spec = location.pipeline(
        source={"format": "text"}, sink={"format": format}, transform=lambda f: f.sparkSession.range(3).selectExpr(*columns)
    )  # fmt: skip
    with pytest.raises(DataError, match=error):
        location.run(spec)


def test_write_without_rows_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    written = direct.write(spark.range(0), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert written == names(tmp_path / "p")
    assert spark.read.schema("id long").parquet(str(tmp_path / "p")).count() == 0


def test_file_of_a_task_attempt_that_spark_did_not_accept_is_in_no_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = FilesSink(str(tmp_path / "out"))
    location = Path(sink.attempt_location(0, "a"))
    accepted = direct.write(spark.range(10), str(location), "parquet", partition_by=[], options={})
    (some, *_) = accepted
    (location / "part-00000-late-c000.parquet").write_bytes((location / some).read_bytes())
    committable = sink.collect(0, "a", accepted)
    assert {Path(file.key).name for file in committable.files} == accepted
    assert committable.rows == 10
    # Without a list of accepted files, a committer has moved the files there, so all of them count.
    assert sink.collect(0, "a").rows > 10


def test_missing_accepted_file_discards_the_attempt(spark: SparkSession, tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "out"))
    accepted = direct.write(spark.range(10), sink.attempt_location(0, "a"), "parquet", partition_by=[], options={})
    with pytest.raises(StageError, match="nothing became visible"):
        sink.collect(0, "a", accepted | {"part-9.parquet"})


def executions(spark: SparkSession) -> set[int]:
    """Return the ids of the executions that Spark remembers. It forgets the oldest ones."""
    inner: Any = spark
    inner._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(10_000)
    found = inner._jsparkSession.sharedState().statusStore().executionsList()
    return {found.apply(at).executionId() for at in range(found.size())}


def test_write_is_one_execution_reported_to_listeners(spark: SparkSession, tmp_path: Path) -> None:
    before = executions(spark)
    direct.write(spark.range(10), str(tmp_path / "p"), "parquet", partition_by=[], options={})
    assert len(executions(spark) - before) == 1


def test_failure_names_its_cause_and_leaves_no_file_of_a_failed_task(spark: SparkSession, tmp_path: Path) -> None:
    fails = spark.range(10).select(F.raise_error(F.lit("this row")).cast("int").alias("x"))
    with pytest.raises(Exception, match="this row") as failure:
        direct.write(fails, str(tmp_path / "p"), "parquet", partition_by=[], options={})
    conditions = [condition for condition, _ in jvm_exceptions.conditions(failure.value)]
    assert "USER_RAISED_EXCEPTION" in conditions
    assert names(tmp_path / "p") == set()


def test_object_without_a_jvm_session_is_not_written_directly() -> None:
    assert not direct.is_possible(object())  # type: ignore[arg-type]
