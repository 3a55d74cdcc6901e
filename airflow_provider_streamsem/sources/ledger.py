"""The log of discovered files: gives files ordinals, and finds files by ordinal (PROTOCOL.md, 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import discovery, keys, procedures
from airflow_provider_streamsem.protocol.codec import decode
from airflow_provider_streamsem.protocol.entries import Discovery, FoundFile

BLOCK_FILES = 1_000
"""ordinals that are read at once"""


class Ledger:
    """
    The discovered files of one log. It keeps the newest discovery that this process has read.

    :param newest_hint: number of the newest discovery that is known to exist; -1: ask a listing
    """

    def __init__(self, log: CommitLog, newest_hint: int = -1) -> None:
        self._log = log
        self._newest: Discovery | None = None
        self._newest_hint = newest_hint
        self._kept: tuple[int, list[FoundFile]] = (0, [])

    def newest(self) -> Discovery | None:
        """The newest discovery that is known; ``None`` before the first. A later one of another process is found by :meth:`add` and :meth:`files`."""
        if self._newest is None:
            if self._newest_hint < 0:
                self._newest_hint = self._listed()
            if self._newest_hint >= 0:
                self._newest = self._entry(self._newest_hint)
        return self._newest

    def unseen(self, listed: Sequence[FoundFile]) -> tuple[FoundFile, ...]:
        """The files of a listing without an ordinal, in the order in which they would get theirs. Writes nothing."""
        return self._log.perform(discovery.compare(self.newest(), listed)).new

    def add(self, listed: Sequence[FoundFile]) -> int | None:
        """
        Give ordinals to the new files of a listing; returns the next ordinal to give.

        ``None``: another discoverer was first. Its discovery is known now. Do: list again, because this listing may be older than that discovery (D2).
        """
        newest = self.newest()
        compared = self._log.perform(discovery.compare(newest, listed))
        made = self._log.perform(discovery.extend(newest, compared, self._log.clock.new_id()))
        if made is None:
            return 0 if newest is None else newest.end
        return made.end if self._create(made) else None

    def files(self, start: int, end: int) -> Iterator[FoundFile]:
        """
        The files with ordinals ``[start, end)``, in order; reads as many as are asked for, and few more.

        :raises LogDamagedError: no discovery gave one of these ordinals
        """
        if start >= end:
            return
        newest = self.newest()
        if newest is None or newest.end < end:
            newest = self._reaching(end)
        while start < end:
            first, block = self._block(newest, start)
            yield from block[start - first : end - first]
            start = first + len(block)

    def _block(self, newest: Discovery, start: int) -> tuple[int, list[FoundFile]]:
        """Files with consecutive ordinals that hold ``start``, and the ordinal of the first; the last block is kept for the next batch of a drain."""
        first, kept = self._kept
        if not first <= start < first + len(kept):
            end = min(start + BLOCK_FILES, newest.end)
            found = self._log.perform(discovery.files(newest.pages, start, end))
            found += newest.recent[max(start - newest.paged, 0) : max(end - newest.paged, 0)]
            self._kept = start, found
        return self._kept

    def _reaching(self, end: int) -> Discovery:
        """A discovery that knows all ordinals below ``end``: the newest listed one, or one that the listing does not show yet."""
        i = max(self._listed(), self._newest_hint, 0)
        self._newest = self._entry(i)
        while self._newest.end < end:
            i += 1
            self._newest = self._entry(i)
        return self._newest

    def _create(self, entry: Discovery) -> bool:
        key = keys.discovered(entry.i)
        written = self._log.perform(procedures.create_entry(key, entry))
        if written.mine:
            self._newest = entry
        else:
            newer = self._listed()
            self._newest = self._entry(newer) if newer > entry.i else decode(Discovery, key, written.data)
        return written.mine

    def _listed(self) -> int:
        """Number of the newest discovery that a listing shows; -1 where it shows none."""
        numbers = map(keys.parse_newest_first, self._log.list_keys(keys.DISCOVERED, 1))
        return max((i for i in numbers if i is not None), default=-1)

    def _entry(self, i: int) -> Discovery:
        found = self._log.perform(procedures.read_entry(Discovery, keys.discovered(i)))
        if found is None:
            raise LogDamagedError("a discovery is missing", invariant="I1", key=keys.discovered(i))
        return found[0]
