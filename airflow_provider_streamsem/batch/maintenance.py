"""What a person does to a log: close a version that cannot be staged, and delete what lost."""

from __future__ import annotations

from collections.abc import Mapping
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
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord, SegmentFile
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.sources.contract import Planner, Source

logger = telemetry.log_of(__name__)


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
def vacuum(pipeline: Pipeline, *, dry_run: bool = False, log: CommitLog | None = None) -> Vacuumed:
    """
    Delete what losing attempts of closed versions left: files, then quarantined records, then manifests (V1 to V3); and rows that were staged for sinks
    outside the log, once their receipts are there (V4).

    Safe beside running writers: after a version's outcome exists, no other attempt of it can ever win. An attempt that still runs may write more; the next
    vacuum finds it.

    :param pipeline: the user's own: only its datasets and its log are touched, never a place that something stored names (V5)
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: there is no log
    :raises ConflictError: the log belongs to another pipeline, or a dataset to another log; nothing was deleted
    :raises MarkerConflictError: a sink has a version that the log does not have; nothing was deleted
    """
    log = log or open_commit_log(pipeline.log)
    record = find_record(pipeline, log)
    if record is None:
        raise InvalidError("there is no log at this place", log=pipeline.log)
    sinks = pipeline.sinks
    log.find_head()  # refuses a log that was moved
    if log.outcome(0) is None:  # nothing has lost, and a first run that died may have left its datasets unmarked
        return Vacuumed(attempts=(), keys=(), bytes=0)
    claim_datasets(pipeline, log, record, new=False)
    refuse_conflicts(pipeline, log, record.pipeline_uuid)
    has_lost = _Losers(log)
    has_receipts = cache(lambda version: log.receipts(version) is not None)
    attempts, stale = [], []
    size = 0
    for name, sink in sorted(sinks.items()):
        # Staged files that are not the published ones serve only until the receipts are there.
        is_spent = sink.publishes and not publishing(pipeline, name).keeps_staged
        is_table = sink.publishes and not is_spent
        in_use = cache(publishing(pipeline, name).attempts_in_use) if is_table else set[tuple[int, str]]
        for version, attempt_id in sorted(sink.attempts()):
            if has_lost(version, attempt_id) and (version, attempt_id) in in_use():
                what = "sink %s: attempt %s of version %d lost by the log, and its files are in the table: vacuum leaves them"
                logger.warning(what, name, attempt_id, version)
            elif has_lost(version, attempt_id) or (is_spent and has_receipts(version)):
                attempts.append((name, version, attempt_id))
                size += sink.discard(version, attempt_id, dry_run=dry_run)
    if pipeline.dedup is not None:
        remembered = state_files(log.store.url)  # beside the entries of the very log that was read
        for version, attempt_id in sorted(remembered.attempts()):
            if has_lost(version, attempt_id):
                attempts.append((STATE, version, attempt_id))
                size += remembered.discard(version, attempt_id, dry_run=dry_run)
    for prefix in ("quarantine/", "attempts/"):
        for stat in list(log.store.list(prefix)):
            version, attempt_id = _attempt_of(stat.key)
            if has_lost(version, attempt_id):
                stale.append(stat.key)
                size += stat.bytes
                if not dry_run:
                    log.store.delete(stat.key)
    return Vacuumed(attempts=tuple(attempts), keys=tuple(stale), bytes=size)


def _attempt_of(key: str) -> tuple[int, str]:
    """Version and attempt of ``quarantine/<n>/<attempt>/…`` or ``attempts/<n>/<attempt>.json``; version -1 for another key."""
    parts = key.split("/")
    version = keys.position(parts[1]) if len(parts) > 2 and keys.is_relative(key) else None
    return (-1, "") if version is None else (version, parts[2].removesuffix(".json"))


def _attempt_of_file(file: SegmentFile) -> str:
    found = keys.attempt_of_data(file.file.key)
    return "" if found is None else found[1]


class _Losers:
    """
    Says whether an attempt has lost: its version is closed by an abort or by another attempt. The outcome is read, never guessed (I11).

    Only that an attempt has won is taken from the folded log, which costs one read for a hundred versions: what it says deletes nothing.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._outcomes: dict[int, Outcome | None] = {}
        self._won = {(file.version, _attempt_of_file(file)) for file in log.view().files}

    def __call__(self, version: int, attempt_id: str) -> bool:
        if version < 0 or (version, attempt_id) in self._won:
            return False
        if version not in self._outcomes:
            found = self._log.outcome(version)
            self._outcomes[version] = None if found is None else found[0]
        outcome = self._outcomes[version]
        return outcome is not None and outcome.attempt_id != attempt_id


def attempts_of(log: CommitLog, sinks: Mapping[str, Sink], version: int) -> set[str]:
    """The attempts of a version of which anything is left: a manifest, or a place in a dataset."""
    found = {_attempt_of(key)[1] for key in log.list_keys(keys.attempts(version))}
    return found.union(*({attempt for _, attempt in sink.attempts(version)} for sink in sinks.values()))
