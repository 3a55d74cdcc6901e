"""
For any division of a stream into batches, and with faults in any of them, each stateful operator gives the rows of a real Structured Streaming query on the
same micro-batches.

Hypothesis chooses the events, the batches and the faults. Each run of ``make prove`` tries new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    JdbcSink,
    Pipeline,
    State,
    read_committed,
    reprocess,
    rollback,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.spark.stateful import MicroBatch
from tests.connectors.sql.sqlite_database import database_at
from tests.state import transforms
from tests.state.crashes import crash_at
from tests.state.processors import closing, of_rows
from tests.state.stateful_pipeline import arrive, pipeline
from tests.state.streaming_query import streamed

pytestmark = [pytest.mark.spark, pytest.mark.prove]

Batch = list[tuple[int, str]]
"""minute and key of each event"""


APPENDED = [
    (transforms.windowed, "append"),
    (transforms.windowed, "update"),
    (transforms.sessions, "append"),
    (transforms.distinct, "append"),
    (transforms.distinct, "update"),
    (transforms.distinct_within_watermark, "append"),
    (transforms.joined, "append"),
    (transforms.chained, "append"),
    (transforms.keyed, "update"),
    (transforms.total, "update"),
    (closing, "update"),
    (of_rows, "update"),
]
COMPLETE = [transforms.windowed, transforms.keyed, transforms.total]

KILLED = {
    "killed before its plan": ("result", True),
    "killed before its rows": ("result", False),
    "killed before its ids are read": ("after", True),
    "killed before its manifest": ("after", False),
}
ANYWHERE = ["none", *KILLED, "late", "overtaken", "aborted", "repeated"]
OF_FILES = ["reprocessed", "rolled back", "vacuumed"]

BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), min_size=1, max_size=8), min_size=2, max_size=5
)


@dataclass
class Run:
    """Runs the batches of one pipeline, each with a fault."""

    spec: Pipeline
    patch: pytest.MonkeyPatch
    pool: ThreadPoolExecutor
    late: list[tuple[Event, Future[Any]]] = field(default_factory=list)

    def batch(self, number: int, fault: str) -> None:
        key = f"run {number}"
        if fault in KILLED:
            step, before = KILLED[fault]
            self.killed(key, step, before=before)
        elif fault == "late":
            self.start_late(key)
        elif fault == "aborted":
            self.killed(key, "after")
            opened = bind(self.spec, commit_log_at(self.spec.log))
            head = opened.log.find_head()
            assert head.plan is not None
            abort(opened.log, opened.record, head.plan.version, reason="test")
            key = f"after the abort {number}"
        if fault == "overtaken":
            with self.paused_after_staging() as (staged, go):
                first = self.pool.submit(run_batch, self.spec, run_key=key)
                assert staged.wait(60)
            result = run_batch(self.spec, run_key=key)
            go.set()
            assert first.result().version == result.version
        else:
            result = run_batch(self.spec, run_key=key)
        assert result.status == "committed"
        if fault == "repeated":
            assert run_batch(self.spec, run_key=key).version == result.version
        elif fault == "reprocessed":
            assert result.version is not None
            reprocess(self.spec, result.version)
        elif fault == "rolled back":
            assert result.version is not None
            rollback(self.spec, result.version - 1)
            assert run_batch(self.spec, run_key=f"after the rollback {number}").status == "committed"
        elif fault == "vacuumed":
            vacuum(self.spec)

    def killed(self, key: str, step: str, *, before: bool = False) -> None:
        with pytest.MonkeyPatch.context() as patched:
            crash_at(patched, MicroBatch, step, before=before)
            with pytest.raises(StreamsemError):
                run_batch(self.spec, run_key=key)

    def start_late(self, key: str) -> None:
        """Start a run whose attempt stages its rows now and goes on after the last batch."""
        with self.paused_after_staging() as (staged, go):
            self.late.append((go, self.pool.submit(run_batch, self.spec, run_key=key)))
            assert staged.wait(60)

    @contextmanager
    def paused_after_staging(self) -> Iterator[tuple[Event, Event]]:
        """In this block, the next attempt sets the first event when it has written its state, and then waits for the second."""
        staged, go = Event(), Event()
        real = MicroBatch.after

        def after(batch: MicroBatch) -> Any:
            if staged.is_set():
                return real(batch)
            staged.set()
            assert go.wait(600)
            return real(batch)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(MicroBatch, "after", after)
            yield staged, go

    def finish_late(self) -> None:
        for go, run in self.late:
            go.set()
            assert run.result().status == "committed"


@contextmanager
def run_of(spec: Pipeline) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        run = Run(spec, patch, pool)
        try:
            yield run
        finally:
            for go, _ in run.late:
                go.set()


def examples(faults: list[str]) -> Callable[[Any], Any]:
    """Run a test for several new lists of batches with faults."""
    unrelated = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    setting = settings(
        max_examples=5, derandomize=False, phases=[Phase.generate], print_blob=True, suppress_health_check=unrelated
    )
    given_batches = given(batches=BATCHES, faults=st.lists(st.sampled_from(faults), min_size=5, max_size=5))
    return lambda test: setting(given_batches(test))


@pytest.mark.parametrize(("transform", "mode"), APPENDED, ids=lambda value: getattr(value, "__name__", value))
@examples([*ANYWHERE, *OF_FILES])
def test_rows_of_any_batches_with_faults_are_those_of_a_streaming_query(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    transform: Callable[[DataFrame], DataFrame],
    mode: str,
    batches: list[Batch],
    faults: list[str],
) -> None:
    root, found = tmp_path_factory.mktemp("batches"), []
    state = State(output_mode=mode, partitions=1 if transform is closing else 2, keep_versions=2)
    with run_of(pipeline(root, transform, mode, state=state)) as run:
        for number, (events, fault) in enumerate(zip(batches, faults, strict=False)):
            arrive(root, number, events)
            run.batch(number, "none" if fault == "rolled back" and number == 0 else fault)
            found.append(rows(read_committed(spark, run.spec.log)))
        run.finish_late()
        assert rows(read_committed(spark, run.spec.log)) == found[-1]
    expected: Counter[tuple[Any, ...]] = Counter()
    for streamed_rows, _ in streamed(spark, root, transform, mode):
        expected += Counter(streamed_rows)
        assert found.pop(0) == expected
    assert verify(run.spec.log).violations == []


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.select("at", "k", "n").collect()) if frame.columns else Counter()


@pytest.mark.parametrize("transform", COMPLETE)
@examples(ANYWHERE)
def test_complete_result_of_any_batches_with_faults_is_that_of_a_streaming_query(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    transform: Callable[[DataFrame], DataFrame],
    batches: list[Batch],
    faults: list[str],
) -> None:
    root = tmp_path_factory.mktemp("batches")
    keys = ["at", "k"] if transform is transforms.windowed else ["k"]
    table = database_at(root / "db.sqlite", monkeypatch)
    table.run(f'CREATE TABLE "t" (at VARCHAR(30), k VARCHAR(9), n BIGINT, PRIMARY KEY ({", ".join(keys)}))')
    sink = JdbcSink(conn_id="db", table="t", staging=str(root / "staging"), mode="upsert", keys=keys)

    def result(events: DataFrame) -> DataFrame:
        return transform(events).selectExpr("string(at) AS at", "k", "n")

    with run_of(pipeline(root, result, "complete", sinks={"t": sink})) as run:
        for number, (events, fault) in enumerate(zip(batches, faults, strict=False)):
            arrive(root, number, events)
            run.batch(number, fault)
        run.finish_late()
    expected, _ = streamed(spark, root, transform, "complete")[-1]
    assert sorted(table.run('SELECT at, k, n FROM "t"')) == sorted((str(at), k, n) for at, k, n in expected)
    assert verify(run.spec).violations == []
