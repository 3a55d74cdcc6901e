"""The memory of the web view, and the size of its responses, have limits, whatever a log contains."""

from __future__ import annotations

import dataclasses
import json
import threading
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord, Plan
from airflow_provider_streamsem.readers.history import VersionCache
from airflow_provider_streamsem.stores.memory import MemoryStore, open_memory_store
from airflow_provider_streamsem.stores.metered import Meter, MeteredStore, charge, memory_of, metered, working
from airflow_provider_streamsem.web.app import create_app
from airflow_provider_streamsem.web.documents import QuarantinedRecord
from airflow_provider_streamsem.web.encoding import DOCUMENT_BYTES, encoded
from airflow_provider_streamsem.web.memory import MemoryBudget
from airflow_provider_streamsem.web.pipelines import LoggedPipeline, ServedLog
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()
MIB = 1 << 20


def log_of_large_versions(tmp_path: Path, number: int, *, pins: Any, reason: str) -> str:
    """A log whose versions have been aborted with a reason, after a plan with pins."""
    fixture = PipelineFixture(tmp_path, store=open_memory_store(f"large-{next(_NAMES)}"))
    fixture.arrive(1)
    fixture.run("first")
    log = fixture.opened().log
    plan, (outcome, before) = log.plan(0), log.outcome_and_sha256(0)
    for version in range(1, number + 1):
        changes = {"version": version, "run_key": f"run-{version}", "pins": pins, "previous": before}
        encoded_plan = codec.encode(dataclasses.replace(plan, **changes))
        aborted = Outcome(
            version=version, result="abort", plan=encoded_plan.sha256, attempt_id="", spec=outcome.spec,
            reason=reason, next=outcome.next, decided_at_ms=outcome.decided_at_ms + version, transform="", nonce=str(version),
        )  # fmt: skip
        encoded_outcome = codec.encode(aborted)
        for key, each in ((keys.plan(version), encoded_plan), (keys.outcome(version), encoded_outcome)):
            for spill, data in each.spills.items():
                fixture.store.create(spill, data)
            fixture.store.create(key, each.data)
        before = encoded_outcome.sha256
    return fixture.store.url


def client_of(memory: MemoryBudget, *logs: str) -> TestClient:
    pipelines = [LoggedPipeline(str(at), ServedLog(log, cache=memory.cache)) for at, log in enumerate(logs)]
    app = create_app(
        authenticated=lambda: None,
        readable=lambda: pipelines,
        shows_records=True,
        show_records_with="the setting",
        memory=memory,
    )
    return TestClient(app)


def peak_of(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


PINS = [{"path": f"{at:0100d}", "bytes": at} for at in range(5_000)]


def test_versions_with_large_pins_and_reasons_are_listed_within_the_memory(tmp_path: Path) -> None:
    log = log_of_large_versions(tmp_path, 30, pins=PINS, reason="x" * 3 * MIB)
    memory = MemoryBudget(64)
    client = client_of(memory, log)
    response = None

    def get() -> None:
        nonlocal response
        response = client.get("/api/pipelines")

    assert peak_of(get) < 64 * MIB
    assert response is not None
    (pipeline,) = response.json()
    assert pipeline["problem"] is None
    assert [row["version"] for row in pipeline["newest"]] == [*range(30, 0, -1)]
    assert {len(row["reason"]) for row in pipeline["newest"]} == {2_000}
    assert len(response.content) < MIB
    assert memory.cache.bytes < 16 * MIB


def test_version_that_needs_too_much_memory_is_a_problem_of_its_pipeline_only(tmp_path: Path) -> None:
    large = log_of_large_versions(tmp_path / "large", 1, pins=[[]] * 1_000_000, reason="")
    small = log_of_large_versions(tmp_path / "small", 1, pins=None, reason="")
    client = client_of(MemoryBudget(16), large, small)
    first, second = client.get("/api/pipelines").json()
    assert "more memory" in first["problem"]["message"]
    assert "web_memory" in first["problem"]["message"]
    assert (second["problem"], len(second["newest"])) == (None, 2)
    assert client.get("/api/pipelines/0/versions").status_code == 404


def test_spec_with_a_lone_surrogate_is_a_problem_of_its_pipeline_only(tmp_path: Path) -> None:
    broken = PipelineFixture(tmp_path / "broken", store=open_memory_store(f"large-{next(_NAMES)}"))
    broken.arrive(1)
    broken.run("first")
    log = broken.opened().log
    plan = log.plan(0)
    spec = json.loads(log.read_spec(plan.spec))
    spec["guarantee"] = {"sinks": {"out": "\ud800"}, "conditions": ""}
    data = json.dumps(spec).encode()
    broken.store.create(keys.spec(codec.sha256(data)), data)
    forged = codec.encode(
        dataclasses.replace(plan, version=1, spec=codec.sha256(data), previous=log.outcome_and_sha256(0)[1])
    )
    broken.store.create(keys.plan(1), forged.data)
    good = log_of_large_versions(tmp_path / "good", 1, pins=None, reason="")
    first, second = client_of(MemoryBudget(16), broken.store.url, good).get("/api/pipelines").json()
    assert first["problem"]["error"] == "LogDamagedError"
    assert second["problem"] is None


def test_error_that_no_reader_expects_is_a_problem_of_its_pipeline_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = log_of_large_versions(tmp_path, 1, pins=None, reason="")
    monkeypatch.setattr(ServedLog, "history", property(lambda self: 1 / 0))
    (found,) = client_of(MemoryBudget(16), good).get("/api/pipelines").json()
    assert found["problem"]["error"] == "ZeroDivisionError"


ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=5)
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(ANY_VALUE)
def test_document_of_any_values_is_encoded_as_json(value: Any) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    record = QuarantinedRecord(position={"value": value}, error="", raw="", encoding="")
    assert json.loads(encoded([record]), parse_constant=refuse)[0]["error"] == ""


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000_000, ["x" * 1_000] * 1_000_000, {str(at): at for at in range(1_000_000)}],
    ids=["text", "list", "dict"],
)
def test_long_texts_and_collections_are_truncated(value: Any) -> None:
    record = QuarantinedRecord(position={"value": value}, error="", raw="", encoding="")
    assert len(encoded(record)) < DOCUMENT_BYTES


def test_document_that_is_too_large_when_truncated_is_refused() -> None:
    record = QuarantinedRecord(position={"value": ["x" * 19_000] * 1_000}, error="", raw="", encoding="")
    with pytest.raises(InvalidError, match="too large"):
        encoded(record)


def test_deeply_nested_value_is_truncated() -> None:
    value: Any = 0
    for _ in range(200):
        value = [value]
    assert b"\\u2026" in encoded(QuarantinedRecord(position={"value": value}, error="", raw="", encoding=""))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3_000))))
def test_cache_never_keeps_more_bytes_than_its_limit(puts: list[tuple[int, int]]) -> None:
    cache = VersionCache(10_000)
    for key, length in puts:
        cache.put(key, "x" * length)
        assert cache.bytes <= 10_000
        assert cache.bytes == sum(size for _, size in cache._values.values())
        assert cache.get(key) is None or isinstance(cache.get(key), str)


@given(ANY_VALUE)
def test_charge_for_an_object_is_at_least_the_memory_of_its_parsed_value(value: Any) -> None:
    data = json.dumps(value).encode()
    meter = Meter(1 << 40)
    with metered(meter):
        MeteredStore(MemoryStore(objects={"k": data})).read("k")
    assert meter._used >= memory_of(json.loads(data)) - 200


def test_work_gives_its_memory_back_and_its_result_is_charged() -> None:
    meter = Meter(1_000)
    with metered(meter):
        for _ in range(10):
            with working():
                charge(900)
            charge(10)
    assert meter._used == 100


def test_object_is_not_read_if_its_size_exceeds_the_memory() -> None:
    class Store(MemoryStore):
        def read(self, key: str) -> bytes | None:
            pytest.fail("the object was read")

    with metered(Meter(1_000)), pytest.raises(InvalidError, match="more memory"):
        MeteredStore(Store(objects={"k": b"x" * 1_000})).read("k")


def test_requests_that_use_all_memory_run_one_at_a_time() -> None:
    memory = MemoryBudget(16)
    running, most, lock = 0, 0, threading.Lock()
    done = threading.Barrier(9)

    def request() -> str:
        nonlocal running, most
        charge(8 * MIB)
        with lock:
            running += 1
            most = max(most, running)
        for _ in range(1_000):
            pass
        with lock:
            running -= 1
        return "done"

    def run() -> None:
        assert memory.run(request) == "done"
        done.wait()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    done.wait()
    assert most == 1
    assert memory._free == memory._capacity


def test_forged_rollback_over_all_versions_needs_no_memory_for_each_version(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_memory_store(f"large-{next(_NAMES)}"))
    fixture.arrive(1)
    fixture.run("first")
    opened = fixture.opened()
    log, newest = opened.log, 10**11
    plan, outcome = log.plan(0), log.outcome(0)
    rollback = {"kind": "rollback", "to": 0, "counts": {}, "next": outcome.next}
    forged_plan = codec.encode(
        codec.build(Plan, {**codec.plain(plan), "version": newest, "work": rollback, "ranges": {}}, "k")
    )
    forged = codec.encode(
        codec.build(
            Outcome,
            {
                **codec.plain(outcome),
                "version": newest,
                "plan": forged_plan.sha256,
                "work": rollback,
                "newest": {"rollback": newest},
                "counts": {},
                "sinks": {},
                "publish": [],
            },
            "k",
        )
    )
    fixture.store.create(keys.plan(newest), forged_plan.data)
    fixture.store.create(keys.outcome(newest), forged.data)
    client = client_of(MemoryBudget(16), fixture.store.url)
    assert peak_of(lambda: client.get("/api/pipelines")) < 16 * MIB
    assert peak_of(lambda: client.get(f"/api/pipelines/0/comparison?older={newest - 1}&newer={newest}")) < 16 * MIB


def test_record_of_a_log_has_a_limit(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_memory_store(f"large-{next(_NAMES)}"))
    record = PipelineRecord(pipeline_uuid="u", name="x" * 200_000, spec="0" * 64, nonce="n")
    fixture.store.create(keys.PIPELINE, codec.encode(record).data)
    (found,) = client_of(MemoryBudget(16), fixture.store.url).get("/api/pipelines").json()
    assert "too large" in found["problem"]["message"]
