"""A command of the CLI, run in this process."""

from __future__ import annotations

import pytest

from airflow_provider_streamsem.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
