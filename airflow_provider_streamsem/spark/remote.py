"""The functions of :mod:`airflow_provider_streamsem.spark.gateway` for sessions of a Spark Connect server. This module imports pyspark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.plan import CollectMetrics

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.spark.connect_plans import ConnectPlans
from airflow_provider_streamsem.spark.sequencing import ORDERED_NODES
from airflow_provider_streamsem.spark.staging import NARROW_NODES, PARSER_NODE

RETRIES = 5
"""Number of retries of a request to a server that does not respond: about 20 seconds. By default, the client would wait ten minutes without a message."""


def opened(builder: Any) -> SparkSession:
    """
    Return the session of a builder, after a first request by which the server creates the session.

    If the server was started again since the process has opened its session, open another one.
    """
    session: SparkSession = builder.getOrCreate()
    try:
        _check(session)
    except Exception:
        inner: Any = session
        if not inner.is_stopped:
            raise
        session = builder.getOrCreate()
        _check(session)
    return session


def _check(session: SparkSession) -> None:
    _limit_retries(session)
    session.conf.get("spark.sql.session.timeZone")


def _limit_retries(session: Any) -> None:
    session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])


@contextmanager
def cloned(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """
    Yield a clone of a session with the same views and settings, to which ``settings`` are added.

    The clone is created on the server, and released after the block. Within the block, the clone is the active session of the thread. Otherwise the result of
    ``DataFrame.localCheckpoint`` would belong to another session, which does not have it.
    """
    inner: Any = session
    clone: SparkSession = inner.cloneSession()
    _limit_retries(clone)
    clone.conf._set_all(dict(settings), silent=False)  # one request
    active = type(inner)._active_session
    before, active.session = getattr(active, "session", None), clone
    try:
        yield clone
    finally:
        active.session = before
        with suppress(Exception):  # the server may have ended in the meantime
            # A background thread of the client informs the server about completed plans. If the session ends before that, the server logs the options of the
            # plans, which may contain secrets.
            ExecutePlanResponseReattachableIterator.shutdown()
            inner_clone: Any = clone
            inner_clone.client.release_session()


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Add a tag to the operations that this thread sends to the server within the block."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """Interrupt all operations with a tag on the server. Any thread may call this function."""
    session.interruptTag(tag)


def plans(session: SparkSession) -> ConnectPlans:
    """Return an object that reads and changes the plans of DataFrames."""
    return ConnectPlans(session)


def observe(frame: DataFrame, observation: Observation, *aggregates: Column) -> DataFrame:
    """
    Attach an observation to a DataFrame; see :class:`airflow_provider_streamsem.spark.staging.Inspection`.

    pyspark's client raises a TypeError if a plan contains the same :class:`Observation` twice, as the plan of a self-join does. So this function attaches the
    observation by name only, and :func:`observe_last` reads its counts from the server's response to the write.
    """
    inner: Any = observation
    inner._name, inner._result = SYSTEM_CLOCK.new_id(), {}
    return frame.observe(inner._name, *aggregates)


def observe_last(
    frame: DataFrame, observation: Observation, *aggregates: Column, watched: Sequence[Observation]
) -> DataFrame:
    """
    Attach an observation that counts the rows passed to a writer. The same execution delivers the counts of ``watched``, which are below it in the plan.

    ``DataFrame.observe`` of the client would send a request to find out whether the frame is a stream.
    """
    inner: Any = frame
    last: Any = observation
    last._name, last._result = SYSTEM_CLOCK.new_id(), {}
    counted = type(inner)(_Collecting(inner._plan, last, aggregates, watched), inner._session)
    counted._cached_schema = inner._cached_schema
    return counted


class _Collecting(CollectMetrics):  # type: ignore[misc]
    """The top node of a plan. It also receives the counts of observations below it, which the plan contains by name only."""

    def __init__(self, child: Any, last: Any, aggregates: Sequence[Column], watched: Sequence[Any]) -> None:
        super().__init__(child, last, [*aggregates])
        self._watched = watched

    @property
    def observations(self) -> Any:
        return super().observations | {each._name: each for each in self._watched}


def may_have_run(observation: Observation, session: SparkSession) -> bool:
    """Return whether an action has completed the observation already."""
    inner: Any = observation
    return bool(inner._result)


def observed(observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the counts of an observation under ``names``; ``None`` if no action has completed the observation."""
    inner: Any = observation
    return {name: inner._result[name] for name in names if inner._result.get(name) is not None} or None


def keeps_order(frame: DataFrame, records: DataFrame) -> bool:
    """
    Return whether the rows of a frame are in the order of the records from which it was made, according to the ``EXPLAIN`` output of the server.

    Functions of ``mapInPandas`` and ``mapInArrow`` are assumed to keep the order.
    """
    inner: Any = frame
    source: Any = records
    return is_chain_above(inner._explain_string(mode="extended"), source._explain_string(mode="extended"))


def is_chain_above(explained: str, input: str) -> bool:
    """
    Return whether the analyzed plan of ``explained`` is that of ``input`` with a chain of :data:`ORDERED_NODES` above it.

    Both are extended ``EXPLAIN`` outputs. Nodes are compared by name, because each analysis gives expressions new ids.
    """
    nodes, below = analyzed_nodes(explained), analyzed_nodes(input)
    above = len(nodes) - len(below)
    names = [_node_name(node) for node in nodes]
    is_input = bool(below) and names[max(above, 0) :] == [_node_name(node) for node in below]
    chain = [
        node.startswith("   " * (depth - 1) + "+- " if depth else "") for depth, node in enumerate(nodes[: above + 1])
    ]
    return is_input and all(chain) and all(name in ORDERED_NODES for name in names[: max(above, 0)])


def analyzed_nodes(explained: str) -> list[str]:
    """Return the lines of the analyzed plan, one for each node, without the line that lists the columns."""
    _, _, rest = explained.partition("== Analyzed Logical Plan ==\n")
    return rest.partition("\n\n== Optimized Logical Plan ==\n")[0].split("\n")[1:]


def _node_name(node: str) -> str:
    match = re.match(r"[ :+-]*(\w+)", node)
    return match[1] if match else ""


def reads_input_once(frame: DataFrame) -> bool:
    """Return whether the plan is certain to read its whole input exactly once, according to the ``EXPLAIN`` output of the server."""
    inner: Any = frame
    try:
        return is_read_once(inner._explain_string(mode="extended"))
    except Exception:  # the result is only an optimization: with False, the engine counts the input in a separate pass
        return False


def is_read_once(explained: str) -> bool:
    """
    Return whether extended ``EXPLAIN`` output shows a single chain of nodes that read their whole input once, above a relation that is not cached.

    Each line of the analyzed plan must be the next node of the chain. With any other line, such as a branch, a subquery or a name with a line break, the result
    is ``False``.
    """
    nodes, optimized = analyzed_nodes(explained), explained.partition("\n\n== Optimized Logical Plan ==\n")[2]
    observed = [depth for depth, line in enumerate(nodes) if "CollectMetrics" in line]
    for depth, line in enumerate(nodes):
        tree = "   " * (depth - 1) + "+- " if depth else ""
        match = re.match(r"\w+", line.removeprefix(tree)) if line.startswith(tree) else None
        accepted = ("Relation", "RelationV2") if depth == len(nodes) - 1 else NARROW_NODES
        is_parser = match is not None and match[0] == PARSER_NODE and depth > max(observed, default=depth)
        if match is None or (match[0] not in accepted and not is_parser):
            return False
    return bool(nodes) and optimized != "" and "InMemoryRelation" not in optimized
