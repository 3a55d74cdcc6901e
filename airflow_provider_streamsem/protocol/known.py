"""
The tree of known files. It contains every file that has an ordinal, and finds the new files of a listing (PROTOCOL.md, D3, D4, D7, D8).

The tree is a search tree by path and fingerprint. Every node may hold files. New files are stored in nodes near the root and moved down in bulk.

A parent references each node below it by a *range*. The range stores a digest of those files, in and below the node, that were listed in the last
comparison. If the same files are listed again, all of them are known, and the comparison does not read the node. So a comparison reads only the nodes whose
listed files changed.

Nodes are content-addressed and immutable. A new tree shares all unchanged nodes with the previous tree.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import codec, invariants, keys
from airflow_provider_streamsem.protocol.entries import FileKey, FoundFile, KnownNode, KnownRange
from airflow_provider_streamsem.protocol.machine import Procedure, create
from airflow_provider_streamsem.protocol.procedures import read_entry

T = TypeVar("T")

NODE_FILES = 512
"""Maximum number of files in one node."""
NODE_RANGES = 32
"""Maximum number of ranges in one node."""
_MODULUS = 2**256


class Listed(NamedTuple):
    """A listed file with its key, and the number that it adds to a digest."""

    key: FileKey
    number: int
    file: FoundFile


@dataclass(slots=True)
class Node:
    """
    A node of the tree in memory. It was read from the store, or is new and not stored yet. :class:`KnownNode` is its stored form.

    :param files: the files in this node → whether each was listed in the last comparison
    :param children: the nodes below this node: ranges whose nodes were not read, or nodes
    :param stored: sha256 of the stored node from which this node was read; ``""`` for a new node
    :param outdated: whether the stored range of this node does not match the current listing. Until a discovery stores a matching range, every comparison
        reads the node
    """

    files: dict[FileKey, bool]
    children: list[Child] = field(default_factory=list)
    stored: str = ""
    outdated: bool = False

    @property
    def first(self) -> FileKey:
        """Return the smallest key in and below the node."""
        return min([*self.files, *(child.first for child in self.children[:1])])


Child: TypeAlias = KnownRange | Node


def fingerprint(file: FoundFile) -> str:
    """Return the identity of a file as 32 hexadecimal digits: a hash of path, size, and ETag or mtime (D1)."""
    return hashlib.sha256(f"{file.path}\0{file.bytes}\0{file.identity}".encode()).hexdigest()[:32]


def key(file: FoundFile) -> FileKey:
    """Return the key of a file in the tree."""
    return file.path, fingerprint(file)


def number(mark: str) -> int:
    """Return the number that a file with this fingerprint adds to a digest: the sha256 of the fingerprint as an integer."""
    return int.from_bytes(hashlib.sha256(mark.encode()).digest(), "big")


def digest(numbers: Iterable[int]) -> int:
    """Return the order-independent digest of files: the sum of their numbers modulo 2^256 (D4)."""
    return sum(numbers) % _MODULUS


def listing(files: Iterable[FoundFile]) -> list[Listed]:
    """Return the files of a listing sorted by key, without duplicates."""
    marked = {key(file): file for file in files}
    return [Listed(at, number(at[1]), marked[at]) for at in sorted(marked)]


def compare(node: Node, listed: Sequence[Listed], settled_ns: int, *, is_partial: bool) -> Procedure[list[Listed]]:
    """
    Return the listed files that are neither in the node nor below it.

    Updates ``node`` in place: records which of its files were listed, and replaces each range whose node was read by that node, which is updated in the same
    way.

    :param listed: listed files, sorted by key
    :param settled_ns: exclusive upper bound of ``mtime_ns`` of the files in the ranges
    :param is_partial: whether other files may exist that are not in ``listed``. Then the listing does not change which files count as listed
    """
    present = {item.key for item in listed if item.key in node.files}
    if not is_partial:
        node.files = {known: known in present for known in node.files}
    rest = [item for item in listed if item.key not in present]
    new: list[Listed] = []
    at = 0
    for position, child in enumerate(node.children):
        assert isinstance(child, KnownRange), "a node is compared once"
        start = bisect_left(rest, child.first, at, key=_key)
        end = bisect_right(rest, child.last, start, key=_key)
        inside = rest[start:end]
        new += rest[at:start]
        at = end
        new_inside = _without_reading(child, inside, settled_ns)
        if new_inside is None:
            node.children[position] = opened = yield from _open(child)
            new_inside = yield from compare(opened, inside, settled_ns, is_partial=is_partial)
            is_same = is_partial or _without_reading(child, _minus(inside, new_inside), settled_ns) is not None
            opened.outdated = not is_same
        new += new_inside
    return new + rest[at:]


def _without_reading(known: KnownRange, inside: Sequence[Listed], settled_ns: int) -> Sequence[Listed] | None:
    """Return ``None`` if the node must be read to find the new files. ``settled_ns`` is the exclusive upper bound of their ``mtime_ns``."""
    if not inside or _is_as_expected(known, inside):
        return []
    fresh = [item for item in inside if item.file.mtime_ns >= settled_ns]
    settled = [item for item in inside if item.file.mtime_ns < settled_ns]
    same = _is_as_expected(known, settled)
    # A known file that was deleted may be listed again with a later mtime, unless the mtime is part of its identity (D7).
    never_known = (same and known.listed == known.files) or all(_has_mtime_identity(item.file) for item in fresh)
    return fresh if never_known and (same or not settled) else None


def _is_as_expected(known: KnownRange, inside: Sequence[Listed]) -> bool:
    return len(inside) == known.listed and digest(item.number for item in inside) == known.digest


def _has_mtime_identity(file: FoundFile) -> bool:
    return file.identity == f"mtime:{file.mtime_ns}"


def _minus(listed: Sequence[Listed], new: Iterable[Listed]) -> list[Listed]:
    new_keys = {item.key for item in new}
    return [item for item in listed if item.key not in new_keys]


def outdated(node: Node) -> int:
    """Return the number of outdated nodes below this node. Every poll reads them until a discovery stores their current ranges."""
    below = [child for child in node.children if isinstance(child, Node)]
    return sum(child.outdated + outdated(child) for child in below)


def insert(root: Node, added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """
    Return the children of the tree's root after inserting the added files. Stores nothing.

    :param added: key of each file → whether it was listed
    """
    children: list[Child] = (yield from _push(root.children, added)) if root.children else _leaves(added)
    while len(children) > NODE_RANGES:
        children = [Node({}, part) for part in _split_evenly(children, NODE_RANGES)]
    return children


def _push(children: Sequence[Child], added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """Insert each file into the child whose range contains its key, or into the child before it. Keys before the first range go to the first child."""
    firsts = [child.first for child in children]
    shares: dict[int, dict[FileKey, bool]] = {}
    for known, was_listed in added.items():
        shares.setdefault(max(bisect_right(firsts, known) - 1, 0), {})[known] = was_listed
    after: list[Child] = []
    for position, child in enumerate(children):
        if position in shares:
            after += yield from _insert((yield from _open(child)), shares[position])
        else:
            after.append(child)
    return after


def _insert(node: Node, added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """Insert files into a node. Returns several nodes if the files do not fit into one."""
    node.files |= added
    if len(node.files) <= NODE_FILES:
        return [node]
    if not node.children:
        return _leaves(node.files)
    return [Node({}, part) for part in _split_evenly((yield from _push(node.children, node.files)), NODE_RANGES)]


def _leaves(files: Mapping[FileKey, bool]) -> list[Child]:
    return [Node(dict(part)) for part in _split_evenly(sorted(files.items()), NODE_FILES)]


def _split_evenly(items: Sequence[T], most: int) -> list[list[T]]:
    """Split a list into as few consecutive parts as possible. Each part has at most ``most`` items, and their lengths differ by at most one."""
    parts = -(-len(items) // most)
    return [list(items[len(items) * n // parts : len(items) * (n + 1) // parts]) for n in range(parts)]


def _open(child: Child) -> Procedure[Node]:
    if isinstance(child, Node):
        return child
    node = yield from read(child)
    files = {known: not child.absent >> bit & 1 for bit, known in enumerate(node.files)}
    return Node(files, list(node.ranges), stored=child.sha256)


def read(known: KnownRange) -> Procedure[KnownNode]:
    """
    Read the node of a range.

    :raises LogDamagedError: the node is missing, has another sha256, is not in order, or does not match the summary in the range
    """
    at = keys.known(known.sha256)
    stored = yield from read_entry(KnownNode, at)
    if stored is None or stored[1] != known.sha256:
        problem = "a node of the tree of known files is missing, or its sha256 differs from its name"
        raise LogDamagedError(problem, invariant="I1", key=at)
    node = stored[0]
    if (
        not (node.files or node.ranges)
        or not in_order(node)
        or summary(node, known.sha256, absent=known.absent) != known
    ):
        problem = "a node of the tree of known files is not in order, or does not match the range of its parent"
        raise LogDamagedError(problem, invariant="D4", key=at)
    return node


def in_order(node: KnownNode) -> bool:
    """Whether the files of a node are sorted and unique, and its ranges are sorted and do not overlap."""
    files_in_order = all(one < other for one, other in pairwise(node.files))
    return files_in_order and all(one.last < other.first for one, other in pairwise(node.ranges))


def store(child: Child) -> Procedure[KnownRange]:
    """Store a node after the nodes below it, and return its range. A child that is already a stored range is returned unchanged."""
    if isinstance(child, KnownRange):
        return child
    ranges = []
    for below in child.children:
        ranges.append((yield from store(below)))
    node = KnownNode(files=tuple(sorted(child.files)), ranges=tuple(ranges))
    encoded = codec.encode(node)
    if encoded.sha256 != child.stored:
        written = yield from create(keys.known(encoded.sha256), encoded.data)
        invariants.check_i1(keys.known(encoded.sha256), written.data, encoded.data)
    return summary(node, encoded.sha256, absent=sum((not child.files[at]) << n for n, at in enumerate(node.files)))


def summary(node: KnownNode, sha256: str, *, absent: int) -> KnownRange:
    """
    Return the range that summarizes a node.

    :param absent: bit i is set if the i-th file of the node was not listed
    """
    own = [number(mark) for n, (_, mark) in enumerate(node.files) if not absent >> n & 1]
    return KnownRange(
        sha256=sha256,
        first=min([*node.files[:1], *(below.first for below in node.ranges[:1])]),
        last=max([*node.files[-1:], *(below.last for below in node.ranges[-1:])]),
        files=len(node.files) + sum(below.files for below in node.ranges),
        listed=len(own) + sum(below.listed for below in node.ranges),
        digest=digest([*own, *(below.digest for below in node.ranges)]),
        absent=absent & (1 << len(node.files)) - 1,
    )


def _key(item: Listed) -> FileKey:
    return item.key
