"""
Finds the new files of a listing, and builds the discovery that assigns their ordinals (PROTOCOL.md, 9).

A *discovery* is an entry of the log that assigns ordinals to files. The newest discovery is the root of two data structures. It stores recent files inline.
It references older files by ordinal in pages, and by path in the tree of known files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import codec, invariants, keys, known
from airflow_provider_streamsem.protocol.entries import Discovery, FilePage, FoundFile, PageRef
from airflow_provider_streamsem.protocol.machine import Procedure, create
from airflow_provider_streamsem.protocol.procedures import read_entry

RECENT_FILES = 256
"""Maximum number of files that a discovery stores inline. If there would be more, all inline files move to the pages and the tree."""
PAGE_FILES = 1_000
"""Maximum number of files in one page."""
PAGE_REFS = 32
"""Number of pages of one level that are replaced by one page of the next level."""
OUTDATED_NODES = 8
"""
If more than this many nodes of the tree are outdated, the next discovery is created even without new files (D8). Fewer outdated nodes do not justify a
discovery: if a listing is a moving window, each poll makes about one node outdated.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    Result of comparing a listing with the newest discovery.

    :param new: files without an ordinal, in the order in which they will get one: by mtime, then by path
    :param root: the recent files, and the ranges of the tree. Each range whose node was read is replaced by the node
    """

    new: tuple[FoundFile, ...]
    root: known.Node


def compare(
    newest: Discovery | None, listed: Iterable[FoundFile], *, is_partial: bool = False
) -> Procedure[Comparison]:
    """
    Find the files of a listing that have no ordinal yet (D3, D4, D7). Writes nothing.

    :param newest: the newest discovery; ``None`` before the first
    :param is_partial: whether other files may exist that the listing lacks, because notifications named its files (D9)
    """
    root = known.Node({})
    if newest is not None:
        root = known.Node({known.key(file): True for file in newest.recent}, list(newest.known))
    settled_ns = 0 if newest is None else newest.settled_ns
    new = yield from known.compare(root, known.listing(listed), settled_ns, is_partial=is_partial)
    return Comparison(new=tuple(sorted((item.file for item in new), key=lambda f: (f.mtime_ns, f.path))), root=root)


def extend(
    newest: Discovery | None, compared: Comparison, nonce: str, *, listed_at_ms: int | None = None
) -> Procedure[Discovery | None]:
    """
    Build the next discovery, or return ``None`` if there is nothing to record.

    Stores every page and node that the discovery references. The caller creates the discovery itself (D2). Only a created discovery assigns ordinals. If the
    caller does not create it, or another process creates it first, no entry references its pages and nodes, and they have no effect.

    :param newest: the newest discovery; ``None`` before the first
    :param listed_at_ms: when a complete listing was made, in milliseconds UTC, to record it even if it has no new files; ``None``: do not record it
    """
    if not compared.new and known.outdated(compared.root) <= OUTDATED_NODES and listed_at_ms is None:
        return None
    i, first, settled_ns = 0, 0, 0
    pages: tuple[PageRef, ...] = ()
    children: Sequence[known.Child] = ()
    recent = compared.new
    if newest is not None:
        i, first, settled_ns = newest.i + 1, newest.end, newest.settled_ns
        pages, children = newest.pages, newest.known
        listed_at_ms = newest.listed_at_ms if listed_at_ms is None else listed_at_ms
        recent = (*newest.recent, *compared.new)
    if len(recent) > RECENT_FILES:
        added = {**compared.root.files, **{known.key(file): True for file in compared.new}}
        children = yield from known.insert(compared.root, added)
        pages = yield from _paged(pages, recent)
        settled_ns = max(settled_ns, *(file.mtime_ns + 1 for file in recent))
        recent = ()
    elif known.outdated(compared.root) > OUTDATED_NODES:
        children = compared.root.children
    ranges = []
    for child in children:
        ranges.append((yield from known.store(child)))
    return Discovery(
        i=i,
        first=first,
        recent=recent,
        pages=pages,
        known=tuple(ranges),
        settled_ns=settled_ns,
        listed_at_ms=listed_at_ms,
        nonce=nonce,
    )


def _paged(pages: Sequence[PageRef], files: Sequence[FoundFile]) -> Procedure[tuple[PageRef, ...]]:
    """Append files to the pages. Each sequence of :data:`PAGE_REFS` pages of one level is replaced by one page of the next level."""
    refs = list(pages)
    for at in range(0, len(files), PAGE_FILES):
        part = tuple(files[at : at + PAGE_FILES])
        refs.append((yield from _store(FilePage(files=part), level=0, files=len(part))))
        while len(run := refs[-PAGE_REFS:]) == PAGE_REFS and run[0].level == run[-1].level:
            files_below = sum(ref.files for ref in run)
            above = yield from _store(FilePage(pages=tuple(run)), level=run[0].level + 1, files=files_below)
            refs[-PAGE_REFS:] = [above]
    return tuple(refs)


def _store(page: FilePage, *, level: int, files: int) -> Procedure[PageRef]:
    encoded = codec.encode(page)
    written = yield from create(keys.page(encoded.sha256), encoded.data)
    invariants.check_i1(keys.page(encoded.sha256), written.data, encoded.data)
    return PageRef(sha256=encoded.sha256, level=level, files=files)


def files(pages: Sequence[PageRef], start: int, end: int) -> Procedure[list[FoundFile]]:
    """
    Return the files at positions ``[start, end)`` of the pages. Position 0 is the first file of the first page.

    Reads only pages that overlap this range.

    :raises LogDamagedError: see :func:`read`
    """
    selected: list[FoundFile] = []
    first = 0
    for ref in pages:
        after = first + ref.files
        if first < end and start < after:
            page = yield from read(ref)
            inside = max(start - first, 0), min(end - first, ref.files)
            selected += (yield from files(page.pages, *inside)) if page.pages else page.files[slice(*inside)]
        first = after
    return selected


def read(ref: PageRef) -> Procedure[FilePage]:
    """
    Read a page.

    :raises LogDamagedError: the page is missing, its bytes do not match its sha256, or its number of files differs from the reference
    """
    stored = yield from read_entry(FilePage, keys.page(ref.sha256))
    if stored is None or stored[1] != ref.sha256:
        summary = "a page of discovered files is missing, or its sha256 differs from its name"
        raise LogDamagedError(summary, invariant="I1", key=keys.page(ref.sha256))
    page = stored[0]
    if (page.files and page.pages) or ref.files != len(page.files) + sum(below.files for below in page.pages):
        summary = "a page of discovered files has another number of files than its parent records"
        raise LogDamagedError(summary, invariant="D6", key=keys.page(ref.sha256))
    return page
