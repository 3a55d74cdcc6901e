"""The log of discovered files: gives files ordinals, and finds files by ordinal (PROTOCOL.md, 9)."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import discovery, keys, procedures
from airflow_provider_streamsem.protocol.codec import decode
from airflow_provider_streamsem.protocol.entries import Discovery, FoundFile


class Ledger:
    """
    The discoveries of one log, as far as this process has read them.

    :param newest_hint: number of the newest discovery that is known to exist; -1: ask a listing
    :param at_hint: number of a discovery at or before the one that holds the next ordinal to read
    """

    def __init__(self, log: CommitLog, newest_hint: int = -1, at_hint: int = -1) -> None:
        self._log = log
        self._known: dict[int, Discovery] = {}
        self._newest_hint = newest_hint
        self._at_hint = at_hint

    def newest(self) -> Discovery | None:
        """The newest discovery that is known; ``None`` before the first. One that another process adds meanwhile is found by :meth:`add`."""
        if self._known:
            return self._known[max(self._known)]
        if self._newest_hint < 0:
            listed = self._log.list_keys(keys.DISCOVERED, 1)
            numbers = [i for i in map(keys.parse_newest_first, listed) if i is not None]
            if not numbers:
                return None
            self._newest_hint = max(numbers)
        return self._entry(self._newest_hint)

    def unseen(self, listed: Sequence[FoundFile]) -> discovery.News:
        """What of a listing has no ordinal yet. Writes nothing."""
        found = discovery.news(self.newest(), listed)
        return discovery.news_by_seen_set(self._seen(), listed) if found is None else found

    def add(self, listed: Sequence[FoundFile]) -> int | None:
        """
        Give ordinals to what is new in a listing; returns the next ordinal to give.

        ``None``: another discoverer was first. Its entry is known now; list again, for this listing may be older than that one (D2).
        """
        made = discovery.entries(self.newest(), listed, self.unseen(listed), self._log.clock.new_id())
        if not all(self._create(entry) for entry in made):
            return None
        newest = self.newest()
        return 0 if newest is None else newest.end

    def files(self, start: int, end: int) -> list[FoundFile]:
        """The files with ordinals ``[start, end)``, in order."""
        found: list[FoundFile] = []
        i = self.index_of(start)
        while len(found) < end - start:
            entry = self._entry(i)
            found += entry.files[max(start - entry.first, 0) : max(end - entry.first, 0)]
            i += 1
        return found

    def index_of(self, ordinal: int) -> int:
        """Number of the discovery that holds an ordinal; of the newest one where the ordinal is still to be given."""
        newest = self.newest()
        if newest is None:
            return 0
        i = self._at_hint if 0 <= self._at_hint <= newest.i else newest.i
        while i > 0 and self._entry(i).first > ordinal:
            i -= 1
        while i < newest.i and self._entry(i).end <= ordinal:
            i += 1
        return i

    def _create(self, entry: Discovery) -> bool:
        key = keys.discovered(entry.i)
        written = self._log.perform(procedures.create_entry(key, entry))
        self._known[entry.i] = entry if written.mine else decode(Discovery, key, written.data)
        return written.mine

    def _entry(self, i: int) -> Discovery:
        if i not in self._known:
            found = self._log.perform(procedures.read_entry(Discovery, keys.discovered(i)))
            if found is None:
                raise LogDamagedError("a discovery is missing", invariant="I1", key=keys.discovered(i))
            self._known[i] = found[0]
        return self._known[i]

    def _seen(self) -> dict[str, int]:
        newest = self.newest()
        count = 0 if newest is None else newest.i + 1
        return {discovery.fingerprint(file): file.mtime_ns for i in range(count) for file in self._entry(i).files}
