"""
The JVM behind a classic Spark session: whether it lives, how to let go of a dead one, and a clone of a session. Imports pyspark.

Names of pyspark that are not public are touched here and in :mod:`airflow_provider_streamsem.sinks.direct`; written against 4.0 and 4.1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.core.context import SparkContext
from pyspark.sql import Column, DataFrame, Observation, SparkSession

from airflow_provider_streamsem.engines.staging import NARROW_NODES

_PATIENCE_MS = 5_000


def forget_dead_jvm() -> None:
    """
    Let go of a session whose JVM was killed, so that the next one starts.

    pyspark keeps a killed JVM's gateway for ever: ``getOrCreate`` and ``stop`` then fail with a refused connection. Only a JVM that this process
    launched is judged: its exit is known from the process itself, never guessed from a slow answer.
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


def contains(session: SparkSession, class_name: str) -> bool:
    """Whether the driver's JVM has a class; ``True`` where it does not tell."""
    inner: Any = session
    loader = inner._jsparkSession.sharedState().jarClassLoader()
    try:
        getattr(inner._jvm, "java.lang.Class").forName(class_name, False, loader)
    except Py4JJavaError as error:
        return "ClassNotFoundException" not in str(error.java_exception.getClass().getName())
    except Exception:
        return True
    return True


@contextmanager
def cloned(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A clone of a session (same context, tables, views and settings) with some settings of its own, active while the block runs."""
    inner: Any = session
    clone = SparkSession(inner._sc, inner._jsparkSession.cloneSession())
    for key, value in settings.items():
        clone.conf.set(key, value)
    _activate(clone)
    try:
        yield clone
    finally:
        with suppress(Exception):  # the JVM may have died meanwhile; the next call starts another
            _activate(session)


def _activate(session: SparkSession) -> None:
    inner: Any = session
    # By its whole name: a short one is looked for in every package that pyspark imports, and in every jar.
    getattr(inner._jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(inner._jsparkSession)
    SparkSession._activeSession = session


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Put a tag on the jobs that this thread starts while the block runs."""
    session.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(Exception):
            session.sparkContext.removeJobTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """Cancel the jobs that have a tag, from whichever thread. (Tags of a session are known to the thread alone that set them.)"""
    session.sparkContext.cancelJobsWithTag(tag)


def observe(frame: DataFrame, observation: Observation, *asked: Column) -> DataFrame:
    """The same rows, which are counted wherever they are evaluated; a transform may use them several times."""
    return frame.observe(observation, *asked)


def observe_last(frame: DataFrame, observation: Observation, *asked: Column, watched: Observation) -> DataFrame:
    """The same rows, counted as they are handed to a writer. The JVM tells what ``watched`` counted below without being asked."""
    return frame.observe(observation, *asked)


def observed(observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, int] | None:
    """
    What an observation counted, or ``None`` where it never ran.

    ``Observation.get`` waits for ever where the optimizer dropped the node; this waits for the bus by which Spark tells, and no longer.
    """
    inner: Any = observation
    if inner._jo is None:
        return None
    _empty_bus(session)
    if not inner._jo.future().isCompleted():
        return None
    counts = inner._jo.getAsJava()  # no row: Spark 4.0 has only the map of its values
    return {name: int(count) for name in names if (count := counts[name]) is not None} or None


def may_have_run(observation: Observation, session: SparkSession) -> bool:
    """
    Whether some action may have completed an observation already. Spark tells its observations so on a bus, which is emptied first.

    A bus that does not get empty soon, as behind a slow listener of the user's, may still hold the news.
    """
    inner: Any = observation
    return inner._jo is not None and (not _empty_bus(session) or bool(inner._jo.future().isCompleted()))


def _empty_bus(session: SparkSession) -> bool:
    inner: Any = session
    try:
        inner._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(_PATIENCE_MS)
    except Py4JJavaError:  # a TimeoutException of the JVM
        return False
    return True


def reads_input_once(frame: DataFrame) -> bool:
    """
    Whether the plan surely reads its whole input exactly once.

    Anything with an exchange may not: a sort samples its input in a job of its own, a limit stops early, a lost shuffle is made again. The analyzed plan is
    looked at, which is there already; the optimizer may take nodes out of it and puts no exchange in.
    """
    inner: Any = frame
    pending = [inner._jdf.queryExecution().withCachedData()]
    while pending:
        node = pending.pop()
        children = node.children()
        if children.length() > 0 and node.nodeName() not in NARROW_NODES:
            return False
        if node.nodeName() == "InMemoryRelation" or node.subqueries().nonEmpty():
            return False  # plans of their own, which may hold anything
        pending += [children.apply(i) for i in range(children.length())]
    return True
