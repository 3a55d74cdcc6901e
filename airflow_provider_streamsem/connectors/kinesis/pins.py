"""The names of shards in the log, and the pin of a range of a shard (D5). Pins come from the log, which is not trusted, so they are checked (R6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json

_NAME = re.compile(r"([a-zA-Z0-9_.-]{1,128})/([a-zA-Z0-9_.-]{1,128})@([0-9]{1,12})")


_MIN_TIME, _MIN_NUMBER = 10**12, 2**64


def is_number(number: int) -> bool:
    """Return whether a number is as large as the sequence numbers of AWS Kinesis. Servers that imitate Kinesis may use smaller ones."""
    return number >= _MIN_NUMBER


def is_time(offset: int) -> bool:
    """
    Return whether an offset is a time in milliseconds UTC, and not a sequence number.

    A shard without records has no sequence number at which a pipeline can start, so its initial offset is the time of the start: every later record is unread.
    Sequence numbers of Kinesis have 186 bits, so every record is above every time. 10^12 is a time in 2001.
    """
    return _MIN_TIME <= offset < _MIN_NUMBER


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A shard of a stream. A recreated stream has another creation time (seconds since the epoch), so its shards are other partitions."""

    stream: str
    shard: str
    created_s: int

    @property
    def name(self) -> str:
        """The key in offsets and ranges: ``orders/shardId-000000000000@1767225600``."""
        return f"{self.stream}/{self.shard}@{self.created_s}"


def parse_partition(name: str) -> Partition:
    """Parse a text of the form of :attr:`Partition.name`. Raises ``LogDamagedError`` if it has another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise LogDamagedError("the log contains an invalid name of a Kinesis shard", invariant="R6", partition=name)
    return Partition(stream=match[1], shard=match[2], created_s=int(match[3]))


@dataclass(frozen=True, slots=True)
class ShardPin:
    """
    A planned range of records of a shard. Its sequence numbers and hash keys are inclusive.

    :param created_s: when the stream was created, in seconds since the epoch
    :param retention_h: retention of the stream when the plan was made, in hours
    :param parents: ids of the shards from which a split or a merge made this shard
    """

    stream: str
    created_s: int
    shard: str
    first: int
    last: int
    lowest_key: int
    highest_key: int
    retention_h: int
    parents: tuple[str, ...]

    @property
    def partition(self) -> Partition:
        return Partition(self.stream, self.shard, self.created_s)


def read_pins(pins: Json, *, stream: str) -> tuple[ShardPin, ...]:
    """Pins of another form, or of another stream, are refused (``LogDamagedError``)."""
    summary = "the pins of a plan are not ranges of Kinesis shards; nothing was read"
    ranges = decoded_pins(ShardPin, pins, summary)
    if any(not 0 <= pin.first <= pin.last or not _NAME.fullmatch(pin.partition.name) for pin in ranges):
        raise LogDamagedError(summary, invariant="R6")
    refuse_other_streams({pin.stream for pin in ranges}, stream=stream)
    return ranges


def refuse_other_streams(streams: set[str], *, stream: str) -> None:
    """Refuse streams that the source does not read (``LogDamagedError``). Called before any request."""
    others = sorted(streams - {stream})
    if others:
        summary = "the log names streams that the pipeline does not read; nothing was read"
        raise LogDamagedError(summary, invariant="R6", streams=others)
