"""Triggers on a real event loop: they check in threads, are stored as JSON, and emit pending events as often as needed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Limits, OffsetRangeTrigger, Pipeline, run_batch
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.readers.conditions import OffsetsAvailable, to_text
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from airflow_provider_streamsem.triggers import condition as condition_module
from airflow_provider_streamsem.triggers.condition import ConditionTrigger
from tests.pipeline_fixture import PipelineFixture
from tests.triggers.listener import Listener, from_database, listening

pytestmark = pytest.mark.airflow
_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return PipelineFixture(tmp_path, store=open_memory_store(f"triggers-{next(_NAMES)}"))


@pytest.fixture(autouse=True)
def files_arrive_together(fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the listing of a check see all files of an ``arrive`` or none, so that an event's range is known."""
    arriving = threading.Lock()
    listing, arrive = FilesSource.listing, fixture.arrive

    def list_whole(source: FilesSource, now_ms: int) -> Any:
        with arriving:
            return listing(source, now_ms)

    def arrive_whole(files: int, **arguments: Any) -> None:
        with arriving:
            arrive(files, **arguments)

    monkeypatch.setattr(FilesSource, "listing", list_whole)
    monkeypatch.setattr(fixture, "arrive", arrive_whole)


def watch(pipeline: Pipeline, **arguments: Any) -> OffsetRangeTrigger:
    return OffsetRangeTrigger(pipeline, **{"poll_interval_s": 0.02, **arguments})


TRIGGERS: dict[str, Callable[[PipelineFixture], Any]] = {
    "condition": lambda fixture: ConditionTrigger(
        to_text(OffsetsAvailable(pipeline=fixture.pipeline())), poll_interval_s=0.1
    ),
    "offset range": lambda fixture: watch(fixture.pipeline()),
}


@pytest.mark.parametrize("kind", TRIGGERS)
@pytest.mark.parametrize("where", ["in a thread", "on the loop"])
def test_slow_source_does_not_block_the_triggerers_loop(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    """Airflow's watchdog runs beside the trigger. It must report a trigger that checks on the loop itself."""
    from airflow.jobs.triggerer_job_runner import TriggerRunner

    listing = FilesSource.listing
    monkeypatch.setattr(FilesSource, "listing", lambda *given: (time.sleep(2), listing(*given))[1])
    if where == "on the loop":

        async def call_on_loop(check: Any) -> Any:
            return check()

        for module in ("condition", "offsets"):
            monkeypatch.setattr(f"airflow_provider_streamsem.triggers.{module}.in_thread", call_on_loop)
    fixture.run("first")
    fixture.arrive(1)
    warnings: list[str] = []
    gaps: list[float] = []

    class Log:
        async def ainfo(self, text: str, *arguments: object) -> None:
            warnings.append(text % arguments)

    async def beat() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.02)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    async def observe() -> Any:
        runner = TriggerRunner()
        runner.log = Log()
        runner.blocked_main_thread_warning_threshold = (
            1.0  # Airflow's default of 0.2 may be exceeded on a loaded machine
        )
        others = [asyncio.create_task(beat()), asyncio.create_task(runner.block_watchdog())]
        await asyncio.sleep(0.3)
        event = await anext(from_database(TRIGGERS[kind](fixture)).run())
        await asyncio.sleep(0.3)
        runner.stop = True
        await others[1]
        others[0].cancel()
        return event

    assert asyncio.run(observe()).payload
    assert bool(warnings) == (where == "on the loop"), warnings
    assert (max(gaps) > 1.0) == (where == "on the loop")


@pytest.mark.parametrize("kind", TRIGGERS)
def test_checks_run_one_at_a_time_and_never_on_the_event_loop_thread(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fixture.run("first")
    active_checks, maximum, threads = [0], [0], set()
    listing = FilesSource.listing

    def record_check(*given: Any) -> Any:
        active_checks[0] += 1
        maximum[0] = max(maximum[0], active_checks[0])
        threads.add(threading.get_ident())
        time.sleep(0.05)
        active_checks[0] -= 1
        return listing(*given)

    monkeypatch.setattr(FilesSource, "listing", record_check)
    trigger = TRIGGERS[kind](fixture)
    trigger.poll_interval_s = 0.001
    with listening(trigger) as listener:
        assert listener.next(1.0) is None
    assert maximum == [1]
    assert threading.get_ident() not in threads
    assert threads


@pytest.mark.parametrize("kind", TRIGGERS)
def test_cancelled_trigger_ends_while_its_check_hangs(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fixture.run("first")
    released = threading.Event()
    monkeypatch.setattr(FilesSource, "listing", lambda *given: released.wait(10) and [])

    async def cancel() -> float:
        task = asyncio.ensure_future(anext(from_database(TRIGGERS[kind](fixture)).run()))
        await asyncio.sleep(0.3)
        before = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        return time.monotonic() - before

    assert asyncio.run(cancel()) < 1


def test_paths_and_arguments_of_triggers_stay_compatible(fixture: PipelineFixture) -> None:
    """Airflow's database stores them with every deferred task and every watcher. A newer release must be able to read them."""
    stored = json.dumps(
        {
            "format": 1, "name": "world", "log": fixture.store.url, "limits": {"max_files": 2, "min_rows": 1, "max_delay_s": 300},
            "source": {"type": "files", "path": f"{fixture.root}/in", "format": "json", "schema": "id long"},
            "sinks": {"out": {"type": "files", "path": f"{fixture.root}/out", "format": "json"}},
        }
    )  # fmt: skip
    path, arguments = OffsetRangeTrigger(fixture.pipeline()).serialize()
    assert path == "airflow_provider_streamsem.triggers.offsets.OffsetRangeTrigger"
    assert set(arguments) == {"pipeline", "poll_interval_s"}
    assert json.loads(arguments["pipeline"])["limits"]["max_delay_s"] == 300
    fixture.run("creates the log")
    fixture.arrive(1)
    with listening(OffsetRangeTrigger(pipeline=stored, poll_interval_s=30.0)) as listener:
        event = listener.next()
    assert event is not None
    assert event["ranges"] == {"files": [0, 1]}
    path, arguments = ConditionTrigger(to_text(OffsetsAvailable(pipeline=fixture.pipeline())), 5.0, True).serialize()
    assert path == "airflow_provider_streamsem.triggers.condition.ConditionTrigger"
    assert (arguments.pop("poll_interval_s"), arguments.pop("is_patient")) == (5.0, True)
    (text,) = arguments.values()
    assert list(arguments) == ["condition"]
    assert json.loads(text)["condition"] == "offsets_available"
    assert json.loads(json.loads(text)["pipeline"])["name"] == "world"


def test_modules_that_the_triggerer_imports_on_its_loop_are_light() -> None:
    code = textwrap.dedent("""
        import sys
        import airflow.triggers.base
        before = set(sys.modules)
        import airflow_provider_streamsem.triggers.condition, airflow_provider_streamsem.triggers.offsets
        ours = {m.removeprefix("airflow_provider_streamsem.") for m in set(sys.modules) - before}
        print(sorted(m for m in ours if m.startswith(("batch", "readers", "sources", "stores", "commitlog", "protocol"))))
    """)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_watchers_share_a_hash_only_if_they_watch_one_pipeline(fixture: PipelineFixture) -> None:
    from airflow.triggers.base import BaseEventTrigger

    def hash_of(pipeline: Pipeline, **arguments: Any) -> int:
        return BaseEventTrigger.hash(*OffsetRangeTrigger(pipeline, **arguments).serialize())

    spec = fixture.pipeline()
    assert hash_of(spec) == hash_of(fixture.pipeline(transform=lambda rows: rows))
    others = [spec.replace(name="other"), spec.replace(log="memory://elsewhere")]
    hashes = {hash_of(p) for p in (spec, *others)} | {hash_of(spec, min_rows=7, max_delay=60)}
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_rows": 0, "max_delay": 5}, "1 or more"),
        ({"min_rows": 5, "max_delay": 0.5}, "whole seconds"),
        ({"pipeline": 5}, "pipeline"),
        ({"pipeline": "/nowhere.toml"}, "cannot be read"),
        ({"pipeline": "{{ params.file }}"}, "cannot be read"),
        ({"poll_interval_s": 0}, "greater than 0"),
    ],
)
def test_invalid_arguments_of_a_watcher_are_reported_when_the_dag_is_parsed(
    fixture: PipelineFixture, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        OffsetRangeTrigger(**{"pipeline": fixture.pipeline(), **arguments})


def test_templates_in_a_watcher_are_refused(fixture: PipelineFixture) -> None:
    spec = fixture.pipeline(source=FilesSource(path="/in/{{ ds }}", format="json", schema="id long"))
    with pytest.raises(InvalidError, match="templates"):
        OffsetRangeTrigger(spec)


def run_now(fixture: PipelineFixture, run_key: str, *, drain: bool = False) -> None:
    """Run a batch with the system clock, as the trigger does. With the clock of the fixture, a check during the run would treat the run as dead."""
    run_batch(fixture.pipeline(), run_key=run_key, drain=drain, engine=RowsEngine())


def test_one_event_for_each_bounded_range(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    with listening(watch(fixture.pipeline())) as listener:
        assert listener.next(0.3) is None
        fixture.arrive(4)
        event = listener.next()
        assert event is not None
        assert (event["pipeline"], event["version"], event["ranges"]) == ("world", -1, {"files": [0, 2]})
        assert (event["lag"], event["unit"], event["log"]) == (4, "files", fixture.store.url)
        assert listener.next(0.3) is None
        run_now(fixture, "first")
        event = listener.next()
        assert event is not None
        assert event["ranges"] == {"files": [2, 4]}
        # A check may fall between the plan of the earlier files and its outcome.
        assert event["version"] in (-1, 0)
        run_now(fixture, "second")
        assert listener.next(0.3) is None


def test_drain_is_one_event_and_later_files_are_the_next(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    fixture.arrive(6)
    with listening(watch(fixture.pipeline())) as listener:
        assert listener.next() is not None
        run_now(fixture, "drain", drain=True)
        assert listener.next(0.3) is None
        fixture.arrive(1)
        event = listener.next()
        assert event is not None
        assert event["ranges"] == {"files": [6, 7]}


def test_restarted_trigger_emits_only_unplanned_ranges_again(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    fixture.arrive(2)
    for _ in range(2):
        with listening(watch(fixture.pipeline())) as listener:
            event = listener.next()
            assert event is not None
            assert event["ranges"] == {"files": [0, 2]}
    fixture.run("reads the files")
    with listening(watch(fixture.pipeline())) as listener:
        assert listener.next(0.3) is None


def test_event_that_started_no_run_is_emitted_again_after_max_wait(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    fixture.arrive(2)
    with listening(watch(fixture.pipeline(), min_rows=1, max_delay=1)) as listener:
        first = listener.next()
        before = time.monotonic()
        assert listener.next(0.5) is None
        assert listener.next(5) == first
        assert 0.9 < time.monotonic() - before < 3


def test_range_whose_run_died_is_emitted_again_after_max_wait(fixture: PipelineFixture) -> None:
    spec = fixture.pipeline()
    fixture.arrive(2)
    with listening(watch(spec, min_rows=1, max_delay=2)) as listener:
        assert listener.next() is not None

        def die(step: str) -> None:
            raise Crash

        with pytest.raises(Crash):
            run_batch(spec, run_key="dies", engine=RowsEngine(die))  # uses the system's clock, as run_now does
        assert listener.next(1) is None
        event = listener.next(5)
        assert event is not None
        assert (event["open_version"], event["ranges"]) == (0, {"files": [0, 2]})


def test_pipeline_without_a_log_is_emitted_once(fixture: PipelineFixture) -> None:
    with listening(watch(fixture.pipeline())) as listener:
        event = listener.next()
        assert event is not None
        assert (event["is_new"], event["ranges"]) == (True, {})
        assert listener.next(0.3) is None
        fixture.run("creates the log")
        fixture.arrive(1)
        event = listener.next()
        assert event is not None
        assert (event["is_new"], event["ranges"]) == (False, {"files": [0, 1]})


def test_permanent_error_is_emitted_as_one_event(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    fixture.arrive(2)
    planner = fixture.planner()
    planner.poll(None)
    lost = fixture.root / "in" / "00000.json"
    data, stat = lost.read_bytes(), lost.stat()
    lost.unlink()
    with listening(watch(fixture.pipeline(), min_rows=1, max_delay=1)) as listener:
        event = listener.next()
        assert event is not None
        assert event["error"].startswith("SourceChangedError")
        assert "Do:" in event["error"]
        assert listener.next(1.5) is None
        lost.write_bytes(data)
        os.utime(lost, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        event = listener.next()
        assert event is not None
        assert event["ranges"] == {"files": [0, 2]}


@pytest.mark.parametrize("error", [UnavailableError("no reply"), RuntimeError("a bug")])
def test_failed_check_is_repeated(fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fixture.run("creates the log")
    fixture.arrive(1)
    listing, failures = FilesSource.listing, [error, error]

    def fail_twice(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return listing(*given)

    monkeypatch.setattr(FilesSource, "listing", fail_twice)
    with listening(watch(fixture.pipeline())) as listener:
        event = listener.next()
        assert event is not None
        assert event["ranges"] == {"files": [0, 1]}


def test_deferred_condition_ends_with_its_finding(fixture: PipelineFixture) -> None:
    fixture.run("creates the log")
    with listening(TRIGGERS["condition"](fixture)) as listener:
        assert listener.next(0.5) is None
        fixture.arrive(1)
        event = listener.next()
        assert event is not None
        assert event["observed"]["ranges"] == {"files": [0, 1]}
        assert listener.next() is None


def test_errors_of_a_deferred_condition_are_emitted_with_their_fields_and_without_their_cause(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> Any:
        raise UnavailableError("no reply", location="p", tries=(1, 2)).advising("wait.") from RuntimeError(
            "password=secret"
        )

    monkeypatch.setattr(FilesSource, "listing", fail)
    condition = to_text(OffsetsAvailable(pipeline=fixture.pipeline()))
    with listening(ConditionTrigger(condition, 0.02)) as listener:
        event = listener.next()
    assert event == {
        "error": "UnavailableError",
        "summary": "no reply",
        "fields": {"location": "p", "tries": "(1, 2)"},
        "do": "wait.",
    }
    with listening(ConditionTrigger(condition, 0.02, is_patient=True)) as listener:
        assert listener.next(0.5) is None


def test_airflow_connections_are_resolved_in_the_thread(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.connections import connection

    monkeypatch.setenv("AIRFLOW_CONN_BROKER", '{"conn_type": "kafka", "host": "h"}')
    looked_up = []
    real = condition_module.airflow_connection
    monkeypatch.setattr(condition_module, "airflow_connection", lambda name: (looked_up.append(name), real(name))[1])
    found_connection = asyncio.run(condition_module.in_thread(lambda: connection("broker")))
    assert (found_connection.host, looked_up) == ("h", ["broker"])


@pytest.mark.parametrize("seed", range(10))
def test_lost_duplicated_and_reordered_events_change_nothing(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """
    A watcher dies at random, a scheduler loses, duplicates and reorders its events, and runs die.

    Each range is still read exactly once.
    """
    from airflow_provider_streamsem import MicroBatchOperator
    from airflow_provider_streamsem.spark import spark_engine as spark
    from tests.operators.task_calls import context

    rng = random.Random(seed)
    is_dying = [False]

    def step(name: str) -> None:
        if is_dying[0] and name == "staged":
            raise Crash

    monkeypatch.setattr(spark, "SparkEngine", lambda **given: RowsEngine(step))
    spec = fixture.pipeline(limits=Limits(max_files=2))
    runs, events, undelivered = count(), 0, []

    def run_dag() -> None:
        """Run a DAG run that an event started. Retry it until it succeeds or its retries are used up."""
        task = MicroBatchOperator(task_id="t", pipeline=spec, drain=rng.random() < 0.5)
        run_id = f"asset_triggered__{next(runs)}"
        for attempt in range(1, 3):
            is_dying[0] = rng.random() < 0.3
            try:
                task.execute(context(run_id=run_id, try_number=attempt))
                return
            except Crash:
                continue

    def receive(listener: Listener, seconds: float) -> bool:
        nonlocal events
        event = listener.next(seconds)
        events += event is not None
        if event is not None:
            undelivered.extend([event] * rng.choice([0, 1, 1, 2]))
        return event is not None

    for _ in range(6):
        with listening(watch(spec)) as listener:
            for _ in range(rng.randint(1, 2)):
                fixture.arrive(rng.randint(0, 3))
                receive(listener, 0.15)
                rng.shuffle(undelivered)
                while undelivered and rng.random() < 0.6:
                    undelivered.pop()
                    run_dag()
    rng.random = lambda: 1.0  # type: ignore[method-assign]  # no process dies from here on
    with listening(watch(spec, min_rows=1, max_delay=1)) as listener:
        while lag(spec).lag:  # events that started no run are emitted again, until there is no lag
            assert receive(listener, 20)
            run_dag()
    assert events
    fixture.check()
    read = [(outcome.version, plan.ranges["files"]) for outcome, plan in committed(fixture)]
    assert [start for _, (start, _) in read] == [0, *[end for _, (_, end) in read]][: len(read)]
    assert read[-1][1][1] == fixture.made


def committed(fixture: PipelineFixture) -> list[Any]:
    versions = []
    for version in fixture.opened().versions(newest_first=False):
        if version.outcome is not None and version.outcome.committed:
            versions.append((version.outcome, version.plan))
    return versions


def test_arguments_of_a_trigger_override_the_limits_of_its_pipeline(tmp_path: Path) -> None:
    from airflow_provider_streamsem import Limits
    from airflow_provider_streamsem.readers.conditions import of_spec_text

    fixture = PipelineFixture(tmp_path)

    def limits(pipeline: Pipeline, **given: Any) -> tuple[int | None, int | None]:
        trigger_limits = of_spec_text(OffsetRangeTrigger(pipeline, **given).pipeline).limits
        return trigger_limits.min_rows, trigger_limits.max_delay_s

    own = fixture.pipeline(limits=Limits(min_rows=1000, max_delay_s=900))
    assert limits(own) == (1000, 900)
    assert limits(own, max_delay=60) == (1000, 60)
    assert limits(own, min_rows=10) == (10, 900)
    assert limits(fixture.pipeline()) == (1, 300)
    assert limits(fixture.pipeline(), max_delay=60) == (1, 60)
    assert limits(fixture.pipeline(), min_rows=10) == (10, 300)
