"""Emits Airflow metrics of a run. :data:`STATS` lists their names, kinds and tags, as does ``docs/reference/observability.md``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Literal

from airflow_provider_streamsem.pipeline.versions.report import broken_rules
from airflow_provider_streamsem.protocol.offsets import Ranges, length
from airflow_provider_streamsem.telemetry import (
    Adopted,
    Event,
    LogRequest,
    PhaseEnded,
    PhaseStarted,
    SourcePolled,
    VersionClosed,
)

_NO_TAG = re.compile(r"[^A-Za-z0-9_.-]+")
"""What backends of metrics do not accept in the value of a tag."""
COMMON_TAGS = ("dag_id", "task_id", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """
    The definition of a metric.

    :param tags: names of its tags, in addition to :data:`COMMON_TAGS`
    :param meaning: a description with the unit, for the documentation
    """

    name: str
    kind: Literal["counter", "gauge", "timer"]
    tags: tuple[str, ...] = ()
    meaning: str


STATS = {
    stat.name: stat
    for stat in (
        Stat(name="streamsem.rows.read", kind="counter", meaning="records that committed batches read"),
        Stat(name="streamsem.rows.filtered", kind="counter", meaning="records of committed batches that the pipeline's `where` dropped"),
        Stat(name="streamsem.rows.quarantined", kind="counter", meaning="records of committed batches that could not be parsed, or that a rule quarantined"),
        Stat(name="streamsem.rows.dropped", kind="counter", meaning="records of committed batches that a rule of the pipeline dropped"),
        Stat(name="streamsem.rows.failed", kind="counter", tags=("rule",), meaning="records and rows of committed batches that break an expectation"),
        Stat(name="streamsem.gates.failed", kind="counter", meaning="conditions of gates that committed batches do not satisfy"),
        Stat(name="streamsem.rows.written", kind="counter", tags=("sink",), meaning="rows that committed batches wrote"),
        Stat(name="streamsem.bytes.written", kind="counter", tags=("sink",), meaning="bytes of the files that committed batches wrote"),
        Stat(name="streamsem.batches.committed", kind="counter", meaning="versions with rows that this process committed"),
        Stat(
            name="streamsem.batches.duration",
            kind="timer",
            meaning="milliseconds from a version's plan to its commit, across all attempts",
        ),
        Stat(
            name="streamsem.phases.duration",
            kind="timer",
            tags=("phase",),
            meaning="milliseconds of each phase: `run`, `plan`, `stage`, `collect`, `commit`, `publish`",
        ),
        Stat(
            name="streamsem.lag",
            kind="gauge",
            tags=("unit",),
            meaning="items between the committed offsets and the source's end (in a drain: its target), when the run plans and when it closes a version",
        ),
        Stat(name="streamsem.attempts.started", kind="counter", meaning="attempts that this process started"),
        Stat(name="streamsem.attempts.adopted", kind="counter", meaning="complete attempts of other processes that this run committed unchanged"),
        Stat(name="streamsem.attempts.lost", kind="counter", meaning="versions that another process closed first, with another attempt or result"),
        Stat(name="streamsem.requests.answered", kind="counter", tags=("request",), meaning="requests to the log whose result is known: `put`, `get`, `list`"),
        Stat(name="streamsem.requests.unknown", kind="counter", tags=("request",), meaning="requests to the log whose result is unknown; they are sent again"),
    )
}  # fmt: skip


class StatsListener:
    """
    A listener that emits the metrics in :data:`STATS`.

    :param tags: tag → value for every metric
    :param unit: unit of the source's items, which is a tag of ``streamsem.lag``
    :param items_in: counts the items of ranges
    """

    def __init__(self, tags: Mapping[str, str], unit: str, items_in: Callable[[Ranges], int] = length) -> None:
        self._tags = dict(tags)
        self._unit = unit
        self._items_in = items_in
        self._phase_starts: list[float] = []
        self._last_poll: SourcePolled | None = None
        self._requests: Counter[tuple[str, bool]] = Counter()

    @cached_property
    def _stats(self) -> Any:
        try:
            from airflow.sdk.observability.stats import Stats
        except ImportError:  # Airflow 3.1
            from airflow.stats import Stats
        return Stats

    def __call__(self, event: Event) -> None:
        """Emit the metrics of an event. Requests are counted, and their metrics are emitted when the run ends."""
        if isinstance(event, LogRequest):
            self._requests[event.request, event.unknown] += 1
        elif isinstance(event, PhaseStarted):
            self._phase_starts.append(perf_counter())
            if event.phase == "stage":
                self._emit("streamsem.attempts.started", 1)
        elif isinstance(event, PhaseEnded):
            self._emit(
                "streamsem.phases.duration", (perf_counter() - self._phase_starts.pop()) * 1000, phase=event.phase
            )
            if event.phase == "run":
                self._emit_requests()
        elif isinstance(event, SourcePolled):
            self._last_poll = event
            self._emit("streamsem.lag", event.behind(event.committed, self._items_in), unit=self._unit)
        elif isinstance(event, Adopted):
            self._emit("streamsem.attempts.adopted", 1)
        elif isinstance(event, VersionClosed):
            self._emit_closed(event)

    def _emit_closed(self, event: VersionClosed) -> None:
        self._emit("streamsem.attempts.lost", int(event.lost))
        if self._last_poll is not None:
            self._emit("streamsem.lag", self._last_poll.behind(event.next, self._items_in), unit=self._unit)
        if not event.mine or event.result != "commit" or not event.has_rows:
            return
        self._emit("streamsem.batches.committed", 1)
        self._emit("streamsem.batches.duration", event.duration_ms)
        for name in ("read", "filtered", "quarantined", "dropped"):
            self._emit(f"streamsem.rows.{name}", event.counts.get(name, 0))
        for name in broken_rules(event.counts):
            self._emit("streamsem.rows.failed", event.counts[name], rule=_NO_TAG.sub("_", name.partition(".")[2]))
        self._emit("streamsem.gates.failed", len(event.failed_gates))
        for sink, output in event.outputs.items():
            self._emit("streamsem.rows.written", output.rows, sink=sink)
            self._emit("streamsem.bytes.written", output.bytes, sink=sink)

    def _emit_requests(self) -> None:
        for (request, unknown), count in sorted(self._requests.items()):
            self._emit(f"streamsem.requests.{'unknown' if unknown else 'answered'}", count, request=request)
        self._requests.clear()

    def _emit(self, name: str, value: float, **tags: str) -> None:
        stat = STATS[name]
        all_tags = {**self._tags, **{tag: tags[tag] for tag in stat.tags}}
        if stat.kind == "gauge":
            self._stats.gauge(name, value, tags=all_tags)
        elif stat.kind == "timer":
            self._stats.timing(name, value, tags=all_tags)
        elif value:
            self._stats.incr(name, value, tags=all_tags)
