"""The commands that maintain and move a log: verify, vacuum and move-log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_verify_of_a_damaged_dataset_exits_with_1_and_names_the_file(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = Path(fixture.opened().files()[0].path)
    victim.unlink()
    code, out, _ = run(capsys, "verify", str(fixture.root / "log"))
    assert code == 1
    assert victim.name in out
    code, out, _ = run(capsys, "verify", str(fixture.root / "log"), "--log-only")
    assert code == 0


def test_vacuum_prints_the_attempts_that_it_deletes(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = "a" * 32
    lost = fixture.root / "out" / "data" / "0" / attempt / "x.json"
    lost.parent.mkdir()
    lost.write_text("{}")
    code, out, _ = run(capsys, "vacuum", str(fixture.root / "p.toml"), "--json")
    assert (code, json.loads(out)["attempts"]) == (0, [["out", 0, attempt]])


def test_vacuum_names_the_versions_that_expire(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    toml, log = str(fixture.root / "p.toml"), str(fixture.root / "log")
    keep = ("vacuum", toml, "--keep-versions", "1")
    assert "no version would expire" in run(capsys, *keep, "--dry-run")[1]
    fixture.run("fix", reprocessed=0)
    fixture.run("fix again", reprocessed=0)
    dry_run = run(capsys, *keep, "--dry-run")[1].splitlines()
    assert (dry_run[1], dry_run[-1]) == ("versions that would expire: 0-1", "oldest readable version would be: 2")
    assert "cannot be read or rolled back to" in dry_run[2]
    assert "cannot be reprocessed" in dry_run[3]
    document = json.loads(run(capsys, *keep, "--dry-run", "--json")[1])
    assert (document["expired"], document["oldest_readable"], len(document["attempts"])) == (2, 2, 2)
    assert run(capsys, *keep)[1].splitlines() == [
        dry_run[0].replace("would delete", "deleted"),
        "expired versions: 0-1",
        *dry_run[2:-1],
        "oldest readable version: 2",
    ]
    again = run(capsys, *keep)[1].splitlines()
    assert again[1:] == [
        "no version has expired: no file is needed only by versions older than those to keep",
        "oldest readable version: 2",
    ]
    assert run(capsys, "vacuum", toml)[1].splitlines()[1:] == ["oldest readable version: 2"]
    listed = json.loads(run(capsys, "log", log, "--json")[1])["versions"]
    assert [(row["version"], row["description"], row["is_expired"]) for row in listed] == [
        (3, "expiry of the versions below 2", False),
        (2, "reprocessing of version 1", False),
        (1, "reprocessing of version 0", True),
        (0, "batch", True),
    ]
    table = run(capsys, "log", log)[1]
    assert "expiry of the versions below 2, commit" in table
    assert "commit, expired" in table
    assert run(capsys, "show", log, "3")[1].startswith("version 3: expiry of the versions below 2, commit\n")
    assert json.loads(run(capsys, "top", log, "--json")[1])["pipelines"][0]["version"] == 3


def test_move_log_moves_the_log_and_the_old_log_names_the_new_location(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(fixture.root / "log"), str(fixture.root / "moved")
    code, out, _ = run(capsys, "move-log", str(fixture.root / "p.toml"), new, "--json")
    assert code == 0
    assert {**json.loads(out), "copied": 0} == {
        "pipeline": "world", "moved_from": old, "moved_to": new, "version": 0, "copied": 0,
    }  # fmt: skip
    code, _, err = run(capsys, "log", old)
    assert (code, new in err) == (4, True)
    code, out, _ = run(capsys, "verify", new)
    assert (code, out.startswith("clean: closed versions: 1, ")) == (0, True)
