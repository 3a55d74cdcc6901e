"""
The entry point of the ``streamsem`` command, and its exit codes.

PYTHON_ARGCOMPLETE_OK: argcomplete searches for this marker and then completes the arguments in a shell.
"""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace

from airflow_provider_streamsem.cli.arguments import parser
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError, StageError, StreamsemError

_PLACEHOLDER = re.compile(r"(streamsem [a-z-]+) PIPELINE\.toml\b")
_PIPELINE = "PIPELINE.toml: the pipeline's file, or its Python file and variable, such as dags/orders.py:ORDERS"
INVALID, RETRY, REFUSED, FAILED = 2, 3, 4, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments (default: ``sys.argv``), run the command and return its exit code."""
    top_parser = parser()
    with suppress(ImportError):  # Airflow installs argcomplete
        import argcomplete

        argcomplete.autocomplete(top_parser)
    args = top_parser.parse_args(argv)
    with _logging(verbose=args.verbose):
        if args.command == "top" and not args.json and sys.stdout.isatty():
            return _repeat(args)
        return execute(args, shows_progress=not args.verbose)


def _repeat(args: argparse.Namespace) -> int:
    """Run a command again and again, and show each result in place of the one before. Returns when the command fails, or the user interrupts it."""
    with suppress(KeyboardInterrupt):
        while (code := execute(args, clears_terminal=True)) == 0:
            SYSTEM_CLOCK.sleep(args.interval)
        return code
    return 0


@contextmanager
def _logging(*, verbose: bool) -> Iterator[None]:
    from airflow_provider_streamsem.cli.output import PrintableFormatter

    package_logger = logging.getLogger("airflow_provider_streamsem")
    before = package_logger.propagate, package_logger.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
    package_logger.propagate = False
    logging.getLogger("py4j").setLevel(logging.ERROR)  # it logs when the process ends, after the result was printed
    if verbose:
        package_logger.setLevel(logging.INFO)
    if verbose or not sys.stderr.isatty():  # on a terminal, the progress shows the messages
        package_logger.addHandler(handler)
        handler.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        package_logger.removeHandler(handler)
        package_logger.propagate = before[0]
        package_logger.setLevel(before[1])


def execute(args: argparse.Namespace, *, shows_progress: bool = False, clears_terminal: bool = False) -> int:
    """
    Run the command that ``args.command`` names, print its result or its error, and return its exit code.

    :param shows_progress: whether to show progress if standard error is a terminal
    """
    from airflow_provider_streamsem.cli import output

    try:
        from airflow_provider_streamsem.cli import commands

        # Standard output belongs to the result. User code may print, and an import of Airflow gives the root logger a handler for standard output.
        with redirect_stdout(sys.stderr), output.progress(args.command) if shows_progress else nullcontext():
            result = commands.result_of_command(args)
    except StreamsemError as error:
        if args.json:
            message = _with_target(str(error), args)
            output.show_json({"error": type(error).__name__, "retryable": error.retryable, "message": message})
        else:
            if isinstance(error, StageError) and error.__cause__ is not None:
                output.show_error("".join(traceback.format_exception(error.__cause__)), keep="\n")
            output.show_error(_with_target(f"{type(error).__name__}: {error}", args))
        return INVALID if isinstance(error, InvalidError) else RETRY if error.retryable else REFUSED
    except Exception:
        output.show_error(traceback.format_exc(), keep="\n")
        return FAILED
    with suppress(BrokenPipeError):  # the reader of a pipe may close it early
        if clears_terminal:
            print("\x1b[H\x1b[2J", end="")
        if args.json:
            output.show_json(result.document)
        else:
            lines = [_with_target(line, args) for line in result.lines]
            lines += [_PIPELINE] if any(map(_PLACEHOLDER.search, lines)) else []
            output.show(replace(result, lines=lines), wide=getattr(args, "wide", False))
        sys.stdout.flush()
    return result.exit_code


def _with_target(text: str, args: argparse.Namespace) -> str:
    """Return a text whose commands name the pipeline of this command, such as ``dags/orders.py:ORDERS``, in place of ``PIPELINE.toml``."""
    if getattr(args, "pipeline", None) is None:
        return text
    return _PLACEHOLDER.sub(lambda found: f"{found[1]} {shlex.quote(args.target)}", text)


if __name__ == "__main__":
    sys.exit(main())
