"""
Conditions that sensors wait for. A check reads the log and, for most conditions, the source. It writes nothing.

A deferred sensor passes its condition to the triggerer as JSON text. The names in that JSON must never change, because a task may be deferred before an
upgrade and resume after it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.partitions import SOURCE_TIME
from airflow_provider_streamsem.pipeline.run.plan_interval import parse_interval
from airflow_provider_streamsem.pipeline.spec.location import located
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json
from airflow_provider_streamsem.protocol import keys, offsets
from airflow_provider_streamsem.protocol.codec import canonical, plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.procedures import Ready, RunComplete
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead, remains, without_pending
from airflow_provider_streamsem.readers.waiting import dry_run, waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """
    The result of one check of a condition.

    :param met: whether the condition is met
    :param observed: the observed values as a JSON object, which becomes the sensor's XCom
    """

    met: bool
    observed: Json


class Condition(Protocol):
    """Protocol of a condition: a dataclass whose fields are JSON values, or a :class:`Pipeline` in the field ``pipeline``."""

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """
        Check the condition once. The method blocks until the store and the source respond, and writes nothing.

        :raises InvalidError: the condition can never be met
        :raises StreamsemError: the log or the source cannot be read
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAvailable:
    """
    Met if a run of ``pipeline`` that starts now would find work.

    With ``limits.min_rows``, a run leaves fewer rows for a later run until ``limits.max_delay_s`` has passed. See
    :class:`airflow_provider_streamsem.readers.waiting.Waiting`.
    """

    pipeline: Pipeline

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """Plan the next batch without writing."""
        result = waiting(self.pipeline, clock=clock)
        return CheckResult(met=result.is_due, observed=result.to_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted:
    """
    Met if a version is committed, a run is complete, or offsets are committed. Exactly one of ``version``, ``run_key`` and ``offsets`` is set.

    A committed version may still have pending publishes to sinks outside the log.

    :param log: URL of the log to read; not used if ``pipeline`` is set
    :param pipeline: the pipeline whose log is read
    :param version: the version that must be committed
    :param run_key: the key of the run that must be complete
    :param offsets: partition → offset. All offsets below it must be committed. A partition may be named without the topic id that follows ``@``
    """

    log: str = ""
    pipeline: Pipeline | None = None
    version: int | None = None
    run_key: str | None = None
    offsets: Offsets | None = None

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """
        Read the log. While the log does not exist, the condition is not met.

        :raises InvalidError: the version was aborted or rolled back, so it can never be visible. Or ``offsets`` names a topic without its id, and the topic
            was deleted and recreated
        """
        if self.pipeline is None:
            return self._check(self.log, clock)
        with located(self.pipeline) as pipeline:
            return self._check(pipeline.log, clock)

    def _check(self, url: str, clock: Clock) -> CheckResult:
        log = commit_log_at(url, clock=clock)
        record = log.read_pipeline()
        if record is None:
            return CheckResult(met=False, observed={"log": url, "version": -1})
        context = {"pipeline": record.name, "log": url}
        if self.version is not None:
            result = self._of_version(log, self.version)
        elif self.run_key is not None:
            result = self._of_run(log, log.find_head(), self.run_key)
        else:
            head = log.find_head()
            if isinstance(head, ClosedHead) and head.spec is None and record.fork is not None:
                head = dataclasses.replace(head, initial_offsets=record.fork.offsets)
            result = self._of_offsets(head, self.offsets or {})
        return CheckResult(met=result.met, observed={**context, **result.observed})

    def _of_version(self, log: CommitLog, version: int) -> CheckResult:
        stored = log.outcome(version)
        if stored is None:
            return CheckResult(met=False, observed={"version": version})
        if not stored.committed:
            summary = "the version was closed by an abort and will never be committed; a later version reads its range"
            raise InvalidError(summary, log=log.store.url, version=version, reason=stored.reason).advising(
                "wait for a later version, or for offsets."
            )
        newest = log.newest_head().outcome  # the listing may lag behind the version
        if newest is not None and not remains(version, log.remaining_versions(newest)):
            summary = "the version was rolled back, and will never be visible again; a later version reads its range"
            raise InvalidError(summary, log=log.store.url, version=version).advising(
                "wait for a later version, or for offsets."
            )
        return CheckResult(met=True, observed=_outcome_facts(stored))

    @staticmethod
    def _of_run(log: CommitLog, head: Head, run_key: str) -> CheckResult:
        # An open version of another run is irrelevant here, and the run's pointer leads to an open version of this run. So the open version is left out.
        position = log.locate(run_key, without_pending(head))
        if not isinstance(position, RunComplete):
            return CheckResult(met=False, observed={"run_key": run_key, "version": head.closed})
        return CheckResult(met=True, observed={"run_key": run_key, **_outcome_facts(position.outcome)})

    @staticmethod
    def _of_offsets(head: Head, upto: Offsets) -> CheckResult:
        partitions = {name: [p for p in head.next if name in (p, p.partition("@")[0])] for name in upto}
        ambiguous = sorted(p for matches in partitions.values() if len(matches) > 1 for p in matches)
        if ambiguous:
            summary = (
                "the log has offsets of several topics with this name, because the topic was deleted and recreated"
            )
            raise InvalidError(summary, accepted=ambiguous).advising("name the topic with its id.")
        committed = {name: max((head.next[p] for p in matches), default=0) for name, matches in partitions.items()}
        return CheckResult(met=offsets.reached(committed, upto), observed={"version": head.closed, "next": committed})


def _outcome_facts(outcome: Outcome) -> dict[str, Any]:
    return {"version": outcome.version, "counts": plain(outcome.counts), "outcome": keys.outcome(outcome.version)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComplete:
    """
    Met if a partition by event time is complete.

    With ``complete="source time"``, the condition is also met if the source has no unread record that arrived before the end of the partition, because no
    version is committed while nothing arrives.

    For a pipeline with intervals, the condition is met if its intervals cover a period of time.

    :param partition: the key of the partition, or its start as ISO 8601 text. For a pipeline with intervals: ``START/END`` as ISO 8601 times with a zone
    """

    pipeline: Pipeline
    partition: str

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """Read the newest outcome of the log. While the log does not exist, the condition is not met."""
        with located(self.pipeline) as pipeline:
            return self._check(pipeline, clock)

    def _check(self, pipeline: Pipeline, clock: Clock) -> CheckResult:
        partitions = pipeline.partitions
        if partitions is None and not pipeline.intervals:
            raise InvalidError("the pipeline has neither `partitions` nor `intervals`", pipeline=pipeline.name)
        log = commit_log_at(pipeline.log, clock=clock)
        outcome = _newest_published(log) if log.read_pipeline() is not None else None
        if partitions is None:
            return self._is_read(pipeline, outcome)
        start_ms, end_ms = partitions.bounds(self.partition)
        until_ms = None if outcome is None or outcome.complete is None else outcome.complete.until_ms
        observed = {
            "pipeline": pipeline.name,
            "log": pipeline.log,
            "version": -1 if outcome is None else outcome.version,
            "partition": partitions.key(start_ms),
            "complete_until_ms": until_ms,
        }
        is_met = until_ms is not None and until_ms >= end_ms
        if not is_met and until_ms is not None and partitions.complete == SOURCE_TIME and clock.now_ms() >= end_ms:
            dry = dry_run(pipeline, clock=clock)
            unread_ms = dry.planner.minimum_clock(dry.head.next)
            is_met = (unread_ms is None or unread_ms >= end_ms) and not dry.head.has_pending_publishes
        return CheckResult(met=is_met, observed=observed)

    def _is_read(self, pipeline: Pipeline, outcome: Outcome | None) -> CheckResult:
        wanted = parse_interval(self.partition)
        intervals = () if outcome is None else outcome.intervals
        observed = {
            "pipeline": pipeline.name,
            "log": pipeline.log,
            "version": -1 if outcome is None else outcome.version,
            "partition": str(wanted),
            "complete_until_ms": intervals[-1].end_ms if intervals else None,
        }
        is_met = any(each.start_ms <= wanted.start_ms and wanted.end_ms <= each.end_ms for each in intervals)
        return CheckResult(met=is_met, observed=observed)


def _newest_published(log: CommitLog) -> Outcome | None:
    """Return the newest outcome whose rows are in all sinks; ``None`` if there is none."""
    head = log.find_head()
    if head.has_pending_publishes:  # every version before it is published (I2)
        return log.outcome(head.closed - 1) if head.closed else None
    return head.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """
    Met if the log exists and each bound that is not ``None`` holds.

    :param max_lag: maximum number of uncommitted items, inclusive
    :param max_age_s: maximum age of an uncommitted item in seconds, inclusive
    :param until_ms: every item that arrived before this time is committed, in milliseconds since the epoch. Not met before this
        time, because more items may still arrive until then
    :param watermark_ms: the watermark after the newest version is at or above this time, in milliseconds since the epoch
    """

    pipeline: Pipeline
    max_lag: int | None = None
    max_age_s: int | None = None
    until_ms: int | None = None
    watermark_ms: int | None = None

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """Compare the end of the source with the committed offsets."""
        with located(self.pipeline) as pipeline:
            return self._check(pipeline, clock)

    def _check(self, pipeline: Pipeline, clock: Clock) -> CheckResult:
        dry = dry_run(pipeline, clock=clock)
        start, now_ms = dry.head.read_until, clock.now_ms()
        lag = dry.planner.lag(start, dry.head.hint)
        too_old = 0 if self.max_age_s is None else dry.planner.unread_before(start, now_ms - self.max_age_s * 1000)
        before = 0 if self.until_ms is None else dry.planner.unread_before(start, self.until_ms)
        last = dry.head.outcome
        watermark_ms = None if last is None else last.watermark_ms
        is_within = self.max_lag is None or lag <= self.max_lag
        is_past = (self.until_ms is None or now_ms >= self.until_ms) and (
            self.watermark_ms is None or (watermark_ms is not None and watermark_ms >= self.watermark_ms)
        )
        return CheckResult(
            met=is_within and is_past and not too_old and not before and not dry.is_new,
            observed={
                "pipeline": pipeline.name,
                "log": pipeline.log,
                "version": dry.head.closed,
                "lag": lag,
                "too_old": too_old,
                "before_until": before,
                "watermark_ms": watermark_ms,
                "unit": pipeline.source.unit,
                "version_age_ms": None if last is None else max(0, now_ms - last.decided_at_ms),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """
    Met if unread items of the source have expired, or will expire soon.

    The condition is met if the source has lost unread items, or if one of the two bounds below is reached.

    :param within_s: met if unread items expire within this many seconds; ``None``: not checked
    :param records: met if a partition holds fewer than this many items before its first unread item; ``None``: not checked. Only partitions that have already
        lost items are checked
    :raises InvalidError: the items of the source do not expire
    """

    pipeline: Pipeline
    within_s: int | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        if not self.pipeline.source.has_retention:
            summary = (
                "the items of this source have no retention, so they never expire, and this sensor would never succeed"
            )
            raise InvalidError(summary, pipeline=self.pipeline.name, source=type(self.pipeline.source).__name__)

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """Compare the retention of the source with the committed offsets."""
        with located(self.pipeline) as pipeline:
            return self._check(pipeline, clock)

    def _check(self, pipeline: Pipeline, clock: Clock) -> CheckResult:
        dry = dry_run(pipeline, clock=clock)
        source = pipeline.source
        within_ms = None if self.within_s is None else self.within_s * 1000
        expiry = source.expiry(dry.head.read_until, within_ms=within_ms, now_ms=clock.now_ms())
        is_near = self.records is not None and expiry.spare is not None and expiry.spare < self.records
        context = {"pipeline": pipeline.name, "log": pipeline.log, "version": dry.head.closed}
        return CheckResult(
            met=bool(expiry.lost or expiry.at_risk) or is_near,
            observed={**context, **plain(expiry), "unit": pipeline.source.unit},
        )


_QUIET_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverWait:
    """
    Met if a task that waits for its submitted driver must resume.

    The task must resume in four cases:

    * The run is complete.
    * Gates hold the open version, so the run cannot continue.
    * The log has changed since the submission, the run has closed no version and has none open, and the log has not changed for a minute: the driver may
      have found no records for the run. Until then it may be about to plan, and another driver would do the same work again.
    * The log has shown no progress for ``patience_s`` seconds. The task then treats the driver as lost, and ``observed["stalled"]`` is true.

    :param run_key: the key of the run
    :param patience_s: maximum time without progress in the log, in seconds
    :param since_ms: when the task submitted the driver, in milliseconds since the epoch. The version may have been open for a long time before that
    """

    pipeline: Pipeline
    run_key: str
    patience_s: int
    since_ms: int = 0

    def check(self, *, clock: Clock = SYSTEM_CLOCK) -> CheckResult:
        """Read the log. The progress is the newest of submission, plan and outcome."""
        with located(self.pipeline) as pipeline:
            log = commit_log_at(pipeline.log, clock=clock)
            record = log.read_pipeline()
            if record is None:
                return CheckResult(met=True, observed={"run_key": self.run_key, "version": -1, "stalled": False})
            head = log.find_head()
            position = log.locate(self.run_key, head)
            is_held = isinstance(head, OpenHead) and any(attempt.is_held for attempt in log.find_staged(head))
        context = {"run_key": self.run_key, "version": head.closed}
        if isinstance(position, RunComplete) or is_held:
            return CheckResult(met=True, observed={**context, "stalled": False})
        changed_ms = _last_change_ms(log, head)
        waited_s = (clock.now_ms() - max(self.since_ms, changed_ms)) / 1000
        stalled = waited_s > self.patience_s
        has_no_version = isinstance(position, Ready) and position.j == 0 and changed_ms > self.since_ms
        is_quiet = has_no_version and waited_s > min(_QUIET_S, self.patience_s)
        return CheckResult(met=stalled or is_quiet, observed={**context, "stalled": stalled and not is_quiet})


def _last_change_ms(log: CommitLog, head: Head) -> int:
    """Return the time of the newest plan, outcome or receipts; 0 if there are none."""
    if isinstance(head, OpenHead):
        return head.plan.planned_at_ms
    if head.outcome is None:
        return 0
    receipts = log.receipts(head.closed) if head.outcome.requires_receipts else None
    return max(head.outcome.decided_at_ms, 0 if receipts is None else receipts.published_at_ms)


_NAMES: Mapping[str, Any] = {
    "offsets_available": OffsetsAvailable,
    "batch_committed": BatchCommitted,
    "freshness": Freshness,
    "partition_complete": PartitionComplete,
    "retention": Retention,
    "run_needs_its_task": DriverWait,
}


def spec_text(pipeline: Pipeline) -> str:
    """Return the spec of a pipeline as canonical JSON text. The transform is left out, because conditions do not need it."""
    return canonical(pipeline.without_transform()).decode()


def of_spec_text(text: str) -> Pipeline:
    """
    Return the pipeline of a text that :func:`spec_text` produced.

    :raises InvalidError: this release cannot read the spec
    """
    return from_json(json.loads(text), where="the pipeline that was passed to the triggerer")


def to_text(condition: Condition) -> str:
    """Return a condition as canonical JSON text. Equal conditions have equal texts."""
    name = next(name for name, cls in _NAMES.items() if type(condition) is cls)
    fields = {f.name: getattr(condition, f.name) for f in dataclasses.fields(condition)}  # type: ignore[arg-type]
    if fields.get("pipeline") is not None:
        fields["pipeline"] = spec_text(fields["pipeline"])
    return canonical({"condition": name, **plain(fields)}).decode()


def of_text(text: str) -> Condition:
    """Return the condition of a text that :func:`to_text` produced."""
    fields = json.loads(text)
    if fields.get("pipeline") is not None:
        fields["pipeline"] = of_spec_text(fields["pipeline"])
    condition: Condition = _NAMES[fields.pop("condition")](**fields)
    return condition
