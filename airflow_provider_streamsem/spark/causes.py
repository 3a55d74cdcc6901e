"""Shortens Spark exceptions: keeps the first line, drops the query plan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SparkError(Exception):
    """The first line of a Spark exception's message. It has the traceback of the Spark exception, which shows the line of the transform."""


def short(error: Exception) -> SparkError:
    """
    Copy a Spark exception without the query plan in its message. The copy is chained in place of the original.

    :param error: an analysis error, whose message names columns and functions but contains no values of records
    """
    said = str(error).strip().split("\n")[0]
    return SparkError(f"{type(error).__name__}: {said}").with_traceback(error.__traceback__)


@contextmanager
def quiet() -> Iterator[None]:
    """
    Suppress PySpark's log records of analysis errors while the block runs.

    PySpark logs an analysis error at level ERROR, with the whole query plan, before it raises the error. The raised error contains the same information.
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


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return False
