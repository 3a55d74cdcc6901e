"""
Kinesis source: bounded reads of a stream over ranges of the sequence numbers of each shard.

An offset is the sequence number of the last record that was read, plus 1. Sequence numbers increase within a shard, and no record is inserted below one
that was read. So a range ``[first record, last record]`` always holds the same records. The planner pins both sequence numbers, and executors check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.kinesis.pins import ShardPin, read_pins
from airflow_provider_streamsem.connectors.kinesis.planner import KinesisPlanner
from airflow_provider_streamsem.connectors.kinesis.starting import (
    earliest,
    ends,
    given_offsets,
    offsets_since,
    starting,
    with_times,
)
from airflow_provider_streamsem.connectors.kinesis.stream import KinesisStream
from airflow_provider_streamsem.connectors.parsing import decoders as decoding
from airflow_provider_streamsem.connectors.parsing import registry
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.source import ParsedRecords, Source
from airflow_provider_streamsem.errors import RecordsMissingError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges
from airflow_provider_streamsem.stores import aws, s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisSource(Source):
    """
    Reads the records of a Kinesis stream.

    Without a ``value`` decoder the columns are ``stream string, shard_id string, sequence_number string, sub_sequence_number long,
    approximate_arrival_timestamp timestamp, partition_key string, data binary``. With a ``value`` decoder the columns are the fields of the data, and the other
    columns with the prefix ``kinesis_``. A record that cannot be decoded is quarantined with its shard and sequence number.

    :param stream: name of the stream
    :param conn_id: an Airflow connection of type ``aws``. Default: boto3's default credential chain, on the driver and on each executor
    :param region: AWS region. Default: the region of the connection, or of boto3
    :param endpoint_url: URL of a Kinesis-compatible server. Default: the endpoint of the connection, or that of AWS
    :param starting: the record at which a new pipeline starts: ``earliest``, ``latest``, a timestamp with a time zone, or
        ``{"shardId-000000000000": "4968…", …}`` (inclusive). Shards that the mapping does not name start at the earliest record. Shards that are created later
        are read from their beginning
    :param value: decoder of the data, :class:`Json`, :class:`Avro` or :class:`Protobuf`. Default: the data stays binary
    :param aggregation: records that the Kinesis Producer Library has aggregated: ``kpl`` splits them, as the Kinesis Client Library does, without the user
        records whose hash key belongs to another shard. ``all`` splits them and keeps all user records. ``none`` does not split them
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    unit: ClassVar[str] = "shards with unread records"
    range_unit: ClassVar[str] = unit
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan records the first and the last sequence number of each shard's range, and every attempt reads exactly these ranges",
        "expired records and recreated streams fail the run, or are recorded as gaps",
    )
    stream: str
    conn_id: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    starting: str | Mapping[str, str] = "earliest"
    value: Decoder | None = None
    aggregation: str = "kpl"

    def __post_init__(self) -> None:
        where = "source kinesis:"
        arguments.text(
            f"{where} stream",
            self.stream,
            pattern=r"[a-zA-Z0-9_.-]{1,128}",
            accepted="the name of a stream, not its ARN",
        )
        for name in ("conn_id", "region"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}", getattr(self, name), pattern=r"[^\s@]+", accepted="text without spaces"
                )
        if self.endpoint_url is not None:
            arguments.text(
                f"{where} endpoint_url",
                self.endpoint_url,
                pattern=r"https?://[^@\s]+",
                accepted="a URL without credentials",
            )
        object.__setattr__(self, "starting", starting(f"{where} starting", self.starting))
        object.__setattr__(self, "value", decoding.decoder_of_data(f"{where} value", self.value))
        arguments.choice(f"{where} aggregation", self.aggregation, ("kpl", "all", "none"))

    @property
    def spark_packages(self) -> tuple[str, ...]:
        return decoding.spark_packages(self.value)

    def warnings(self) -> list[str]:
        """Return a warning if credentials of the schema registry are sent without encryption."""
        return registry.warnings(self.value)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {
            "stream": self.stream, "conn_id": self.conn_id, "region": self.region, "endpoint_url": self.endpoint_url,
            "starting": dict(self.starting) if isinstance(self.starting, Mapping) else self.starting,
            "value": decoding.to_json(self.value), "aggregation": self.aggregation,
        }  # fmt: skip

    def immutable_config(self) -> Json:
        """Return the stream and how aggregated records are split. The offsets contain the creation time of the stream."""
        return {"type": "kinesis", "stream": self.stream, "aggregation": self.aggregation}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        settings = self.settings()
        return [(f"kinesis://{settings.get('region_name') or 'default'}", self.stream)]

    def settings(self) -> dict[str, Any]:
        """
        Return the arguments of :func:`airflow_provider_streamsem.connectors.kinesis.reading.client`. They may contain secrets.

        :raises InvalidError: the connection is not valid
        """
        access = s3.S3Access() if self.conn_id is None else aws.access_of(self.conn_id, service="kinesis")
        settings = {
            "endpoint_url": self.endpoint_url or access.endpoint_url,
            "region_name": self.region or access.region_name,
            "profile_name": access.profile_name,
            "aws_access_key_id": access.access_key_id,
            "aws_secret_access_key": access.secret_access_key,
            "aws_session_token": access.session_token,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def requests(self) -> KinesisStream:
        """
        Return the object that sends requests to the stream. Sends none.

        :raises InvalidError: the connection is not valid
        """
        return KinesisStream(self.stream, self.settings())

    def initial_offsets(self) -> Offsets:
        now_ms = SYSTEM_CLOCK.now_ms()
        stream = self.requests()
        listing = stream.listing()
        if isinstance(self.starting, Mapping):
            offsets = given_offsets(stream, listing, self.starting, now_ms=now_ms)
        elif self.starting == "earliest":
            offsets = earliest(stream, listing, now_ms=now_ms)
        elif self.starting == "latest":
            offsets = ends(stream, listing, now_ms=now_ms)
        else:
            offsets = offsets_since(stream, listing, arguments.time_ms("starting", self.starting), now_ms=now_ms)
        return with_times(listing, offsets, now_ms=now_ms)

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """The end of a shard without records is the current time, as in :meth:`initial_offsets`."""
        now_ms = SYSTEM_CLOCK.now_ms()
        stream = self.requests()
        listing = stream.listing()
        return with_times(listing, offsets_since(stream, listing, at_ms, now_ms=now_ms), now_ms=now_ms)

    def count(self, ranges: Ranges) -> int:
        """Return the number of shards with a range, because sequence numbers are not consecutive."""
        return len(ranges)

    def open(self, log: CommitLog, hint: Json) -> KinesisPlanner:
        return KinesisPlanner(self.stream, self.requests, log.clock)

    def read_pins(self, pins: Json) -> tuple[ShardPin, ...]:
        return read_pins(pins, stream=self.stream)

    def check_pins(self, pins: Sequence[ShardPin], *, was_read: bool) -> None:
        """
        During the read, executors check the first and last record of each range, and that retention has not deleted records in between. They rely on the
        retention that the plan records. So after the read, the oldest records are requested only if the retention is shorter now.
        """
        if not pins:
            return
        stream = self.requests()
        listing = stream.listing()
        for pin in pins:
            if pin.created_s != listing.created_s:
                summary = "the planned stream was deleted and recreated"
                raise RecordsMissingError(summary, partition=pin.partition.name, created_s=listing.created_s)
        checked = [pin for pin in pins if not was_read or listing.retention_h < pin.retention_h]
        present = {shard.partition for shard in listing.shards}
        oldest = stream.for_each(
            {pin: lambda pin=pin: stream.oldest(pin.shard) for pin in checked if pin.partition in present}  # type: ignore[misc]
        )
        for pin in checked:
            record = oldest.get(pin)
            if record is None or record.number > pin.first:
                summary = "Kinesis no longer has the first records of a planned range"
                raise RecordsMissingError(
                    summary,
                    partition=pin.partition.name,
                    first=pin.first,
                    oldest=None if record is None else record.number,
                )

    def load(self, spark: SparkSession, pins: Sequence[ShardPin]) -> MessageRecords | ParsedRecords:
        from pyspark.sql.utils import is_remote

        from airflow_provider_streamsem.connectors.kinesis.records import COLUMNS, decoded_records, read_ranges

        if not pins:
            return decoded_records(spark.createDataFrame([], COLUMNS), decoding.without_registry(self.value))
        settings = self.settings()
        if is_remote():  # A Spark Connect server has its own credentials, and may log what it receives.
            settings = {name: settings[name] for name in ("endpoint_url", "region_name") if name in settings}
        return decoded_records(read_ranges(spark, pins, settings, aggregation=self.aggregation), self.value)
