"""
Evaluates what several Spark actions read once, so that all sinks of an attempt get rows of one evaluation.

Each sink is written by an action of its own. Spark evaluates a plan again in each action: random values, clocks, user code and the order of rows may then
differ. Without a remedy, a row that a random value sends to one of two sinks can reach both or neither.

A *stored* DataFrame was evaluated into blocks on the executors (``DataFrame.localCheckpoint``). Reading it evaluates nothing. If a block is lost with its
executor, the attempt fails, because Spark cannot compute the block again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pyspark.sql import DataFrame

from airflow_provider_streamsem.errors import DataError

_NAMED = 5

Role = Literal["stored", "alias", "values", "groups", "rows"]
"""
What a node of a plan does with rows:

* ``stored``: a leaf whose rows are the same in each action
* ``alias``: returns its input
* ``values``: computes columns, and keeps each row of its inputs
* ``groups``: returns one row for each group
* ``rows``: may add or drop rows
"""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """
    A node of the plan of a DataFrame.

    :param key: equal for nodes that compute the same, in one plan or in several
    :param subqueries: plans in the expressions of the node, which :meth:`Plans.replaced` cannot replace
    :param native: the node in the form of :class:`Plans`
    """

    key: Hashable
    role: Role
    children: Sequence[Node]
    native: Any
    subqueries: Sequence[Node] = ()


class Plans(Protocol):
    """Reads and changes the plans of DataFrames. :mod:`jvm_plans` implements it for classic PySpark, and :mod:`connect_plans` for Spark Connect."""

    def stored(self, frame: DataFrame) -> DataFrame:
        """Evaluate a DataFrame once, which completes the observations in its plan, and return a DataFrame that reads the stored rows."""
        ...

    def repeatable(self, frame: DataFrame, predicate: str) -> DataFrame:
        """
        Return a frame that has the values of a predicate, given as SQL, so that they are the same in each action.

        The clock of the predicate is set to one time. If it is not certain that the other expressions of the predicate are deterministic, the frame is stored.
        """
        ...

    def with_one_clock(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """Replace the clocks of Spark in all frames by one time, if that is possible."""
        ...

    def tree(self, frame: DataFrame) -> Node:
        """Return the plan of a DataFrame."""
        ...

    def frame(self, node: Node, of: DataFrame) -> DataFrame:
        """Return the rows of a node in the plan of a DataFrame."""
        ...

    def replaced(self, frame: DataFrame, node: Node, stored: DataFrame) -> DataFrame:
        """Return a frame that reads a stored DataFrame wherever its plan computes the same as the node."""
        ...

    def doubts(self, node: Node, *, groups_only: bool = False) -> list[str]:
        """
        Return the names of operations of a node whose result may differ in the next action. With ``groups_only``, only of those that determine the groups.
        """
        ...

    def release(self) -> None:
        """Release the stored rows."""
        ...


def consistent(frames: Mapping[str, DataFrame], plans: Plans, transform_name: str) -> dict[str, DataFrame]:
    """
    Return the frames of several sinks, by sink, so that writing them in several actions gives the rows of one evaluation.

    A DataFrame that the frames share is stored. All Spark clocks have one time, if that is possible. At most one frame may then have an operation that selects
    rows and may give another result in the next action: it runs only once.
    """
    fixed, trees, stored = _with_stored_parts(frames, plans, lambda node: not _is_stored(node))
    _check(trees, stored, plans, transform_name)
    return fixed


def consistent_alone(frame: DataFrame, plans: Plans) -> DataFrame:
    """
    Return the frame of the only sink so that its plan gets rows of one evaluation.

    Spark evaluates a DataFrame twice if a plan reads it twice, as in a union of two filters. It is stored if the second result may differ.
    """
    doubtful = lambda node: any(plans.doubts(below) for below in nodes(node))  # noqa: E731
    fixed, _, _ = _with_stored_parts({"": frame}, plans, doubtful)
    return fixed[""]


def _with_stored_parts(
    frames: Mapping[str, DataFrame], plans: Plans, is_stored_if_shared: Callable[[Node], bool]
) -> tuple[dict[str, DataFrame], dict[str, Node], set[Hashable]]:
    """Return name → frame, name → its plan, and the keys of the nodes that the plans had in place of stored rows."""
    fixed = dict(zip(frames, plans.with_one_clock(list(frames.values())), strict=True))
    stored: set[Hashable] = set()
    while True:
        trees = {name: plans.tree(frame) for name, frame in fixed.items()}
        shared = _lowest_shared(trees.values(), is_stored_if_shared)
        if shared is None:
            return fixed, trees, stored
        name, node = next(
            (name, node) for name, tree in trees.items() for node in nodes(tree) if node.key == shared.key
        )
        rows = plans.stored(plans.frame(node, fixed[name]))
        stored.add(node.key)
        fixed = {name: plans.replaced(frame, node, rows) for name, frame in fixed.items()}


def _check(trees: Mapping[str, Node], stored: set[Hashable], plans: Plans, transform_name: str) -> None:
    """Check that the frames select rows of one evaluation. ``stored`` are the keys of the nodes that were replaced by stored rows."""
    doubts = {name: found for name, tree in trees.items() if (found := _selection_doubts(tree, plans))}
    read_again = [name for name, tree in trees.items() if stored & {node.key for node in _nodes_of_subqueries(tree)}]
    if len(doubts) < 2 and not read_again:
        return
    found = sorted({operation for name in doubts for operation in doubts[name]})
    raise DataError(
        "the frames of several sinks select rows by operations that Spark evaluates for each sink, so a row could reach two sinks or none; "
        "nothing became visible",
        sinks=sorted(doubts.keys() | set(read_again)),
        operations=found[:_NAMED],
        **({"transform": transform_name} if transform_name else {}),
    ).advising(
        "compute these operations in one DataFrame, and derive the DataFrames of the sinks from it: add a column with "
        "`common = frame.withColumn(...)`, and select rows by it, as in `common.where(...)`."
    )


def _lowest_shared(trees: Iterable[Node], is_stored_if_shared: Callable[[Node], bool]) -> Node | None:
    """Return a node that is the input of several nodes, or the plan of several sinks, and below which there is no other one; ``None`` if there is none."""
    uses: Counter[Hashable] = Counter()
    by_key: dict[Hashable, Node] = {}
    stack = list(trees)
    while stack:
        node = stack.pop()
        uses[node.key] += 1
        if node.key not in by_key:
            by_key[node.key] = node
            stack += node.children
    shared = {key for key, count in uses.items() if count > 1 and is_stored_if_shared(by_key[key])}
    for key in shared:
        below = {node.key for child in by_key[key].children for node in nodes(child)}
        if not below & shared:
            return by_key[key]
    return None


def _is_stored(node: Node) -> bool:
    return node.role == "stored" or (node.role == "alias" and all(map(_is_stored, node.children)))


def _selection_doubts(tree: Node, plans: Plans) -> list[str]:
    """Return the operations by which a plan selects rows, and whose result may differ in the next action. Operations that only compute columns are left out."""
    doubts: list[str] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if node.role in ("alias", "values"):
            stack += node.children
            continue
        doubts += plans.doubts(node, groups_only=node.role == "groups")
        doubts += [doubt for child in node.children for below in nodes(child) for doubt in plans.doubts(below)]
    return doubts


def nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes of a plan without the plans in expressions."""
    stack = [node]
    while stack:
        stack += (node := stack.pop()).children
        yield node


def _nodes_of_subqueries(tree: Node) -> Iterator[Node]:
    for node in nodes(tree):
        for subquery in node.subqueries:
            yield from nodes(subquery)
            yield from _nodes_of_subqueries(subquery)
