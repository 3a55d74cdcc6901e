"""Builds the outcomes that close open versions. Each is a function of the log, so any process may close a version that another one has planned."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.pipeline.opening import OpenPipeline
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan, StagedManifest
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.state import watermark_after

logger = telemetry.log_of(__name__)

_REWRITE_ABORTED = "another writer found the rewrite open, and no attempt was complete"


def outcome_without_records(opened: OpenPipeline, head: OpenHead) -> Outcome | None:
    """
    Return the outcome that closes an open rollback, alter, rewrite or expiry of another process, which any process can build.

    :returns: ``None`` for a batch and a reprocessing run, which read records
    """
    log, kind = opened.log, head.plan.kind
    if kind == "rewrite":
        return rewrite_outcome(opened, head)
    builders = {"rollback": rollback_outcome, "alter": alter_outcome, "expire": expiry_outcome}
    return builders[kind](log, head) if kind in builders else None


def committed_outcome(log: CommitLog, head: OpenHead) -> Outcome:
    """
    Build the outcome that commits an open version and changes nothing that its plan does not change. Does not store it.

    Offsets and markers follow from the plan and the outcome before it. Columns, state and hint are those of the outcome before it.
    """
    return _outcome(log, head, committed=True, state=None if head.outcome is None else head.outcome.state)


def abort_outcome(log: CommitLog, head: OpenHead, *, reason: str, initial_state: Json) -> Outcome:
    """
    Build the outcome that aborts an open version. Does not store it.

    The outcome keeps the deduplication state of the previous outcome. For a batch, it has the source hint of the plan. Only this hint records the end offsets
    of items that were deleted from the source.

    :param initial_state: the state before version 0
    """
    plan, before = head.plan, head.outcome
    state = initial_state if before is None else before.state
    return replace(
        _outcome(log, head, committed=False, state=state),
        hint=plan.hint if plan.kind == "batch" else head.hint,
        spec=plan.spec if before is None else before.spec,
        transform="" if before is None else before.transform,
        reason=reason,
    )


def rollback_outcome(log: CommitLog, head: OpenHead) -> Outcome:
    """
    Build the outcome of an open rollback. Does not store it.

    The state is that of the version to which it returns. The hint stays the newest one, because only it knows the ends of partitions that were deleted since.
    """
    plan = head.plan
    earlier = restored_outcome(log, plan)
    logger.info("version %d rolls back to version %d", plan.version, earlier.version)
    return replace(
        committed_outcome(log, head),
        schemas=earlier.schemas,
        rolled_back=plan.rolled_back,
        publish=() if plan.rolled_back is None else plan.rolled_back.publish,
        state=earlier.state,
        watermark_ms=watermark_after(earlier.state),
    )


def restored_outcome(log: CommitLog, plan: Plan) -> Outcome:
    """
    Return the outcome of the version to which a rollback returns.

    :param plan: the plan of the rollback
    """
    assert plan.rolled_back is not None
    found = log.outcome(plan.rolled_back.to)
    if found is None:
        raise LogDamagedError(
            "a rollback returns to a version that has no outcome", invariant="I21", version=plan.version
        )
    return found[0]


def alter_outcome(log: CommitLog, head: OpenHead) -> Outcome:
    """Build the outcome of an open alter. Does not store it."""
    plan, before = head.plan, head.outcome
    assert plan.altered is not None
    assert before is not None  # I22
    state = invariants.altered_state(before.state, plan.altered)
    return replace(
        committed_outcome(log, head),
        schemas=invariants.altered_schemas(before.schemas, plan.altered),
        altered=plan.altered,
        markers=invariants.altered_markers(head.before.markers, plan.altered),
        state=state,
        watermark_ms=watermark_after(state),
    )


def expiry_outcome(log: CommitLog, head: OpenHead) -> Outcome:
    """Build the outcome of an open expiry. Does not store it."""
    return replace(committed_outcome(log, head), expires=head.plan.expires)


def rewrite_outcome(opened: OpenPipeline, head: OpenHead) -> Outcome:
    """
    Build the outcome that closes the open rewrite of another process: a commit of a complete attempt, or an abort (W42). Does not store it.

    No records are lost by an abort, because a rewrite reads no source.
    """
    log, plan = opened.log, head.plan
    for manifest in log.find_staged(head):
        assert plan.rewritten is not None
        output = manifest.sinks.get(plan.rewritten.sink)
        sink = opened.pipeline.sinks.get(plan.rewritten.sink)
        if output is not None and sink is not None and sink.is_complete(output):
            return staged_rewrite_outcome(log, head, manifest)
    logger.warning("version %d is closed as an abort: %s", plan.version, _REWRITE_ABORTED)
    return abort_outcome(log, head, reason=_REWRITE_ABORTED, initial_state=opened.record.initial_state)


def staged_rewrite_outcome(log: CommitLog, head: OpenHead, manifest: StagedManifest) -> Outcome:
    """Build the commit of a staged rewrite. Does not store it."""
    plan = head.plan
    assert plan.rewritten is not None
    return replace(
        committed_outcome(log, head),
        attempt_id=manifest.attempt_id,
        rewritten=replace(plan.rewritten, output=manifest.sinks[plan.rewritten.sink]),
        staged_ms=manifest.staged_ms,
    )


def _outcome(log: CommitLog, head: OpenHead, *, committed: bool, state: Json) -> Outcome:
    """Build an outcome that has no output, and that changes nothing but what follows from its plan."""
    plan, before = head.plan, head.outcome
    now_ms = log.now_ms(head)
    return Outcome(
        version=plan.version,
        result="commit" if committed else "abort",
        plan=head.plan_sha,
        attempt_id=None,
        schemas={} if before is None else before.schemas,
        newest_rollback=invariants.newest("rollback", plan, before=before, committed=committed),
        newest_alter=invariants.newest("alter", plan, before=before, committed=committed),
        newest_rewrite=invariants.newest("rewrite", plan, before=before, committed=committed),
        oldest_readable=invariants.oldest_readable(plan, before=before, committed=committed),
        next=invariants.next_after(plan, before=head.next, committed=committed),
        hint=head.hint,
        markers=head.before.markers,
        state=state,
        watermark_ms=watermark_after(state),
        spec=plan.spec,
        transform=plan.transform,
        decided_at_ms=now_ms,
        duration_ms=max(0, now_ms - plan.planned_at_ms),
        nonce=log.clock.new_id(),
    )
