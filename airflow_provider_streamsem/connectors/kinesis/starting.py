"""The argument ``starting`` of the Kinesis source: ``earliest``, ``latest``, a timestamp, or a sequence number for each shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.kinesis.pins import is_number
from airflow_provider_streamsem.connectors.kinesis.stream import KinesisStream, Listing, PositionError, Shard
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.offsets import Offsets

_EXPIRES_SOON_MS = 600_000
_MOST_DIGITS = 64


def starting(where: str, given: object) -> str | Mapping[str, str]:
    """Return the argument as the source stores it: ``earliest``, ``latest``, an ISO 8601 time with a zone, or shard id → sequence number."""
    if isinstance(given, Mapping):
        numbers = {str(shard): str(number) for shard, number in given.items() if type(number) in (str, int)}
        if not given or len(numbers) < len(given) or not all(_is_number(number) for number in numbers.values()):
            raise InvalidError(
                f"{where} must map shard ids to sequence numbers",
                given=dict(given),
                accepted='{"shardId-000000000000": "4968…"}',
            )
        return numbers
    if given not in ("earliest", "latest"):
        try:
            return arguments.timestamp(where, given)
        except InvalidError as error:
            accepted = ["earliest", "latest", "2026-01-31T00:00:00Z", '{"shardId-000000000000": "4968…"}']
            raise InvalidError(f"{where} is not valid", given=str(given)[:40], accepted=accepted) from error
    return str(given)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def with_times(listing: Listing, offsets: Offsets, *, now_ms: int) -> Offsets:
    """Give shards without records the current time, unless the server imitates Kinesis: its sequence numbers may be smaller than a time."""
    starts = {shard.partition.name: shard.number for shard in listing.shards}
    return {name: now_ms if offset == 0 and is_number(starts[name]) else offset for name, offset in offsets.items()}


def offsets_since(stream: KinesisStream, listing: Listing, at_ms: int, *, now_ms: int) -> Offsets:
    """Return partition → the first record that arrived at or after a time, or the end of the shard if there is none."""

    def offset(shard: Shard) -> int:
        record = None if at_ms > now_ms else stream.first_since(shard.partition.shard, at_ms)
        if record is not None:
            return record.number
        return stream.end(shard, 0, now_ms=now_ms, retention_h=listing.retention_h).offset

    return _for_each(stream, listing, offset)


def ends(stream: KinesisStream, listing: Listing, *, now_ms: int) -> Offsets:
    """Return partition → the end of the shard."""
    return _for_each(
        stream, listing, lambda shard: stream.end(shard, 0, now_ms=now_ms, retention_h=listing.retention_h).offset
    )


def earliest(stream: KinesisStream, listing: Listing, *, now_ms: int) -> Offsets:
    """
    Return partition → the oldest record that retention does not delete in the next ten minutes.

    Retention deletes the oldest record of a busy shard at any moment. A pipeline that began there would lose a part of its first range at once.
    """
    safe_ms = now_ms - listing.retention_h * 3_600_000 + _EXPIRES_SOON_MS

    def offset(shard: Shard) -> int:
        name = shard.partition.shard
        oldest = stream.oldest(name)
        if oldest is not None and oldest.arrived_ms < safe_ms:
            later = stream.first_since(name, safe_ms)
            return oldest.number if later is None else later.number
        return 0 if oldest is None else oldest.number

    return _for_each(stream, listing, offset)


def given_offsets(stream: KinesisStream, listing: Listing, given: Mapping[str, str], *, now_ms: int) -> Offsets:
    """Return partition → the given sequence number, which must exist (``InvalidError``), or the earliest offset of a shard that is not named."""
    names = {shard.partition.shard: shard.partition.name for shard in listing.shards}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidError("source kinesis: starting names shards that do not exist", given=unknown)
    for shard, number in given.items():
        try:
            record = stream.record_at(shard, int(number))
        except PositionError:
            record = None
        if record is None or record.number != int(number):
            summary = "source kinesis: starting names a sequence number of which the shard has no record"
            raise InvalidError(summary, shard=shard, given=number)
    return {
        **earliest(stream, listing, now_ms=now_ms),
        **{names[shard]: int(number) for shard, number in given.items()},
    }


def _for_each(stream: KinesisStream, listing: Listing, offset: Callable[[Shard], int]) -> Offsets:
    return stream.for_each({shard.partition.name: partial(offset, shard) for shard in listing.shards})
