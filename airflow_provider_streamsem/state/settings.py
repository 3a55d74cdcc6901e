"""
The state that a transform keeps across batches: its settings, and its representation in an outcome.

The transform uses stateful operators of Structured Streaming. Spark stores their state in files below ``state/operators/`` in the log. For each partition of
the state and each attempt, the file names contain a new unique id. The outcome names the ids of the committed attempt. So the state is committed together with
the batch, and an attempt that does not commit changes no state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Json

OUTPUT_MODES = ("append", "update", "complete")
LOCATION = "state/operators"
"""The directory of the state files of the operators, relative to the root of the log."""
_WITH_TIMERS = ("transformWithState", "flatMapGroupsWithState", "applyInPandasWithState")
"""Prefixes of Spark's names of the operators that may have timers in processing time."""
_SCHEMA_PATH = re.compile(r'(?<!\\)"(?:[^"\\]|\\.)*/_stateSchema/')
"""Matches the start of the path of a schema file in the metadata of ``transformWithState``."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
FIELD = "spark"
"""The field of an outcome's ``state`` that contains the :class:`OperatorState`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    Settings of a transform that keeps state across batches.

    The transform receives a streaming DataFrame, and must return one streaming DataFrame. It may use ``withWatermark``, ``groupBy`` with ``window`` or
    ``session_window``, ``dropDuplicates``, ``dropDuplicatesWithinWatermark``, stream-stream joins, ``transformWithState`` and ``transformWithStateInPandas``.
    It must not start a query. The result of a batch is that of a Structured Streaming micro-batch with the same records, except that ``current_timestamp()`` is
    the clock of the attempt.

    :param output_mode: the output mode of Structured Streaming. ``append``: rows that no later record can change, such as closed windows. ``update``: rows that
        the batch changed. ``complete``: all rows of the result, in every batch
    :param partitions: the number of partitions of the state, at least 1. It cannot be changed later. Default: ``spark.sql.shuffle.partitions`` of the first
        batch
    :param late: what a batch does with late rows. ``drop``: Spark drops them, and the count ``late`` is Spark's ``numRowsDroppedByWatermark``. ``fail``: the
        batch fails without retries, and no offset is committed. ``quarantine``: also stores the late rows with the quarantined records of the version. Not for
        session windows, and not for a stateful operator that reads the result of another one
    :param close_after_s: if no source has new records and the newest version was closed this many seconds ago, a run plans a no-data batch. The batch advances
        the watermark to ``close_after_s`` before the time of its plan. Not with ``complete``. ``None``: only records move the watermark
    :param idle_after_s: a ``withWatermark`` whose records come from idle sources no longer holds back the watermark, once it has got no records in the batches
        that were planned in this many seconds. Only with several ``withWatermark`` calls and Spark's policy ``min``. ``None``: it holds back the watermark
        until it gets records
    :param keep_versions: how many of the newest versions can be reprocessed, at least 1. Vacuum deletes the state before older versions
    :raises InvalidError: an argument is not valid
    """

    output_mode: str
    partitions: int | None = None
    late: str = "drop"
    close_after_s: int | None = None
    idle_after_s: int | None = None
    keep_versions: int = 100

    def __post_init__(self) -> None:
        arguments.choice("state.output_mode", self.output_mode, OUTPUT_MODES)
        arguments.choice("state.late", self.late, ("drop", "fail", "quarantine"))
        if self.partitions is not None:
            arguments.integer("state.partitions", self.partitions, least=1)
        if self.close_after_s is not None:
            arguments.integer("state.close_after_s", self.close_after_s, least=1)
            if self.output_mode == "complete":
                raise InvalidError(
                    'state.close_after_s has no effect with output_mode="complete", because no window is ever closed',
                    given=self.close_after_s,
                    accepted='None, or output_mode="append" or "update"',
                )
        if self.idle_after_s is not None:
            arguments.integer("state.idle_after_s", self.idle_after_s, least=1)
        arguments.integer("state.keep_versions", self.keep_versions, least=1)

    @property
    def conditions(self) -> str:
        """The condition of the delivery guarantee as a short label, such as ``late rows dropped``; ``""`` if no row is dropped as late."""
        if self.late != "drop" or self.output_mode == "complete":
            return ""
        return "late rows dropped" + ("" if self.close_after_s is None else ", windows closed by clocks")

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the delivery guarantee, one sentence each."""
        reasons = ["the outcome names the state of its batch, so attempts that are not committed change no state"]
        if self.conditions:
            reasons.append(
                "a stateful operator with a watermark drops rows that are late, and the batch counts them. late='quarantine' stores them, and late='fail' "
                "commits no batch with them"
            )
        if self.close_after_s is not None:
            reasons.append(
                f"after {self.close_after_s} s without records, the watermark follows the clock of the machine that plans. If this clock is ahead by more than "
                "the delay of the records, records become late that another machine would keep"
            )
        return tuple(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """
    A stateful operator in the query plan of the transform.

    :param name: Spark's name of the operator
    :param bytes: the size of the SST files of its state, in bytes
    :param ids: for each partition of the state, the unique ids of its state stores
    :param digests: for each id, the first 16 hexadecimal digits of the sha256 of the snapshot with this id. An outcome needs 19 bytes for each digest, and 39
        for each id. Empty until the attempt has read its snapshots back
    :param metadata: for ``transformWithState``, Spark's metadata of the batch, with the paths of schema files relative to the operator's directory; else ``""``
    """

    name: str
    rows: int
    bytes: int
    ids: tuple[tuple[str, ...], ...]
    digests: tuple[tuple[str, ...], ...] = ()
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """
    The state of all stateful operators after a batch.

    :param root: directory of the state files below ``state/operators/``. Its name is the id of the attempt that created the state, because Spark writes some
        files of the first batch under fixed names
    :param batches: the number of batches that the state includes, which is Spark's id of the next batch
    :param partitions: the number of partitions of each operator's state
    :param columns: source → the columns of the records that the transform receives, as schema JSON in Spark's form. A no-data batch uses them. The
        only source of a pipeline has the name ``""``
    :param settings: the Spark settings that determine the format of the state. Structured Streaming records them for each batch, and so does an outcome. Later
        batches use them, whatever the settings of their session are
    :param operators: the stateful operators, in the order of Spark's operator ids
    :param watermark_ms: the watermark of the batch, in milliseconds since the epoch; 0 if there was none. The next batch drops older records as late
    :param next_watermark_ms: the watermark after the batch, in milliseconds since the epoch. The next batch closes windows that end at or before it
    :param watermarks: the watermark of each ``withWatermark`` of the query plan, in milliseconds since the epoch; ``None`` before its first record
    :param records_at_ms: for each of ``watermarks``, when the newest batch with records of it was planned, in milliseconds since the epoch. Before its first
        record, when the first batch was planned
    :param spark_version: the version of the Spark that wrote the state; ``""`` if it was not recorded
    :param definition: text that describes the stored values of a ready-made transform, such as its keys and functions; ``""`` for other transforms
    """

    root: str
    batches: int
    partitions: int
    columns: Mapping[str, str]
    operators: tuple[Operator, ...]
    watermark_ms: int = 0
    next_watermark_ms: int = 0
    watermarks: tuple[int | None, ...] = field(default=())
    records_at_ms: tuple[int, ...] = field(default=())
    settings: Mapping[str, str] = field(default_factory=dict)
    spark_version: str = ""
    definition: str = ""


def with_schema_files_in(metadata: str, directory: str) -> str:
    """
    Replace the directory in all paths of schema files in Spark's metadata of ``transformWithState``. Spark stores absolute paths, and an outcome relative ones.

    :param directory: URL of the directory of the operator, which contains ``_stateSchema``; ``""``: make the paths relative
    """
    start = json.dumps(f"{directory}/_stateSchema/")[:-1]
    return _SCHEMA_PATH.sub(lambda _: start, metadata)


def operator_state(state: Json) -> OperatorState | None:
    """Return the state of the operators in the field ``state`` of an outcome; ``None`` if it has none."""
    stored = state.get(FIELD) if isinstance(state, Mapping) else None
    if stored is None:
        return None
    parsed: OperatorState = build(OperatorState, stored, "state")
    names = [parsed.root, *(id for operator in parsed.operators for ids in operator.ids for id in ids)]
    if any(not text or set(text) - _PLAIN for text in names):
        raise LogDamagedError(
            "a root or an id in the state of an outcome has other characters than letters, digits, - and _; the state was not read",
            invariant="R6",
            values=[text for text in names if not text or set(text) - _PLAIN],
        )
    return parsed


def watermark_after(state: Json) -> int | None:
    """Return the watermark after a batch, in milliseconds since the epoch; ``None`` if there is no state, or no record had an event time yet."""
    parsed = operator_state(state)
    has_watermark = parsed is not None and any(watermark is not None for watermark in parsed.watermarks)
    return parsed.next_watermark_ms if parsed is not None and has_watermark else None


def applied_watermark(state: Json) -> int | None:
    """
    Return the watermark that a batch has applied, in milliseconds since the epoch; ``None`` if it applied none.

    The rows of windows that end at or before it are written. The next batch writes those of windows up to :func:`watermark_after`.
    """
    parsed = operator_state(state)
    return None if parsed is None else parsed.watermark_ms or None


def chosen_watermark_ms(
    watermarks: Sequence[int | None], records_at_ms: Sequence[int], *, idle_since_ms: int | None, largest: bool
) -> int:
    """
    Return the watermark of several ``withWatermark`` calls: the smallest of those that are not idle. If all are idle, it is the smallest of all.

    Times are in milliseconds since the epoch.

    :param watermarks: ``None`` before the first record, which counts as 0
    :param records_at_ms: for each watermark, when the newest batch with records of it was planned
    :param idle_since_ms: a watermark without records after this time is idle; ``None``: none is
    :param largest: Spark's policy ``max``: return the largest watermark instead
    """
    known = [watermark or 0 for watermark in watermarks]
    if largest:
        return max(known, default=0)
    pairs = zip(known, records_at_ms, strict=True)
    active = [watermark for watermark, at_ms in pairs if idle_since_ms is None or at_ms > idle_since_ms]
    return min(active or known, default=0)


def no_data_watermark_ms(settings: State, last: OperatorState, *, closed_ms: int, now_ms: int) -> int | None:
    """Return the watermark of a no-data batch planned at ``now_ms``; ``None`` if none is due (W29). ``closed_ms``: when the newest version was closed."""
    if settings.output_mode == "complete" or not any(operator.rows for operator in last.operators):
        return None
    has_watermark = any(watermark is not None for watermark in last.watermarks)
    has_timers = any(operator.rows and operator.name.startswith(_WITH_TIMERS) for operator in last.operators)
    if settings.close_after_s is not None:
        clock_watermark_ms = now_ms - settings.close_after_s * 1000
        if closed_ms <= clock_watermark_ms and (
            has_timers or (has_watermark and clock_watermark_ms > last.next_watermark_ms)
        ):
            return max(last.next_watermark_ms, clock_watermark_ms) if has_watermark else last.next_watermark_ms
    return last.next_watermark_ms if last.next_watermark_ms > last.watermark_ms else None


def with_operator_state(state: Json, operators: OperatorState | None) -> Json:
    """Return the field ``state`` of an outcome with the state of the operators replaced by ``operators``; with ``None``, removed."""
    others = {name: value for name, value in (state or {}).items() if name != FIELD}
    return others or None if operators is None else {**others, FIELD: plain(operators)}


def check_same_definition(before: OperatorState | None, definition: str) -> None:
    """
    Check that the definition of a ready-made transform, as in :class:`OperatorState`, is that of the previous batch.

    Comparing the operators is not sufficient: ``sum(a)`` and ``sum(b)`` have the same stateful operators, but different stored values.
    """
    if before is not None and before.definition and definition and before.definition != definition:
        raise InvalidError(
            "the transform differs from the one that created the stored state, so the stored values would have another meaning; nothing became visible",
            before=before.definition,
            now=definition,
            accepted="the former transform, or a fork without state: streamsem fork --at -1",
        )


def check_same_operators(before: OperatorState | None, after: OperatorState) -> None:
    """Check that the transform has the same stateful operators and number of watermarks as in the batch before."""
    if before is None:
        return
    names_before, names_after = ([operator.name for operator in state.operators] for state in (before, after))
    if names_before != names_after or len(before.watermarks) != len(after.watermarks):
        marks = {"watermarks_before": len(before.watermarks), "watermarks_now": len(after.watermarks)}
        refused = different_operators_error(names_before, names_after, **marks)
        raise refused


def different_operators_error(before: list[str], now: list[str], **watermarks: int) -> InvalidError:
    """Return the error for a transform with other stateful operators or watermarks than the stored state has."""
    return InvalidError(
        "the stateful operators or watermarks of the transform differ from those that created the stored state; nothing became visible",
        before=before,
        now=now,
        **watermarks,
        accepted="the former operators and withWatermark calls, or a fork without state: streamsem fork --at -1",
    )


def check_spark_version(before: OperatorState | None, running: str) -> None:
    """Check that the stored state was not written by a newer minor version of Spark than the one that runs."""
    if before is None or not before.spark_version:
        return
    wrote, runs = (tuple(map(int, version.split(".")[:2])) for version in (before.spark_version, running))
    if wrote > runs:
        raise InvalidError(
            "the stored state was written by a newer Spark than the one that runs; nothing became visible",
            written_by=before.spark_version,
            running=running,
            accepted="a Spark that is not older than the state, or a fork without state: streamsem fork --at -1",
        )
