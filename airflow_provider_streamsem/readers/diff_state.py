"""Compares the state of a fork's operators with that of the original's operators, after the newest version of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.readers.diff import different_rows, opened
from airflow_provider_streamsem.readers.files import CommittedLog
from airflow_provider_streamsem.readers.state import read_state
from airflow_provider_streamsem.state.settings import Operator, operator_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOIN = "symmetricHashJoin"
_COLUMNS = ("key", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """
    The comparison of one operator's state. The two sides of a join are compared one after the other.

    :param operator: number of the operator, as for :func:`airflow_provider_streamsem.readers.state.read_state`
    :param name: Spark's name of the operator, with the side of a join
    :param original: number of rows in the state of the original
    :param fork: number of rows in the state of the fork
    :param rows: a DataFrame with one line for each row of the state that only one side has: ``row`` is the JSON text of ``key`` and ``value``, ``only_in`` is
        ``original`` or ``fork``, and ``times`` is how much more often that side has it. ``None`` if the state was not compared
    :param reason: why the state was not compared; ``""`` if it was
    """

    operator: int
    name: str
    original: int = 0
    fork: int = 0
    rows: DataFrame | None = None
    reason: str = ""


def diff_state(
    spark: SparkSession, fork: str | CommittedLog, original: str | CommittedLog
) -> tuple[StateDifference, ...]:
    """
    Compare the state of each operator of a fork with that of the original, as rows of keys and values.

    The result has a comparison for each operator of either pipeline. It is empty if neither keeps state.

    :param spark: a classic session
    :param fork: URL of the fork's log, or the open log
    :param original: the log of the original pipeline
    :raises InvalidError: the log is no fork of the original, or the fork has no closed version
    """
    fork_log, original_log, _ = opened(fork, original)
    sides = {1: (original_log, original_log.head), -1: (fork_log, fork_log.head)}
    pairs = zip_longest(*(_operators(*side) for side in sides.values()))
    return tuple(
        compared
        for number, (before, after) in enumerate(pairs)
        for compared in _compared(spark, sides, number, before, after)
    )


def _operators(log: CommittedLog, version: int) -> tuple[Operator, ...]:
    outcome = log.log.outcome(version)
    state = None if outcome is None else operator_state(outcome.state)
    return () if state is None else state.operators


def _compared(
    spark: SparkSession,
    sides: dict[int, tuple[CommittedLog, int]],
    number: int,
    original: Operator | None,
    fork: Operator | None,
) -> Iterator[StateDifference]:
    """Compare the state of the operators with one number. ``None``: that side has no such operator."""
    if original is None or fork is None or original.name != fork.name:
        names = {side: each.name for side, each in (("original", original), ("fork", fork)) if each is not None}
        reason = "the operators differ: " + ", ".join(f"the {side} has {name}" for side, name in names.items())
        reason += "" if len(names) > 1 else ", and the other pipeline has no such operator"
        yield StateDifference(operator=number, name=" and ".join(names.values()), reason=reason)
        return
    if original.metadata:
        reason = "the variables of a stateful processor are not compared. Read each with read_state and its option stateVarName"
        yield StateDifference(operator=number, name=original.name, reason=reason)
        return
    for options in [{"joinSide": side} for side in ("left", "right")] if original.name == _JOIN else [{}]:
        name = " ".join([original.name, *options.values()])
        try:
            states = {
                sign: _declared(read_state(spark, log, operator=number, version=version, options=options))
                for sign, (log, version) in sides.items()
            }
        except InvalidError as error:
            yield StateDifference(operator=number, name=name, reason=error.summary)
            continue
        types = {sign: state.schema.simpleString() for sign, state in states.items()}
        if types[1] != types[-1]:
            reason = f"the columns differ: the original has {types[1]}, and the fork {types[-1]}"
            yield StateDifference(operator=number, name=name, reason=reason)
            continue
        rows, counts = different_rows(states, _COLUMNS)
        yield StateDifference(operator=number, name=name, original=counts.get(1, 0), fork=counts.get(-1, 0), rows=rows)


def _declared(state: DataFrame) -> DataFrame:
    """Return keys and values with the fields of their types only. The values of a join have one field more, which their type does not name."""
    from pyspark.sql import functions as F

    return state.select(
        *[
            F.struct(*[F.col(column).getField(name) for name in state.select(f"{column}.*").columns]).alias(column)
            for column in _COLUMNS
        ]
    )
