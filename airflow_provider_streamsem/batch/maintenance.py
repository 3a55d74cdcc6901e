"""What a person does to a log: close a version that cannot be staged, and delete what lost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text, whole
from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.opening import claim_datasets, find_record
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.publish import publishing, refuse_conflicts
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engines.dedup import STATE, state_files
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import invariants, keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.sources.contract import Planner, Source

logger = telemetry.log_of(__name__)

_NOTED_EACH = 500
"""versions after which vacuum notes how far it came: a task that is ended goes on there"""
_LATE_MS = 86_400_000
"""for how long after its decision a version is looked at again: an attempt of it may still run, and write"""


def abort(
    log: CommitLog, record: PipelineRecord, version: int, *, reason: str, source: Source | None = None
) -> Outcome:
    """
    Close an open version as an abort (W22). The range is planned anew by the next run; nothing of the version becomes visible.

    :param source: the pipeline's, so that what the plan knew of its ends is kept: of what is deleted there, only that says how far it went
    :returns: the outcome that is stored: a *commit* where an attempt was faster, which is then what happened
    :raises InvalidError: the version is not open
    """
    whole("version", version, least=0)
    text("reason", reason)
    head = log.find_head()
    if head.plan is None or head.plan.version != version:
        raise InvalidError(
            "only the open version can be aborted",
            given=version,
            open=None if head.plan is None else head.plan.version,
            newest_closed=head.closed,
            waits_for_receipts=head.owes,
        )
    planner = None if source is None else source.open(log.of_source(source.guarded()), head.outcome)
    stored = log.decide(head, aborting(log, head, reason=reason, planner=planner)).outcome
    assert stored is not None
    return stored


def aborting(log: CommitLog, head: Head, *, reason: str, planner: Planner | None) -> Outcome:
    """
    The abort of an open version: what was remembered is as it was before.

    :param planner: of the pipeline's source, so that what the plan of a batch knew of its ends is kept; ``None``: only what was known before it
    """
    plan, before = head.plan, head.outcome
    assert plan is not None
    source = None if before is None else before.source
    if planner is not None and plan.kind == "batch":
        planner.follow(before)
        source = planner.hint(plan, {})
    now_ms = log.clock.now_ms()
    return Outcome(
        version=plan.version,
        result="abort",
        plan=head.plan_sha,
        attempt_id=None,
        schemas={} if before is None else before.schemas,
        next=invariants.next_after(plan, before=head.next, committed=False),
        source=source,
        markers=head.markers,
        state=None if before is None else before.state,
        spec=plan.spec if before is None else before.spec,
        transform="" if before is None else before.transform,
        decided_at_ms=now_ms,
        duration_ms=max(0, now_ms - plan.planned_at_ms),
        reason=reason,
        nonce=log.clock.new_id(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What vacuum deleted, or would delete: ``attempts`` as ``(sink, version, attempt_id)``, ``state`` for what dedup remembered, and keys of the log."""

    attempts: tuple[tuple[str, int, str], ...]
    keys: tuple[str, ...]
    bytes: int


@on_its_log
def vacuum(
    pipeline: Pipeline, *, dry_run: bool = False, everything: bool = False, log: CommitLog | None = None
) -> Vacuumed:
    """
    Delete what losing attempts of closed versions left: files, then quarantined records, then manifests (V1 to V3); and rows that were staged for sinks
    outside the log, once their receipts are there (V4).

    Safe beside running writers: after a version's outcome exists, no other attempt of it can ever win. An attempt that still runs may write more; the next
    vacuum finds it. Versions that were closed more than a day before a vacuum are not looked at again (V6).

    :param pipeline: the user's own: only its datasets and its log are touched, never a place that something stored names (V5)
    :param everything: look at all versions, for what an attempt wrote that ran longer than a day after its version was closed
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: there is no log
    :raises ConflictError: the log belongs to another pipeline, or a dataset to another log; nothing was deleted
    :raises MarkerConflictError: a sink has a version that the log does not have; nothing was deleted
    """
    log = log or open_commit_log(pipeline.log)
    record = find_record(pipeline, log)
    if record is None:
        raise InvalidError("there is no log at this place", log=pipeline.log)
    head = log.find_head()  # refuses a log that was moved
    if head.closed < 0:  # nothing has lost, and a first run that died may have left its datasets unmarked
        return Vacuumed(attempts=(), keys=(), bytes=0)
    claim_datasets(pipeline, log, record, new=False)
    refuse_conflicts(pipeline, log, record.pipeline_uuid)
    places = [_Place(pipeline, name) for name in sorted(pipeline.sinks)]
    end = head.closed if head.owes else head.closed + 1
    noted = _noted(log)
    # A log that was restored may have fewer versions than its note says.
    begin = 0 if everything or noted > head.closed + 1 else noted
    remembered = None if pipeline.dedup is None else state_files(log.store.url)  # beside the very entries that are read
    attempts, stale = [], []
    size = 0
    for version in range(begin, head.closed + 1):
        lost = _Losers(log, version)
        for place in places:
            for attempt_id in place.spent(version, lost):
                attempts.append((place.name, version, attempt_id))
                size += place.sink.discard(version, attempt_id, dry_run=dry_run)
        if remembered is not None:
            for _, attempt_id in sorted(remembered.attempts(version)):
                if lost(attempt_id):
                    attempts.append((STATE, version, attempt_id))
                    size += remembered.discard(version, attempt_id, dry_run=dry_run)
        for prefix in (keys.quarantined(version), keys.attempts(version)):
            for stat in list(log.store.list(prefix)):
                if lost(_attempt_of(stat.key)[1]):
                    stale.append(stat.key)
                    size += stat.bytes
                    if not dry_run:
                        log.store.delete(stat.key)
        if not dry_run and version % _NOTED_EACH == _NOTED_EACH - 1:
            _note(log, _first_after(log, log.clock.now_ms() - _LATE_MS, begin, min(version + 1, end)))
    if not dry_run:
        _note(log, _first_after(log, log.clock.now_ms() - _LATE_MS, begin, end))
    return Vacuumed(attempts=tuple(attempts), keys=tuple(stale), bytes=size)


class _Place:
    """A sink, and which of its attempts have nothing that anybody may need."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self.name, self.sink = name, pipeline.sinks[name]
        # Staged files that are not the published ones serve only until the receipts are there.
        self._is_spent = self.sink.publishes and not publishing(pipeline, name).keeps_staged
        is_table = self.sink.publishes and not self._is_spent
        self._in_use = cache(publishing(pipeline, name).attempts_in_use) if is_table else set[tuple[int, str]]

    def spent(self, version: int, lost: _Losers) -> Iterator[str]:
        """The attempts of a closed version that can be deleted."""
        for _, attempt_id in sorted(self.sink.attempts(version)):
            if lost(attempt_id) and (version, attempt_id) in self._in_use():
                what = "sink %s: attempt %s of version %d lost by the log, and its files are in the table: vacuum leaves them"
                logger.warning(what, self.name, attempt_id, version)
            elif lost(attempt_id) or (self._is_spent and lost.log.receipts(version) is not None):
                yield attempt_id


def _noted(log: CommitLog) -> int:
    """Below which version an earlier vacuum has looked. A hint: it decides what is looked at, never what is deleted (V6)."""
    return max((_version_of(key) for key in log.list_keys(keys.VACUUMED, 1)), default=0)


def _note(log: CommitLog, below: int) -> None:
    """Keep this note alone."""
    if below != _noted(log):
        log.create(keys.vacuumed(below), canonical({"below": below}))
    for key in log.list_keys(keys.VACUUMED):
        if _version_of(key) != below:
            log.store.delete(key)


def _version_of(key: str) -> int:
    return keys.parse_newest_first(key) or 0


def _first_after(log: CommitLog, decided_ms: int, begin: int, end: int) -> int:
    """The first version from ``begin`` on that was decided after an instant; ``end`` where none was."""

    def is_after(version: int) -> bool:
        found = log.outcome(version)
        return found is None or found[0].decided_at_ms > decided_ms

    return bisect_left(range(end), True, lo=min(begin, end), key=is_after)


def _attempt_of(key: str) -> tuple[int, str]:
    """Version and attempt of ``quarantine/<n>/<attempt>/…`` or ``attempts/<n>/<attempt>.json``; version -1 for another key."""
    parts = key.split("/")
    version = keys.position(parts[1]) if len(parts) > 2 and keys.is_relative(key) else None
    return (-1, "") if version is None else (version, parts[2].removesuffix(".json"))


class _Losers:
    """Says whether an attempt of a version has lost: the version is closed by an abort or by another attempt. The outcome is read, never guessed (I11)."""

    def __init__(self, log: CommitLog, version: int) -> None:
        self.log = log
        self._outcome = cache(lambda: log.outcome(version))

    def __call__(self, attempt_id: str) -> bool:
        found = self._outcome()
        return bool(attempt_id) and found is not None and found[0].attempt_id != attempt_id


def attempts_of(log: CommitLog, sinks: Mapping[str, Sink], version: int) -> set[str]:
    """The attempts of a version of which anything is left: a manifest, or a place in a dataset."""
    found = {_attempt_of(key)[1] for key in log.list_keys(keys.attempts(version))}
    return found.union(*({attempt for _, attempt in sink.attempts(version)} for sink in sinks.values()))
