"""The Kinesis source on moto: requests and errors of the API. Ranges and reshards need a server with real sequence numbers: tests/integration/test_kinesis.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.handlers
import pytest

from airflow_provider_streamsem import Avro, Json, KinesisSource, Limits
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.kinesis import stream as requests
from airflow_provider_streamsem.connectors.kinesis.planner import KinesisPlanner
from airflow_provider_streamsem.connectors.source import SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import (
    InvalidError,
    LogDamagedError,
    RecordsMissingError,
    SourceChangedError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.spec.several_sources import SeveralSources
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock

_NAMES = count()
PIN = {
    "stream": "orders", "created_s": 1, "shard": "shardId-000000000000", "first": 1, "last": 2, "lowest_key": 0, "highest_key": 9,
    "retention_h": 24, "parents": [],
}  # fmt: skip


@pytest.fixture
def kinesis(aws: None) -> Iterator[Any]:
    requests._client.cache_clear()
    yield boto3.client("kinesis")
    requests._client.cache_clear()


@pytest.fixture
def source(kinesis: Any) -> KinesisSource:
    name = f"orders-{next(_NAMES)}"
    kinesis.create_stream(StreamName=name, ShardCount=2)
    return KinesisSource(stream=name)


def put(kinesis: Any, source: KinesisSource, records: int) -> None:
    for n in range(records):
        kinesis.put_record(StreamName=source.stream, Data=b"%d" % n, PartitionKey="k", ExplicitHashKey="0")


def planner_of(source: KinesisSource) -> KinesisPlanner:
    return source.open(CommitLog(MemoryStore(), SYSTEM_CLOCK), None)


def test_plan_has_the_first_and_last_record_and_the_next_plan_continues(kinesis: Any, source: KinesisSource) -> None:
    start = source.initial_offsets()
    put(kinesis, source, 3)
    planner = planner_of(source)
    planned = planner.slice(start, planner.poll(None), Limits(max_rows=2), None, on_data_loss="fail")
    assert planned is not None
    [pin] = planned.pins
    assert (pin.first, pin.last, planned.rows) == (1, 2, 2)
    source.check_pins(planned.pins, was_read=False)
    start = {**start, **{name: stop for name, (_, stop) in planned.ranges.items()}}
    later = planner.slice(start, planner.poll(planned.hint), Limits(), planned.hint, on_data_loss="fail")
    assert later is not None
    assert [(pin.first, pin.last) for pin in later.pins] == [(3, 3)]


def test_hint_of_another_form_only_costs_requests(kinesis: Any, source: KinesisSource) -> None:
    put(kinesis, source, 2)
    start = source.initial_offsets()
    for hint in (
        "text",
        {"at_ms": "x", "shards": {}},
        {"at_ms": 1, "shards": {"a": [1, 2]}},
        {"at_ms": 1, "shards": {"a": [1, [2]]}},
        {"at_ms": 1, "shards": {"a": [1, [[2, "x"]]]}},
        {"at_ms": 1, "shards": 7},
    ):
        planner = planner_of(source)
        planned = planner.slice(start, planner.poll(hint), Limits(), hint, on_data_loss="fail")
        assert planned is not None
        assert [(pin.first, pin.last) for pin in planned.pins] == [(1, 2)]


def test_min_rows_counts_records_and_does_not_shorten_the_range(kinesis: Any, source: KinesisSource) -> None:
    start = source.initial_offsets()
    put(kinesis, source, 5)
    planner = planner_of(source)
    limits = Limits(min_rows=2, max_delay_s=60)
    planned = planner.slice(start, planner.poll(None), limits, None, on_data_loss="fail")
    assert planned is not None
    assert (planned.rows, [pin.last for pin in planned.pins]) == (2, [5])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"stream": "arn:aws:kinesis:eu-west-1:1:stream/orders"}, "stream"),
        ({"stream": ""}, "stream"),
        ({"conn_id": "a b"}, "conn_id"),
        ({"endpoint_url": "http://user:password@host"}, "endpoint_url"),
        ({"starting": "yesterday"}, "starting"),
        ({"starting": {}}, "starting"),
        ({"starting": {"shardId-000000000000": "-1"}}, "starting"),
        ({"starting": {"shardId-000000000000": 1.5}}, "starting"),
        ({"value": Avro('{"type": "record", "name": "a", "fields": []}', registry="http://registry")}, "subject"),
        ({"aggregation": "yes"}, "aggregation"),
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidError, match=named) as raised:
        KinesisSource(**{"stream": "orders", **arguments})
    assert "password" not in str(raised.value)


def test_arguments_in_toml_form_make_the_same_source() -> None:
    source = KinesisSource(
        stream="orders",
        starting={"shardId-000000000000": 7},
        value=Json("id long"),
        aggregation="all",  # type: ignore[dict-item]
    )
    again = KinesisSource(**source.to_json())
    assert again == source
    assert again.starting == {"shardId-000000000000": "7"}


@pytest.mark.parametrize(
    "change", [{"stream": "other"}, {"first": 3}, {"first": -1}, {"shard": "a/b@1"}, {"shard": "x" * 200}], ids=str
)
def test_pin_that_the_source_does_not_read_is_refused(change: dict[str, Any]) -> None:
    assert KinesisSource(stream="orders").read_pins([PIN])
    with pytest.raises(LogDamagedError):
        KinesisSource(stream="orders").read_pins([PIN | change])


def test_offsets_of_another_stream_are_refused_before_any_request() -> None:
    source = KinesisSource(stream="orders")
    planner = planner_of(source)
    for name in ("other/shardId-000000000000@1", "orders"):
        with pytest.raises(LogDamagedError):
            planner.slice({name: 1}, SourceEnd({name: 2}), Limits(), None, on_data_loss="fail")


def test_shard_that_is_missing_is_refused_or_a_gap(kinesis: Any, source: KinesisSource) -> None:
    start = source.initial_offsets()
    put(kinesis, source, 1)
    other = next(iter(start)).replace("shardId-000000000000", "shardId-000000000009")
    planner = planner_of(source)
    known = {"at_ms": SYSTEM_CLOCK.now_ms(), "shards": {other: [50, [[40, 1]]]}}
    offsets = {**start, other: 40}
    with pytest.raises(SourceChangedError, match="missing"):
        planner.slice(offsets, planner.poll(known), Limits(), known, on_data_loss="fail")
    planned = planner.slice(offsets, planner.poll(known), Limits(), known, on_data_loss="record_gap")
    assert planned is not None
    assert planned.gaps == {other: ((40, 50),)}
    assert source.count_gaps(planned.gaps) == 1


def test_range_without_a_proof_that_no_record_has_expired_is_refused(kinesis: Any, source: KinesisSource) -> None:
    """The stream is older than its retention. So the oldest record of a new shard may not be its first record."""
    start = source.initial_offsets()
    put(kinesis, source, 1)
    later = ManualClock(SYSTEM_CLOCK.now_ms() + 25 * 3_600_000)
    ago = {"at_ms": SYSTEM_CLOCK.now_ms(), "shards": {}}
    now = {"at_ms": later.now_ms(), "shards": {}}
    planner = source.open(CommitLog(MemoryStore(), later), None)
    for hint in (None, "text", ago):
        with pytest.raises(SourceChangedError, match="cannot prove"):
            planner.slice(start, planner.poll(hint), Limits(), hint, on_data_loss="fail")
    assert planner.slice(start, planner.poll(now), Limits(), now, on_data_loss="fail") is not None


def test_new_shard_is_read_after_its_plan_was_aborted_and_after_a_rollback(kinesis: Any, source: KinesisSource) -> None:
    """An outcome of an abort has the hint of the aborted plan, and an outcome of a rollback that of the newest plan."""
    start = source.initial_offsets()
    put(kinesis, source, 1)
    later = ManualClock(SYSTEM_CLOCK.now_ms() + 25 * 3_600_000)  # the stream is older than its retention
    planner = source.open(CommitLog(MemoryStore(), later), None)
    first = aborted_thrice(planner, start, {"at_ms": later.now_ms(), "shards": {}})
    put(kinesis, source, 1)
    read = {**start, **{name: stop for name, (_, stop) in first.ranges.items()}}
    second = planner.slice(read, planner.poll(first.hint), Limits(), first.hint, on_data_loss="fail")
    assert second is not None
    rolled_back = planner.slice(start, planner.poll(second.hint), Limits(), second.hint, on_data_loss="fail")
    assert rolled_back is not None
    assert [(pin.first, pin.last) for pin in rolled_back.pins] == [(1, 2)]


def test_shard_that_was_idle_is_read_after_its_plan_was_aborted(
    kinesis: Any, source: KinesisSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed record has expired while the shard was idle, and the sequence number of the next one is higher by two."""
    source.initial_offsets()
    put(kinesis, source, 3)
    later = ManualClock(SYSTEM_CLOCK.now_ms() + 25 * 3_600_000)
    planner = source.open(CommitLog(MemoryStore(), later), None)
    name = next(name for name, end in planner.poll(None).offsets.items() if end)
    stream = planner._stream
    monkeypatch.setattr(type(stream), "oldest", lambda self, shard: self.first_from(shard, 3))
    planned = aborted_thrice(
        planner, {name: 2}, {"at_ms": later.now_ms(), "shards": {name: [2, [[2, later.now_ms()]]]}}
    )
    assert [(pin.first, pin.last) for pin in planned.pins] == [(3, 3)]


def test_empty_shard_whose_records_may_have_expired_proves_nothing(kinesis: Any, source: KinesisSource) -> None:
    """The pipeline paused for longer than the retention. A record that arrived and expired in the pause left no trace."""
    start = source.initial_offsets()
    put(kinesis, source, 1)
    paused = ManualClock(SYSTEM_CLOCK.now_ms() + 25 * 3_600_000)
    planner = source.open(CommitLog(MemoryStore(), paused), None)
    filled = next(name for name, end in planner.poll(None).offsets.items() if end)
    empty = next(name for name in start if name != filled)
    before = {"at_ms": SYSTEM_CLOCK.now_ms(), "shards": {empty: [40, [[40, SYSTEM_CLOCK.now_ms()]]]}}
    planned = planner.slice({filled: 0, empty: 40}, planner.poll(before), Limits(), before, on_data_loss="record_gap")
    assert planned is not None
    assert all(since < paused.now_ms() - 3_600_000 for _, since in planned.hint["shards"][empty][1])
    recent = {"at_ms": paused.now_ms(), "shards": {empty: [40, [[40, paused.now_ms() - 3_600_000]]]}}
    planned = planner.slice({filled: 0, empty: 40}, planner.poll(recent), Limits(), recent, on_data_loss="record_gap")
    assert planned is not None
    assert planned.hint["shards"][empty][1][-1] == [40, paused.now_ms()]


def aborted_thrice(planner: KinesisPlanner, start: dict[str, int], hint: Any) -> SourceSlice:
    for _ in range(3):
        planned = planner.slice(start, planner.poll(hint), Limits(), hint, on_data_loss="fail")
        assert planned is not None
        hint = planned.hint
    return planned


def test_lag_and_gaps_count_shards_and_not_sequence_numbers() -> None:
    source = KinesisSource(stream="orders")
    assert source.count({"a": (10**50, 10**55), "b": (0, 7)}) == 2
    assert SeveralSources({"x": source}).count({"x/a": (10**50, 10**55)}) == 1


def test_stream_that_does_not_exist_is_named(kinesis: Any) -> None:
    with pytest.raises(SourceChangedError, match=r"does not exist.*orders-missing") as raised:
        KinesisSource(stream="orders-missing").initial_offsets()
    assert not raised.value.retryable


def test_recreated_stream_fails_the_check_of_a_plan(kinesis: Any, source: KinesisSource) -> None:
    with pytest.raises(RecordsMissingError, match="recreated"):
        source.check_pins(source.read_pins([PIN | {"stream": source.stream}]), was_read=True)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AccessDeniedException", 400, StoreRefusedError),
        ("UnrecognizedClientException", 400, StoreRefusedError),
        ("ProvisionedThroughputExceededException", 400, UnavailableError),
        ("LimitExceededException", 400, UnavailableError),
        ("ExpiredTokenException", 400, UnavailableError),
        ("InternalFailure", 500, UnavailableError),
    ],
)
def test_refused_requests_become_one_clear_error(
    source: KinesisSource, code: str, status: int, expected: type[StreamsemError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**request: Any) -> tuple[Any, dict[str, Any]]:
        error = {"Code": code, "Message": "text"}
        return SimpleNamespace(status_code=status), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}

    handlers = [*botocore.handlers.BUILTIN_HANDLERS, ("before-call.kinesis", refuse)]
    monkeypatch.setattr(botocore.handlers, "BUILTIN_HANDLERS", handlers)
    with pytest.raises(expected, match=source.stream) as raised:
        source.initial_offsets()
    assert raised.value.retryable is (expected is UnavailableError)


def test_process_without_credentials_is_refused_with_the_settings_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(StoreRefusedError, match="lacks credentials"):
        KinesisSource(stream="orders", region="eu-west-1", endpoint_url="http://127.0.0.1:9").initial_offsets()


def test_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", '{"conn_type": "kafka"}')
    with pytest.raises(InvalidError, match="type aws"):
        KinesisSource(stream="orders", conn_id="orders").initial_offsets()


def test_thousands_of_shards_are_planned_parents_first(kinesis: Any) -> None:
    shards = [
        {
            "ShardId": f"shardId-{n:012d}", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
            "SequenceNumberRange": {"StartingSequenceNumber": "1"}, **({"ParentShardId": f"shardId-{n // 2:012d}"} if n else {}),
        }
        for n in reversed(range(10_000))
    ]  # fmt: skip
    ordered = requests._parents_first([requests._shard("orders", 1, shard) for shard in shards])
    place = {shard.partition.shard: at for at, shard in enumerate(ordered)}
    assert len(place) == 10_000
    assert all(place[parent] < place[shard.partition.shard] for shard in ordered for parent in shard.parents)
