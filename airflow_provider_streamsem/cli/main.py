"""The ``streamsem`` command and its exit codes."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_streamsem.cli.arguments import parser
from airflow_provider_streamsem.errors import InvalidError, StreamsemError

INVALID, RETRY, REFUSED, FAILED = 2, 3, 4, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parser().parse_args(argv)
    if args.verbose:
        from airflow_provider_streamsem.cli.output import PrintableFormatter

        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    return execute(args)


def execute(args: argparse.Namespace) -> int:
    """Run the command that ``args.command`` names; prints its answer, returns its exit code."""
    from airflow_provider_streamsem.cli import output

    try:
        from airflow_provider_streamsem.cli import commands

        answer = commands.answer(args)
    except StreamsemError as error:
        if args.json:
            output.show_json({"error": type(error).__name__, "retryable": error.retryable, "message": str(error)})
        else:
            output.show_error(f"{type(error).__name__}: {error}")
        return INVALID if isinstance(error, InvalidError) else RETRY if error.retryable else REFUSED
    except Exception:
        output.show_error(traceback.format_exc(), keep="\n")
        return FAILED
    with suppress(BrokenPipeError):  # whoever read us has seen enough
        if args.json:
            output.show_json(answer.document)
        else:
            output.show(answer, wide=getattr(args, "wide", False))
        sys.stdout.flush()
    return answer.exit_code


if __name__ == "__main__":
    sys.exit(main())
