"""The pin of an offset range of a partition (D5). Pins come from the log, which is not trusted, so their topics are checked against the pipeline (R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json


@dataclass(frozen=True, slots=True)
class RangePin:
    """
    A planned range of offsets.

    :param topic_id: ``""`` if the cluster gives no ids
    :param end: end offset, exclusive
    :param epoch: leader epoch of the partition when the plan was created; -1 if unknown
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    epoch: int


def read_pins(pins: Json, *, is_read: Callable[[str], bool]) -> tuple[RangePin, ...]:
    """A pin of another form, or of a topic that the source does not read, is refused (``LogDamagedError``)."""
    summary = "the pins of a plan are not offset ranges of Kafka partitions; nothing was read"
    decoded = decoded_pins(RangePin, pins, summary)
    refuse_other_topics((pin.topic for pin in decoded), is_read=is_read)
    return decoded


def refuse_other_topics(topics: Iterable[str], *, is_read: Callable[[str], bool]) -> None:
    """Refuse topics that the pipeline does not read (``LogDamagedError``). Called before any request to the cluster."""
    others = sorted({topic for topic in topics if not is_read(topic)})
    if others:
        summary = "the log names topics that the pipeline does not read; nothing was read"
        raise LogDamagedError(summary, invariant="R6", topics=others)
