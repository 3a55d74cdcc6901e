"""Statistics, spans and log fields, each through the library that Airflow uses to produce them."""

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

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import COMMON_TAGS, STATS, StatsListener
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.rollback import rollback
from airflow_provider_streamsem.telemetry import listening
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, die

pytestmark = pytest.mark.airflow
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "observability.md"
TAGS = {"dag_id": "d", "task_id": "t", "pipeline": "world"}
Emitted = list[tuple[str, str, float, dict[str, str]]]


@pytest.fixture
def emitted() -> Iterator[Emitted]:
    """Collect the calls to the backend of Airflow's statistics: (kind, name, value, tags)."""
    calls: Emitted = []

    class Backend:
        def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: Any = None) -> None:
            calls.append(("counter", stat, count, dict(tags)))

        def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False, *, tags: Any = None) -> None:
            calls.append(("gauge", stat, value, dict(tags)))

        def timing(self, stat: str, dt: float, *, tags: Any = None) -> None:
            calls.append(("timer", stat, dt, dict(tags)))

    try:
        from airflow.sdk.observability.stats import Stats
    except ImportError:  # Airflow 3.1
        from airflow.stats import Stats
    stats: Any = Stats
    if (
        type(Stats) is not type
    ):  # before Airflow 3.3 this is a class, and its metaclass creates the backend once per process
        stats.instance, stats._instance_pid = Backend(), os.getpid()
        yield calls
        stats.instance = None
        return
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    stats.initialize(factory=Backend, export_legacy_names=True)
    yield calls
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


def run_with_stats(fixture: PipelineFixture, *arguments: Any, **named: Any) -> None:
    with listening(StatsListener(TAGS, "files")):
        fixture.run(*arguments, **named)


def sums(emitted: Emitted) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for kind, name, value, _ in emitted:
        if kind == "counter":
            totals[name.removeprefix("streamsem.")] += value  # type: ignore[assignment]
    return dict(totals)


def test_statistics_of_a_run_match_its_outcomes(fixture: PipelineFixture, emitted: Emitted) -> None:
    fixture.arrive(5, bad_lines=1)
    run_with_stats(fixture, "a", drain=True)
    view = fixture.opened().view()
    files = fixture.opened().files()
    totals = {name: n for name, n in sums(emitted).items() if not name.startswith("requests.")}
    assert totals == {
        "rows.read": view.counts["read"],
        "rows.quarantined": 5,
        "rows.written": 15,
        "bytes.written": sum(Path(file.path).stat().st_size for file in files),
        "batches.committed": 3,
        "attempts.started": 3,
    }
    assert [value for _, name, value, _ in emitted if name == "streamsem.lag"] == [5, 3, 3, 1, 1, 0]


def test_rows_that_the_predicate_drops_are_counted(emitted: Emitted) -> None:
    from airflow_provider_streamsem.telemetry import VersionClosed

    event = VersionClosed(
        version=0, kind="batch", attempt_id="a", mine=True, lost=False, result="commit", ranges={}, next={}, counts={"filtered": 4},
        outputs={}, schemas={}, failed_gates=(), duration_ms=7,
    )  # fmt: skip
    StatsListener(TAGS, "files")(event)
    assert sums(emitted) == {"batches.committed": 1, "rows.filtered": 4}
    assert ("timer", "streamsem.batches.duration", 7, TAGS) in emitted


def test_aborted_version_is_not_counted_as_a_committed_batch(fixture: PipelineFixture, emitted: Emitted) -> None:
    fixture.arrive(2)
    fixture.dies("a")
    (fixture.root / "in" / "00000.json").unlink()
    run_with_stats(fixture, "a", pipeline=fixture.pipeline(on_data_loss="record_gap"))
    totals = sums(emitted)
    assert (fixture.opened().head, totals["batches.committed"], totals["rows.read"]) == (1, 1, 3)
    assert "attempts.lost" not in totals
    assert [name for _, name, _, _ in emitted].count("streamsem.batches.duration") == 1


def test_rollback_is_not_counted_as_a_committed_batch(fixture: PipelineFixture, emitted: Emitted) -> None:
    fixture.arrive(4)
    run_with_stats(fixture, "a", drain=True)
    before = sums(emitted)
    with listening(StatsListener(TAGS, "files")):
        rollback(fixture.pipeline(), 0, log=fixture.log())
    after = sums(emitted)
    assert {name for name in after if after[name] != before.get(name) and not name.startswith("requests.")} == set()


def test_version_that_another_process_committed_is_counted_only_there(
    fixture: PipelineFixture, emitted: Emitted
) -> None:
    def other() -> None:
        contextvars.Context().run(run_with_stats, fixture, "a")

    fixture.arrive(1)
    run_with_stats(fixture, "a", store=BeforeOutcome(fixture.store, other))
    totals = sums(emitted)
    assert (totals["batches.committed"], totals["rows.written"], totals["attempts.adopted"]) == (1, 3, 1)
    assert "attempts.lost" not in totals


WITHOUT_RULES = ("streamsem.rows.filtered", "streamsem.rows.dropped", "streamsem.rows.failed", "streamsem.gates.failed")
"""The statistics that other tests cover, because the pipeline of this one has neither a predicate nor rules."""


def test_rules_and_gates_that_rows_break_are_counted(emitted: Emitted) -> None:
    from airflow_provider_streamsem.telemetry import VersionClosed

    counts = {"dropped": 2, "failed_records.amount > 0": 3, "failed_rows.out.id is set": 1, "failed_rows.out.other": 0}
    event = VersionClosed(
        version=0, kind="batch", attempt_id="a", mine=True, lost=False, result="commit", ranges={}, next={}, counts=counts,
        outputs={}, schemas={}, failed_gates=("out has 1 rows, and min_rows is 2",), duration_ms=7,
    )  # fmt: skip
    StatsListener(TAGS, "files")(event)
    assert sums(emitted) == {"batches.committed": 1, "rows.dropped": 2, "rows.failed": 4, "gates.failed": 1}
    rules = {tags["rule"]: value for _, name, value, tags in emitted if name == "streamsem.rows.failed"}
    assert rules == {"amount_0": 3, "out.id_is_set": 1}


def test_every_statistic_is_emitted_as_declared(fixture: PipelineFixture, emitted: Emitted, tmp_path: Path) -> None:
    def abort_version() -> None:
        opened = fixture.opened()
        abort(opened.log, opened.record, 1, reason="an operator aborted first")

    fixture.arrive(1, bad_lines=1)
    with pytest.raises(Crash):
        run_with_stats(fixture, "a", store=BeforeOutcome(fixture.store, die))
    run_with_stats(fixture, "a", store=FaultyStore(fixture.store, 3, Fault.LOST_REPLY))
    fixture.arrive(1)
    run_with_stats(fixture, "b", store=BeforeOutcome(fixture.store, abort_version))
    tags_of_stats = {}
    for kind, name, value, tags in emitted:
        assert kind == STATS[name].kind
        assert value or kind != "counter"
        assert {name: tags[name] for name in COMMON_TAGS} == TAGS
        tags_of_stats[name] = tuple(tag for tag in tags if tag not in COMMON_TAGS)
    assert tags_of_stats == {name: stat.tags for name, stat in STATS.items() if name not in WITHOUT_RULES}
    assert {t["phase"] for _, n, _, t in emitted if n == "streamsem.phases.duration"} == {
        "run", "plan", "stage", "collect", "commit",
    }  # fmt: skip
    totals = sums(emitted)
    assert (totals["attempts.adopted"], totals["attempts.lost"], totals["requests.unknown"]) == (1, 1, 1)


def test_statistic_names_fit_every_backend_of_airflow() -> None:
    for name in STATS:
        assert re.fullmatch(r"streamsem(\.[a-z]+)+", name)
        assert len("airflow." + name) <= 63


def test_documented_statistics_match_the_code() -> None:
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


def test_phases_are_spans_nested_under_the_task_span(fixture: PipelineFixture, spans: Any) -> None:
    from opentelemetry import trace

    fixture.arrive(1)
    with trace.get_tracer("airflow").start_as_current_span("task"), listening(SpansListener()):
        fixture.run("a")
    finished = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in finished}
    parents = {(span.name, names.get(span.parent.span_id)) for span in finished if span.parent}
    assert parents == {
        ("streamsem.run", "task"), ("streamsem.plan", "streamsem.run"), ("streamsem.stage", "streamsem.run"),
        ("streamsem.collect", "streamsem.stage"), ("streamsem.commit", "streamsem.run"),
    }  # fmt: skip
    commit = next(span for span in finished if span.name == "streamsem.commit")
    outcome = fixture.log().outcome(0) or pytest.fail("no outcome")
    assert dict(commit.attributes) == {
        "streamsem.pipeline": "world", "streamsem.run_key": "a", "streamsem.version": 0, "streamsem.attempt_id": outcome.attempt_id,
        "streamsem.result": "commit", "streamsem.lost": False,
    }  # fmt: skip


def test_span_of_a_failed_phase_has_the_error_without_values_or_traceback(fixture: PipelineFixture, spans: Any) -> None:
    fixture.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise DataError("the rows do not fit; nothing became visible", value="hunter2") from ValueError("hunter2")

    with listening(SpansListener()), pytest.raises(DataError):
        fixture.run("a", pipeline=fixture.pipeline(transform=secret))
    stage = next(span for span in spans.get_finished_spans() if span.name == "streamsem.stage")
    (event,) = stage.events
    assert dict(event.attributes) == {
        "exception.type": "DataError", "exception.message": "the rows do not fit; nothing became visible",
    }  # fmt: skip
    assert not stage.status.is_ok
    assert "hunter2" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_span_of_a_killed_phase_ends(fixture: PipelineFixture, spans: Any) -> None:
    from opentelemetry import trace

    fixture.arrive(1)
    with listening(SpansListener()):
        fixture.dies("a")
    assert {span.name for span in spans.get_finished_spans()} == {"streamsem.plan", "streamsem.stage", "streamsem.run"}
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_every_line_of_a_task_log_has_the_fields_for_any_logger(tmp_path: Path) -> None:
    """Use Airflow's own configuration of a task's log, with JSON lines as its supervisor writes them."""
    code = textwrap.dedent(f"""
        import io, logging, pathlib, sys
        import structlog
        from airflow.sdk.log import configure_logging
        from airflow_provider_streamsem.observability.logs import LogFieldsListener
        from airflow_provider_streamsem.telemetry import listening
        from tests.pipeline_fixture import PipelineFixture

        def transform(rows):
            logging.getLogger("user").info("by stdlib")
            structlog.get_logger("user").info("by structlog")
            return rows

        configure_logging(json_output=True, log_level="INFO", output=sys.stdout.buffer)
        fixture = PipelineFixture(pathlib.Path({str(tmp_path)!r}))
        fixture.arrive(1)
        with listening(LogFieldsListener()):
            fixture.run("a", pipeline=fixture.pipeline(transform=transform))
        logging.getLogger("user").info("after the run")
    """)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    names = ("pipeline", "version", "attempt_id")
    fields = {line["event"].split(" in ")[0]: {k: line[k] for k in names if k in line} for line in lines}
    attempt = fields["by stdlib"]["attempt_id"]
    assert attempt
    of_the_attempt = {"pipeline": "world", "version": 0, "attempt_id": attempt}
    assert fields["by stdlib"] == fields["by structlog"] == fields["version 0 committed"] == of_the_attempt
    assert fields["version 0 planned: files [0, 1)"] == {"pipeline": "world", "version": 0}
    assert fields["after the run"] == {}
