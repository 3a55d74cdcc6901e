"""The offsets of a Kafka source in the checkpoint of a Structured Streaming query: what is not understood is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.kafka.checkpoint import read_offsets, write_offsets
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError
from airflow_provider_streamsem.stores.memory import MemoryStore

_NAMES = count()
TIMES = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
ORDERS = json.dumps({"orders": {"0": 12, "10": 7}})
OTHERS = json.dumps({"payments": {"0": 3}})


def checkpoint(offsets: dict[str, str], commits: list[int]) -> MemoryStore:
    store = MemoryStore(f"memory://checkpoint-{next(_NAMES)}")
    for name, text in offsets.items():
        store.create(f"offsets/{name}", text.encode())
    for batch in commits:
        store.create(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    return store


def batch(*sources: str, version: str = "v1") -> str:
    return "\n".join([version, TIMES, *sources])


def read(store: MemoryStore) -> tuple[int, dict[str, int]]:
    return read_offsets(store, is_read=lambda topic: topic == "orders")


def test_offsets_of_the_newest_complete_batch_are_read() -> None:
    store = checkpoint({"9": batch(OTHERS), "10": batch(ORDERS), ".10.crc": "x", "compacted": "x"}, [9, 10])
    assert read(store) == (10, {"orders-0": 12, "orders-10": 7})


def test_source_of_the_topics_is_found_among_other_sources() -> None:
    store = checkpoint({"0": batch("-", json.dumps({"logOffset": 4}), OTHERS, ORDERS)}, [0])
    assert read(store) == (0, {"orders-0": 12, "orders-10": 7})


def test_batch_that_is_not_complete_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"not complete.*Trigger\.AvailableNow"):
        read(checkpoint({"0": batch(ORDERS), "1": batch(ORDERS)}, [0]))


@pytest.mark.parametrize("store", [checkpoint({}, []), checkpoint({"0": batch(ORDERS)}, []), checkpoint({}, [0])])
def test_location_without_a_complete_batch_is_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidError, match="no checkpoint with a complete batch"):
        read(store)


@pytest.mark.parametrize(
    "text",
    [
        batch(ORDERS, version="v2"),
        "",
        batch(OTHERS),
        batch(ORDERS, ORDERS),
        batch(json.dumps({"orders": {"0": 1}, "payments": {"0": 1}})),
        batch(ORDERS, json.dumps({"orders": {"1": 1}, "payments": {"0": 1}})),
        batch(json.dumps({"orders": {"0": -2}})),
        batch(json.dumps({"orders": {"zero": 2}})),
        batch(json.dumps({"orders": {"0": 2.5}})),
        batch(json.dumps(["orders"])),
        batch(json.dumps({})),
        batch(json.dumps({"orders": {"0": 1 << 63}})),
        batch(json.dumps({"orders": {"00": 1}})),
        batch(json.dumps({"orders": {"٠": 1}})),
        batch("[" * 100_000),
        batch('{"orders":' * 100_000),
        batch("9" * 10_000),
        batch(""),
    ],
)
def test_offsets_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="cannot be used"):
        read(checkpoint({"0": text}, [0]))


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n", b"v1\n[", b"v1\n[]", b"v1\n" + b"[" * 100_000])
def test_batch_with_an_empty_or_damaged_commit_is_not_complete(content: bytes) -> None:
    store = checkpoint({"0": batch(ORDERS)}, [])
    store.create("commits/0", content)
    with pytest.raises(InvalidError, match=r"empty or damaged.*delete this file"):
        read(store)


JSON = st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=3), lambda each: st.lists(each, max_size=2) | st.dictionaries(st.sampled_from(["orders", "0", "1", "-1", "x"]), each, max_size=3))  # fmt: skip


@given(JSON.map(json.dumps) | st.text(max_size=9))
def test_offsets_of_any_form_are_offsets_or_refused(line: str) -> None:
    with suppress(DataError):
        _, offsets = read(checkpoint({"0": batch(line)}, [0]))
        assert {*offsets} <= {"orders-0", "orders-1"}
        assert all(type(offset) is int and 0 <= offset < 1 << 63 for offset in offsets.values())


def test_written_offsets_are_read_again() -> None:
    store = MemoryStore("memory://written")
    write_offsets(store, {"orders-0@id": 12, "orders-10@id": 7}, now_ms=1)
    assert read(store) == (0, {"orders-0": 12, "orders-10": 7})
    with pytest.raises(ConflictError, match="not empty"):
        write_offsets(store, {"orders-0@id": 13}, now_ms=1)
