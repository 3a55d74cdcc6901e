"""
The JVM of a classic Spark session, by non-public names of PySpark. Tried with the versions in ``spark/versions.py``: 4.0, 4.1, 4.2 and 4.3.

``spark/gateway.py`` uses more such names: those of the process's only session, and of observations. ``spark/remote.py`` and ``spark/connect_plans.py`` use
those of Spark Connect. This module does not import pyspark.
"""

from __future__ import annotations

from typing import Any


def session_of(session: Any) -> Any:
    """Return the JVM's object of a session."""
    return session._jsparkSession


def gateway_of(session: Any) -> Any:
    """Return the connection of py4j to the JVM of a session."""
    return session._sc._gateway


def class_of(session: Any, name: str) -> Any:
    """Return a class by its full name, because py4j searches for a short name in every package that pyspark imports, and in every jar."""
    return getattr(session._jvm, name)


def execution_of(frame: Any) -> Any:
    """Return the JVM's ``QueryExecution`` of a DataFrame, which has its plans."""
    return frame._jdf.queryExecution()


def elements(sequence: Any) -> list[Any]:
    """Return the elements of a Scala ``Seq``."""
    return [sequence.apply(index) for index in range(sequence.length())]
