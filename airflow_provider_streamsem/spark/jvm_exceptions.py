"""Reads the exceptions of Spark: their messages, conditions and SQLSTATEs, and those of their causes in the JVM. Needs no pyspark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any


def texts(error: Any) -> list[str]:
    """Return the messages of an error and of its causes in the JVM, the outermost first."""
    found = []
    with suppress(Exception):  # py4j asks the JVM for the message, and the JVM may have ended
        found.append(str(error))
    for cause in java_causes(error):
        with suppress(Exception):
            found.append(str(cause.toString()))
    return found + _captured_causes(error)


def _captured_causes(error: Any) -> list[str]:
    """Return the messages of the causes that pyspark has copied from the JVM. For most exceptions it keeps no reference to the JVM's object."""
    found = []
    cause = getattr(error, "_cause", None)
    while cause is not None:
        found.append(str(getattr(cause, "_desc", "")))
        cause = getattr(cause, "_cause", None)
    return found


def java_causes(error: Any) -> Iterator[Any]:
    """Yield the exception of the JVM and its causes, the outermost first."""
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        try:
            cause = cause.getCause()
        except Exception:
            return


def root_cause(error: Any) -> dict[str, str]:
    """Return the class of the innermost cause in the JVM, as a field of an error; empty if there is none."""
    names = []
    for cause in java_causes(error):
        with suppress(Exception):
            names.append(str(cause.getClass().getName()))
    names += [text.partition(":")[0] for text in _captured_causes(error)]
    return {"cause": names[-1]} if names else {}


def conditions(error: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the condition and the parameters of an error and of its causes in the JVM, if they are Spark errors."""
    pairs: list[tuple[str, dict[str, str]]] = []
    for spark_error in (error, *java_causes(error)):
        with suppress(Exception):
            condition = spark_error.getCondition()
            if condition:
                pairs.append((condition, dict(spark_error.getMessageParameters() or {})))
    return pairs


def sql_states(error: Any) -> Iterator[tuple[str, str]]:
    """Yield the condition and the SQLSTATE of an error and of its causes in the JVM, if they are Spark errors."""
    for spark_error in (error, *java_causes(error)):
        with suppress(Exception):
            condition, state = spark_error.getCondition(), spark_error.getSqlState()
            if condition and state:
                yield str(condition), str(state)


def is_of_spark(error: Exception) -> bool:
    """Return whether pyspark or its connection to the JVM or server has raised an exception."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(modules & {"pyspark", "py4j", "grpc"}) or isinstance(error, ConnectionError)
