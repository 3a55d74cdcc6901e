"""What a run says in the log of its process: one line a batch, and one at the end."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_streamsem.batch import changes
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.protocol.entries import Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length
from airflow_provider_streamsem.sources.contract import Limits

_PARTITIONS = 6
"""how many partitions a line names"""


def lag(start: Offsets, end: Offsets, *, unit: str, is_target: bool) -> str:
    """What lies between the committed offsets and the end that the run saw, or the target of its drain: ``lag: 3 files in the source``."""
    where = "to the run's target" if is_target else "in the source"
    return f"lag: {length(between(start, end)):,} {unit} {where}"


def waiting(rows: int, limits: Limits) -> str:
    """Rows that are left for a later run."""
    return f"{rows} rows wait for a later run: limits.min_rows is {limits.min_rows} and limits.max_delay_s {limits.max_delay_s}"


def planned(plan: Plan) -> str:
    """A plan: ``version 12 planned: files [120, 122)``."""
    return f"version {plan.version} planned: {_what(plan)}"


def resumed(plan: Plan, run_key: str) -> str:
    """A plan that was there when this process began: ``version 12 was planned by an earlier try of this run: files [120, 122)``."""
    planner = "an earlier try of this run" if plan.run_key == run_key else f"run {changes.run_id(plan.run_key)}"
    return f"version {plan.version} was planned by {planner} and is not closed: {_what(plan)}"


def _what(plan: Plan) -> str:
    return "redo of version " + str(plan.replaces.version) if plan.replaces is not None else _ranges(plan.ranges)


def closed(outcome: Outcome, ms: int) -> str:
    """An outcome: ``version 12 committed in 4.2 s: 5,001 rows read, 4,990 written to orders, 3 filtered, 8 quarantined``."""
    if not outcome.committed:
        return f"version {outcome.version} aborted: {outcome.reason}"
    return f"version {outcome.version} committed in {ms / 1000:.1f} s: {counted(outcome.counts)}"


def ended(result: RunResult, *, resumed: bool, ms: int) -> str:
    """A result: what was done, or that nothing was."""
    run = f"run {changes.run_id(result.run_key)}"
    others = [str(one.version) for one in result.completed]
    also = (
        f"; announces {'versions' if len(others) > 1 else 'version'} {', '.join(others)} of other runs"
        if others
        else ""
    )
    if result.batches == 0:
        return f"{run}: nothing was planned{also}"
    what = f"{result.batches} {'batch' if result.batches == 1 else 'batches'} up to version {result.version}"
    told = f"{what}, {counted(result.counts)}" if result.counts else f"{what}, none committed"
    if resumed:
        return f"{run} was complete already ({told}); nothing was read or written{also}"
    return f"{run} ended after {ms / 1000:.1f} s: {told}{also}"


def counted(counts: Mapping[str, int]) -> str:
    """Counts of rows: ``5,001 rows read, 4,990 written to orders, 8 quarantined``."""
    written = [
        (name.removeprefix("written."), rows) for name, rows in sorted(counts.items()) if name.startswith("written.")
    ]
    told = [f"{counts.get('read', 0):,} rows read", *(f"{rows:,} written to {sink}" for sink, rows in written)]
    told += [f"{counts[name]:,} {name}" for name in ("filtered", "duplicates", "quarantined") if counts.get(name)]
    return ", ".join(told)


def _ranges(ranges: Ranges) -> str:
    told = [f"{partition} [{start}, {end})" for partition, (start, end) in sorted(ranges.items())]
    more = len(told) - _PARTITIONS
    return ", ".join(told if more <= 1 else [*told[:_PARTITIONS], f"and {more} more partitions"]) or "no offsets"
