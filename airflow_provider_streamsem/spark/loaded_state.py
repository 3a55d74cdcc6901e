"""
The state stores that the last attempt of this process left loaded in Spark. If the next attempt continues their state, it need not load it from the log.

Spark identifies loaded state stores by a run id. In Spark 4.1, a loaded state store that must continue another state may silently continue a wrong one. So
:func:`take` returns a run id only if all of these conditions hold (W28). Otherwise the attempt loads its state with a new run id:

- The stores have loaded the state that the attempt continues: the unique ids are equal.
- No other attempt has received the run id, not even one that failed.
- Spark runs in local mode, where one executor has all stores. On a cluster, tasks move between executors, so an executor may have an older state loaded.
- The attempt calls the same function as the attempt that loaded the stores, because loaded stores keep the types of their keys and values.
- Fewer than 20 batches have continued the stores. So a lost SST file is detected by then, and what Spark keeps in memory for each batch does not grow.

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

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.state.settings import OperatorState

_MOST_BATCHES = 20


@dataclass(frozen=True, slots=True)
class Stores:
    """State stores of an attempt. ``batches`` is the number of earlier batches that have used them."""

    run_id: str
    batches: int = 0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """State stores, in memory, of one process and one Spark application. ``state`` is the one that the attempt wrote."""

    process: int
    application: str
    stores: Stores
    location: str
    state: OperatorState
    transform: Callable[..., Any]


_lock = Lock()
_loaded: _Loaded | None = None


def take(session: SparkSession, location: str, state: OperatorState, transform: Callable[..., Any]) -> Stores | None:
    """Return the loaded state stores if the attempt, which calls ``transform``, can continue them; otherwise unload them, and return ``None``."""
    loaded = _replace(session, None)
    if loaded is None:
        return None
    is_same_state = (loaded.location, _ids(loaded.state)) == (location, _ids(state))
    if is_same_state and loaded.transform is transform and loaded.stores.batches < _MOST_BATCHES:
        return loaded.stores
    unload(session, loaded.stores.run_id)
    return None


def keep(
    session: SparkSession, stores: Stores, location: str, state: OperatorState, transform: Callable[..., Any]
) -> None:
    """Keep the state stores of an attempt, which called ``transform``, loaded for the next one. On a cluster, unload them."""
    if not jvm.session_of(session).sparkContext().isLocal():
        unload(session, stores.run_id)
        return
    used = Stores(stores.run_id, stores.batches + 1)
    application = session.sparkContext.applicationId
    before = _replace(session, _Loaded(os.getpid(), application, used, location, state, transform))
    if before is not None:
        unload(session, before.stores.run_id)


def unload(session: SparkSession, run_id: str) -> None:
    """Unload state stores from the executors. Best effort: correctness does not depend on it."""
    with suppress(Exception):
        uuid = jvm.class_of(session, "java.util.UUID").fromString(run_id)
        manager = jvm.session_of(session).sessionState().streamingQueryManager()
        manager.stateStoreCoordinator().deactivateInstances(uuid)


def _replace(session: SparkSession, new: _Loaded | None) -> _Loaded | None:
    """Replace the loaded state stores, and return the old ones; ``None`` if there are none in this process and this Spark application."""
    global _loaded
    with _lock:
        loaded, _loaded = _loaded, new
    here = (os.getpid(), session.sparkContext.applicationId)
    return loaded if loaded is not None and (loaded.process, loaded.application) == here else None


def _ids(state: OperatorState) -> tuple[Any, ...]:
    return state.root, state.batches, [operator.ids for operator in state.operators]
