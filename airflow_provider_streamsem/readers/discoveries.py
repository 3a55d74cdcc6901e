"""Checks of the discoveries of a files source: ordinals, pages and the search tree of known files (PROTOCOL.md, 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.protocol import discovery, keys, known, procedures
from airflow_provider_streamsem.protocol.entries import Discovery, FileKey, FoundFile, KnownNode, PageRef


class ReportViolation(Protocol):
    """Callback that records a violation: the broken rule, a description, and the key of the object."""

    def __call__(self, invariant: str, what: str, *, key: str) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryCheck:
    """
    Checks the discoveries of one source.

    :param log: the log, restricted to the keys of the source
    :param prefix: prefix of the source's keys in the log, with a trailing ``/``
    :param guarded: calls a function and returns its result; if it raises an error, records a violation and returns ``None``
    :param report: records a violation
    """

    log: CommitLog
    prefix: str
    guarded: Callable[[Callable[[], Any]], Any]
    report: ReportViolation

    def run(self, newest: int) -> None:
        """
        Check all discoveries of the source.

        Ordinals must be consecutive (D6), and no file may have two ordinals (D1). The search tree must hold exactly the files of the pages (D4).
        """
        last = self._read(newest)
        if last is None:
            return
        key = self.prefix + keys.discovered(newest)
        paged, pages = self._pages(last.pages, key)
        files = [*paged, *last.recent]
        if len({known.key(file) for file in files}) != len(files):
            self.report("D1", "a file has two ordinals", key=key)
        root = KnownNode(ranges=last.known)
        in_tree = self._known(root)
        if not known.in_order(root):
            self.report("D4", "the ranges of the tree of known files are not in order", key=key)
        if in_tree != sorted(map(known.key, paged)) or any(file.mtime_ns >= last.settled_ns for file in paged):
            self.report(
                "D4",
                "the tree of known files and the pages hold different files, or one of these files is not older than `settled_ns`",
                key=key,
            )
        self._ordinals(newest, files, pages)

    def _ordinals(self, newest: int, files: Sequence[FoundFile], pages: set[PageRef]) -> None:
        expected = 0
        for i in range(newest + 1):
            entry = self._read(i)
            if entry is None:
                return
            is_equal = [*entry.recent] == files[entry.paged : entry.end] and pages.issuperset(entry.pages)
            if entry.first != expected or entry.end < expected or not is_equal:
                description = "the ordinals of the discovered files are not consecutive, or differ from those of a later discovery"
                self.report("D6", description, key=self.prefix + keys.discovered(i))
            expected = entry.end

    def _read(self, i: int) -> Discovery | None:
        key = keys.discovered(i)
        stored = self.guarded(lambda: self.log.perform(procedures.read_entry(Discovery, key)) or ())
        if stored == ():
            self.report("I1", "a discovery is missing", key=self.prefix + key)
        return stored[0] if stored else None

    def _pages(self, refs: Sequence[PageRef], key: str) -> tuple[list[FoundFile], set[PageRef]]:
        files: list[FoundFile] = []
        pages = set(refs)
        for ref in refs:
            page = self.guarded(partial(self.log.perform, discovery.read(ref)))
            if page is not None:
                child_files, child_pages = self._pages(page.pages, key)
                files += [*page.files, *child_files]
                pages |= child_pages
                if any(child.level != ref.level - 1 for child in page.pages) or (page.files and ref.level):
                    self.report(
                        "D6",
                        "the level of a page of discovered files is not one below the level of its parent",
                        key=key,
                    )
        return files, pages

    def _known(self, node: KnownNode) -> list[FileKey]:
        file_keys = [*node.files]
        for ref in node.ranges:
            child = self.guarded(partial(self.log.perform, known.read(ref)))
            file_keys += [] if child is None else self._known(child)
        return sorted(file_keys)
