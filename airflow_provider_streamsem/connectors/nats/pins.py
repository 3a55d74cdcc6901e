"""The pin of a range of sequences of a stream (D5). Pins come from the log, which is not trusted, so their stream is checked against the pipeline (R6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json


@dataclass(frozen=True, slots=True)
class SequencePin:
    """
    A planned range ``[start, end)`` of sequences, from 1.

    :param created: when the stream was created, as the server writes it. It identifies the stream among streams with the same name
    :param last_time: time of the message with sequence ``end - 1``; ``""`` if there was none. If another message has this sequence, the stream lost messages
    """

    stream: str
    created: str
    start: int
    end: int
    last_time: str

    @property
    def partition(self) -> str:
        """The key of the stream in offsets and ranges."""
        return partition_name(self.stream, self.created)


def partition_name(stream: str, created: str) -> str:
    """Return ``ORDERS@2026-01-31T00:00:00.123456789Z``. A recreated stream has another creation time, so its sequences are distinct."""
    return f"{stream}@{created}"


def read_pins(pins: Json, stream: str) -> tuple[SequencePin, ...]:
    """Pins of another form, or of another stream, are refused (``LogDamagedError``)."""
    summary = "the pins of a plan are not ranges of a NATS stream; nothing was read"
    ranges = decoded_pins(SequencePin, pins, summary)
    if any(not 1 <= pin.start < pin.end for pin in ranges):
        raise LogDamagedError(summary, invariant="R6")
    refuse_other_streams((pin.partition for pin in ranges), stream)
    return ranges


def refuse_other_streams(partitions: Iterable[str], stream: str) -> None:
    """Refuse partitions of other streams than the one that the pipeline reads (``LogDamagedError``). Called before any request."""
    others = sorted({name for name in partitions if name.partition("@")[0] != stream})
    if others:
        summary = "the log names NATS streams that the pipeline does not read; nothing was read"
        raise LogDamagedError(summary, invariant="R6", partitions=others, stream=stream)
