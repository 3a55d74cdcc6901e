"""
Plans of Spark Connect; see :class:`airflow_provider_streamsem.spark.evaluation.Plans`.

The client has the plan of a DataFrame as a message of the Spark Connect protocol. The server analyzes it again for each action.

This module imports pyspark. It uses non-public names of the client, as does :mod:`airflow_provider_streamsem.spark.remote`.
:data:`airflow_provider_streamsem.spark.versions.TESTED` lists the versions of Spark that have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.plan import Checkpoint, LogicalPlan
from pyspark.sql.connect.proto import Expression, Relation

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark.evaluation import Node, Role, nodes

_ROLES: dict[str, Role] = {
    **dict.fromkeys(
        ("cached_remote_relation", "local_relation", "cached_local_relation", "chunked_cached_local_relation", "range"), "stored"
    ),
    **dict.fromkeys(("subquery_alias", "collect_metrics"), "alias"),
    **dict.fromkeys(("project", "with_columns", "with_columns_renamed", "drop", "to_df", "to_schema", "sort", "hint"), "values"),
    **dict.fromkeys(("repartition", "repartition_by_expression", "fill_na", "replace"), "values"),
    "aggregate": "groups",
}  # fmt: skip
_DETERMINISTIC = {
    *_ROLES,
    "filter",
    "join",
    "set_op",
    "deduplicate",
    "sample",
    "drop_na",
    "unpivot",
    "with_relations",
} - {"aggregate"}
_KEEP_PARTITIONS = {name for name, role in _ROLES.items() if role != "groups"} - {
    "repartition",
    "repartition_by_expression",
} | {"filter", "drop_na"}
_GENERATORS = {
    "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple", "variant_explode", "variant_explode_outer",
}  # fmt: skip
NOT_DETERMINISTIC = {
    # random values, and values that depend on the partition of a row
    "rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "aes_encrypt", "try_aes_encrypt", "monotonically_increasing_id", "spark_partition_id",
    "input_file_name", "input_file_block_start", "input_file_block_length",
    # clocks
    "curdate", "current_date", "current_time", "current_timestamp", "localtimestamp", "now",
    # code that Spark cannot see, and the state of the session
    "java_method", "reflect", "try_reflect", "python_worker_logs", "session_user", "current_user", "user",
    # values that depend on the order of rows
    "any_value", "array_agg", "collect_list", "collect_set", "first", "first_value", "last", "last_value", "listagg", "string_agg", "max_by", "min_by",
    "mode", "nth_value", "row_number", "ntile", "lag", "lead", "histogram_numeric", "approx_percentile", "percentile_approx",
}  # fmt: skip
"""Functions of Spark that may return another value in the next action."""
_CLOCK_TEXTS = {"now", "today", "tomorrow", "yesterday"}
_SQL_WORDS = {
    "and", "or", "not", "in", "is", "between", "case", "when", "then", "else", "end", "like", "ilike", "rlike", "regexp", "any", "all", "some", "escape",
    "from",    "as", "distinct", "cast", "try_cast", "interval", "decimal", "dec", "numeric", "char", "varchar", "character", "div", "extract", "trim", "both",
    "leading",    "trailing", "substring", "position", "overlay", "struct", "array", "map",
}  # fmt: skip
_TOKEN = re.compile(
    r"""`(?:[^`]|``)*`|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[^\W\d]\w*)(?P<call>\s*\((?P<empty>\s*\))?)?""",
    re.DOTALL,
)


@dataclass(slots=True)
class ConnectPlans:
    """Reads and changes the plans of DataFrames of Spark Connect."""

    session: SparkSession
    _stored: list[DataFrame] = field(default_factory=list)
    _functions: frozenset[str] | None = None

    def stored(self, frame: DataFrame) -> DataFrame:
        """Evaluate a DataFrame once on the server. ``localCheckpoint`` of the client would not complete the observations in the plan."""
        inner: Any = frame
        client, plan = self._client, inner._plan
        command = Checkpoint(child=plan, local=True, eager=True).command(client)
        _, properties, _ = client.execute_command(command, plan.observations)
        self._stored.append(properties["checkpoint_command_result"])
        return self._stored[-1]

    def release(self) -> None:
        """Release the stored rows: the server removes them when the client has no DataFrame of them."""
        self._stored.clear()

    def repeatable(self, frame: DataFrame, predicate: str) -> DataFrame:
        """Store the frame if the predicate calls anything but deterministic functions of Spark. The client cannot set the clock of the server."""
        return self.stored(frame) if self._sql_doubts(predicate) else frame

    def with_one_clock(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """Return the frames unchanged. A client cannot set the clock of the server, so a clock is an operation with doubts."""
        return list(frames)

    def tree(self, frame: DataFrame) -> Node:
        """Return the plan of a DataFrame, as the client sends it."""
        inner: Any = frame
        return _tree(inner._plan.plan(self._client))

    def frame(self, node: Node, of: DataFrame) -> DataFrame:
        return self._frame(node.native, of)

    def replaced(self, frame: DataFrame, node: Node, stored: DataFrame) -> DataFrame:
        """
        Return a frame that reads the stored rows. Refuses an expression that refers to a column by a DataFrame below the stored one, which the plan then lacks.
        """
        inner: Any = frame
        rows: Any = stored
        before = inner._plan.plan(self._client)
        after = Relation()
        after.CopyFrom(before)
        if not _replace(after, node.key, rows._plan.plan(self._client)):
            return frame
        ids = [{relation.common.plan_id for relation in _relations(plan)} for plan in (before, after)]
        missing = set(_referenced(after)) & ids[0] - ids[1]
        if missing:
            raise DataError(
                "the transform refers to a column by a DataFrame that Spark Connect evaluates once for several sinks"
            ).advising('refer to columns by name, as in `F.col("id")`, instead of by a DataFrame, as in `frame.id`.')
        return self._frame(after, frame)

    def doubts(self, node: Node, *, groups_only: bool = False) -> list[str]:
        relation = node.native
        name = relation.WhichOneof("rel_type") or "unknown"
        if node.role in ("stored", "alias"):  # an alias may be an observation, whose aggregates do not change the rows
            return []
        if name == "aggregate" and groups_only and not relation.aggregate.HasField("pivot"):
            return [
                doubt
                for expression in relation.aggregate.grouping_expressions
                for doubt in self._expression_doubts(expression)
            ]
        if name == "deduplicate" and not relation.deduplicate.all_columns_as_keys:
            return ["dropDuplicates"]
        if name == "sample" and not all(_keeps_partitions(below) for child in node.children for below in nodes(child)):
            return ["sample"]
        if name not in _DETERMINISTIC:
            return [name]
        return [doubt for message in _expressions(relation) for doubt in self._expression_doubts(message)]

    def _expression_doubts(self, expression: Expression) -> list[str]:
        doubts: list[str] = []
        for each in _with_nested(expression):
            kind = each.WhichOneof("expr_type")
            if kind == "unresolved_function":
                doubts += self._function_doubts(
                    each.unresolved_function.function_name, has_arguments=bool(each.unresolved_function.arguments)
                )
            elif kind == "call_function":
                doubts += self._function_doubts(
                    each.call_function.function_name, has_arguments=bool(each.call_function.arguments)
                )
            elif kind == "expression_string":
                doubts += self._sql_doubts(each.expression_string.expression)
            elif kind == "common_inline_user_defined_function":
                doubts.append(each.common_inline_user_defined_function.function_name)
            elif kind == "literal" and each.literal.string.strip().lower() in _CLOCK_TEXTS:
                doubts.append(each.literal.string)
            elif kind in ("window", "typed_aggregate_expression", "merge_action", "extension"):
                doubts.append(kind)
        return doubts

    def _function_doubts(self, name: str, *, has_arguments: bool = True) -> list[str]:
        """Return the name of a function if it may return another value in the next action."""
        lower = name.lower()
        is_clock = lower == "unix_timestamp" and not has_arguments
        return [name] if is_clock or lower in NOT_DETERMINISTIC or lower not in self._functions_of_spark() else []

    def _sql_doubts(self, sql: str) -> list[str]:
        """Return the names of functions in SQL that may return another value in the next action. Any text that is not certain to have none gives a doubt."""
        doubts = []
        for token in _TOKEN.finditer(sql):
            if token["text"] and token["text"][1:-1].strip().lower() in _CLOCK_TEXTS:
                doubts.append(token["text"][1:-1])
            word = (token["word"] or "").lower()
            if word in NOT_DETERMINISTIC or word in ("select", "over") or (token["call"] and word not in _SQL_WORDS):
                doubts += (
                    [word]
                    if word in ("select", "over")
                    else self._function_doubts(word, has_arguments=not token["empty"])
                )
        return doubts

    def _functions_of_spark(self) -> frozenset[str]:
        """Return the names of the server's functions, without those that the session replaces by its own."""
        if self._functions is None:
            names = [
                {row[0].lower() for row in self.session.sql(f"SHOW {kind} FUNCTIONS").collect()}
                for kind in ("SYSTEM", "USER")
            ]
            self._functions = frozenset(names[0] - names[1] | {"isnull", "isnotnull", "when"})
        return self._functions

    @property
    def _client(self) -> Any:
        inner: Any = self.session
        return inner.client

    def _frame(self, relation: Relation, of: DataFrame) -> DataFrame:
        inner: Any = of
        return type(inner)(_Given(relation, inner._plan), inner._session)


class _Given(LogicalPlan):  # type: ignore[misc]
    """A plan that is a message already. It has the observations of another plan."""

    def __init__(self, relation: Relation, of: LogicalPlan) -> None:
        super().__init__(None)
        self._relation, self._of = relation, of

    def plan(self, session: Any) -> Relation:
        return self._relation

    @property
    def observations(self) -> Any:
        return self._of.observations


def _tree(root: Relation) -> Node:
    relations = [root]
    inputs_of = []
    for relation in relations:
        inputs = list(_inputs(relation))
        inputs_of.append(range(len(relations), len(relations) + len(inputs)))
        relations += inputs
    nodes_of: dict[int, Node] = {}
    for index in reversed(range(len(relations))):
        nodes_of[index] = _node(relations[index], [nodes_of[each] for each in inputs_of[index]])
    return nodes_of[0]


def _node(relation: Relation, children: list[Node]) -> Node:
    name = relation.WhichOneof("rel_type") or ""
    role = _ROLES.get(name, "rows")
    if role == "values" and any(word in _GENERATORS for word in _called(relation)):
        role = "rows"
    if name == "set_op" and relation.set_op.set_op_type == relation.set_op.SET_OP_TYPE_UNION and relation.set_op.is_all:
        role = "values"
    return Node(key=relation.common.plan_id, role=role, children=children, native=relation)


def _messages(message: Any) -> Iterator[Any]:
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            yield from (each for each in value.values() if hasattr(each, "ListFields"))
        elif hasattr(value, "ListFields"):
            yield value
        else:
            yield from value


def _inputs(message: Any) -> Iterator[Relation]:
    """Yield the relations that a relation reads, those in its subqueries included."""
    for each in _messages(message):
        if isinstance(each, Relation):
            yield each
        else:
            yield from _inputs(each)


def _expressions(message: Any) -> Iterator[Expression]:
    """Yield the expressions of a relation, without those of its inputs."""
    for each in _messages(message):
        if isinstance(each, Expression):
            yield each
        elif not isinstance(each, Relation):
            yield from _expressions(each)


def _with_nested(expression: Expression) -> Iterator[Expression]:
    yield expression
    for each in _expressions(expression):
        yield from _with_nested(each)


def _called(relation: Relation) -> Iterator[str]:
    for outer in _expressions(relation):
        for each in _with_nested(outer):
            kind = each.WhichOneof("expr_type")
            if kind == "unresolved_function":
                yield each.unresolved_function.function_name.lower()
            elif kind == "call_function":
                yield each.call_function.function_name.lower()
            elif kind == "expression_string":
                yield from re.findall(r"\w+", each.expression_string.expression.lower())


def _replace(root: Relation, key: Any, stored: Relation) -> bool:
    found = [relation for relation in _relations(root) if relation.common.plan_id == key]
    for relation in found:
        relation.CopyFrom(stored)
        relation.common.plan_id = key
    return bool(found)


def _relations(root: Relation) -> Iterator[Relation]:
    stack = [root]
    while stack:
        relation = stack.pop()
        stack += _inputs(relation)
        yield relation


def _referenced(root: Relation) -> Iterator[int]:
    """Yield the plan ids of DataFrames by which expressions refer to columns."""
    for relation in _relations(root):
        for outer in _expressions(relation):
            for each in _with_nested(outer):
                kind = each.WhichOneof("expr_type")
                if kind in ("unresolved_attribute", "unresolved_star", "unresolved_regex") and getattr(
                    each, kind
                ).HasField("plan_id"):
                    yield getattr(each, kind).plan_id


def _keeps_partitions(node: Node) -> bool:
    """Return whether the partitions of a node have the same rows in the same order in each action, if those of its inputs have."""
    name = node.native.WhichOneof("rel_type")
    return name in _KEEP_PARTITIONS and (name != "sort" or not node.native.sort.is_global)
