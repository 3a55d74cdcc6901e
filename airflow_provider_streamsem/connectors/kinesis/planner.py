"""Plans the next ranges of a Kinesis stream: finds the ends of the shards, lost records, and the order of parents and children."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.connectors.kinesis.pins import ShardPin, is_time, parse_partition, refuse_other_streams
from airflow_provider_streamsem.connectors.kinesis.stream import End, KinesisStream, Listing, Record, Shard
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges, between, position

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_CLOCK_MARGIN_MS = 600_000
_PAGE_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class KinesisEnd(SourceEnd):
    """
    The end of each shard.

    :param ends: partition → the end of the shard, as the poll found it
    :param known: partition → the end that was known before the poll
    :param at_ms: when the poll began, in milliseconds UTC
    """

    listing: Listing
    ends: Mapping[str, End]
    known: Offsets
    at_ms: int


@dataclass(frozen=True, slots=True)
class _KnownShard:
    """
    The state of a shard as an earlier plan recorded it.

    :param arrivals: pairs of an offset and a time in milliseconds UTC: no record at or above the offset arrived before this time. The offsets are the next
        offset to read; the offset at which the plan starts, for the case that it is aborted; and 0, for a rollback to a version before the shard was created
    """

    end: int
    arrivals: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Hint:
    """The state of all shards as an earlier plan recorded it. ``at_ms`` is when they were listed (UTC); 0 if there was no earlier plan."""

    at_ms: int = 0
    shards: Mapping[str, _KnownShard] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """
    The part of an unread range that a slice reads. ``first`` is ``None`` if the shard has no record of the range; ``last`` is inclusive.

    :param lost_before: records from ``start`` to this offset may be lost; equal to ``start`` if none is
    :param arrived_ms: when the last record arrived (UTC); ``None`` if it was not read
    """

    start: int
    lost_before: int
    first: int | None
    last: int
    rows: int
    arrived_ms: int | None = None


class KinesisPlanner(Planner):
    """
    A Kinesis source that is bound to a commit log.

    The hint records when the newest plan was made. For each shard it records the end, and offsets with a time before which no record at or above the offset
    arrived: ``{"at_ms": 1767225600000, "shards": {partition: [end, [[offset, since_ms], …]]}}``.
    """

    def __init__(self, stream: str, requests: Callable[[], KinesisStream], clock: Clock) -> None:
        self._name = stream
        self._requests = requests
        self._clock = clock
        self._ends: Offsets = {}

    @cached_property
    def _stream(self) -> KinesisStream:
        return self._requests()

    def poll(self, hint: Json) -> KinesisEnd:
        """For a shard that no longer exists, return the last known end, so that its unread records are not skipped silently."""
        at_ms = self._clock.now_ms()
        listing = self._stream.listing()
        hinted = {name: known_shard.end for name, known_shard in _read_hint(hint).shards.items()}
        known = {name: max(position(hinted, name), position(self._ends, name)) for name in {*hinted, *self._ends}}
        ends = self._stream.for_each(
            {
                shard.partition.name: partial(
                    self._stream.end,
                    shard,
                    position(known, shard.partition.name),
                    now_ms=at_ms,
                    retention_h=listing.retention_h,
                )
                for shard in listing.shards
            }
        )
        self._ends = {**known, **{name: end.offset for name, end in ends.items()}}
        return KinesisEnd(self._ends, listing, ends, known, at_ms)

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        A shard is part of the slice only if the slice reads all unread records of its parents too, or if they have none. With ``limits.max_rows``, the planner
        reads the records that it counts, and the children of a shard with unread records wait for a later batch. Gaps do not count towards the limit.
        """
        refuse_other_streams({parse_partition(name).stream for name in {*start, *end.offsets}}, stream=self._name)
        unread, known = between(start, end.offsets), _read_hint(hint)
        if not unread:
            return None
        listing = end.listing if isinstance(end, KinesisEnd) else self._stream.listing()
        self._check_incarnation(start, listing, on_data_loss)
        shards = {shard.partition.name: shard for shard in listing.shards}
        waiting = _waiting_for_parents(shards, unread) if limits.max_rows is not None else set()
        chosen = {name: bounds for name, bounds in unread.items() if name not in waiting}
        share = None if limits.max_rows is None else max(1, limits.max_rows // len(chosen))
        counted = share if share is not None or limits.min_rows is None else limits.min_rows
        choose = partial(self._part, listing=listing, known=known, end=end, share=share, counted=counted)
        parts = self._stream.for_each(
            {name: partial(choose, shards[name], *bounds) for name, bounds in chosen.items() if name in shards}
        )
        for name, (first, stop) in chosen.items():
            if name not in shards:  # the shard no longer exists, so its unread records are lost
                parts[name] = _Part(first, stop, None, stop - 1, 0)
        return self._joined(parts, shards, listing, self._next_hint(start, end, known, parts), on_data_loss)

    def _part(
        self,
        shard: Shard,
        start: int,
        stop: int,
        *,
        listing: Listing,
        known: _Hint,
        end: SourceEnd,
        share: int | None,
        counted: int | None,
    ) -> _Part:
        """Return the part of an unread range ``[start, stop)`` that the slice reads, at most ``share`` records."""
        name = shard.partition.shard
        oldest = self._stream.oldest(name)
        if oldest is None or oldest.number >= stop:
            return _Part(start, stop, None, stop - 1, 0)
        first: Record | None = oldest
        if oldest.number < start:
            first = self._first(shard, start, end)
        if first is None or first.number >= stop:
            summary = "a shard has no records between the committed offset and its end; nothing was written"
            raise SourceChangedError(summary, partition=shard.partition.name, range=(start, stop))
        is_lost = oldest.number > start and not self._is_proven(shard.partition.name, start, listing, known)
        last, rows, arrived_ms = stop - 1, 1, None
        if counted is not None:
            reached, rows = self._counted(name, first, stop, counted)
            if share is not None:
                last, arrived_ms = reached.number, reached.arrived_ms
        return _Part(start, first.number if is_lost else start, first.number, last, rows, arrived_ms)

    def _first(self, shard: Shard, start: int, end: SourceEnd) -> Record | None:
        """The poll has found the record already if it began at ``start``."""
        if isinstance(end, KinesisEnd) and position(end.known, shard.partition.name) == start:
            record = end.ends[shard.partition.name].first
            if record is not None:
                return record
        return self._stream.first_from(shard.partition.shard, start)

    def _is_proven(self, name: str, start: int, listing: Listing, known: _Hint) -> bool:
        """Return whether no record at or above ``start`` can have expired: no unread record arrived before a time within the retention."""
        kept_since_ms = self._clock.now_ms() - listing.retention_h * _HOUR_MS + _CLOCK_MARGIN_MS
        return self._unread_since_ms(name, start, known) >= kept_since_ms

    def _unread_since_ms(self, name: str, start: int, known: _Hint) -> int:
        """The time is at least the creation of the stream. A shard that no earlier plan knew was created after that plan listed the shards."""
        times = [parse_partition(name).created_s * 1000]
        if is_time(start):
            times.append(start)
        if name in known.shards:
            times += [since_ms for offset, since_ms in known.shards[name].arrivals if offset <= start]
        elif start == 0:
            times.append(known.at_ms)
        return max(times)

    def _next_hint(self, start: Offsets, end: SourceEnd, known: _Hint, parts: Mapping[str, _Part]) -> Json:
        """Return the hint of a plan. A later plan of a drain has not polled, so it keeps the times of the previous poll."""
        at_ms = end.at_ms if isinstance(end, KinesisEnd) else known.at_ms
        shards = {}
        for name in sorted({*start, *end.offsets, *known.shards}):
            shard_end = max(position(end.offsets, name), known.shards[name].end if name in known.shards else 0)
            offset = position(start, name)
            arrivals = {first: self._unread_since_ms(name, first, known) for first in (0, offset)}
            since_ms = arrivals[offset]
            if name in parts:
                offset, since_ms = parts[name].last + 1, parts[name].arrived_ms or since_ms
            if isinstance(end, KinesisEnd) and offset >= shard_end:
                # If records may have expired since the previous proof, the empty shard proves nothing.
                is_proven = name in parts or self._is_proven(name, offset, end.listing, known)
                since_ms = at_ms if is_proven else since_ms
            arrivals[offset] = since_ms
            created_ms = parse_partition(name).created_s * 1000  # known without the hint
            shards[name] = [shard_end, [[first, since] for first, since in arrivals.items() if since > created_ms]]
        return {"at_ms": at_ms, "shards": shards}

    def _counted(self, shard: str, first: Record, stop: int, max_records: int) -> tuple[Record, int]:
        """Count up to ``max_records`` records from ``first`` on, below ``stop``. Return the last one and their number."""
        last, rows = first, 0
        for records in self._stream.records_at(shard, first.number, min(max_records, _PAGE_RECORDS)):
            for record in records:
                if rows == max_records or record.number >= stop:
                    return last, rows
                last, rows = record, rows + 1
            if rows == max_records or last.number == stop - 1:
                break
        return last, rows

    def _check_incarnation(self, start: Offsets, listing: Listing, on_data_loss: str) -> None:
        """The unread records of a recreated stream are lost. With ``"record_gap"``, this is logged as a warning instead."""
        read = {parse_partition(name).created_s for name in start}
        if not read or listing.created_s in read:
            return
        if on_data_loss == "fail":
            summary = "the stream was deleted and recreated, and its unread records are lost; nothing was written"
            raise SourceChangedError(
                summary, stream=self._name, committed=sorted(read), created_s=listing.created_s
            ).advising(OR_RECORD_GAP)
        logger.warning("stream %s was deleted and recreated; reading the new stream from its beginning", self._name)

    def _joined(
        self,
        parts: Mapping[str, _Part],
        shards: Mapping[str, Shard],
        listing: Listing,
        hint: Json,
        on_data_loss: str,
    ) -> SourceSlice:
        gaps: Gaps = {
            name: ((part.start, part.lost_before),)
            for name, part in sorted(parts.items())
            if part.lost_before > part.start
        }
        if gaps and on_data_loss == "fail":
            summary = "unread records are missing in Kinesis, or Kinesis cannot prove that none is; nothing was written"
            raise SourceChangedError(summary, lost=gaps, retention_h=listing.retention_h).advising(OR_RECORD_GAP)
        if gaps:
            logger.warning("recording offsets as gaps, because Kinesis no longer has their records: %s", gaps)
        ranges: Ranges = {name: (part.start, part.last + 1) for name, part in sorted(parts.items())}
        pins = [
            ShardPin(
                stream=self._name,
                created_s=listing.created_s,
                shard=shards[name].partition.shard,
                first=part.first,
                last=part.last,
                lowest_key=shards[name].lowest_key,
                highest_key=shards[name].highest_key,
                retention_h=listing.retention_h,
                parents=shards[name].parents,
            )
            for name, part in sorted(parts.items())
            if part.first is not None
        ]
        return SourceSlice(
            ranges=ranges, gaps=gaps, pins=pins, hint=hint, rows=sum(part.rows for part in parts.values())
        )

    def lag(self, start: Offsets, hint: Json) -> int:
        """The number of shards with unread records. Two requests for each shard."""
        return len(self._first_unread(start))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Counts shards by the arrival of their first unread record."""
        return sum(record.arrived_ms < at_ms for record in self._first_unread(start).values())

    def minimum_clock(self, start: Offsets) -> int | None:
        return min((record.arrived_ms for record in self._first_unread(start).values()), default=None)

    def _first_unread(self, start: Offsets) -> dict[str, Record]:
        names = {shard.partition.name: shard.partition.shard for shard in self._stream.listing().shards}
        first_records = self._stream.for_each(
            {name: partial(self._stream.first_from, shard, position(start, name)) for name, shard in names.items()}
        )
        return {name: record for name, record in first_records.items() if record is not None}


def _waiting_for_parents(shards: Mapping[str, Shard], unread: Ranges) -> set[str]:
    waiting: set[str] = set()
    names = {shard.partition.shard: name for name, shard in shards.items()}
    for name, shard in shards.items():  # parents come before their children
        parents = {names[parent] for parent in shard.parents if parent in names}
        if parents & (waiting | {*unread}):
            waiting.add(name)
    return waiting


def _read_hint(hint: Json) -> _Hint:
    """An empty hint, which proves nothing, if it has another form."""
    shards = hint.get("shards") if isinstance(hint, Mapping) else None
    if not isinstance(hint, Mapping) or type(hint.get("at_ms")) is not int or not isinstance(shards, Mapping):
        return _Hint()
    if not all(
        isinstance(shard, Sequence) and len(shard) == 2 and type(shard[0]) is int and _are_arrivals(shard[1])
        for shard in shards.values()
    ):
        return _Hint()
    known = {
        name: _KnownShard(end, [(at, since) for at, since in arrivals]) for name, (end, arrivals) in shards.items()
    }
    return _Hint(hint["at_ms"], known)


def _are_arrivals(pairs: Json) -> bool:
    return isinstance(pairs, Sequence) and all(
        isinstance(pair, Sequence) and [type(n) for n in pair] == [int, int] for pair in pairs
    )
