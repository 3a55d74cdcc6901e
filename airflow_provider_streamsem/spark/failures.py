"""Translates exceptions of Spark to errors of this package. This module imports pyspark only when an exception is translated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_streamsem import state_files
from airflow_provider_streamsem.connectors.failures import ExplainsFailures, NamesFile
from airflow_provider_streamsem.engine import Job, RewriteJob
from airflow_provider_streamsem.errors import (
    UNREADABLE_FILE,
    DataError,
    InvalidError,
    StageError,
    StoreRefusedError,
    StreamsemError,
)

_REFUSAL = re.compile(
    r"(AccessControlException|AccessDeniedException|ParentNotDirectoryException|UnknownStoreException|Mkdirs failed to create)[^\n]{0,200}"
)
"""Matches exceptions of Hadoop's file systems after which a retry cannot succeed, with the location in their message."""
_TRANSIENT = re.compile(
    r"\b(AWS(ClientIO|ServiceIO|Status500|ServiceThrottled|NoResponse|Bad)\w*Exception|SdkClientException|Socket\w*Exception|ConnectException|"
    r"UnknownHostException|NoRouteToHostException|InterruptedIOException|HttpHostConnectException|ConnectTimeoutException|SSLException)\b"
)
"""Matches exceptions of Hadoop's file systems and of the network after which a retry may succeed."""
_DAMAGED_STATE = re.compile(
    r"RocksDBException: [^\n]*(checksum mismatch|[Mm]ismatch in unique ID|[Cc]orrupt|magic number)"
)
"""Matches RocksDB's errors for an SST file with another content. If RocksDB reads the file after it has loaded the state, Spark's condition does not say so."""
_READ_BY_PYTHON = re.compile(r"ValueError: streamsem-read (setup|data|database): ([^\n]+)")
"""Matches errors of :mod:`airflow_provider_streamsem.connectors.sql.executor_read`."""
_OF_THE_DATA = (
    "ARITHMETIC_OVERFLOW",
    "CAST_INVALID_INPUT",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "DIVIDE_BY_ZERO",
    "CANNOT_MERGE_SCHEMAS",
    "USER_RAISED_EXCEPTION",
)

_CHANGED_STATE = {
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": ("storedKeySchema", "newKeySchema"),
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": ("storedValueSchema", "newValueSchema"),
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": ("oldSchema", "newSchema"),
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": ("oldValueSchema", "newValueSchema"),
}
"""Spark's condition → the parameters that contain the stored and the new types of the state."""


def translated(error: Exception, job: Job) -> StreamsemError:
    """
    Return the error of this package for an exception of Spark.

    The error does not quote the message of the exception, because it may contain values of records. It quotes paths. The caller chains the exception.
    """
    version = job.plan.version
    spark_conditions = conditions(error)
    refusal = next((match[0] for text in _texts(error) if (match := _REFUSAL.search(text))), None)
    if refusal is not None:
        summary = "the store refused a read or write of Spark; nothing became visible"
        return StoreRefusedError(summary, version=version, refusal=refusal, **_files(job))
    for text in _texts(error):
        if read := _READ_BY_PYTHON.search(text):
            return _database_error(read[1], read[2], version)
    is_transient = any(_TRANSIENT.search(text) for text in _texts(error))
    for condition, parameters in spark_conditions:
        specific = _condition_error(error, condition, parameters, job, is_transient=is_transient)
        if specific is not None:
            return specific
    kind = type(error).__name__
    condition = spark_conditions[0][0] if spark_conditions else ""
    if kind == "AnalysisException":
        from airflow_provider_streamsem.spark.staging import named

        summary = "the transform does not fit its input columns; nothing became visible"
        return DataError(summary, version=version, condition=condition, **named(error), **_files(job)).advising(
            "correct the line of the transform that the traceback shows, and run again: the same range is read again."
        )
    sources = getattr(job.source, "parts", {"": job.source}).values()
    for source in sources:
        if isinstance(source, ExplainsFailures):
            explained = source.explain_failure(list(_texts(error)), job.plan.ranges)
            if explained is not None:
                return explained.with_fields(version=version)
    return StageError(
        "the engine failed while staging; nothing became visible",
        version=version,
        error=kind,
        **({"condition": condition} if condition else {}),
        **({"transform": job.transform_name} if job.transform_name else {}),
        **_files(job),
    )


def rewrite_error(error: Exception, job: RewriteJob) -> StreamsemError:
    """Return the error of this package for an exception of Spark in an attempt to rewrite files. It quotes paths, and no values of records."""
    where = {"version": job.version, "location": job.sink.location}
    refusal = next((match[0] for text in _texts(error) if (match := _REFUSAL.search(text))), None)
    if refusal is not None:
        summary = "the store refused a read or write of Spark; the new files are not visible"
        return StoreRefusedError(summary, **where, refusal=refusal)
    found = conditions(error)
    is_transient = any(_TRANSIENT.search(text) for text in _texts(error))
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
    ).advising(
        "compact again. If it fails again, correct the cause that this message or the exception before it names. If memory was short, lower `max_bytes`."
    )


def _database_error(kind: str, problem: str, version: int) -> StreamsemError:
    """Translate an error of the function by which executors read a database."""
    if kind == "setup":
        summary = "an executor cannot read the source's database; nothing became visible"
        return InvalidError(summary, version=version, problem=problem).advising(
            "install SQLAlchemy, the database's driver and pyarrow in the Python environment of the executors, and run again."
        )
    if kind == "data":
        summary = "the database table has a value that Spark cannot read; nothing became visible"
        return DataError(summary, version=version, problem=problem).advising(
            "read the column as text with `as_text` of the source or lookup, and convert it in the transform; or correct the value, or leave the column out "
            "with `columns`. Then run again: the same range is read again."
        )
    return StageError(
        "an executor could not read the source's database; nothing became visible", version=version, problem=problem
    )


def _condition_error(
    error: Exception, condition: str, parameters: Mapping[str, str], job: Job, *, is_transient: bool
) -> StreamsemError | None:
    """Return the error for a Spark condition; ``None`` if the condition has no specific error."""
    version = job.plan.version
    path = parameters.get("path", "")
    if condition.startswith("FAILED_READ_FILE") and is_transient:
        summary = "the store did not respond while Spark read a planned file; nothing became visible"
        return StageError(summary, version=version, file=_path_of(path), condition=condition)
    if condition.startswith("FAILED_READ_FILE"):
        return DataError(
            "Spark cannot read a planned file with the source's format and schema; nothing became visible",
            version=version,
            file=_path_of(path),
            condition=condition,
        ).advising(UNREADABLE_FILE)
    if condition == "PATH_NOT_FOUND":
        file = _path_of(path)
        not_found = StageError("Spark cannot find a planned file; nothing became visible", version=version, file=file)
        if file.isascii():
            return not_found
        return not_found.advising(
            "run again. If the file exists, Java may run in a locale that is not UTF-8: set LC_ALL=C.UTF-8 on driver and executors."
        )
    is_damaged = condition.startswith("CANNOT_LOAD_STATE_STORE") or any(map(_DAMAGED_STATE.search, _texts(error)))
    if is_damaged and not is_transient:
        return DataError(state_files.DAMAGED, version=version, condition=condition).advising(state_files.RESTORE)
    if condition in _CHANGED_STATE:
        stored, given = _CHANGED_STATE[condition]
        summary = (
            "the transform keeps values of other types than the state of the previous batches; nothing became visible"
        )
        return DataError(
            summary, version=version, condition=condition, before=parameters.get(stored), now=parameters.get(given)
        ).advising("use the former types, or fork the pipeline without state: streamsem fork --at -1.")
    if condition.startswith(_OF_THE_DATA):
        summary = "Spark could not evaluate the transform or the predicate `where` on the data; nothing became visible"
        return DataError(summary, version=version, condition=condition, **_files(job))
    return None


def _files(job: Job) -> dict[str, object]:
    """Return the number of planned files and the first of them, for errors in which Spark does not name a file."""
    if not job.pins or not isinstance(job.pins[0], NamesFile):
        return {}
    return {"files": len(job.pins), "first_file": job.pins[0].file}


def _path_of(uri: str) -> str:
    from airflow_provider_streamsem.connectors.files.text_lines import plain_path

    return plain_path(uri)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the messages of an error and of its causes in the JVM."""
    yield str(error)
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        with suppress(Exception):
            yield str(cause.toString())
        try:
            cause = cause.getCause()
        except Exception:
            break


def conditions(error: BaseException) -> list[tuple[str, dict[str, str]]]:
    """Return the condition and the parameters of an error and of its causes in the JVM, if they are Spark errors."""
    pairs: list[tuple[str, dict[str, str]]] = []
    with suppress(Exception):
        condition = error.getCondition()  # type: ignore[attr-defined]
        if condition:
            pairs.append((condition, dict(error.getMessageParameters() or {})))  # type: ignore[attr-defined]
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        with suppress(Exception):
            condition = cause.getCondition()
            if condition:
                pairs.append((condition, dict(cause.getMessageParameters())))
        try:
            cause = cause.getCause()
        except Exception:
            break
    return pairs
