"""
Implementations of the commands.

Each command takes the parsed arguments and returns its result as a :class:`CommandResult`. ``args.log`` is the location of the log. ``args.pipeline`` is the
pipeline, or ``None`` if the user named a log. The commands call the public functions of this package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from airflow_provider_streamsem import extras
from airflow_provider_streamsem.arguments import integer, time_ms
from airflow_provider_streamsem.cli import first_look
from airflow_provider_streamsem.cli import top as top_
from airflow_provider_streamsem.cli.arguments import COMMANDS, option
from airflow_provider_streamsem.cli.log_table import log_table
from airflow_provider_streamsem.cli.offset_commands import export_offsets, import_offsets
from airflow_provider_streamsem.cli.output import CommandResult, Table, utc
from airflow_provider_streamsem.cli.version_commands import (
    alter,
    commit,
    compact,
    engine_of_arguments,
    erase,
    reprocess,
    rollback,
    run,
)
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog import doctor as doctor_
from airflow_provider_streamsem.commitlog import move
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort as abort_version
from airflow_provider_streamsem.pipeline.maintenance.drop import drop as drop_
from airflow_provider_streamsem.pipeline.maintenance.fork import fork as fork_
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum as vacuum_log
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee, warnings
from airflow_provider_streamsem.pipeline.spec.location import located
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.pipeline.spec.templates import holds_templates
from airflow_provider_streamsem.pipeline.versions.attempts import attempts_of
from airflow_provider_streamsem.pipeline.versions.publish import skip as skip_
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.protocol.view import stored_output
from airflow_provider_streamsem.readers import descriptions
from airflow_provider_streamsem.readers import export as export_
from airflow_provider_streamsem.readers.files import CommittedLog, open_log, sink_of
from airflow_provider_streamsem.readers.history import History
from airflow_provider_streamsem.readers.intervals import interval_states
from airflow_provider_streamsem.readers.lag import lag as lag_of
from airflow_provider_streamsem.readers.partitions import partition_states
from airflow_provider_streamsem.readers.verify import Verdict
from airflow_provider_streamsem.readers.verify import verify as verify_
from airflow_provider_streamsem.spark import packages
from airflow_provider_streamsem.state.layers import id_layers, tombstones_of
from airflow_provider_streamsem.state.settings import operator_state
from airflow_provider_streamsem.stores.contract import open_store


def result_of_command(args: argparse.Namespace) -> CommandResult:
    """
    Run the command that ``args.command`` names on the log or the pipeline that ``args.target`` names, and return its result.

    :raises InvalidError: the arguments or the pipeline are not valid for this command
    :raises StreamsemError: the command failed
    """
    command, declared = _COMMANDS[args.command], next(each for each in COMMANDS if each.name == args.command)
    vars(args).update(declared.values(vars(args), option))
    if not hasattr(args, "target"):
        return command(args)
    if args.command == "run":
        args.target = _target_of_run(args)
    if "://" not in args.target:
        args.target = os.path.abspath(args.target)
    file_and_variable = re.fullmatch(r"(.+\.py):(\w+)", args.target)
    if file_and_variable is None and _names_python_file(args.target):
        raise InvalidError(
            "a pipeline in a Python file needs the name of its variable; nothing was read", given=args.target
        ).advising(
            f"name the variable: streamsem {args.command} {os.path.relpath(args.target.rpartition('.py')[0])}.py:NAME."
        )
    if not args.target.endswith(".toml") and file_and_variable is None:
        _refuse_without_pipeline(args, declared.builds)
        args.pipeline, args.log = None, args.target
        return command(args)
    pipeline = (
        load_pipeline(args.target)
        if file_and_variable is None
        else _pipeline_of(file_and_variable[1], file_and_variable[2])
    )
    if file_and_variable is not None and args.command in ("run", "reprocess") and pipeline.transform is None:
        summary = "the pipeline has no transform, and this command would not run the function of a @task.micro_batch task; nothing was written"
        raise InvalidError(summary, given=args.target, accepted="a pipeline with transform=").advising(
            'run the DAG\'s task. To reprocess versions, set rerun="reprocess" in the task, and clear it.'
        )
    if holds_templates(pipeline):
        summary = "the pipeline contains templates, which only an Airflow task renders; nothing was written"
        raise InvalidError(summary, given=args.target, accepted="a pipeline with values in place of the templates")
    with located(pipeline) as args.pipeline:
        args.log = args.pipeline.log
        return command(args)


def _names_python_file(target: str) -> bool:
    return re.search(r"\.py(:[^/]*)?$", target) is not None and not os.path.isdir(target)


def _target_of_run(args: argparse.Namespace) -> str:
    if (args.target is None) == (args.source is None) or (args.into is not None and args.source is None):
        names = [name for name in ("target", "source", "into") if getattr(args, name) is not None]
        accepted = ["streamsem run PIPELINE", "streamsem run --source rate --into DIR"]
        raise InvalidError("run requires either a pipeline, or --source", given=names, accepted=accepted)
    return args.target if args.source is None else first_look.pipeline_file(args.into or first_look.DIRECTORY)


def _pipeline_of(path: str, name: str) -> Pipeline:
    """The file's directory is added to ``sys.path``, because in Airflow the DAGs folder is on ``sys.path``."""
    if not os.path.isfile(path):
        raise InvalidError("the file does not exist", file=path)
    sys.path.insert(0, os.path.dirname(path))
    try:
        # In the log, a transform has the name that it has in Airflow: that of the module and the function.
        pipeline = runpy.run_path(path, run_name=os.path.splitext(os.path.basename(path))[0]).get(name)
    except (Exception, SystemExit) as error:  # the file of the user may raise any error
        raise InvalidError("the file fails when it is executed", file=path, reason=repr(error)) from error
    if not isinstance(pipeline, Pipeline):
        raise InvalidError("the file has no variable of this name that is a pipeline", file=path, given=name)
    return pipeline


def _refuse_without_pipeline(args: argparse.Namespace, builds: str) -> None:
    """A writer of the log could choose, by the spec in it, which code such a command runs here, and with which credentials."""
    if builds:
        raise InvalidError(
            f"`streamsem {args.command}` needs the settings of {builds}, and reads them only from your pipeline file, never from a log",
            given=args.target,
            accepted=f"streamsem {args.command} PIPELINE.toml, or FILE.py:NAME",
        )


def log(args: argparse.Namespace) -> CommandResult:
    """List versions (``streamsem log``)."""
    opened = open_log(args.log)
    # An attempt that ended before it wrote its manifest has left files only in the datasets. Only the user's pipeline names their locations.
    sinks = {} if args.pipeline is None else args.pipeline.sinks
    rows = [
        {**plain(summary), "attempts": len(attempts_of(opened.log, sinks, summary.version))}
        for summary in History(opened).summaries(limit=args.limit)
    ]
    return CommandResult(
        document={"log": opened.log.store.url, "pipeline": opened.record.name, "versions": rows},
        tables=[log_table(opened.record.name, rows, now_ms=SYSTEM_CLOCK.now_ms())],
    )


def show(args: argparse.Namespace) -> CommandResult:
    """Show the stored entries of a version (``streamsem show``)."""
    integer("N", args.version, least=0, most=N - 1)
    opened = open_log(args.log)
    plan, outcome = opened.log.plan(args.version), opened.log.outcome(args.version)
    if plan is None:
        raise InvalidError("the log has no such version", given=args.version, newest_closed=opened.head)
    receipts = opened.log.receipts(args.version) if outcome is not None and outcome.requires_receipts else None
    document = {
        "version": args.version,
        "plan": plain(plan),
        "outcome": None if outcome is None else plain(outcome),
        "receipts": plain(receipts),
    }
    version = opened.version(args.version)
    assert version is not None  # it has a plan
    result = "held" if version.is_held else "open" if outcome is None else outcome.result
    lines = [f"version {args.version}: {plan.work.describe()}, {result}"]
    lines += [f"does not pass a gate: {each.found}" for each in version.failed_gates]
    hidden = {"plan": ("pins", "lookups", "work"), "outcome": ("sinks", "schemas", "work"), "receipts": ()}
    for title, hidden_fields in hidden.items():
        entry = document[title] or {}
        lines += [f"{title}:"] if entry else []
        lines += [f"  {name:<18} {_text(name, value)}" for name, value in entry.items() if name not in hidden_fields]
    lines += _files_of(outcome) if outcome is not None else []
    return CommandResult(document=document, lines=lines)


def _text(name: str, value: Json) -> str:
    if name == "state" and isinstance(value, dict):
        return _state_text(value)
    if name.endswith("_at_ms") and isinstance(value, int):
        return f"{value} ({utc(value)} UTC)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _state_text(state: dict[str, Json]) -> str:
    decoded = operator_state(state)
    stored = () if decoded is None else decoded.operators
    operators = [f"{operator.name}: {operator.rows} rows, {operator.bytes} bytes" for operator in stored]
    layers = id_layers(state)
    ids = [f"dedup: {sum(layer.rows for layer in layers)} ids in {len(layers)} layers"] if layers else []
    tombstones = [
        f"tombstones of {sink}: {sum(layer.rows for layer in stored.layers)} in {len(stored.layers)} layers"
        for sink, stored in tombstones_of(state).items()
    ]
    return "; ".join([*operators, *ids, *tombstones]) or "empty"


def _files_of(outcome: Outcome) -> list[str]:
    return [
        f"  {name}: {file.key}  {file.rows} rows  {file.bytes} bytes"
        for name, sink in sorted(stored_output(outcome).items())
        for file in sink.files
    ]


def files(args: argparse.Namespace) -> CommandResult:
    """List the visible files (``streamsem files``)."""
    visible = open_log(args.log, pipeline=args.pipeline).files(version=args.at, since=args.since, sink=args.sink)
    return CommandResult(document={"files": [plain(file) for file in visible]}, lines=[file.path for file in visible])


def export(args: argparse.Namespace) -> CommandResult:
    """Describe the visible files of a version for another engine (``streamsem export``)."""
    opened = open_log(args.log, pipeline=args.pipeline)
    at = opened.head if args.at is None else args.at
    sink = sink_of(opened, args.sink, version=at)
    visible = opened.files(version=at, sink=sink)
    document: dict[str, Any] = {"log": opened.log.store.url, "version": at, "sink": sink, "files": len(visible)}
    if args.format != "symlink":
        if args.into is not None:
            raise InvalidError("--into requires --format symlink", format=args.format)
        text = (export_.duckdb_view if args.format == "duckdb" else export_.polars_scan)(opened.record.name, visible)
        return CommandResult(document={**document, "text": text}, lines=text.split("\n"))
    if args.into is None:
        raise InvalidError("--format symlink requires --into")
    manifests = export_.write_symlink_manifests(open_store(args.into), visible)
    summary = f"{len(manifests)} manifests of version {at} name {len(visible)} files"
    return CommandResult(document={**document, "manifests": manifests}, lines=[summary])


def state(args: argparse.Namespace) -> CommandResult:
    """Show the state of the transform's operators (``streamsem state``)."""
    opened = open_log(args.log)
    versions: list[Json] = []
    for version in opened.versions(limit=args.limit):
        decoded = None if version.outcome is None else operator_state(version.outcome.state)
        if version.outcome is not None and decoded is not None:
            operators = [
                {"name": operator.name, "rows": operator.rows, "bytes": operator.bytes}
                for operator in decoded.operators
            ]
            late = version.outcome.counts.get("late")
            versions.append(
                {
                    "version": version.version,
                    "watermark_ms": version.outcome.watermark_ms,
                    "late": late,
                    "operators": operators,
                }
            )
    rows = [
        [
            str(row["version"]),
            utc(row.get("watermark_ms")),
            str(row["late"] or 0),
            operator["name"],
            f"{operator['rows']:,}",
            f"{operator['bytes']:,}",
        ]
        for row in versions
        for operator in row["operators"]
    ]
    table = Table(
        title=f"state of {opened.record.name}",
        columns=["version", "watermark (UTC)", "late", "operator", "rows", "bytes"],
        rows=rows,
        left_out_first=["bytes", "late"],
    )
    lines = [] if rows else ["no version in this range keeps state"]
    document = {"log": opened.log.store.url, "pipeline": opened.record.name, "versions": versions}
    return CommandResult(document=document, tables=[table] if rows else [], lines=lines)


def quarantine(args: argparse.Namespace) -> CommandResult:
    """Show quarantined records (``streamsem quarantine``)."""
    opened = open_log(args.log, pipeline=args.pipeline)
    records = list(islice(opened.quarantined(version=args.at, since=args.since), args.limit + 1))
    shown = records[: args.limit]
    rows = [
        [str(record["version"]), _position(record), str(record.get("error", "")), str(record.get("raw", ""))]
        for record in shown
    ]
    columns = ["version", "where", "error", "record"]
    table = Table(title=f"quarantine of {args.log}", columns=columns, rows=rows, folded=["where", "error", "record"])
    more = [f"Only the first {args.limit} are shown. Do: use --limit."] if len(records) > len(shown) else []
    lines = more if shown else ["there are no quarantined records"]
    return CommandResult(
        document={"records": shown, "complete": not more}, tables=[table] if shown else [], lines=lines
    )


def _position(record: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in record.items() if name not in ("version", "raw", "encoding", "error")}
    return "\n".join(f"{name} {value}" for name, value in sorted(fields.items()) if value is not None)


def verify(args: argparse.Namespace) -> CommandResult:
    """Verify a log and its datasets (``streamsem verify``)."""
    if args.deep and args.log_only:
        raise InvalidError("--deep reads the rows, and --log-only reads only the log: give one of them")
    if args.deep:
        return _verified_deeply(args)
    return _result_of_verdict(verify_(args.pipeline or args.log, files=not args.log_only))


def _verified_deeply(args: argparse.Namespace) -> CommandResult:
    from airflow_provider_streamsem.readers import row_checks

    opened = open_log(args.log, pipeline=args.pipeline)
    columns = row_checks.id_columns(opened, args.ids)  # refuses wrong arguments before the data is read
    verdict = verify_(args.pipeline or args.log)
    try:
        verdict.violations += row_checks.check_rows(engine_of_arguments(args, None).session(), opened, columns)
        verdict.violations += () if args.pipeline is None else row_checks.check_source(args.pipeline)
    except Exception as error:
        if verdict.clean:
            raise
        print(f"the rows were not compared: {type(error).__name__}", file=sys.stderr)
    return _result_of_verdict(verdict)


def _result_of_verdict(verdict: Verdict) -> CommandResult:
    document = {**plain(verdict), "clean": verdict.clean}
    lines = descriptions.verdict(verdict)
    return CommandResult(document=document, lines=lines, exit_code=0 if verdict.clean else 1)


def doctor(args: argparse.Namespace) -> CommandResult:
    """Probe the store of a log (``streamsem doctor``)."""
    report = doctor_.examine(commit_log_at(args.log))
    return _result_of_checks(f"doctor of {report.location}", plain(report), report.checks)


def doctor_spark(args: argparse.Namespace) -> CommandResult:
    """Check the installed Spark (``streamsem doctor-spark``)."""
    from airflow_provider_streamsem.cli import spark_check

    if args.class_archive is not None:
        args.spark_conf = spark_check.with_class_archive(args.spark_conf, args.class_archive)
    engine = engine_of_arguments(args, None)
    if args.class_archive is not None and engine.is_remote:
        raise InvalidError(
            "a client of Spark Connect cannot write a class archive of the server; nothing was run"
        ).advising("run this command without --spark-conn-id on the machine of the server.")
    checks = tuple(spark_check.checks(engine))
    if args.class_archive is not None:
        checks = (*checks, spark_check.class_archive(args.class_archive))
    return _result_of_checks("doctor of Spark", {"checks": plain(checks)}, checks)


def check_monoid(args: argparse.Namespace) -> CommandResult:
    """Test the laws of a monoid in Python (``streamsem check-monoid``)."""
    from airflow_provider_streamsem.cli import monoid_check

    sys.path.insert(0, os.getcwd())
    checks = tuple(monoid_check.checks(args.monoid, args.rows))
    return _result_of_checks(f"laws of {args.monoid}", {"checks": plain(checks)}, checks)


def _result_of_checks(title: str, document: Json, checks: Iterable[doctor_.Check]) -> CommandResult:
    rows = [["passed" if check.passed else "FAILED", check.name, check.observed] for check in checks]
    table = Table(title=title, columns=["", "probe", "observed"], rows=rows, folded=["probe", "observed"])
    passed = all(check.passed for check in checks)
    return CommandResult(document={**document, "passed": passed}, tables=[table], exit_code=0 if passed else 1)


def partitions(args: argparse.Namespace) -> CommandResult:
    """Show the partitions by event time, or the intervals (``streamsem partitions``)."""
    opened = open_log(args.log, pipeline=args.pipeline)
    if opened.head >= 0 and opened.log.closed_outcome(opened.head).intervals:
        return _intervals(args, opened)
    found = partition_states(opened, since=args.since, until=args.until)
    found = [each for each in found if not (args.incomplete and each.is_complete)]
    rows = [
        [
            each.key,
            f"{each.rows:,}",
            f"{each.late_rows:,}",
            str(each.versions),
            str(each.newest),
            "complete" if each.is_complete else "incomplete",
            "" if each.complete_in is None else str(each.complete_in),
        ]
        for each in found
    ]
    columns = ["partition", "rows", "late rows", "versions", "newest", "state", "complete in"]
    table = Table(title=f"partitions of {args.log}", columns=columns, rows=rows)
    lines = [] if rows else ["there are no such partitions"]
    return CommandResult(document={"partitions": plain(found)}, tables=[table] if rows else [], lines=lines)


def _intervals(args: argparse.Namespace, opened: CommittedLog) -> CommandResult:
    found = interval_states(opened, since=args.since, until=args.until)
    found = [each for each in found if not (args.incomplete and each.read_in is not None)]
    rows = [
        [
            each.start,
            each.end,
            ", ".join(f"{name} {rows:,}" for name, rows in sorted(each.rows.items())),
            "missing" if each.read_in is None else "read",
            "" if each.read_in is None else str(each.read_in),
            "" if each.newest is None else str(each.newest),
        ]
        for each in found
    ]
    columns = ["start", "end", "rows", "state", "read in", "newest"]
    table = Table(title=f"intervals of {args.log}", columns=columns, rows=rows)
    lines = [] if rows else ["there are no such intervals"]
    return CommandResult(document={"intervals": plain(found)}, tables=[table] if rows else [], lines=lines)


def lag(args: argparse.Namespace) -> CommandResult:
    """Show the lag of a pipeline (``streamsem lag``)."""
    result = lag_of(args.pipeline)
    newest = History(open_log(args.log)).summaries(limit=top_.NEWEST)
    history = [each.lag for each in reversed(newest) if each.lag is not None]
    age_ms = result.version_age_ms
    version = "none" if age_ms is None else f"{result.version}, closed {age_ms / 1000:.0f} s ago"
    return CommandResult(
        document={**plain(result), "history": history},
        lines=[
            f"lag            {result.lag} {result.unit}",
            f"when planned   {top_.sparkline(history)} 0 to {max(history, default=0):,}: the newest {len(history)} versions",
            f"minimum clock  {_clock(result.minimum_clock_ms)}",
            *([] if result.watermark_ms is None else [f"watermark      {utc(result.watermark_ms)} UTC"]),
            f"newest version {version}",
        ],
    )


def _clock(minimum_clock_ms: int | None) -> str:
    if minimum_clock_ms is None:
        return "none: all items are committed"
    unknown = "unknown: the source has no times of its unread items"
    return f"{utc(minimum_clock_ms)} UTC" if minimum_clock_ms else unknown


def abort(args: argparse.Namespace) -> CommandResult:
    """Abort the open version (``streamsem abort``)."""
    opened = open_log(args.log)
    outcome = abort_version(opened.log, opened.record, args.version, reason=args.reason)
    result = "aborted" if not outcome.committed else "an attempt committed it first; it stays committed"
    document = {"version": args.version, "result": outcome.result}
    return CommandResult(document=document, lines=[f"version {args.version}: {result}"])


def skip(args: argparse.Namespace) -> CommandResult:
    """Skip publishing a version to sinks (``streamsem skip``)."""
    receipts = skip_(args.pipeline, args.version, sink=args.sinks, reason=args.reason)
    results = {name: receipt.result for name, receipt in receipts.sinks.items()}
    lines = [f"version {args.version}: sink {name}: {result}" for name, result in sorted(results.items())]
    return CommandResult(document={"version": args.version, "results": results}, lines=lines)


def _url(location: str) -> str:
    return location if "://" in location else os.path.abspath(location)


def _urls(args: argparse.Namespace) -> list[str]:
    paths = [log for log in args.logs if "://" not in log and not os.path.isdir(log)]
    pipelines = [path for path in paths if path.endswith(".toml") or _names_python_file(path)]
    if pipelines:
        raise InvalidError(f"{args.command} takes logs, and no pipelines", given=pipelines).advising(
            f"name the field `log` of each pipeline: streamsem {args.command} LOG."
        )
    return [_url(log) for log in args.logs]


def move_log(args: argparse.Namespace) -> CommandResult:
    """Move a log (``streamsem move-log``)."""
    moved = move.move_log(commit_log_at(args.log), commit_log_at(_url(args.to)), already_moved=args.already_moved)
    lines = [
        f"moved pipeline {moved.pipeline} from {moved.moved_from} to {moved.moved_to}: versions up to {moved.version}, {moved.copied} objects copied",
        f"Set the pipeline's log to {moved.moved_to}. Runs with the old log are refused from now on.",
    ]
    return CommandResult(document=plain(moved), lines=lines)


def fork(args: argparse.Namespace) -> CommandResult:
    """Create the log of a fork (``streamsem fork``)."""
    until_ms = None if args.until is None else time_ms("--until", args.until)
    from_ms = None if args.from_time is None else time_ms("--from", args.from_time)
    created = fork_(args.pipeline, _url(args.original), version=args.at, until_ms=until_ms, from_ms=from_ms)
    position = "at the initial offsets" if created.version < 0 else f"after version {created.version}"
    if created.from_ms is not None:
        position = f"at the records from {utc(created.from_ms)} UTC on"
    action = f"created {created.log}" if created.is_new else f"{created.log} exists already"
    lines = [
        f"{action}, which starts {position} of {created.forked_from}: {created.copied} objects copied",
        f"next offsets: {', '.join(f'{p} {at}' for p, at in sorted(created.offsets.items())) or 'none'}",
    ]
    return CommandResult(document=plain(created), lines=lines)


def drop(args: argparse.Namespace) -> CommandResult:
    """Delete the log and the datasets of a fork (``streamsem drop``)."""
    dropped = drop_(args.pipeline, dry_run=args.dry_run)
    objects = f"{dropped.objects} objects of the log {dropped.log}"
    action = "would delete" if args.dry_run else "deleted"
    lines = [
        f"{action} {dropped.attempts} attempts and {objects}, {dropped.bytes} bytes",
        f"{dropped.forked_from} stays as it is",
    ]
    return CommandResult(document={**plain(dropped), "dry_run": args.dry_run}, lines=lines)


def diff(args: argparse.Namespace) -> CommandResult:
    """Compare a fork with its original, or a held version with the rows that it would replace (``streamsem diff``)."""
    from airflow_provider_streamsem.cli import fork_comparison

    if args.original.isdecimal():
        opened = open_log(args.log, pipeline=args.pipeline)
        session = engine_of_arguments(args, None).session()
        return fork_comparison.held_compared(
            session, opened, int(args.original), sink=args.sink, attempt_id=args.attempt, limit=args.limit
        )
    logs = fork_comparison.opened(args.log, _url(args.original))  # refuses wrong logs before Spark starts
    return fork_comparison.compared(engine_of_arguments(args, None).session(), logs, sink=args.sink, limit=args.limit)


def explain(args: argparse.Namespace) -> CommandResult:
    """Show the guarantee of a pipeline (``streamsem explain``)."""
    pipeline = args.pipeline
    computed, risks = guarantee(pipeline), warnings(pipeline)
    lines = str(computed).split("\n")
    if pipeline.transform is None and ".py:" in args.target:
        lines += ["the function of a @task.micro_batch task is not part of the pipeline, so it is not shown"]
    lines += _rules(pipeline)
    unchecked = [name for name, query in pipeline.queries.items() if query]
    lines += [f"{name} is not checked here: only a batch resolves its columns and functions" for name in unchecked]
    lines += [f"sink {name}: {label.replace('_', '-')}" for name, label in sorted(computed.sinks.items())]
    upstreams = [found for source in pipeline.source.parts.values() if (found := _upstream(pipeline, source))]
    lines += [text for _, text in upstreams]
    lines += [f"warning: {warning}" for warning in risks]
    required = pipeline.spark_packages
    coordinates = (
        (packages.coordinates(required) or ",".join(package.coordinates for package in required)).split(",")
        if required
        else []
    )
    lines += [f"Spark package: {name}" for name in coordinates]
    missing_extras = extras.missing(pipeline.extras)
    lines += [f"not installed here: {extras.install_command(missing_extras)}"] if missing_extras else []
    return CommandResult(
        document={
            **plain(computed),
            "queries": {name: pipeline.queries[name] for name in unchecked},
            "upstreams": [facts for facts, _ in upstreams],
            "warnings": risks,
            "unchecked": unchecked,
            "spark_packages": coordinates,
            "missing_extras": missing_extras,
        },
        lines=lines,
    )


def _rules(pipeline: Pipeline) -> list[str]:
    """Describe the expectations and the gates of a pipeline, a line each."""
    of_records = {"records": pipeline.expect, **{f"sink {name}": sink.expect for name, sink in pipeline.sinks.items()}}
    rules = [
        f"expectation for {rows}: {name}: {rule.predicate}; on failure: {rule.on_failure}"
        for rows, expect in of_records.items()
        for name, rule in expect.items()
    ]
    return rules + [
        f"gate: {', '.join(f'{name}={value}' for name, value in gate.to_json().items() if name != 'on_failure')}; on failure: {gate.on_failure}"
        for gate in pipeline.gates
    ]


def _upstream(pipeline: Pipeline, source: Source) -> tuple[dict[str, Any], str] | None:
    """Return the pipeline from which a source reads, as JSON and as a line of text. Its log is read; if that fails, both contain the reason."""
    try:
        with located(pipeline):
            upstream = source.upstream()
    except StreamsemError as error:
        return {"error": str(error)}, f"upstream: {error}"
    if upstream is None:
        return None
    conditions = f" ({upstream.conditions})" if upstream.conditions else ""
    text = f"upstream {upstream.pipeline}, sink {upstream.sink}, {upstream.log}"
    return plain(upstream), f"{text}: {upstream.label.replace('_', '-')}{conditions}"


def top(args: argparse.Namespace) -> CommandResult:
    """Show the state of several pipelines (``streamsem top``)."""
    rows = top_.pipelines(_urls(args))
    return CommandResult(document={"pipelines": rows}, tables=[top_.overview(rows, now_ms=SYSTEM_CLOCK.now_ms())])


def ui(args: argparse.Namespace) -> CommandResult:
    """Serve the page until the command is interrupted (``streamsem ui``)."""
    from airflow_provider_streamsem.web.server import serve

    logs = _urls(args)
    try:
        with suppress(KeyboardInterrupt):
            serve(logs, port=args.port, shows_records=args.show_records, on_start=_show_address)
    except OSError as error:
        summary = "the page cannot be served at this port"
        raise InvalidError(summary, port=args.port, reason=error.strerror or "").advising(
            "choose another port, or leave out --port."
        ) from error
    return CommandResult(document={"logs": logs}, lines=["stopped"])


def _show_address(url: str) -> None:
    print(f"{url}  (Ctrl-C stops it)", file=sys.stderr, flush=True)


def vacuum(args: argparse.Namespace) -> CommandResult:
    """Delete files that no reader and no run needs (``streamsem vacuum``)."""
    vacuumed = vacuum_log(
        args.pipeline,
        dry_run=args.dry_run,
        all_versions=args.all_versions,
        keep_versions=args.keep_versions,
        keep_days=args.keep_days,
    )
    return CommandResult(
        document={**plain(vacuumed), "dry_run": args.dry_run},
        lines=descriptions.vacuumed(vacuumed, dry_run=args.dry_run, keep_versions=args.keep_versions),
    )


_COMMANDS: dict[str, Callable[[argparse.Namespace], CommandResult]] = {
    "run": run,
    "reprocess": reprocess,
    "rollback": rollback,
    "compact": compact,
    "erase": erase,
    "alter": alter,
    "commit": commit,
    "fork": fork,
    "diff": diff,
    "drop": drop,
    "log": log,
    "show": show,
    "files": files,
    "export": export,
    "state": state,
    "quarantine": quarantine,
    "partitions": partitions,
    "verify": verify,
    "doctor": doctor,
    "doctor-spark": doctor_spark,
    "check-monoid": check_monoid,
    "import-offsets": import_offsets,
    "export-offsets": export_offsets,
    "lag": lag,
    "abort": abort,
    "skip": skip,
    "move-log": move_log,
    "explain": explain,
    "top": top,
    "ui": ui,
    "vacuum": vacuum,
}
"""Name on the command line → function."""
