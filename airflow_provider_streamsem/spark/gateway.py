"""
Functions that access the JVM of a classic Spark session. They discard a session whose JVM has ended, clone sessions, and read observations.

This module imports pyspark. It uses non-public names of classic PySpark: those of ``SparkContext`` and ``SparkSession`` that pyspark keeps for the process, and
of ``Observation``. :data:`airflow_provider_streamsem.spark.versions.TESTED` lists the versions of Spark that have them. The names for plans and sessions are in
:mod:`airflow_provider_streamsem.connectors.jvm`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.core.context import SparkContext
from pyspark.sql import Column, DataFrame, Observation, SparkSession

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.spark.jvm_plans import JvmPlans
from airflow_provider_streamsem.spark.sequencing import ORDERED_NODES
from airflow_provider_streamsem.spark.staging import NARROW_NODES, PARSER_NODE

_BUS_TIMEOUT_MS = 5_000


def forget_dead_jvm() -> None:
    """
    Discard a session whose JVM has ended, so that the next session starts a new JVM.

    pyspark keeps the gateway of a JVM that has ended, so ``getOrCreate`` and ``stop`` fail with a refused connection. This function handles only a JVM that
    this process has started. It checks the exit status of the JVM's process, because a JVM that does not respond may still be running.
    """
    jvm_gateway: Any = SparkContext._gateway
    process = getattr(jvm_gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    context: Any = SparkContext._active_spark_context
    with suppress(Exception):
        process.stdin.close()
    with suppress(Exception):
        jvm_gateway.shutdown()
    with suppress(Exception):
        context._accumulatorServer.shutdown()
    with SparkContext._lock:
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._next_accum_id = 0
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        os.environ.pop(name, None)


def end_jvm() -> None:
    """Stop the session of this process, and end the JVM if this process has started it. Returns when the JVM has ended."""
    jvm_gateway: Any = SparkContext._gateway
    process = getattr(jvm_gateway, "proc", None)
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    if process is not None:
        process.stdin.close()  # the JVM ends when its standard input is closed
        process.wait()
    forget_dead_jvm()


def forget_stopped_context() -> None:
    """
    Discard a session whose context has stopped in the JVM, so that the next session has a new context.

    Spark stops its context when its scheduler fails, for example because a plan is too large for the memory. pyspark does not notice, and returns this session.
    """
    context: Any = SparkContext._active_spark_context
    if context is None or context._jsc is None or not context._jsc.sc().isStopped():
        return
    session: Any = SparkSession._instantiatedSession
    (context if session is None else session).stop()


def contains(session: SparkSession, class_name: str) -> bool:
    """Return whether the driver's JVM can load a class; ``True`` if the check itself fails."""
    loader = jvm.session_of(session).sharedState().jarClassLoader()
    try:
        jvm.class_of(session, "java.lang.Class").forName(class_name, False, loader)
    except Py4JJavaError as error:
        return "ClassNotFoundException" not in str(error.java_exception.getClass().getName())
    except Exception:
        return True
    return True


@contextmanager
def cloned(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a clone of a session with the same context, tables, views and settings, to which ``settings`` are added. It is the active session in the block."""
    clone = SparkSession(session.sparkContext, jvm.session_of(session).cloneSession())
    for key, value in settings.items():
        clone.conf.set(key, value)
    _activate(clone)
    try:
        yield clone
    finally:
        with suppress(Exception):  # the JVM may have ended in the meantime; the next attempt starts a new one
            _activate(session)


def _activate(session: SparkSession) -> None:
    jvm.class_of(session, "org.apache.spark.sql.classic.SparkSession").setActiveSession(jvm.session_of(session))
    SparkSession._activeSession = session


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Add a tag to the Spark jobs that this thread starts within the block."""
    session.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(Exception):
            session.sparkContext.removeJobTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """
    Cancel the Spark jobs with a tag. Any thread may call this function.

    It uses the ``SparkContext``, because tags of a ``SparkSession`` are visible only to the thread that set them.
    """
    session.sparkContext.cancelJobsWithTag(tag)


def plans(session: SparkSession) -> JvmPlans:
    """Return an object that reads and changes the plans of DataFrames."""
    return JvmPlans(session)


def observe(frame: DataFrame, observation: Observation, *aggregates: Column) -> DataFrame:
    """Attach an observation to a DataFrame; see :class:`airflow_provider_streamsem.spark.staging.Inspection`."""
    return frame.observe(observation, *aggregates)


def observe_last(
    frame: DataFrame, observation: Observation, *aggregates: Column, watched: Sequence[Observation]
) -> DataFrame:
    """Attach an observation that counts the rows passed to a writer. Spark's listener bus also delivers the counts of ``watched``."""
    return frame.observe(observation, *aggregates)


def observed(observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, Any] | None:
    """
    Return the counts of an observation under ``names``; ``None`` if no action has completed the observation.

    ``Observation.get`` would block forever if the optimizer has removed the observation's node from the plan. This function waits at most 5 s for Spark's
    listener bus, which delivers the counts, to become empty.
    """
    inner: Any = observation
    if inner._jo is None:
        return None
    _empty_bus(session)
    if not inner._jo.future().isCompleted():
        return None
    counts = inner._jo.getAsJava()  # a map and not a Row, because Spark 4.0 offers only the map
    return {name: count for name in names if (count := counts[name]) is not None} or None


def may_have_run(observation: Observation, session: SparkSession) -> bool:
    """
    Return whether an action may have completed the observation already.

    Spark's listener bus delivers the completion, so this function first waits at most 5 s for the bus to become empty. A slow listener of the user may keep the
    bus busy. The completion may then still be in the bus, and the result is ``True``.
    """
    inner: Any = observation
    return inner._jo is not None and (not _empty_bus(session) or bool(inner._jo.future().isCompleted()))


def _empty_bus(session: SparkSession) -> bool:
    try:
        jvm.session_of(session).sparkContext().listenerBus().waitUntilEmpty(_BUS_TIMEOUT_MS)
    except Py4JJavaError:  # a TimeoutException in the JVM
        return False
    return True


def keeps_order(frame: DataFrame, records: DataFrame) -> bool:
    """Return whether the rows of a frame are in the order of the records from which it was made. Functions of ``mapInPandas`` are assumed to keep it."""
    node, input = jvm.execution_of(frame).analyzed(), jvm.execution_of(records).analyzed()
    while not node.equals(input):
        if node.nodeName() not in ORDERED_NODES or node.children().length() != 1:
            return False
        node = node.children().apply(0)
    return True


def reads_input_once(frame: DataFrame) -> bool:
    """
    Return whether the plan is certain to read its whole input exactly once.

    A plan with an exchange is not: a sort samples its input in a separate job, a limit stops early, and Spark recomputes a lost shuffle. This function inspects
    the analyzed plan, because it exists already. The optimizer may remove nodes from it, but adds no exchange.
    """
    stack = [jvm.execution_of(frame).withCachedData()]
    has_parser = False
    while stack:
        node = stack.pop()
        children = jvm.elements(node.children())
        has_parser = has_parser or node.nodeName() == PARSER_NODE
        if has_parser and node.nodeName() == "CollectMetrics":
            return False
        if children and node.nodeName() not in (*NARROW_NODES, PARSER_NODE):
            return False
        if node.nodeName() == "InMemoryRelation" or node.subqueries().nonEmpty():
            return False  # cached relations and subqueries have plans of their own, which may contain any node
        stack += children
    return True
