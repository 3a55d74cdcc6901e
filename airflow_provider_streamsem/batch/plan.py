"""Planning: from a run's position to Plan(n), before a row is read (PROTOCOL.md, 4.2)."""

from __future__ import annotations

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.batch import report
from airflow_provider_streamsem.batch.opening import Opened
from airflow_provider_streamsem.errors import InternalError
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import Plan
from airflow_provider_streamsem.protocol.procedures import Ready
from airflow_provider_streamsem.protocol.view import add_counts
from airflow_provider_streamsem.sources.contract import Limits, Planner

logger = telemetry.log_of(__name__)


def may_wait(limits: Limits, rows: int, *, since_ms: int | None, now_ms: int) -> bool:
    """
    Whether so few rows are left for a later run. The reading that decides is the plan's own ``planned_at_ms`` (I13).

    :param since_ms: from when on they wait: when the newest outcome was decided; ``None`` before the first, for which nothing waits
    """
    if limits.min_rows is None or limits.max_delay_s is None or since_ms is None or rows >= limits.min_rows:
        return False
    return now_ms < since_ms + limits.max_delay_s * 1000


def plan_batch(opened: Opened, planner: Planner, ready: Ready, *, run_key: str, drain: bool) -> Plan | None:
    """
    Cut the next plan of a run; ``None`` where the source has nothing new and therefore nothing is written (W15).

    A drain's first plan freezes the target; every later one is cut towards it (W14, I19).
    """
    clock = opened.log.clock
    planned_at_ms = clock.now_ms()
    start = ready.head.next
    target = ready.target
    planner.follow(ready.head.outcome)
    end = planner.latest_offsets() if target is None else target
    telemetry.tell(telemetry.Looked.at, start, end)
    limits = opened.pipeline.limits
    logger.info("%s", report.lag(start, end, unit=opened.pipeline.source.unit, is_target=target is not None))
    if drain and ready.j == 0:
        target = end
    cut = planner.cut(start, end, limits, on_data_loss=opened.pipeline.on_data_loss)
    if cut is None:
        if ready.before is not None and ready.target is not None:
            raise InternalError(
                "a drain is below its target but the source gives nothing to read",
                target=dict(ready.target),
                next=dict(start),
            )
        return None
    last = ready.head.outcome
    since_ms = None if last is None else last.decided_at_ms
    rows = planner.rows(cut)
    if ready.j == 0 and may_wait(limits, rows, since_ms=since_ms, now_ms=planned_at_ms):
        logger.info("%s", report.waiting(rows, limits))
        return None
    before_plan, before_outcome = ready.before or (None, None)
    run_counts = dict(before_plan.run_counts) if before_plan else {}
    if before_outcome is not None and before_outcome.committed:
        run_counts = add_counts(run_counts, before_outcome.counts)
    return Plan(
        version=ready.head.closed + 1,
        previous=ready.head.outcome_sha,
        genesis=start if last is None else None,
        ranges=cut.ranges,
        gaps=cut.gaps,
        pins=cut.pins,
        run_key=run_key,
        j=ready.j,
        target=target,
        run_counts=run_counts,
        run_start=before_plan.run_start
        if before_plan
        else {p: offsets.position(start, p) for p in sorted({*start, *(target or {}), *cut.ranges})},
        planned_at_ms=planned_at_ms,
        spec=opened.spec,
        transform=opened.pipeline.transform_name,
        nonce=clock.new_id(),
    )
