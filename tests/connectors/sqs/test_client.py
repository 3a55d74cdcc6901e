"""SQS queues through boto3, on moto: complete runs, redelivery after the visibility timeout, and refusals."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest

from airflow_provider_streamsem import Pipeline, QueueSource, SqsQueue
from airflow_provider_streamsem.connectors.sqs.client import SqsReceiver
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()


@pytest.fixture
def sqs(aws: None) -> Any:
    return boto3.client("sqs")


class SqsFixture:
    def __init__(self, root: Path, client: Any, **queue: Any) -> None:
        self.fixture = PipelineFixture(root, store=open_memory_store(f"sqs-{next(_NAMES)}"))
        self.client = client
        self.url = client.create_queue(QueueName=f"orders-{next(_NAMES)}")["QueueUrl"]
        self.queue = SqsQueue(url=self.url, **{"visibility_timeout_s": 60, **queue})
        self.sent = 0

    def send(self, messages: int, **given: Any) -> None:
        for n in range(self.sent, self.sent + messages):
            self.client.send_message(QueueUrl=self.url, MessageBody=json.dumps({"id": n}), **given)
        self.sent += messages

    def pipeline(self, **source: Any) -> Pipeline:
        return self.fixture.pipeline(
            source=QueueSource(queue=self.queue, landing=str(self.fixture.root / "in"), schema="id long", **source)
        )

    def message_counts(self) -> tuple[int, int]:
        """Return the number of visible messages and of messages in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return int(attributes[names[0]]), int(attributes[names[1]])

    def check(self) -> None:
        assert self.fixture.verdict().violations == []
        assert self.fixture.visible() == Counter(range(self.sent))


def test_messages_received_with_boto3_are_committed_once_and_deleted(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs)
    queue_fixture.send(25)
    assert queue_fixture.fixture.run("a", pipeline=queue_fixture.pipeline(max_messages=20)).counts["read"] == 20
    assert queue_fixture.message_counts() == (5, 0)
    assert queue_fixture.fixture.run("b", pipeline=queue_fixture.pipeline()).counts["read"] == 5
    assert queue_fixture.message_counts() == (0, 0)
    queue_fixture.check()


def test_landed_message_that_was_not_deleted_is_redelivered_and_dropped(
    tmp_path: Path, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs, visibility_timeout_s=2)
    queue_fixture.send(3)

    def unanswered(*_: object) -> None:
        raise UnavailableError("no reply")

    with monkeypatch.context() as broken:
        broken.setattr(SqsReceiver, "acknowledge", unanswered)
        queue_fixture.fixture.run("a", pipeline=queue_fixture.pipeline())
    assert queue_fixture.message_counts() == (0, 3)
    time.sleep(2.1)
    queue_fixture.send(1)
    assert queue_fixture.message_counts() == (4, 0)
    assert queue_fixture.fixture.run("b", pipeline=queue_fixture.pipeline()).counts["read"] == 1
    assert queue_fixture.message_counts() == (0, 0)
    queue_fixture.check()


def test_invalid_receipt_handle_is_ignored(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs)
    queue_fixture.send(1)
    with queue_fixture.queue.connect() as receiver:
        (message,) = receiver.receive(10)
        receiver.acknowledge([message.handle])
        receiver.acknowledge([message.handle, "not-a-handle"])
        assert receiver.waiting() == 0


def test_attributes_and_bodies_are_landed_unchanged(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs)
    attributes = {
        "kind": {"DataType": "String", "StringValue": "ä"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
    }
    sqs.send_message(QueueUrl=queue_fixture.url, MessageBody="a\r\n\u2028b ☃", MessageAttributes=attributes)
    queue_fixture.pipeline().source.open(queue_fixture.fixture.log(), None).poll(None)
    (file,) = (tmp_path / "in").glob("*.jsonl")
    landed = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert [message["body"] for message in landed] == ["a\r\n\u2028b ☃"]
    assert landed[0]["headers"] == {"kind": "ä", "raw": "/w=="}


def test_each_landing_on_s3_is_one_file_with_its_ids_below_one_marker(tmp_path: Path, sqs: Any) -> None:
    boto3.client("s3").create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    queue_fixture = SqsFixture(tmp_path, sqs)
    location = f"s3://lake/landing/{next(_NAMES)}"
    for n, messages in enumerate((3, 2)):
        queue_fixture.send(messages)
        spec = queue_fixture.pipeline().replace(
            source=QueueSource(queue=queue_fixture.queue, landing=location, schema="id long")
        )
        assert queue_fixture.fixture.run(f"run-{n}", pipeline=spec).counts["read"] == messages
    prefix = location.removeprefix("s3://lake/")
    keys = [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket="lake", Prefix=prefix)["Contents"]]
    assert [key.removeprefix(prefix) for key in keys] == [
        "/999999999998-1.jsonl", "/999999999999-0.jsonl", "/_ids/999999999998-1.json", "/_ids/999999999999-0.json", "/_queue.json",
    ]  # fmt: skip
    queue_fixture.check()


def test_fifo_queue_is_landed_too(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs)
    queue_fixture.url = sqs.create_queue(QueueName="a.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"})["QueueUrl"]  # fmt: skip
    queue_fixture.queue = SqsQueue(url=queue_fixture.url)
    queue_fixture.send(12, MessageGroupId="g")
    for n in range(3):
        queue_fixture.fixture.run(f"run-{n}", pipeline=queue_fixture.pipeline())
    assert queue_fixture.message_counts() == (0, 0)
    queue_fixture.check()


def test_missing_queue_is_a_refusal(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs)
    sqs.delete_queue(QueueUrl=queue_fixture.url)
    with pytest.raises(StoreRefusedError, match="SQS refused"):
        queue_fixture.fixture.run("a", pipeline=queue_fixture.pipeline())


def test_unreachable_server_is_a_retryable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_Q", json.dumps({"conn_type": "aws", "login": "key", "password": "s3cret", "extra": {"endpoint_url": "http://127.0.0.1:9", "region_name": "eu-west-1"}}))  # fmt: skip
    fixture = PipelineFixture(tmp_path)
    queue = SqsQueue(url="http://127.0.0.1:9/1/q", conn_id="q")
    spec = fixture.pipeline(source=QueueSource(queue=queue, landing=str(tmp_path / "in"), schema="id long"))
    with pytest.raises(UnavailableError) as caught:
        spec.source.open(fixture.log(), None).poll(None)
    assert "s3cret" not in str(caught.value)
    assert b"s3cret" not in spec.spec_bytes()


def test_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_Q", '{"conn_type": "amqp"}')
    with pytest.raises(InvalidError, match="type aws"), SqsQueue(url="https://h/1/q", conn_id="q").connect():
        pass


def test_region_comes_from_the_url_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    url = "https://sqs.ap-south-1.amazonaws.com/1/q"
    for region, expected in ((None, "ap-south-1"), ("eu-north-1", "eu-north-1")):
        with SqsQueue(url=url, region=region).connect() as receiver:
            assert receiver._client.meta.region_name == expected
    assert SqsQueue(url=url).lineage() == ("sqs://sqs.ap-south-1.amazonaws.com", "1/q")


def test_landing_stops_receiving_at_half_the_visibility_timeout(tmp_path: Path, sqs: Any) -> None:
    queue_fixture = SqsFixture(tmp_path, sqs, visibility_timeout_s=40)
    queue_fixture.send(35)
    clock = ManualClock()

    class Slow(ManualClock):
        def now_ms(self) -> int:
            clock.sleep(7)
            return clock.now_ms()

    log = queue_fixture.fixture.log()
    log.clock = Slow()
    queue_fixture.pipeline().source.open(log, None).poll(None)
    assert 10 <= sum(path.read_bytes().count(b"\n") for path in (tmp_path / "in").glob("*.jsonl")) < 35
