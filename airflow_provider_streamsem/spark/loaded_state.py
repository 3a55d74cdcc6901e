"""
The state stores that the last attempt of this process left loaded in Spark. If the next attempt continues their state, it need not load it from the log.

Spark identifies loaded state stores by a run id. A state store of Spark 4.1 that had to continue another state than the one that it had loaded was seen to
continue a wrong state without an error. So :func:`take` returns a run id only if all of these conditions hold (W28). Otherwise the attempt loads its state with
a new run id:

- The stores have loaded the state that the attempt continues: the unique ids are equal.
- No other attempt has received the run id, not even one that failed.
- Spark runs in local mode, where one executor has all stores. On a cluster, tasks move between executors, so an executor may have an older state loaded.
- The attempt calls the same function as the attempt that loaded the stores, because loaded stores keep the types of their keys and values.

The module keeps the stores of one log only, so that a process with many pipelines does not keep the state of each of them in memory.

This module imports pyspark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_streamsem.state import OperatorState


@dataclass(frozen=True, slots=True)
class _Loaded:
    """
    Loaded state stores.

    :param process: id of the process that loaded them
    :param application: id of the Spark application
    :param run_id: Spark's run id of the attempt that loaded them
    :param location: path of the directory of the state files, for Spark
    :param state: the state that they have loaded
    :param transform: the function that the attempt called
    """

    process: int
    application: str
    run_id: str
    location: str
    state: OperatorState
    transform: Callable[..., Any]


_lock = Lock()
_loaded: _Loaded | None = None


def take(session: SparkSession, location: str, state: OperatorState, transform: Callable[..., Any]) -> str | None:
    """
    Return the run id of the loaded state stores if the attempt can continue them; otherwise unload them, and return ``None``.

    :param location: path of the directory of the state files, for Spark
    :param state: the state that the attempt continues
    :param transform: the function that the attempt calls
    """
    loaded = _forget(session)
    if loaded is None:
        return None
    if (loaded.location, _ids(loaded.state)) == (location, _ids(state)) and loaded.transform is transform:
        return loaded.run_id
    unload(session, loaded.run_id)
    return None


def keep(
    session: SparkSession, run_id: str, location: str, state: OperatorState, transform: Callable[..., Any]
) -> None:
    """
    Keep the state stores of an attempt loaded for the next one. On a cluster, unload them.

    :param run_id: Spark's run id of the attempt
    :param location: path of the directory of the state files, for Spark
    :param state: the state that the attempt wrote
    :param transform: the function that the attempt called
    """
    global _loaded
    if (before := _forget(session)) is not None:
        unload(session, before.run_id)
    inner: Any = session
    if not inner._jsparkSession.sparkContext().isLocal():
        unload(session, run_id)
        return
    with _lock:
        _loaded = _Loaded(os.getpid(), session.sparkContext.applicationId, run_id, location, state, transform)


def unload(session: SparkSession, run_id: str) -> None:
    """Unload state stores from the executors. Best effort: correctness does not depend on it."""
    inner: Any = session
    with suppress(Exception):
        uuid = getattr(inner._jvm, "java.util.UUID").fromString(run_id)
        inner._jsparkSession.sessionState().streamingQueryManager().stateStoreCoordinator().deactivateInstances(uuid)


def _forget(session: SparkSession) -> _Loaded | None:
    """Return the loaded state stores, and forget them; ``None`` if there are none in this process and this Spark application."""
    global _loaded
    with _lock:
        loaded, _loaded = _loaded, None
    here = (os.getpid(), session.sparkContext.applicationId)
    return loaded if loaded is not None and (loaded.process, loaded.application) == here else None


def _ids(state: OperatorState) -> tuple[Any, ...]:
    return state.root, state.batches, [operator.ids for operator in state.operators]
