"""
Inspects the analyzed logical plans of streaming queries.

This module uses non-public names of classic PySpark 4.1 and newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

AGGREGATES = ("Aggregate", "Distinct")
_STATEFUL = (
    *AGGREGATES,
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
)
"""Names of the nodes of logical plans that keep state. A join keeps state only if both sides are streams."""
_NARROW = ("Project", "Filter", "Generate", "SubqueryAlias", "View", "EventTimeWatermark", "Union")
"""The nodes that read their whole input once."""


def stateful_operators(plan: Any) -> Iterator[Any]:
    """Yield the stateful operators of a plan, parents before children."""
    if plan.isStreaming():
        if _keeps_state(plan):
            yield plan
        for child in elements(plan.children()):
            yield from stateful_operators(child)


def streaming_inputs(operator: Any) -> list[Any]:
    """Return the children of an operator that are streams."""
    return [child for child in elements(operator.children()) if child.isStreaming()]


def reads_all_records(plan: Any) -> bool:
    """
    Return whether the plan is certain to read every record of its streams.

    Spark writes the input of a stateful operator to a shuffle, so it reads this input to the end. Below the operators, a limit or a join with other rows may
    stop earlier.
    """
    return _reads_all(plan, is_narrow=True)


def elements(sequence: Any) -> list[Any]:
    """Return the elements of a Scala ``Seq``."""
    return [sequence.apply(index) for index in range(sequence.length())]


def _reads_all(plan: Any, *, is_narrow: bool) -> bool:
    """
    Return whether the plan reads every record of its streams.

    :param is_narrow: whether all nodes between the plan and the next stateful operator above it, or the sink, are narrow
    """
    inputs = streaming_inputs(plan)
    if not inputs:
        return is_narrow
    is_narrow = _keeps_state(plan) or (is_narrow and plan.nodeName() in _NARROW)
    return all(_reads_all(child, is_narrow=is_narrow) for child in inputs)


def _keeps_state(plan: Any) -> bool:
    if plan.nodeName() == "Join":
        return all(child.isStreaming() for child in elements(plan.children()))
    return plan.nodeName() in _STATEFUL
