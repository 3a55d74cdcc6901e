"""Aborts an open version, for example one that no attempt can stage."""

from __future__ import annotations

from airflow_provider_streamsem.arguments import integer, text
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import Json, Outcome, PipelineRecord
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.state import watermark_after


def abort(log: CommitLog, record: PipelineRecord, version: int, *, reason: str) -> Outcome:
    """
    Close the open version as an abort (W22). No rows of the version become visible. If the version is a batch, the next run plans its range again.

    :param version: the open version
    :param reason: why the version is aborted; stored in the outcome
    :returns: the stored outcome. It is a *commit* if an attempt committed the version first
    :raises InvalidError: the version is not open, or an argument is not valid
    """
    integer("version", version, least=0)
    text("reason", reason)
    head = log.newest_head()
    if not isinstance(head, OpenHead) or head.plan.version != version:
        raise InvalidError(
            "only the open version can be aborted",
            given=version,
            open=head.plan.version if isinstance(head, OpenHead) else None,
            newest_closed=head.closed,
            has_pending_publishes=head.has_pending_publishes,
        ).advising(
            "give the version in `open`. If it is None, no version is open; to skip a pending publish, use `streamsem skip`."
        )
    return log.decide(head, abort_outcome(log, head, reason=reason, initial_state=record.initial_state))[1]


def abort_outcome(log: CommitLog, head: OpenHead, *, reason: str, initial_state: Json) -> Outcome:
    """
    Build the outcome that aborts an open version. Does not store it.

    The outcome keeps the deduplication state of the previous outcome. For a batch, it has the source hint of the plan. Only this hint records the end offsets
    of items that were deleted from the source.

    :param initial_state: the state before version 0
    """
    plan, before = head.plan, head.outcome
    now_ms = log.now_ms(head)
    return Outcome(
        version=plan.version,
        result="abort",
        plan=head.plan_sha,
        attempt_id=None,
        schemas={} if before is None else before.schemas,
        newest_rollback=invariants.newest_rollback(plan, before=before, committed=False),
        newest_alter=invariants.newest_alter(plan, before=before, committed=False),
        newest_rewrite=invariants.newest_rewrite(plan, before=before, committed=False),
        next=invariants.next_after(plan, before=head.next, committed=False),
        hint=plan.hint if plan.kind == "batch" else head.hint,
        markers=head.before.markers,
        state=initial_state if before is None else before.state,
        watermark_ms=watermark_after(initial_state) if before is None else before.watermark_ms,
        spec=plan.spec if before is None else before.spec,
        transform="" if before is None else before.transform,
        decided_at_ms=now_ms,
        duration_ms=max(0, now_ms - plan.planned_at_ms),
        reason=reason,
        nonce=log.clock.new_id(),
    )
