"""
Pulsar source: bounded reads of a topic over a range ``[start, end)`` of the entries of each partition.

The planner reads the ledgers of each partition from the admin API, and pins the entries of each ledger. Executors read them with a reader, which has no
subscription on the broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.parsing import decoders as decoding
from airflow_provider_streamsem.connectors.parsing import registry
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.pulsar import access as accesses
from airflow_provider_streamsem.connectors.pulsar.access import ADMIN_URL, SERVICE_URL, Access, access_of
from airflow_provider_streamsem.connectors.pulsar.admin import PulsarAdmin
from airflow_provider_streamsem.connectors.pulsar.entries import LedgerPin, read_pins
from airflow_provider_streamsem.connectors.pulsar.planner import DO_LOST, DO_WITHOUT_MESSAGE, PulsarPlanner
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.errors import DataError, InvalidError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords

_TOPIC = r"[\w=:.%-]+"
_WITHOUT_MESSAGE = re.compile(r"(\S+) has no message for the planned entry ([0-9]+:[0-9]+)")
_FULL_TOPIC = rf"(persistent://{_TOPIC}/{_TOPIC}/)?{_TOPIC}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSource(Source):
    """
    Reads the messages of a Pulsar topic, with or without partitions.

    Without a ``value`` decoder the columns are ``topic string, ledger_id long, entry_id long, batch_index int, publish_timestamp timestamp, event_timestamp
    timestamp, key string, properties map<string,string>, data binary``. With a ``value`` decoder they are the fields of the data, and the other columns with
    the prefix ``pulsar_``. A null message has null fields. A message that cannot be decoded is quarantined with topic, ledger, entry and batch index.

    :param topic: name of the topic: ``orders``, or ``persistent://tenant/namespace/orders``
    :param conn_id: an Airflow connection of type ``pulsar``. Either this, or ``service_url`` and ``admin_url``, must be given
    :param service_url: ``pulsar://host:port`` of a cluster without security
    :param admin_url: ``http://host:port`` of its admin API
    :param starting: where a new pipeline starts: ``earliest``, ``latest``, or a timestamp with a time zone such as ``2026-01-31T00:00:00Z`` (inclusive).
        Partitions that are created later are read from their beginning
    :param value: decoder of the data, :class:`Json`, :class:`Avro` or :class:`Protobuf`. Default: the data stays binary
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    extra: ClassVar[str] = "pulsar"
    unit: ClassVar[str] = "partitions"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    compacts: ClassVar[bool] = True
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan records ranges of ledgers and entries, whose ids Pulsar never uses again, and every attempt reads exactly these ranges",
        "each planned entry must have a message; deleted ledgers fail the run, or are recorded as gaps",
    )
    topic: str
    conn_id: str | None = None
    service_url: str | None = None
    admin_url: str | None = None
    starting: str = "earliest"
    value: Decoder | None = None

    def __post_init__(self) -> None:
        where = "source pulsar:"
        accepted = "orders, or persistent://tenant/namespace/orders"
        topic = arguments.text(f"{where} topic", self.topic, pattern=_FULL_TOPIC, accepted=accepted)
        object.__setattr__(self, "topic", topic if "://" in topic else f"persistent://public/default/{topic}")
        urls = (self.service_url, self.admin_url)
        if (self.conn_id is not None) == (None not in urls) or (self.conn_id is not None and urls != (None, None)):
            raise InvalidError(f"{where} either conn_id, or both service_url and admin_url must be given")
        if self.conn_id is not None:
            arguments.text(f"{where} conn_id", self.conn_id, pattern=r"[^\s@]+", accepted="text without spaces and '@'")
        else:
            arguments.text(f"{where} service_url", self.service_url, pattern=SERVICE_URL, accepted="pulsar://host:port")
            arguments.text(f"{where} admin_url", self.admin_url, pattern=ADMIN_URL, accepted="http://host:port")
        if self.starting not in ("earliest", "latest"):
            object.__setattr__(self, "starting", arguments.timestamp(f"{where} starting", self.starting))
        object.__setattr__(self, "value", decoding.decoder_of_data(f"{where} value", self.value))

    @property
    def spark_packages(self) -> tuple[str, ...]:
        return decoding.spark_packages(self.value)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {
            "topic": self.topic, "conn_id": self.conn_id, "service_url": self.service_url, "admin_url": self.admin_url,
            "starting": self.starting, "value": decoding.to_json(self.value),
        }  # fmt: skip

    def immutable_config(self) -> Json:
        return {"type": "pulsar", "topic": self.topic}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """Return the OpenLineage dataset ``("pulsar://host:port", topic)``."""
        return [(self.access().service_url.replace("pulsar+ssl://", "pulsar://"), self.topic)]

    def warnings(self) -> list[str]:
        of_registry = registry.warnings(self.value)
        return [*accesses.warnings(self.access(), self.conn_id), *of_registry]

    def access(self) -> Access:
        """
        Return the URLs and credentials. Sends no request.

        :raises InvalidError: the connection is not valid
        """
        return access_of(self.conn_id, self.service_url, self.admin_url)

    def admin(self) -> PulsarAdmin:
        """Return the object that sends requests to the admin API. Sends none."""
        return PulsarAdmin(self.access(), self.topic)

    def initial_offsets(self) -> Offsets:
        planner = PulsarPlanner(self.topic, self.access())
        if self.starting == "earliest":
            return {name: ledgers.first for name, ledgers in planner.ledgers().items()}
        if self.starting == "latest":
            return {name: ledgers.end for name, ledgers in planner.ledgers().items()}
        return planner.offsets_for_time(arguments.time_ms("starting", self.starting))

    def offsets_for_time(self, at_ms: int) -> Offsets:
        return PulsarPlanner(self.topic, self.access()).offsets_for_time(at_ms)

    def count(self, ranges: Ranges) -> int:
        """Return the number of partitions with a range, because offsets of several ledgers are not consecutive."""
        return len(ranges)

    def open(self, log: CommitLog, hint: Json) -> PulsarPlanner:
        return PulsarPlanner(self.topic, self.access())

    def read_pins(self, pins: Json) -> tuple[LedgerPin, ...]:
        return read_pins(pins, self.topic)

    def check_pins(self, pins: Sequence[LedgerPin], *, was_read: bool) -> None:
        """Check each pinned ledger and its entries (D5). After the read, missing ledgers are accepted, because each entry had a message then."""
        admin = self.admin()
        for topic in sorted({pin.topic for pin in pins}):
            ledgers = admin.ledgers(topic)
            entries: Mapping[int, int] = {} if ledgers is None else ledgers.entries
            for pin in (pin for pin in pins if pin.topic == topic):
                found = entries.get(pin.ledger)
                if found is None and not was_read:
                    summary = "Pulsar no longer has a planned ledger"
                    raise RecordsMissingError(summary, partition=topic, ledger=pin.ledger, entries=(pin.start, pin.end))
                if found is not None and found < pin.end:
                    summary = "a ledger has fewer entries than planned: Pulsar lost messages; nothing became visible"
                    raise SourceChangedError(
                        summary, partition=topic, ledger=pin.ledger, planned=pin.end, entries=found
                    ).advising(DO_LOST)

    def explain_failure(self, messages: Sequence[str], ranges: Ranges) -> DataError | None:
        """Return the error for an entry without a message; ``None`` for other failures."""
        found = next(filter(None, (_WITHOUT_MESSAGE.search(message) for message in messages)), None)
        if found is None:
            return None
        summary = "a planned entry has no message"
        return DataError(summary, partition=found[1], entry=found[2]).advising(DO_WITHOUT_MESSAGE)

    def load(self, spark: SparkSession, pins: Sequence[LedgerPin]) -> MessageRecords:
        from airflow_provider_streamsem.connectors.pulsar.records import decoded_messages

        value = self.value if pins else decoding.without_registry(self.value)
        return decoded_messages(spark, self.access(), pins, value)
