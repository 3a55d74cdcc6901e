"""The commands that run pipelines: run, explain and check-monoid."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSource, load_pipeline
from airflow_provider_streamsem.cli import first_look
from airflow_provider_streamsem.cli.main import main
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_explain_prints_label_reasons_and_the_guarantee_of_each_sink(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "explain", str(fixture.root / "p.toml"))
    first, *rest = out.splitlines()
    assert (code, err, first, rest[-1]) == (0, "", "exactly-once (unchanged files)", "sink out: exactly-once")
    assert any("before the first row is read" in line for line in rest)
    assert any(line.startswith("  - sink out: ") for line in rest)
    (fixture.root / "weak.toml").write_text(
        (fixture.root / "p.toml").read_text().replace("[limits]", '[dedup]\nkeys = ["id"]\nttl_s = 86400\n[limits]')
    )
    code, out, _ = run(capsys, "explain", str(fixture.root / "weak.toml"), "--json")
    assert json.loads(out)["warnings"] == []
    guarantee = json.loads(out)
    assert (code, guarantee["label"], guarantee["conditions"]) == (0, "effectively_once", "unchanged files, dedup 24 h")
    assert guarantee["sinks"] == {"out": "effectively_once"}


@pytest.mark.spark
def test_repeated_run_of_a_toml_file_returns_the_same_result(
    fixture: PipelineFixture, spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = str(fixture.root / "p.toml")
    code, out, _ = run(capsys, "run", toml, "--drain", "--run-key", "k", "--json")
    first = json.loads(out)
    assert (code, first["status"], first["ranges"], first["guarantee"]["label"]) == (
        0,
        "committed",
        {"files": [2, 3]},
        "exactly_once",
    )
    code, out, _ = run(capsys, "run", toml, "--drain", "--run-key", "k", "--json")
    assert json.loads(out) == first
    code, out, _ = run(capsys, "reprocess", toml, "0", "--json")
    assert (code, json.loads(out)["ranges"], json.loads(out)["version"]) == (0, {"files": [0, 2]}, 2)
    code, out, _ = run(capsys, "run", toml)
    assert (code, "run key" in out, "empty" in out, "exactly-once" in out) == (0, True, True, True)
    fixture.check()


@pytest.mark.spark
def test_run_lists_the_version_of_another_run_that_it_closed(
    fixture: PipelineFixture, spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.dies("b")
    toml = str(fixture.root / "p.toml")
    code, out, _ = run(capsys, "run", toml, "--json")
    document = json.loads(out)
    assert (code, document["status"], document["version"]) == (0, "committed", 1)
    assert [
        (other_version["version"], other_version["run_key"], other_version["ranges"])
        for other_version in document["completed"]
    ] == [(1, "b", {"files": [2, 3]})]
    fixture.arrive(2)
    fixture.dies("c")
    code, out, _ = run(capsys, "run", toml)
    assert re.search(r"completed  version 2 of run c: \d+ rows read", out)


@pytest.mark.spark
def test_first_look_runs_without_a_pipeline_file_and_continues(
    tmp_path: Path, spark: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "run", "--source", "rate")
    fields = dict(re.findall(r"^(\S+) {2,}(.+)$", out, re.MULTILINE))
    assert (code, fields["guarantee"], fields["status"]) == (0, "exactly-once", "committed")
    page = Path(__file__).parents[2] / "docs" / "tutorial" / "first-look.md"
    assert re.findall(r"^(\S+) {2,}\S", page.read_text(), re.MULTILINE) == [*fields]
    file = "streamsem-rate/rate.toml"
    shown = re.findall(r"^  streamsem (.+?)  +# ", out, re.MULTILINE)
    rows = rf"files {file} | tr '\n' '\0' | xargs -0 head -n 3"
    assert shown == [f"log {file}", rows, f"explain {file}", f"run {file}"]
    for command in ("log", "explain"):
        assert run(capsys, command, file)[0] == 0
    code, out, _ = run(capsys, "run", "--source", "rate", "--json")
    second = json.loads(out)
    assert (code, second["pipeline"], second["versions"][1]) == (0, "rate", 2)
    start, end = second["ranges"]["rate"]
    assert start >= 600  # a minute of records
    files = [Path(line) for line in run(capsys, "files", file)[1].splitlines()]
    values = sorted(json.loads(row)["value"] for file in files for row in file.read_text().splitlines())
    assert values == list(range(end))


def test_first_look_into_another_directory_writes_its_pipeline_file_once(tmp_path: Path) -> None:
    with_quotes = tmp_path / 'a "b"'
    path = Path(first_look.pipeline_file(str(with_quotes)))
    assert path.parent == with_quotes
    assert load_pipeline(str(path)).log == str(with_quotes / "log")
    written = path.read_text()
    path.write_text(written.replace("rows_per_second = 10", "rows_per_second = 20"))
    assert first_look.pipeline_file(str(with_quotes)) == str(path)
    assert "rows_per_second = 20" in path.read_text()
    assert all("'" in line for line in first_look.next_commands(str(path))[2:])


def test_first_look_refuses_a_pipeline_file_of_another_user_or_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(first_look.pipeline_file(str(tmp_path)))
    arguments = ["run", "--source", "rate", "--into", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
        code, _, err = run(capsys, *arguments)
    assert (code, "another user" in err, "--into" in err) == (2, True, True)
    other = FilesSource(path="/in", format="text")
    monkeypatch.setattr(first_look, "load_pipeline", lambda path: load_pipeline(path).replace(source=other))
    code, _, err = run(capsys, *arguments)
    assert (code, "another source" in err) == (2, True)


def test_check_monoid_accepts_the_example_of_the_docs_and_reports_broken_laws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "aggregate.md").read_text()
    code = re.search(r"```python\n# my_monoids.py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    broken = code[1].replace('return ""', 'return "longer than every word"')
    for name, text in (("my_monoids", code[1]), ("broken", broken)):
        (tmp_path / f"{name}.py").write_text(text)
    command = re.search(r"^printf .* > words.jsonl$", page, re.MULTILINE)
    assert command is not None
    subprocess.run(command[0], shell=True, cwd=tmp_path, check=True)
    (tmp_path / "broken.jsonl").write_text("{no JSON\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exit_code, out, _ = run(capsys, "check-monoid", "my_monoids:LONGEST_WORD", "words.jsonl", "--json")
    assert exit_code == 0
    assert [check["passed"] for check in json.loads(out)["checks"]] == [True] * 7
    exit_code, out, _ = run(capsys, "check-monoid", "broken:LONGEST_WORD", "words.jsonl", "--json")
    assert exit_code == 1
    failed = [check for check in json.loads(out)["checks"] if not check["passed"]]
    assert failed[0]["name"] == "combine(identity, a) = a = combine(a, identity)"
    assert "longer than every word" in failed[0]["observed"]
    for monoid, file, message in (
        ("my_monoids:NONE", "words.jsonl", "cannot be imported"),
        ("no_such_module:NONE", "words.jsonl", "cannot be imported"),
        ("operator:pos", "words.jsonl", "does not refer to a Monoid object"),
        ("my_monoids:LONGEST_WORD", "missing.jsonl", "cannot be read"),
        ("my_monoids:LONGEST_WORD", "broken.jsonl", "not JSON Lines"),
    ):
        assert main(["check-monoid", monoid, file]) == 2
        assert re.search(message, capsys.readouterr().err)
