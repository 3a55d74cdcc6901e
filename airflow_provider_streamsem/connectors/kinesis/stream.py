"""
Requests of the driver to one Kinesis stream: its shards, their oldest, first and newest records. boto3 is imported on first use.

botocore repeats a throttled request with exponential back-off and jitter (mode ``standard``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeVar

from airflow_provider_streamsem.connectors.kinesis import reading
from airflow_provider_streamsem.connectors.kinesis.pins import Partition, is_time
from airflow_provider_streamsem.errors import SourceChangedError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.s3 import aws_variables

T = TypeVar("T")
K = TypeVar("K")
_PROBE_RECORDS = 1_000
"""Maximum number of records of a request of the planner. A page of a shard with 1 MB per second is about one second of records."""
_PROBE_PAGES = 4
_FIRST_PROBE_MS = 10_000
_EMPTY_PAGES = 50
_TRANSIENT_CODES = ("Throttl", "ThroughputExceeded", "LimitExceeded", "Expired", "RequestTimeout", "KMSThrottling")
_HORIZON = {"ShardIteratorType": "TRIM_HORIZON"}


class PositionError(Exception):
    """Kinesis refused the position of a read, such as a sequence number that is not one of the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """
    A shard as ListShards returns it. Hash keys are inclusive.

    :param parents: ids of the shards from which a split or a merge made this shard
    :param is_closed: whether the shard takes no more records
    :param number: the sequence number at which the shard starts
    """

    partition: Partition
    parents: tuple[str, ...]
    is_closed: bool
    number: int
    lowest_key: int
    highest_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The shards of a stream at one time, the parents before their children. ``created_s`` is in seconds since the epoch."""

    created_s: int
    retention_h: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record: its sequence number, and its arrival in milliseconds UTC."""

    number: int
    arrived_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """
    The end of a shard: the newest sequence number plus 1, or 0 without records.

    :param first: the first record after the known end from which the search began; ``None`` if it did not begin there, or if there is no such record
    """

    offset: int
    first: Record | None = None


class KinesisStream:
    """Sends requests to one stream. ``settings`` are the arguments of :func:`airflow_provider_streamsem.connectors.kinesis.reading.client`."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._client = _client(os.getpid(), aws_variables(), tuple(sorted(settings.items())))

    def listing(self) -> Listing:
        """One request for the stream (``SourceChangedError`` if it does not exist), and one for each 10,000 shards."""
        with self._translated():
            summary = self._client.describe_stream_summary(StreamName=self._name)["StreamDescriptionSummary"]
            created_s = int(summary["StreamCreationTimestamp"].timestamp())
            page = self._client.list_shards(StreamName=self._name)
            found = list(page["Shards"])
            while page.get("NextToken"):
                page = self._client.list_shards(NextToken=page["NextToken"])
                found += page["Shards"]
        shards = [_shard(self._name, created_s, shard) for shard in found]
        return Listing(
            created_s=created_s, retention_h=int(summary["RetentionPeriodHours"]), shards=_parents_first(shards)
        )

    def for_each(self, items: Mapping[K, Callable[[], T]]) -> dict[K, T]:
        """Call the functions in up to 16 threads."""
        return dict(zip(items, in_threads(lambda call: call(), [*items.values()]), strict=True))

    def oldest(self, shard: str) -> Record | None:
        """Return the oldest record that the shard still has; ``None`` if it has none. Sends two requests, and more if Kinesis returns empty pages."""
        return self._first(shard, _HORIZON)

    def record_at(self, shard: str, number: int) -> Record | None:
        """Return the first record at or after a sequence number; ``None`` if there is none. Another shard's number raises ``PositionError``."""
        return self._first(shard, reading.at(number))

    def first_from(self, shard: str, offset: int) -> Record | None:
        """
        Return the first record at or above an offset; ``None`` if there is none.

        An offset is one above the last record that was read, or the sequence number that ``starting`` names. Kinesis accepts only sequence numbers of records.
        So if it refuses the first request, a second one reads at the offset itself.
        """
        if offset == 0 or is_time(offset):
            return self.oldest(shard)
        try:
            return self._first(shard, reading.after(offset - 1))
        except PositionError:
            return self._first(shard, reading.at(offset))

    def first_since(self, shard: str, at_ms: int) -> Record | None:
        """Return the first record that arrived at or after a time in milliseconds UTC; ``None`` if there is none."""
        try:
            for page in self._pages(shard, _since(at_ms), _PROBE_RECORDS):
                for record in page:
                    if record.arrived_ms >= at_ms:
                        return record
        except PositionError:  # the time is after the clock of Kinesis
            pass
        return None

    def records_at(self, shard: str, number: int, limit: int) -> Iterator[list[Record]]:
        """Yield pages of records from a sequence number (inclusive) to the current end. No page has more than ``limit`` records."""
        yield from self._pages(shard, reading.at(number), limit)

    def end(self, shard: Shard, known: int, *, now_ms: int, retention_h: int) -> End:
        """
        Find the end of a shard without reading all of its records. ``known``, a known end or 0, saves requests, and does not change the result.

        First, the function reads up to four pages after the known end, or from the oldest record. If a page reaches the end of the shard, that is the result.
        Otherwise, the function searches for the newest seconds with records. It requests records since 10 seconds ago, and doubles this period until there are
        records. Then it bisects the period, and reads forward from the time that it found.
        """
        first = newest = None
        position = reading.after(known - 1) if known else _HORIZON
        try:
            pages = self._pages(shard.partition.shard, position, _PROBE_RECORDS, is_closed=shard.is_closed)
            for page_number, page in enumerate(pages, 1):
                first = page[0] if first is None and page else first
                newest = page[-1] if page else newest
                if page_number == _PROBE_PAGES:
                    break
            else:
                return End(known if newest is None else newest.number + 1, first)
        except PositionError:
            first = None
        newest = self._newest(shard, now_ms=now_ms, retention_ms=retention_h * 3_600_000)
        return End(max(known, 0 if newest is None else newest.number + 1), first)

    def _newest(self, shard: Shard, *, now_ms: int, retention_ms: int) -> Record | None:
        name, back_ms, empty_since = shard.partition.shard, _FIRST_PROBE_MS, now_ms
        while back_ms < retention_ms and self.first_since(name, now_ms - back_ms) is None:
            empty_since, back_ms = now_ms - back_ms, 2 * back_ms
        filled_since = now_ms - min(back_ms, retention_ms)
        while empty_since - filled_since > _FIRST_PROBE_MS:
            middle = (filled_since + empty_since) // 2
            if self.first_since(name, middle) is None:
                empty_since = middle
            else:
                filled_since = middle
        position = _HORIZON if filled_since <= now_ms - retention_ms else _since(filled_since)
        newest = None
        for page in self._pages(name, position, reading.PAGE_RECORDS, is_closed=shard.is_closed):
            newest = page[-1] if page else newest
        return newest

    def _first(self, shard: str, position: Mapping[str, Any]) -> Record | None:
        for page in self._pages(shard, position, 1):
            for record in page:
                return record
        return None

    def _pages(
        self, shard: str, position: Mapping[str, Any], limit: int, *, is_closed: bool = False
    ) -> Iterator[list[Record]]:
        for records in self._raw_pages(shard, position, limit, is_closed=is_closed):
            yield [_record(record) for record in records]

    def _raw_pages(
        self, shard: str, position: Mapping[str, Any], limit: int, *, is_closed: bool = False
    ) -> Iterator[list[Mapping[str, Any]]]:
        """With ``is_closed``, read until Kinesis reports that the shard is closed, and not only until it reports no newer record."""
        empty_pages = 0
        with self._translated():
            for page in reading.pages(self._client, self._name, shard, position, limit):
                records = page["Records"]
                yield records
                is_caught_up = page.get("MillisBehindLatest", 0) == 0
                if is_caught_up and not is_closed:
                    return
                empty_pages = 0 if records or not is_caught_up else empty_pages + 1
                if empty_pages > _EMPTY_PAGES:
                    summary = "Kinesis does not report the end of a closed shard"
                    raise UnavailableError(summary, stream=self._name, shard=shard)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            NoRegionError,
            PartialCredentialsError,
        )

        try:
            yield
        except ClientError as error:
            raise self._error_of(error) from error
        except (NoCredentialsError, NoRegionError, PartialCredentialsError) as error:
            summary = "the process lacks credentials or a region for Kinesis; no request was sent"
            raise StoreRefusedError(summary, stream=self._name, problem=type(error).__name__).advising(
                "name a connection of type aws by conn_id, or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION; then run again."
            ) from error
        except (BotoCoreError, OSError) as error:
            summary = "Kinesis did not report the result of a request; nothing was written"
            raise UnavailableError(summary, stream=self._name, problem=type(error).__name__) from error

    def _error_of(self, error: Any) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "InvalidArgumentException":
            return PositionError(code)
        if code == "ResourceNotFoundException":
            summary = "the stream or shard does not exist; nothing was written"
            return SourceChangedError(summary, stream=self._name, region=self._client.meta.region_name).advising(
                "create the stream, or correct `stream` and the region; then run again."
            )
        if 400 <= status < 500 and not any(word in code for word in _TRANSIENT_CODES):
            summary = "Kinesis refused a request; nothing was written"
            return StoreRefusedError(summary, stream=self._name, status=status, code=code).advising(
                "give the process the rights DescribeStreamSummary, ListShards, GetShardIterator and GetRecords for this stream, and check the region and "
                "the credentials; then run again."
            )
        return UnavailableError(
            "Kinesis did not report the result of a request; nothing was written", stream=self._name, code=code
        )


@lru_cache(maxsize=16)
def _client(process: int, environment: tuple[tuple[str, str], ...], settings: tuple[tuple[str, Any], ...]) -> Any:
    return reading.client(**dict(settings))


def _shard(stream: str, created_s: int, description: Mapping[str, Any]) -> Shard:
    parents = [description.get("ParentShardId"), description.get("AdjacentParentShardId")]
    return Shard(
        partition=Partition(stream, description["ShardId"], created_s),
        parents=tuple(parent for parent in parents if parent),
        is_closed="EndingSequenceNumber" in description["SequenceNumberRange"],
        number=int(description["SequenceNumberRange"]["StartingSequenceNumber"]),
        lowest_key=int(description["HashKeyRange"]["StartingHashKey"]),
        highest_key=int(description["HashKeyRange"]["EndingHashKey"]),
    )


def _parents_first(shards: list[Shard]) -> tuple[Shard, ...]:
    """No shard precedes its parents. Parents that retention has removed from the listing are ignored."""
    remaining = {shard.partition.shard: shard for shard in sorted(shards, key=lambda shard: shard.partition)}
    ordered: dict[str, Shard] = {}
    while remaining:
        ready = [name for name, shard in remaining.items() if not any(parent in remaining for parent in shard.parents)]
        for name in ready or [*remaining]:
            ordered[name] = remaining.pop(name)
    return tuple(ordered.values())


def _record(record: Mapping[str, Any]) -> Record:
    return Record(int(record["SequenceNumber"]), reading.milliseconds(record["ApproximateArrivalTimestamp"]))


def _since(at_ms: int) -> dict[str, Any]:
    """boto3 sends whole seconds, so the read begins up to a second before the time."""
    at = datetime.fromtimestamp(max(0, at_ms) // 1000, tz=timezone.utc)
    return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
