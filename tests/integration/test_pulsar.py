"""The Pulsar source on a real broker: batches of messages, several ledgers and partitions, deleted and recreated topics, tokens."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Limits, open_log, read_committed, reprocess, verify
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.pulsar import reading
from airflow_provider_streamsem.errors import (
    DataError,
    RecordsMissingError,
    SourceChangedError,
    StoreRefusedError,
    UnavailableError,
)
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.integration.parts import certificates
from tests.integration.parts.pulsar import PulsarServer
from tests.integration.pulsar_topic import Topic

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(pulsar_server: PulsarServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topic:
    monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", pulsar_server.connection())
    return Topic(pulsar_server, tmp_path)


def test_messages_of_all_partitions_ledgers_and_batches_are_read_once(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(50))
    topic.put(range(50, 300), partition=1, batch=10)
    first = topic.run("a")
    assert first.counts["read"] == 300
    topic.put(range(300, 310), batch=3)
    topic.run("b")
    assert topic.run("idle").status == "empty"
    assert topic.ids(spark) == Counter(range(310))
    assert verify(topic.pipeline()).violations == []
    assert lag(topic.pipeline()).lag == 0


@pytest.mark.parametrize("batch", [1, 7])
def test_limit_counts_messages_and_divides_no_batch(topic: Topic, spark: SparkSession, batch: int) -> None:
    topic.put(range(45), batch=batch)
    topic.put(range(45, 60), partition=1, batch=batch)
    result = topic.run("a", limits=Limits(max_rows=20))
    assert result.batches == {1: 4, 7: 3}[batch]
    opened = open_log(str(topic.root / "log"))
    sizes = [version.outcome.counts["read"] for version in opened.versions() if version.outcome is not None]
    assert max(sizes) <= 20 + 2 * (batch - 1)
    assert topic.ids(spark) == Counter(range(60))


def test_columns_have_the_properties_of_a_message(topic: Topic, spark: SparkSession) -> None:
    at_ms = 1_700_000_000_123
    topic.server.put(
        topic.partition(1), [b"\x00\xff"], partition_key="k", properties={"trace": "1"}, event_timestamp=at_ms
    )
    topic.server.put(topic.partition(1), [b""])
    topic.run("a", source={"value": None})
    rows = sorted(read_committed(spark, str(topic.root / "log")).collect(), key=lambda row: row["entry_id"])
    first, second = rows
    assert (first["topic"], first["entry_id"], first["batch_index"]) == (
        f"persistent://public/default/{topic.partition(1)}", 0, 0,
    )  # fmt: skip
    assert (first["key"], first["properties"], bytes(first["data"])) == ("k", {"trace": "1"}, b"\x00\xff")
    assert first["event_timestamp"].astimezone(timezone.utc) == datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    assert first["publish_timestamp"] is not None
    assert (second["key"], second["event_timestamp"], bytes(second["data"])) == (None, None, b"")


def test_message_that_cannot_be_decoded_is_quarantined_with_its_location(topic: Topic) -> None:
    topic.server.put(topic.partition(0), [b'{"id": 1}', b"{broken", None], batch=3)
    result = topic.run("a")
    assert (result.counts["parsed"], result.counts["quarantined"]) == (2, 1)
    [bad] = open_log(str(topic.root / "log")).quarantined()
    assert (bad["topic"], bad["entry_id"], bad["batch_index"], bad["raw"]) == (
        f"persistent://public/default/{topic.partition(0)}", 0, 1, "{broken",
    )  # fmt: skip


def test_retry_reads_the_planned_range_though_more_messages_arrived(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(30))
    topic.dies_after_its_plan("a")
    topic.put(range(30, 40))
    assert topic.run("a", drain=False).counts["read"] == 30
    topic.run("b")
    assert topic.ids(spark) == Counter(range(40))


def test_planned_range_that_retention_deleted_fails_the_run_or_becomes_a_gap(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(45))  # ledgers of 20, 20 and 5 messages
    topic.dies_after_its_plan("a")
    topic.server.trim(topic.partition(0), below=topic.server.ledgers(topic.partition(0))[1])
    with pytest.raises(RecordsMissingError, match="no longer has a planned ledger"):
        topic.run("a")
    topic.run("a", on_data_loss="record_gap")
    assert topic.ids(spark) == Counter(range(20, 45))


def test_unread_messages_that_retention_deleted_fail_the_run_or_become_a_gap(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(10))
    topic.run("a")
    topic.put(range(10, 45))
    topic.server.trim(topic.partition(0), below=topic.server.ledgers(topic.partition(0))[1])
    with pytest.raises(SourceChangedError, match="missing in Pulsar"):
        topic.run("b")
    topic.run("b", on_data_loss="record_gap")
    assert topic.ids(spark) == Counter([*range(10), *range(20, 45)])


def test_deleted_ledger_that_was_read_to_its_end_fails_the_run_once(topic: Topic, spark: SparkSession) -> None:
    """Pulsar does not report how many entries a deleted ledger had."""
    topic.put(range(30))
    topic.run("a")
    topic.server.close_ledger(topic.partition(0))
    assert topic.run("idle").status == "empty"
    topic.put(range(30, 35))
    topic.server.trim(topic.partition(0), below=topic.server.ledgers(topic.partition(0))[-1])
    with pytest.raises(SourceChangedError, match="cannot prove"):
        topic.run("b")
    topic.run("b", on_data_loss="record_gap")
    assert topic.ids(spark) == Counter(range(35))
    assert topic.run("c").status == "empty"


def test_recreated_topic_fails_the_run_or_is_read_from_its_beginning(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(10))
    topic.run("a")
    topic.put(range(10, 15))
    topic.server.admin("DELETE", f"persistent/public/default/{topic.name}/partitions?force=true")
    with pytest.raises(SourceChangedError, match="does not exist"):
        topic.run("b")
    topic.server.create(topic.name, 2)
    topic.put(range(100, 103))
    with pytest.raises(SourceChangedError, match="missing in Pulsar"):
        topic.run("b")
    topic.run("b", on_data_loss="record_gap")
    assert topic.ids(spark) == Counter([*range(10), *range(100, 103)])


def test_partition_that_is_added_later_is_read_from_its_beginning(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(5))
    topic.run("a")
    topic.server.admin("POST", f"persistent/public/default/{topic.name}/partitions", 3)
    topic.put(range(5, 9), partition=2)
    topic.run("b")
    assert topic.ids(spark) == Counter(range(9))


def test_topic_without_partitions_is_read(topic: Topic, spark: SparkSession) -> None:
    name = f"{topic.name}-single"
    topic.server.put(name, [b'{"id": 1}', b'{"id": 2}'])
    topic.run("a", source={"topic": f"persistent://public/default/{name}"})
    assert topic.ids(spark) == Counter([1, 2])


@pytest.mark.parametrize("starting", ["latest", "time"])
def test_new_pipeline_starts_where_its_source_says(topic: Topic, spark: SparkSession, starting: str) -> None:
    topic.put(range(30))
    now = datetime.now(timezone.utc).isoformat()
    source = {"starting": starting if starting == "latest" else now}
    if starting == "latest":
        topic.run("a", source=source)
    topic.put(range(30, 33))
    topic.run("b", source=source)
    assert topic.ids(spark) == Counter(range(30, 33))


@pytest.mark.prove
def test_broker_that_was_killed_between_plan_and_read_is_read_after_its_restart(
    topic: Topic, spark: SparkSession
) -> None:
    topic.put(range(30))
    topic.dies_after_its_plan("a")
    topic.server.kill()
    with pytest.raises(UnavailableError):
        topic.run("a")
    topic.server.start()
    topic.put(range(30, 35))
    topic.run("a")
    topic.run("b")
    assert topic.ids(spark) == Counter(range(35))


def test_topic_that_is_unloaded_during_the_read_has_each_message_once(topic: Topic) -> None:
    """The client connects again, and may repeat messages of the batch that it was reading."""
    topic.server.put(topic.partition(0), [b"%d" % n for n in range(4_000)], batch=1_000)
    source = topic.source()
    planned = source.open(CommitLog(MemoryStore()), None).slice(
        {}, source.open(CommitLog(MemoryStore()), None).poll(None), Limits(), None, on_data_loss="fail"
    )
    assert planned is not None
    read: list[bytes] = []
    with reading.client(**source.access().for_executors()) as connected:
        for pin in planned.pins:
            for _, message in reading.messages(connected, dataclasses.asdict(pin)):
                if len(read) % 500 == 250:
                    topic.server.close_ledger(topic.partition(0))
                read.append(message.data())
    assert read == [b"%d" % n for n in range(4_000)]


def test_range_is_read_again_by_a_reprocessing_run(topic: Topic, spark: SparkSession) -> None:
    topic.put(range(25), batch=5)
    topic.run("a")
    result = reprocess(topic.pipeline(where="id < 10"), 0)
    assert result.counts["read"] == 25
    assert topic.ids(spark) == Counter(range(10))


def test_entry_without_a_message_fails_the_batch_with_the_reason(
    topic: Topic, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message in several chunks has several entries, and the client returns it at the last one."""
    topic.put(range(3))
    topic.server.put_chunked(topic.partition(0), b"x" * 3_000_000)
    with pytest.raises(DataError, match="a planned entry has no message"):
        topic.run("a")
    assert open_log(str(topic.root / "log")).log.outcome(0) is None


def test_wrong_token_is_refused_and_no_token_is_stored_or_shown(
    topic: Topic, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.put(range(3))
    topic.run("a")
    wrong = topic.server.token(b"another key of 32 bytes, or more")
    monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", topic.server.connection(wrong))
    with pytest.raises(StoreRefusedError, match="Pulsar refused a request") as caught:
        topic.run("b")
    assert wrong not in str(caught.value)
    assert topic.ids(spark) == Counter(range(3))
    assert all(b"eyJ" not in file.read_bytes() for file in topic.root.rglob("*") if file.is_file())


def test_messages_are_read_over_tls_from_a_server_with_a_trusted_certificate(
    topic: Topic, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic.put(range(9))
    monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", topic.server.tls_connection(topic.server.certificates.authority))
    topic.run("a")
    assert topic.ids(spark) == Counter(range(9))
    other = certificates.make(tmp_path / "other").authority
    for authority in (None, other):
        monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", topic.server.tls_connection(authority))
        with pytest.raises(UnavailableError, match="admin API did not respond") as caught:
            topic.run("b")
        assert caught.value.fields["error"] == "SSLError"


def test_broker_with_an_unknown_certificate_gets_no_token(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The admin API has no TLS here, so that only the client of the brokers checks a certificate."""
    monkeypatch.setattr(reading, "OPERATION_TIMEOUT_S", 3)
    topic.put(range(1))
    changed = json.loads(topic.server.tls_connection(certificates.make(tmp_path / "other").authority))
    changed["extra"]["admin_url"] = topic.server.admin_url
    monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", json.dumps(changed))
    with pytest.raises(UnavailableError, match="no Pulsar broker responded"):
        topic.source().open(CommitLog(MemoryStore()), None).minimum_clock({})


def test_server_that_does_not_respond_is_named(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OPERATION_TIMEOUT_S", 3)
    topic.put(range(1))
    connection = json.loads(topic.server.connection())
    for change, summary in (
        ({"extra": {"admin_url": "http://127.0.0.1:1"}}, "admin API did not respond"),
        ({"port": 1}, "no Pulsar broker responded"),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", json.dumps({**connection, **change}))
        with pytest.raises(UnavailableError, match=summary):
            topic.source().open(CommitLog(MemoryStore()), None).minimum_clock({})
