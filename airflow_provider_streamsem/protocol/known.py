"""
The tree of known files: tells which files of a listing are new, and reads only the nodes whose listed files changed (PROTOCOL.md, D3, D4, D7, D8).

A search tree by path and fingerprint. Every node may hold files of its own: new files wait near the root, and are pushed down in bulk. A range of the
tree stores the digest of those of its files that were listed when it was last compared. Where the same files are listed again, all of them are known,
and the nodes of the range are not read. Nodes are content-addressed and never change: a new tree shares all other nodes with the one before it.
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
"""files that one node holds itself, at most"""
NODE_RANGES = 32
"""ranges that one node names, at most"""
_MODULUS = 2**256


class Listed(NamedTuple):
    """A listed file, its key, and the number by which it counts in a digest."""

    key: FileKey
    number: int
    file: FoundFile


@dataclass(slots=True)
class Opened:
    """
    A node in memory: read, or about to be stored.

    :param files: the node's own files → whether each was listed when the node was last compared
    :param stored: sha256 of the stored node that it was read from, ``""`` where there is none
    :param outdated: the next listing, if nothing changes, differs from the stored range too, so that the node would be read again
    """

    files: dict[FileKey, bool]
    children: list[Child] = field(default_factory=list)
    stored: str = ""
    outdated: bool = False

    @property
    def first(self) -> FileKey:
        """The smallest key of the node and the ranges below it."""
        return min([*self.files, *(child.first for child in self.children[:1])])


Child: TypeAlias = KnownRange | Opened


def fingerprint(file: FoundFile) -> str:
    """Identity of a file: path, size, and ETag or mtime (D1). 32 hexadecimal digits."""
    return hashlib.sha256(f"{file.path}\0{file.bytes}\0{file.identity}".encode()).hexdigest()[:32]


def key(file: FoundFile) -> FileKey:
    """A file's place in the tree."""
    return file.path, fingerprint(file)


def number(mark: str) -> int:
    """What a fingerprint adds to a digest: its sha256."""
    return int.from_bytes(hashlib.sha256(mark.encode()).digest(), "big")


def digest(numbers: Iterable[int]) -> int:
    """Order-independent digest of files: the sum of their numbers modulo 2^256 (D4)."""
    return sum(numbers) % _MODULUS


def listing(files: Iterable[FoundFile]) -> list[Listed]:
    """The files of a listing by key, each identity once."""
    marked = {key(file): file for file in files}
    return [Listed(at, number(at[1]), marked[at]) for at in sorted(marked)]


def compare(node: Opened, listed: Sequence[Listed], settled_ns: int) -> Procedure[list[Listed]]:
    """
    The listed files that the node and the ranges below it do not hold.

    Notes in ``node`` which of its files were listed, and replaces each range that it had to read by the node read, so noted in turn.

    :param listed: by key
    :param settled_ns: every file of the ranges has a smaller ``mtime_ns``
    """
    named = {item.key for item in listed if item.key in node.files}
    node.files = {known: known in named for known in node.files}
    rest = [item for item in listed if item.key not in named]
    new: list[Listed] = []
    at = 0
    for position, child in enumerate(node.children):
        assert isinstance(child, KnownRange), "a node is compared once"
        start = bisect_left(rest, child.first, at, key=_key)
        end = bisect_right(rest, child.last, start, key=_key)
        inside = rest[start:end]
        new += rest[at:start]
        at = end
        found = _without_reading(child, inside, settled_ns)
        if found is None:
            node.children[position] = opened = yield from _open(child)
            found = yield from compare(opened, inside, settled_ns)
            opened.outdated = _without_reading(child, _minus(inside, found), settled_ns) is None
        new += found
    return new + rest[at:]


def _without_reading(known: KnownRange, inside: Sequence[Listed], settled_ns: int) -> Sequence[Listed] | None:
    """Which of the files listed inside a range are new; ``None`` where only its node shows it."""
    if not inside or _is_as_expected(known, inside):
        return []
    fresh = [item for item in inside if item.file.mtime_ns >= settled_ns]
    settled = [item for item in inside if item.file.mtime_ns < settled_ns]
    same = _is_as_expected(known, settled)
    # A file that vanished may come back with a later time, unless the time is part of its identity (D7).
    never_known = (same and known.listed == known.files) or all(_has_its_time(item.file) for item in fresh)
    return fresh if never_known and (same or not settled) else None


def _is_as_expected(known: KnownRange, inside: Sequence[Listed]) -> bool:
    return len(inside) == known.listed and digest(item.number for item in inside) == known.digest


def _has_its_time(file: FoundFile) -> bool:
    return file.identity == f"mtime:{file.mtime_ns}"


def _minus(listed: Sequence[Listed], new: Iterable[Listed]) -> list[Listed]:
    found = {item.key for item in new}
    return [item for item in listed if item.key not in found]


def outdated(node: Opened) -> int:
    """How many nodes below this one every poll would read, until a discovery records what they are now."""
    below = [child for child in node.children if isinstance(child, Opened)]
    return sum(child.outdated + outdated(child) for child in below)


def insert(root: Opened, added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """The children of the root of a tree that holds the added files, too. Nothing is stored yet."""
    children: list[Child] = (yield from _push(root.children, added)) if root.children else _leaves(added)
    while len(children) > NODE_RANGES:
        children = [Opened({}, part) for part in _even(children, NODE_RANGES)]
    return children


def _push(children: Sequence[Child], added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """Give each file to the child in whose range it is, or to the one before the gap in which it is."""
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


def _insert(node: Opened, added: Mapping[FileKey, bool]) -> Procedure[list[Child]]:
    """A node with more files; several where they are too many for one."""
    node.files |= added
    if len(node.files) <= NODE_FILES:
        return [node]
    if not node.children:
        return _leaves(node.files)
    return [Opened({}, part) for part in _even((yield from _push(node.children, node.files)), NODE_RANGES)]


def _leaves(files: Mapping[FileKey, bool]) -> list[Child]:
    return [Opened(dict(part)) for part in _even(sorted(files.items()), NODE_FILES)]


def _even(items: Sequence[T], most: int) -> list[list[T]]:
    """Consecutive parts of nearly the same length, as few as possible, none longer than ``most``."""
    parts = -(-len(items) // most)
    return [list(items[len(items) * n // parts : len(items) * (n + 1) // parts]) for n in range(parts)]


def _open(child: Child) -> Procedure[Opened]:
    if isinstance(child, Opened):
        return child
    node = yield from read(child)
    files = {known: not child.absent >> bit & 1 for bit, known in enumerate(node.files)}
    return Opened(files, list(node.ranges), stored=child.sha256)


def read(known: KnownRange) -> Procedure[KnownNode]:
    """
    The node of a range.

    :raises LogDamagedError: it is missing, differs from its name, is not in order, or is not what the range says of it
    """
    at = keys.known(known.sha256)
    found = yield from read_entry(KnownNode, at)
    if found is None or found[1] != known.sha256:
        what = "a node of the tree of known files is missing or differs from its name"
        raise LogDamagedError(what, invariant="I1", key=at)
    node = found[0]
    if (
        not (node.files or node.ranges)
        or not in_order(node)
        or summary(node, known.sha256, absent=known.absent) != known
    ):
        what = "a node of the tree of known files is not in order, or not what the range above it says"
        raise LogDamagedError(what, invariant="D4", key=at)
    return node


def in_order(node: KnownNode) -> bool:
    """Whether a node holds its files in order, each once, and its ranges in order, none overlapping another."""
    files_in_order = all(one < other for one, other in pairwise(node.files))
    return files_in_order and all(one.last < other.first for one, other in pairwise(node.ranges))


def store(child: Child) -> Procedure[KnownRange]:
    """Store a node, those below it first; what is stored already is named as it is."""
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
    """The range that a node stands for: a function of the node, and of which of its own files were not listed."""
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
