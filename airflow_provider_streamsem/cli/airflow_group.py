"""
The ``airflow streamsem`` command group: the commands of ``streamsem``, with connections from Airflow.

Every ``airflow`` command imports this module, so it must be fast to import.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_provider_streamsem.cli.arguments import COMMANDS, EXIT_CODES, arguments_of


def commands() -> list[CLICommand]:
    """Return the command group in the form that Airflow expects from a provider."""
    actions = [
        ActionCommand(
            name=command.name,
            help=command.help,
            description=command.description,
            func=partial(_execute, command.name),
            args=[Arg(flags=flags, **settings) for flags, settings in arguments_of(command)],
            epilog=f"example:\n  airflow streamsem {command.name} {command.example}\n\n{EXIT_CODES}",
        )
        for command in COMMANDS
    ]
    return [GroupCommand(name="streamsem", help="Commit logs of micro-batch pipelines", subcommands=actions)]


def _execute(command: str, args: argparse.Namespace) -> None:
    from airflow_provider_streamsem.cli import main
    from airflow_provider_streamsem.connections import use_resolver
    from airflow_provider_streamsem.hooks.connections import airflow_connection

    # Airflow's own commands that look up connections set this variable too. Without it, Airflow does not read connections from its metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    args.command = command
    with use_resolver(airflow_connection):
        code = main.execute(args)
    if code:
        sys.exit(code)
