"""
What sensors wait for: each condition is one question to the source and the log, asked without writing anything.

A condition travels to the triggerer as JSON text. Its names there are for ever: a task that was deferred before an upgrade is resumed after it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_streamsem.batch.location import located
from airflow_provider_streamsem.batch.pipeline import Pipeline, from_json
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import keys, offsets
from airflow_provider_streamsem.protocol.codec import canonical, plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.procedures import Answered, Ready
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.readers.waiting import dry_run, waiting
from airflow_provider_streamsem.sources.contract import Expiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a condition is met, and what was seen: small JSON, which becomes the sensor's XCom."""

    met: bool
    seen: Json


class Condition(Protocol):
    """Something to wait for. Fields are JSON, or a :class:`Pipeline`."""

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """Ask once. Blocks while store and source answer; writes nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAvailable:
    """A run of ``pipeline`` that starts now would find work; its limits say when few rows are left to wait."""

    pipeline: Pipeline

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """Plan the next batch, dry."""
        found = waiting(self.pipeline, clock=clock)
        return Finding(met=found.is_due, seen=found.to_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted:
    """
    One of: ``version`` is committed; the run ``run_key`` is done; all offsets below ``offsets`` are committed.
    Looked for in the log at ``log``, or in that of ``pipeline``.

    A partition of ``offsets`` may be named without the id that stands after its ``@``.
    """

    log: str = ""
    pipeline: Pipeline | None = None
    version: int | None = None
    run_key: str | None = None
    offsets: Offsets | None = None

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """
        Look into the log. Where there is none yet, nothing is committed yet.

        :raises InvalidError: the version was aborted, so waiting for it would never end
        """
        if self.pipeline is None:
            return self._look(self.log, clock)
        with located(self.pipeline) as pipeline:
            return self._look(pipeline.log, clock)

    def _look(self, url: str, clock: Clock) -> Finding:
        log = open_commit_log(url, clock=clock)
        record = log.read_pipeline()
        if record is None:
            return Finding(met=False, seen={"log": url, "version": -1})
        told = {"pipeline": record.name, "log": url}
        if self.version is not None:
            found = self._of_version(log, self.version)
        elif self.run_key is not None:
            found = self._of_run(log, log.find_head(), self.run_key)
        else:
            found = self._of_offsets(log.find_head(), self.offsets or {})
        return Finding(met=found.met, seen={**told, **found.seen})

    def _of_version(self, log: CommitLog, version: int) -> Finding:
        found = log.outcome(version)
        if found is None:
            return Finding(met=False, seen={"version": version})
        if not found[0].committed:
            what = "the version was closed by an abort and will never be committed; a later version reads its range"
            raise InvalidError(what, log=log.store.url, version=version, reason=found[0].reason)
        return Finding(met=True, seen=_told(found[0]))

    @staticmethod
    def _of_run(log: CommitLog, head: Head, run_key: str) -> Finding:
        # An open version of another run says nothing of this one; if it is this one's, its pointer leads there.
        closed = replace(head, plan=None, plan_sha="", owes=False)
        position = log.locate(run_key, closed)
        if not isinstance(position, Answered):
            return Finding(met=False, seen={"run_key": run_key, "version": head.closed})
        return Finding(met=True, seen={"run_key": run_key, **_told(position.outcome)})

    @staticmethod
    def _of_offsets(head: Head, upto: Offsets) -> Finding:
        named = {name: [p for p in head.next if name in (p, p.partition("@")[0])] for name in upto}
        several = sorted(p for found in named.values() if len(found) > 1 for p in found)
        if several:
            what = "a topic was deleted and created again, and its offsets are those of another topic: name the topic with its id"
            raise InvalidError(what, accepted=several)
        committed = {name: max((head.next[p] for p in found), default=0) for name, found in named.items()}
        return Finding(met=offsets.reached(committed, upto), seen={"version": head.closed, "next": committed})


def _told(outcome: Outcome) -> dict[str, Any]:
    return {"version": outcome.version, "counts": plain(outcome.counts), "outcome": keys.outcome(outcome.version)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """At most ``max_lag`` items of the source wait, and none that came more than ``max_age_s`` seconds ago; an absent bound is not asked for."""

    pipeline: Pipeline
    max_lag: int | None = None
    max_age_s: int | None = None

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """Ask the source what lies behind the committed offsets."""
        with located(self.pipeline) as pipeline:
            return self._look(pipeline, clock)

    def _look(self, pipeline: Pipeline, clock: Clock) -> Finding:
        dry = dry_run(pipeline, clock=clock)
        start, now_ms = dry.head.next, clock.now_ms()
        lag = dry.planner.lag(start)
        too_old = 0 if self.max_age_s is None else dry.planner.unread_before(start, now_ms - self.max_age_s * 1000)
        last = dry.head.outcome
        is_within = self.max_lag is None or lag <= self.max_lag
        return Finding(
            met=is_within and not too_old and not dry.is_new,
            seen={
                "pipeline": pipeline.name,
                "log": pipeline.log,
                "version": dry.head.closed,
                "lag": lag,
                "too_old": too_old,
                "unit": pipeline.source.unit,
                "last_commit_age_ms": None if last is None else max(0, now_ms - last.decided_at_ms),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """
    The source has lost unread items, or will within ``within_s`` seconds, or fewer than ``records`` items that were read lie before the first unread one.

    :raises InvalidError: the source loses nothing by itself
    """

    pipeline: Pipeline
    within_s: int | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pipeline.source, Expiring):
            what = "this source keeps its items until somebody removes them: there is no retention to wait for"
            raise InvalidError(what, pipeline=self.pipeline.name, source=type(self.pipeline.source).__name__)

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """Ask the source how near retention is to the committed offsets."""
        with located(self.pipeline) as pipeline:
            return self._look(pipeline, clock)

    def _look(self, pipeline: Pipeline, clock: Clock) -> Finding:
        dry = dry_run(pipeline, clock=clock)
        source = pipeline.source
        assert isinstance(source, Expiring)
        within_ms = None if self.within_s is None else self.within_s * 1000
        found = source.expiry(dry.head.next, within_ms=within_ms, now_ms=clock.now_ms())
        is_near = self.records is not None and found.spare is not None and found.spare < self.records
        told = {"pipeline": pipeline.name, "log": pipeline.log, "version": dry.head.closed}
        return Finding(
            met=bool(found.lost or found.at_risk) or is_near,
            seen={**told, **plain(found), "unit": pipeline.source.unit},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeedsItsTask:
    """
    A run that a driver elsewhere works on is done, or cannot go on without its task: nothing is planned for it, or no step of its version was seen for
    ``patience_s`` seconds, so that the driver is taken for lost. ``seen["stalled"]`` tells the last.

    :param since_ms: when the driver was submitted: the version may have been open for long before
    """

    pipeline: Pipeline
    run_key: str
    patience_s: int
    since_ms: int = 0

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> Finding:
        """Look into the log."""
        with located(self.pipeline) as pipeline:
            log = open_commit_log(pipeline.log, clock=clock)
            record = log.read_pipeline()
            if record is None:
                return Finding(met=True, seen={"run_key": self.run_key, "version": -1, "stalled": False})
            head = log.find_head()
            position = log.locate(self.run_key, head)
        told = {"run_key": self.run_key, "version": head.closed}
        if isinstance(position, Answered) or (isinstance(position, Ready) and position.j == 0):
            return Finding(met=True, seen={**told, "stalled": False})
        moments = [self.since_ms, 0 if head.plan is None else head.plan.planned_at_ms]
        moments.append(0 if head.outcome is None else head.outcome.decided_at_ms)
        stalled = clock.now_ms() - max(moments) > self.patience_s * 1000
        return Finding(met=stalled, seen={**told, "stalled": stalled})


_NAMES: Mapping[str, Any] = {
    "offsets_available": OffsetsAvailable,
    "batch_committed": BatchCommitted,
    "freshness": Freshness,
    "retention": Retention,
    "run_needs_its_task": RunNeedsItsTask,
}


def spec_text(pipeline: Pipeline) -> str:
    """A pipeline's spec as canonical JSON text, without its transform: nothing that only looks needs it."""
    return canonical(pipeline.without_transform()).decode()


def of_spec_text(text: str) -> Pipeline:
    """The pipeline of :func:`spec_text`."""
    return from_json(json.loads(text), where="a pipeline on its way to the triggerer")


def to_text(condition: Condition) -> str:
    """A condition as JSON text, the same for equal conditions in every process."""
    name = next(name for name, cls in _NAMES.items() if type(condition) is cls)
    fields = {f.name: getattr(condition, f.name) for f in dataclasses.fields(condition)}  # type: ignore[arg-type]
    if fields.get("pipeline") is not None:
        fields["pipeline"] = spec_text(fields["pipeline"])
    return canonical({"condition": name, **plain(fields)}).decode()


def of_text(text: str) -> Condition:
    """The condition of :func:`to_text`."""
    given = json.loads(text)
    if given.get("pipeline") is not None:
        given["pipeline"] = of_spec_text(given["pipeline"])
    found: Condition = _NAMES[given.pop("condition")](**given)
    return found
