"""Aggregated records: exactly the format of the KPL is split, and any other data are one record."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.kinesis.aggregated import UserRecord, hashed, split

MAGIC = b"\xf3\x89\x9a\xc2"


def framed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


MESSAGE = (
    field(1, b"key-a") + field(1, b"key-b") + field(2, b"42")
    + field(3, b"\x08\x00" + field(3, b"first"))
    + field(3, b"\x08\x01\x10\x00" + field(3, b"second") + field(4, field(1, b"tag")))
)  # fmt: skip


def test_user_records_have_their_keys_and_data() -> None:
    assert split(framed(MESSAGE)) == [
        UserRecord("key-a", hashed("key-a"), b"first"),
        UserRecord("key-b", 42, b"second"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        framed(MESSAGE)[:-1] + b"\0",
        framed(MESSAGE)[4:],
        framed(MESSAGE[:-1]),
        framed(field(3, b"\x08\x07" + field(3, b"no such key"))),
        framed(field(1, b"\xff") + field(3, b"\x08\x00" + field(3, b"key is not text"))),
        framed(b"\x0b"),
        framed(b"\xff" * 11),
    ],
    ids=repr,
)
def test_other_data_are_one_record(data: bytes) -> None:
    assert split(data) is None


@given(st.binary())
def test_any_message_is_split_or_one_record(message: bytes) -> None:
    user_records = split(framed(message))
    assert user_records is None or isinstance(user_records, list)
