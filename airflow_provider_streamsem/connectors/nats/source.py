"""
NATS source: bounded reads of a JetStream stream over a range ``[start, end)`` of its sequences.

The planner fixes the range, and pins it with the creation time of the stream and the time of the last message. Executors read it with ephemeral consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.nats import access as accesses
from airflow_provider_streamsem.connectors.nats.access import Access, access_of
from airflow_provider_streamsem.connectors.nats.client import NatsClient, Stored, connected
from airflow_provider_streamsem.connectors.nats.pins import SequencePin, read_pins, refuse_other_streams
from airflow_provider_streamsem.connectors.nats.stream import StreamState, first_at, state_of, time_ms
from airflow_provider_streamsem.connectors.parsing import decoders as decoding
from airflow_provider_streamsem.connectors.parsing import registry
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.source import Expiry, Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import OR_RECORD_GAP, InvalidError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length, position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords

logger = logging.getLogger(__name__)

_ALL = ">"
_NAME = r"[^\s.*>/\\@]{1,255}"
_SUBJECT = r"[^\s.*>]+(\.[^\s.*>]+|\.\*)*(\.>)?|\*(\.[^\s.*>]+|\.\*)*(\.>)?|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSource(Source):
    """
    Reads the messages of a NATS JetStream stream. The offsets are the sequences of the stream.

    Without a ``value`` decoder the columns are ``subject string, sequence long, timestamp timestamp, headers map<string,string>, data binary``. With a
    ``value`` decoder they are the fields of the data, and ``nats_subject``, ``nats_sequence``, ``nats_timestamp``, ``nats_headers``. Empty data has null
    fields. A message that cannot be decoded is quarantined with stream, subject and sequence.

    :param stream: name of the stream, whose retention must be ``limits``
    :param subject: read only messages with this subject, which may have wildcards; ``None``: all messages
    :param conn_id: an Airflow connection of type ``nats``. Exactly one of ``conn_id`` and ``servers`` must be given
    :param servers: ``host:port,…`` of servers without security
    :param domain: JetStream domain; ``None``: that of the server
    :param starting: where a new pipeline starts: ``earliest``, ``latest``, a timestamp with a time zone such as ``2026-01-31T00:00:00Z`` (inclusive), or a
        sequence, 1 or more (inclusive)
    :param value: decoder of the data, :class:`Json`, :class:`Avro` or :class:`Protobuf`. Default: the data stays binary
    :param tasks: maximum number of Spark tasks that read a batch, 1 to 1,000. Each reads a part of the range with its own connection
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    extra: ClassVar[str] = "nats"
    unit: ClassVar[str] = "sequences"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    compacts: ClassVar[bool] = True
    has_retention: ClassVar[bool] = True
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan records ranges of stream sequences and the creation time of the stream, and every attempt reads exactly these ranges",
        "missing sequences fail the run, or are recorded as gaps; a recreated stream, and a stream that lost its newest messages, fail it",
        "a message that was deleted inside the stream leaves a sequence without a record, which is not reported as lost",
    )
    stream: str
    subject: str | None = None
    conn_id: str | None = None
    servers: str | None = None
    domain: str | None = None
    starting: str | int = "earliest"
    value: Decoder | None = None
    tasks: int = 1

    def __post_init__(self) -> None:
        where = "source nats:"
        arguments.text(f"{where} stream", self.stream, pattern=_NAME, accepted="a name without spaces and .*>/\\@")
        if self.subject is not None:
            arguments.text(f"{where} subject", self.subject, pattern=_SUBJECT, accepted="orders.eu, orders.*, orders.>")
        arguments.exactly_one(where, conn_id=self.conn_id, servers=self.servers)
        for name, accepted in (
            ("conn_id", "text without spaces and '@'"),
            ("servers", "host:port,… without '@' and '/'"),
        ):
            if getattr(self, name) is not None:
                arguments.text(f"{where} {name}", getattr(self, name), pattern=r"[^\s@/]+", accepted=accepted)
        if self.domain is not None:
            arguments.text(f"{where} domain", self.domain, pattern=_NAME, accepted="a name without spaces and .*>/\\@")
        object.__setattr__(self, "starting", _starting(f"{where} starting", self.starting))
        object.__setattr__(self, "value", decoding.decoder_of_data(f"{where} value", self.value))
        arguments.integer(f"{where} tasks", self.tasks, least=1, most=1_000)

    @property
    def spark_packages(self) -> tuple[str, ...]:
        return decoding.spark_packages(self.value)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {
            "stream": self.stream, "subject": self.subject, "conn_id": self.conn_id, "servers": self.servers, "domain": self.domain,
            "starting": self.starting, "value": decoding.to_json(self.value), "tasks": self.tasks,
        }  # fmt: skip

    def immutable_config(self) -> Json:
        """Return the stream and the subject. The creation time of the stream is not included, because the offsets contain it."""
        return {"type": "nats", "stream": self.stream, "subject": self.subject}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """Return the OpenLineage dataset ``("nats://host:port", stream)``, with the first server."""
        return [(f"nats://{self.access().servers[0]}", self.stream)]

    def warnings(self) -> list[str]:
        of_registry = registry.warnings(self.value)
        return [*accesses.warnings(self.access(), self.conn_id), *of_registry]

    def access(self) -> Access:
        """
        Return the servers and credentials. Sends no request.

        :raises InvalidError: the connection is not valid
        """
        return access_of(self.conn_id, self.servers)

    @contextmanager
    def opened(self) -> Iterator[tuple[NatsClient, StreamState]]:
        """
        Connect to NATS for the block, and request the state of the stream.

        :raises SourceChangedError: the stream does not exist. Nothing was written
        :raises InvalidError: the stream deletes messages when other consumers acknowledge them
        """
        with connected(self.access(), self.domain) as client:
            state = state_of(client, self.stream)
            if state is None:
                raise SourceChangedError("the stream does not exist; nothing was written", stream=self.stream).advising(
                    "create the stream, or correct `stream` and `domain`; then run again."
                )
            yield client, state

    def end_of(self, client: NatsClient, state: StreamState) -> int:
        """Return one past the last sequence to read. With a ``subject``, this is one past the last message that matches it."""
        if self.subject is None:
            return state.end
        last = client.last(self.stream, self.subject)
        return state.first if last is None else last.sequence + 1

    def initial_offsets(self) -> Offsets:
        with self.opened() as (client, state):
            if self.starting == "earliest":
                return {state.partition: state.first}
            if self.starting == "latest":
                return {state.partition: state.end}
            if isinstance(self.starting, str):
                at_ms = arguments.time_ms("starting", self.starting)
                sequence = first_at(client, state, self.subject or _ALL, at_ms)
                return {state.partition: state.end if sequence is None else sequence}
            if not state.first <= self.starting <= state.end:
                raise InvalidError(
                    "source nats: starting is a sequence that the stream does not have",
                    stream=self.stream,
                    given=self.starting,
                    first=state.first,
                    end=state.end,
                )
            return {state.partition: self.starting}

    @property
    def reads_intervals(self) -> bool:
        return True

    @property
    def lowest_offset(self) -> int:
        return 1

    def offsets_for_time(self, at_ms: int) -> Offsets:
        with self.opened() as (client, state):
            sequence = first_at(client, state, self.subject or _ALL, at_ms)
            return {state.partition: self.end_of(client, state) if sequence is None else sequence}

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """Count the sequences at or after ``start`` that the server has deleted, or may delete soon because of their age (``max_age``)."""
        with self.opened() as (client, state):
            offset, end = position(start, state.partition), self.end_of(client, state)
            first = max(offset, state.first)
            at_risk = 0
            if within_ms is not None and state.kept_ms is not None and first < end:
                young = first_at(client, state, self.subject or _ALL, now_ms + within_ms - state.kept_ms)
                at_risk = max(0, (end if young is None else min(young, end)) - first)
            is_behind = first < end and state.first > 1
            lost = max(0, min(first, end) - max(offset, 1))
            return Expiry(lost=lost, at_risk=at_risk, spare=first - state.first if is_behind else None)

    def open(self, log: CommitLog, hint: Json) -> NatsPlanner:
        return NatsPlanner(self)

    def read_pins(self, pins: Json) -> tuple[SequencePin, ...]:
        return read_pins(pins, self.stream)

    def check_pins(self, pins: Sequence[SequencePin], *, was_read: bool) -> None:
        """
        Check the stream, each range, and that its last message is the planned one (D5). After the read, the first sequence of the stream is not checked.
        Retention may delete the range then, and the executor would have failed on a missing message.
        """
        if not pins:
            return
        with connected(self.access(), self.domain) as client:
            state = state_of(client, self.stream)
            for pin in pins:
                if state is None or state.created != pin.created:
                    summary = "the planned stream was deleted, or deleted and recreated"
                    raise RecordsMissingError(summary, partition=pin.partition)
                _check_history(client, state, pin.end - 1, pin.last_time)
                if not was_read and state.first > pin.start:
                    summary = "the stream no longer has the planned sequences"
                    raise RecordsMissingError(
                        summary, partition=pin.partition, range=(pin.start, pin.end), first=state.first
                    )

    def load(self, spark: SparkSession, pins: Sequence[SequencePin]) -> MessageRecords:
        from airflow_provider_streamsem.connectors.nats.reading import Reading
        from airflow_provider_streamsem.connectors.nats.records import decoded_messages

        reading = Reading(
            access=self.access(), domain=self.domain, subject=self.subject, pins=tuple(pins), tasks=self.tasks
        )
        value = self.value if pins else decoding.without_registry(self.value)
        return decoded_messages(spark, reading, stream=self.stream, value=value)


def _starting(where: str, given: object) -> str | int:
    if isinstance(given, int) and not isinstance(given, bool):
        return arguments.integer(where, given, least=1)
    if given in ("earliest", "latest"):
        return str(given)
    try:
        return arguments.timestamp(where, given)
    except InvalidError as error:
        accepted = ["earliest", "latest", "2026-01-31T00:00:00Z", 42]
        raise InvalidError(f"{where} is not valid", given=str(given)[:40], accepted=accepted) from error


def _check_history(client: NatsClient, state: StreamState, sequence: int, time: str) -> None:
    """A server that lost data assigns its sequences to other messages. ``time`` is as the server writes it; ``""``: unknown."""
    message = client.message(state.name, sequence) if sequence < state.end and time else None
    if sequence >= state.end or (message is not None and message.time != time):
        summary = "the stream lost its newest messages: it ends below a sequence that it had, or another message has this sequence; nothing became visible"
        raise SourceChangedError(summary, partition=state.partition, sequence=sequence, end=state.end).advising(
            "restore the stream, or start a new pipeline with a new log that reads the stream as it is now. Messages at and above this sequence may differ "
            "from those that were committed."
        )


def _mark(hint: Json) -> tuple[str, int, str] | None:
    """Return partition, sequence and time from a hint. A hint of another form is ignored, because hints are not trusted."""
    mark: Any = hint.get("last") if isinstance(hint, dict) else None
    if isinstance(mark, list) and [type(part) for part in mark] == [str, int, str]:
        return mark[0], mark[1], mark[2]
    return None


class NatsPlanner(Planner):
    """The hint names the last sequence of the newest plan and the time of its message: ``{"last": [partition, sequence, time]}``."""

    def __init__(self, source: NatsSource) -> None:
        self._source = source

    def poll(self, hint: Json) -> SourceEnd:
        with self._source.opened() as (client, state):
            return SourceEnd({state.partition: self._source.end_of(client, state)})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Sequences that become a gap do not count towards ``limits.max_rows``."""
        refuse_other_streams({*start, *end.offsets}, self._source.stream)
        with self._source.opened() as (client, state):
            _refuse_other_incarnations({*start, *end.offsets}, state)
            self._check_committed(client, state, start, end, hint)
            unread = between(start, end.offsets).get(state.partition)
            if unread is None:
                return None
            first, last = unread
            low = min(max(first, state.first), last)
            lost = (first, low) if low > max(first, 1) else None
            if lost is not None and on_data_loss == "fail":
                summary = "unread sequences are missing in the stream; nothing was written"
                raise SourceChangedError(summary, partition=state.partition, lost=lost).advising(OR_RECORD_GAP)
            if lost is not None:
                logger.warning("recording sequences %s of %s as a gap: they were deleted", lost, state.partition)
            stop = last if limits.max_rows is None else min(last, low + limits.max_rows)
            stored = client.message(state.name, stop - 1)
        return _slice(state, (first, low, stop), lost, stored)

    def _check_committed(
        self, client: NatsClient, state: StreamState, start: Offsets, end: SourceEnd, hint: Json
    ) -> None:
        """The stream must still have the sequences that were committed and those that a drain must reach."""
        known = max(position(start, state.partition), position(end.offsets, state.partition)) - 1
        if known >= max(state.end, 1):
            _check_history(client, state, known, "")
        mark = _mark(hint)
        if mark is not None and mark[:2] == (state.partition, position(start, state.partition) - 1):
            _check_history(client, state, mark[1], mark[2])

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Sequences from ``start`` to the first message that was stored at or after ``at_ms``."""
        return length(between(start, self._source.offsets_for_time(at_ms)))

    def minimum_clock(self, start: Offsets) -> int | None:
        with self._source.opened() as (client, state):
            message = client.next(state.name, position(start, state.partition), self._source.subject or _ALL)
            return None if message is None else time_ms(message)


def _slice(
    state: StreamState, bounds: tuple[int, int, int], lost: tuple[int, int] | None, stored: Stored | None
) -> SourceSlice:
    """``bounds`` are the start of the range, the first sequence to read, and the end. ``stored`` is the message before the end; ``None``: deleted."""
    first, low, stop = bounds
    time = "" if stored is None else stored.time
    pin = SequencePin(state.name, state.created, max(low, 1), stop, time)
    return SourceSlice(
        ranges={state.partition: (first, stop)},
        gaps={} if lost is None else {state.partition: (lost,)},
        pins=[pin] if pin.start < pin.end else [],
        hint={"last": [state.partition, stop - 1, time]},
        rows=stop - low,
    )


def _refuse_other_incarnations(partitions: set[str], state: StreamState) -> None:
    """The unread messages of a stream that was deleted and recreated are lost."""
    others = sorted(name for name in partitions if name != state.partition)
    if others:
        raise SourceChangedError(
            "the stream has another creation time than in the committed offsets: it was deleted and recreated, and its unread messages are lost; nothing was "
            "written",
            committed=others,
            found=state.partition,
        ).advising("restore the old stream, or start a new pipeline with a new log that reads the new stream.")
