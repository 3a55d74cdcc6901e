"""Errors name their cause: the missing module, column or program."""

from __future__ import annotations

import shutil
import traceback
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError, StoreRefusedError
from airflow_provider_streamsem.spark.engine import SparkEngine
from airflow_provider_streamsem.spark.failures import translated
from tests.spark_location import Location


def test_transform_that_cannot_be_imported_names_the_cause(location: Location) -> None:
    (location.root / "broken_transform.py").write_text("import pandaz\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(location.root))
        with pytest.raises(InvalidError, match="No module named 'pandaz'"):
            location.run(location.pipeline(source={"format": "text"}, transform="broken_transform:f"))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "fact"),
    [("amuont > 1", "name='`amuont`'"), ("id >", "PARSE_SYNTAX_ERROR"), ("nofunction(id)", "`nofunction`")],
)
def test_invalid_predicate_is_reported_with_the_available_columns(
    location: Location, where: str, fact: str, capfd: pytest.CaptureFixture[str]
) -> None:
    location.put("a.json", '{"id": 1, "amount": 2}\n')
    with pytest.raises(DataError, match="the predicate `where`") as raised:
        location.run(location.pipeline(source={"format": "json", "schema": "id long, amount int"}, where=where))
    assert fact in str(raised.value)
    assert raised.value.fields["columns"] == ["id", "amount"]
    assert raised.value.fields["where"] == where
    assert len("".join(traceback.format_exception(raised.value.__cause__))) < 5_000, "Spark's plan is not in it"
    assert "QueryContextLogger" not in capfd.readouterr().err
    corrected = location.run(
        location.pipeline(source={"format": "json", "schema": "id long, amount int"}, where="amount > 1")
    )
    [completed] = corrected.completed
    assert (completed.version, completed.counts["read"], completed.counts["filtered"]) == (0, 1, 0)


@pytest.mark.spark
def test_transform_with_an_unknown_column_is_reported_with_its_name(location: Location) -> None:
    location.put("a.json", '{"id": 1}\n')
    with pytest.raises(DataError, match="the transform does not fit its input columns") as raised:
        location.run(
            location.pipeline(
                source={"format": "json", "schema": "id long"}, transform=lambda frame: frame.select("amuont")
            )
        )
    assert raised.value.fields["name"] == "`amuont`"
    report = "".join(traceback.format_exception(raised.value))
    assert 'frame.select("amuont")' in report, "the line of the transform"
    assert "Project [" not in report


@pytest.mark.parametrize("home", ["/nowhere", None])
def test_missing_java_is_reported_and_not_retried(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    monkeypatch.setenv("PATH", "/nowhere")
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(InvalidError, match="Java was not found") as raised:
        SparkEngine().session()
    assert not raised.value.retryable


class JavaError:
    """A stand-in for an exception of the JVM, with the attributes that the translation reads."""

    def __init__(self, text: str, cause: JavaError | None = None, condition: str | None = None) -> None:
        self.toString, self.getCause = lambda: text, lambda: cause
        if condition is not None:
            self.getCondition = lambda: condition
            self.getMessageParameters = lambda: {"path": "s3a://b/x.parquet"}


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("org.apache.hadoop.fs.s3a.AWSClientIOException: read: java.net.SocketTimeoutException: Read timed out", StageError),
        ("java.net.ConnectException: Connection refused", StageError),
        ("java.nio.file.AccessDeniedException: s3a://b/x.parquet: 403 Forbidden", StoreRefusedError),
        ("java.io.EOFException: Unexpected end of input stream", DataError),
        ("java.lang.RuntimeException: x is not a Parquet file", DataError),
    ],
)  # fmt: skip
def test_failed_read_of_a_file_is_a_data_error_only_if_the_store_replied(
    location: Location, cause: str, expected: type[Exception]
) -> None:
    pipeline = location.pipeline(source={"format": "parquet"})
    error = Exception("Job aborted")
    error.java_exception = JavaError("SparkException", JavaError(cause), "FAILED_READ_FILE.NO_HINT")  # type: ignore[attr-defined]
    job = SimpleNamespace(
        plan=SimpleNamespace(version=3), source=pipeline.source, pins=[SimpleNamespace(path="x.parquet")]
    )
    assert type(translated(error, cast(Job, job))) is expected


@pytest.mark.spark
def test_location_that_spark_cannot_write_to_is_reported_and_not_retried(location: Location) -> None:
    location.put("a.txt", "x")
    pipeline = location.pipeline(source={"format": "text"})
    location.run(pipeline)
    data = location.root / "out" / "data"
    shutil.move(data, location.root / "moved")
    data.write_text("no directory")
    location.put("b.txt", "y")
    with pytest.raises(StoreRefusedError, match=str(data)) as raised:
        location.run(pipeline)
    assert not raised.value.retryable
    assert open_log(str(location.root / "log")).head == 0
