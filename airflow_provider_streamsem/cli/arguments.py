"""
Definitions of the commands and their arguments, for ``streamsem`` and ``airflow streamsem``.

This module does not import the implementations, because every ``airflow`` command imports it.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_provider_streamsem.verbs import (
    DRY_RUN,
    ENGINE,
    SESSION,
    VERBS,
    VERSION,
    Flag,
    Integer,
    Parameter,
    Positional,
    Verb,
)
from airflow_provider_streamsem.version import __version__

EXIT_CODES = """exit codes:
  0  done
  1  done, but a check found a violation, diff found different rows or offsets, or reprocess --quarantined could not reprocess a version
  2  an argument, a file or the installation is not valid; no rows were committed
  3  the store or the engine failed; run the same command again: it continues from the state of the log
  4  the command was refused and would be refused again; the message says what to change
  5  an unexpected error; its traceback is on standard error
"""


GROUPS = {
    "run": ("run", "explain", "check-monoid"),
    "inspect": ("log", "show", "files", "export", "state", "quarantine", "partitions", "lag", "top", "ui"),
    "correct": ("reprocess", "commit", "abort", "skip", "rollback", "alter"),
    "maintain": ("verify", "compact", "erase", "vacuum", "doctor", "doctor-spark"),
    "move": ("move-log", "fork", "diff", "drop", "import-offsets", "export-offsets"),
}
"""Title → the commands below it in ``streamsem --help``."""

_TARGET = Positional(
    "target",
    "a pipeline: a TOML file, or a Python file and a variable, such as dags/orders.py:ORDERS",
    metavar="PIPELINE",
)
_LOG = replace(_TARGET, help=f"URL or path of a commit log, or {_TARGET.help}", metavar="LOG|PIPELINE")
_JSON = Flag("json", "print one JSON document on standard output")
_LOGS = Positional("logs", "URL or path of a commit log", type="array", metavar="LOG")
_AT = Integer("at", "as of this version (default: the newest)")
_SINK = Parameter("sink", "name of the files sink, if there are several")
_WIDE = Flag("wide", "show all columns and whole texts, even if the terminal is too narrow")
_OFFSETS = (
    Parameter("checkpoint", "URL or path of the checkpoint of a Structured Streaming query", metavar="DIR"),
    Parameter("group", "in place of a checkpoint: a Kafka consumer group", metavar="NAME"),
)


def _limit(help: str) -> Parameter:
    return Integer("limit", help, minimum=1, default=20)


COMMANDS = (
    *VERBS,
    Verb(
        name="run",
        help="Run one batch. With --drain, run batches up to the current end offsets of the source.",
        example="orders.toml --drain",
        parameters=(
            Flag("drain", "run batches up to the end offsets that the source has when the run starts"),
            Parameter(
                "interval",
                "for a pipeline with intervals: read the records that arrived in this time, such as 2026-01-31T05:00Z/2026-01-31T06:00Z. If it was read "
                "before, its rows are replaced",
                metavar="START/END",
            ),
            Parameter(
                "source",
                "in place of a pipeline: generate ten records a second, for a first look without an external system",
                choices=("rate",),
            ),
            Parameter(
                "into",
                "with --source: directory of the pipeline file, the log and the rows (default: ./streamsem-rate)",
                metavar="DIR",
            ),
            *ENGINE,
        ),
        is_target_optional=True,
        builds="the source and the sinks",
    ),
    Verb(
        name="log",
        help="List versions, newest first.",
        example="s3://lake/_streamsem/orders --limit 5",
        parameters=(_limit("number of versions"), _WIDE),
    ),
    Verb(
        name="show",
        help="Show the plan and the outcome of a version.",
        example="s3://lake/_streamsem/orders 41",
        parameters=(VERSION,),
    ),
    Verb(
        name="files",
        help="List the visible files, for any engine that reads files.",
        example="s3://lake/_streamsem/orders --since 40",
        parameters=(
            _AT,
            Integer("since", "only files of versions above this one (exclusive)"),
            Parameter("sink", "only files of this sink"),
        ),
    ),
    Verb(
        name="export",
        help="Describe the visible files of a version for an engine that does not read the log.",
        example="s3://lake/_streamsem/orders --format duckdb",
        parameters=(
            Parameter(
                "format",
                "symlink: manifests for Athena, Trino and Hive; duckdb: the SQL of a view; polars: the Python code of a scan",
                required=True,
                choices=("symlink", "duckdb", "polars"),
            ),
            _AT,
            _SINK,
            Parameter("into", "with symlink: directory for the manifests; a new one for each version", metavar="DIR"),
        ),
    ),
    Verb(
        name="state",
        help="Show the state that the transform keeps after each version, newest first.",
        example="s3://lake/_streamsem/orders --limit 5",
        parameters=(_limit("number of versions"), _WIDE),
    ),
    Verb(
        name="quarantine",
        help="Show the quarantined records: records that could not be parsed, and late rows, and their positions in the source.",
        example="s3://lake/_streamsem/orders --limit 100",
        parameters=(
            _AT,
            Integer("since", "only records of versions above this one"),
            _limit("maximum number of records"),
        ),
    ),
    Verb(
        name="partitions",
        help="Show the partitions by event time: their rows, and which of them are complete. For a pipeline with intervals: those that were read.",
        example="s3://lake/_streamsem/orders --since 2026-01-01",
        parameters=(
            Parameter("since", "the first partition, or the beginning of its key, such as 2026-01", metavar="KEY"),
            Parameter("until", "the last partition, or the beginning of its key", metavar="KEY"),
            Flag("incomplete", "only partitions that are not complete, or time between intervals that was not read"),
        ),
    ),
    Verb(
        name="doctor",
        help="Test whether the log's store supports create-if-absent. The test writes objects below doctor/.",
        example="s3://lake/_streamsem/orders",
    ),
    Verb(
        name="doctor-spark",
        help="Run small batches on the installed Spark, or on a cluster, and check their counts.",
        example="--master 'local[2]'",
        parameters=(
            *SESSION,
            Parameter(
                "class_archive",
                "also write an archive of the classes that the batches have loaded, with which drivers start faster",
                metavar="FILE",
            ),
        ),
        takes_target=False,
    ),
    Verb(
        name="check-monoid",
        help="Test the laws of a monoid in Python with example rows.",
        example="my_package.monoids:LONGEST rows.jsonl",
        parameters=(
            Positional("monoid", "a Monoid object, such as my_package.monoids:LONGEST", metavar="MODULE:NAME"),
            Positional("rows", "JSON Lines: one example row per line", metavar="FILE"),
        ),
        takes_target=False,
    ),
    Verb(
        name="import-offsets",
        help="Show the offsets of a Structured Streaming query or of a consumer group as `starting` of a Kafka source.",
        example="orders.toml --checkpoint s3://lake/checkpoints/orders",
        parameters=_OFFSETS,
        builds="the source",
    ),
    Verb(
        name="export-offsets",
        help="Write the next offsets of the pipeline to a new checkpoint of Structured Streaming, or to a consumer group.",
        example="orders.toml --group orders",
        parameters=_OFFSETS,
        builds="the source",
    ),
    Verb(
        name="lag", help="Show how far the pipeline is behind its source.", example="orders.toml", builds="the source"
    ),
    Verb(
        name="move-log",
        help="Move a commit log to another location. Datasets stay at their locations. After a crash, run the command again.",
        example="s3://lake/_streamsem/orders s3://new-lake/_streamsem/orders",
        parameters=(
            Positional("to", "URL or path of the new location", metavar="NEW"),
            Flag(
                "already_moved",
                "only record the move, because all objects were moved by hand and none is left at the old location",
            ),
        ),
    ),
    Verb(
        name="diff",
        help="Compare a fork with its original, or a held version with what it would replace.",
        example="s3://lake/_streamsem/orders_v2 s3://lake/_streamsem/orders --limit 5",
        parameters=(
            Positional(
                "original", "URL or path of the original pipeline's log; or the number of a held version", metavar="LOG"
            ),
            _SINK,
            Parameter("attempt", "of a held version: which attempt, if several were staged", metavar="ID"),
            _limit("number of different rows to show, also of each state"),
            *SESSION,
        ),
    ),
    Verb(
        name="drop",
        help="Delete a fork: its log and its datasets. Stop its runs first.",
        example="orders_v2.toml --dry-run",
        parameters=(DRY_RUN,),
        builds="the sinks",
    ),
    Verb(
        name="top",
        help="Show the newest versions of several logs. In a terminal, the table is refreshed until the command is interrupted.",
        example="s3://lake/_streamsem/orders s3://lake/_streamsem/payments",
        parameters=(
            _LOGS,
            Integer("interval", "seconds between two refreshes", minimum=1, default=5, metavar="S"),
        ),
        takes_target=False,
    ),
    Verb(
        name="ui",
        help="Show logs in a browser, on this machine only, until the command is interrupted.",
        example="s3://lake/_streamsem/orders s3://lake/_streamsem/payments",
        parameters=(
            _LOGS,
            Integer("port", "port of the page; 0: any free port", minimum=0, maximum=65_535, default=0),
            Flag("show_records", "also show the contents of quarantined records on the page"),
        ),
        takes_target=False,
    ),
    Verb(
        name="explain",
        help="Show the guarantee of the pipeline and its reasons.",
        example="orders.toml",
        builds="the source and the sinks",
    ),
)


def option(parameter: Parameter | str) -> str:
    """Return the name of a parameter on the command line."""
    if isinstance(parameter, Parameter):
        if parameter.is_positional:
            return parameter.metavar or parameter.name
        parameter = parameter.option or parameter.name
    return f"--{parameter.replace('_', '-')}"


def arguments_of(command: Verb) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the flags and the settings for ``argparse`` of each argument of a command, including those that several commands share."""
    target = replace(_TARGET if command.builds else _LOG, required=not command.is_target_optional)
    for parameter in (*((target,) if command.takes_target else ()), _JSON, *command.parameters):
        yield _argument(parameter)


def _argument(parameter: Parameter) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The declaration has the defaults. Here they are ``None``, which shows that the user has given no value."""
    settings: dict[str, Any] = {"help": parameter.described(option(parameter.needs))}
    is_array = parameter.type == "array"
    if parameter.type == "boolean":
        settings["action"] = "store_true"
    else:
        settings |= {"metavar": parameter.metavar, "choices": parameter.choices or None}
        settings |= {"type": int} if parameter.type == "integer" else {}
    if parameter.is_positional:
        return (parameter.name,), {**settings, "nargs": "+" if is_array else None if parameter.required else "?"}
    if is_array:
        settings |= {"action": "append", "help": f"{settings['help']}; may be repeated"}
    return (option(parameter),), {**settings, "dest": parameter.name, "required": parameter.required}


def _listed() -> str:
    helps = {command.name: command.help for command in COMMANDS}
    lines = []
    for title, names in GROUPS.items():
        lines.append(f"{title}:")
        for name in names:
            lines.append(textwrap.fill(helps[name], 100, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18))
        lines.append("")
    return "\n".join(lines).rstrip()


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``streamsem``."""
    top = argparse.ArgumentParser(
        prog="streamsem",
        usage="streamsem [-h] [--version] [-v] COMMAND ...",
        description=f"Run, inspect and maintain micro-batch pipelines with a commit log.\n\n{_listed()}",
        epilog=f"streamsem COMMAND --help shows the arguments of a command and an example.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"streamsem {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="print log lines to standard error")
    commands = top.add_subparsers(
        prog="streamsem", dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name,
            description=command.description,
            epilog=f"example:\n  streamsem {command.name} {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for flags, settings in arguments_of(command):
            subparser.add_argument(*flags, **settings)
    return top
