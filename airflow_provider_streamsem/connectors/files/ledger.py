"""Assigns ordinals to discovered files in the log, and finds files by ordinal (PROTOCOL.md, 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import discovery, keys, procedures
from airflow_provider_streamsem.protocol.codec import decode
from airflow_provider_streamsem.protocol.entries import Discovery, FoundFile

BLOCK_FILES = 1_000
"""Maximum number of ordinals in one read of the pages."""


class Ledger:
    """The discovered files of one source in its section of the log. ``newest_hint`` is the number of a known discovery; -1: list the log."""

    def __init__(self, log: CommitLog, newest_hint: int = -1) -> None:
        self._log = log
        self._newest: Discovery | None = None
        self._newest_hint = newest_hint
        self._cached_block: tuple[int, list[FoundFile]] = (0, [])

    def newest(self) -> Discovery | None:
        """Return the newest discovery that this process knows. :meth:`add` and :meth:`files` detect a newer one of another process."""
        if self._newest is None:
            if self._newest_hint < 0:
                self._newest_hint = self._newest_listed()
            if self._newest_hint >= 0:
                self._newest = self._entry(self._newest_hint)
        return self._newest

    def unseen(self, listed: Sequence[FoundFile]) -> tuple[FoundFile, ...]:
        """In the order in which they would get ordinals. Writes nothing."""
        return self._log.perform(discovery.compare(self.newest(), listed)).new

    def add(
        self, listed: Sequence[FoundFile], *, is_partial: bool = False, listed_at_ms: int | None = None
    ) -> int | None:
        """
        Assign ordinals to the new files of a listing, and return the next unassigned one.

        ``None``: another process created the discovery first. The caller must list again, because this listing may be older than that discovery (D2).

        :param is_partial: whether other files may exist that the listing lacks
        :param listed_at_ms: the time of a complete listing, in milliseconds UTC, to record it in the log
        """
        newest = self.newest()
        entry = self._next_entry(newest, listed, is_partial=is_partial, listed_at_ms=listed_at_ms)
        if entry is None:
            return 0 if newest is None else newest.end
        return entry.end if self._create(entry) else None

    def begin(self, listed: Sequence[FoundFile]) -> None:
        """Create the first discovery from a listing that has files. If there is a discovery, it stays, and the listing has no effect."""
        entry = self._next_entry(None, listed)
        if entry is not None:
            self._create(entry)

    def _next_entry(
        self,
        newest: Discovery | None,
        listed: Sequence[FoundFile],
        *,
        is_partial: bool = False,
        listed_at_ms: int | None = None,
    ) -> Discovery | None:
        compared = self._log.perform(discovery.compare(newest, listed, is_partial=is_partial))
        nonce = self._log.clock.new_id()
        return self._log.perform(discovery.extend(newest, compared, nonce, listed_at_ms=listed_at_ms))

    def files(self, start: int, end: int) -> Iterator[FoundFile]:
        """Yield the files with ordinals ``[start, end)``. Reads a block of :data:`BLOCK_FILES` only when the caller requests a file of it."""
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
        """Return the ordinal of the block's first file, and its files. The next batch of a drain usually starts in the cached last block."""
        first, files = self._cached_block
        if not first <= start < first + len(files):
            end = min(start + BLOCK_FILES, newest.end)
            files = self._log.perform(discovery.files(newest.pages, start, end))
            files += newest.recent[max(start - newest.paged, 0) : max(end - newest.paged, 0)]
            self._cached_block = start, files
        return self._cached_block

    def _reaching(self, end: int) -> Discovery:
        """Return the newest discovery that a listing shows, or a later one that the listing lacks."""
        i = max(self._newest_listed(), self._newest_hint, 0)
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
            newer = self._newest_listed()
            self._newest = self._entry(newer) if newer > entry.i else decode(Discovery, key, written.data)
        return written.mine

    def _newest_listed(self) -> int:
        """-1 if a listing shows no discovery."""
        numbers = map(keys.parse_newest_first, self._log.list_keys(keys.DISCOVERED, 1))
        return max((i for i in numbers if i is not None), default=-1)

    def _entry(self, i: int) -> Discovery:
        stored = self._log.perform(procedures.read_entry(Discovery, keys.discovered(i)))
        if stored is None:
            raise LogDamagedError("a discovery is missing", invariant="I1", key=keys.discovered(i))
        return stored[0]
