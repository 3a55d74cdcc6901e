"""Kinesis on kinesalite: resharding, retention, throttling, aggregated records, starting positions, requests, crashes and concurrent runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Avro, KinesisSource, Limits, run_batch
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.kinesis import reading
from airflow_provider_streamsem.connectors.kinesis.stream import KinesisStream
from airflow_provider_streamsem.connectors.source import SourceSlice
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import InvalidError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.kinesis_stream import HIGH, LOW, Orders
from tests.integration.parts.kinesis import Kinesalite
from tests.integration.schema_registry import V1, avro
from tests.step_by_step import step_by_step

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("spark")]


@pytest.fixture
def orders(kinesis: Kinesalite, tmp_path: Path) -> Iterator[Orders]:
    yield Orders(kinesis, tmp_path)
    kinesis.set_clock(0)


def planner_of(source: KinesisSource, now_ms: int | None = None) -> Any:
    clock = ManualClock(SYSTEM_CLOCK.now_ms() if now_ms is None else now_ms)
    return source.open(CommitLog(MemoryStore(), clock), None)


def sliced(source: KinesisSource, limits: Limits | None = None) -> SourceSlice:
    planner = planner_of(source)
    planned: SourceSlice | None = planner.slice(
        source.initial_offsets(), planner.poll(None), limits or Limits(), None, on_data_loss="fail"
    )
    assert planned is not None
    return planned


def aggregate(records: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode user records ``(partition key, data)`` as the KPL does."""

    def field(number: int, value: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(value)) + value

    def varint(value: int) -> bytes:
        return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])

    user_records = [*records]
    keys = sorted({key for key, _ in user_records})
    message = b"".join(field(1, key.encode()) for key in keys)
    for key, data in user_records:
        message += field(3, varint(1 << 3) + varint(keys.index(key)) + field(3, data))
    return b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()


def test_records_before_between_and_after_reshards_are_read_once_and_parents_first(orders: Orders) -> None:
    """A split, then a merge of its children. One record per batch, so that no child is read before its parent is finished."""
    orders.put(0, 1)
    orders.split("shardId-000000000000")
    orders.put(2, key=LOW)
    orders.put(3, key=HIGH)
    orders.merge("shardId-000000000001", "shardId-000000000002")
    orders.put(4, 5)
    orders.run("limited", limits=Limits(max_rows=1))
    shards = [[shard[-1] for shard in version] for version in orders.planned()]
    assert shards == [["0"], ["0"], ["1", "2"], ["3"], ["3"]]
    orders.check()
    orders.split("shardId-000000000003")
    orders.put(6, key=LOW)
    orders.put(7, key=HIGH)
    orders.run("whole")
    orders.check()


def test_plan_has_the_parents_of_each_shard(orders: Orders) -> None:
    orders.put(0)
    orders.split("shardId-000000000000")
    orders.put(1)
    assert {pin.shard[-1]: [parent[-1] for parent in pin.parents] for pin in sliced(orders.source()).pins} == {
        "0": [],
        "1": ["0"],
    }


def test_shards_that_are_created_during_a_drain_are_left_for_the_next_run(orders: Orders) -> None:
    orders.put(0, 1)
    pipeline = orders.pipeline(limits=Limits(max_rows=1))
    run_batch(pipeline, run_key="drain")
    orders.split("shardId-000000000000")
    orders.put(2)
    run_batch(pipeline, run_key="drain-2", drain=True)
    orders.run("later")
    orders.check()


def test_expired_records_fail_the_run_or_become_a_gap_and_an_idle_stream_does_not(orders: Orders) -> None:
    """Retention deletes records that were read, and later records that were not read."""
    orders.server.set_clock(-23)
    stale = Orders(orders.server, orders.root)
    stale.put(0)
    stale.at(-12)
    stale.put(1)
    stale.at(-10)
    stale.run("a")
    stale.at(0)
    stale.put(2)
    stale.at(13)
    stale.put(3)
    stale.run("b")  # the record that was read last has expired, and no unread record has
    stale.check()
    stale.put(4)
    stale.at(40)
    stale.put(5)
    with pytest.raises(SourceChangedError, match="unread records are missing"):
        stale.run("c")
    stale.run("c", on_data_loss="record_gap")
    stale.sent.remove(4)
    stale.check()
    last = next(iter(open_log(CommitLog(open_store(str(stale.root / "log")))).versions(newest_first=True)))
    assert last.outcome is not None
    assert last.outcome.counts["gaps"] == 1


def test_records_that_expire_before_the_first_plan_of_a_stream_that_was_empty_are_not_missed(orders: Orders) -> None:
    """The first run finds no records and stores the initial offsets. The next run is two days later."""
    orders.server.set_clock(-60)
    stale = Orders(orders.server, orders.root)
    stale.at(0)
    assert stale.run("a").batches == 0
    stale.put(0)
    stale.at(48)
    stale.put(1)
    with pytest.raises(SourceChangedError, match="cannot prove"):
        stale.run("b")


def test_stream_that_was_empty_and_is_older_than_its_retention_is_read_from_its_first_record(orders: Orders) -> None:
    orders.server.set_clock(-60)
    old = Orders(orders.server, orders.root)
    orders.server.set_clock(0)
    assert old.run("a").batches == 0
    old.put(0)
    old.run("b")
    old.check()


def test_records_that_expire_after_their_plan_are_refused_by_name(orders: Orders) -> None:
    orders.server.set_clock(-26)
    stale = Orders(orders.server, orders.root)
    stale.put(0)
    pins = sliced(stale.source()).pins
    stale.put(1)
    orders.server.set_clock(0)
    with pytest.raises(RecordsMissingError, match="no longer has the first records"):
        stale.source().check_pins(pins, was_read=False)
    with pytest.raises(reading.RangeChangedError, match="last record"):
        [*reading.range_of(orders.client, json.loads(json.dumps(_fields(pins[0]))))]


def test_reader_that_retention_overtakes_fails_instead_of_skipping_records(orders: Orders) -> None:
    """The first page is read, then retention deletes the record after it. Kinesis continues with the next record and reports nothing."""
    orders.server.set_clock(-23)
    stale = Orders(orders.server, orders.root)
    stale.put(0, 1)
    orders.server.set_clock(-10)
    stale.put(2)
    pin = _fields(sliced(stale.source()).pins[0])
    original = reading.PAGE_RECORDS
    reading.PAGE_RECORDS = 1  # type: ignore[misc]
    try:
        read = reading.range_of(orders.client, pin | {"retention_h": 23})
        next(read)
        orders.server.set_clock(2)
        with pytest.raises(reading.RangeChangedError, match="retention deleted records"):
            next(read)
    finally:
        reading.PAGE_RECORDS = original  # type: ignore[misc]


def _fields(pin: Any) -> dict[str, Any]:
    return {name: getattr(pin, name) for name in pin.__dataclass_fields__}


def test_recreated_stream_is_refused_or_read_from_its_beginning(orders: Orders) -> None:
    orders.put(0, 1)
    orders.run("a")
    orders.server.set_clock(1)  # the creation time has seconds
    orders.client.delete_stream(StreamName=orders.name)
    while orders.client.list_streams()["StreamNames"].count(orders.name):
        SYSTEM_CLOCK.sleep(0.01)
    with pytest.raises(SourceChangedError, match="does not exist"):
        orders.run("b")
    orders.server.create(orders.name)
    orders.put(2)
    with pytest.raises(SourceChangedError, match="deleted and recreated"):
        orders.run("b")
    orders.run("b", on_data_loss="record_gap")
    orders.check()


def test_throttled_requests_are_repeated_with_back_off(orders: Orders) -> None:
    orders.put(0, 1)
    orders.server.throttle(GetRecords=2, GetShardIterator=1, ListShards=1)
    orders.run("a")
    orders.check()


def test_aggregated_records_are_split_and_those_of_another_shard_are_not_repeated(orders: Orders) -> None:
    """The KPL repeats a user record that arrived in a shard of other hash keys, so that only one of both shards may return it."""
    orders.split("shardId-000000000000")
    key = next(key for key in map(str, range(99)) if hashlib.md5(key.encode()).digest()[0] < 128)
    other = next(key for key in map(str, range(99)) if hashlib.md5(key.encode()).digest()[0] >= 128)
    data = aggregate([(key, b'{"id": 0}'), (other, b'{"id": 1}'), (key, b'{"id": 2}')])
    orders.put_data(data, key=LOW)
    orders.put_data(aggregate([(other, b'{"id": 1}')]), key=HIGH)
    orders.put(3)
    orders.run("a")
    orders.sent += [0, 1, 2]
    orders.check()


@pytest.mark.parametrize(("aggregation", "records"), [("all", 3), ("none", 1), ("kpl", 3)])
def test_aggregated_record_gives_one_row_for_each_user_record(
    orders: Orders, spark: SparkSession, aggregation: str, records: int
) -> None:
    data = aggregate([("a", b"x"), ("b", b"y"), ("a", b"z")])
    number = orders.put_data(data)
    source = orders.source(value=None, aggregation=aggregation)
    rows = source.load(spark, sliced(source).pins).frame.orderBy("sub_sequence_number").collect()
    actual = [(row["partition_key"], bytes(row["data"]), row["sub_sequence_number"]) for row in rows]
    split = [("a", b"x", 0), ("b", b"y", 1), ("a", b"z", 2)]
    assert actual == (split if records == 3 else [("k", data, 0)])
    assert {(row["stream"], row["shard_id"], row["sequence_number"]) for row in rows} == {
        (orders.name, "shardId-000000000000", number)
    }


def test_data_that_cannot_be_decoded_are_quarantined_with_their_sequence_number(orders: Orders) -> None:
    orders.put(0)
    number = orders.put_data(b'{"id": "x"}')
    result = orders.run("a")
    assert result.counts["quarantined"] == 1
    orders.check()
    log = open_log(CommitLog(open_store(str(orders.root / "log"))))
    [record] = log.quarantined()
    assert (record["sequence_number"], record["raw"]) == (number, '{"id": "x"}')


def test_avro_data_are_decoded(orders: Orders) -> None:
    orders.put_data(avro(V1, {"id": 7, "user": "ann"}))
    number = orders.put_data(avro(V1, {"id": 8, "user": None}) + b"more")
    assert orders.run("a", source={"value": Avro(json.dumps(V1))}).counts["quarantined"] == 1
    log = open_log(CommitLog(open_store(str(orders.root / "log"))))
    assert [record["sequence_number"] for record in log.quarantined()] == [number]
    assert orders.visible() == Counter([7])


def test_pipeline_starts_at_the_named_position(orders: Orders) -> None:
    orders.put(0)
    SYSTEM_CLOCK.sleep(0.05)
    at = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, tz=timezone.utc).isoformat()
    numbers = orders.put(1, 2)
    shard = "shardId-000000000000"
    name, *_ = orders.source().initial_offsets()
    expected = {"earliest": None, "latest": int(numbers[1]) + 1, at: int(numbers[0])}
    for starting, offset in expected.items():
        found = orders.source(starting=starting).initial_offsets()[name]
        assert offset is None or found == offset
    source = orders.source(starting={shard: numbers[1]})
    assert source.initial_offsets() == {name: int(numbers[1])}
    [pin] = sliced(source).pins
    assert (pin.first, pin.last) == (int(numbers[1]), int(numbers[1]))


@pytest.mark.parametrize("starting", [{"shardId-000000000007": "1"}, {"shardId-000000000000": "1"}], ids=str)
def test_starting_position_that_does_not_exist_is_refused(orders: Orders, starting: dict[str, str]) -> None:
    orders.put(0)
    with pytest.raises(InvalidError, match="starting names"):
        orders.source(starting=starting).initial_offsets()


def test_batch_sends_the_documented_number_of_requests(orders: Orders) -> None:
    """Two requests for each shard find its end, and two more its oldest record if it has new records."""
    wide = Orders(orders.server, orders.root, shards=3)
    wide.put(0, 1)
    wide.run("a")
    wide.put(2)
    orders.server.requests()
    wide.run("b")
    requests = orders.server.requests()
    polls, checks = 1, 1  # the check after the read lists the shards too
    assert requests["DescribeStreamSummary"] == requests["ListShards"] == polls + checks
    ends, oldest, read = 3, 1, 1
    assert requests["GetShardIterator"] == ends + oldest + read
    assert requests["GetRecords"] == ends + oldest + read


def test_end_of_a_busy_shard_is_found_without_reading_its_records(orders: Orders) -> None:
    """Records that are up to two hours old are unread. The end is a record of the last seconds."""
    orders.server.set_clock(-2)
    busy = Orders(orders.server, orders.root)
    [first, *_] = busy.put(0)
    for _ in range(12):
        records = [{"Data": b"{}", "PartitionKey": "k", "ExplicitHashKey": LOW}] * 500
        busy.client.put_records(StreamName=busy.name, Records=records)
    orders.server.set_clock(0)
    [last] = busy.put(1)
    requests = KinesisStream(busy.name, busy.source().settings())
    [shard] = requests.listing().shards
    orders.server.requests()
    for known in (0, int(first) + 1):
        assert requests.end(shard, known, now_ms=SYSTEM_CLOCK.now_ms(), retention_h=24).offset == int(last) + 1
        # Four pages from the known end, one request for the last ten seconds, and one read of them.
        assert orders.server.requests() == {"GetShardIterator": 3, "GetRecords": 6}


def test_lag_is_the_number_of_shards_with_unread_records(orders: Orders) -> None:
    wide = Orders(orders.server, orders.root, shards=2)
    wide.put(0)
    wide.run("a")
    assert lag(wide.pipeline()).lag == 0
    wide.put(1, 2)
    wide.put(3, key=HIGH)
    assert lag(wide.pipeline()).lag == 2


def test_crash_at_every_request_then_a_retry_reads_every_record_once(
    kinesis: Kinesalite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before or after each request of the driver. Another record arrives before the retry."""

    def run(orders: Orders, step: Callable[[str], object], run_key: str = "run") -> None:
        with monkeypatch.context() as patched:
            for name in ("listing", "oldest", "end", "first_from"):
                patched.setattr(KinesisStream, name, step_by_step(name, getattr(KinesisStream, name), step))
            orders.run(run_key)

    steps: list[str] = []
    whole = Orders(kinesis, tmp_path / "whole")
    whole.put(0)
    run(whole, steps.append)
    assert len(steps) > 6
    for at in range(len(steps)):
        orders = Orders(kinesis, tmp_path / str(at))
        orders.put(0)
        left = iter(range(at, -1, -1))

        def step(name: str, left: Iterator[int] = left) -> None:
            if next(left, None) == 0:
                raise Crash

        with suppress(Crash):
            run(orders, step)
            raise AssertionError("the process did not die")
        orders.put(1)
        orders.run("run")
        orders.run("next")
        orders.check()


def test_crash_of_the_engine_before_and_after_the_read_then_a_retry_reads_the_planned_range(orders: Orders) -> None:
    for crash in ("before", "after"):
        orders.put(len(orders.sent))

        class Dying(SparkEngine):
            def stage(self, job: Job, log: CommitLog, crash: str = crash) -> Any:
                if crash == "after":
                    super().stage(job, log)
                raise Crash

        with pytest.raises(Crash):
            run_batch(orders.pipeline(), run_key=crash, engine=Dying())
        planned = orders.planned()[-1]
        orders.put(len(orders.sent))
        orders.run(crash)
        assert orders.planned()[-1] == planned
        orders.run(f"after {crash}")
        orders.check()


@pytest.mark.prove
def test_two_runs_interleaved_at_every_request_read_every_record_once(
    kinesis: Kinesalite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("listing", "oldest", "end")
    originals = {name: getattr(KinesisStream, name) for name in names}
    for at in range(6):
        orders = Orders(kinesis, tmp_path / str(at))
        orders.put(0)
        left = iter(range(at, -1, -1))

        def step(name: str, left: Iterator[int] = left, orders: Orders = orders) -> None:
            if next(left, None) == 0:
                orders.put(1)
                orders.run("other")

        with monkeypatch.context() as patched:
            for name in names:
                patched.setattr(KinesisStream, name, step_by_step(name, originals[name], step))
            orders.run("run")
        orders.run("next")
        orders.check()


def test_range_that_lacks_its_last_record_fails_the_attempt(orders: Orders, spark: SparkSession) -> None:
    numbers = orders.put(0, 1)
    [pin] = sliced(orders.source()).pins
    pins = orders.source().read_pins([_fields(pin) | {"last": int(numbers[1]) + 1, "parents": []}])
    with pytest.raises(Exception, match="no longer has the last record"):
        orders.source().load(spark, pins).frame.collect()


def test_credentials_are_in_no_plan_of_spark(
    orders: Orders, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = json.dumps({"endpoint_url": orders.server.url, "region_name": "us-east-1"})
    connection = {"conn_type": "aws", "login": "the-login", "password": "the-secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_ORDERS", json.dumps(connection))
    source = orders.source(conn_id="aws_orders", endpoint_url=None, region=None)
    orders.put(0)
    frame = source.load(spark, sliced(source).pins).frame
    assert frame.count() == 1
    text = frame._jdf.queryExecution().toString()
    assert "the-secret" not in text
    assert "the-login" not in text
