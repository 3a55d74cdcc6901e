"""
Reads ranges of a NATS stream as Arrow batches. Runs on executors, and does not import pyspark.

The reader must prove that a range is complete, because a replica may lag behind, and the server skips deleted messages without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.nats.access import Access
from airflow_provider_streamsem.connectors.nats.client import Delivered, NatsClient, connected
from airflow_provider_streamsem.connectors.nats.pins import SequencePin
from airflow_provider_streamsem.connectors.nats.stream import StreamState, state_of
from airflow_provider_streamsem.connectors.python_worker import keep_import_caches
from airflow_provider_streamsem.errors import RecordsMissingError, SourceChangedError, UnavailableError

if TYPE_CHECKING:
    import pyarrow

_MAX_MESSAGES = 5_000
_MAX_BYTES = 8 << 20
_WAITS_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between requests to a replica that lacks messages which the leader has."""
_MIN_SEQUENCES = 10_000
"""Minimum number of sequences for which another Spark task is worth its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    A planned read. Spark sends it to the executors.

    :param domain: JetStream domain; ``None``: that of the server
    :param subject: filter, with wildcards; ``None``: all messages
    :param tasks: maximum number of Spark tasks, 1 or more
    """

    access: Access
    domain: str | None
    subject: str | None
    pins: tuple[SequencePin, ...]
    tasks: int

    @property
    def parts(self) -> tuple[SequencePin, ...]:
        """The pinned ranges, split for Spark tasks. Each part has 10,000 sequences or more, unless its pin has fewer."""
        return tuple(part for pin in self.pins for part in _split(pin, self.tasks))

    def batches(self, ids: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """``ids`` are batches with one column: numbers of parts, from 0."""
        keep_import_caches()
        parts = self.parts
        for batch in ids:
            for number in batch.column(0).to_pylist():
                yield from self._part(parts[number])

    def _part(self, part: SequencePin) -> Iterator[pyarrow.RecordBatch]:
        with connected(self.access, self.domain) as client:
            before = _planned_stream(client, part)
            if before.first > part.start:
                raise _missing(part, before)
            received = _Received(part)
            with client.consumer(part.stream, part.start, self.subject) as consumer:
                for messages in _messages(client, consumer, part, self.subject or ">"):
                    received.add(messages)
                    yield _batch(messages)
            after = _planned_stream(client, part)
            if received.lacks_below(after.first):
                raise _missing(part, after)


class _Received:
    """Records which sequences of a part were received, up to the first that was not."""

    def __init__(self, part: SequencePin) -> None:
        self._part = part
        self._next = part.start

    def add(self, messages: Sequence[Delivered]) -> None:
        """Messages must be in the order of their sequences."""
        for message in messages:
            if message.sequence != self._next:
                return
            self._next += 1

    def lacks_below(self, first: int) -> bool:
        """A sequence that was not received may have been deleted before it was read."""
        return self._next < min(first, self._part.end)


def _split(pin: SequencePin, tasks: int) -> list[SequencePin]:
    size = pin.end - pin.start
    count = max(1, min(tasks, size // _MIN_SEQUENCES))
    bounds = [pin.start + size * n // count for n in range(count + 1)]
    return [SequencePin(pin.stream, pin.created, first, last, "") for first, last in pairwise(bounds)]


def _planned_stream(client: NatsClient, part: SequencePin) -> StreamState:
    state = state_of(client, part.stream)
    if state is None or state.created != part.created:
        summary = "the planned stream was deleted, or deleted and recreated"
        raise RecordsMissingError(summary, partition=part.partition)
    if state.end < part.end:
        summary = "the stream ends below the planned range: it lost messages; nothing became visible"
        raise SourceChangedError(summary, partition=part.partition, range=(part.start, part.end), end=state.end)
    return state


def _missing(part: SequencePin, state: StreamState) -> RecordsMissingError:
    summary = "the stream deleted planned sequences before they were read"
    return RecordsMissingError(summary, partition=part.partition, range=(part.start, part.end), first=state.first)


def _messages(client: NatsClient, consumer: str, part: SequencePin, subject: str) -> Iterator[list[Delivered]]:
    """A message may be lost on the way, or the replica of the consumer may lack messages that the leader has."""
    at, number, waits = part.start, 0, iter(_WAITS_S)
    while at < part.end:
        messages = client.pull(
            part.stream, consumer, max_messages=min(_MAX_MESSAGES, part.end - at), max_bytes=_MAX_BYTES
        )
        if [message.number for message in messages] != [*range(number + 1, number + 1 + len(messages))]:
            raise UnavailableError("NATS lost a delivery; nothing became visible", partition=part.partition, at=at)
        number += len(messages)
        inside = [message for message in messages if message.sequence < part.end]
        ended = len(inside) < len(messages)
        if inside and at == part.start:
            _check_none_between(client, part, subject, at, inside[0].sequence)
        if inside:
            at = inside[-1].sequence + 1
            yield inside
        if ended or at >= part.end:
            return
        if not messages:
            following = client.next(part.stream, at, subject)
            if following is None or following.sequence >= part.end:
                return
            wait_s = next(waits, None)
            if wait_s is None:
                _check_none_between(client, part, subject, at, part.end)
                return
            SYSTEM_CLOCK.sleep(wait_s)


def _check_none_between(client: NatsClient, part: SequencePin, subject: str, start: int, end: int) -> None:
    """The replica of the consumer may not have delivered a message that the leader has between the two sequences."""
    message = client.next(part.stream, start, subject) if start < end else None
    if message is not None and message.sequence < end:
        raise UnavailableError(
            "a replica of the stream lacks a message that the leader has; nothing became visible",
            partition=part.partition,
            sequence=message.sequence,
        )


def _batch(messages: Sequence[Delivered]) -> Any:
    import pyarrow as pa

    headers = pa.map_(pa.string(), pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.subject for message in messages], pa.string()),
            pa.array([message.sequence for message in messages], pa.int64()),
            pa.array([message.time_ns // 1000 for message in messages], pa.timestamp("us", tz="UTC")),
            pa.array(
                [None if message.headers is None else [*message.headers.items()] for message in messages], headers
            ),
            pa.array([message.data for message in messages], pa.binary()),
        ],
        names=["subject", "sequence", "timestamp", "headers", "data"],
    )
