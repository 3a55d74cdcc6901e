"""The Kafka sink without a cluster: arguments, columns, sizes, label. The other tests are in tests/integration/test_kafka_sink.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_streamsem import guarantee
from airflow_provider_streamsem.connectors.kafka import sink as sink_module
from airflow_provider_streamsem.connectors.kafka.rows import Measured, check_columns, records
from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import DataError, InvalidError, StoreRefusedError
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from airflow_provider_streamsem.protocol.entries import Committable, DataFile
from tests.pipeline_fixture import PipelineFixture

HEADERS: Any = {
    "type": "array", "containsNull": True,
    "elementType": {"type": "struct", "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "binary"}]},
}  # fmt: skip
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of conn_id"), ({"conn_id": "k", "bootstrap_servers": "h:1"}, "exactly one of conn_id"), ({"bootstrap_servers": "u:pw@h:1"}, "bootstrap_servers"),
    ({"conn_id": "k", "topic": "a b"}, "topic"), ({"conn_id": "k", "control_topic": ""}, "control_topic"), ({"conn_id": "k", "topic": "__streamsem_markers"}, "must be different topics"),
    ({"conn_id": "k", "transaction_timeout_s": 0}, "transaction_timeout_s"), ({"conn_id": "k", "bytes_per_s": 1.5}, "bytes_per_s"),
    ({"conn_id": "k", "options": {"transactional.id": "mine"}}, "options"), ({"conn_id": "k", "options": {"linger.ms": 5}}, "options"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), BAD)
def test_invalid_argument_is_reported_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        KafkaSink("/staged", **given)


def _schema(**types: Any) -> str:
    return json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True} for n, t in types.items()]}
    )


def test_columns_of_a_kafka_record_are_accepted() -> None:
    check_columns(_schema(key="binary", value="string", headers=HEADERS, topic="string", partition="integer"), None)
    check_columns(_schema(value="binary"), "t")
    check_columns(_schema(), None)  # a batch without rows


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"value": "string", "id": "long"}, "not those of a Kafka record"), ({"key": "string"}, "not those of a Kafka record"), ({"value": "string"}, "the sink sets no topic"),
        ({"value": "long", "topic": "string"}, "column='value'"), ({"value": "string", "topic": "string", "partition": "string"}, "column='partition'"),
        ({"value": "string", "topic": "string", "headers": "string"}, "column='headers'"),
        ({"value": "string", "topic": "string", "headers": {**HEADERS, "elementType": "binary"}}, "column='headers'"),
    ],
)  # fmt: skip
def test_columns_that_are_not_those_of_a_kafka_record_are_refused_by_name(types: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"{message}|nothing became visible.*{message}"):
        check_columns(_schema(**types), None)


def test_batch_size_is_the_size_of_its_records_and_each_topic_partition_is_found() -> None:
    rows: list[dict[str, Any]] = [
        {"key": "ab", "value": b"123", "headers": [{"key": "h", "value": b"xy"}], "topic": "t", "partition": 1},
        {"key": None, "value": b"1", "headers": None, "topic": None, "partition": None},
        {"key": "é", "value": None, "headers": [], "topic": "t", "partition": 1},
    ]
    schema = pa.schema(
        [
            ("key", pa.string()), ("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("topic", pa.string()), ("partition", pa.int32()),
        ]
    )  # fmt: skip
    batches = pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=2)
    measured = Measured()
    for batch in batches:
        measured.add(batch)
    assert (measured.rows, measured.bytes, measured.largest) == (3, 8 + 1 + 2 + 3 * 32, 8)
    assert measured.topic_partitions == {("t", 1), (None, None)}
    assert measured.keyless == {None}
    assert [*records(iter(batches), "default")] == [
        {"topic": "t", "value": b"123", "key": "ab", "partition": 1, "headers": [("h", b"xy")]},
        {"topic": "default", "value": b"1", "key": None},
        {"topic": "t", "value": None, "key": "é", "partition": 1},
    ]


HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_header_with_null_value_stays_null() -> None:
    rows = pa.table(
        {"value": ["x"], "headers": pa.array([[{"key": "a", "value": None}, {"key": "b", "value": b""}]], HEADERS_TYPE)}
    )
    Measured().add(rows.to_batches()[0])
    (record,) = records(iter(rows.to_batches()), "t")
    assert record["headers"] == [("a", None), ("b", b"")]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}, {"key": "a\0b", "value": b"1"}])
def test_header_that_the_client_would_change_is_refused_before_the_commit(header: Any) -> None:
    rows = pa.table({"value": ["x"], "headers": pa.array([[header]], HEADERS_TYPE)})
    with pytest.raises(DataError, match="a header is null"):
        Measured().add(rows.to_batches()[0])


def test_empty_topic_is_refused_before_the_commit() -> None:
    with pytest.raises(DataError, match="is an empty string"):
        Measured().add(pa.table({"value": ["x", "y"], "topic": ["t", ""]}).to_batches()[0])


def test_batch_without_rows_is_staged(tmp_path: Path) -> None:
    """Spark writes a file without rows. No topic is checked, so the sink needs no broker here."""
    sink = KafkaSink(str(tmp_path / "staged"), topic="t", bootstrap_servers="localhost:1")
    location = Path(sink.attempt_location(0, "attempt"))
    location.mkdir(parents=True)
    pq.write_table(pa.table({"value": pa.array([], pa.string())}), location / "part-00000.parquet")
    assert sink.collect(0, "attempt").rows == 0


def test_rows_with_only_a_value_are_measured() -> None:
    measured = Measured()
    for batch in pa.table({"value": ["1", "22", "333"]}).to_batches():
        measured.add(batch)
    assert (measured.bytes, measured.largest, measured.topic_partitions) == (6 + 3 * 32, 3, {(None, None)})
    assert measured.keyless == {None}


def test_label_names_read_committed_consumers_and_the_spec_round_trips(tmp_path: Any) -> None:
    fixture = PipelineFixture(tmp_path)
    sink = KafkaSink(str(tmp_path / "staged"), topic="t", conn_id="k", options={"linger.ms": "5"})
    pipeline = fixture.pipeline(sinks={"out": sink}, require="exactly_once")
    assert any("read_committed see" in reason for reason in guarantee(pipeline).reasons)
    spec = {key: value for key, value in pipeline.to_json().items() if key != "transform"}
    assert from_json(spec).sinks == pipeline.sinks


@pytest.mark.parametrize("skips", [False, True])
def test_control_topic_that_cannot_be_checked_gets_no_batch(
    monkeypatch: pytest.MonkeyPatch, short_waits: None, skips: bool
) -> None:
    """The check may fail in any try. Without it, a batch could be sent although the topic with its marker was deleted."""
    calls: list[str] = []
    failures = [OSError("reset"), StoreRefusedError("denied")]

    class UnavailableTopic:
        topic = "__streamsem_markers"

        def is_missing(self) -> bool:
            calls.append("check")
            raise failures.pop(0)

        def ensure(self) -> None:
            self.is_missing()

    monkeypatch.setattr(sink_module, "ControlTopic", lambda *given: UnavailableTopic())
    monkeypatch.setattr(confluent_kafka, "Producer", lambda settings: calls.append("fencing"))
    file = DataFile(key="data/0/a/x.parquet", bytes=1, rows=1, checksum="sha256:00")
    batch = SinkCommit(
        pipeline_uuid="u", sink="s", version=0, outcome="o", committable=Committable(format="parquet", rows=1, files=(file,)), schema="", root=0
    )  # fmt: skip
    sink = KafkaSink("/staged", topic="t", bootstrap_servers="h:1")
    with pytest.raises(StoreRefusedError, match="denied"):
        (sink.skip if skips else sink.publish)(batch)
    assert calls == ["check", "check"]
