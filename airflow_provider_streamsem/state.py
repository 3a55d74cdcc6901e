"""
State that a transform keeps across batches: its settings, and what an outcome records of it.

The transform uses Structured Streaming's own stateful operators. Spark stores their state in files below ``state/`` in the log, under names that contain a new
unique id for each partition of each batch. An outcome names the ids of its batch. So the state of a batch is part of its commit, and attempts that are not
committed change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.stores.contract import Store

OUTPUT_MODES = ("append", "update", "complete")
LOCATION = "state/operators"
"""directory of the operators' state files below the log's root"""
FIELD = "spark"
"""the field of an outcome's ``state`` that holds :class:`OperatorState`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    Lets the transform keep state across batches.

    The transform gets a streaming DataFrame. It may use ``withWatermark``, ``groupBy`` with ``window`` or ``session_window``, ``dropDuplicates``,
    ``dropDuplicatesWithinWatermark``, stream-stream joins, ``applyInPandasWithState`` and ``transformWithStateInPandas``, and returns one streaming DataFrame.
    It starts no query and no sink. Each batch computes what a Structured Streaming query computes for a micro-batch with the same records.

    :param output_mode: as in Structured Streaming. ``append``: rows that no later record changes, such as closed windows. ``update``: each row that the batch
        changed. ``complete``: all rows of the result, in every batch
    :param partitions: the number of partitions of the state, 1 or more, which never changes. Absent: ``spark.sql.shuffle.partitions`` of the first batch
    :param late: what happens to records before the watermark. ``drop``: Spark drops them, and the count ``late`` has their number. ``fail``: the batch fails
        without retries, and no offset advances
    :raises InvalidError: an argument is not acceptable
    """

    output_mode: str
    partitions: int | None = None
    late: str = "drop"

    def __post_init__(self) -> None:
        arguments.choice("state.output_mode", self.output_mode, OUTPUT_MODES)
        arguments.choice("state.late", self.late, ("drop", "fail"))
        if self.partitions is not None:
            arguments.integer("state.partitions", self.partitions, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """
    A stateful operator of the transform's plan.

    :param name: Spark's name of the operator
    :param ids: for each partition of the state, the unique ids of its stores
    """

    name: str
    ids: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """
    The state after a batch.

    :param root: directory of the state files below ``state/``. It is named by the attempt that created the state, because Spark writes some files of the first
        batch under fixed names
    :param batches: the number of batches that the state has seen. Spark's number of the next batch
    :param partitions: the number of partitions of each operator's state
    :param operators: the stateful operators, in the order of Spark's operator ids
    :param watermark_ms: the watermark with which the batch ran, in milliseconds UTC; 0 if there was none. The next batch drops records before it as late
    :param next_watermark_ms: the watermark after the batch. The next batch closes windows that end at or before it
    :param watermarks: for each ``withWatermark`` of the plan, its own watermark in milliseconds; ``None`` before its first record
    """

    root: str
    batches: int
    partitions: int
    operators: tuple[Operator, ...]
    watermark_ms: int = 0
    next_watermark_ms: int = 0
    watermarks: tuple[int | None, ...] = field(default=())


def operator_state(state: Json) -> OperatorState | None:
    """
    Parse the operators' state of an outcome; ``None`` if there is none.

    :param state: the field ``state`` of the outcome
    :raises LogDamagedError: the state has another form, or its root is not a plain name
    """
    given = state.get(FIELD) if isinstance(state, Mapping) else None
    if given is None:
        return None
    found: OperatorState = build(OperatorState, given, "state")
    texts = [found.root, *(id for operator in found.operators for ids in operator.ids for id in ids)]
    if any(not text or set(text) - _PLAIN for text in texts):
        raise LogDamagedError("the state of an outcome names a file outside the log's state", invariant="R6")
    return found


def is_complete(store: Store, state: Json) -> bool:
    """
    Whether the files of the operators' state exist (W17). Their content is checked by Spark when the next batch loads them.

    :param store: the store of the log
    :param state: the field ``state`` of a manifest
    """
    found = operator_state(state)
    for number, operator in enumerate(() if found is None else found.operators):
        assert found is not None
        for partition, ids in enumerate(operator.ids):
            # A store with a name has a directory of its own below that of its partition.
            listed = store.list(f"{LOCATION}/{found.root}/state/{number}/{partition}/")
            names = {item.key.rpartition("/")[2] for item in listed if item.bytes > 0}
            if not {f"{found.batches}_{id}.zip" for id in ids} <= names:
                return False
    return True


def with_operator_state(state: Json, found: OperatorState | None) -> Json:
    """Return the field ``state`` of an outcome with another state of the operators."""
    others = {name: value for name, value in (state or {}).items() if name != FIELD}
    return others or None if found is None else {**others, FIELD: plain(found)}


def check_same_operators(before: OperatorState | None, after: OperatorState) -> None:
    """
    Refuse a transform whose stateful operators differ from those of the earlier batches.

    :raises InvalidError: the operators differ; names both lists
    """
    if before is None:
        return
    names = [[operator.name for operator in found.operators] for found in (before, after)]
    if names[0] != names[1] or len(before.watermarks) != len(after.watermarks):
        raise InvalidError(
            "the transform has other stateful operators or watermarks than the batches before, so it cannot continue their state; nothing became visible",
            before=names[0],
            now=names[1],
            accepted="the former operators, or a new pipeline with a new log",
        )


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
