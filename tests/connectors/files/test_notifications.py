"""With notifications of a bucket, an idle poll costs one receive. Lost and repeated notifications lose and duplicate no file."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from itertools import count
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import FilesSource, SqsQueue
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files import notifications
from airflow_provider_streamsem.connectors.files.source import FilesPlanner
from airflow_provider_streamsem.connectors.sqs.client import SqsReceiver
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.stores.s3 import S3Store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash

_NAMES = count()


class Bucket:
    """A bucket whose notifications are sent to a queue, and a log with the discoveries of its files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s3, self.sqs = boto3.client("s3"), boto3.client("sqs")
        self.name = f"lake-{next(_NAMES)}"
        self.s3.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        self.queue = self.sqs.create_queue(QueueName=f"new-files-{next(_NAMES)}")["QueueUrl"]
        self.clock = ManualClock(1_700_000_000_000, name="planner")
        self.log = CommitLog(MemoryStore(), self.clock)
        self.source = FilesSource(
            path=f"s3://{self.name}/in",
            format="json",
            schema="id long",
            glob="*.json",
            notifications=SqsQueue(url=self.queue),
        )
        self.requests: Counter[str] = Counter()
        for owner, method in ((S3Store, "list"), (S3Store, "stat"), (SqsReceiver, "receive")):
            monkeypatch.setattr(owner, method, self._counted(method, getattr(owner, method)))

    def _counted(self, name: str, method: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            self.requests[name] += 1
            return method(*args, **named)

        return counted

    def notify(self) -> None:
        """Send the notifications of the bucket to the queue from now on."""
        arn = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        target = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}
        self.s3.put_bucket_notification_configuration(
            Bucket=self.name, NotificationConfiguration={"QueueConfigurations": [target]}
        )

    def put(self, key: str) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=b'{"id": 1}\n')

    def send(self, message: Any) -> None:
        self.sqs.send_message(
            QueueUrl=self.queue, MessageBody=message if isinstance(message, str) else json.dumps(message)
        )

    def poll(self, **changes: Any) -> list[str]:
        """Poll as a new process does, and return the discovered paths in the order of their ordinals. ``requests`` are those of this poll."""
        self.requests.clear()
        source = self.source if not changes else FilesSource(**{**fields(self.source), **changes})
        planner = FilesPlanner(source, self.log, {"newest": -1})
        end = planner.poll({"newest": -1})
        planned = planner.slice({"files": 0}, end, Limits(), None, on_data_loss="fail")
        return [] if planned is None else [pin.path for pin in planned.pins]

    def waiting(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return sum(int(attributes[name]) for name in names)


def fields(source: FilesSource) -> dict[str, Any]:
    return {each.name: getattr(source, each.name) for each in dataclasses.fields(source)}


def created(key: Any, bucket: str = "lake") -> dict[str, Any]:
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


@pytest.fixture
def bucket(aws: None, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(monkeypatch)


def test_first_poll_lists_and_later_polls_receive_notifications(bucket: Bucket) -> None:
    bucket.put("in/old.json")
    bucket.notify()
    assert bucket.poll() == ["old.json"]
    assert bucket.requests["receive"] == 0
    bucket.poll()  # receives the test event of the new configuration
    assert bucket.poll() == ["old.json"]
    assert (bucket.requests["list"], bucket.requests["receive"]) == (0, 1), "an idle poll"
    for key in ("in/a b+c.json", "in/d/ü.json", "in/_hidden.json", "in/other.csv", "elsewhere/x.json", "in2/y.json"):
        bucket.put(key)
    assert sorted(bucket.poll()) == ["a b+c.json", "d/ü.json", "old.json"]
    assert bucket.requests["list"] == 0
    assert bucket.waiting() == 0, "all messages are acknowledged"


def test_repeated_notifications_give_a_file_one_ordinal(bucket: Bucket) -> None:
    bucket.poll()
    bucket.put("in/a.json")
    for _ in range(25):
        bucket.send(created("in/a.json", bucket.name))
    assert bucket.poll() == ["a.json"]
    bucket.send(created("in/a.json", bucket.name))
    assert bucket.poll() == ["a.json"]
    assert bucket.waiting() == 0


def test_file_of_a_lost_notification_is_found_by_the_next_complete_listing(bucket: Bucket) -> None:
    bucket.put("in/a.json")
    assert bucket.poll() == ["a.json"]
    bucket.put("in/lost.json")
    bucket.clock.sleep(3_599)
    assert bucket.poll() == ["a.json"]
    bucket.clock.sleep(1)
    assert bucket.poll() == ["a.json", "lost.json"]
    assert bucket.poll() == ["a.json", "lost.json"]
    assert bucket.requests["list"] == 0
    bucket.clock.sleep(3_600)
    bucket.poll()
    assert bucket.requests["list"] > 0
    bucket.poll()
    assert bucket.requests["list"] == 0, "an idle pipeline lists once an hour"


def test_messages_of_a_poll_that_died_before_it_acknowledged_them_are_received_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.poll()
    bucket.put("in/a.json")
    bucket.send(created("in/a.json", bucket.name))

    def die(*args: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(SqsReceiver, "acknowledge", die)
        with pytest.raises(Crash):
            bucket.poll()
    assert bucket.waiting() == 1
    assert bucket.poll() == ["a.json"]


def test_poll_that_lost_a_race_gives_its_files_the_next_ordinals(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.poll()
    for name in ("a", "b"):
        bucket.put(f"in/{name}.json")
        bucket.send(created(f"in/{name}.json", bucket.name))
    real = notifications.receive

    def overtaken(*args: Any) -> notifications.Notified:
        monkeypatch.setattr(notifications, "receive", real)
        notified = real(*args)
        FilesPlanner(bucket.source, bucket.log, {"newest": -1}).discover()
        return notified

    monkeypatch.setattr(notifications, "receive", overtaken)
    assert bucket.poll() == ["a.json", "b.json"]
    assert bucket.waiting() == 0


def test_notification_of_a_file_that_has_not_settled_is_acknowledged_when_it_has_an_ordinal(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Store, "stat", _aged(S3Store.stat, bucket.clock))
    settling = {"settle_s": 60, "notifications": SqsQueue(url=bucket.queue, visibility_timeout_s=2)}
    bucket.poll(**settling)
    bucket.put("in/a.json")
    bucket.send(created("in/a.json", bucket.name))
    bucket.send(created("in/missing.json", bucket.name))
    assert bucket.poll(**settling) == []
    assert bucket.waiting() == 1, "the message of the file waits in the queue"
    bucket.clock.sleep(60)
    bucket.sqs.set_queue_attributes(QueueUrl=bucket.queue, Attributes={"VisibilityTimeout": "0"})
    message = bucket.sqs.receive_message(QueueUrl=bucket.queue, WaitTimeSeconds=3)["Messages"][0]
    bucket.sqs.change_message_visibility(
        QueueUrl=bucket.queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    assert bucket.poll(**settling) == ["a.json"]
    assert bucket.waiting() == 0


def _aged(stat: Any, clock: ManualClock) -> Any:
    """Return a `stat` by whose clock every object was changed when the test began."""
    begin_ms = clock.now_ms()

    def aged(store: S3Store, key: str) -> Any:
        found = stat(store, key)
        return found and dataclasses.replace(found, age_ns=(clock.now_ms() - begin_ms) * 1_000_000)

    return aged


def test_notified_file_that_listings_exclude_is_not_read(bucket: Bucket) -> None:
    bucket.poll()
    for name in ("a", "b"):
        bucket.put(f"in/{name}.json")
        bucket.send(created(f"in/{name}.json", bucket.name))
    assert bucket.poll(start_after="a.json") == ["b.json"]


def test_notification_of_a_deleted_object_is_acknowledged(bucket: Bucket) -> None:
    bucket.poll()
    bucket.send(created("in/gone.json", bucket.name))
    assert bucket.poll() == []
    assert bucket.waiting() == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (created("in/a%2Bb+c.json"), [("lake", "in/a+b c.json")]),
        ({"TopicArn": "arn", "Message": json.dumps(created("k"))}, [("lake", "k")]),
        ({"detail-type": "Object Created", "detail": {"bucket": {"name": "lake"}, "object": {"key": "a+b"}}}, [("lake", "a+b")]),
        ({"detail-type": "Object Deleted", "detail": {}}, []),
        ({"Event": "s3:TestEvent", "Bucket": "lake"}, []),
        ({"Records": [{"eventName": "ObjectRemoved:Delete"}]}, []),
        ({"Records": [{"eventName": "s3:ObjectCreated:Copy", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}]}, [("b", "k")]),
    ],
)  # fmt: skip
def test_created_objects_are_read_from_each_form_of_notification(message: Any, expected: list[tuple[str, str]]) -> None:
    assert list(notifications.created(json.dumps(message).encode())) == expected


POISON = [
    b"text", b"", b"[]", b"{}", b"1", b"null", b'{"Records": [{}]}', b"\xff", b"[" * 100_000, b'{"Records":' * 50_000, b"9" * 10_000, b'{"Records": 1}', b'{"Records": [[]]}',
    json.dumps({"TopicArn": "a", "Message": "[" * 100_000}).encode(),
    *(json.dumps(created(key)).encode() for key in (1, None, ["in/a"], {"in/a": 1}, "", "%00" * 2_000, "\ud800", "x" * 1_025)),
    *(json.dumps({"detail-type": "Object Created", "detail": {"bucket": {"name": "lake"}, "object": {"key": key}}}).encode() for key in (1, [], "\udfff", "é" * 513)),
]  # fmt: skip


def test_poison_message_is_acknowledged_and_hides_no_other_message(bucket: Bucket) -> None:
    bucket.poll()
    bucket.put("in/a.json")
    for body in POISON:
        text = body.decode("utf-8", "replace").replace("lake", bucket.name)
        bucket.send(text[:200_000] or "empty")
    odd = {"Records": [*created("in/a.json", bucket.name)["Records"], *created(1, bucket.name)["Records"]]}
    bucket.send(odd)
    for key in ("in/../b.json", "in//b.json", "in/./b.json", "in/b\x00.json", "in/", "in/a.json/", "in/ .json"):
        bucket.send(created(key, bucket.name))
    assert bucket.poll() == ["a.json"]
    assert bucket.waiting() == 0


@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), lambda s: st.lists(s, max_size=3) | st.dictionaries(
    st.sampled_from(["Records", "eventName", "s3", "bucket", "object", "key", "name", "detail", "detail-type", "Message", "TopicArn", "Event"]), s, max_size=4)))  # fmt: skip
def test_message_of_any_form_names_only_texts(message: Any) -> None:
    assert all(isinstance(key, str) for _, key in notifications.created(json.dumps(message).encode()))


@pytest.mark.parametrize("body", POISON)
def test_message_of_another_form_is_logged_and_names_no_object(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert list(notifications.created(body)) == []
    assert "is not a notification of S3" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/in"}, "need a path on S3"),
        ({"notifications": {"queue": "q"}}, "must be an SqsQueue"),
        ({"notifications": {"url": "https://q/1", "name": 1}}, "contains unknown names"),
        ({"notifications": {"url": "q"}}, "url"),
        ({"relist_s": 0}, "relist_s"),
    ],
)
def test_invalid_argument_is_reported_by_name(change: dict[str, Any], message: str) -> None:
    given = {"path": "s3://b/in", "format": "text", "notifications": {"url": "https://q/1"}, **change}
    with pytest.raises(InvalidError, match=message):
        FilesSource(**given)


def test_object_whose_key_has_an_empty_segment_is_reported(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """Hadoop merges successive slashes, so Spark cannot read such an object."""
    for key in ("in/a//b.json", "in//c.json", "in/d//e.csv", "in/f//", "in/g//_h.json", "in/i.json"):
        bucket.put(key)
    assert bucket.poll() == ["i.json"]
    assert "2 objects are never read" in caplog.text
    assert "/c.json" in caplog.text
    caplog.clear()
    bucket.send(created("in/j//k.json", bucket.name))
    assert bucket.poll() == ["i.json"]
    assert "1 objects are never read" in caplog.text
