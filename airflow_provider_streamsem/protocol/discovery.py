"""
Which files of a listing are new (PROTOCOL.md, 9). Pure.

The common case needs only the newest discovery, however many files were seen before: below the settled bound the digest of what is listed equals the one
that is stored, and at or above it every known file is named. In any other case the whole seen set is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_streamsem.protocol.entries import Discovery, FoundFile

FILES_PER_ENTRY = 1_000
EDGE_FILES = 256
LONGEST_EDGE = 4_096
_MODULUS = 2**256


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """
    What a listing adds to what is known.

    :param new: files without an ordinal, in the order in which they get theirs
    :param known: fingerprint → ``mtime_ns`` of known files: all of them where ``whole``, else all that are not below the newest discovery's bound
    :param vanished: known files that were not listed, or at least 1 where only their existence is known
    """

    new: tuple[FoundFile, ...]
    known: Mapping[str, int]
    whole: bool
    vanished: int


def fingerprint(file: FoundFile) -> str:
    """Identity of a file: path, size, and ETag or mtime (D1). 32 hexadecimal digits."""
    return hashlib.sha256(f"{file.path}\0{file.bytes}\0{file.identity}".encode()).hexdigest()[:32]


def digest(fingerprints: Iterable[str]) -> tuple[str, int]:
    """Order-independent digest and count: the sum of the sha256 values modulo 2^256 (D3)."""
    total, count = 0, 0
    for item in fingerprints:
        total, count = total + int.from_bytes(hashlib.sha256(item.encode()).digest(), "big"), count + 1
    return f"{total % _MODULUS:064x}", count


def news(newest: Discovery | None, listed: Sequence[FoundFile]) -> News | None:
    """What is new, from the newest discovery alone; ``None`` where only the whole seen set can tell (D4)."""
    if newest is None:
        return News(new=_ordered(listed), known={}, whole=True, vanished=0)
    if newest.settled_ns < 0:
        return None
    below = (fingerprint(f) for f in listed if f.mtime_ns < newest.settled_ns)
    if digest(below) != (newest.settled_digest, newest.settled_count):
        return None
    above = {fingerprint(f): f for f in listed if f.mtime_ns >= newest.settled_ns}
    new = [file for mark, file in above.items() if mark not in newest.edge]
    # An ETag says nothing of time: a file that vanished and came back as it was looks new here.
    if newest.vanished and any(file.identity.startswith("etag:") for file in new):
        return None
    gone = any(mark not in above for mark in newest.edge)
    return News(new=_ordered(new), known=newest.edge, whole=False, vanished=max(newest.vanished, int(gone)))


def news_by_seen_set(seen: Mapping[str, int], listed: Sequence[FoundFile]) -> News:
    """What is new, from the fingerprint and ``mtime_ns`` of every file ever seen (D4)."""
    marks = {fingerprint(f): f for f in listed}
    new = _ordered([f for mark, f in marks.items() if mark not in seen])
    return News(new=new, known=seen, whole=True, vanished=sum(mark not in marks for mark in seen))


def _ordered(files: Iterable[FoundFile]) -> tuple[FoundFile, ...]:
    return tuple(sorted(files, key=lambda f: (f.mtime_ns, f.path)))


def entries(newest: Discovery | None, listed: Sequence[FoundFile], found: News, nonce: str) -> list[Discovery]:
    """
    The discoveries to create, in order; empty where nothing would change.

    Only the last describes the whole listing: until it is there, whoever comes next asks for the seen set.
    """
    if newest is None and not found.new:
        return []
    bound, total, count, edge = settled = _settled(newest, listed, found)
    if newest is not None and not found.new and (*settled, found.vanished) == _settled_of(newest):
        return []
    i, first = (0, 0) if newest is None else (newest.i + 1, newest.end)
    parts = [found.new[at : at + FILES_PER_ENTRY] for at in range(0, len(found.new), FILES_PER_ENTRY)] or [()]
    made = []
    for part in parts[:-1]:
        made.append(Discovery(i=i, first=first, files=part, nonce=nonce))
        i, first = i + 1, first + len(part)
    last = Discovery(
        i=i,
        first=first,
        files=parts[-1],
        settled_ns=bound,
        settled_digest=total,
        settled_count=count,
        edge=edge,
        vanished=found.vanished,
        nonce=nonce,
    )
    return [*made, last]


def _settled_of(entry: Discovery) -> tuple[int, str, int, dict[str, int], int]:
    return entry.settled_ns, entry.settled_digest, entry.settled_count, dict(entry.edge), entry.vanished


def _settled(
    newest: Discovery | None, listed: Sequence[FoundFile], found: News
) -> tuple[int, str, int, dict[str, int]]:
    """
    Bound, digest and count below it, and every known file at or above it, listed or not.

    Where not the whole seen set is at hand, the bound never goes back: of what lies between a lower bound and the old one, only the listed files are known.
    """
    known = {**found.known, **{fingerprint(f): f.mtime_ns for f in listed}}
    times = sorted(known.values(), reverse=True)
    bound = times[EDGE_FILES - 1] if len(times) >= EDGE_FILES else 0
    if newest is not None and not found.whole:
        bound = max(bound, newest.settled_ns)
    edge = {mark: time for mark, time in known.items() if time >= bound}
    if len(edge) > LONGEST_EDGE:
        bound, edge = times[0] + 1, {}
    total, count = digest(fingerprint(f) for f in listed if f.mtime_ns < bound)
    return bound, total, count, edge
