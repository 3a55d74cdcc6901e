"""
Reads the records of a planned range of a shard. Needs only the standard library, boto3 and pyarrow, because executors run this module.

An executor gets the functions of this module by value, so it needs no installation of this package.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_provider_streamsem.connectors.kinesis.aggregated import split
from airflow_provider_streamsem.connectors.python_worker import keep_import_caches

PAGE_RECORDS = 10_000
"""Maximum number of records of one request, a limit of Kinesis."""
ATTEMPTS = 12
"""Maximum number of attempts of a request. botocore waits between them with exponential back-off and jitter, up to 20 seconds."""
_BATCH_BYTES = 8 << 20
_CLOCK_MARGIN_MS = 300_000


class RangeChangedError(Exception):
    """Kinesis did not return exactly the records of a planned range. The next attempt determines which records are missing."""


def client(
    *, endpoint_url: str | None = None, profile_name: str | None = None, region_name: str | None = None, **keys: Any
) -> Any:
    """Return a boto3 client. Values that are ``None`` come from boto3's default chain on this machine."""
    import boto3.session
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        connect_timeout=5,
        read_timeout=30,
        max_pool_connections=32,
    )
    session = boto3.session.Session(profile_name=profile_name, region_name=region_name, **keys)
    return session.client("kinesis", endpoint_url=endpoint_url, config=config)


def after(sequence_number: int | str) -> dict[str, Any]:
    """Return the position after a record, as arguments of GetShardIterator."""
    return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": str(sequence_number)}


def at(sequence_number: int | str) -> dict[str, Any]:
    """Return the position of a record, as arguments of GetShardIterator."""
    return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": str(sequence_number)}


def pages(client: Any, stream: str, shard: str, position: Mapping[str, Any], limit: int) -> Iterator[Mapping[str, Any]]:
    """
    Yield the responses of GetRecords, including empty ones. Ends at the end of a closed shard.

    An iterator of Kinesis expires after five minutes. Then the function requests another one, after the last record that it has yielded. ``limit`` is at most
    10,000 records of a request.
    """
    where = {"StreamName": stream, "ShardId": shard}
    iterator = client.get_shard_iterator(**where, **position)["ShardIterator"]
    while iterator is not None:
        try:
            page = client.get_records(ShardIterator=iterator, Limit=limit)
        except client.exceptions.ExpiredIteratorException:
            iterator = client.get_shard_iterator(**where, **position)["ShardIterator"]
            continue
        if page["Records"]:
            position = after(page["Records"][-1]["SequenceNumber"])
        iterator = page.get("NextShardIterator")
        yield page


def milliseconds(at: datetime) -> int:
    """Return a time in milliseconds since the epoch."""
    return round(at.timestamp() * 1000)


def user_records(
    record: Mapping[str, Any], aggregation: str, keys: tuple[int, int]
) -> Iterator[tuple[int, str, bytes]]:
    """
    Yield the sub-sequence number, the partition key and the data of each user record. ``keys`` are the hash keys of the shard, both inclusive.

    After a reshard, the KPL repeats the user records that arrived in a shard of other hash keys. So with ``"kpl"`` they are not part of this shard.
    """
    users = None if aggregation == "none" else split(record["Data"])
    if users is None:
        yield 0, record["PartitionKey"], record["Data"]
        return
    for number, user in enumerate(users):
        if aggregation == "all" or keys[0] <= user.hash_key <= keys[1]:
            yield number, user.partition_key, user.data


def range_of(client: Any, pin: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """
    Yield the records of a planned range (fields of a ``ShardPin``), page by page, and check that none is missing (``RangeChangedError``).

    Retention deletes the oldest records. If it passes the position of a reader, Kinesis continues with later records and reports no error. So the range must
    begin with its first record. And if the last record of a page may have expired when the next page was read, the shard must still have it.
    """
    stream, shard, first, last = pin["stream"], pin["shard"], int(pin["first"]), int(pin["last"])
    previous: Mapping[str, Any] | None = None
    for page in pages(client, stream, shard, at(first), PAGE_RECORDS):
        records = [record for record in page["Records"] if int(record["SequenceNumber"]) <= last]
        if records:
            if previous is None and int(records[0]["SequenceNumber"]) != first:
                raise RangeChangedError(f"shard {shard} of stream {stream} no longer has the first record of the range")
            if previous is not None and _may_have_expired(previous, pin["retention_h"]):
                _check_oldest(client, stream, shard, int(previous["SequenceNumber"]))
            yield records
            previous = records[-1]
        if previous is not None and int(previous["SequenceNumber"]) == last:
            return
        if len(records) < len(page["Records"]) or (not page["Records"] and page.get("MillisBehindLatest") == 0):
            break
    raise RangeChangedError(f"shard {shard} of stream {stream} no longer has the last record of the range")


def _may_have_expired(record: Mapping[str, Any], retention_h: int) -> bool:
    arrived_ms = milliseconds(record["ApproximateArrivalTimestamp"])
    return arrived_ms < time.time() * 1000 - retention_h * 3_600_000 + _CLOCK_MARGIN_MS  # noqa: TID251 executors have no other clock


def _check_oldest(client: Any, stream: str, shard: str, before: int) -> None:
    """If retention has deleted the record after which a reader has continued, it may have deleted records after it."""
    for page in pages(client, stream, shard, {"ShardIteratorType": "TRIM_HORIZON"}, 1):
        if page["Records"]:
            if int(page["Records"][0]["SequenceNumber"]) <= before:
                return
            break
        if page.get("MillisBehindLatest") == 0:
            break
    raise RangeChangedError(f"retention deleted records of shard {shard} of stream {stream} during the read")


def batches(client: Any, pin: Mapping[str, Any], aggregation: str) -> Iterator[Any]:
    """Yield the user records of :func:`range_of` as Arrow record batches."""
    keep_import_caches()
    keys = int(pin["lowest_key"]), int(pin["highest_key"])
    rows: list[tuple[Any, ...]] = []
    size = 0
    for records in range_of(client, pin):
        for record in records:
            number, arrived = record["SequenceNumber"], record["ApproximateArrivalTimestamp"]
            for sub_number, key, data in user_records(record, aggregation, keys):
                rows.append((pin["stream"], pin["shard"], number, sub_number, arrived, key, data))
                size += len(data)
            if size >= _BATCH_BYTES:
                yield _batch(rows)
                rows, size = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    text = pa.string()
    types = {
        "stream": text, "shard_id": text, "sequence_number": text, "sub_sequence_number": pa.int64(),
        "approximate_arrival_timestamp": pa.timestamp("us", tz="UTC"), "partition_key": text, "data": pa.binary(),
    }  # fmt: skip
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
