"""Idempotency keys and the JSON of a body."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.connectors.json_rows.rows import check_types, json_rows
from airflow_provider_streamsem.errors import (
    DataError,
    UnavailableError,
)
from tests.connectors.batches import schema_of
from tests.connectors.http.endpoints import Recorder
from tests.connectors.http.pushing_fixture import (
    new_fixture,
    pushing,
    receipt,
)


def test_idempotency_key_of_a_call_is_stable_across_retries_and_never_shared(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder, records_per_call=2, chunk_rows=5)
    recorder.reply_to = lambda call: 503 if 9 in call.ids else 200
    with pytest.raises(UnavailableError):
        fixture.run("a", pipeline=pipeline, drain=True)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline, drain=True)
    by_key: dict[str, list[list[int]]] = {}
    for call in recorder.received:
        by_key.setdefault(call.key, []).append(call.ids)
    assert all(all(ids == tries[0] for ids in tries) for tries in by_key.values())
    assert [tries[0] for tries in by_key.values()] == [[0, 1], [2, 3], [4], [5], [6, 7], [8, 9], [10], [11]]
    uuid, outcomes = (
        fixture.opened().record.pipeline_uuid,
        [fixture.log().outcome_and_sha256(version) for version in range(2)],
    )
    first_prefix, second_prefix = (
        f"{uuid}-push-{version}-{stored[1][:16]}" for version, stored in enumerate(outcomes) if stored
    )
    assert list(by_key)[:5] == [
        f"{first_prefix}-0-0",
        f"{first_prefix}-0-2",
        f"{first_prefix}-0-4",
        f"{first_prefix}-1-0",
        f"{second_prefix}-0-0",
    ]


def test_version_replanned_by_a_restored_log_has_new_idempotency_keys(tmp_path: Path, recorder: Recorder) -> None:
    """With the keys of the lost version, an endpoint would treat the calls as repeats and lose the new records."""
    fixture = new_fixture(tmp_path, 2)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline)
    older = {stat.key: fixture.store.read(stat.key) or b"" for stat in fixture.store.list("")}
    fixture.arrive(1)
    fixture.run("b", pipeline=pipeline)
    for stat in list(fixture.store.list("")):
        if stat.key not in older:
            fixture.store.delete(stat.key)
    lost = {call.key for call in recorder.received}
    fixture.arrive(1)
    fixture.run("c", pipeline=pipeline)
    assert lost.isdisjoint(call.key for call in recorder.received[len(lost) :])
    assert fixture.expected.keys() == {call.body["id"] for call in recorder.received}


def test_record_with_a_record_id_has_the_same_key_in_every_version(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder, record_id=["half"], idempotent=True).replace(transform=halved)
    fixture.run("a", pipeline=pipeline, drain=True)
    assert Counter(call.body["half"] for call in recorder.calls) == Counter([*range(6), *range(6)])
    assert sorted(body["half"] for body in recorder.table().values()) == [*range(6)]


def halved(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"half": row["id"] // 2} for row in rows]


def test_body_is_json_as_spark_writes_it() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    table = pa.table(
        {
            "b": pa.array([b"\x00\xff", None]),
            "n": pa.array([Decimal("1.50"), None]),
            "f": pa.array([float("nan"), float("-inf")]),
            "t": pa.array([at, None]),
            "local": pa.array([at.replace(tzinfo=None), None]),
            "d": pa.array([at.date(), None]),
            "m": pa.array([[("k", b"x")], None], pa.map_(pa.string(), pa.binary())),
            "l": pa.array([[at.date(), None], None]),
            "s": pa.array([{"t": at}, None]),
        }
    )
    first, second = [row for batch in table.to_batches() for row in json_rows(batch)]
    assert first == {
        "b": "AP8=", "n": "1.50", "f": "NaN", "t": "2026-01-02T03:04:05.000006Z", "local": "2026-01-02T03:04:05.000006", "d": "2026-01-02",
        "m": {"k": "eA=="}, "l": ["2026-01-02", None], "s": {"t": "2026-01-02T03:04:05.000006Z"},
    }  # fmt: skip
    assert second.pop("f") == "-Infinity"
    assert set(second.values()) == {None}
    json.dumps([first, second], allow_nan=False)


def test_columns_that_cannot_be_sent_are_refused_before_the_commit(tmp_path: Path, recorder: Recorder) -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "decimal(3,1)"}]}
    good = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": inner}}
    assert check_types(schema_of(a="varchar(3)", b=good)) == ["a", "b"]
    for bad in (
        "interval day to second",
        "variant",
        {**good, "keyType": "long"},
        {"type": "array", "elementType": "variant"},
    ):
        with pytest.raises(DataError, match=r"nothing became visible \(column='a'"):
            check_types(schema_of(a=bad))
    fixture = new_fixture(tmp_path)
    with pytest.raises(DataError, match=r"record_id are missing.*\['order'\]"):
        fixture.run("a", pipeline=pushing(fixture, recorder, record_id=["order"]))
    assert recorder.received == []
    assert fixture.opened().log.outcome(0) is None


def test_batch_without_rows_makes_no_calls(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    fixture.run("a", pipeline=pushing(fixture, recorder).replace(transform=none))
    assert recorder.received == []
    assert receipt(fixture).result == "applied"


def none(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return []


def test_record_key_is_unchanged_after_its_decimal_column_was_widened(tmp_path: Path) -> None:
    sink = HttpSink(str(tmp_path), url="http://h", record_id=["id", "name"], idempotent=True)

    def key(type: str, value: Any) -> str:
        fields = [{"name": "id", "type": type}, {"name": "name", "type": "string"}]
        batch = SimpleNamespace(schema=json.dumps({"fields": fields}), pipeline_uuid="u", sink="s")
        return sink.key(batch, 0, 0, {"id": value, "name": "5.00"})  # type: ignore[arg-type]

    assert key("decimal(9,2)", "5.00") == key("decimal(12,4)", "5.0000") == key("decimal(9,0)", "5") == key("long", 5)
    assert key("decimal(9,2)", "-1.50") == key("decimal(12,4)", "-1.5000")
    assert len({key("decimal(9,2)", text) for text in ("0.00", "0.50", "5.00", "50.00", "0.05", "-5.00")}) == 6
    assert key("string", "5.0") != key("string", "5")
