"""Formats the log messages of a run: some for each batch, and one at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_streamsem.clock import iso_time
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.spec import changes
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.protocol.entries import Outcome, Plan
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.offsets import Ranges

_PARTITIONS = 6
"""Maximum number of partitions that a message lists. If there are more, it only counts the rest."""


def lag(items: int, *, unit: str, is_target: bool) -> str:
    """Format the number of unread items, or of those below the target of a drain. Example: ``lag: 3 files in the source``."""
    where = "to the run's target" if is_target else "in the source"
    return f"lag: {items:,} {unit} {where}"


def waiting(rows: int, limits: Limits) -> str:
    """Format the number of rows that a run leaves for a later run."""
    return f"{rows} rows are left for a later run: limits.min_rows is {limits.min_rows}, limits.max_delay_s is {limits.max_delay_s}"


def planned(plan: Plan) -> str:
    """Format a new plan. Example: ``version 12 planned: files [120, 122)``."""
    return f"version {plan.version} planned: {_work(plan)}"


def resumed(plan: Plan, run_key: str) -> str:
    """Format an open plan that the run did not just create: ``version 12 was planned by an earlier try of this run and is not closed: files [120, 122)``."""
    planner = "an earlier try of this run" if plan.run_key == run_key else f"run {changes.run_id(plan.run_key)}"
    return f"version {plan.version} was planned by {planner} and is not closed: {_work(plan)}"


def _work(plan: Plan) -> str:
    if not isinstance(plan.work, Batch):
        return plan.work.describe()
    if plan.watermark_ms is not None:
        return f"no records, watermark {iso_time(plan.watermark_ms)}"
    return _ranges(plan.ranges)


def closed(outcome: Outcome, ms: int) -> str:
    """Format an outcome. Example: ``version 12 committed in 4.2 s: 5,001 rows read, 4,990 written to orders, 3 filtered, 8 quarantined``."""
    if outcome.work is None:
        return f"version {outcome.version} aborted: {outcome.reason}"
    done = format_counts(outcome.counts) if outcome.has_rows else outcome.work.describe()
    return f"version {outcome.version} committed in {ms / 1000:.1f} s: {done}"


def all_quarantined(outcome: Outcome) -> str | None:
    """Format a warning if a version has read records, and all of them are quarantined; ``None`` otherwise."""
    quarantined = outcome.counts.get("quarantined", 0)
    if not outcome.committed or outcome.counts.get("parsed", 0) or not quarantined:
        return None
    return (
        f"version {outcome.version}: all {quarantined:,} records are quarantined. The schema or format of the source, or an expectation, may be wrong. Do: run "
        "`streamsem quarantine` to see why; correct the pipeline, and reprocess the version"
    )


def ended(result: RunResult, *, resumed: bool, ms: int) -> str:
    """Format the result of a run. ``resumed``: the run was complete when this process began."""
    run = f"run {changes.run_id(result.run_key)}"
    versions = [str(version.version) for version in result.completed]
    announces = (
        f"; its result also lists {'versions' if len(versions) > 1 else 'version'} {', '.join(versions)} of other runs"
        if versions
        else ""
    )
    if result.batches == 0:
        return f"{run}: nothing was planned{announces}"
    batches = f"{result.batches} {'batch' if result.batches == 1 else 'batches'} up to version {result.version}"
    done = f"{batches}, {format_counts(result.counts)}" if result.counts else f"{batches}, none committed"
    if resumed:
        return f"{run} was complete already ({done}); nothing was read or written{announces}"
    return f"{run} ended after {ms / 1000:.1f} s: {done}{announces}"


def reprocessing(versions: Sequence[int]) -> str:
    """Format which versions of a complete run are reprocessed. Example: ``this try reprocesses the versions of the run: 3, 4``."""
    if not versions:
        return "this try reprocesses nothing: all versions of the run were rolled back"
    return f"this try reprocesses the versions of the run: {', '.join(map(str, versions))}"


def state_kept(later: range) -> str:
    """Format what a reprocessing run with state has not changed: the versions between the one that it replaced and itself."""
    version, before = later.start - 1, later.start - 2
    versions = (
        f"version {later.start} keeps its"
        if len(later) == 1
        else f"versions {later.start} to {later[-1]} keep their"
        if later
        else ""
    )
    kept = (
        f"{versions} rows and state, and later batches continue from their state"
        if later
        else "later batches continue from it"
    )
    rollback = f"`streamsem rollback PIPELINE.toml {before}`, or " if before >= 0 else ""
    return (
        f"only the rows of version {version} were replaced. The state after version {version} is unchanged: {kept}. "
        f"Do: if the state itself is wrong, run {rollback}`streamsem fork NEW.toml LOG --at {before}`"
    )


_ORDER = ("read", "parsed", "quarantined", "filtered", "dropped", "late", "duplicates", "late_duplicates", "without_id")
"""Row counts in the order in which a batch passes its records on. Counts that are not listed follow, in alphabetical order."""


def ordered_counts(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return name and value of each row count, in the order in which a batch passes its records on."""
    listed = [name for name in _ORDER if name in counts]
    return [(name, counts[name]) for name in [*listed, *sorted(counts.keys() - {*listed})]]


def format_counts(counts: Mapping[str, int]) -> str:
    """Format row counts. Example: ``5,001 rows read, 4,990 written to orders, 8 quarantined, 3 rows discarded from orders``."""
    written = [
        (name.removeprefix("written."), rows) for name, rows in sorted(counts.items()) if name.startswith("written.")
    ]
    parts = [f"{counts.get('read', 0):,} rows read", *(f"{rows:,} written to {sink}" for sink, rows in written)]
    parts += [
        f"{counts[name]:,} {name}"
        for name in ("filtered", "dropped", "duplicates", "late", "quarantined")
        if counts.get(name)
    ]
    for verb in ("discarded", "dropped", "quarantined"):
        removed = sorted(name for name in counts if name.startswith(f"{verb}_") and counts[name])
        parts += [
            f"{counts[name]:,} {name.removeprefix(f'{verb}_').replace('.', f' {verb} from ')}" for name in removed
        ]
    parts += [f"{counts[name]:,} break the rule {name.partition('.')[2]}" for name in broken_rules(counts)]
    return ", ".join(parts)


def broken_rules(counts: Mapping[str, int]) -> list[str]:
    """Return the names of the counts of rules that rows break, sorted."""
    return sorted(name for name in counts if name.startswith(("failed_records.", "failed_rows.")) and counts[name])


def _ranges(ranges: Ranges) -> str:
    parts = [f"{partition} [{start}, {end})" for partition, (start, end) in sorted(ranges.items())]
    more = len(parts) - _PARTITIONS
    return ", ".join(parts if more <= 1 else [*parts[:_PARTITIONS], f"and {more} more partitions"]) or "no offsets"
