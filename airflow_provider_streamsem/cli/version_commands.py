"""
The commands that create versions: ``run``, ``reprocess``, ``compact``, ``erase``, ``rollback`` and ``alter``.

Each takes the parsed arguments, with the pipeline in ``args.pipeline``, and returns a :class:`CommandResult`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.arguments import time_ms
from airflow_provider_streamsem.cli import first_look
from airflow_provider_streamsem.cli.output import CommandResult
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.alter import alter as alter_
from airflow_provider_streamsem.pipeline.maintenance.compact import compact as compact_
from airflow_provider_streamsem.pipeline.maintenance.erase import erase as erase_
from airflow_provider_streamsem.pipeline.maintenance.rollback import rollback as rollback_
from airflow_provider_streamsem.pipeline.run.interval import run_interval
from airflow_provider_streamsem.pipeline.run.reprocess import kept_versions
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess as reprocess_
from airflow_provider_streamsem.pipeline.run.review import commit_held, stage_reprocessing
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.run.selection import (
    Selection,
    check_selection,
    parse_offsets,
    parse_partitions,
    parse_versions,
    preview_reprocess,
    select,
)
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_spark_conf
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.result import RunResult, with_others
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.readers import descriptions
from airflow_provider_streamsem.readers.descriptions import aligned
from airflow_provider_streamsem.readers.files import open_log

if TYPE_CHECKING:
    from airflow_provider_streamsem.spark.spark_engine import SparkEngine


def run(args: argparse.Namespace) -> CommandResult:
    """Run one batch, or with ``--drain`` several (``streamsem run``)."""
    pipeline, engine = args.pipeline, engine_of_arguments(args, args.spark_packages)
    run_key = f"cli:{SYSTEM_CLOCK.new_id()}" if args.run_key is None else args.run_key
    announces = args.run_key is not None  # with a generated key, no retry could repeat the announcements
    if args.interval is not None:
        if args.drain:
            raise InvalidError("--interval cannot be combined with --drain", given=args.interval)
        result = run_interval(pipeline, args.interval, request=run_key, engine=engine)
        return _result_of_run(pipeline, result)
    before = _newest_closed(pipeline.log)
    result = run_batch(pipeline, run_key=run_key, drain=args.drain, engine=engine, announces=announces)
    if not announces:
        log = commit_log_at(pipeline.log)
        result = with_others(log, result, before=before, after=_newest_closed(pipeline.log))
    command_result = _result_of_run(pipeline, result)
    return (
        command_result
        if args.source is None
        else replace(command_result, lines=[*command_result.lines, *first_look.next_commands(args.target)])
    )


def _newest_closed(log: str) -> int:
    """Return the newest closed version of a log; -1 if the log has none or does not exist."""
    try:
        return open_log(log).head
    except InvalidError:
        return -1


def reprocess(args: argparse.Namespace) -> CommandResult:
    """Reprocess a version, several ones, or every version with quarantined records (``streamsem reprocess``)."""
    selection = _selection(args)
    if args.quarantined == (selection is not None):
        raise InvalidError(
            "reprocess requires versions, a time, offsets, or --quarantined",
            given=args.versions,
            quarantined=args.quarantined,
        )
    pipeline = args.pipeline
    if args.dry_run and selection is not None:
        radius = preview_reprocess(pipeline, selection, downstream=args.downstream)
        return CommandResult(document=plain(radius), lines=descriptions.blast_radius(radius))
    if args.dry_run:
        raise InvalidError("--dry-run requires versions, a time or offsets")
    is_single = selection is not None and args.versions is not None and args.versions.isdecimal()
    if args.run_key is not None and not is_single:
        raise InvalidError("--run-key requires one version: several versions are one run each", given=args.versions)
    engine = engine_of_arguments(args, args.spark_packages)
    if args.stage_only:
        return _staged_only(args, engine, is_single=is_single)
    if is_single:
        result = reprocess_(
            pipeline, int(args.versions), run_key=args.run_key, current_lookups=args.current_lookups, engine=engine
        )
        ran, (kept, lines) = _result_of_run(pipeline, result), _kept_versions(pipeline, result)
        return replace(ran, document={**ran.document, **kept}, lines=[*ran.lines, *lines])
    if selection is not None:
        check_selection(pipeline, selection)
        log = commit_log_at(pipeline.log)
        return _reprocess_all(args, select(log, log.newest_head(), selection), engine, "no committed batch is selected")
    records = open_log(args.log, pipeline=pipeline).quarantined()
    versions = sorted({record["version"] for record in records if "watermark_ms" not in record})  # not the late rows
    return _reprocess_all(args, versions, engine, "there are no quarantined records")


def _staged_only(args: argparse.Namespace, engine: SparkEngine, *, is_single: bool) -> CommandResult:
    if not is_single or args.run_key is not None:
        raise InvalidError("--stage-only requires one version, and no --run-key", given=args.versions)
    held = stage_reprocessing(args.pipeline, int(args.versions), current_lookups=args.current_lookups, engine=engine)
    lines = [
        f"version {held.version} is staged and not visible: it would replace the rows of version {held.replaces}",
        *aligned(report.ordered_counts(held.counts)),
        f"compare: streamsem diff {args.target} {held.version}",
        f"then: streamsem commit {args.target} {held.version}, or streamsem abort {args.target} {held.version} --reason TEXT",
        "until then, no run of the pipeline can plan a version",
    ]
    return CommandResult(document=plain(held), lines=lines)


def commit(args: argparse.Namespace) -> CommandResult:
    """Commit a held version (``streamsem commit``)."""
    return _result_of_run(args.pipeline, commit_held(args.pipeline, args.version, attempt_id=args.attempt))


def _selection(args: argparse.Namespace) -> Selection | None:
    since_ms, until_ms = (
        None if given is None else time_ms(name, given)
        for name, given in (("--since", args.since), ("--until", args.until))
    )
    offsets = parse_offsets(args.offsets)
    if args.versions is None and since_ms is None and until_ms is None and not offsets and args.partitions is None:
        return None
    return Selection(
        versions=() if args.versions is None else parse_versions(args.versions),
        since_ms=since_ms,
        until_ms=until_ms,
        offsets=offsets,
        partitions=None if args.partitions is None else parse_partitions(args.partitions),
    )


def _reprocess_all(
    args: argparse.Namespace, versions: Sequence[int], engine: SparkEngine, nothing: str
) -> CommandResult:
    """Reprocess each version in a run of its own. An error that no retry fixes does not stop the others."""
    pipeline = args.pipeline
    reprocessed, refused, lines = [], [], []
    for version in versions:
        try:
            result = reprocess_(pipeline, version, current_lookups=args.current_lookups, engine=engine)
        except StreamsemError as error:
            if error.retryable:
                raise
            refused.append({"version": version, "error": type(error).__name__, "message": str(error)})
            lines.append(f"version {version}: not reprocessed: {type(error).__name__}: {error}")
        else:
            kept, kept_lines = _kept_versions(pipeline, result)
            reprocessed.append({**result.to_json(), "replaces": version, **kept})
            remaining = sum(
                rows
                for name, rows in result.counts.items()
                if name == "quarantined" or name.startswith("quarantined_rows.")
            )
            lines += [f"version {version}: reprocessed as {result.version}, {remaining} still quarantined", *kept_lines]
    document = {"reprocessed": reprocessed, "not_reprocessed": refused}
    return CommandResult(document=document, lines=lines or [nothing], exit_code=1 if refused else 0)


def _kept_versions(pipeline: Pipeline, result: RunResult) -> tuple[dict[str, Any], list[str]]:
    later = kept_versions(pipeline, commit_log_at(pipeline.log), result.version)
    field = {"kept_versions": None if later is None else [later.start, later.stop]}
    return field, [] if later is None else [report.state_kept(later)]


def compact(args: argparse.Namespace) -> CommandResult:
    """Compact the files of a pipeline (``streamsem compact``)."""
    rewrites = compact_(
        args.pipeline,
        sink=args.sink,
        target_file_bytes=args.target_file_bytes,
        max_bytes=args.max_bytes,
        dry_run=args.dry_run,
        engine=engine_of_arguments(args, args.spark_packages),
    )
    lines = [descriptions.rewrite(rewrite) for rewrite in rewrites] or ["there are no files to rewrite"]
    return CommandResult(document={"rewrites": plain(rewrites), "dry_run": args.dry_run}, lines=lines)


def erase(args: argparse.Namespace) -> CommandResult:
    """Erase rows from everything that a pipeline stores (``streamsem erase``)."""
    erased = erase_(
        args.pipeline,
        where=sys.stdin.read() if args.where == "-" else args.where,
        only_quarantined=args.only_quarantined,
        dry_run=args.dry_run,
        target_file_bytes=args.target_file_bytes,
        max_bytes=args.max_bytes,
        engine=engine_of_arguments(args, args.spark_packages),
    )
    document = {**plain(erased), "dry_run": args.dry_run}
    lines = descriptions.erased(erased, dry_run=args.dry_run)
    return CommandResult(document=document, lines=lines, exit_code=1 if erased.refused else 0)


def rollback(args: argparse.Namespace) -> CommandResult:
    """Roll a pipeline back to a version (``streamsem rollback``)."""
    until_ms = None if args.until is None else time_ms("--until", args.until)
    if (args.version is None) == (until_ms is None):
        raise InvalidError("give either the version N to keep, or --until TIME", given=args.version, until=args.until)
    result = rollback_(args.pipeline, args.version, until_ms=until_ms, run_key=args.run_key)
    summary = (
        f"the pipeline is at version {result.to} already; nothing was rolled back"
        if result.version is None
        else f"version {result.version} rolled the pipeline back to version {result.to}"
    )
    counts = [(name, f"-{count}") for name, count in report.ordered_counts(result.counts)]
    offsets = [("next", f"{partition} {offset}") for partition, offset in sorted(result.offsets.items())]
    return CommandResult(document=plain(result), lines=[summary, *aligned([*counts, *offsets])])


def alter(args: argparse.Namespace) -> CommandResult:
    """Alter a pipeline (``streamsem alter``)."""
    result = alter_(args.pipeline, alter_from=args.alter_from, moved=args.moved, dry_run=args.dry_run)
    return CommandResult(document=plain(result), lines=descriptions.alteration(result, dry_run=args.dry_run))


def engine_of_arguments(args: argparse.Namespace, spark_packages: str | None) -> SparkEngine:
    """
    Return the engine that the arguments of a command describe. Starts no session.

    :raises InvalidError: a setting is not valid
    """
    from airflow_provider_streamsem.spark.spark_engine import SparkEngine, engine_of

    unnamed = [text for text in args.spark_conf if "=" not in text]
    if unnamed:
        raise InvalidError("--spark-conf must have the form NAME=VALUE", given=unnamed)
    conf = load_spark_conf(args.target) if str(getattr(args, "target", "")).endswith(".toml") else {}
    conf |= dict(text.split("=", 1) for text in args.spark_conf)
    if args.spark_conn_id is None:
        return SparkEngine(master=args.master, conf=conf, packages=spark_packages)
    return engine_of(connection(args.spark_conn_id), conf, packages=spark_packages)


def _result_of_run(pipeline: Pipeline, result: RunResult) -> CommandResult:
    computed = guarantee(pipeline)
    fields: list[tuple[str, object]] = [
        ("run key", result.run_key),
        ("guarantee", computed.named),
        ("status", result.status),
        ("version", result.version),
        ("ranges", _ranges(result.ranges)),
        *report.ordered_counts(result.counts),
        *(
            ("completed", f"version {other.version} of run {other.run_key}: {report.format_counts(other.counts)}")
            for other in result.completed
        ),
    ]
    return CommandResult(document={**result.to_json(), "guarantee": plain(computed)}, lines=aligned(fields))


def _ranges(ranges: Ranges) -> str:
    return ", ".join(f"{partition} [{start}, {end})" for partition, (start, end) in sorted(ranges.items()))
