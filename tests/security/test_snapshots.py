"""Snapshots of the operators' state with any content cost little memory, and raise no other error than that of a damaged state."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.state.files import is_loadable
from airflow_provider_streamsem.state.settings import LOCATION, Operator, OperatorState, with_operator_state
from airflow_provider_streamsem.stores.memory import MemoryStore

METADATA = b'v1\n{"sstFiles": [{"dfsSstFileName": "a.sst", "sizeBytes": 3}]}'


def archive(metadata: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        file.writestr("metadata", metadata)
    return data.getvalue()


def loads(snapshot: bytes) -> bool:
    """Return whether a state with this snapshot, whose digest the outcome has, can be loaded."""
    store = MemoryStore("snapshots")
    operator = Operator(name="stateStoreSave", rows=1, bytes=3, ids=(("x",),), digests=((sha256(snapshot)[:16],),))
    state = OperatorState(root="r", batches=1, partitions=1, columns={}, operators=(operator,))
    directory = f"{LOCATION}/r/state/0/0"
    store.create(f"{directory}/1_x.zip", snapshot)
    store.create(f"{directory}/SSTs/a.sst", b"abc")
    return is_loadable(store, with_operator_state(None, state))


def test_snapshot_of_spark_is_loadable() -> None:
    assert loads(archive(METADATA))


@pytest.mark.parametrize("start", [b"v1\n", b'v1\n{"sstFiles": [', b"v1\n[[[["], ids=["spaces", "list", "nested"])
def test_snapshot_that_decompresses_to_a_large_text_is_not_loaded_and_costs_little_memory(start: bytes) -> None:
    fill = start[-1:] if start.endswith(b"[[") else b" "
    snapshot = archive(start + fill * (64 << 20))
    tracemalloc.start()
    try:
        assert not loads(snapshot)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"v1",
        b"v1\n[]",
        b"v1\n1",
        b"v1\nnull",
        b'v1\n{"sstFiles": 1}',
        b'v1\n{"sstFiles": [1]}',
        b"v1\n" + b"[" * 100_000,
        b"\xff\n{}",
    ],
)
def test_snapshot_with_other_metadata_is_not_loaded(metadata: bytes) -> None:
    assert not loads(archive(metadata))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_snapshot_with_another_compression_is_not_loaded(method: int) -> None:
    assert not loads(archive(METADATA, method))


@given(at=st.integers(0, 250), value=st.integers(0, 255))
def test_damaged_snapshot_raises_no_error(at: int, value: int) -> None:
    data = bytearray(archive(METADATA))
    data[at % len(data)] = value
    loads(bytes(data))
