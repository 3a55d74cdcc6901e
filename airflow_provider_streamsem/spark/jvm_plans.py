"""
Plans of classic PySpark; see :class:`airflow_provider_streamsem.spark.evaluation.Plans`.

This module imports pyspark, and uses non-public classes of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.spark.evaluation import Node, Role, nodes

_CATALYST = "org.apache.spark.sql.catalyst"
_CLOCK_RULES = ("ComputeCurrentTime", "SpecialDatetimeValues")
"""Rules of Spark's optimizer that replace clocks by literals: functions such as ``now()``, and text such as ``cast('today' as date)``."""
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("LocalRelation", "OneRowRelation", "Range", "EmptyRelation"), "stored"),
    **dict.fromkeys(("SubqueryAlias", "View", "CollectMetrics"), "alias"),
    **dict.fromkeys(("Project", "Window", "Sort", "Union", "ResolvedHint"), "values"),
    **dict.fromkeys(("Repartition", "RepartitionByExpression", "RebalancePartitions"), "values"),
    **dict.fromkeys(("Aggregate", "Distinct"), "groups"),
}
_DETERMINISTIC = {
    *_ROLES, "LogicalRelation", "Except", "Expand", "Filter", "Generate", "Intersect", "Join", "Sample",
} - {"Window"}  # fmt: skip
"""
The nodes that return the same rows for equal inputs if their expressions are deterministic.

``Window`` is not among them, because it numbers rows with equal values in any order.
"""
_KEEP_PARTITIONS = (
    "Filter",
    "Generate",
    "Project",
    *(name for name, role in _ROLES.items() if role in ("stored", "alias")),
)
_USER_CODE = (
    "PythonUDF",
    "PythonUDAF",
    "PythonUDTF",
    "ScalaUDF",
    "ScalaUDAF",
    "ScalaAggregator",
    "ApplyFunctionExpression",
)
_SUBQUERIES = ("ScalarSubquery", "ListQuery", "Exists", "LateralSubquery", "FunctionTableSubqueryArgumentExpression")
_RANDOM = {
    "Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle", "MonotonicallyIncreasingID", "SparkPartitionID", "InputFileName", "InputFileBlockStart",
    "InputFileBlockLength", "First", "Last", "CollectList", "CollectSet", "ListAgg", "CallMethodViaReflection",
}  # fmt: skip
"""Classes of expressions that are not deterministic. They only name the cause in an error: Spark says whether an expression is deterministic."""
_ORDER_INDEPENDENT = {
    "Count",
    "Min",
    "Max",
    "Sum",
    "Average",
    "BitAndAgg",
    "BitOrAgg",
    "BitXorAgg",
    "HyperLogLogPlusPlus",
}
"""Aggregates that return the same value for any order of rows, apart from sums of floating-point numbers."""
_CLASS = re.compile(r'"class":"([^"]+)"')


@dataclass(slots=True)
class JvmPlans:
    """Reads and changes the plans of DataFrames of classic PySpark."""

    session: SparkSession
    _stored: list[DataFrame] = field(default_factory=list)
    _known: dict[int, list[Any]] = field(default_factory=dict)

    def stored(self, frame: DataFrame) -> DataFrame:
        """Evaluate a DataFrame once."""
        self._stored.append(frame.localCheckpoint(eager=True))
        return self._stored[-1]

    def release(self) -> None:
        """Release the stored rows, also after the JVM has ended."""
        for frame in self._stored:
            with suppress(Exception):
                _analyzed(frame).rdd().unpersist(False)

    def repeatable(self, frame: DataFrame, predicate: str) -> DataFrame:
        """Set the clock of the predicate to one time, and store the frame if the predicate has other doubts."""
        alone = self._doubts_of(_analyzed(frame.select(F.expr(predicate))))
        return self.stored(frame) if alone else self.with_one_clock([frame])[0]

    def with_one_clock(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """
        Replace the clocks in all frames by one time. Spark's rule does this for all clocks of a plan, so all frames become inputs of one plan.

        Also replace references to common table expressions by the expressions, because a part of a plan with such a reference cannot be evaluated alone.
        """
        plans = [_analyzed(frame) for frame in frames]
        union = self._object(f"{_CATALYST}.plans.logical.Union").apply(self._seq(plans), False, False)
        inline = self._object(f"{_CATALYST}.optimizer.InlineCTE")
        is_newer = tuple(map(int, self.session.version.split(".")[:2])) >= (4, 3)
        added = [getattr(inline, "apply$default$3")()] if is_newer else []  # an argument that Spark 4.3 has added
        fixed = jvm.class_of(self.session, f"{_CATALYST}.optimizer.InlineCTE")(True, False, *added).apply(union)
        for rule in _CLOCK_RULES:
            fixed = self._object(f"{_CATALYST}.optimizer.{rule}").apply(fixed)
        return [
            frame if plan.fastEquals(now) else self._frame(now)
            for frame, plan, now in zip(frames, plans, jvm.elements(fixed.children()), strict=True)
        ]

    def tree(self, frame: DataFrame) -> Node:
        """Return the analyzed plan of a DataFrame. A node that computes the same as its only input, such as an alias, is left out."""
        return self._tree(_analyzed(frame))

    def _tree(self, root: Any) -> Node:
        plans, children_of = _breadth_first(root, lambda plan: jvm.elements(plan.children()))
        nodes_of: dict[int, Node] = {}
        for index in reversed(range(len(plans))):
            children = [nodes_of[child] for child in children_of[index]]
            nodes_of[index] = self._node(plans[index], children)
        return nodes_of[0]

    def _node(self, plan: Any, children: list[Node]) -> Node:
        key = self._key(plan)
        if len(children) == 1 and children[0].key == key:
            return children[0]
        name = plan.nodeName()
        is_stored = name == "LogicalRDD" and plan.rdd().isCheckpointed()
        role = "stored" if is_stored else _ROLES.get(name, "rows")
        subqueries = [self._tree(subquery) for subquery in jvm.elements(plan.subqueries())]
        return Node(key=key, role=role, children=children, native=plan, subqueries=subqueries)

    def _key(self, plan: Any) -> tuple[int, int]:
        """Return an equal key for plans that compute the same. Copies of a plan in a self-join have other ids of columns, so the ids are ignored."""
        number = plan.semanticHash()
        same = self._known.setdefault(number, [])
        for index, known in enumerate(same):
            if known.sameResult(plan):
                return number, index
        same.append(plan)
        return number, len(same) - 1

    def frame(self, node: Node, of: DataFrame) -> DataFrame:
        return self._frame(node.native)

    def replaced(self, frame: DataFrame, node: Node, stored: DataFrame) -> DataFrame:
        """Return a frame that reads the stored rows, under the ids of columns that its plan uses."""
        before = _analyzed(frame)
        after = self._replaced(before, node.key, _analyzed(stored))
        return frame if after is before else self._frame(after)

    def _replaced(self, root: Any, key: Hashable, stored: Any) -> Any:
        is_found: list[bool] = []

        def inputs(plan: Any) -> list[Any]:
            is_found.append(self._key(plan) == key)
            return [] if is_found[-1] else jvm.elements(plan.children())

        plans, children_of = _breadth_first(root, inputs)
        after = list(plans)
        for index in reversed(range(len(plans))):
            children = children_of[index]
            if is_found[index]:
                after[index] = self._under_ids_of(plans[index], stored)
            elif any(after[child] is not plans[child] for child in children):
                after[index] = plans[index].withNewChildren(self._seq([after[child] for child in children]))
                after[index].copyTagsFrom(plans[index])
        return after[0]

    def _under_ids_of(self, plan: Any, stored: Any) -> Any:
        """Return the stored rows with the ids of columns that a plan has."""
        wanted = jvm.elements(plan.output())
        if all(map(_is_same_column, wanted, jvm.elements(stored.output()))):
            return stored
        alias = self._object(f"{_CATALYST}.expressions.Alias")
        some = self._object("scala.Option")
        fresh = stored.newInstance()
        columns = [
            alias.apply(b, a.name(), a.exprId(), a.qualifier(), some.apply(a.metadata()), self._seq([]))
            for a, b in zip(wanted, jvm.elements(fresh.output()), strict=True)
        ]
        return self._object(f"{_CATALYST}.plans.logical.Project").apply(self._seq(columns), fresh)

    def doubts(self, node: Node, *, groups_only: bool = False) -> list[str]:
        plan, name = node.native, node.native.nodeName()
        if node.role in ("stored", "alias"):  # an alias may be an observation, whose aggregates do not change the rows
            return []
        if name == "LogicalRelation":
            relation = plan.relation().getClass().getSimpleName()
            return [] if relation == "HadoopFsRelation" else [f"read of {relation}"]
        if name == "Sample" and not all(_keeps_partitions(below) for child in node.children for below in nodes(child)):
            return ["sample"]
        if name == "Aggregate":
            groups = [doubt for each in jvm.elements(plan.groupingExpressions()) for doubt in _expression_doubts(each)]
            if groups_only:
                return groups
            return groups + [
                doubt for each in jvm.elements(plan.aggregateExpressions()) for doubt in _aggregate_doubts(each)
            ]
        if name not in _DETERMINISTIC:
            return [name]
        return self._doubts_of(plan)

    def _doubts_of(self, plan: Any) -> list[str]:
        return [doubt for each in jvm.elements(plan.expressions()) for doubt in _expression_doubts(each)]

    def _frame(self, plan: Any) -> DataFrame:
        dataset = jvm.class_of(self.session, "org.apache.spark.sql.classic.Dataset")
        return DataFrame(dataset.ofRows(jvm.session_of(self.session), plan), self.session)

    def _object(self, name: str) -> Any:
        return getattr(jvm.class_of(self.session, f"{name}$"), "MODULE$")

    def _seq(self, elements: Sequence[Any]) -> Any:
        values = jvm.class_of(self.session, "java.util.ArrayList")()
        for element in elements:
            values.add(element)
        return jvm.class_of(self.session, "scala.jdk.javaapi.CollectionConverters").asScala(values).toIndexedSeq()


def _expression_doubts(expression: Any) -> list[str]:
    """Return the names of operations in an expression whose result may differ in the next action."""
    if expression.nodeName() == "AttributeReference":
        return []
    text = expression.toJSON()
    classes = [name.rpartition(".")[::2] for name in _CLASS.findall(text)]
    found = [
        name
        for package, name in classes
        if name in _USER_CODE
        or name in _SUBQUERIES
        or not package.startswith((f"{_CATALYST}.expressions", f"{_CATALYST}.trees"))
    ]
    if not expression.deterministic() and not found:
        return sorted({name for _, name in classes if name in _RANDOM}) or [expression.prettyName()]
    return sorted(set(found))


def _aggregate_doubts(expression: Any) -> list[str]:
    doubts = _expression_doubts(expression)
    classes = [name.rpartition(".")[::2] for name in _CLASS.findall(expression.toJSON())] if not doubts else []
    aggregates = {name for package, name in classes if package.endswith(".aggregate")} - {
        "AggregateExpression",
        "Complete$",
    }
    is_inexact = expression.dataType().typeName() in ("float", "double") and bool(aggregates & {"Sum", "Average"})
    return doubts + sorted(aggregates - _ORDER_INDEPENDENT) + (["sum of floating-point numbers"] if is_inexact else [])


def _keeps_partitions(node: Node) -> bool:
    """Return whether the partitions of a node have the same rows in the same order in each action, if those of its inputs have."""
    name = node.native.nodeName()
    is_local_sort = name == "Sort" and not getattr(node.native, "global")()
    return node.role == "stored" or name in _KEEP_PARTITIONS or is_local_sort


def _breadth_first(root: Any, inputs: Callable[[Any], list[Any]]) -> tuple[list[Any], list[range]]:
    """Return the plans of a tree, parents before children, and the indices of the children of each. A recursion would fail on plans with 1,000 levels."""
    plans, children_of = [root], []
    for plan in plans:
        children = inputs(plan)
        children_of.append(range(len(plans), len(plans) + len(children)))
        plans += children
    return plans, children_of


def _is_same_column(one: Any, other: Any) -> bool:
    return bool(
        one.exprId().equals(other.exprId()) and one.name() == other.name() and one.metadata().equals(other.metadata())
    )


def _analyzed(frame: DataFrame) -> Any:
    return jvm.execution_of(frame).analyzed()
