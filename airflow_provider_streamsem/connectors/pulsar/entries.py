"""
Offsets of a Pulsar topic, and the pins of ranges (D5). Pins come from the log, which is not trusted, so their topic is checked against the pipeline (R6).

A partition of a topic is a sequence of ledgers. A ledger is a sequence of entries, and an entry is one message or one batch of messages. The ids of ledgers
increase, and no id is used again, not even after the topic was deleted and recreated. So ledger and entry are one offset: ``ledger * 10**12 + entry``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json

ENTRIES = 10**12
"""Offsets per ledger. Pulsar closes a ledger after at most some millions of entries."""


@dataclass(frozen=True, slots=True)
class LedgerPin:
    """A planned range ``[start, end)`` of entries of one ledger. ``topic`` is the full name of a partition: ``persistent://…/orders-partition-0``."""

    topic: str
    ledger: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Ledger → its number of entries, 1 or more, in ascending order. Pulsar replaces an empty ledger when it loads the topic again, so no offset is in one."""

    entries: Mapping[int, int]

    @property
    def first(self) -> int:
        return min(self.entries) * ENTRIES

    @property
    def end(self) -> int:
        """The offset after the newest entry."""
        newest = max(self.entries)
        return newest * ENTRIES + self.entries[newest]

    def between(self, topic: str, start: int, end: int) -> list[LedgerPin]:
        """One pin for each ledger of ``[start, end)``."""
        pins = []
        for ledger, count in self.entries.items():
            first, stop = max(start - ledger * ENTRIES, 0), min(end - ledger * ENTRIES, count)
            if first < stop:
                pins.append(LedgerPin(topic, ledger, first, stop))
        return pins


def read_pins(pins: Json, topic: str) -> tuple[LedgerPin, ...]:
    """Pins of another form, or of another topic, are refused (``LogDamagedError``)."""
    summary = "the pins of a plan are not ranges of a Pulsar topic; nothing was read"
    ranges = decoded_pins(LedgerPin, pins, summary)
    if any(not (0 <= pin.start < pin.end <= ENTRIES and pin.ledger >= 0) for pin in ranges):
        raise LogDamagedError(summary, invariant="R6")
    refuse_other_topics((pin.topic for pin in ranges), topic)
    return ranges


def refuse_other_topics(partitions: Iterable[str], topic: str) -> None:
    """Refuse partitions of other topics than the one that the pipeline reads (``LogDamagedError``). Called before any request."""
    others = sorted({name for name in partitions if topic not in (name, name.rpartition("-partition-")[0])})
    if others:
        summary = "the log names Pulsar topics that the pipeline does not read; nothing was read"
        raise LogDamagedError(summary, invariant="R6", partitions=others, topic=topic)
