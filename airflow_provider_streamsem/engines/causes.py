"""Shortens Spark exceptions: keeps the first line, drops the query plan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SparkError(Exception):
    """The first line of what Spark says. Its traceback is that of Spark's own exception, so it shows the line of the transform."""


def short(error: Exception) -> SparkError:
    """
    An exception without the query plan that Spark prints, to be chained in the place of Spark's own.

    :param error: of an analysis: it names columns and functions, and no values of records
    """
    said = str(error).strip().split("\n")[0]
    return SparkError(f"{type(error).__name__}: {said}").with_traceback(error.__traceback__)


@contextmanager
def quiet() -> Iterator[None]:
    """PySpark logs an analysis error at ERROR, with the whole query plan, before it raises it. The error that is raised tells the same."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    silence = _Silence()  # one for each call: attempts may run in several threads
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
