"""
Creates and closes versions: every plan and every outcome is built here (PROTOCOL.md, 4), except the plan that ends a moved log.

An outcome is a function of the log and of a staged attempt, so any process may close a version that another one has planned.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files import layers
from airflow_provider_streamsem.errors import (
    HeldByGateError,
    HeldVersionError,
    OpenVersionError,
    StoreRefusedError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.publish import publish
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import Json, Kind, Outcome, Plan, StagedManifest
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead
from airflow_provider_streamsem.state.settings import watermark_after

logger = telemetry.log_of(__name__)


def plan_of(
    log: CommitLog, head: ClosedHead, work: Kind, *, run_key: str, j: int = 0, spec: str, transform: str
) -> Plan:
    """Build the plan of the next version, without ranges. Does not store it. ``j`` is the number of versions that the run has planned before."""
    return Plan(
        version=head.closed + 1,
        work=work,
        previous=head.outcome_sha,
        ranges={},
        run_key=run_key,
        j=j,
        run_start={},
        planned_at_ms=log.now_ms(head),
        spec=spec,
        transform=transform,
        nonce=log.clock.new_id(),
    )


def plan_maintenance(log: CommitLog, head: ClosedHead, work: Kind, *, run_key: str) -> Plan:
    """
    Build the plan of a version that runs no transform: it has the spec of the version before it, because its task may have a pipeline without a transform.

    :param run_key: the prefix of the run key, which is unique
    """
    assert head.outcome is not None  # there are versions to maintain
    key = f"{run_key}:{head.closed + 1}:{log.clock.new_id()}"
    return plan_of(log, head, work, run_key=key, spec=head.outcome.spec, transform=head.outcome.transform)


def commit(log: CommitLog, head: ClosedHead, plan: Plan) -> tuple[Head, Outcome | None]:
    """
    Create a plan whose outcome follows from it, and close its version as a commit.

    :returns: the newest head, and the stored outcome, which may be an abort of another process. ``None`` if another writer created the version first
    """
    planned = log.put_plan(head, plan)
    return (planned.head, None) if planned.own is None else close(log, planned.own, commit_outcome(log, planned.own))


def close(
    log: CommitLog, head: OpenHead, proposed: Outcome, *, began_ms: int | None = None
) -> tuple[ClosedHead, Outcome]:
    """
    Close the open version, and create the segments that became full.

    :param began_ms: when the caller began to close the version, for the log of the run. Default: now
    :returns: the closed head, which may have pending publishes, and the stored outcome, which may be that of another process
    """
    plan = head.plan
    began_ms = log.clock.now_ms() if began_ms is None else began_ms
    with telemetry.phase("commit", version=plan.version, attempt_id=proposed.attempt_id or ""):
        closed, outcome = log.decide(head, proposed)
        logger.info("%s", report.closed(outcome, log.clock.now_ms() - began_ms))
        if (warning := report.all_quarantined(outcome)) is not None:
            logger.warning("%s", warning)
        telemetry.emit(telemetry.VersionClosed.from_outcomes, plan, proposed, outcome)
    try:
        log.write_segments(plan.version, [(outcome, closed.outcome_sha)])
    except (UnavailableError, StoreRefusedError) as error:
        # A later writer creates the segment, and readers do not need it (W23, R5).
        logger.warning("version %d is closed, but its segment was not written: %s", plan.version, error)
    return closed, outcome


def commit_outcome(log: CommitLog, head: OpenHead, staged: StagedManifest | None = None) -> Outcome:
    """
    Build the outcome that commits the open version, with its attempt if the kind stages one. Does not store it.

    Columns, state and markers follow from the plan's kind and the version on which it is based. The hint stays the newest one, because only it knows the ends
    of partitions that were deleted since.
    """
    work, before = head.plan.work, head.outcome
    base = before if work.based_on is None else log.closed_outcome(work.based_on)
    if staged is not None:
        work = work.staged(staged)
    state = None if base is None else work.state_after(base.state)
    changes: dict[str, Any] = {
        "schemas": {} if base is None else work.schemas_after(base.schemas),
        "markers": work.markers_after(head.before.markers),
        "publish": work.publish,
        "complete": None if base is None else base.complete,
        "intervals": work.intervals_after(() if base is None else base.intervals),
    }
    if staged is not None:
        changes |= {"attempt_id": staged.attempt_id, "staged_ms": staged.staged_ms}
    if staged is not None and work.has_rows:
        state = staged.state
        changes["complete"] = staged.complete if work.reads_new_records else changes["complete"]
        names = (
            "sinks",
            "schemas",
            "quarantine",
            "counts",
            "publish",
            "spec",
            "transform",
            "failed_gates",
            "time_partitions",
        )
        changes |= {name: getattr(staged, name) for name in names} | {"gaps": head.plan.gaps}
    return _outcome(log, head, work, state, **changes)


def abort_outcome(log: CommitLog, head: OpenHead, *, reason: str, initial_state: Json) -> Outcome:
    """
    Build the outcome that aborts the open version. Does not store it.

    The outcome keeps the state of the previous outcome. For a batch, it has the source hint of the plan. Only this hint records the end offsets of items that
    were deleted from the source.
    """
    plan, before = head.plan, head.outcome
    return _outcome(
        log,
        head,
        None,
        initial_state if before is None else before.state,
        hint=plan.hint if plan.work.reads_new_records else head.hint,
        spec=plan.spec if before is None else before.spec,
        transform="" if before is None else before.transform,
        reason=reason,
    )


def _outcome(log: CommitLog, head: OpenHead, work: Kind | None, state: Json, **changes: Any) -> Outcome:
    """Build an outcome that changes nothing but the offsets and the references that follow from its plan, and the given fields."""
    plan, before, now_ms = head.plan, head.outcome, log.now_ms(head)
    committed = work is not None
    values: dict[str, Any] = {
        "version": plan.version,
        "result": "commit" if committed else "abort",
        "work": work,
        "plan": head.plan_sha,
        "attempt_id": None,
        "schemas": {} if before is None else before.schemas,
        "complete": None if before is None else before.complete,
        "intervals": () if before is None else before.intervals,
        "newest": invariants.newest_after(plan, before=before, committed=committed),
        "next": invariants.next_after(plan, before=head.next, committed=committed),
        "hint": head.hint,
        "markers": head.before.markers,
        "state": state,
        "watermark_ms": watermark_after(state),
        "spec": plan.spec,
        "transform": plan.transform,
        "decided_at_ms": now_ms,
        "duration_ms": max(0, now_ms - plan.planned_at_ms),
        "nonce": log.clock.new_id(),
    }
    return Outcome(**(values | changes))


def outcome_without_records(bound: BoundPipeline, head: OpenHead) -> Outcome | None:
    """
    Build the outcome that closes an open version of another process which reads no records; ``None`` for a kind with rows. Does not store it.

    For a kind that stages, it commits a complete attempt, or it is an abort (W42). No records are lost by the abort.
    """
    log, plan = bound.log, head.plan
    if plan.work.has_rows:
        return None
    if not plan.work.stages:
        return commit_outcome(log, head)
    for manifest in log.find_staged(head):
        if plan.work.is_staged_by(manifest) and has_all_files(bound.pipeline, manifest):
            outcome = commit_outcome(log, head, manifest)
            if layers.is_complete(log.store.url, outcome.state):
                return outcome
    reason = f"another writer found the {plan.work.name} open, and no attempt was complete"
    logger.warning("version %d is closed as an abort: %s", plan.version, reason)
    return abort_outcome(log, head, reason=reason, initial_state=bound.record.initial_state)


def has_all_files(pipeline: Pipeline, manifest: StagedManifest) -> bool:
    """Return whether every file that an attempt staged exists with the recorded size and checksum."""
    sinks = pipeline.sinks
    return all(name in sinks and sinks[name].is_complete(staged) for name, staged in manifest.sinks.items())


def settle(
    bound: BoundPipeline, head: Head, work: str, *, closes_staged: bool = True, abort_reason: str | None = None
) -> tuple[ClosedHead, Outcome | None]:
    """
    Close the open version, without reading records. Any process may do this. A version whose outcome follows from its plan is committed.

    :param closes_staged: whether to commit or abort an open rewrite of another process
    :param abort_reason: why an open batch or reprocessing run is aborted; ``None``: it is refused
    :returns: the closed head, which may have pending publishes, and the outcome of the version that was open; ``None`` if none was
    """
    if not isinstance(head, OpenHead):
        return head, None
    log, plan = bound.log, head.plan
    if plan.work.is_held:
        raise HeldVersionError(f"the open version is held; no {work} was planned", version=plan.version)
    if plan.work.has_rows and any(attempt.is_held for attempt in log.find_staged(head)):
        summary = f"gates hold the open version until a user commits or aborts it; no {work} was planned"
        raise HeldByGateError(summary, version=plan.version)
    proposed = None if plan.work.stages and not closes_staged else outcome_without_records(bound, head)
    if proposed is None and abort_reason is not None:
        logger.warning("version %d is closed as an abort: %s", plan.version, abort_reason)
        proposed = abort_outcome(log, head, reason=abort_reason, initial_state=bound.record.initial_state)
    if proposed is None:
        summary = f"a version is open, so no {work} was planned"
        raise OpenVersionError(summary, version=plan.version, kind=plan.work.kind).advising(
            "wait until its run ends, or run the pipeline. If no run can close it, pause the DAG and abort the version: "
            f"`streamsem abort PIPELINE.toml {plan.version} --reason TEXT`. Then repeat the command."
        )
    return close(log, head, proposed)


def settle_and_publish(
    bound: BoundPipeline, head: Head, work: str, *, abort_reason: str | None = None
) -> tuple[ClosedHead, Outcome | None]:
    """Close the open version as :func:`settle` does, and publish the newest commit if that is pending (P1)."""
    closed, outcome = settle(bound, head, work, abort_reason=abort_reason)
    if closed.has_pending_publishes:  # another process may have published it since the head was read
        found = bound.log.read_head(closed.closed)
        closed = found if isinstance(found, ClosedHead) else closed
    if closed.has_pending_publishes and closed.outcome is not None:
        # Not the publisher of the run, so it closes no claims of others.
        closed = publish(bound, closed, closed.outcome, is_own=False)
    return closed, outcome
