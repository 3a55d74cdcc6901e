"""Arguments of the ``streamsem`` command, and its exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_streamsem import __version__
from airflow_provider_streamsem.cli import commands, output
from airflow_provider_streamsem.errors import InvalidError, StreamsemError

EXIT_CODES = """exit codes:
  0  done
  1  done, and something was found: verify or doctor found a fault
  2  an argument or a file is not acceptable; nothing was written
  3  the store or the engine failed; the same command again goes on from what is stored
  4  refused, and the same command again would be refused too: read the message
  5  the command itself failed; its traceback is on standard error
"""
INVALID, RETRY, REFUSED, FAILED = 2, 3, 4, 5


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="streamsem",
        description="Micro-batches with an idempotent commit log.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"streamsem {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="log what is done, to standard error")
    commands_ = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    target = argparse.ArgumentParser(add_help=False)
    target.add_argument("target", metavar="LOG|PIPELINE.toml", help="URL or path of a commit log, or a pipeline file")
    target.add_argument("--json", action="store_true", help="one JSON document on standard output")

    def add(name: str, help_: str) -> argparse.ArgumentParser:
        command = commands_.add_parser(name, help=help_, description=help_, parents=[target])
        command.set_defaults(run=getattr(commands, name))
        return command

    run = add("run", "Run one batch, or with --drain batches until the end that the source has now.")
    run.add_argument("--drain", action="store_true", help="go on until the frozen target is reached")
    redo = add("redo", "Make the rows of a committed version anew, from the same ranges; readers switch by one object.")
    redo.add_argument("version", type=int, metavar="N")
    for command in (run, redo):
        command.add_argument(
            "--run-key",
            help="names the run: the same key again gives the same result (default: one is made and printed)",
        )
        command.add_argument(
            "--master", default="local[*]", help="Spark master where no session is active (default: local[*])"
        )
        command.add_argument(
            "--spark-conn-id",
            metavar="ID",
            help="instead of a master: the connection in AIRFLOW_CONN_<ID>, of type spark or spark_connect",
        )
    log = add("log", "List versions, newest first.")
    log.add_argument("--limit", type=int, default=20, help="how many (default: 20)")
    show = add("show", "Show the plan and the outcome of a version.")
    show.add_argument("version", type=int, metavar="N")
    files = add("files", "List the visible files, for any engine that reads files.")
    files.add_argument("--at", type=int, metavar="N", help="as of this version (default: the newest)")
    files.add_argument("--since", type=int, metavar="N", help="only files of versions above this one")
    files.add_argument("--sink", help="of one sink")
    verify = add("verify", "Check every invariant of the log and every visible file.")
    verify.add_argument("--log-only", action="store_true", help="do not look at the files")
    add("doctor", "Probe whether the log's store keeps create-if-absent.")
    add("lag", "How far the pipeline is behind its source.")
    abort = add("abort", "Close the open version as an abort; its range is planned anew by the next run.")
    abort.add_argument("version", type=int, metavar="N")
    abort.add_argument("--reason", required=True, help="kept in the log")
    vacuum = add("vacuum", "Delete what losing attempts of closed versions left.")
    vacuum.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    if args.verbose:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    try:
        answer: output.Answer = args.run(args)
    except StreamsemError as error:
        if args.json:
            print(json.dumps({"error": type(error).__name__, "retryable": error.retryable, "message": str(error)}))
        else:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return INVALID if isinstance(error, InvalidError) else RETRY if error.retryable else REFUSED
    except Exception:
        traceback.print_exc()
        return FAILED
    with suppress(BrokenPipeError):  # whoever read us has seen enough
        if args.json:
            print(json.dumps(answer.document, indent=2, ensure_ascii=False))
        else:
            output.show(answer)
        sys.stdout.flush()
    return answer.exit_code


if __name__ == "__main__":
    sys.exit(main())
