"""
Records in Kafka topics, a version in one transaction with its marker (extra ``kafka``).

All publishers of a sink have one ``transactional.id``. To begin with, each calls ``init_transactions``: Kafka aborts what an older one of that id has open,
waits until what it was committing is whole, and refuses whatever it sends from then on. Only then is the marker read, from the control topic to its end, and
only this very producer commits records and marker. So a commit that succeeds proves that nobody began after it, and therefore that the marker was still the
one it had read: whoever sleeps between the two and wakes late is fenced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeGuard

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, UnavailableError
from airflow_provider_streamsem.kafka_client import QUIET, REFUSALS, error_name, settings_of
from airflow_provider_streamsem.protocol.entries import Committable, Json, Receipt
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger, SinkMarker
from airflow_provider_streamsem.sinks.kafka_control import Control
from airflow_provider_streamsem.sinks.kafka_rows import COLUMNS, OVERHEAD_BYTES, Measured, check_columns, records
from airflow_provider_streamsem.sinks.staged import StagedSink, record_batches
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

_TRIES = 5
_POLL_S = 0.5
_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_OPTIONS = ("batch.size", "compression.type", "linger.ms", "message.max.bytes", "partitioner")
_MESSAGE_MAX_BYTES = 1_000_000
# A producer that is fenced says so once, and from then on only that it is dead.
_FENCED = ("_FENCED", "_FATAL", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_FOR_GOOD = (
    *REFUSALS,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "INVALID_RECORD",
    "_INVALID_ARG",
)


@dataclass(frozen=True, slots=True)
class KafkaSink(StagedSink):
    """
    Rows as records: columns ``value`` and, where they are there, ``key``, ``headers array<struct<key string, value binary>>``, ``topic``, ``partition``.

    Consumers with ``isolation.level=read_committed`` see all records of a version or none, and each once. A redo is refused: a record cannot be taken back.

    :param staging: where rows wait for their transaction, as Parquet: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param topic: of rows that name none
    :param conn_id: an Airflow connection of type ``kafka``; either this or ``bootstrap_servers``
    :param bootstrap_servers: ``host:port,…`` of a cluster without security
    :param control_topic: where the markers are kept; made where it is missing
    :param transaction_timeout_s: seconds after which Kafka aborts a transaction that was not committed; consumers wait so long for a publisher that died
    :param bytes_per_s: how fast Kafka can be counted on to take records: with the time-out, the largest batch that is accepted
    :param options: of librdkafka's producer: ``compression.type``, ``linger.ms``, ``batch.size``, ``message.max.bytes``, ``partitioner``
    """

    extra: ClassVar[str] = "kafka"
    delivery: ClassVar[str] = "exactly_once"
    reasons: ClassVar[tuple[str, ...]] = (
        "each version is one Kafka transaction, which holds its records and its marker; a publisher fences every older one before it reads the marker",
        "exactly once is what consumers with isolation.level=read_committed see; others also see records of transactions that were aborted",
    )
    redoes: ClassVar[bool] = False
    keeps_staged: ClassVar[bool] = False
    staging: str
    topic: str | None = None
    conn_id: str | None = None
    bootstrap_servers: str | None = None
    control_topic: str = "__streamsem_markers"
    transaction_timeout_s: int = 60
    bytes_per_s: int = 5_000_000
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink kafka:"
        open_dataset(arguments.text(f"{where} staging", self.staging))
        for name in ("topic", "control_topic"):
            if getattr(self, name) is not None:
                arguments.text(f"{where} {name}", getattr(self, name), pattern=_TOPIC, accepted=_TOPIC)
        if self.topic == self.control_topic:
            raise InvalidError(f"{where} records cannot lie in the control topic", given=self.topic)
        if (self.conn_id is None) == (self.bootstrap_servers is None):
            raise InvalidError(f"{where} exactly one of conn_id and bootstrap_servers must be given")
        for name in ("conn_id", "bootstrap_servers"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}", getattr(self, name), pattern=r"[^\s@]+", accepted="text without spaces and '@'"
                )
        arguments.whole(f"{where} transaction_timeout_s", self.transaction_timeout_s, least=1)
        arguments.whole(f"{where} bytes_per_s", self.bytes_per_s, least=1)
        given = arguments.options(f"{where} options", self.options)
        arguments.known_keys(f"{where} options", given, _OPTIONS)
        object.__setattr__(self, "options", given)

    @property
    def place(self) -> str:
        """Where rows are staged."""
        return self.staging

    def guarded(self) -> Json:
        """Where the markers are. Topics may change: a row may name its own."""
        return {"type": "kafka", "staging": normalised(self.staging), "control_topic": self.control_topic}

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """As every staged sink; where the log is new the control topic is made, and never later: an empty one would say that nothing was sent."""
        StagedSink.claim(self, pipeline_uuid, log, new=new)
        if new:
            self._control().ensure()

    def accept(self, schema: str) -> str:
        """The columns must be a record's, and the control topic fit to keep markers."""
        check_columns(schema, self.topic)
        control = self._control()
        if control.is_gone():
            what = (
                "the control topic was deleted; nothing became visible. Create it again (one partition, cleanup.policy=compact) and run again: the run then "
                "stops before it sends anything, and names the marker that the topic needs"
            )
            raise DataError(what, control_topic=self.control_topic)
        control.check()
        return schema

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Count the staged files, and look whether one transaction can carry them.

        :raises DataError: it cannot, or a row names a place that is not there
        """
        committable = StagedSink.collect(self, version, attempt_id, accepted)
        if committable.files:
            self._check(self._measured(committable, version))
        return committable

    def _measured(self, committable: Committable, version: int) -> Measured:
        measured = Measured()
        batch = Batch(
            pipeline_uuid="", sink="", version=version, outcome="", committable=committable, schema="", root=version
        )
        for rows in record_batches(self.staging, batch):
            measured.add(rows)
        return measured

    def _check(self, measured: Measured) -> None:
        needs_s = measured.bytes / self.bytes_per_s
        if needs_s > self.transaction_timeout_s:
            raise DataError(
                "the batch is larger than one Kafka transaction can carry: bytes / bytes_per_s > transaction_timeout_s. Smaller limits, or a longer time-out, "
                "let it pass; nothing became visible",
                rows=measured.rows,
                bytes=measured.bytes,
                bytes_per_s=self.bytes_per_s,
                needs_s=round(needs_s, 1),
                transaction_timeout_s=self.transaction_timeout_s,
                rows_that_fit=int(measured.rows * self.transaction_timeout_s / needs_s),
            )
        control, places = self._control(), {(topic or self.topic, at) for topic, at in measured.places}
        if any(topic is None or topic == self.control_topic for topic, _ in places):
            raise DataError("a row names no topic, or the control topic; nothing became visible", columns=COLUMNS)
        topics = {str(topic) for topic, _ in places}
        counts = control.partitions(topics)
        for topic, at in sorted(places, key=str):
            if topic not in counts or (at is not None and not 0 <= at < counts[topic]):
                raise DataError(
                    "a row names a topic or partition that does not exist; nothing became visible",
                    topic=topic,
                    partition=at,
                    partitions=counts.get(str(topic)),
                )
        compacted = {topic for topic, policy in control.config(topics, "cleanup.policy").items() if "compact" in policy}
        keyless = sorted(compacted & {topic or self.topic for topic in measured.keyless})
        if keyless:
            raise DataError("a row for a compacted topic has no key; nothing became visible", topics=keyless)
        most = [int(most) for most in control.config(topics, "max.message.bytes").values()]
        accepted = min(int(self.options.get("message.max.bytes", _MESSAGE_MAX_BYTES)), *most) - OVERHEAD_BYTES
        if measured.largest > accepted:
            raise DataError(
                "a record is larger than the topic or the producer takes; nothing became visible",
                bytes=measured.largest,
                accepted=accepted,
                settings=["message.max.bytes of the sink's options", "max.message.bytes of the topic"],
            )

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One transaction with the records and the marker."""
        return self._until_marked(batch, state="applied")

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One transaction with the marker alone."""
        return self._until_marked(batch, state="skipped")

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """What the control topic says."""
        return self._control().marker(f"{pipeline_uuid}/{sink}", within_s=self.transaction_timeout_s)

    def _control(self) -> Control:
        return Control(settings_of(self.conn_id, self.bootstrap_servers), self.control_topic)

    def _until_marked(self, batch: Batch, *, state: str) -> Receipt | None:
        """Begin anew, and look what the marker says, until it says that the version is there."""
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        from confluent_kafka import KafkaException

        control = self._control()
        if state == "applied" and control.is_gone():
            what = (
                "the control topic was deleted, and with it the marker that says whether the batch is in Kafka. Check whether the batch is in its topics; "
                "to have it sent, create the control topic again (one partition, cleanup.policy=compact)"
            )
            raise batch.lost(what, control_topic=self.control_topic, key=_key(batch))
        control.check() if state == "applied" else control.ensure()
        failed = _Failure()
        for _ in range(_TRIES):
            producer = None
            try:
                producer = self._fencing(batch)
                found = control.marker(_key(batch), within_s=self.transaction_timeout_s)
                if _is_over(found, batch):
                    return _told(batch, found)
                if state == "applied":
                    self._check_marker(batch, found)
                # What a failed try said is believed only now that the marker says that nothing of it is there.
                self._give_up(batch, failed)
                self._commit(producer, batch, state)
                return _told(batch, SinkMarker(batch.version, state, batch.outcome))
            except _NotTakenError as error:
                failed = _Failure(str(error), error)
            except KafkaException as error:
                failed = _Failure(error_name(error), error)
            finally:
                _let_go(producer)
            if failed.name in _FENCED:
                found = self._awaited(control, batch)
                if _is_over(found, batch):
                    return _told(batch, found)
            if producer is None:
                self._give_up(batch, failed, "Kafka refuses the publisher, which put nothing there")
            SYSTEM_CLOCK.sleep(_POLL_S)
        raise UnavailableError(
            "Kafka gave no clear answer; whether the batch is there is unknown. Where its transactions time out, transaction_timeout_s is too short for it",
            version=batch.version,
            sink=batch.sink,
            bytes=sum(file.bytes for file in batch.committable.files),
            transaction_timeout_s=self.transaction_timeout_s,
            error=failed.name,
        ) from failed.error

    def _check_marker(self, batch: Batch, found: SinkMarker | None) -> None:
        what = "the control topic has no marker of this pipeline, which has sent records by its receipts: the topic was deleted and created again"
        batch.check_marker(found, what, control_topic=self.control_topic, key=_key(batch))

    def _fencing(self, batch: Batch) -> Any:
        """A producer after whose making every older one of this sink is fenced."""
        from confluent_kafka import Producer

        timeout_ms = self.transaction_timeout_s * 1000
        settings = settings_of(self.conn_id, self.bootstrap_servers)
        producer = Producer(
            {
                "linger.ms": "20", "compression.type": "zstd", "partitioner": "murmur2_random", "message.max.bytes": str(_MESSAGE_MAX_BYTES),
                **settings, **self.options, "transactional.id": f"streamsem-{batch.pipeline_uuid}-{batch.sink}",
                "enable.idempotence": True, "transaction.timeout.ms": timeout_ms, "delivery.timeout.ms": timeout_ms, "logger": QUIET,
            }
        )  # fmt: skip
        producer.init_transactions(self.transaction_timeout_s + 10)
        return producer

    def _commit(self, producer: Any, batch: Batch, state: str) -> None:
        """All records and the marker, in one transaction. What is raised says nothing about whether it was committed."""
        from confluent_kafka import KafkaException

        refused: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None and not refused:
                refused.append(error.name())

        def send(**record: Any) -> None:
            while True:
                try:
                    producer.produce(**record, on_delivery=delivered)
                    return
                except BufferError:
                    producer.poll(_POLL_S)  # the transaction's own time-out ends this

        producer.begin_transaction()
        try:
            for at, record in enumerate(self._records(batch, state)):
                send(**record)
                if at % 1000 == 0:
                    producer.poll(0)
                    if refused:
                        break
            else:
                # The last to be sent, so that the control topic is held open for as short as can be.
                send(topic=self.control_topic, partition=0, key=_key(batch), value=_value(batch, state))
                producer.commit_transaction(self.transaction_timeout_s + 10)
                return
            raise _NotTakenError(refused[0])
        except KafkaException as error:
            raise (_NotTakenError(refused[0]) if refused and refused[0] in _FOR_GOOD else error) from error

    def _records(self, batch: Batch, state: str) -> Iterator[dict[str, Any]]:
        return records(record_batches(self.staging, batch), self.topic) if state == "applied" else iter(())

    def _awaited(self, control: Control, batch: Batch) -> SinkMarker | None:
        """Somebody began after this process: leave it the time to end, or two would fence one another for ever."""
        found, deadline = None, time.monotonic() + self.transaction_timeout_s
        while not _is_over(found, batch) and time.monotonic() < deadline:
            SYSTEM_CLOCK.sleep(_POLL_S)
            with suppress(UnavailableError):
                found = control.marker(_key(batch), within_s=self.transaction_timeout_s)
        return found

    def _give_up(
        self, batch: Batch, failed: _Failure, truth: str = "Kafka refuses the batch; nothing of it is there"
    ) -> None:
        if failed.name in _FOR_GOOD:
            raise PublishError(
                truth,
                version=batch.version,
                sink=batch.sink,
                error=failed.name,
                transaction_timeout_s=self.transaction_timeout_s,
            ) from failed.error


@dataclass(frozen=True, slots=True)
class _Failure:
    """How the last try ended, by Kafka's name of it."""

    name: str = ""
    error: Exception | None = None


class _NotTakenError(Exception):
    """A record that Kafka does not take; by the name of its error. Never leaves this module."""


def _let_go(producer: Any) -> None:
    """Abort what is open, so that consumers need not wait for its time-out. Nothing rests on it: the next publisher aborts it, too."""
    if producer is not None:
        with suppress(Exception):
            producer.abort_transaction(1)
        with suppress(Exception):
            producer.purge()


def _key(batch: Batch) -> str:
    return f"{batch.pipeline_uuid}/{batch.sink}"


def _value(batch: Batch, state: str) -> str:
    return json.dumps({"version": batch.version, "state": state, "outcome": batch.outcome}, separators=(",", ":"))


def _is_over(found: SinkMarker | None, batch: Batch) -> TypeGuard[SinkMarker]:
    """Whether the marker is of this commit, or above its version."""
    return found is not None and (found.version > batch.version or batch.is_settled(found))


def _told(batch: Batch, marker: SinkMarker) -> Receipt | None:
    """What a marker of the commit, or above its version, says of the batch."""
    if marker.version > batch.version:
        return None
    applied = marker.state == "applied"
    return Receipt(result="applied" if applied else "skipped", rows=batch.committable.rows if applied else 0)
