"""Shortens the messages of Spark exceptions to their first line, without the query plan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException

_NAMES = ("objectName", "routineName", "eventName", "relationName", "path")
"""The parameters of Spark's conditions that name what cannot be resolved."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SparkError(Exception):
    """A Spark exception with only the first line of its message. The traceback is that of the Spark exception, so it shows the line of the transform."""


def short(error: Exception) -> SparkError:
    """
    Return a copy of an analysis error without the query plan in its message. Callers chain the copy instead of the original.

    The message of an analysis error names columns and functions, but contains no values of records. Other Spark exceptions may contain values.
    """
    message = str(error).strip().split("\n")[0]
    return SparkError(f"{type(error).__name__}: {message}").with_traceback(error.__traceback__)


def chained(error: Exception) -> Exception:
    """Return the exception to chain: the short copy of an analysis error, else the exception itself."""
    from pyspark.errors import AnalysisException

    return short(error) if isinstance(error, AnalysisException) else error


@contextmanager
def quiet() -> Iterator[None]:
    """
    Suppress PySpark's log records about analysis errors within the block.

    Before PySpark raises an analysis error, it logs the error with the whole query plan at level ERROR. The raised error contains the same information.
    """
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    silence = _Silence()  # one filter per call, because attempts may run in several threads
    for logger in loggers:
        logger.addFilter(silence)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(silence)


def silence_py4j() -> None:
    """
    Suppress the log records of py4j in this process. Called when the task is cancelled, because the JVM may end at the same time.

    For each Java object that Python releases after that, py4j logs the refused connection with the traceback of every exception before it: thousands of lines.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)  # py4j also logs to the root logger


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return "/py4j/" not in record.pathname


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return False


def named(error: AnalysisException) -> dict[str, str]:
    """Return the name of the column, table, function or path that Spark's analysis refuses, as a field ``name`` for an error; empty if Spark names none."""
    parameters = dict(error.getMessageParameters() or {})
    name = next((parameters[key] for key in _NAMES if key in parameters), None)
    return {} if name is None else {"name": name}
