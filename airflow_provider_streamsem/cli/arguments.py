"""
Definitions of the commands and their arguments, for ``streamsem`` and ``airflow streamsem``.

This module does not import the implementations, because every ``airflow`` command imports it.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from typing import Any

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
    "inspect": ("log", "show", "files", "export", "state", "quarantine", "lag", "top", "ui"),
    "correct": ("reprocess", "commit", "abort", "skip", "rollback", "alter"),
    "maintain": ("verify", "compact", "vacuum", "doctor", "doctor-spark"),
    "move": ("move-log", "fork", "diff", "drop", "import-offsets", "export-offsets"),
}
"""Title → the commands below it in ``streamsem --help``."""


@dataclass(frozen=True, slots=True)
class Argument:
    """The arguments for one call of ``argparse.ArgumentParser.add_argument``."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """A command. The function with its name in :mod:`airflow_provider_streamsem.cli.commands` implements it, with ``_`` in place of ``-``."""

    name: str
    help: str
    example: str
    """Example arguments for the help text."""
    arguments: tuple[Argument, ...]
    takes_target: bool = True
    """Whether the command takes a log or a pipeline as its first argument."""
    is_target_optional: bool = False
    """Whether an option may replace the first argument."""
    builds: str = ""
    """
    The objects of a pipeline that the command creates; ``""`` for none. A command that creates any requires the pipeline file. It must not use the spec in a
    log instead. A writer of the log could then choose which code runs, and with which credentials.
    """


def _argument(*flags: str, **settings: Any) -> Argument:
    return Argument(flags, settings)


_LOG = _argument(
    "target",
    metavar="LOG|PIPELINE",
    help="URL or path of a commit log, or a pipeline: a TOML file, or a Python file and a variable, such as dags/orders.py:ORDERS",
)
_PIPELINE = _argument(
    "target",
    metavar="PIPELINE",
    help="a pipeline: a TOML file, or a Python file and a variable, such as dags/orders.py:ORDERS",
)
_JSON = _argument("--json", action="store_true", help="print one JSON document on standard output")
_SESSION = (
    _argument("--master", default="local[*]", help="Spark master, if no session is active (default: local[*])"),
    _argument(
        "--spark-conn-id",
        metavar="ID",
        help="instead of a master: a connection of type spark or spark_connect (outside Airflow: in AIRFLOW_CONN_<ID>)",
    ),
    _argument(
        "--spark-conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a Spark setting of the session; may be repeated",
    ),
)
_PACKAGES = _argument(
    "--spark-packages", choices=["auto"], help="auto: load the Spark packages that the pipeline needs"
)
_ENGINE = (
    _argument(
        "--run-key",
        help="identifies the run: a command with the same key returns the same result (default: a new key, which is printed)",
    ),
    *_SESSION,
    _PACKAGES,
)
_ORIGINAL = _argument("original", metavar="LOG", help="URL or path of the original pipeline's log")
_VERSION = _argument("version", type=int, metavar="N", help="the version")

_OFFSETS = (
    _argument("--checkpoint", metavar="DIR", help="URL or path of the checkpoint of a Structured Streaming query"),
    _argument("--group", metavar="NAME", help="in place of a checkpoint: a Kafka consumer group"),
)

COMMANDS = (
    Command(
        "run",
        "Run one batch. With --drain, run batches up to the current end offsets of the source.",
        "orders.toml --drain",
        (
            _argument(
                "--drain",
                action="store_true",
                help="run batches up to the end offsets that the source has when the run starts",
            ),
            _argument(
                "--source",
                choices=["rate"],
                help="in place of a pipeline: generate ten records a second, for a first look without an external system",
            ),
            _argument(
                "--into",
                metavar="DIR",
                help="with --source: directory of the pipeline file, the log and the rows (default: ./streamsem-rate)",
            ),
            *_ENGINE,
        ),
        is_target_optional=True,
        builds="the source and the sinks",
    ),
    Command(
        "reprocess",
        "Reprocess a committed version from the same ranges, and replace its rows.",
        "orders.toml 41",
        (
            _argument(
                "version",
                metavar="N",
                nargs="?",
                help="the version, or versions and intervals of versions, both ends inclusive, such as 3-7,9",
            ),
            _argument("--quarantined", action="store_true", help="reprocess every version with quarantined records"),
            _argument("--since", metavar="TIME", help="select the versions that were committed at or after this time"),
            _argument("--until", metavar="TIME", help="select the versions that were committed at or before this time"),
            _argument(
                "--offsets",
                metavar="PARTITION=START:END",
                action="append",
                default=[],
                help="select the versions that have read one of the offsets [START, END); may be repeated",
            ),
            _argument(
                "--dry-run", action="store_true", help="show what would be replaced, but read and write no record"
            ),
            _argument(
                "--stage-only",
                action="store_true",
                help="stage one version and hold it: its rows become visible by `streamsem commit`, and no run plans until then",
            ),
            _argument(
                "--downstream",
                metavar="LOG",
                action="append",
                default=[],
                help="with --dry-run: also count the affected versions of a pipeline that reads this one; may be repeated",
            ),
            _argument(
                "--current-lookups",
                action="store_true",
                help="read the current rows of the lookups, instead of those that the version read",
            ),
            *_ENGINE,
        ),
        builds="the source and the sinks",
    ),
    Command(
        "commit",
        "Commit a held version, which `reprocess --stage-only` has staged.",
        "orders.toml 57",
        (_VERSION, _argument("--attempt", metavar="ID", help="the reviewed attempt, if several were staged")),
        builds="the source and the sinks",
    ),
    Command(
        "compact",
        "Rewrite the rows of many small files into fewer, larger files.",
        "orders.toml --dry-run",
        (
            _argument("--dry-run", action="store_true", help="show which files would be rewritten, but write nothing"),
            _argument(
                "--sink",
                metavar="NAME",
                help="the sink to compact (default: all files sinks). The table of a Delta or Iceberg sink is compacted only if it is named here: afterwards, "
                "versions whose files were rewritten cannot be reprocessed or rolled back in this table",
            ),
            _argument(
                "--target-file-bytes",
                metavar="N",
                type=int,
                default=134_217_728,
                help="the size of the new files in bytes (default: %(default)s)",
            ),
            _argument(
                "--max-bytes",
                metavar="N",
                type=int,
                default=4_294_967_296,
                help="the maximum size in bytes of the files that one version, or one Iceberg snapshot, rewrites (default: %(default)s)",
            ),
            *_SESSION,
            _PACKAGES,
        ),
        builds="the source and the sinks",
    ),
    Command(
        "rollback",
        "Roll the pipeline back to a version: its rows, offsets and state are again those after this version.",
        "orders.toml 41",
        (
            _argument("version", type=int, nargs="?", metavar="N", help="the newest version to keep"),
            _argument("--until", metavar="TIME", help="the newest version that was closed at or before this time"),
            _argument("--run-key", help="identifies the request: a command with the same key rolls back once"),
        ),
        builds="the source and the sinks",
    ),
    Command(
        "alter",
        "Continue the log with the given spec, although its sinks, source, deduplication or state differ from those in the log.",
        "orders.toml --dry-run",
        (
            _argument("--dry-run", action="store_true", help="show the differences, but write nothing"),
            _argument(
                "--alter-from",
                metavar="CONFIG",
                help="replace only a spec with this config, which the dry run and the error of a run show",
            ),
            _argument(
                "--moved",
                action="append",
                metavar="SINK",
                default=[],
                help="the dataset of this files sink was copied to the new path; may be repeated",
            ),
        ),
        builds="the source and the sinks",
    ),
    Command(
        "log",
        "List versions, newest first.",
        "s3://lake/_streamsem/orders --limit 5",
        (
            _argument("--limit", type=int, default=20, help="number of versions (default: 20)"),
            _argument(
                "--wide",
                action="store_true",
                help="show all columns and whole reasons, even if the terminal is too narrow",
            ),
        ),
    ),
    Command("show", "Show the plan and the outcome of a version.", "s3://lake/_streamsem/orders 41", (_VERSION,)),
    Command(
        "files",
        "List the visible files, for any engine that reads files.",
        "s3://lake/_streamsem/orders --since 40",
        (
            _argument("--at", type=int, metavar="N", help="as of this version (default: the newest)"),
            _argument("--since", type=int, metavar="N", help="only files of versions above this one (exclusive)"),
            _argument("--sink", help="only files of this sink"),
        ),
    ),
    Command(
        "export",
        "Describe the visible files of a version for an engine that does not read the log.",
        "s3://lake/_streamsem/orders --format duckdb",
        (
            _argument(
                "--format",
                required=True,
                choices=["symlink", "duckdb", "polars"],
                help="symlink: manifests for Athena, Trino and Hive; duckdb: the SQL of a view; polars: the Python code of a scan",
            ),
            _argument("--at", type=int, metavar="N", help="as of this version (default: the newest)"),
            _argument("--sink", help="name of the files sink, if there are several"),
            _argument(
                "--into", metavar="DIR", help="with symlink: directory for the manifests; a new one for each version"
            ),
        ),
    ),
    Command(
        "state",
        "Show the state that the transform keeps after each version, newest first.",
        "s3://lake/_streamsem/orders --limit 5",
        (
            _argument("--limit", type=int, default=20, help="number of versions (default: 20)"),
            _argument("--wide", action="store_true", help="show all columns, even if the terminal is too narrow"),
        ),
    ),
    Command(
        "quarantine",
        "Show the quarantined records: records that could not be parsed, and late rows, and their positions in the source.",
        "s3://lake/_streamsem/orders --limit 100",
        (
            _argument("--at", type=int, metavar="N", help="as of this version (default: the newest)"),
            _argument("--since", type=int, metavar="N", help="only records of versions above this one"),
            _argument("--limit", type=int, default=20, help="maximum number of records (default: 20)"),
        ),
    ),
    Command(
        "verify",
        "Check every invariant of the log and every visible file.",
        "orders.toml",
        (
            _argument(
                "--log-only",
                action="store_true",
                help="check only log entries and quarantined records; skip data files, markers and state",
            ),
            _argument(
                "--deep",
                action="store_true",
                help="also read all rows with Spark, look for ids that are visible more than once; with PIPELINE also compare the offsets with the source",
            ),
            _argument(
                "--ids",
                metavar="COLUMN",
                action="append",
                default=[],
                help="with --deep: a column of the id; may be repeated (default: the keys of dedup)",
            ),
            *_SESSION,
        ),
    ),
    Command(
        "doctor",
        "Test whether the log's store supports create-if-absent. The test writes objects below doctor/.",
        "s3://lake/_streamsem/orders",
        (),
    ),
    Command(
        "doctor-spark",
        "Run small batches on the installed Spark, or on a cluster, and check their counts.",
        "--master 'local[2]'",
        (
            *_SESSION,
            _argument(
                "--class-archive",
                metavar="FILE",
                help="also write an archive of the classes that the batches have loaded, with which drivers start faster",
            ),
        ),
        takes_target=False,
    ),
    Command(
        "check-monoid",
        "Test the laws of a monoid in Python with example rows.",
        "my_package.monoids:LONGEST rows.jsonl",
        (
            _argument("monoid", metavar="MODULE:NAME", help="a Monoid object, such as my_package.monoids:LONGEST"),
            _argument("rows", metavar="FILE", help="JSON Lines: one example row per line"),
        ),
        takes_target=False,
    ),
    Command(
        "import-offsets",
        "Show the offsets of a Structured Streaming query or of a consumer group as `starting` of a Kafka source.",
        "orders.toml --checkpoint s3://lake/checkpoints/orders",
        _OFFSETS,
        builds="the source",
    ),
    Command(
        "export-offsets",
        "Write the next offsets of the pipeline to a new checkpoint of Structured Streaming, or to a consumer group.",
        "orders.toml --group orders",
        _OFFSETS,
        builds="the source",
    ),
    Command("lag", "Show how far the pipeline is behind its source.", "orders.toml", (), builds="the source"),
    Command(
        "abort",
        "Abort the open version. A batch is then planned again.",
        "orders.toml 41 --reason 'a file cannot be restored'",
        (_VERSION, _argument("--reason", required=True, help="stored in the log")),
        builds="the source",
    ),
    Command(
        "skip",
        "Skip publishing the newest commit to one sink. The sink then lacks its rows.",
        "orders.toml 41 --sink warehouse --reason 'the table was rebuilt by hand'",
        (
            _VERSION,
            _argument("--sink", required=True, action="append", help="name of the sink; may be repeated"),
            _argument("--reason", required=True, help="stored in the log"),
        ),
        builds="the sinks",
    ),
    Command(
        "move-log",
        "Move a commit log to another location. Datasets stay at their locations. After a crash, run the command again.",
        "s3://lake/_streamsem/orders s3://new-lake/_streamsem/orders",
        (
            _argument("to", metavar="NEW", help="URL or path of the new location"),
            _argument(
                "--already-moved",
                action="store_true",
                help="only record the move, because all objects were moved by hand and none is left at the old location",
            ),
        ),
    ),
    Command(
        "fork",
        "Create a pipeline that continues another one after a version, as a trial.",
        "orders_v2.toml s3://lake/_streamsem/orders --at 41",
        (
            _ORIGINAL,
            _argument("--at", type=int, metavar="N", help="the version; -1: the beginning (default: the newest)"),
            _argument("--until", metavar="TIME", help="the newest version that was closed at or before this time"),
            _argument(
                "--from",
                metavar="TIME",
                dest="from_time",
                help="replay the source from this time: start without state at the first records with this time or a later one",
            ),
        ),
        builds="the source and the sinks",
    ),
    Command(
        "diff",
        "Compare a fork with its original, or a held version with what it would replace.",
        "s3://lake/_streamsem/orders_v2 s3://lake/_streamsem/orders --limit 5",
        (
            _argument(
                "original",
                metavar="LOG",
                help="URL or path of the original pipeline's log; or the number of a held version",
            ),
            _argument("--sink", help="name of the files sink, if there are several"),
            _argument("--attempt", metavar="ID", help="of a held version: which attempt, if several were staged"),
            _argument(
                "--limit",
                type=int,
                default=20,
                help="number of different rows to show, also of each state (default: 20)",
            ),
            *_SESSION,
        ),
    ),
    Command(
        "drop",
        "Delete a fork: its log and its datasets. Stop its runs first.",
        "orders_v2.toml --dry-run",
        (_argument("--dry-run", action="store_true", help="report what would be deleted, but do not delete it"),),
        builds="the sinks",
    ),
    Command(
        "top",
        "Show the newest versions of several logs. In a terminal, the table is refreshed until the command is interrupted.",
        "s3://lake/_streamsem/orders s3://lake/_streamsem/payments",
        (
            _argument("logs", metavar="LOG", nargs="+", help="URL or path of a commit log"),
            _argument(
                "--interval", type=int, default=5, metavar="S", help="seconds between two refreshes (default: 5)"
            ),
        ),
        takes_target=False,
    ),
    Command(
        "ui",
        "Show logs in a browser, on this machine only, until the command is interrupted.",
        "s3://lake/_streamsem/orders s3://lake/_streamsem/payments",
        (
            _argument("logs", metavar="LOG", nargs="+", help="URL or path of a commit log"),
            _argument("--port", type=int, default=0, help="port of the page (default: any free port)"),
            _argument(
                "--show-records", action="store_true", help="also show the contents of quarantined records on the page"
            ),
        ),
        takes_target=False,
    ),
    Command(
        "explain",
        "Show the guarantee of the pipeline and its reasons.",
        "orders.toml",
        (),
        builds="the source and the sinks",
    ),
    Command(
        "vacuum",
        "Delete files of attempts that did not commit, staged files of published versions, state that no kept version needs, and on request replaced files.",
        "orders.toml --dry-run",
        (
            _argument("--dry-run", action="store_true", help="report the files, but do not delete them"),
            _argument("--all", action="store_true", help="also inspect versions that an earlier vacuum has inspected"),
            _argument(
                "--keep-versions",
                metavar="N",
                type=int,
                help="let versions older than the newest N expire, and delete the files that only they need. This cannot be undone",
            ),
            _argument(
                "--keep-days",
                metavar="N",
                type=int,
                help="with --keep-versions: versions that were the newest in the last N days are kept, too (default: 7)",
            ),
        ),
        builds="the sinks",
    ),
)


def arguments_of(command: Command) -> tuple[Argument, ...]:
    """Return the arguments of a command, including those that several commands share."""
    target = _PIPELINE if command.builds else _LOG
    if command.is_target_optional:
        target = _argument(*target.flags, nargs="?", **target.settings)
    return (*((target,) if command.takes_target else ()), _JSON, *command.arguments)


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
            description=command.help,
            epilog=f"example:\n  streamsem {command.name} {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in arguments_of(command):
            subparser.add_argument(*argument.flags, **argument.settings)
    return top
