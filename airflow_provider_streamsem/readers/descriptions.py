"""Describes the results of commands and actions as lines of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_provider_streamsem.pipeline.maintenance.alter import Alteration
from airflow_provider_streamsem.pipeline.maintenance.compact import Compacted
from airflow_provider_streamsem.pipeline.maintenance.erase import Erased
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed
from airflow_provider_streamsem.pipeline.run.selection import BlastRadius
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.readers.verify import Verdict


def aligned(fields: Sequence[tuple[str, object]]) -> list[str]:
    """Return a line for each name and value, with the values in one column."""
    width = max((len(name) for name, _ in fields), default=0)
    return [f"{name:<{width}}  {value}" for name, value in fields]


def blast_radius(radius: BlastRadius) -> list[str]:
    """Describe what reprocessing would read and replace."""
    lines = [f"{len(radius.versions)} versions are selected: {spans(radius.versions)}", "nothing was written"]
    lines += aligned(report.ordered_counts(radius.counts))
    lines += [
        f"replaced in {name}: {replaced.rows} rows in {replaced.files} files, {replaced.bytes} bytes"
        for name, replaced in radius.sinks.items()
    ]
    if radius.kept is not None:
        lines.append(f"{radius.kept} later versions are not recomputed: they keep their rows and state")
    lines += [_partition(key, versions, radius.refused) for key, versions in radius.partitions.items()]
    if radius.unknown:
        lines.append(f"not selected, because they record no partitions: versions {spans(radius.unknown)}")
    lines += [f"{url}: {batches} versions have read these rows" for url, batches in radius.downstream.items()]
    lines += [f"version {version} would be refused: {reason}" for version, reason in radius.refused.items()]
    return lines


def _partition(key: str, versions: Sequence[int], refused: Collection[int]) -> str:
    lost = [version for version in versions if version in refused]
    cannot = f"; {spans(lost)} cannot be reprocessed" if lost else ""
    return f"partition {key}: {'version' if len(versions) == 1 else 'versions'} {spans(versions)}{cannot}"


def spans(versions: Sequence[int]) -> str:
    """Format ascending versions, such as ``3-7, 9``."""
    found: list[list[int]] = []
    for version in versions:
        if found and version == found[-1][1] + 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found) or "none"


def alteration(result: Alteration, *, dry_run: bool) -> list[str]:
    """Describe an alter, or its dry run."""
    altered = [change for change in result.changes if change.kind != "changed"]
    if not altered:
        summary = "the log has the same immutable fields; the pipeline was not altered"
    elif result.version is None:
        summary = "immutable fields differ, so an alter is required; the pipeline was not altered"
    else:
        summary = f"version {result.version} altered the pipeline"
    lines = [
        summary,
        *(f"  {change.field}: {change.kind}: {change.effect}" for change in result.changes if change in altered),
    ]
    others = [change.field for change in result.changes if change not in altered]
    lines += [f"changes that need no alter: {', '.join(others)}"] if others else []
    lines += [
        f"  guarantee of {name}: {_label(before)} before, {_label(now)} now"
        for name, (before, now) in result.guarantee.items()
        if before != now
    ]
    if result.aborted is not None:
        lines.append(
            f"version {result.aborted} {'is open and would be' if dry_run else 'was open and is now'} aborted. If it is a batch, the next run reads its records"
        )
    if dry_run and altered:
        lines.append(f"config of the log: {result.config}")
    return lines


def _label(label: str | None) -> str:
    return "none" if label is None else label.replace("_", "-")


def rewrite(result: Compacted) -> str:
    """Describe a rewrite of files, or a possible one."""
    commits = "" if result.commits is None else f" of {result.commits} commits"
    before = f"{result.files} files{commits} in sink {result.sink}, {result.rows} rows, {result.bytes} bytes"
    if result.new_files is None:
        return f"would rewrite {before}"
    version = f"version {result.version}" if result.table_version is None else f"table version {result.table_version}"
    return f"{version}: rewrote {before}, into {result.new_files} files, {result.new_bytes} bytes"


def erased(result: Erased, *, dry_run: bool) -> list[str]:
    """Describe an erasure, or its dry run."""
    verb = "would erase" if dry_run else "erased"
    lines = [
        f"{verb} {each.rows} row(s) from sink {each.sink}" + (f", in {each.files} file(s)" if each.files else "")
        for each in result.sinks
    ]
    if result.quarantined:
        versions = ", ".join(map(str, result.quarantined_in))
        lines.append(f"{verb} {result.quarantined} quarantined record(s), of version(s) {versions}")
    lines += [f"{verb} {result.tombstones} tombstone(s) of deletes"] if result.tombstones else []
    if dry_run and lines:
        lines.append("if any of these are in the log or in files sinks, all versions before would expire")
    lines = lines or ["no row, quarantined record or tombstone was found"]
    if result.versions:
        lines.append(f"versions: {', '.join(map(str, result.versions))}; the versions before have expired")
    if result.without_columns:
        lines.append(f"sinks without the columns, or without a table: {', '.join(result.without_columns)}")
    lines += [f"refused: {sentence}" for sentence in result.refused]
    return [*lines, "the rows may still be in:", *(f"- {sentence}" for sentence in result.remaining)]


def vacuumed(result: Vacuumed, *, dry_run: bool, keep_versions: int | None = None) -> list[str]:
    """Describe a vacuum, or its dry run."""
    deleted = f"{len(result.attempts)} attempts and {len(result.keys)} objects of the log, {result.bytes} bytes"
    lines = [f"{'would delete' if dry_run else 'deleted'} {deleted}"]
    oldest = result.oldest_readable
    if oldest is not None and result.expired:
        expired = spans(range(oldest - result.expired, oldest))
        lines += [
            f"{'versions that would expire' if dry_run else 'expired versions'}: {expired}",
            "an expired version cannot be read or rolled back to, and this cannot be undone",
            "it cannot be reprocessed either, if it was compacted, or if the pipeline deduplicates across batches",
        ]
    elif keep_versions is not None:
        lines.append(
            f"no version {'would expire' if dry_run else 'has expired'}: no file is needed only by versions older than those to keep"
        )
    if oldest is not None:
        would_be = " would be" if dry_run and result.expired else ""
        lines.append(f"oldest readable version{would_be}: {oldest}")
    return lines


def verdict(result: Verdict) -> list[str]:
    """Describe the result of a verification."""
    totals = f"closed versions: {result.versions}, commits: {result.commits}, visible files: {result.files}, orphans: {result.orphans}"
    lines = [f"{'clean' if result.clean else 'VIOLATIONS FOUND'}: {totals}"]
    if result.open is not None:
        lines.append(f"version {result.open} is open: a run has planned it, and no run has committed it yet")
    lines += [f"{name:<20} {count}" for name, count in report.ordered_counts(result.counts)]
    lines += [f"not checked without the pipeline file: sink {name}" for name in result.unchecked]
    for found in result.violations:
        where = "" if found.version is None else f" version={found.version}"
        key = f" ({found.key})" if found.key else ""
        lines += [f"{found.invariant}{where} {found.what}{key}", f"  Do: {found.do}"]
    if result.orphans:
        lines.append("orphans are invisible. To delete them: `streamsem vacuum PIPELINE.toml`")
    if result.open is not None:
        lines.append("to close the open version: run the pipeline, or `streamsem abort PIPELINE.toml N --reason TEXT`")
    return lines
