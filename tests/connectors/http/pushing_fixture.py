"""A pipeline that sends its rows to an endpoint, and what its receipts promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.connectors.http.endpoints import Call, Recorder, Reply
from tests.pipeline_fixture import PipelineFixture

CHOICES: dict[str, dict[str, Any]] = {
    "at_least_once": {},
    "at_most_once": {"delivery": "at_most_once"},
    "effectively_once": {"idempotent": True},
}


def new_fixture(root: Path, files: int = 2) -> PipelineFixture:
    """Create a fixture with six rows in one batch. With chunks of two rows it has three chunks."""
    fixture = PipelineFixture(root)
    fixture.arrive(files)
    return fixture


def pushing(fixture: PipelineFixture, recorder: Recorder, **choice: Any) -> Pipeline:
    arguments = {"url": recorder.url, "chunk_rows": 2, **choice}
    return fixture.pipeline(sinks={"push": HttpSink(str(fixture.root / "staged"), **arguments)})


def receipt(fixture: PipelineFixture, version: int = 0) -> Receipt:
    receipts = fixture.opened().log.receipts(version)
    assert receipts is not None
    return receipts.sinks["push"]


def claims(fixture: PipelineFixture) -> list[str]:
    return [stat.key for stat in fixture.store.list("claims/")]


def rate_limited(recorder: Recorder) -> Callable[[Call], Reply]:
    """Rate-limit the first call of two records. One wait is long enough that the publisher records its progress first."""

    def answer(call: Call) -> Reply:
        wait_s = {3: 10, 4: 1}.get(call.ids[0])
        is_first = sum(received.ids == call.ids for received in recorder.received) == 1
        return (429, {"Retry-After": str(wait_s)}) if wait_s and is_first else 200

    return answer


def check_guarantee(choice: str, fixture: PipelineFixture, recorder: Recorder, where: str) -> None:
    seen, actual = recorder.ids(), receipt(fixture)
    lost, repeated = fixture.expected - seen, {n for n, times in seen.items() if times > 1}
    assert not seen - Counter({n: 99 for n in fixture.expected}), where
    assert fixture.verdict().violations == [], where
    if choice == "at_most_once":
        assert not repeated, f"{where}: repeated {repeated}"
        assert lost.total() <= actual.detail["unknown"] + actual.detail["refused"], (
            f"{where}: the receipt does not count the loss"
        )
        assert actual.rows + actual.detail["unknown"] == fixture.expected.total(), where
        assert (actual.result == "unknown") == (actual.detail["unknown"] > 0), where
    else:
        assert not lost, f"{where}: lost {lost}"
        assert actual == Receipt(
            result="applied", rows=6, detail={"chunks": 3, "refused": 0, "unknown": 0, "skipped": 0}
        )
    if choice == "effectively_once":
        assert Counter(body["id"] for body in recorder.table().values()) == fixture.expected, where


def run_at(fixture: PipelineFixture, clock: ManualClock, pipeline: Pipeline, run_key: str = "a") -> CountingStore:
    """Run with a clock that other runs share. Return the store, which counted the requests."""
    store = CountingStore(fixture.store)
    run_batch(pipeline, run_key=run_key, log=CommitLog(store, clock), engine=RowsEngine())
    return store
