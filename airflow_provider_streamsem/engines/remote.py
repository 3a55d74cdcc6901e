"""A Spark Connect session: the same questions as of a JVM of ours (:mod:`airflow_provider_streamsem.engines.gateway`), asked of a server. Imports pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator


@contextmanager
def cloned(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A clone of a session on its server (same views and settings) with some settings of its own, ended after the block."""
    inner: Any = session
    # A server knows a session from its first request on, and clones only what it knows.
    session.conf.get("spark.sql.session.timeZone")
    clone: SparkSession = inner.cloneSession()
    for key, value in settings.items():
        clone.conf.set(key, value)
    try:
        yield clone
    finally:
        with suppress(Exception):  # the server may have died meanwhile
            # The client tells the server in the background which plans have ended. A server that closes a session before logs their options, secrets too.
            ExecutePlanResponseReattachableIterator.shutdown()
            inner_clone: Any = clone
            inner_clone.client.release_session()


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Put a tag on what this thread asks of the server while the block runs."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """End what the server does under a tag, from whichever thread."""
    session.interruptTag(tag)


def may_have_run(observation: Observation, session: SparkSession) -> bool:
    """Whether some action has completed an observation already."""
    inner: Any = observation
    return bool(inner._result)


def observed(observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, int] | None:
    """What an observation counted, or ``None`` where it never ran."""
    inner: Any = observation
    return {name: int(inner._result[name]) for name in names if name in inner._result} or None


def reads_input_once(frame: DataFrame) -> bool:
    """A server does not tell its plans in a form to rely on: the input is counted in a pass of its own."""
    return False
