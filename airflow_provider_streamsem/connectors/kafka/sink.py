"""
Kafka sink: writes the records and the marker of each version in one Kafka transaction (extra ``kafka``).

All publishers of a sink share one ``transactional.id``. Each publisher performs three steps:

1. It calls ``init_transactions``. Kafka aborts the open transaction of an older producer with this id, or completes it if it is being committed. Kafka
   rejects every later request of the older producer.
2. It reads the marker, from the start of the control topic to its end.
3. It commits the records and the marker with the producer of step 1.

A successful commit therefore proves that no other publisher called ``init_transactions`` after step 1, and that the marker is still the one of step 2.
Kafka fences a zombie that was suspended between the steps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeGuard

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.kafka import authentication
from airflow_provider_streamsem.connectors.kafka.client import QUIET, REFUSALS, error_name, settings_of
from airflow_provider_streamsem.connectors.kafka.control_topic import ControlTopic
from airflow_provider_streamsem.connectors.kafka.rows import COLUMNS, OVERHEAD_BYTES, Measured, check_columns, records
from airflow_provider_streamsem.connectors.kafka.starting import TOPIC
from airflow_provider_streamsem.connectors.sink import SENT_IN_ORDER, SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink, record_batches
from airflow_provider_streamsem.connectors.staged_parquet.transactions import Failure, TransactionalSink
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError, UnavailableError
from airflow_provider_streamsem.expectations import Expect, set_expectations
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

_POLL_S = 0.5
_OPTIONS = ("batch.size", "compression.type", "linger.ms", "message.max.bytes", "partitioner")
_MESSAGE_MAX_BYTES = 1_000_000
# A fenced producer raises the fencing error once. Later calls raise only a fatal error.
_FENCED = ("_FENCED", "_FATAL", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_PERMANENT = (
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
class _Handle:
    """The producer has fenced all older ones before the marker was read. It is ``None`` if another publisher has published the batch."""

    producer: Any
    marker: SinkMarker | None


@dataclass(frozen=True, slots=True)
class KafkaSink(TransactionalSink[_Handle]):
    """
    Writes each row as a Kafka record.

    The column ``value`` is required. The columns ``key``, ``headers array<struct<key string, value binary>>``, ``topic`` and ``partition`` are optional.
    ``key`` and ``value`` are strings or binary, ``topic`` is a string, ``partition`` is an integer.

    Records are sent in the order of the source, if it has one and the transform only selects and filters rows. Else sort the rows in the last step of the
    transform.

    Consumers with ``isolation.level=read_committed`` see all records of a version exactly once, or none. The sink refuses reprocessing, because Kafka cannot
    remove the records of a version.

    :param staging: location in which rows are staged as Parquet before their transaction: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param topic: the topic of rows without a value in the column ``topic``
    :param conn_id: an Airflow connection of type ``kafka``. Exactly one of ``conn_id`` and ``bootstrap_servers`` must be given
    :param bootstrap_servers: ``host:port,…`` of a cluster without security
    :param control_topic: the topic that stores the markers. The first run of a pipeline creates it if it is missing
    :param transaction_timeout_s: seconds after which Kafka aborts a transaction that was not committed, 1 or more. Consumers wait at most this long for a
        publisher that died
    :param bytes_per_s: bytes per second that the sink can reliably send, 1 or more. The largest accepted batch is ``bytes_per_s`` × ``transaction_timeout_s``
    :param options: options of librdkafka's producer: ``compression.type``, ``linger.ms``, ``batch.size``, ``message.max.bytes``, ``partitioner``
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "kafka"
    tries: ClassVar[int] = 5
    first_wait_s: ClassVar[float] = 0.2
    reopens: ClassVar[bool] = False
    reasons: ClassVar[tuple[str, ...]] = (
        "one Kafka transaction contains the records of a version and its marker; a publisher fences all older publishers before it reads the marker",
        "consumers with isolation.level=read_committed see each record exactly once; other consumers also see records of aborted transactions",
        f"{SENT_IN_ORDER.format(unless=', unless the transform sorts them last')}. A compacted topic keeps the row that is sent last",
    )
    is_sequenced: ClassVar[bool] = True
    can_remove_rows: ClassVar[bool] = False
    staging: str
    topic: str | None = None
    conn_id: str | None = None
    bootstrap_servers: str | None = None
    control_topic: str = "__streamsem_markers"
    transaction_timeout_s: int = 60
    bytes_per_s: int = 5_000_000
    options: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, Expect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink kafka:"
        set_expectations(where, self)
        open_dataset(arguments.text(f"{where} staging", self.staging))
        for name in ("topic", "control_topic"):
            if getattr(self, name) is not None:
                arguments.text(f"{where} {name}", getattr(self, name), pattern=TOPIC, accepted=TOPIC)
        if self.topic == self.control_topic:
            raise InvalidError(f"{where} topic and control_topic must be different topics", given=self.topic)
        arguments.exactly_one(where, conn_id=self.conn_id, bootstrap_servers=self.bootstrap_servers)
        for name in ("conn_id", "bootstrap_servers"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}", getattr(self, name), pattern=r"[^\s@]+", accepted="text without spaces and '@'"
                )
        arguments.integer(f"{where} transaction_timeout_s", self.transaction_timeout_s, least=1)
        arguments.integer(f"{where} bytes_per_s", self.bytes_per_s, least=1)
        options = arguments.options(f"{where} options", self.options)
        arguments.known_keys(f"{where} options", options, _OPTIONS)
        object.__setattr__(self, "options", options)

    @property
    def location(self) -> str:
        return self.staging

    def immutable_config(self) -> Json:
        """The staging location and the control topic. The topics of the records may change, because each row may name its topic."""
        return {"type": "kafka", "staging": normalised(self.staging), "control_topic": self.control_topic}

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """If the log is new, also create the control topic."""
        StagedSink.claim(self, pipeline_uuid, log, new=new)
        if new:
            self._control().ensure()

    def resolve_schema(self, schema: str) -> str:
        """Also refuse a control topic that was deleted (``DataError``) or whose configuration could lose markers (``InvalidError``)."""
        check_columns(schema, self.topic)
        control = self._control()
        if control.is_missing():
            summary = "the control topic was deleted"
            raise DataError(summary, control_topic=self.control_topic).advising(
                "recreate the control topic (one partition, cleanup.policy=compact), and run again. If the sink has published before, that run fails before "
                "it sends a record, and its error names the marker to write into the topic."
            )
        control.check()
        return schema

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Also refuse a batch that is too large for one transaction, a record that is too large, a row that has no topic or names a topic or partition that does
        not exist, and a row for a compacted topic without a key.
        """
        committable = StagedSink.collect(self, version, attempt_id, accepted)
        if committable.rows:  # Spark may write a file without rows
            measured = self._measured(committable, version)
            self._check_transaction_size(measured)
            self._check_topics(measured)
        return committable

    def _measured(self, committable: Committable, version: int) -> Measured:
        measured = Measured()
        batch = SinkCommit(
            pipeline_uuid="", sink="", version=version, outcome="", committable=committable, schema="", root=version
        )
        for rows in record_batches(self.staging, batch):
            measured.add(rows)
        return measured

    def _check_transaction_size(self, measured: Measured) -> None:
        """The sink must be able to send the batch before the transaction times out."""
        needs_s = measured.bytes / self.bytes_per_s
        if needs_s > self.transaction_timeout_s:
            raise DataError(
                "the batch is too large for one Kafka transaction: bytes / bytes_per_s > transaction_timeout_s",
                rows=measured.rows,
                bytes=measured.bytes,
                bytes_per_s=self.bytes_per_s,
                needs_s=round(needs_s, 1),
                transaction_timeout_s=self.transaction_timeout_s,
                rows_that_fit=int(measured.rows * self.transaction_timeout_s / needs_s),
            ).advising("lower the pipeline's limits, or raise transaction_timeout_s; then run again.")

    def _check_topics(self, measured: Measured) -> None:
        control = self._control()
        topic_partitions = {(topic or self.topic, partition) for topic, partition in measured.topic_partitions}
        if any(topic is None or topic == self.control_topic for topic, _ in topic_partitions):
            raise DataError("a row has no topic, or its topic is the control topic", columns=COLUMNS)
        topics = {str(topic) for topic, _ in topic_partitions}
        counts = control.partitions(topics)
        for topic, partition in sorted(topic_partitions, key=str):
            if topic not in counts or (partition is not None and not 0 <= partition < counts[topic]):
                raise DataError(
                    "a row names a topic or partition that does not exist",
                    topic=topic,
                    partition=partition,
                    partitions=counts.get(str(topic)),
                )
        compacted = {topic for topic, policy in control.config(topics, "cleanup.policy").items() if "compact" in policy}
        keyless = sorted(compacted & {topic or self.topic for topic in measured.keyless})
        if keyless:
            raise DataError("a row for a compacted topic has no key", topics=keyless)
        limits = [int(limit) for limit in control.config(topics, "max.message.bytes").values()]
        accepted = min(self._most_bytes(), *limits) - OVERHEAD_BYTES
        if measured.largest > accepted:
            raise DataError(
                "a record is larger than the topic or the producer accepts",
                bytes=measured.largest,
                accepted=accepted,
                settings=[
                    "message.max.bytes of the sink's options or the connection",
                    "max.message.bytes of the topic",
                ],
            )

    def warnings(self) -> list[str]:
        """Return a warning for each kind of credentials that is sent without encryption: to a broker or a token endpoint."""
        settings = settings_of(self.conn_id, self.bootstrap_servers)
        return authentication.warnings("sink kafka", self.conn_id, settings)

    def copies_of_erased(self) -> tuple[str, ...]:
        return (
            f"the topic {self.topic}: its retention deletes the records, or compaction, if the key is written again without a value",
        )

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        return self._control().marker(f"{pipeline_uuid}/{sink}", within_s=self.transaction_timeout_s)

    def _control(self) -> ControlTopic:
        return ControlTopic(settings_of(self.conn_id, self.bootstrap_servers), self.control_topic)

    @contextmanager
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> Iterator[_Handle]:
        """
        Create a producer that fences all older producers of this sink, then read the marker.

        If the previous try was fenced, first wait until the other publisher has published the batch, so that two publishers do not fence each other forever.
        """
        control = self._control()
        self._check_control(control, batch, skips=skips)
        if failure is not None and _name(failure.error) in _FENCED:
            marker = self._wait_until_published(control, batch)
            if _is_published(marker, batch):
                yield _Handle(None, marker)
                return
        producer = None
        try:
            producer = self._fencing_producer(batch)
            yield _Handle(producer, control.marker(_key(batch), within_s=self.transaction_timeout_s))
        except Exception as error:
            if producer is None and self.is_refusal(error):
                raise self._publish_error(
                    batch, error, "Kafka refuses the sink's producer, which sent no records"
                ) from error
            raise
        finally:
            _abort_quietly(producer)

    def _check_control(self, control: ControlTopic, batch: SinkCommit, *, skips: bool) -> None:
        try:
            self._require_control(control, batch, creates=skips)
        except InvalidError as error:
            raise PublishError(error.summary, **error.fields, version=batch.version) from None

    def _require_control(self, control: ControlTopic, batch: SinkCommit, *, creates: bool) -> None:
        if creates:
            control.ensure()
            return
        if control.is_missing():
            summary = "the control topic was deleted, and with it the marker that records whether the batch is in Kafka"
            raise batch.marker_lost_error(summary, control_topic=self.control_topic, key=_key(batch)).advising(
                "check whether the batch is in its topics. If not, recreate the control topic (one partition, cleanup.policy=compact), write the expected "
                "marker into it, and run again. If it is, or if you accept its loss, use `streamsem skip`."
            )
        control.check()

    def marker_in(self, handle: _Handle, batch: SinkCommit) -> SinkMarker | None:
        return handle.marker

    def check_sink(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None) -> None:
        summary = "the control topic has no marker of this pipeline, but the log has receipts of sent records: the topic was deleted and recreated"
        if not batch.is_settled(marker):
            batch.check_marker(marker, summary, control_topic=self.control_topic, key=_key(batch))

    def commit(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        self._commit(handle.producer, batch, "skipped" if skips else "applied")
        return True

    def is_refusal(self, error: Exception) -> bool:
        return _name(error) in _PERMANENT

    def refused_error(self, batch: SinkCommit, cause: Exception) -> StreamsemError:
        return self._publish_error(
            batch, cause, "Kafka refuses the batch; no record of the batch is committed in Kafka"
        )

    def unknown_result_error(self, batch: SinkCommit, cause: Exception | None) -> StreamsemError:
        """Return an error that names Kafka's error and the settings of the transaction."""
        if isinstance(cause, StreamsemError):
            return cause
        error = UnavailableError(
            "Kafka did not report the result of a request; whether Kafka committed the batch is unknown",
            version=batch.version,
            sink=batch.sink,
            bytes=sum(file.bytes for file in batch.committable.files),
            transaction_timeout_s=self.transaction_timeout_s,
            error="" if cause is None else _name(cause),
        ).advising(
            "run again: the next run reads the marker. If the transactions time out, raise transaction_timeout_s."
        )
        error.__cause__ = cause
        return error

    def _publish_error(self, batch: SinkCommit, cause: Exception, summary: str) -> PublishError:
        error = PublishError(
            summary,
            version=batch.version,
            sink=batch.sink,
            error=_name(cause),
            transaction_timeout_s=self.transaction_timeout_s,
        )
        error.__cause__ = cause
        return error

    def _fencing_producer(self, batch: SinkCommit) -> Any:
        from confluent_kafka import Producer

        timeout_ms = self.transaction_timeout_s * 1000
        producer = Producer(
            {
                **self._producer_settings(), "transactional.id": f"streamsem-{batch.pipeline_uuid}-{batch.sink}",
                "enable.idempotence": True, "transaction.timeout.ms": timeout_ms, "delivery.timeout.ms": timeout_ms, "logger": QUIET,
            }
        )  # fmt: skip
        producer.init_transactions(self.transaction_timeout_s + 10)
        return producer

    def _most_bytes(self) -> int:
        given = str(self._producer_settings()["message.max.bytes"])
        if not given.isdecimal():
            raise InvalidError(
                "message.max.bytes of the Kafka connection is not a number; nothing was written", given=given
            )
        return int(given)

    def _producer_settings(self) -> dict[str, Any]:
        """Settings of the options precede those of the connection, and those precede the defaults of this sink."""
        return {
            "linger.ms": "20", "compression.type": "zstd", "partitioner": "murmur2_random", "message.max.bytes": str(_MESSAGE_MAX_BYTES),
            **authentication.client_settings(settings_of(self.conn_id, self.bootstrap_servers)), **self.options,
        }  # fmt: skip

    def _commit(self, producer: Any, batch: SinkCommit, state: str) -> None:
        """If this method raises an exception, the transaction may still have been committed."""
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
                    producer.poll(_POLL_S)  # The timeout of the transaction ends this loop.

        producer.begin_transaction()
        try:
            for at, record in enumerate(self._records(batch, state)):
                send(**record)
                if at % 1000 == 0:
                    producer.poll(0)
                    if refused:
                        break
            else:
                # An open transaction with a record in the control topic blocks its readers, so the marker is sent last.
                send(topic=self.control_topic, partition=0, key=_key(batch), value=_value(batch, state))
                producer.commit_transaction(self.transaction_timeout_s + 10)
                return
            raise _RecordRejectedError(refused[0])
        except KafkaException as error:
            raise (_RecordRejectedError(refused[0]) if refused and refused[0] in _PERMANENT else error) from error

    def _records(self, batch: SinkCommit, state: str) -> Iterator[dict[str, Any]]:
        return records(record_batches(self.staging, batch), self.topic) if state == "applied" else iter(())

    def _wait_until_published(self, control: ControlTopic, batch: SinkCommit) -> SinkMarker | None:
        """Wait at most ``transaction_timeout_s``. Returns the marker that was read last."""
        marker, deadline = None, time.monotonic() + self.transaction_timeout_s
        while not _is_published(marker, batch) and time.monotonic() < deadline:
            SYSTEM_CLOCK.sleep(_POLL_S)
            with suppress(UnavailableError):
                marker = control.marker(_key(batch), within_s=self.transaction_timeout_s)
        return marker


class _RecordRejectedError(Exception):
    """The message is the name of Kafka's error. The exception never leaves this module."""


def _name(error: Exception) -> str:
    return str(error) if isinstance(error, _RecordRejectedError) else error_name(error)


def _abort_quietly(producer: Any) -> None:
    """Consumers then need not wait for the timeout of the transaction. Best effort: otherwise the next publisher aborts it."""
    if producer is not None:
        with suppress(Exception):
            producer.abort_transaction(1)
        with suppress(Exception):
            producer.purge()


def _key(batch: SinkCommit) -> str:
    return f"{batch.pipeline_uuid}/{batch.sink}"


def _value(batch: SinkCommit, state: str) -> str:
    return json.dumps({"version": batch.version, "state": state, "outcome": batch.outcome}, separators=(",", ":"))


def _is_published(marker: SinkMarker | None, batch: SinkCommit) -> TypeGuard[SinkMarker]:
    return marker is not None and (marker.version > batch.version or batch.is_settled(marker))
