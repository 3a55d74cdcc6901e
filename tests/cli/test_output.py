"""What is printed: control characters as escapes, and the progress line of a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import time

import pytest
from rich.console import Console

from airflow_provider_streamsem.cli import commands as commands_
from airflow_provider_streamsem.cli import output
from airflow_provider_streamsem.cli.output import CommandResult, Table
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_terminal_shows_the_newest_line_while_a_command_works_and_keeps_warnings() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    logger = logging.getLogger("airflow_provider_streamsem.pipeline.run.run")
    with output.progress("run", terminal):
        logger.info("version 3: staging")
        logger.warning("records were quarantined \x1b[2J")
        time.sleep(0.3)  # the spinner is drawn by a thread
    logger.info("after the command")
    assert isinstance(terminal.file, io.StringIO)
    shown = terminal.file.getvalue()
    assert "version 3: staging" in shown
    assert r"records were quarantined \u001b[2J" in shown
    assert "after the command" not in shown


HOSTILE = "a\x1b]0;owned\x07\x9b31m[bold red]b[/]\u202egpj\u2066\x7f\r\nversion 9: commit \ud800é"
SHOWN = r"a\u001b]0;owned\u0007\u009b31m[bold red]b[/]\u202egpj\u2066\u007f\u000d\u000aversion 9: commit \ud800é"


def test_control_characters_are_printed_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title=HOSTILE, columns=[HOSTILE], rows=[["[red]x[/]\x1b[2J"]])
    output.show(CommandResult(document={}, lines=[HOSTILE], tables=[table]))
    output.show_error(HOSTILE)
    output.show_json({HOSTILE: [HOSTILE, "x" * 1000]})
    out, err = capsys.readouterr()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066\ud800]", out + err)
    assert SHOWN in out
    assert err == SHOWN + "\n"
    assert r"[red]x[/]\u001b[2J" in out
    document = out[out.index("{") :]
    assert json.loads(document) == {HOSTILE: [HOSTILE, "x" * 1000]}


def test_reason_from_the_log_is_escaped_in_text_and_exact_in_json(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = HOSTILE.replace("\ud800", "")
    fixture.dies("b")
    code, _, _ = run(capsys, "abort", str(fixture.root / "p.toml"), "1", "--reason", reason)
    assert code == 0
    code, out, err = run(capsys, "show", str(fixture.root / "log"), "1")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert r"\u001b]0;owned" in out
    _, out, _ = run(capsys, "show", str(fixture.root / "log"), "1", "--json")
    assert json.loads(out)["outcome"]["reason"] == reason
    assert "\x9b" not in out


def test_log_lines_and_tracebacks_are_printed_with_escapes(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> None:
        raise ZeroDivisionError("\x1b[2J")

    monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
    code, _, err = run(capsys, "lag", str(fixture.root / "p.toml"))
    assert (code, "\x1b" in err, r"\u001b[2J" in err) == (5, False, True)
    record = logging.LogRecord("n", logging.INFO, "f", 1, "read %s", ("\x1b[2J\n",), None)
    assert output.PrintableFormatter("%(message)s").format(record) == "read \\u001b[2J\n"
