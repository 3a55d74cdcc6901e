"""
Finds the rows that Spark dropped as late in a micro-batch.

A stateful operator of Structured Streaming counts the late rows of its input and drops them. This module computes the same input once more, without the
operator, and selects the rows that the operator must have dropped. The columns of such a row are those before the operator, so it has all columns that the
transform has kept.

This module imports pyspark, and uses non-public classes of Spark 4.1 and newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import InvalidError

_AGGREGATES = ("Aggregate", "Distinct")
_STATEFUL = (
    *_AGGREGATES,
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
)
"""Names of the nodes of logical plans that keep state. A join keeps state only if both sides are streams."""
_EVENT_TIME = "spark.watermarkDelayMs"
"""The key in the metadata of a column that ``withWatermark`` has marked."""
MERGES_SESSIONS = "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition"
"""The setting by which Spark merges the session windows of a batch before it drops late rows. Default: false."""
_SESSION = "spark.sessionWindow"
"""The key in the metadata of a column with session windows."""


def check_late_rows_can_be_found(plan: Any, *, merges_sessions: bool) -> None:
    """
    Check that this module can find the late rows of a transform whose result has the analyzed logical plan.

    :param merges_sessions: whether Spark merges the session windows of a batch before it drops late rows (:data:`MERGES_SESSIONS`)
    """
    for operator in _operators(plan):
        inputs = _inputs(operator)
        reason = None
        if any(True for child in inputs for _ in _operators(child)):
            reason = "a stateful operator reads the result of another one"
        elif not all(child.deterministic() for child in inputs):
            reason = (
                "the rows before a stateful operator have random values, and would differ when they are computed again"
            )
        elif merges_sessions and any(
            column.metadata().contains(_SESSION) for child in inputs for column in jvm.elements(child.output())
        ):
            reason = f"the transform uses session windows, which Spark merges before it drops late rows, because {MERGES_SESSIONS} is true"
        if reason is not None:
            summary = 'state.late="quarantine" is not supported for this transform; nothing became visible'
            raise InvalidError(
                summary, reason=reason, operator=operator.nodeName(), accepted='late="drop" or late="fail"'
            )


def late_rows(plan: Any, frame_of: Callable[[Any], DataFrame], watermark_ms: int) -> list[DataFrame]:
    """
    Return the late rows of each input of the stateful operators, as JSON in the column ``raw``.

    :param plan: the analyzed logical plan of the transform's result
    :param frame_of: returns the rows of a streaming logical plan without stateful operators
    :param watermark_ms: a row is late if its event time, or the end of its window, is not after this time
    """
    frames = []
    for operator in _operators(plan):
        for child in _inputs(operator):
            time = _event_time(operator, child)
            if time is not None:
                frame = _with_unique_names(frame_of(child))
                frames.append(_late(frame, frame.columns[time], watermark_ms))
    return frames


def combines_rows(plan: Any) -> bool:
    """Return whether an operator combines the rows of a group before it drops late ones. Spark's count of late rows is then smaller than their number."""
    return any(operator.nodeName() in _AGGREGATES for operator in _operators(plan))


def _operators(plan: Any) -> Iterator[Any]:
    if plan.isStreaming():
        if _keeps_state(plan):
            yield plan
        for child in jvm.elements(plan.children()):
            yield from _operators(child)


def _keeps_state(plan: Any) -> bool:
    if plan.nodeName() == "Join":
        return all(child.isStreaming() for child in jvm.elements(plan.children()))
    return plan.nodeName() in _STATEFUL


def _inputs(operator: Any) -> list[Any]:
    return [child for child in jvm.elements(operator.children()) if child.isStreaming()]


def _event_time(operator: Any, child: Any) -> int | None:
    """Return the index of the column of an input that the operator compares with the watermark: the first one with an event time. ``None``: there is none."""
    output = jvm.elements(child.output())
    keys = None
    if operator.nodeName() == "Aggregate":
        keys = {
            attribute.exprId().id()
            for key in jvm.elements(operator.groupingExpressions())
            for attribute in jvm.elements(key.references().toSeq())
        }
    for index, column in enumerate(output):
        if column.metadata().contains(_EVENT_TIME) and (keys is None or column.exprId().id() in keys):
            return index
    return None


def _with_unique_names(frame: DataFrame) -> DataFrame:
    names: list[str] = []
    for name in frame.columns:
        names.append(name if name not in names else f"{name}_{len(names)}")
    return frame.toDF(*names)


def _late(frame: DataFrame, time: str, watermark_ms: int) -> DataFrame:
    is_window = frame.schema[time].dataType.typeName() == "struct"
    end = F.col(f"{quoted(time)}.end" if is_window else quoted(time))
    late = frame.where(F.unix_micros(end.cast("timestamp")) <= F.lit(watermark_ms * 1000))
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    return late.select(F.to_json(F.struct(*map(quoted, frame.columns)), options).alias("raw"))
