"""A Delta table handle that a process caches between batches: it reflects the current table, or the table is opened again."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem.connectors.delta import table as delta_table
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from tests.connectors.batches import UUID, marked, schema_of, staged

SCHEMA = schema_of(id="long")


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(str(tmp_path / "table"))


def batch(sink: DeltaSink, version: int) -> SinkCommit:
    return staged(sink, pyarrow.table({"id": [version]}), version, schema=SCHEMA)


def publish(sink: DeltaSink, batch: SinkCommit) -> Any:
    return sink.publish(batch)


def rows(sink: DeltaSink) -> Counter[int]:
    return Counter(DeltaTable(sink.path).to_pyarrow_table()["id"].to_pylist())


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    calls: list[object] = []
    real = getattr(DeltaTable, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(DeltaTable, name, counting)
    return calls


def test_table_log_is_read_whole_only_once_for_many_batches(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(2):
        publish(sink, batch(sink, version))
    opened, reads = count_calls(monkeypatch, "__init__"), count_calls(monkeypatch, "transaction_version")
    for version in range(2, 6):
        publish(sink, batch(sink, version))
    assert (opened, reads) == ([], [])
    assert rows(sink) == Counter(range(6))


def test_version_published_by_another_process_is_not_published_again_with_a_cached_table(sink: DeltaSink) -> None:
    first = batch(sink, 0)
    publish(sink, first)
    own_cache, delta_table._cache = delta_table._cache, {}
    second = batch(sink, 1)
    publish(sink, second)
    delta_table._cache = own_cache
    assert publish(sink, second).result == "applied"
    assert rows(sink) == Counter([0, 1])
    assert publish(sink, first) is None


def test_entries_of_other_writers_are_read_before_the_next_batch(sink: DeltaSink) -> None:
    publish(sink, batch(sink, 0))
    write_deltalake(sink.path, pyarrow.table({"id": [-1]}), mode="append")
    publish(sink, batch(sink, 1))
    assert rows(sink) == Counter([-1, 0, 1])
    assert DeltaTable(sink.path).version() == 3


def test_version_skipped_with_a_cached_table_stays_skipped(sink: DeltaSink) -> None:
    publish(sink, batch(sink, 0))
    second = batch(sink, 1)
    assert sink.skip(second).result == "skipped"  # type: ignore[union-attr]
    assert publish(sink, second).result == "skipped"
    assert rows(sink) == Counter([0])


@pytest.mark.parametrize("versions", [1, 3])
def test_table_that_was_dropped_and_recreated_is_opened_again(sink: DeltaSink, versions: int) -> None:
    """The new table has as many entries as the cached one, or fewer."""
    first, second = batch(sink, 0), batch(sink, 1)
    publish(sink, first)
    publish(sink, second)
    shutil.rmtree(Path(sink.path) / "_delta_log")
    for _ in range(versions):
        write_deltalake(sink.path, pyarrow.table({"id": [-1]}), mode="append")
    assert sink.marker(UUID, "t") is None
    publish(sink, replace(second, expected_marker=None))
    assert rows(sink) == Counter({-1: versions, 1: 1})


def test_own_entry_replaced_by_another_writer_is_not_a_marker(sink: DeltaSink) -> None:
    """The table was restored to an earlier state, and then another writer committed."""
    publish(sink, batch(sink, 0))
    second = batch(sink, 1)
    publish(sink, second)
    newest = DeltaTable(sink.path).version()
    (Path(sink.path) / "_delta_log" / f"{newest:020d}.json").unlink()
    write_deltalake(sink.path, pyarrow.table({"id": [-1]}), mode="append")
    assert sink.marker(UUID, "t") == replace(marked(0), outcome=marked(0).outcome[:15])
    publish(sink, second)
    assert rows(sink) == Counter([-1, 0, 1])


def test_table_opened_with_other_credentials_is_not_used_again(sink: DeltaSink) -> None:
    publish(sink, batch(sink, 0))
    table = delta_table.open_newest(sink.path)
    assert table is not None
    assert table.is_current({})
    assert not table.is_current({"aws_region": "elsewhere"})


def test_table_is_not_cached_after_a_failed_commit(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink, batch(sink, 0))
    real = DeltaTable.create_write_transaction

    def commit_and_lose_reply(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        real(*args, **kwargs)
        raise OSError("the reply was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_lose_reply)
    opened = count_calls(monkeypatch, "__init__")
    assert publish(sink, batch(sink, 1)).result == "applied"
    assert len(opened) == 1
    assert rows(sink) == Counter([0, 1])


def test_table_on_disk_resolves_no_credentials(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolving credentials takes seconds where there are none."""

    def looked_up() -> None:
        raise AssertionError("the table is on disk")

    monkeypatch.setattr("airflow_provider_streamsem.stores.s3.resolved", looked_up)
    publish(sink, batch(sink, 0))
    publish(sink, batch(sink, 1))
    assert rows(sink) == Counter([0, 1])


def test_only_a_few_tables_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = [DeltaSink(str(tmp_path / f"table-{n}")) for n in range(10)]
    for sink in sinks:
        publish(sink, batch(sink, 0))
    opened = count_calls(monkeypatch, "__init__")
    for sink in reversed(sinks):
        publish(sink, batch(sink, 1))
    assert len(opened) == 2, "the eight newest tables are in the cache"
    assert all(rows(sink) == Counter([0, 1]) for sink in sinks)


@pytest.mark.parametrize(
    ("text", "transient"),
    [
        ("Generic S3 error: Error after 10 retries", True),
        ("error sending request for url (http://h/): connection refused", True),
        ("Response error: HTTP status server error (503 Service Unavailable)", True),
        ("request failed with status: 429", True),
        ("operation timed out", True),
        ("Cast error: cannot cast column connection_id, row 503, to Int32", False),
        ("Invariant violations: connection > 500", False),
        ("Constraint (timeout > 5) violated", False),
        ("operation timeout", True),
        ("HTTP status client error (403 Forbidden)", False),
    ],
)
def test_error_is_transient_only_if_it_comes_from_the_store(text: str, transient: bool) -> None:
    assert delta_table.is_transient(Exception(text)) == transient
