"""Versions as Kafka transactions on a real broker. Publishers crash, race, pause and get false replies. The checks use read_committed consumers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import DataError, InvalidError, MarkerLostError, PublishError, UnavailableError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors import batches
from tests.connectors.batches import committed_batch
from tests.integration.kafka_steps import WatchedClient
from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.topics import TIMEOUT_S, Topics
from tests.pipeline_fixture import PipelineFixture, die
from tests.step_by_step import AtStep

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(broker: Broker, tmp_path: Path) -> Topics:
    topics = Topics(broker, tmp_path)
    topics.create("out")
    return topics


def sink(topics: Topics, root: Path, **changes: Any) -> KafkaSink:
    arguments = {
        "topic": topics.name("out"),
        "bootstrap_servers": topics.broker.bootstrap,
        "control_topic": topics.name("markers"),
        "transaction_timeout_s": 20,
    }
    return KafkaSink(str(root / "staged"), **{**arguments, **changes})


def pipeline_to_kafka(fixture: PipelineFixture, topics: Topics, **changes: Any) -> Pipeline:
    return fixture.pipeline(sinks={"out": sink(topics, fixture.root, **changes)}, transform=to_records)


def to_records(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"key": f"k{row['id']}", "value": str(row["id"])} for row in rows]


def seen(topics: Topics, topic: str = "out") -> Counter[int]:
    return Counter({int(value): times for value, times in topics.read(topic).items()})


def staged(of: KafkaSink, version: int, rows: list[dict[str, Any]], uuid: str = "u") -> SinkCommit:
    """Return a committed batch without a log, whose columns were accepted."""
    of._control().ensure()
    location = Path(of.attempt_location(version, "a"))
    location.mkdir(parents=True)
    pa.parquet.write_table(pa.Table.from_pylist(rows), location / "part-0.parquet")
    return SinkCommit(
        pipeline_uuid=uuid, sink="out", version=version, outcome=batches.outcome_of(version), committable=of.collect(version, "a"),
        schema="", root=version, expected_marker=batches.before(version),
    )  # fmt: skip


def publish(of: KafkaSink, batch: SinkCommit) -> Receipt | None:
    return of.publish(batch)


# --- crashes, pauses and false replies at every step


@pytest.mark.parametrize("who", [pytest.param("same run", marks=pytest.mark.prove), "other run"])
def test_crash_at_every_step_then_a_retry_keeps_the_promise_of_the_label(
    who: str, tmp_path: Path, topics: Topics, watched_client: WatchedClient
) -> None:
    at, steps = 0, 1
    while at < steps:
        topics.create(f"out{at}", 1)
        fixture = PipelineFixture(tmp_path / str(at), rows_per_file=2)
        fixture.arrive(1)
        # The pipelines of these fixtures share one uuid, so each needs a separate control topic.
        pipeline = pipeline_to_kafka(
            fixture, topics, topic=topics.name(f"out{at}"), control_topic=topics.name(f"markers{at}")
        )
        killed = AtStep(at, die)
        with suppress(Crash):
            watched_client.run(lambda: fixture.run("a", pipeline=pipeline), killed)  # noqa: B023
        steps = max(steps, len(killed.taken) + 1)
        fixture.run("a" if who == "same run" else "b", pipeline=pipeline)
        fixture.arrive(1)
        fixture.run("c", pipeline=pipeline)
        fixture.check(lambda: seen(topics, f"out{at}"))  # noqa: B023
        assert fixture.opened().log.receipts(0).sinks["out"] == Receipt(result="applied", rows=2)  # type: ignore[union-attr]
        at += 1
    assert steps >= 14
    watched_client.producers.clear()


def test_version_becomes_visible_atomically(tmp_path: Path, topics: Topics, watched_client: WatchedClient) -> None:
    of = sink(topics, tmp_path)
    batch = staged(of, 0, [{"value": str(n)} for n in range(4)])
    found: list[Counter[int]] = []
    watched_client.run(lambda: publish(of, batch), lambda name: found.append(seen(topics)))
    assert found[-1] == Counter(range(4))
    assert all(not counted for counted in found[:-1])


def test_publisher_waits_for_the_open_transaction_of_another_pipeline(tmp_path: Path, topics: Topics) -> None:
    of = sink(topics, tmp_path, transaction_timeout_s=3)
    batch = staged(of, 0, [{"value": "1"}])
    assert publish(of, batch) == Receipt(result="applied", rows=1)
    settings = {"bootstrap.servers": topics.broker.bootstrap, "transactional.id": topics.name("another")}
    other_producer = confluent_kafka.Producer(settings)
    other_producer.init_transactions(TIMEOUT_S)
    other_producer.begin_transaction()
    other_producer.produce(
        topics.name("markers"), key="another/out", value=json.dumps({"version": 9, "state": "applied"})
    )
    assert other_producer.flush(TIMEOUT_S) == 0
    later = staged(of, 1, [{"value": "2"}])
    with pytest.raises(UnavailableError, match="another publisher has an open transaction"):
        publish(of, later)
    receipts: list[Any] = []
    waiting = threading.Thread(target=lambda: receipts.append(publish(of, later)))
    waiting.start()
    other_producer.abort_transaction(TIMEOUT_S)
    waiting.join()
    assert receipts == [Receipt(result="applied", rows=1)]
    assert seen(topics) == Counter([1, 2])


# --- records, refused batches and skipped versions


def test_columns_of_a_row_determine_the_kafka_record(tmp_path: Path, topics: Topics) -> None:
    topics.create("other", 3)
    of = sink(topics, tmp_path)
    of._control().ensure()
    rows: list[dict[str, Any]] = [
        {"key": b"k", "value": b"\x00\xff", "topic": topics.name("other"), "partition": 2, "headers": [{"key": "h", "value": b"1"}]},
        {"key": None, "value": None, "topic": None, "partition": 1, "headers": None},
    ]  # fmt: skip
    schema = pa.schema(
        [
            ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )  # fmt: skip
    location = Path(of.attempt_location(0, "a"))
    location.mkdir(parents=True)
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema), location / "part-0.parquet")
    batch = SinkCommit(
        pipeline_uuid="u", sink="out", version=0, outcome="0", committable=of.collect(0, "a"), schema="", root=0
    )
    assert publish(of, batch) == Receipt(result="applied", rows=2)
    consumer = Consumer(
        {"bootstrap.servers": topics.broker.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topics.name("other"), 2, 0), TopicPartition(topics.name("out"), 1, 0)])
    found = {message.partition(): message for message in consumer.consume(2, TIMEOUT_S)}
    consumer.close()
    assert (found[2].key(), found[2].value(), found[2].headers()) == (b"k", b"\x00\xff", [("h", b"1")])
    assert (found[1].key(), found[1].value(), found[1].headers()) == (None, None, None)


def test_deleted_control_topic_is_not_recreated_while_publishing(tmp_path: Path, topics: Topics) -> None:
    """With an empty control topic, the publisher would find no marker and send the batch again."""
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    pipeline = pipeline_to_kafka(fixture, topics, control_topic=topics.name("own-markers"))
    fixture.run("a", pipeline=pipeline)
    batch = committed_batch(fixture, pipeline, "out", 0)
    topics.delete("own-markers")
    with pytest.raises(MarkerLostError, match="the control topic was deleted"):
        pipeline.sinks["out"].publish(batch)  # type: ignore[attr-defined]
    assert seen(topics) == fixture.expected


def test_recreated_control_topic_stops_the_run_until_its_marker_is_restored(tmp_path: Path, topics: Topics) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(6)
    pipeline = pipeline_to_kafka(fixture, topics, control_topic=topics.name("emptied-markers"))
    fixture.run("a", pipeline=pipeline)
    control = pipeline.sinks["out"]._control()  # type: ignore[attr-defined]
    topics.delete("emptied-markers")
    control.ensure()
    for run_key in ("b", "c"):
        with pytest.raises(
            MarkerLostError, match=r"sink='out', version=1, expected_marker=0.*emptied-markers"
        ) as stopped:
            fixture.run(run_key, pipeline=pipeline)
    assert seen(topics) == Counter(range(6))
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 0)]
    # The steps of docs/connectors/kafka-sink.md.
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    producer.produce(control.topic, key=str(stopped.value.fields["key"]), value='{"version":0,"state":"applied"}')
    producer.flush()
    fixture.run("b", pipeline=pipeline)
    topics.delete("emptied-markers")
    with pytest.raises(DataError, match="the control topic was deleted"):
        fixture.run("d", pipeline=pipeline)
    control.ensure()
    with pytest.raises(MarkerLostError):
        fixture.run("d", pipeline=pipeline)
    topics.delete("emptied-markers")
    skip(pipeline, 2, sink="out", reason="the markers were lost", log=fixture.log())
    found = control.marker(str(stopped.value.fields["key"]), within_s=30)
    assert found is not None
    assert (found.version, found.state) == (2, "skipped")
    assert seen(topics) == Counter(range(12))
    assert fixture.verdict().violations == []


def test_batch_too_large_for_a_transaction_is_refused_before_the_commit_with_the_arithmetic(
    tmp_path: Path, topics: Topics
) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=100)
    fixture.arrive(1)
    pipeline = pipeline_to_kafka(fixture, topics, transaction_timeout_s=1, bytes_per_s=1_000)
    with pytest.raises(
        DataError,
        match=r"rows=100, bytes=3680, bytes_per_s=1000, needs_s=3.7, transaction_timeout_s=1, rows_that_fit=27",
    ):
        fixture.run("a", pipeline=pipeline)
    assert fixture.opened().log.outcome(0) is None
    fixture.run("a", pipeline=pipeline_to_kafka(fixture, topics, transaction_timeout_s=5, bytes_per_s=1_000))
    fixture.check(lambda: seen(topics))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": "x", "topic": "nowhere"}, "does not exist.*nowhere"), ({"value": "x", "topic": "a/b"}, "does not exist.*a/b"),
        ({"value": "x", "topic": "."}, "does not exist"), ({"value": "x", "partition": 2}, "does not exist.*partition=2"),
        ({"value": "x", "partition": -1}, "does not exist"), ({"value": "x" * 1_000_000}, "larger than the topic"),
    ],
)  # fmt: skip
def test_row_that_kafka_would_refuse_is_refused_before_the_commit(
    row: dict[str, Any], message: str, tmp_path: Path, topics: Topics
) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    pipeline = pipeline_to_kafka(fixture, topics).replace(transform=lambda rows: [row])
    with pytest.raises(DataError, match=message):
        fixture.run("a", pipeline=pipeline)
    assert fixture.opened().log.outcome(0) is None
    assert seen(topics) == Counter()


@pytest.mark.parametrize("place", ["options", "connection"])
def test_row_that_the_producer_would_refuse_is_refused_before_the_commit(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    limit = {"message.max.bytes": "2000"}
    extra = {"bootstrap.servers": topics.broker.bootstrap, **(limit if place == "connection" else {})}
    monkeypatch.setenv("AIRFLOW_CONN_LIMITED", json.dumps({"conn_type": "kafka", "extra": extra}))
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    options = limit if place == "options" else {}
    pipeline = pipeline_to_kafka(fixture, topics, conn_id="limited", bootstrap_servers=None, options=options)
    with pytest.raises(DataError, match="larger than the topic or the producer accepts"):
        fixture.run("a", pipeline=pipeline.replace(transform=lambda rows: [{"value": "x" * 3_000}]))
    assert fixture.opened().log.outcome(0) is None


def test_row_without_key_is_refused_if_its_topic_is_compacted(tmp_path: Path, topics: Topics) -> None:
    topics.create("table", cleanup_policy="compact")
    of = sink(topics, tmp_path, topic=topics.name("table"))
    with pytest.raises(DataError, match="compacted topic has no key"):
        staged(of, 0, [{"key": "a", "value": "1"}, {"key": None, "value": "2"}])
    with_key = replace(staged(of, 1, [{"key": "a", "value": "1"}]), expected_marker=None)
    assert publish(of, with_key) == Receipt(result="applied", rows=1)


def test_control_topic_with_retention_is_refused(tmp_path: Path, topics: Topics) -> None:
    topics.create("markers", 1, cleanup_policy="delete")
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    with pytest.raises(InvalidError, match=r"cleanup.policy=compact.*'delete'"):
        fixture.run("a", pipeline=pipeline_to_kafka(fixture, topics))
    assert fixture.opened().log.outcome(0) is None


def _set_max_message_bytes(topics: Topics, most: int) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topics.name("out"),
        incremental_configs=[ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)],
    )
    for future in topics.admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def test_batch_that_kafka_refuses_is_published_after_a_fix_or_skipped(tmp_path: Path, topics: Topics) -> None:
    of = sink(topics, tmp_path, options={"compression.type": "none"})
    batch = staged(of, 0, [{"value": "1" * 5000}])
    _set_max_message_bytes(topics, 1000)
    with pytest.raises(PublishError, match=r"no record of the batch is committed.*MSG_SIZE_TOO_LARGE"):
        publish(of, batch)
    assert of.marker("u", "out") is None
    _set_max_message_bytes(topics, 1_000_000)
    assert publish(of, batch) == Receipt(result="applied", rows=1)
    skipped_batch = staged(of, 1, [{"value": "2" * 5000}])
    assert of.skip(skipped_batch) == Receipt(result="skipped", rows=0)
    assert publish(of, skipped_batch) == Receipt(result="skipped", rows=0)
    assert of.marker("u", "out") == batches.marked(1, "skipped")
    assert publish(of, batch) is None
    assert topics.read("out") == Counter(["1" * 5000])


def test_timeout_that_the_broker_does_not_allow_is_named_and_can_be_fixed(tmp_path: Path, topics: Topics) -> None:
    batch = staged(sink(topics, tmp_path), 0, [{"value": "1"}])
    with pytest.raises(PublishError, match=r"sent no records.*INVALID_TRANSACTION_TIMEOUT.*=901"):
        publish(sink(topics, tmp_path, transaction_timeout_s=901), batch)
    assert publish(sink(topics, tmp_path), batch) == Receipt(result="applied", rows=1)


def test_version_skipped_by_a_user_is_recorded_in_the_marker(tmp_path: Path, topics: Topics) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    fixture.arrive(1)
    pipeline = pipeline_to_kafka(fixture, topics, options={"compression.type": "none"}).replace(transform=large)
    after_collect = AtStep(0, lambda: _set_max_message_bytes(topics, 1000))
    collect = KafkaSink.collect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSink, "collect", lambda *args: [collect(*args), after_collect("")][0])
        with pytest.raises(PublishError):
            fixture.run("a", pipeline=pipeline)
    skip(pipeline, 0, sink="out", reason="too large", log=fixture.log())
    _set_max_message_bytes(topics, 1_000_000)
    fixture.arrive(1)
    fixture.run("b", pipeline=pipeline)
    assert [fixture.opened().log.receipts(v).sinks["out"].result for v in (0, 1)] == ["skipped", "applied"]  # type: ignore[union-attr]
    assert topics.read("out").total() == 1
    assert fixture.verdict().violations == []


def large(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"value": str(row["id"]).zfill(5000)} for row in rows]


def test_password_of_the_connection_is_not_logged_or_stored(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    extra = {
        "bootstrap.servers": topics.broker.bootstrap_sasl, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": USER, "sasl.password": PASSWORD, "group.id": "mine", "acks": "1",
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps({"conn_type": "kafka", "extra": extra}))
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    pipeline = pipeline_to_kafka(fixture, topics, bootstrap_servers=None, conn_id="events")
    fixture.run("a", pipeline=pipeline, drain=True)
    fixture.check(lambda: seen(topics))
    stored = "".join((fixture.store.read(stat.key) or b"").decode() for stat in fixture.store.list(""))
    assert PASSWORD not in stored + caplog.text + repr(pipeline)


def test_markers_of_many_versions_are_compacted_and_read_back(tmp_path: Path, topics: Topics) -> None:
    of = sink(topics, tmp_path)
    for version in range(5):
        publish(of, staged(of, version, [{"value": str(version)}]))
        other = staged(of, version + 100, [{"value": str(version)}], uuid="other")
        publish(of, other if version else replace(other, expected_marker=None))
    assert of.marker("u", "out") == batches.marked(4)
    assert of.marker("other", "out") == batches.marked(104)
    assert of.marker("nobody", "out") is None
    assert sink(topics, tmp_path, control_topic=topics.name("none")).marker("u", "out") is None
