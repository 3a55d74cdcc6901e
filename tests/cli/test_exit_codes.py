"""Exit codes: invalid arguments, errors that a retry may fix, other errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_streamsem.cli import commands as commands_
from airflow_provider_streamsem.errors import LogDamagedError, StageError, UnavailableError
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_internal_error_of_a_command_has_its_own_exit_code(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
    code, _, err = run(capsys, "lag", str(fixture.root / "p.toml"))
    assert (code, "ZeroDivisionError" in err) == (5, True)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["log", "/no/such/log"], 2, "no log"),
        (["log", "relative"], 2, "there is no log at this location"),
        (["log", "ftp://x/y"], 2, "accepted"),
        (["run", "/some/log"], 2, "pipeline file"),
        (["run", "missing.toml"], 2, "cannot be read"),
        (["run"], 2, "either a pipeline, or --source"),
        (["run", "{toml}", "--source", "rate"], 2, "either a pipeline, or --source"),
        (["run", "{toml}", "--into", "x"], 2, "'target', 'into'"),
        (["show", "{log}", "99"], 2, "no such version"),
        (["files", "{log}", "--at", "99"], 2, "closed"),
        (["files", "{log}", "--sink", "no"], 2, "no such sink"),
        (["log", "{log}", "--limit", "0"], 2, "--limit"),
        (["show", "{log}", "9999999999999"], 2, "from 0 to"),
        (["abort", "{toml}", "0", "--reason", "x"], 2, "only the open version"),
        (["vacuum", "{toml}", "--keep-days", "3"], 2, "--keep-days applies only together with --keep-versions"),
    ],
)
def test_invalid_arguments_exit_with_2_and_are_reported(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, message: str
) -> None:
    arguments = [
        a.replace("{log}", str(fixture.root / "log")).replace("{toml}", str(fixture.root / "p.toml")) for a in argv
    ]
    actual, _, err = run(capsys, *arguments)
    assert actual == code
    assert message in err
    assert "Do:" in err
    actual, out, _ = run(capsys, *arguments, "--json")
    assert (actual, "Do:" in json.loads(out)["message"]) == (code, True)


def test_exit_code_distinguishes_retryable_from_permanent_errors(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code in ((UnavailableError("x"), 3), (LogDamagedError("x"), 4)):

        def fail(args: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
        assert run(capsys, "lag", str(fixture.root / "p.toml"))[0] == code


def test_cause_of_a_failed_stage_is_printed(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> None:
        raise StageError("the engine failed") from ValueError("error of the transform")

    monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
    code, _, err = run(capsys, "lag", str(fixture.root / "p.toml"))
    assert code == 3
    assert err.index("ValueError: error of the transform") < err.index("StageError: the engine failed")


def test_log_that_is_a_file_is_reported_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "orders").write_text("")
    for location in (tmp_path / "orders", tmp_path / "orders" / "log"):
        code, _, err = run(capsys, "log", str(location))
        assert code != 0
        assert "a part of its path is a file" in err
        assert "permission" not in err


def test_entry_that_is_nested_too_deep_is_reported_as_damage_without_a_traceback(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = (fixture.root / "log").rglob("*-0.c.json")
    for deep in (b"[" * 200_000, b'{"format":1,"a":' + b'{"a":' * 900 + b"1" + b"}" * 901):
        entry.unlink()
        entry.write_bytes(deep)
        for argv in (["log", str(fixture.root / "log")], ["show", str(fixture.root / "log"), "0"]):
            code, out, err = run(capsys, *argv)
            assert (code, out) == (4, "")
            assert "LogDamagedError" in err
            assert "Traceback" not in err
