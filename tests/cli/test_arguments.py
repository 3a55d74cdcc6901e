"""Help, completion, and the log or pipeline that a command gets."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.cli import commands as commands_
from airflow_provider_streamsem.cli.arguments import COMMANDS, GROUPS, parser
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.verbs import Verb
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_pipeline_of_a_dag_file_is_selected_by_its_variable(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fixture.root / "dag_file.py"
    (fixture.root / "beside_the_dag.py").write_text("NAME = 'world'\n")
    file.write_text(f"""
from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline
from beside_the_dag import NAME

ORDERS = Pipeline(
    name=NAME, log="{fixture.root}/log", source=FilesSource(path="{fixture.root}/in", format="json", schema="id long"),
    sinks={{"out": FilesSink("{fixture.root}/out", format="json")}}, where="id >= 0", limits=Limits(max_files=2),
)
""")
    monkeypatch.chdir(fixture.root)
    explained = run(capsys, "explain", "dag_file.py:ORDERS")[1]
    assert "exactly-once" in explained
    assert "where is not checked here" in explained
    assert json.loads(run(capsys, "lag", "dag_file.py:ORDERS", "--json")[1])["lag"] == 1
    assert run(capsys, "vacuum", "dag_file.py:ORDERS", "--dry-run")[0] == 0
    templated = file.read_text().replace("name=NAME", 'name=NAME, transform="pkg:f"').replace("/out", "/out/{{ ds }}")
    (fixture.root / "templated.py").write_text(templated)
    code, _, err = run(capsys, "run", "templated.py:ORDERS")
    assert (code, "contains templates" in err) == (2, True)
    for code in ("import sys; sys.exit(0)", "import nowhere", "def :"):
        (fixture.root / "fails.py").write_text(code)
        assert run(capsys, "lag", "fails.py:ORDERS", "--json")[0] == 2
    for target in ("dag_file.py", "dag_file.py:", "dag_file.py:OR-DERS"):
        for command in ("log", "verify", "run"):
            code, _, err = run(capsys, command, target)
            assert (code, f"streamsem {command} dag_file.py:NAME" in err) == (2, True), (command, target)
    for command, target in (("run", "dag_file.py:ORDERS"), ("lag", "dag_file.py:MISSING"), ("lag", "absent.py:ORDERS")):
        assert run(capsys, command, target)[0] == 2


def test_command_imports_no_heavy_modules(fixture: PipelineFixture) -> None:
    code = "import sys; from airflow_provider_streamsem.cli.main import main; main(sys.argv[1:]); print(sorted(m for m in ('airflow', 'pyspark', 'boto3', 'rich', 'pyarrow') if m in sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code, "files", str(fixture.root / "log")], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_has_a_valid_example(capsys: pytest.CaptureFixture[str], command: Verb) -> None:
    with pytest.raises(SystemExit):
        main([command.name, "--help"])
    assert f"streamsem {command.name} {command.example}" in capsys.readouterr().out
    assert parser().parse_args([command.name, *shlex.split(command.example)]).command == command.name


def test_shell_completes_commands_and_options(tmp_path: Path) -> None:
    def completed(line: str) -> list[str]:
        completions = tmp_path / "completions"
        environment = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(completions), "_ARGCOMPLETE_IFS": "\n"}
        line_variables = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
        code = "import sys; from airflow_provider_streamsem.cli.main import main; sys.argv[0] = 'streamsem'; main()"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment, **line_variables}, check=True)
        return [word.strip() for word in completions.read_text().split("\n")]

    assert completed("streamsem ver") == ["verify"]
    assert "--dry-run" in completed("streamsem vacuum orders.toml --")


def test_advice_names_the_pipeline_of_the_command_also_one_in_a_python_file(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(open_log(str(fixture.root / "log")).files()[0].path).unlink()
    monkeypatch.chdir(fixture.root)
    (fixture.root / "dag.py").write_text(
        'from airflow_provider_streamsem.pipeline.spec.pipeline import load_pipeline\nP = load_pipeline("p.toml")\n'
    )
    code, out, _ = run(capsys, "verify", "dag.py:P")
    assert (code, f"`streamsem reprocess {fixture.root}/dag.py:P 0`" in out, "PIPELINE.toml" in out) == (1, True, False)
    code, out, _ = run(capsys, "verify", "log")
    assert (code, "`streamsem reprocess PIPELINE.toml 0`" in out) == (1, True)
    assert out.splitlines()[-1].startswith("PIPELINE.toml: the pipeline's file, or its Python file and variable")
    toml = fixture.root / "p.toml"
    toml.write_text(f'{toml.read_text()}\n[sinks.more]\ntype = "files"\npath = "{fixture.root}/more"\n')
    assert f"streamsem alter {fixture.root}/dag.py:P --dry-run" in run(capsys, "lag", "dag.py:P")[2]


def test_help_lists_each_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(command.name for command in COMMANDS)
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: streamsem [-h] [--version] [-v] COMMAND ..."
    assert [line[:-1] for line in lines if line[:-1] in GROUPS] == ["run", "inspect", "correct", "maintain", "move"]
    helps = {command.name: command.help for command in COMMANDS}
    for name in ("abort", "skip", "fork", "diff", "drop"):
        assert f"  {name:<16}{helps[name]}" in lines, "one line"


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for word in (
        "run",
        "explain",
        "log",
        "show",
        "files",
        "verify",
        "doctor",
        "lag",
        "abort",
        "vacuum",
        "move-log",
        "exit codes",
    ):
        assert word in out


def test_log_may_be_a_relative_path(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixture.root)
    assert run(capsys, "verify", "log")[0] == 0
    assert run(capsys, "lag", "p.toml")[0] == 0


def test_transform_of_a_python_file_has_the_name_that_it_has_in_airflow(tmp_path: Path) -> None:
    code = """
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline
def clean(records):
    return records
P = Pipeline(name="p", log="/log", source=FilesSource(path="/in", format="text"), sinks={"out": FilesSink(path="/out")}, transform=clean)
"""
    (tmp_path / "orders.py").write_text(code)
    assert commands_._pipeline_of(str(tmp_path / "orders.py"), "P").transform_name == "orders:clean"
