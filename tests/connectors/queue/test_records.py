"""Landed queue messages on Spark: the columns of the body, the columns of the queue, and invalid bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, QueueSource, run_batch
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.connectors.queue.memory_broker import Broker, memory_queue
from tests.pipeline_fixture import PipelineFixture

pytestmark = pytest.mark.spark

GOOD = {
    "plain": b'{"id": 1, "name": "a"}',
    "pretty": b'{\r\n  "id": 2,\n  "name": "b\\nc"\r}\n',
    "separators": '{"id": 3, "name": "\u2028\u0085☃"}'.encode(),
    "missing": b"{}",
}
BAD = {
    "empty": b"",
    "blank": b" \n ",
    "no object": b"[1]",
    "truncated": b'{"id": 1',
    "two": b'{"id": 1} {"id": 2}',
    "another type": b'{"id": "x"}',
    "binary": b"\xff\xfe\x00",
}


@pytest.fixture
def fixture(tmp_path: Path, spark: SparkSession) -> PipelineFixture:
    return PipelineFixture(tmp_path)


def run(fixture: PipelineFixture, messages: list[Message], **given: Any) -> Any:
    broker = Broker()
    broker.send(*messages)
    source = QueueSource(queue=memory_queue(broker), landing=str(fixture.root / "in"), **given)
    spec = fixture.pipeline(source=source, sinks={"out": FilesSink(path=str(fixture.root / "out"), format="json")})
    return run_batch(spec, run_key="a", log=fixture.log(), engine=SparkEngine())


def rows(fixture: PipelineFixture) -> Iterator[dict[str, Any]]:
    for file in fixture.opened().files():
        yield from map(json.loads, Path(file.path).read_text().split("\n")[:-1])


def test_bodies_become_columns_and_invalid_ones_are_quarantined_with_their_ids(fixture: PipelineFixture) -> None:
    messages = [Message(id=name, body=body, headers={"h": name}) for name, body in {**GOOD, **BAD}.items()]
    messages.append(Message(id=None, body=GOOD["plain"]))
    result = run(fixture, messages, schema="id long, name string")
    assert (result.counts["read"], result.counts["quarantined"]) == (12, 8)
    by_id = {row.pop("queue_message_id"): row for row in rows(fixture)}
    assert {name: (row.get("id"), row.get("name")) for name, row in by_id.items()} == {
        "plain": (1, "a"), "pretty": (2, "b\nc"), "separators": (3, "\u2028\u0085☃"), "missing": (None, None),
    }  # fmt: skip
    assert {row["queue_headers"]["h"] for row in by_id.values()} == set(GOOD)
    assert all(row["queue_received_at"].startswith("2023-11-14T22:13:20") for row in by_id.values())
    bad = {record["message_id"]: (record["raw"], record["encoding"]) for record in fixture.opened().quarantined()}
    assert bad == {
        **{name: (body.decode(), "utf-8") for name, body in BAD.items() if name != "binary"},
        "binary": ("//4A", "base64"),
        "": (GOOD["plain"].decode(), "utf-8"),
    }


def test_text_bodies_are_read_unchanged(fixture: PipelineFixture) -> None:
    messages = [Message(id=name, body=body) for name, body in {**GOOD, **BAD}.items()]
    result = run(fixture, messages, format="text")
    assert (result.counts["read"], result.counts["quarantined"]) == (11, 1)
    expected = {name: body.decode() for name, body in {**GOOD, **BAD}.items() if name != "binary"}
    assert {row["queue_message_id"]: row["body"] for row in rows(fixture)} == expected


def test_body_field_with_the_name_of_a_queue_column_is_refused(fixture: PipelineFixture) -> None:
    with pytest.raises(DataError, match="columns that the source adds"):
        run(fixture, [Message(id="a", body=b"{}")], schema="queue_message_id string")
