"""
Splits the records that the Kinesis Producer Library (KPL) aggregates. Needs only the standard library, because executors run this module.

An aggregated record is four magic bytes, one protobuf message ``AggregatedRecord``, and the MD5 of the message. Data that is not exactly that is an ordinary
record, as in the Kinesis Client Library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from airflow_provider_streamsem.connectors.varints import varint

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class UserRecord(NamedTuple):
    """A record as its producer sent it. ``hash_key`` (128 bits), explicit or the MD5 of the partition key, determines the shard."""

    partition_key: str
    hash_key: int
    data: bytes


def split(data: bytes) -> list[UserRecord] | None:
    """Return the user records of an aggregated record in their order; ``None`` for an ordinary record."""
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _DIGEST_BYTES:
        return None
    message = data[len(_MAGIC) : -_DIGEST_BYTES]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return _records(message)
    except (ValueError, IndexError):
        return None


def _records(message: bytes) -> list[UserRecord]:
    """In the message, 1 is the table of partition keys, 2 that of explicit hash keys, 3 the records. A record may refer to a missing key."""
    keys: list[str] = []
    hash_keys: list[int] = []
    records: list[bytes] = []
    for field, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            keys.append(value.decode())
        elif field == 2:
            hash_keys.append(int(value))
        elif field == 3:
            records.append(value)
    return [_record(record, keys, hash_keys) for record in records]


def _record(message: bytes, keys: list[str], hash_keys: list[int]) -> UserRecord:
    """Parse a message ``Record``: 1 is the index of the partition key, 2 that of the explicit hash key, 3 the data. Tags are ignored."""
    key = hash_key = data = None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            key = keys[value]
        elif field == 2 and isinstance(value, int):
            hash_key = hash_keys[value]
        elif field == 3 and isinstance(value, bytes):
            data = value
    if key is None or data is None:
        raise ValueError("a required field is missing")
    return UserRecord(key, hashed(key) if hash_key is None else hash_key, data)


def hashed(partition_key: str) -> int:
    """Return the hash key of a partition key: its MD5 as a number."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("unknown wire type")
        if at + size > len(message):
            raise ValueError("a field is truncated")
        yield tag >> 3, message[at : at + size]
        at += size
