"""The ``streamsem`` command and its exit codes."""

from __future__ import annotations

import argparse
import json
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
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    return execute(args)


def execute(args: argparse.Namespace) -> int:
    """Run the command that ``args.command`` names; prints its answer, returns its exit code."""
    try:
        from airflow_provider_streamsem.cli import commands

        answer = commands.answer(args)
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
            from airflow_provider_streamsem.cli import output

            output.show(answer)
        sys.stdout.flush()
    return answer.exit_code


if __name__ == "__main__":
    sys.exit(main())
