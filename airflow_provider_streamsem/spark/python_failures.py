"""Errors for exceptions that Python code raised: the transform in this process, and functions of the transform in Python workers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError, StreamsemError
from airflow_provider_streamsem.spark.user_code import Raised, in_worker

_MISMATCH = re.compile(r"Python in worker has different version: (\d[\d.]*) than that in driver: (\d[\d.]*)")
_NOT_STARTED = re.compile(
    r"Error from python worker:|Cannot run program \"([^\"\n]+)\"|EOFException occurred while reading the port number"
)
_PYTHON = "set PYSPARK_PYTHON, or the setting spark.pyspark.python, to a Python of the driver's minor version on every executor; then run again."


def of_worker(error: Exception, texts: Sequence[str], job: Job) -> StreamsemError | None:
    """
    Return the error for an exception in a Python worker, or of its start; ``None`` for others. ``texts``: the messages of it and of its causes in the JVM.
    """
    is_of_worker = type(error).__name__ == "PythonException" or any(
        "api.python.PythonException" in text for text in texts
    )
    for text in texts:
        mismatch = _MISMATCH.search(text) if is_of_worker else None
        if mismatch is not None:
            summary = (
                "the Python workers of Spark and the driver have different versions of Python; nothing became visible"
            )
            return InvalidError(summary, version=job.plan.version, worker=mismatch[1], driver=mismatch[2]).advising(
                _PYTHON
            )
        started = None if is_of_worker else _NOT_STARTED.search(text)
        if started is not None:
            summary = "Spark cannot start a Python worker; nothing became visible"
            program = {"program": started[1]} if started[1] else {}
            return InvalidError(summary, version=job.plan.version, **program).advising(
                f"{_PYTHON} The exception before this message has the output of that Python."
            )
    raised = in_worker(texts) if is_of_worker else None
    if raised is not None and raised.kind == "ModuleNotFoundError":
        summary = "the Python workers of Spark lack a module; nothing became visible"
        return InvalidError(summary, version=job.plan.version, **raised.fields).advising(
            "install the module in the Python environment of the executors, or set PYSPARK_PYTHON to an environment that has it; then run again."
        )
    if raised is None or not (raised.at or raised.condition):
        return None  # raised by a function of this package
    return _error(raised, "a Python function of the transform", job)


def of_driver(error: Exception, raised: Raised | None, job: Job) -> StreamsemError | None:
    """Return the error for an exception that the transform raised in this process; ``None`` for an exception of the JVM."""
    is_of_jvm = hasattr(error, "java_exception") or getattr(error, "_origin", None) is not None
    return None if raised is None or is_of_jvm else _error(raised, "the transform", job)


def _error(raised: Raised, what: str, job: Job) -> StreamsemError:
    """Return a :class:`DataError` if a retry cannot help, else a :class:`StageError`."""
    summary = f"{what} raised {raised.kind}"
    name = {"transform": job.transform_name} if job.transform_name else {}
    fields = {"version": job.plan.version, **raised.fields, **name}
    where = "the line that `at` names" if raised.at else "the transform"
    if not raised.is_correctable:
        return StageError(summary, **fields).advising(
            f"run again: the same range is read again. If it fails again, correct {where}: the exception before this message has its text."
        )
    return DataError(summary, **fields).advising(
        f"correct {where}, or the records: the exception before this message has its text. Then run again: the same range is read again."
    )
