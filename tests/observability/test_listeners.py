"""Statistics, spans and log fields, each through the very library by which Airflow has them."""

from __future__ import annotations

import contextvars
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.batch import maintenance
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import COMMON_TAGS, STATS, StatsListener
from airflow_provider_streamsem.telemetry import heard_by
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.worlds import BeforeOutcome, World, die

pytestmark = pytest.mark.airflow
DOCS = Path(__file__).parents[2] / "docs" / "observability.md"
TAGS = {"dag_id": "d", "task_id": "t", "pipeline": "world"}
Emitted = list[tuple[str, str, float, dict[str, str]]]


@pytest.fixture
def emitted() -> Iterator[Emitted]:
    """What reaches the backend of Airflow's own statistics: (kind, name, value, tags)."""
    got: Emitted = []

    class Backend:
        def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: Any = None) -> None:
            got.append(("counter", stat, count, dict(tags)))

        def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False, *, tags: Any = None) -> None:
            got.append(("gauge", stat, value, dict(tags)))

        def timing(self, stat: str, dt: float, *, tags: Any = None) -> None:
            got.append(("timer", stat, dt, dict(tags)))

    try:
        from airflow.sdk.observability.stats import Stats
    except ImportError:  # Airflow 3.1
        from airflow.stats import Stats
    if (
        type(Stats) is not type
    ):  # before Airflow 3.3 a class whose metaclass makes the backend once a process, and keeps it
        Stats.instance, Stats._instance_pid = Backend(), os.getpid()
        yield got
        Stats.instance = None
        return
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    Stats.initialize(factory=Backend, export_legacy_names=True)
    yield got
    Stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


def heard(world: World, *arguments: Any, **named: Any) -> None:
    with heard_by(StatsListener(TAGS, "files")):
        world.run(*arguments, **named)


def sums(emitted: Emitted) -> dict[str, float]:
    found: Counter[str] = Counter()
    for kind, name, value, _ in emitted:
        if kind == "counter":
            found[name.removeprefix("streamsem.")] += value  # type: ignore[assignment]
    return dict(found)


def test_statistics_of_a_run_are_those_of_its_outcomes(world: World, emitted: Emitted) -> None:
    world.arrive(5, bad_lines=1)
    heard(world, "a", drain=True)
    view = world.opened().view()
    files = world.opened().files()
    counted = {name: n for name, n in sums(emitted).items() if not name.startswith("requests.")}
    assert counted == {
        "rows.read": view.counts["read"],
        "rows.quarantined": 5,
        "rows.written": 15,
        "bytes.written": sum(Path(file.path).stat().st_size for file in files),
        "batches.committed": 3,
        "attempts.staged": 3,
    }
    assert [value for _, name, value, _ in emitted if name == "streamsem.lag"] == [5, 3, 3, 1, 1, 0]


def test_rows_that_the_predicate_drops_are_counted(emitted: Emitted) -> None:
    from airflow_provider_streamsem.telemetry import Decided

    event = Decided(
        version=0, attempt_id="a", mine=True, lost=False, result="commit", ranges={}, next={}, counts={"filtered": 4}, outputs={}, schemas={}, duration_ms=7,
    )  # fmt: skip
    StatsListener(TAGS, "files")(event)
    assert sums(emitted) == {"batches.committed": 1, "rows.filtered": 4}
    assert ("timer", "streamsem.batches.duration", 7, TAGS) in emitted


def test_version_that_is_given_up_is_no_committed_batch(world: World, emitted: Emitted) -> None:
    world.arrive(2)
    world.dies("a")
    (world.root / "in" / "00000.json").unlink()
    heard(world, "a", pipeline=world.pipeline(on_data_loss="record_gap"))
    counted = sums(emitted)
    assert (world.opened().head, counted["batches.committed"], counted["rows.read"]) == (1, 1, 3)
    assert "attempts.lost" not in counted
    assert [name for _, name, _, _ in emitted].count("streamsem.batches.duration") == 1


def test_version_that_another_process_decided_is_counted_there_only(world: World, emitted: Emitted) -> None:
    def other() -> None:
        contextvars.Context().run(heard, world, "a")

    world.arrive(1)
    heard(world, "a", store=BeforeOutcome(world.store, other))
    counted = sums(emitted)
    assert (counted["batches.committed"], counted["rows.written"], counted["attempts.adopted"]) == (1, 3, 1)
    assert "attempts.lost" not in counted


def test_every_statistic_is_emitted_as_the_list_says(world: World, emitted: Emitted, tmp_path: Path) -> None:
    def abort() -> None:
        opened = world.opened()
        maintenance.abort(opened.log, opened.record, 1, reason="a person was faster")

    world.arrive(1, bad_lines=1)
    with pytest.raises(Crash):
        heard(world, "a", store=BeforeOutcome(world.store, die))
    heard(world, "a", store=FaultyStore(world.store, 3, Fault.LOST_REPLY))
    world.arrive(1)
    heard(world, "b", store=BeforeOutcome(world.store, abort))
    found = {}
    for kind, name, value, tags in emitted:
        assert kind == STATS[name].kind
        assert value or kind != "counter"
        assert {name: tags[name] for name in COMMON_TAGS} == TAGS
        found[name] = tuple(tag for tag in tags if tag not in COMMON_TAGS)
    assert found == {name: stat.tags for name, stat in STATS.items() if name != "streamsem.rows.filtered"}
    assert {t["phase"] for _, n, _, t in emitted if n == "streamsem.phases.duration"} == {
        "run", "plan", "stage", "collect", "decide",
    }  # fmt: skip
    counted = sums(emitted)
    assert (counted["attempts.adopted"], counted["attempts.lost"], counted["requests.unknown"]) == (1, 1, 1)


def test_names_fit_every_backend_of_airflow() -> None:
    for name in STATS:
        assert re.fullmatch(r"streamsem(\.[a-z]+)+", name)
        assert len("airflow." + name) <= 63


def test_documented_statistics_are_those_of_the_code() -> None:
    lines = [
        f"| `{stat.name}` | {stat.kind} | {', '.join(f'`{tag}`' for tag in stat.tags)} | {stat.meaning} |"
        for stat in STATS.values()
    ]
    assert [line for line in DOCS.read_text().splitlines() if line.startswith("| `streamsem.")] == lines


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_phases_are_spans_that_nest_under_the_task_span(world: World, spans: Any) -> None:
    from opentelemetry import trace

    world.arrive(1)
    with trace.get_tracer("airflow").start_as_current_span("task"), heard_by(SpansListener()):
        world.run("a")
    finished = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in finished}
    parents = {(span.name, names.get(span.parent.span_id)) for span in finished if span.parent}
    assert parents == {
        ("streamsem.run", "task"), ("streamsem.plan", "streamsem.run"), ("streamsem.stage", "streamsem.run"),
        ("streamsem.collect", "streamsem.stage"), ("streamsem.decide", "streamsem.run"),
    }  # fmt: skip
    decide = next(span for span in finished if span.name == "streamsem.decide")
    outcome, _ = world.log().outcome(0) or pytest.fail("no outcome")
    assert dict(decide.attributes) == {
        "streamsem.pipeline": "world", "streamsem.run_key": "a", "streamsem.version": 0, "streamsem.attempt_id": outcome.attempt_id,
        "streamsem.result": "commit", "streamsem.lost": False,
    }  # fmt: skip


def test_span_of_a_failed_phase_has_the_error_without_values_or_traceback(world: World, spans: Any) -> None:
    world.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise DataError("the rows do not fit; nothing became visible", value="hunter2") from ValueError("hunter2")

    with heard_by(SpansListener()), pytest.raises(DataError):
        world.run("a", pipeline=world.pipeline(transform=secret))
    stage = next(span for span in spans.get_finished_spans() if span.name == "streamsem.stage")
    (event,) = stage.events
    assert dict(event.attributes) == {
        "exception.type": "DataError", "exception.message": "the rows do not fit; nothing became visible",
    }  # fmt: skip
    assert not stage.status.is_ok
    assert "hunter2" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_span_of_a_killed_phase_ends(world: World, spans: Any) -> None:
    from opentelemetry import trace

    world.arrive(1)
    with heard_by(SpansListener()):
        world.dies("a")
    assert {span.name for span in spans.get_finished_spans()} == {"streamsem.plan", "streamsem.stage", "streamsem.run"}
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_every_line_of_a_task_log_has_the_fields_whoever_writes_it(tmp_path: Path) -> None:
    """Through Airflow's own configuration of a task's log, as its supervisor writes it: JSON lines."""
    code = textwrap.dedent(f"""
        import io, logging, pathlib, sys
        import structlog
        from airflow.sdk.log import configure_logging
        from airflow_provider_streamsem.observability.logs import LogFieldsListener
        from airflow_provider_streamsem.telemetry import heard_by
        from tests.worlds import World

        def transform(rows):
            logging.getLogger("user").info("by stdlib")
            structlog.get_logger("user").info("by structlog")
            return rows

        configure_logging(json_output=True, log_level="INFO", output=sys.stdout.buffer)
        world = World(pathlib.Path({str(tmp_path)!r}))
        world.arrive(1)
        with heard_by(LogFieldsListener()):
            world.run("a", pipeline=world.pipeline(transform=transform))
        logging.getLogger("user").info("after the run")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = ("pipeline", "version", "attempt_id")
    fields = {line["event"].split(" in ")[0]: {k: line[k] for k in names if k in line} for line in lines}
    attempt = fields["by stdlib"]["attempt_id"]
    assert attempt
    of_the_attempt = {"pipeline": "world", "version": 0, "attempt_id": attempt}
    assert fields["by stdlib"] == fields["by structlog"] == fields["version 0 committed"] == of_the_attempt
    assert fields["version 0 planned: files [0, 1)"] == {"pipeline": "world", "version": 0}
    assert fields["after the run"] == {}
