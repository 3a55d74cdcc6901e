"""Errors name their cause: the missing module, column or program."""

from __future__ import annotations

import json
import logging
import resource
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.connectors.rate.source import RateSource
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError, StoreRefusedError
from airflow_provider_streamsem.spark import java
from airflow_provider_streamsem.spark.connect_failures import not_opened
from airflow_provider_streamsem.spark.failures import translated
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
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
    assert type(translated(error, job_of(pipeline.source))) is expected


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


def job_of(source: Source | None = None, transform: str = "orders:clean") -> Job:
    plan = SimpleNamespace(version=3, ranges={})
    return cast(Job, SimpleNamespace(plan=plan, source=source or RateSource(), pins=[], transform_name=transform))


def of_jvm(kind: str, *causes: str, condition: str | None = None) -> Exception:
    """Return an exception as py4j raises it: the outermost cause first."""
    outer: JavaError | None = None
    for number, text in reversed([*enumerate(causes)]):
        outer = JavaError(text, outer, condition if number == 0 else None)
    error = type(kind, (Exception,), {})(causes[0])
    error.java_exception = outer
    return cast("Exception", error)


WRITE_FAILED = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/data/out/data/0/a. SQLSTATE: 58030"


@pytest.mark.parametrize(
    ("causes", "refusal"),
    [
        ((WRITE_FAILED, "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device"), "No space left on device"),
        ((WRITE_FAILED, "java.io.FileNotFoundException: /data/out/p=secret/part-0.parquet (No space left on device)"), "No space left on device"),
        ((WRITE_FAILED, "java.io.IOException: Disk quota exceeded"), "Disk quota exceeded"),
        ((WRITE_FAILED, "java.io.FileNotFoundException: /data/out/p=secret/part-0.parquet (File name too long)"), "File name too long"),
        ((WRITE_FAILED, "java.io.FileNotFoundException: /data/out/p=secret/part-0.parquet (Permission denied)"), "Permission denied"),
        ((WRITE_FAILED, "java.io.FileNotFoundException: /data/out/p=secret/part-0.parquet (Read-only file system)"), "Read-only file system"),
        ((WRITE_FAILED, "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota"), "DSQuotaExceededException"),
    ],
)  # fmt: skip
def test_full_disk_of_a_sink_is_reported_with_its_location_and_not_retried(
    causes: tuple[str, ...], refusal: str
) -> None:
    with pytest.raises(StoreRefusedError) as raised:
        raise translated(of_jvm("Py4JJavaError", *causes, condition="TASK_WRITE_FAILED"), job_of())
    assert raised.value.fields["refusal"] == refusal
    assert raised.value.fields["location"] == "/data/out/data/0/a"
    assert "secret" not in str(raised.value), "the directory of a partition is a value of a record"


S3_FILE = "s3a://lake/out/data/0/a/city=New secret/part-0.parquet"


@pytest.mark.parametrize(
    ("text", "cause", "fact"),
    [
        (f"java.nio.file.AccessDeniedException: {S3_FILE}: PUT 0-byte object: S3Exception: x (Service: S3, Status Code: 403, Request ID: 1):SignatureDoesNotMatch",
         "does not accept its credentials", "s3a://lake/out/data/0/a/city="),
        (f"java.nio.file.AccessDeniedException: {S3_FILE}: org.apache.hadoop.fs.s3a.auth.NoAwsCredentialsException: x", "has no credentials", ""),
        ("java.nio.file.AccessDeniedException: /data/city=secret", "refused a read or write", "/data/city="),
        (f"org.apache.hadoop.fs.s3a.UnknownStoreException: `{S3_FILE}': getFileStatus", "does not exist at the endpoint", "s3a://lake"),
        (f"javax.net.ssl.SSLException: {S3_FILE}: SdkClientException: Unsupported or unrecognized SSL message", "does not speak TLS", "s3a://lake"),
        (f"javax.net.ssl.SSLHandshakeException: {S3_FILE}: PKIX path building failed: x", "is not trusted", "s3a://lake"),
        (f"org.apache.hadoop.fs.s3a.AWSClientIOException: {S3_FILE}: Custom endpoint `s3://x` was not a valid URI", "not that of an S3 server", "s3://x"),
        ("org.apache.hadoop.fs.s3a.AWSUnsupportedFeatureException: x (Service: S3, Status Code: 501, Request ID: null)", "not that of an S3 server", "501"),
    ],
)  # fmt: skip
def test_refusal_of_a_store_names_its_cause_and_no_values_of_records(text: str, cause: str, fact: str) -> None:
    with pytest.raises(StoreRefusedError, match=cause) as raised:
        raise translated(of_jvm("Py4JJavaError", "org.apache.spark.SparkException: Job aborted", text), job_of())
    assert fact in str(raised.value)
    assert "secret" not in str(raised.value.fields)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (f"java.net.ConnectException: getFileStatus on {S3_FILE}: HttpHostConnectException: Connect to s3.lake:9000 [/127.0.0.1] failed", "server='s3.lake:9000'"),
        (f"java.net.UnknownHostException: getFileStatus on {S3_FILE}: x: Unable to execute HTTP request: s3.lake", "server='s3.lake'"),
        (f"javax.net.ssl.SSLException: getFileStatus on {S3_FILE}: Connection reset", "store='s3a://lake'"),
        (f"org.apache.hadoop.fs.s3a.AWSBadRequestException: getFileStatus on {S3_FILE}: Bad Request", "S3 refused a request of Spark as invalid"),
    ],
)  # fmt: skip
def test_store_that_does_not_respond_to_spark_is_named_and_retried(text: str, fact: str) -> None:
    with pytest.raises(StageError, match="S3") as raised:
        raise translated(of_jvm("Py4JJavaError", "org.apache.spark.SparkException: Job aborted", text), job_of())
    assert fact in str(raised.value)
    assert "secret" not in str(raised.value.fields)


def test_causes_that_pyspark_has_copied_from_the_jvm_are_read() -> None:
    error = Exception(WRITE_FAILED)
    error._cause = SimpleNamespace(_desc="java.io.IOException: No space left on device", _cause=None)  # type: ignore[attr-defined]
    with pytest.raises(StoreRefusedError, match="No space left on device"):
        raise translated(error, job_of())


@pytest.mark.spark
def test_file_that_the_operating_system_refuses_is_reported_and_not_retried(
    location: Location, spark: SparkSession
) -> None:
    location.put("a.json", json.dumps({"id": 1}))
    inner: Any = spark
    jvm = inner._jvm.java.lang.ProcessHandle.current().pid()
    pipeline = location.pipeline(
        source={"format": "json", "schema": "id long"}, transform=lambda frame: frame.selectExpr("explode(sequence(1, 50000)) AS id")
    )  # fmt: skip
    location.run(pipeline.replace(transform=None))  # the JVM writes the libraries of codecs to its temporary directory
    location.put("b.json", json.dumps({"id": 2}))
    before = resource.prlimit(jvm, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(StoreRefusedError, match="File too large") as raised:
            location.run(pipeline)
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, before)
    assert str(raised.value.fields["location"]).startswith(f"{location.root}/out/data/1/")


@pytest.mark.parametrize(
    ("causes", "fact"),
    [
        (("java.lang.UnsupportedOperationException: getSubject is not supported",), "Java 17 or 21"),
        (("java.lang.UnsupportedClassVersionError: org/apache/spark/X has been compiled by a more recent version",), "Java 17 or 21"),
        (("org.apache.spark.SparkException: x", "java.lang.ClassNotFoundException: org.postgresql.Driver"), "org.postgresql.Driver"),
        (("java.lang.NoClassDefFoundError: org/apache/avro/Schema",), "org/apache/avro/Schema"),
        (("java.lang.NoClassDefFoundError: Could not initialize class org.x.Y",), "missing='org.x.Y'"),
        (("java.sql.SQLException: No suitable driver",), "JDBC driver"),
        (('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"',), "scheme='gs'"),
        (("java.lang.NoSuchMethodError: 'scala.collection.Seq x.y()'",), "NoSuchMethodError"),
        (("java.io.InvalidClassException: x; local class incompatible: stream classdesc serialVersionUID",), "InvalidClassException"),
        (("org.apache.spark.SparkException: Total size of serialized results of 8 tasks (1 GiB) is bigger than spark.driver.maxResultSize (1 GiB)",),
         "maxResultSize"),
        (("java.lang.StackOverflowError",), "withColumns"),
        (('java.io.IOException: Cannot run program "python3.99": error=2, No such file or directory',), "python3.99"),
        (("org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.",), "PYSPARK_PYTHON"),
        (("org.apache.spark.SparkException: \nError from python worker:\n  SyntaxError: invalid syntax",), "PYSPARK_PYTHON"),
    ],
)  # fmt: skip
def test_installation_that_does_not_fit_is_reported_and_not_retried(causes: tuple[str, ...], fact: str) -> None:
    with pytest.raises(InvalidError) as raised:
        raise translated(of_jvm("Py4JJavaError", *causes), job_of())
    assert fact in str(raised.value)


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (of_jvm("Py4JJavaError", "org.apache.spark.SparkException: x", "java.lang.OutOfMemoryError: Java heap space"), "ran out of memory"),
        (of_jvm("Py4JJavaError", "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"), "Python worker"),
        (of_jvm("Py4JJavaError", "org.apache.spark.SparkException: ExecutorLostFailure (executor 1 exited)"), "executor of Spark was lost"),
        (ConnectionRefusedError(111, "Connection refused"), "the JVM of Spark ended"),
    ],
)  # fmt: skip
def test_lost_process_of_spark_is_named_and_retried(error: Exception, fact: str) -> None:
    with pytest.raises(StageError) as raised:
        raise translated(error, job_of())
    assert fact in raised.value.summary


def test_exception_whose_message_needs_a_jvm_that_has_ended_is_still_translated() -> None:
    class FromJava(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert isinstance(translated(FromJava(), job_of()), StageError)


def of_server(status: str, text: str = "") -> Exception:
    """Return an exception of the client of Spark Connect."""
    error = Exception(
        f"<_InactiveRpcError of RPC that terminated with: status = StatusCode.{status} {text} token=hunter2>"
    )
    error._grpc_status_code = SimpleNamespace(name=status)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_connect_server_that_refuses_the_token_is_not_retried(status: str) -> None:
    with pytest.raises(StoreRefusedError, match="refuses the user or the token") as raised:
        raise not_opened(of_server(status), "h:15002")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (of_server("UNAVAILABLE", "Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER"), "use_ssl"),
        (of_server("UNIMPLEMENTED"), "version of pyspark-client"),
    ],
)
def test_server_that_does_not_fit_the_connect_client_is_not_retried(error: Exception, fact: str) -> None:
    with pytest.raises(InvalidError) as raised:
        raise not_opened(error, "h:15002")
    assert fact in raised.value.do
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"])
def test_connect_server_that_does_not_respond_is_named_and_retried(status: str) -> None:
    with pytest.raises(StageError, match="server='h:15002'"):
        raise not_opened(of_server(status), "h:15002")


@pytest.mark.parametrize(
    ("error", "fact"),
    [(of_server("UNAVAILABLE"), "ended, or does not respond"), (of_server("INTERNAL", "[INVALID_HANDLE.SESSION_CHANGED]"), "lost the session")],
)  # fmt: skip
def test_connect_server_that_ends_in_a_batch_is_named_and_retried(error: Exception, fact: str) -> None:
    with pytest.raises(StageError, match=fact):
        raise translated(error, job_of())


def python_exception(*lines: str) -> Exception:
    kind = type("PythonException", (Exception,), {})
    return cast(
        "Exception",
        kind(
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n" + "\n".join(lines)
        ),
    )


SPARK_FRAME = (
    '  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 3386, in main'
)
USER_FRAME = '  File "/dags/orders.py", line 12, in clean'


@pytest.mark.parametrize(
    ("lines", "expected", "facts"),
    [
        ((SPARK_FRAME, USER_FRAME, "    x", "ValueError: secret"), DataError, {"at": "/dags/orders.py:12"}),
        ((USER_FRAME, "pandas.errors.ParserError: secret"), StageError, {"at": "/dags/orders.py:12"}),
        ((USER_FRAME, "ConnectionError: secret"), StageError, {"at": "/dags/orders.py:12"}),
        ((USER_FRAME, "KeyError: 'secret'", "", "During handling of the above exception, another exception occurred:", "", "Traceback (most recent call last):",
          '  File "/dags/secret.py", line 1, in x', "OSError: secret"), DataError, {"at": "/dags/orders.py:12"}),
        ((USER_FRAME, "ValueError: a", '  File "/secret", line 3, in secret', "Secret: x"), DataError, {"at": "/dags/orders.py:12"}),
        ((SPARK_FRAME, "pyspark.errors.exceptions.base.PySparkRuntimeError: [RESULT_COLUMN_NAMES_MISMATCH] secret"), DataError,
         {"condition": "RESULT_COLUMN_NAMES_MISMATCH"}),
    ],
)  # fmt: skip
def test_exception_of_a_python_worker_names_its_type_and_the_line_of_the_user(
    lines: tuple[str, ...], expected: type[Exception], facts: dict[str, str]
) -> None:
    error = translated(python_exception(*lines), job_of())
    assert type(error) is expected
    assert facts.items() <= error.fields.items()
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'", {"name": "pyarrow"}),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11",
            {"worker": "3.10", "driver": "3.11"},
        ),
    ],
)
def test_python_of_the_executors_that_does_not_fit_is_not_retried(line: str, facts: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="PYSPARK_PYTHON") as raised:
        raise translated(python_exception(SPARK_FRAME, line), job_of())
    assert facts.items() <= raised.value.fields.items()


@pytest.mark.spark
def test_transform_that_raises_is_reported_with_its_exception_and_line(location: Location) -> None:
    location.put("a.json", '{"id": 1, "name": "hunter2"}\n')

    def clean(frame: Any) -> Any:
        raise KeyError(frame.first().name)

    with pytest.raises(DataError, match="the transform raised KeyError") as raised:
        location.run(location.pipeline(source={"format": "json", "schema": "id long, name string"}, transform=clean))
    assert raised.value.fields["at"] == f"{__file__}:{clean.__code__.co_firstlineno + 1}"
    assert "hunter2" not in str(raised.value)
    assert "hunter2" in str(raised.value.__cause__), "the cause has the text"


@pytest.mark.spark
def test_python_function_that_raises_is_reported_with_its_exception_and_line(location: Location) -> None:
    from pyspark.sql import functions as F

    location.put("a.json", '{"id": 1, "name": "hunter2"}\n')

    def upper(text: str) -> str:
        raise ValueError(text)

    with pytest.raises(DataError, match="a Python function of the transform raised ValueError") as raised:
        location.run(
            location.pipeline(
                source={"format": "json", "schema": "id long, name string"},
                transform=lambda frame: frame.withColumn("name", F.udf(upper)("name")),
            )
        )
    assert raised.value.fields["at"] == f"{__file__}:{upper.__code__.co_firstlineno + 1}"
    assert "hunter2" not in str(raised.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("array(1)[id]", "INVALID_ARRAY_INDEX"),
        ("map(name, 1, name, 2)", "DUPLICATED_MAP_KEY"),
        ("to_date(name, 'yyyy-MM-dd')", "CANNOT_PARSE_TIMESTAMP"),
        ("id + 9223372036854775807", "ARITHMETIC_OVERFLOW"),
        ("regexp_extract(name, '(', 1)", "INVALID_PARAMETER_VALUE.PATTERN"),
        ("parse_json(name)", "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"),
        ("cast(name AS int)", "CAST_INVALID_INPUT"),
    ],
)
def test_expression_that_fails_on_the_data_is_not_retried(location: Location, expression: str, condition: str) -> None:
    location.put("a.json", '{"id": 1, "name": "hunter2"}\n')
    with pytest.raises(DataError) as raised:
        location.run(
            location.pipeline(
                source={"format": "json", "schema": "id long, name string"},
                transform=lambda frame: frame.selectExpr("*", f"{expression} AS x"),
            )
        )
    assert raised.value.fields["condition"] == condition
    assert "hunter2" not in str(raised.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("read", "name"), [("SELECT * FROM absent", "`absent`"), ("SELEC 1", None), ("SELECT * FROM parquet.`/nowhere/x`", "file:/nowhere/x")]
)  # fmt: skip
def test_query_of_a_transform_that_cannot_be_resolved_is_not_retried(
    location: Location, read: str, name: str | None
) -> None:
    location.put("a.json", '{"id": 1}\n')
    with pytest.raises(DataError, match="the transform does not fit its input columns") as raised:
        location.run(
            location.pipeline(
                source={"format": "json", "schema": "id long"}, transform=lambda frame: frame.sparkSession.sql(read)
            )
        )
    assert raised.value.fields.get("name") == name
    assert str(raised.value.fields["at"]).startswith(__file__)


def java_installation(root: Path, version: str | None) -> str:
    (root / "bin").mkdir(parents=True)
    executable = root / "bin" / "java"
    executable.write_text("")
    executable.chmod(0o755)
    if version is not None:
        (root / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return str(root)


@pytest.mark.parametrize(
    ("version", "hadoop", "is_refused"),
    [
        ("1.8.0_392", "3.4.2", True),
        ("11.0.22", "3.5.0", True),
        ("17.0.9", "3.4.2", False),
        ("21.0.1", "3.4.2", False),
        ("23.0.1", "3.4.2", False),
        ("25", "3.4.2", True),
        ("24.0.1", "3.4.1", True),
        ("25.0.1", "3.5.0", False),
        ("25.0.1", None, False),
        (None, "3.4.2", False),
    ],
)
def test_java_on_which_spark_is_known_to_fail_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, hadoop: str | None, is_refused: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_installation(tmp_path / "java", version))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    if hadoop is not None:
        (tmp_path / "spark" / "jars" / f"hadoop-client-api-{hadoop}.jar").write_text("")
    if not is_refused:
        java.check()
        return
    with pytest.raises(InvalidError, match="the installed Java is too") as raised:
        java.check()
    assert "JAVA_HOME" in raised.value.do


@pytest.mark.parametrize(
    ("causes", "condition", "is_refused"),
    [
        (("org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'",), None, True),
        (("org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'maybe'",), "INVALID_CONF_VALUE.TYPE_MISMATCH", True),
        (("java.lang.IllegalArgumentException: requirement failed: startPort should be between 1024 and 65535",), None, True),
        (("java.lang.ClassNotFoundException: nope.Nope",), None, True),
        (("java.lang.UnsupportedOperationException: getSubject is not supported",), None, True),
        (("io.fabric8.kubernetes.client.KubernetesClientException: x", "java.net.UnknownHostException: nowhere"), None, False),
    ],
)  # fmt: skip
def test_master_or_setting_that_spark_refuses_is_not_retried(
    causes: tuple[str, ...], condition: str | None, is_refused: bool
) -> None:
    with pytest.raises(InvalidError if is_refused else StageError) as raised:
        raise SparkEngine(master="local[x]")._start_error(of_jvm("Py4JJavaError", *causes, condition=condition))
    assert raised.value.fields.get("condition") == condition


@pytest.fixture
def engine() -> Iterator[SparkEngine]:
    """Yield an engine to cancel. After the test, py4j logs as before."""
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    filters, level = root.filters[:], py4j.level
    yield SparkEngine()
    root.filters[:] = filters
    py4j.setLevel(level)


def test_cancelled_task_logs_no_traces_of_py4j(engine: SparkEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.cancel()
    root = logging.getLogger()
    place = "/venv/site-packages/py4j/java_gateway.py", 1038
    root.handle(root.makeRecord("root", logging.INFO, *place, "Exception while sending command.", (), None))
    logging.getLogger("py4j.clientserver").error("Error while sending or receiving.")
    root.warning("a record of the task")
    assert caplog.messages == ["a record of the task"]


@pytest.mark.spark
def test_failure_of_a_cancelled_task_is_the_cancellation(location: Location, engine: SparkEngine) -> None:
    location.put("a.json", '{"id": 1}\n')

    def interrupted(frame: Any) -> Any:
        engine.cancel()
        raise KeyError("the interrupted job")

    pipeline = location.pipeline(source={"format": "json", "schema": "id long"}, transform=interrupted)
    with pytest.raises(StageError, match="the task was cancelled") as raised:
        location.run(pipeline, engine=engine)
    assert "the interrupted job" not in "".join(traceback.format_exception(raised.value))
