"""A queue as a source: complete runs that are killed at every call to log, landing and queue, read-only inspections, and specs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    AmqpQueue,
    FilesSink,
    Limits,
    Pipeline,
    QueueSource,
    SqsQueue,
    guarantee,
    run_batch,
)
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.connectors.queue import source as module
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.pipeline.spec.guarantee import warnings
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json, load_pipeline
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.queue.memory_broker import Broker, CalledBroker, CalledStore, Calls, connected, memory_queue
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()


class QueueFixture:
    """A :class:`PipelineFixture` whose records are the messages of a queue, landed in ``root/in``."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.fixture = PipelineFixture(root, store=open_memory_store(f"queue-{next(_NAMES)}"))
        self.broker = Broker()
        self.queue = memory_queue(self.broker)
        self.sent = 0

    def send(self, messages: int) -> None:
        numbers = range(self.sent, self.sent + messages)
        self.broker.send(*(Message(id=f"m{n}", body=json.dumps({"id": n}).encode()) for n in numbers))
        self.sent += messages

    def pipeline(self, **changes: Any) -> Pipeline:
        source: dict[str, Any] = {"landing": str(self.fixture.root / "in"), "schema": "id long", "max_messages": 4}
        source |= changes.pop("source", {})
        return self.fixture.pipeline(source=QueueSource(queue=self.queue, **source), **changes)

    def run(self, run_key: str, calls: Calls | None = None, **given: Any) -> Any:
        """Run as a separate process would. Its calls to queue, landing and log are numbered."""
        calls = calls or Calls()
        connected(self.queue, CalledBroker(self.broker, calls))
        log = CommitLog(CalledStore(self.fixture.store, calls, "log "), ManualClock(name=f"p{next(self.fixture.clocks)}"), RetryPolicy(tries=4))  # fmt: skip
        opened = module.open_store
        module.open_store = lambda url: CalledStore(open_store(url), calls)
        try:
            return run_batch(self.pipeline(**given), run_key=run_key, drain=True, log=log, engine=RowsEngine())
        finally:
            module.open_store = opened
            connected(self.queue, self.broker)

    def finish(self) -> None:
        for n in range(20):
            self.broker.later()
            self.run(f"finish-{n}")
            if not self.broker.queue:
                return
        raise AssertionError("the queue is never empty")

    def check(self) -> None:
        assert self.fixture.verdict().violations == []
        assert self.fixture.visible() == Counter(range(self.sent))


def test_messages_are_landed_acknowledged_and_committed_once(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(10)
    results = [queue_fixture.run(f"run-{n}") for n in range(4)]
    assert [r.counts.get("read", 0) for r in results] == [4, 4, 2, 0]
    assert queue_fixture.broker.queue == []
    queue_fixture.check()


def test_crash_at_every_call_to_queue_landing_and_log_gives_each_message_one_record(tmp_path: Path) -> None:
    """A run commits a batch, messages wait, and the next run is killed. The same run is retried, then others follow."""
    complete_run = QueueFixture(tmp_path / "complete")

    def prepare(fixture: QueueFixture) -> QueueFixture:
        fixture.send(3)
        fixture.run("before")
        fixture.send(4)
        return fixture

    calls = Calls()
    prepare(complete_run).run("run", calls)
    names = calls.names
    assert {"receive", "acknowledge", "create", "log create"} <= set(names)
    for at in range(len(names)):
        for after in (False, True):
            queue_fixture = prepare(QueueFixture(tmp_path / f"{at}-{after}"))
            with suppress(Crash):
                queue_fixture.run("run", Calls(at, after=after))
                raise AssertionError("the run did not die")
            queue_fixture.broker.later()
            queue_fixture.send(1)
            queue_fixture.run("run")
            queue_fixture.finish()
            queue_fixture.check()


def test_two_runs_interleaved_at_every_call_give_each_message_one_record(tmp_path: Path) -> None:
    calls = Calls()
    complete_run = QueueFixture(tmp_path / "complete")
    complete_run.send(4)
    complete_run.run("run", calls)
    for at in range(len(calls.names)):
        queue_fixture = QueueFixture(tmp_path / str(at))
        queue_fixture.send(4)

        def other(queue_fixture: QueueFixture = queue_fixture) -> None:
            queue_fixture.broker.later()
            original = module.open_store
            queue_fixture.run("other")
            module.open_store = original

        queue_fixture.run("run", Calls(at, do=other))
        queue_fixture.finish()
        queue_fixture.check()


def test_two_pipelines_share_a_landing_and_each_reads_every_message(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(3)
    queue_fixture.run("one")
    queue_fixture.send(3)
    other = queue_fixture.pipeline(log=f"memory://queue-{next(_NAMES)}", sinks={"out": FilesSink(path=str(tmp_path / "other"), format="json")})  # fmt: skip
    result = run_batch(other, run_key="a", drain=True, engine=RowsEngine())
    assert result.counts["read"] == 6
    queue_fixture.run("two")
    queue_fixture.check()


def test_landing_of_one_queue_receives_no_message_of_another(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(2)
    queue_fixture.run("one")
    another = Broker()
    another.send(Message(id="m0", body=b'{"id": 100}'))
    source = QueueSource(queue=SQS, landing=str(tmp_path / "in"), schema="id long")
    connected(source.queue, another)
    sinks = {"out": FilesSink(path=str(tmp_path / "other"), format="json")}
    other = queue_fixture.pipeline().replace(source=source, log=f"memory://queue-{next(_NAMES)}", sinks=sinks)
    with pytest.raises(InvalidError, match="belongs to another queue"):
        run_batch(other, run_key="a", engine=RowsEngine())
    assert len(another.queue) == 1
    queue_fixture.check()


def test_landing_in_a_dataset_is_refused_before_any_message_is_received(tmp_path: Path) -> None:
    (tmp_path / "_streamsem.json").write_text("{}")
    queue_fixture = QueueFixture(tmp_path / "new")
    queue_fixture.send(4)
    for run in ("a", "b"):
        with pytest.raises(InvalidError, match="is inside the dataset of a pipeline"):
            queue_fixture.run(run)
    assert len(queue_fixture.broker.queue) == 4
    (tmp_path / "_streamsem.json").unlink()
    queue_fixture.run("c")
    queue_fixture.check()


def test_queue_that_does_not_reply_claims_no_landing(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    misspelt = QueueSource(queue=memory_queue(None), landing=str(tmp_path / "in"), schema="id long")
    with pytest.raises(AttributeError):
        queue_fixture.fixture.run("a", pipeline=queue_fixture.pipeline().replace(source=misspelt))
    queue_fixture.run("b")
    queue_fixture.check()


def test_invalid_messages_are_landed_once_and_quarantined(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    bodies = [b"", b"\n", b"[1]", b'{"id": 1', b"\xff\xfe", b"nothing"]
    queue_fixture.broker.send(*(Message(id=f"bad{n}", body=body) for n, body in enumerate(bodies)))
    queue_fixture.broker.send(Message(id=None, body=b'{"id": 1}'))
    result = queue_fixture.run("a", source={"max_messages": 100})
    assert (result.counts["read"], result.counts["quarantined"]) == (8, 7)
    assert queue_fixture.broker.queue == []
    assert queue_fixture.run("b").counts == {}
    assert len([*queue_fixture.fixture.opened().quarantined()]) == 7
    queue_fixture.check()


def test_reprocessing_reads_landed_messages_and_not_the_queue(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(4)
    queue_fixture.run("a")
    connected(queue_fixture.queue, None)  # any call to the queue would fail
    reprocessed = queue_fixture.fixture.run("reprocess", pipeline=queue_fixture.pipeline(), reprocessed=0)
    assert reprocessed.counts["read"] == 4
    queue_fixture.check()


# --- inspections receive no messages


def snapshot(queue_fixture: QueueFixture) -> object:
    files = sorted((str(p), p.stat().st_mtime_ns) for p in queue_fixture.fixture.root.rglob("*"))
    log = [(stat.key, queue_fixture.fixture.store.read(stat.key)) for stat in queue_fixture.fixture.store.list("")]
    return (
        files,
        log,
        [(w.message, w.hidden_until, w.handle) for w in queue_fixture.broker.queue],
        queue_fixture.broker.deliveries,
    )


INSPECTIONS: dict[str, Callable[[QueueFixture], object]] = {
    "waiting": lambda queue_fixture: waiting(queue_fixture.pipeline(), clock=ManualClock()),
    "freshness": lambda queue_fixture: Freshness(pipeline=queue_fixture.pipeline(), max_lag=0, max_age_s=60).check(
        clock=ManualClock()
    ),
    "lag": lambda queue_fixture: lag(queue_fixture.pipeline()),
}


@pytest.mark.parametrize("inspection", INSPECTIONS)
@pytest.mark.parametrize("state", ["no message", "messages", "landed and messages"])
def test_inspection_receives_no_message_and_writes_nothing(tmp_path: Path, inspection: str, state: str) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.run("creates the log")
    if state == "landed and messages":
        queue_fixture.send(9)
        for at in count():  # the run dies after the acknowledgement, so the messages are landed but not planned
            calls = Calls(at, after=True)
            with suppress(Crash):
                queue_fixture.run("dead", calls)
            if calls.names[-1] == "acknowledge":
                break
            queue_fixture.broker.later()
    if state != "no message":
        queue_fixture.send(2)
    before = snapshot(queue_fixture)
    for _ in range(2):
        INSPECTIONS[inspection](queue_fixture)
    assert snapshot(queue_fixture) == before


@pytest.mark.parametrize("messages", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("most", [None, 1, 2])
def test_due_work_is_what_a_run_plans(tmp_path: Path, messages: int, most: int | None) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.run("creates the log")
    queue_fixture.send(messages)
    spec = queue_fixture.pipeline(limits=Limits(max_files=most))
    due = waiting(spec, clock=ManualClock())
    result = queue_fixture.fixture.run("a", pipeline=spec)
    assert due.is_due == (result.status == "committed") == bool(messages)
    assert (due.lag, due.unit) == (-(-messages // 4), "landings")
    if messages:
        assert (due.ranges, due.rows) == (result.ranges, min(messages, 4))


def test_due_work_includes_landings_that_are_in_no_plan(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(20)
    queue_fixture.run("a")
    planner = queue_fixture.fixture.planner(queue_fixture.pipeline())
    planner.poll(None)
    planner.poll(None)  # two landings wait
    for most, ranges in ((1, (1, 2)), (2, (1, 3)), (3, (1, 4)), (None, (1, 4))):
        spec = queue_fixture.pipeline(limits=Limits(max_files=most))
        assert waiting(spec, clock=ManualClock()).ranges == {"files": ranges}
    result = queue_fixture.fixture.run("b", pipeline=queue_fixture.pipeline(limits=Limits()))
    assert result.ranges == {"files": (1, 4)}


def test_unknown_age_of_messages_in_the_queue_counts_as_too_old(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    queue_fixture.run("a")
    fresh = Freshness(pipeline=queue_fixture.pipeline(), max_age_s=60)
    assert fresh.check(clock=ManualClock()).met
    queue_fixture.send(1)
    assert not fresh.check(clock=ManualClock()).met


# --- locations


def test_missing_landing_receives_no_message(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    with pytest.raises(UnavailableError, match="not mounted"):
        queue_fixture.run("a", source={"landing": str(tmp_path / "elsewhere")})
    assert queue_fixture.broker.deliveries == 0


def test_landing_that_became_empty_receives_no_message(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    queue_fixture.run("a")
    (tmp_path / "in").rename(tmp_path / "away")
    (tmp_path / "in").mkdir()
    queue_fixture.send(1)
    with pytest.raises(UnavailableError, match="check that the directory is mounted"):
        queue_fixture.run("b")
    assert queue_fixture.broker.deliveries == 1
    (tmp_path / "in").rmdir()
    (tmp_path / "away").rename(tmp_path / "in")
    queue_fixture.finish()
    queue_fixture.check()


# --- specs


SPECS: list[dict[str, Any]] = [
    {"queue": SqsQueue(url="https://sqs.eu-central-1.amazonaws.com/123/orders"), "schema": "id long"},
    {"queue": SqsQueue(url="http://127.0.0.1:9/1/q", conn_id="aws_q", region="r", endpoint_url="http://127.0.0.1:9"), "format": "text"},
    {"queue": AmqpQueue(name="orders", host="broker:5673", id_from="body"), "schema": "id long", "options": {"timeZone": "UTC"}},
    {"queue": AmqpQueue(name="orders", conn_id="amqp_default"), "schema": "id long", "dedup_hours": None, "dedup_messages": 7},
]  # fmt: skip


@pytest.mark.parametrize("given", SPECS, ids=lambda given: str(given["queue"])[:40])
def test_spec_round_trips_through_json(given: dict[str, Any], tmp_path: Path) -> None:
    spec = PipelineFixture(tmp_path).pipeline(source=QueueSource(landing=str(tmp_path / "landing"), **given))
    again = from_json(json.loads(spec.spec_bytes()))
    assert again == spec
    assert again.spec_bytes() == spec.spec_bytes()


def test_queue_is_read_from_toml(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        f'''
name = "orders"
log = "{tmp_path}/log"
[source]
type = "queue"
queue = {{ type = "sqs", url = "https://sqs.eu-central-1.amazonaws.com/123/orders", conn_id = "aws_default" }}
landing = "{tmp_path}/landing"
schema = "id long"
[sinks.out]
type = "files"
path = "{tmp_path}/out"
'''
    )
    source = load_pipeline(str(tmp_path / "p.toml")).source
    assert isinstance(source, QueueSource)
    assert source.queue == SqsQueue(url="https://sqs.eu-central-1.amazonaws.com/123/orders", conn_id="aws_default")


SQS = SqsQueue(url="https://sqs.eu-central-1.amazonaws.com/123/orders")
REFUSED: list[Callable[[], object]] = [
    lambda: SqsQueue(url="orders"),
    lambda: SqsQueue(url="https://key:secret@host/1/q"),
    lambda: SqsQueue(url=SQS.url, wait_s=0),
    lambda: SqsQueue(url=SQS.url, wait_s=21),
    lambda: SqsQueue(url=SQS.url, visibility_timeout_s=43_201),
    lambda: SqsQueue(url=SQS.url, visibility_timeout_s=1),
    lambda: AmqpQueue(name="q"),
    lambda: AmqpQueue(name="q", host="a", conn_id="b"),
    lambda: AmqpQueue(name="q", host="user:password@host"),
    lambda: AmqpQueue(name="q", host="rabbit:abc"),
    lambda: AmqpQueue(name="q", host="rabbit:99999"),
    lambda: AmqpQueue(name="q", host="[::1"),
    lambda: AmqpQueue(name="q", host="a", id_from="header"),
    lambda: QueueSource(queue="sqs", landing="/a", schema="id long"),  # type: ignore[arg-type]
    lambda: QueueSource(queue={"type": "sqs"}, landing="/a", schema="id long"),  # type: ignore[arg-type]
    lambda: QueueSource(queue={"type": "kafka"}, landing="/a", schema="id long"),  # type: ignore[arg-type]
    lambda: QueueSource(queue={"type": "sqs", "url": SQS.url, "bucket": 1}, landing="/a", schema="id long"),  # type: ignore[arg-type]
    lambda: QueueSource(queue=SQS, landing="a", schema="id long"),
    lambda: QueueSource(queue=SQS, landing="/a"),
    lambda: QueueSource(queue=SQS, landing="/a", format="text", schema="id long"),
    lambda: QueueSource(queue=SQS, landing="/a", format="parquet", schema="id long"),
    lambda: QueueSource(queue=SQS, landing="/a", schema="id long", options={"mode": "DROPMALFORMED"}),
    lambda: QueueSource(queue=SQS, landing="/a", schema="id long", dedup_hours=None),
    lambda: QueueSource(queue=SQS, landing="/a", schema="id long", dedup_hours=0),
    lambda: QueueSource(queue=SQS, landing="/a", schema="id long", max_messages=100_001),
]  # fmt: skip


@pytest.mark.parametrize("make", REFUSED)
def test_invalid_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidError) as caught:
        make()
    assert "secret" not in str(caught.value)
    assert "password" not in str(caught.value)


def test_landing_must_not_overlap_log_or_dataset(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="separate locations"):
        PipelineFixture(tmp_path).pipeline(
            source=QueueSource(queue=SQS, landing=str(tmp_path / "out" / "x"), schema="id long")
        )


def test_guarantee_names_the_window_and_is_never_exactly_once(tmp_path: Path) -> None:
    source = QueueSource(queue=SQS, landing=str(tmp_path / "in"), schema="id long")
    spec = PipelineFixture(tmp_path).pipeline(source=source)
    computed = guarantee(spec)
    assert (computed.label, computed.conditions) == ("effectively_once", "queue dedup 24 h")
    assert str(computed).startswith("effectively-once (queue dedup 24 h)\n")
    with pytest.raises(InvalidError, match="weaker than it requires"):
        spec.replace(require="exactly_once")
    spec.replace(require="at_least_once")
    both = QueueSource(queue=SQS, landing="/a", schema="id long", dedup_hours=1, dedup_messages=10)
    assert both.conditions == "queue dedup 1 h, 10 messages"


def test_another_queue_on_the_same_log_is_refused(tmp_path: Path) -> None:
    queue_fixture = QueueFixture(tmp_path)
    queue_fixture.send(1)
    queue_fixture.run("a")
    from airflow_provider_streamsem.errors import ConflictError

    connected(queue_fixture.queue, queue_fixture.broker)
    other = queue_fixture.pipeline().replace(
        source=QueueSource(queue=SQS, landing=str(tmp_path / "in"), schema="id long")
    )
    with pytest.raises(ConflictError):
        queue_fixture.fixture.run("b", pipeline=other)


@pytest.fixture(autouse=True)
def _open_store_is_restored() -> Iterator[None]:
    yield
    assert module.open_store is open_store


@pytest.mark.airflow
def test_dag_and_toml_of_the_docs_page_are_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "connectors" / "queues.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "orders_dag"}
    exec(compile(code, "queue.md", "exec"), namespace)
    assert guarantee(namespace["ORDERS"]).conditions == "queue dedup 96 h"
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "p.toml").write_text(
        f'name = "o"\nlog = "s3://lake/log"\n{toml}[sinks.out]\ntype = "files"\npath = "s3://lake/out"\n'
    )
    source = load_pipeline(str(tmp_path / "p.toml")).source
    assert isinstance(source, QueueSource)
    assert source.queue == AmqpQueue(name="orders", conn_id="rabbitmq_default")


@pytest.mark.parametrize(
    ("conn_type", "host", "login", "is_warned"),
    [
        ("amqp", "broker", "u", True),
        ("amqps", "broker", "u", False),
        ("amqp", "localhost", "u", False),
        ("amqp", "broker", "", False),
    ],
)
def test_password_sent_unencrypted_causes_a_warning_in_log_and_explain(
    conn_type: str, host: str, login: str, is_warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    given = {"conn_type": conn_type, "host": host, "login": login, "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_Q", json.dumps(given))

    def refuse(parameters: Any) -> None:
        raise OSError

    monkeypatch.setattr("pika.BlockingConnection", refuse)
    source = QueueSource(queue=AmqpQueue(name="orders", conn_id="q"), landing="/landed", schema="id long")
    with pytest.raises(UnavailableError), source.queue.connect():
        pass
    logged = [record.getMessage() for record in caplog.records]
    pipeline = Pipeline(name="p", log="/l", source=source, sinks={"out": FilesSink(path="/o")})
    assert warnings(pipeline) == logged
    assert bool(logged) == is_warned
    assert "s3cret" not in str(logged)


def test_missing_connection_causes_no_warnings() -> None:
    source = QueueSource(queue=AmqpQueue(name="orders", conn_id="missing"), landing="/landed", schema="id long")
    assert warnings(Pipeline(name="p", log="/l", source=source, sinks={"out": FilesSink(path="/o")})) == []
