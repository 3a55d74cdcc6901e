"""Planning and checks of ranges of a NATS stream, with a stream in memory, and arguments and connections that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Avro, Json, Limits, NatsSource, Pipeline
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.nats.pins import SequencePin
from airflow_provider_streamsem.connectors.source import SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.connectors.nats.streams import CREATED, MemoryStream

NAME = f"ORDERS@{CREATED}"


def source(**arguments: Any) -> NatsSource:
    return NatsSource(**{"stream": "ORDERS", "servers": "h:1", **arguments})


def slice_of(start: int, end: int | None = None, *, hint: Any = None, gap: bool = False, most: int | None = None, **arguments: Any) -> SourceSlice | None:  # fmt: skip
    planner = source(**arguments).open(CommitLog(MemoryStore()), None)
    target = planner.poll(hint) if end is None else SourceEnd({NAME: end})
    policy = "record_gap" if gap else "fail"
    return planner.slice({NAME: start}, target, Limits(max_rows=most), hint, on_data_loss=policy)


def existing(planned: SourceSlice | None) -> SourceSlice:
    assert planned is not None
    return planned


def test_slice_without_filter_needs_three_requests(orders: MemoryStream) -> None:
    orders.put(1_000)
    planned = existing(slice_of(1))
    assert (planned.ranges, planned.rows) == ({NAME: (1, 1_001)}, 1_000)
    assert orders.requests == ["info", "info", "message"]


def test_limit_counts_from_the_first_sequence_that_exists(orders: MemoryStream) -> None:
    orders.put(20)
    orders.expire(11)
    planned = existing(slice_of(5, gap=True, most=3))
    assert (planned.ranges, planned.gaps) == ({NAME: (5, 14)}, {NAME: ((5, 11),)})
    assert [(pin.start, pin.end) for pin in planned.pins] == [(11, 14)]


def test_drain_target_that_retention_has_deleted_becomes_a_gap_up_to_the_target(orders: MemoryStream) -> None:
    orders.put(20)
    orders.expire(15)
    planned = existing(slice_of(5, 10, gap=True))
    assert (planned.ranges, planned.gaps, [*planned.pins]) == ({NAME: (5, 10)}, {NAME: ((5, 10),)}, [])


def test_drain_target_above_the_end_of_the_stream_is_a_loss_that_never_becomes_a_gap(orders: MemoryStream) -> None:
    orders.put(5)
    with pytest.raises(SourceChangedError, match="lost its newest messages"):
        slice_of(2, 10, gap=True)


def test_stream_that_grew_again_after_a_loss_is_detected_by_the_time_of_the_last_committed_message(
    orders: MemoryStream,
) -> None:
    orders.put(10)
    hint = existing(slice_of(1)).hint
    assert slice_of(11, hint=hint) is None
    orders.lose(5)
    orders.put(20)
    with pytest.raises(SourceChangedError, match="another message has this sequence"):
        slice_of(11, hint=hint, gap=True)


def test_deleted_last_committed_message_and_forged_hints_stop_no_run(orders: MemoryStream) -> None:
    orders.put(10)
    hint = existing(slice_of(1)).hint
    orders.put(5)
    del orders.messages[10]
    for forged in (hint, None, 7, {"last": 1}, {"last": [NAME, "10", ""]}, {"last": ["OTHER", 10, "x"]}):
        assert existing(slice_of(11, hint=forged)).ranges == {NAME: (11, 16)}


def test_check_of_pins_names_the_planned_range_and_the_lost_sequences(orders: MemoryStream) -> None:
    orders.put(10)
    nats = source()
    pins = [*existing(slice_of(3)).pins]
    nats.check_pins(pins, was_read=False)
    orders.expire(5)
    nats.check_pins(pins, was_read=True)
    with pytest.raises(RecordsMissingError, match=r"range=\(3, 11\), first=5"):
        nats.check_pins(pins, was_read=False)
    orders.lose(8)
    with pytest.raises(SourceChangedError, match="end=8"):
        nats.check_pins(pins, was_read=True)
    orders.put(10)
    with pytest.raises(SourceChangedError, match="another message"):
        nats.check_pins(pins, was_read=True)
    orders.created = "2026-02-02T00:00:00Z"
    with pytest.raises(RecordsMissingError, match="recreated"):
        nats.check_pins(pins, was_read=True)


def test_recreated_stream_is_refused_before_and_after_a_poll(orders: MemoryStream) -> None:
    orders.put(10)
    orders.created = "2026-02-02T00:00:00Z"
    for gap in (False, True):
        with pytest.raises(SourceChangedError, match="deleted and recreated"):
            slice_of(3, gap=gap)


def test_subject_ends_the_range_at_its_last_message(orders: MemoryStream) -> None:
    orders.put(3, "a.x")
    orders.put(3, "b.x")
    assert existing(slice_of(1, subject="a.*")).ranges == {NAME: (1, 4)}
    assert slice_of(4, subject="a.*") is None
    assert slice_of(1, subject="c.>") is None


@pytest.mark.parametrize("messages", [0, 1, 7, 1_000])
def test_offsets_for_a_time_are_found_with_few_requests(orders: MemoryStream, messages: int) -> None:
    orders.put(messages)
    for n in [n for n in orders.messages if n % 3 == 0]:
        del orders.messages[n]
    midnight_ms = 1_767_225_600_000
    for second in {0, 1, 2, 3, messages // 2, messages, messages + 1}:
        orders.requests.clear()
        sequence = source().offsets_for_time(midnight_ms + second * 1_000)[NAME]
        assert [n for n in orders.messages if n >= sequence] == [n for n in orders.messages if n >= second]
        assert len(orders.requests) <= 12


def test_stream_whose_consumers_delete_messages_is_refused(orders: MemoryStream) -> None:
    orders.retention = "workqueue"
    with pytest.raises(InvalidError, match="retention='workqueue'"):
        source().initial_offsets()


@pytest.mark.parametrize(
    "pin",
    [
        {"stream": "OTHER", "created": CREATED, "start": 1, "end": 2, "last_time": ""},
        {"stream": "ORDERS", "created": CREATED, "start": 2, "end": 2, "last_time": ""},
        {"stream": "ORDERS", "created": CREATED, "start": 0, "end": 2, "last_time": ""},
        {"stream": "ORDERS", "created": CREATED, "start": 1, "end": "2", "last_time": ""},
    ],
    ids=["other-stream", "empty", "zero", "text"],
)
def test_forged_pins_are_refused(pin: Any) -> None:
    with pytest.raises(LogDamagedError):
        source().read_pins([pin])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"stream": "a.b"}, "stream"),
        ({"stream": "$JS>"}, "stream"),
        ({"subject": "a..b"}, "subject"),
        ({"subject": "a.>.b"}, "subject"),
        ({"subject": "a b"}, "subject"),
        ({"servers": None}, "conn_id and servers"),
        ({"conn_id": "c"}, "conn_id and servers"),
        ({"servers": "nats://user:s3cret@h:1"}, "servers"),
        ({"domain": "a.b"}, "domain"),
        ({"starting": 0}, "starting"),
        ({"starting": True}, "starting"),
        ({"starting": "yesterday"}, "starting"),
        ({"value": Avro('{"type": "record", "name": "r", "fields": []}', registry="http://registry")}, "subject"),
        ({"value": "json"}, "value"),
        ({"tasks": 0}, "tasks"),
    ],
    ids=str,
)
def test_invalid_argument_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidError, match=named) as caught:
        source(**arguments)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("subject", ["a", "a.b", "a.*", "*.b", "a.>", ">", "*", "$KV.bucket.>"])
def test_subjects_with_wildcards_are_accepted(subject: str) -> None:
    assert source(subject=subject).subject == subject


def test_spec_is_stored_without_secrets_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    connection_fields = {"conn_type": "nats", "host": "a, b:5, [::1]", "port": 4333, "login": "u", "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_N", json.dumps(connection_fields))
    nats = NatsSource(stream="ORDERS", conn_id="n", value=Json("id long"), starting="2026-01-01T00:00:00Z", tasks=4)
    pipeline = Pipeline(name="p", log="memory://p", source=nats, sinks={"out": FilesSink(path="/out")})
    assert spec.from_json(json.loads(json.dumps(pipeline.to_json()))).source == nats
    assert nats.access().servers == ("a:4333", "b:5", "[::1]:4333")
    assert nats.lineage({}) == [("nats://a:4333", "ORDERS")]
    assert "s3cret" not in f"{nats.access()!r}{pipeline.to_json()}{nats!r}"
    assert "without encryption" in nats.warnings()[0]


@pytest.mark.parametrize(
    ("connection_fields", "message"),
    [
        ({"conn_type": "http", "host": "h"}, "type nats"),
        ({"conn_type": "nats"}, "host"),
        ({"conn_type": "nats", "host": "h", "extra": {"user_jwt": "s3cret"}}, "property"),
        ({"conn_type": "nats", "host": "h", "extra": {"creds_file": "/not/there"}}, "cannot be read"),
        ({"conn_type": "nats", "host": "h", "extra": {"tls_key_file": __file__}}, "tls_cert_file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_connection_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, connection_fields: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_N", json.dumps(connection_fields))
    with pytest.raises(InvalidError, match=message) as caught:
        NatsSource(stream="ORDERS", conn_id="n").access()
    assert "s3cret" not in str(caught.value)


def test_password_without_a_login_is_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"
    creds.write_text("jwt")
    connection_fields = {"conn_type": "nats", "host": "localhost", "password": "t", "extra": {"creds_file": str(creds)}}
    monkeypatch.setenv("AIRFLOW_CONN_N", json.dumps(connection_fields))
    nats = NatsSource(stream="ORDERS", conn_id="n")
    assert (nats.access().token, nats.access().login, nats.access().creds) == ("t", "", "jwt")
    assert nats.warnings() == []


def test_partition_contains_the_creation_time() -> None:
    assert SequencePin("ORDERS", CREATED, 1, 2, "").partition == NAME
