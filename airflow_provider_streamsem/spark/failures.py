"""Translates exceptions of Spark to errors of this package. This module imports pyspark only when an exception is translated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import (
    UNREADABLE_FILE,
    DataError,
    InvalidError,
    PublishError,
    StageError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.spark import (
    causes,
    connect_failures,
    installations,
    jvm_exceptions,
    python_failures,
    store_failures,
    user_code,
)
from airflow_provider_streamsem.state import files as state_files

_DAMAGED_STATE = re.compile(
    r"RocksDBException: [^\n]*(checksum mismatch|[Mm]ismatch in unique ID|[Cc]orrupt|magic number)"
)
"""Matches RocksDB's errors for an SST file with another content. If RocksDB reads the file after it has loaded the state, Spark's condition does not say so."""
_PERMANENT = ("UnsupportedOperationException", "IllegalArgumentException", "ValidationException")
"""Ends of the names of JVM exceptions with which a table format refuses a table or a statement."""
_READ_BY_PYTHON = re.compile(r"ValueError: streamsem-read (setup|data|refused|database): ([^\n]+)")
"""Matches errors of :mod:`airflow_provider_streamsem.connectors.sql.executor_read`."""
_OF_THE_QUERY = ("0A", "21", "22", "23", "39", "42", "54", "P0")
"""The classes of SQLSTATE for errors of a query or of its data: a retry reads the same records with the same query."""
_NOT_OF_THE_QUERY = ("KAFKA_", "STATE_STORE", "STATEFUL_")
"""Prefixes of conditions that have such a SQLSTATE although a source or the state is the cause."""

_HEADER = re.compile(r"CSV header does not conform to the schema\..*?\n\s*Schema: ([^\n]*)", re.DOTALL)
"""Spark also names the header that it found. It is not quoted, because it is a record if the file has no header."""
_CHANGED_STATE = {
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": ("storedKeySchema", "newKeySchema"),
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": ("storedValueSchema", "newValueSchema"),
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": ("oldSchema", "newSchema"),
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": ("oldValueSchema", "newValueSchema"),
}
"""Spark's condition → the parameters that contain the stored and the new types of the state."""


def translated(error: Exception, job: Job) -> StreamsemError:
    """
    Return the error of this package for an exception of Spark, or of the transform.

    The error does not quote the message of the exception, because it may contain values of records. It quotes paths. The caller chains the exception.
    """
    texts = jvm_exceptions.texts(error)
    version = job.plan.version
    for text in texts:
        if read := _READ_BY_PYTHON.search(text):
            return _database_error(read[1], read[2], version)
    error_of_python = python_failures.of_worker(error, texts, job)
    if error_of_python is not None:
        return error_of_python.with_fields(**_files(job))
    refused = store_failures.refusal(texts, "nothing became visible", version=version)
    if refused is not None:
        return refused.with_fields(**_files(job))
    installation = installations.mismatch(texts, version)
    if installation is not None:
        return installation
    is_transient = store_failures.is_transient(texts)
    raised = user_code.in_driver(error)
    for condition, parameters in jvm_exceptions.conditions(error):
        specific = None
        if raised is None or condition != "PATH_NOT_FOUND":  # otherwise the path is one that the transform names
            specific = _condition_error(texts, condition, parameters, job, is_transient=is_transient)
        if specific is not None:
            return specific
    explained = job.source.explain_failure(texts, job.plan.ranges)
    if explained is not None:
        return explained.with_fields(version=version)
    return (
        _query_error(error, raised, job)
        or python_failures.of_driver(error, raised, job)
        or _engine_error(error, texts, raised, job)
    )


def _query_error(error: Exception, raised: user_code.Raised | None, job: Job) -> DataError | None:
    """Return the error for an exception of Spark that a change of the query or of its data must remove; ``None`` for other exceptions."""
    from pyspark.errors import AnalysisException

    at = user_code.line_of_query(error) or ("" if raised is None else raised.at)
    facts: dict[str, object] = {
        **({"at": at} if at else {}),
        **({"transform": job.transform_name} if job.transform_name else {}),
    }
    found = jvm_exceptions.conditions(error)
    if isinstance(error, AnalysisException):
        summary = "the transform does not fit its input columns"
        condition = found[0][0] if found else ""
        return DataError(
            summary, version=job.plan.version, condition=condition, **causes.named(error), **facts, **_files(job)
        ).advising(
            "correct the line of the transform that the traceback shows, and run again: the same range is read again."
        )
    condition = _condition_of_query(error)
    if not condition:
        return None
    summary = "Spark could not evaluate the transform, the predicate `where` or a rule of `expect` on the data"
    return DataError(summary, version=job.plan.version, condition=condition, **facts, **_files(job))


def is_of_query(error: Exception) -> bool:
    """Return whether an exception of Spark is one that a retry of the same query on the same data cannot avoid."""
    return bool(_condition_of_query(error))


def _condition_of_query(error: Exception) -> str:
    return next(
        (
            name
            for name, state in jvm_exceptions.sql_states(error)
            if state.startswith(_OF_THE_QUERY) and not name.startswith(_NOT_OF_THE_QUERY)
        ),
        "",
    )


def _engine_error(error: Exception, texts: Sequence[str], raised: user_code.Raised | None, job: Job) -> StageError:
    """Return the error for an exception with a cause that a retry may remove, or that is not known."""
    found = jvm_exceptions.conditions(error)
    lost = connect_failures.lost(error, texts) or installations.lost(error, texts) or store_failures.unavailable(texts)
    summary, advice, facts = lost or ("the engine failed while staging", "", {})
    at = user_code.line_of_query(error) or ("" if raised is None else raised.at)
    failed = StageError(
        f"{summary}",
        version=job.plan.version,
        error=type(error).__name__,
        **({"condition": found[0][0]} if found else {}),
        **facts,
        **jvm_exceptions.root_cause(error),
        **({"at": at} if at else {}),
        **({"transform": job.transform_name} if job.transform_name else {}),
        **_files(job),
    )
    return failed.advising(advice) if advice else failed


def rewrite_error(error: Exception, sink: Sink, **version: int) -> StreamsemError:
    """Return the error of this package for an exception of Spark in an attempt to rewrite files. It quotes paths, and no values of records."""
    where = {**version, "location": sink.location}
    texts = jvm_exceptions.texts(error)
    refused = store_failures.refusal(texts, "the new files are not visible", **where)
    if refused is not None:
        return refused
    found = jvm_exceptions.conditions(error)
    is_transient = store_failures.is_transient(texts)
    for condition, parameters in found:
        if condition.startswith(("FAILED_READ_FILE", "PATH_NOT_FOUND")) and not is_transient:
            return DataError(
                "Spark cannot read a file of the dataset; the new files are not visible",
                **where,
                file=_path_of(parameters.get("path", "")),
                condition=condition,
            ).advising("run `streamsem verify`, and restore the files that it names.")
    return StageError(
        "Spark failed while it rewrote files; the new files are not visible",
        **where,
        error=type(error).__name__,
        **({"condition": found[0][0]} if found else {}),
        **jvm_exceptions.root_cause(error),
    ).advising(
        "repeat the command. If it fails again, correct the cause that this message or the exception before it names. If memory was short, lower `max_bytes`."
    )


def publish_error(error: Exception, sink: Sink) -> StreamsemError:
    """Return the error of this package for an exception of Spark while a sink published rows with it. It quotes no values of records."""
    effect = "nothing of the batch is in the table"
    texts = jvm_exceptions.texts(error)
    refused = store_failures.refusal(texts, effect, location=sink.location)
    if refused is not None:
        return refused
    states = [*jvm_exceptions.sql_states(error)]
    condition = next((name for name, state in states if state.startswith(_OF_THE_QUERY)), "")
    cause = jvm_exceptions.root_cause(error)
    facts = {"location": sink.location, "error": type(error).__name__, **cause}
    is_permanent = condition or cause.get("cause", "").endswith(_PERMANENT)
    if is_permanent and not store_failures.is_transient(texts):
        named = {"condition": condition} if condition else {}
        return PublishError(f"Spark cannot merge the rows into the table; {effect}", **named, **facts)
    found = [name for name, _ in states][:1]
    return UnavailableError(
        f"Spark failed while it merged rows into the table; {effect}",
        **({"condition": found[0]} if found else {}),
        **facts,
    ).advising(
        "run again. If it fails again, correct the cause that this message names; if memory was short, give Spark more."
    )


def _database_error(kind: str, problem: str, version: int) -> StreamsemError:
    if kind == "setup":
        summary = "an executor cannot read the source's database; nothing became visible"
        return InvalidError(summary, version=version, problem=problem).advising(
            "install SQLAlchemy, the database's driver and pyarrow in the Python environment of the executors, and run again."
        )
    if kind == "data":
        summary = "the database table has a value that Spark cannot read"
        return DataError(summary, version=version, problem=problem).advising(
            "read the column as text with `as_text` of the source or lookup, and convert it in the transform; or correct the value, or leave the column out "
            "with `columns`. Then run again: the same range is read again."
        )
    if kind == "refused":
        summary = "the database refuses a query of an executor"
        return DataError(summary, version=version, problem=problem).advising(
            "grant SELECT on the table and on all columns that are read, or name other columns with `columns`; then run again: the same range is read."
        )
    return StageError("an executor could not read the source's database", version=version, problem=problem).advising(
        "check that executors reach the host and port of the connection; localhost is another machine there. Then run again: the same range is read."
    )


def _condition_error(
    texts: Sequence[str], condition: str, parameters: Mapping[str, str], job: Job, *, is_transient: bool
) -> StreamsemError | None:
    version = job.plan.version
    path = parameters.get("path", "")
    if condition.startswith("FAILED_READ_FILE") and is_transient:
        summary = "the store did not respond while Spark read a planned file"
        return StageError(summary, version=version, file=_path_of(path), condition=condition)
    expected = next((_from_bytes(found[1]) for text in texts if (found := _HEADER.search(text))), None)
    if condition.startswith("FAILED_READ_FILE") and expected is not None:
        summary = "the first line of a planned CSV file is not the expected header"
        return DataError(summary, version=version, file=_path_of(path), expected=expected).advising(
            "set the option `sep` to the separator of the files; or name the columns of `schema` as the files do, in their order; or remove the option "
            "`header` if the files have none. Then run again: the version stays open, and the same files are read."
        )
    if condition.startswith("FAILED_READ_FILE"):
        return DataError(
            "Spark cannot read a planned file with the source's format and schema",
            version=version,
            file=_path_of(path),
            condition=condition,
        ).advising(UNREADABLE_FILE)
    if condition == "PATH_NOT_FOUND":
        file = _path_of(path)
        not_found = StageError("Spark cannot find a planned file", version=version, file=file)
        if file.isascii():
            return not_found.advising(
                "run again. If the file exists, Spark reads another store than this process: compare fs.s3a.endpoint with AWS_ENDPOINT_URL; or mount the "
                "directory on driver and executors."
            )
        return not_found.advising(
            "run again. If the file exists, Java may run in a locale that is not UTF-8: set LC_ALL=C.UTF-8 on driver and executors."
        )
    is_damaged = condition.startswith("CANNOT_LOAD_STATE_STORE") or any(map(_DAMAGED_STATE.search, texts))
    if is_damaged and not is_transient:
        return DataError(state_files.DAMAGED, version=version, condition=condition).advising(state_files.RESTORE)
    if condition in _CHANGED_STATE:
        stored, given = _CHANGED_STATE[condition]
        summary = "the transform keeps values of other types than the state of the previous batches"
        return DataError(
            summary, version=version, condition=condition, before=parameters.get(stored), now=parameters.get(given)
        ).advising("use the former types, or fork the pipeline without state: streamsem fork --at -1.")
    return None


def _from_bytes(header: str) -> str:
    """Return the text of a header that was read with each byte as a character."""
    return header.encode("iso-8859-1", errors="replace").decode(errors="replace")


def _files(job: Job) -> dict[str, object]:
    """Return the number of planned files and the first of them, for errors in which Spark does not name a file."""
    if not job.pins or not isinstance(job.pins[0], FilePin):
        return {}
    return {"files": len(job.pins), "first_file": job.pins[0].path}


def _path_of(uri: str) -> str:
    from airflow_provider_streamsem.connectors.files.text_lines import plain_path

    return plain_path(uri)
