"""A Spark Connect session: the same questions as of a JVM of ours (:mod:`airflow_provider_streamsem.engines.gateway`), asked of a server. Imports pyspark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.plan import CollectMetrics

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.engines.staging import NARROW_NODES


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


def observe(frame: DataFrame, observation: Observation, *asked: Column) -> DataFrame:
    """
    The same rows, which are counted wherever they are evaluated; a transform may use them several times.

    pyspark's client fails with a TypeError where a plan has the same :class:`Observation` twice. So the server knows it by name only, and what it counted is
    taken from the answer to the writer (:func:`observe_last`).
    """
    inner: Any = observation
    inner._name, inner._result = SYSTEM_CLOCK.new_id(), {}
    return frame.observe(inner._name, *asked)


def observe_last(frame: DataFrame, observation: Observation, *asked: Column, watched: Observation) -> DataFrame:
    """The same rows, counted as they are handed to a writer, which also learns what ``watched`` counted below."""
    inner: Any = frame.observe(observation, *asked)
    return type(inner)(_Collecting(inner._plan, watched), inner._session)


class _Collecting(CollectMetrics):  # type: ignore[misc]
    """The last node of a plan, which also takes what an observation counted that is below it by name."""

    def __init__(self, last: Any, watched: Any) -> None:
        super().__init__(last._child, last._observation, last._exprs)
        self._watched = watched

    @property
    def observations(self) -> Any:
        return {**super().observations, self._watched._name: self._watched}


def may_have_run(observation: Observation, session: SparkSession) -> bool:
    """Whether some action has completed an observation already."""
    inner: Any = observation
    return bool(inner._result)


def observed(observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, int] | None:
    """What an observation counted, or ``None`` where it never ran."""
    inner: Any = observation
    return {name: int(inner._result[name]) for name in names if inner._result.get(name) is not None} or None


def reads_input_once(frame: DataFrame) -> bool:
    """Whether the plan surely reads its whole input exactly once, as far as the server's explanation shows."""
    inner: Any = frame
    try:
        return is_read_once(inner._explain_string(mode="extended"))
    except Exception:  # the input is then counted in a pass of its own
        return False


def is_read_once(explained: str) -> bool:
    """
    Whether an extended explanation shows one chain of nodes that read their whole input once, above a relation that is not cached.

    Each line of the analyzed plan must be the next node of the chain. What is not understood, such as a branch, a subquery or a name with a line break,
    counts as read more than once.
    """
    _, _, rest = explained.partition("== Analyzed Logical Plan ==\n")
    analyzed, _, optimized = rest.partition("\n\n== Optimized Logical Plan ==\n")
    _, *nodes = analyzed.split("\n")  # the columns stand above the tree
    for depth, line in enumerate(nodes):
        tree = "   " * (depth - 1) + "+- " if depth else ""
        found = re.match(r"\w+", line.removeprefix(tree)) if line.startswith(tree) else None
        accepted = ("Relation", "RelationV2") if depth == len(nodes) - 1 else NARROW_NODES
        if found is None or found[0] not in accepted:
            return False
    return bool(nodes) and optimized != "" and "InMemoryRelation" not in optimized
