"""Every command: its text, the shape of its JSON, its exit code, and the modules that it imports."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from airflow_provider_streamsem import FilesSource, Limits, load_pipeline, open_log, run_batch
from airflow_provider_streamsem.cli import commands as commands_
from airflow_provider_streamsem.cli import first_look, output, version_commands
from airflow_provider_streamsem.cli.arguments import COMMANDS, GROUPS, Command, parser
from airflow_provider_streamsem.cli.log_table import log_table
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.cli.output import CommandResult, Table
from airflow_provider_streamsem.cli.top import sparkline
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture

GOLDEN = Path(__file__).parent / "json_shapes.json"


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(3, bad_lines=1)
    fixture.run("a")
    (tmp_path / "p.toml").write_text(f"""
name = "world"
log = "{tmp_path}/log"
where = "id >= 0"
[source]
type = "files"
path = "{tmp_path}/in"
format = "json"
schema = "id long"
[sinks.out]
type = "files"
path = "{tmp_path}/out"
format = "json"
[limits]
max_files = 2
""")
    return fixture


def shape(value: Any) -> Any:
    """The names and types of a JSON document. A list has the shape of its first item. Names that are data are replaced by ``*``."""
    if isinstance(value, dict):
        data = value and all(
            key in ("files", "out")
            or key.startswith("written.")
            or key in ("read", "parsed", "filtered", "quarantined")
            for key in value
        )
        return (
            {"*": shape(next(iter(value.values())))}
            if data and "files" not in value
            else {key: shape(item) for key, item in sorted(value.items())}
        )
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return {"bool": "boolean", "NoneType": "null", "str": "string", "int": "integer"}[type(value).__name__]


def commands(fixture: PipelineFixture) -> dict[str, list[str]]:
    log, toml = str(fixture.root / "log"), str(fixture.root / "p.toml")
    return {
        "log": ["log", log],
        "show": ["show", log, "0"],
        "files": ["files", toml, "--at", "0", "--since", "-1", "--sink", "out"],
        "quarantine": ["quarantine", log],
        "verify": ["verify", toml],
        "doctor": ["doctor", log],
        "lag": ["lag", toml],
        "vacuum": ["vacuum", toml, "--dry-run"],
    }


def test_json_shape_of_every_command_is_stable(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {}
    for name, argv in commands(fixture).items():
        code, out, _ = run(capsys, *argv, "--json")
        assert code == 0, name
        shapes[name] = shape(json.loads(out))
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n")
        pytest.fail("The shapes were missing and have been recorded. Review and commit them.")
    assert shapes == json.loads(GOLDEN.read_text())


def test_shapes_are_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    for name, expected in json.loads(GOLDEN.read_text()).items():
        assert f"### {name}\n\n```json\n{json.dumps(expected, indent=1, sort_keys=True)}\n```" in documented, name


def test_internal_error_of_a_command_has_its_own_exit_code(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
    code, _, err = run(capsys, "lag", str(fixture.root / "p.toml"))
    assert (code, "ZeroDivisionError" in err) == (5, True)


@pytest.mark.parametrize("name", ["log", "show", "files", "verify", "doctor", "lag", "vacuum"])
def test_every_command_prints_text(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, *commands(fixture)[name])
    assert (code, err) == (0, "")
    assert out.strip()


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


def test_files_prints_one_path_per_line(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "files", str(fixture.root / "log"))
    assert [
        json.loads(line)["id"] for path in out.splitlines() for line in Path(path).read_text().splitlines()
    ] == list(range(6))


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


def test_abort_closes_the_open_version_and_prints_the_result(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.dies("b")
    toml = str(fixture.root / "p.toml")
    code, out, _ = run(capsys, "abort", toml, "1", "--reason", "poison")
    assert (code, "aborted" in out) == (0, True)
    code, _, err = run(capsys, "abort", toml, "1", "--reason", "again")
    assert (code, "only the open version" in err) == (2, True)
    code, out, _ = run(capsys, "log", str(fixture.root / "log"), "--json")
    assert [(v["version"], v["result"], v["reason"]) for v in json.loads(out)["versions"]] == [
        (1, "abort", "poison"),
        (0, "commit", ""),
    ]


def test_vacuum_deletes_losing_attempts(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = "a" * 32
    lost = fixture.root / "out" / "data" / "0" / attempt / "x.json"
    lost.parent.mkdir()
    lost.write_text("{}")
    code, out, _ = run(capsys, "vacuum", str(fixture.root / "p.toml"), "--json")
    assert (code, json.loads(out)["attempts"], lost.exists()) == (0, [["out", 0, attempt]], False)


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
    assert fixture.opened().head == 2, "a dry run plans no version"
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
    from airflow_provider_streamsem.cli import commands as commands_
    from airflow_provider_streamsem.errors import LogDamagedError, UnavailableError

    for error, code in ((UnavailableError("x"), 3), (LogDamagedError("x"), 4)):

        def fail(args: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
        assert run(capsys, "lag", str(fixture.root / "p.toml"))[0] == code


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


def test_cause_of_a_failed_stage_is_printed(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.errors import StageError

    def fail(args: object) -> None:
        raise StageError("the engine failed") from ValueError("error of the transform")

    monkeypatch.setitem(commands_._COMMANDS, "lag", fail)
    code, _, err = run(capsys, "lag", str(fixture.root / "p.toml"))
    assert code == 3
    assert err.index("ValueError: error of the transform") < err.index("StageError: the engine failed")


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


def test_log_that_is_a_file_is_reported_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "orders").write_text("")
    for location in (tmp_path / "orders", tmp_path / "orders" / "log"):
        code, _, err = run(capsys, "log", str(location))
        assert code != 0
        assert "a part of its path is a file" in err
        assert "permission" not in err


@pytest.mark.spark
def test_quarantined_records_become_rows_by_one_command_after_a_fix(
    tmp_path: Path, spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name, line in (("a", '{"id": 1}\n{"id": 02}\n'), ("b", '{"id": 3}\n'), ("c", '{"id": 04}\n{broken\n')):
        (tmp_path / "in" / f"{name}.json").write_text(line)
    toml = tmp_path / "p.toml"

    def write(more: str = "") -> None:
        toml.write_text(
            f'name = "p"\nlog = "{tmp_path}/log"\n[source]\ntype = "files"\npath = "{tmp_path}/in"\nformat = "json"\n'
            f'schema = "id long"\n{more}\n[sinks.out]\ntype = "files"\npath = "{tmp_path}/out"\nformat = "json"\n[limits]\nmax_files = 1\n'
        )

    write()
    assert run(capsys, "run", str(toml), "--drain")[0] == 0
    write('options = { allowNumericLeadingZeros = "true" }')
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined")
    assert (code, out.splitlines()) == (
        0,
        ["version 0: reprocessed as 3, 0 still quarantined", "version 2: reprocessed as 4, 1 still quarantined"],
    )
    rows = "".join(Path(file.path).read_text() for file in open_log(str(tmp_path / "log")).files())
    assert sorted(json.loads(line)["id"] for line in rows.splitlines()) == [1, 2, 3, 4]
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined", "--json")
    assert [(r["replaces"], r["counts"]["quarantined"]) for r in json.loads(out)["reprocessed"]] == [(4, 1)]
    assert run(capsys, "reprocess", str(toml))[0] == run(capsys, "reprocess", str(toml), "0", "--quarantined")[0] == 2
    write()
    assert run(capsys, "reprocess", str(toml), "3")[0] == 0
    (tmp_path / "in" / "a.json").unlink()  # a file of version 0, which cannot be reprocessed now
    write('options = { allowNumericLeadingZeros = "true" }')
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined")
    assert (code, "not reprocessed: RecordsMissingError" in out, "reprocessed as" in out) == (1, True, True)


def test_command_imports_no_heavy_modules(fixture: PipelineFixture) -> None:
    code = "import sys; from airflow_provider_streamsem.cli.main import main; main(sys.argv[1:]); print(sorted(m for m in ('airflow', 'pyspark', 'boto3', 'rich', 'pyarrow') if m in sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code, "files", str(fixture.root / "log")], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_has_a_valid_example(capsys: pytest.CaptureFixture[str], command: Command) -> None:
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


def test_log_lists_the_changed_fields_of_the_spec(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.run("b", pipeline=fixture.pipeline(limits=Limits(max_files=7)))
    _, out, _ = run(capsys, "log", str(fixture.root / "log"), "--json", "--limit", "2")
    assert [row["changed"] for row in json.loads(out)["versions"]] == [["limits.max_files"], []]


@pytest.mark.parametrize("columns", [20, 40, 80, 110, 200])
def test_log_never_truncates_a_number_and_lists_hidden_columns(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ranges = {f"a.topic.with.a.long.name-{n}": [5_000_001, 10_000_000_002] for n in range(3)}
    counts = {"read": 5_001_234, "written.out": 5_001_233, "filtered": 0, "quarantined": 1}
    row = {
        "version": 123_456, "kind": "batch", "is_rolled_back": False, "result": "publishing", "ranges": ranges, "files": 7, "counts": counts, "attempts": 1, "duration_ms": 61_000, "run_key": "r",
        "planned_at_ms": 0, "decided_at_ms": 0, "sinks": {"out": "waiting"}, "reason": "", "changed": ["where", "limits.rows"],
    }  # fmt: skip
    table = log_table("world", [row], now_ms=7_200_000)
    for wide in (False, True):
        output.show_table(table, wide=wide)
        out = capsys.readouterr().out
        shown = [column for column in table.columns if column in out.split("Not shown")[0]]
        left_out = re.findall("Not shown.*: (.*)\\. Do", out)
        assert sorted([*shown, *(left_out[0].split(", ") if left_out else [])]) == sorted(table.columns)
        assert "123456" in out
        assert "5001234" in out
        assert not wide or (not left_out and all(f"{name} [5000001, 10000000002)" in out for name in ranges))
        assert ("offsets" in shown) == (f"{next(iter(ranges))} [5000001, 10000000002)" in out)
        if "age" in shown:
            assert "2 h" in out
            assert "1970-01-01 00:00:00" in out


def test_log_in_a_pipe_hides_no_column(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = run(capsys, "log", str(fixture.root / "log"))
    assert "Not shown" not in out
    assert all(column in out for column in ("version", "closed (UTC)", "offsets", "written", "duration"))


def test_log_shows_the_reason_of_an_abort_and_truncates_it_only_in_a_terminal(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = f"line 1\n{'x' * 60} end"
    log = str(fixture.root / "log")
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = run(capsys, "log", log)
    assert "reason" not in out, "no version was aborted"
    fixture.dies("b")
    run(capsys, "abort", str(fixture.root / "p.toml"), "1", "--reason", reason)
    whole = reason.replace("\n", r"\u000a")
    _, out, _ = run(capsys, "log", log)
    assert whole in out
    monkeypatch.setenv("COLUMNS", "160")
    _, out, _ = run(capsys, "log", log)
    assert f" {whole[:39]}… " in out
    _, out, _ = run(capsys, "log", log, "--wide")
    assert whole in out
    _, out, _ = run(capsys, "log", log, "--json")
    assert [row["reason"] for row in json.loads(out)["versions"]] == [reason, ""]


def test_show_prints_values_as_json(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    _, stored, _ = run(capsys, "show", str(fixture.root / "log"), "0", "--json")
    _, out, _ = run(capsys, "show", str(fixture.root / "log"), "0")
    for name, value in json.loads(stored)["outcome"].items():
        if isinstance(value, dict) and name not in ("sinks", "schemas", "work"):
            assert f"{name:<18} {json.dumps(value)}" in out


def test_log_shows_the_sink_with_a_pending_publish(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "version": 0,
        "kind": "batch",
        "is_rolled_back": False,
        "result": "publishing",
        "decided_at_ms": 0,
        "ranges": {},
        "counts": {},
        "files": 1,
        "attempts": 1,
        "duration_ms": 1,
        "changed": [],
        "reason": "",
    }
    table = log_table("p", [{**row, "sinks": {"out": "committed", "push": "waiting"}}], now_ms=0)
    assert table.rows[0][table.columns.index("sinks")] == "out committed\npush waiting"
    assert "sinks" not in log_table("p", [{**row, "sinks": {"out": "committed"}}], now_ms=0).columns


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


def test_rollback_removes_later_versions_and_log_shows_it(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, log = str(fixture.root / "p.toml"), str(fixture.root / "log")
    fixture.arrive(2)
    fixture.run("more", drain=True)
    head = fixture.opened().head
    code, out, _ = run(capsys, "rollback", toml, "0", "--json")
    document = json.loads(out)
    assert (code, document["version"], document["to"]) == (0, head + 1, 0)
    assert document["offsets"] == fixture.opened().view(version=0).next
    code, out, _ = run(capsys, "rollback", toml, "0")
    assert (code, out.splitlines()[0]) == (0, "the pipeline is at version 0 already; nothing was written")
    rows = json.loads(run(capsys, "log", log, "--json")[1])["versions"]
    assert (rows[0]["rolls_back_to"], rows[1]["is_rolled_back"], rows[-1]["is_rolled_back"]) == (0, True, False)
    shown = run(capsys, "log", log)[1]
    assert "rollback to version 0" in shown
    assert run(capsys, "show", log, str(head + 1))[1].startswith(f"version {head + 1}: rollback to version 0, commit\n")
    assert "commit, rolled back" in shown
    run_batch(fixture.pipeline(limits=Limits(max_files=7)), run_key="changed", log=fixture.log(), engine=RowsEngine())
    rows = json.loads(run(capsys, "log", log, "--json")[1])["versions"]
    assert [row["changed"] for row in rows[:2]] == [["limits.max_files"], []], "a rollback uses no spec"
    assert run(capsys, "verify", toml)[0] == 0


def test_several_versions_are_reprocessed_by_one_command_after_a_dry_run(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = str(fixture.root / "p.toml")
    Path(toml).write_text(Path(toml).read_text().replace('where = "id >= 0"\n', ""))  # only Spark evaluates it
    fixture.arrive(2)
    fixture.run("more")
    head = fixture.opened().head
    monkeypatch.setattr(version_commands, "engine_of_arguments", lambda args, packages: RowsEngine())
    code, out, _ = run(capsys, "reprocess", toml, "0-1", "--dry-run")
    assert (code, out.splitlines()[:2]) == (0, ["2 versions are selected: 0-1", "nothing was written"])
    assert "replaced in out: " in out
    document = json.loads(run(capsys, "reprocess", toml, "0-9", "--offsets", "files=0:1", "--dry-run", "--json")[1])
    assert document["versions"] == [0]
    assert fixture.opened().head == head
    code, out, _ = run(capsys, "reprocess", toml, "0-1")
    assert (code, [line.partition(",")[0] for line in out.splitlines()]) == (
        0,
        [f"version {version}: reprocessed as {head + 1 + version}" for version in (0, 1)],
    )
    assert run(capsys, "reprocess", toml, "--until", "2001-01-01T00:00:00Z")[1] == "no committed batch is selected\n"
    for given in (
        ["--dry-run", "--quarantined"],
        ["0", "--downstream", "log"],
        ["0-1", "--run-key", "k"],
        ["one"],
        ["0", "--offsets", "files=0"],
        ["0", "--quarantined"],
        [],
    ):
        assert run(capsys, "reprocess", toml, *given)[0] == 2, given
    assert run(capsys, "verify", toml)[0] == 0


def test_top_shows_a_row_for_each_pipeline_and_the_error_of_a_log_that_cannot_be_read(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    log, missing = str(fixture.root / "log"), str(fixture.root / "missing")
    fixture.arrive(1)
    fixture.run("b")
    code, out, _ = run(capsys, "top", log, missing, "--json")
    found, failed = json.loads(out)["pipelines"]
    assert (code, found["pipeline"], found["version"], found["result"], found["rows"]) == (
        0,
        "world",
        1,
        "commit",
        [6, 6],
    )
    assert (found["lag"], "there is no log" in failed["error"], [*failed]) == (2, True, ["log", "error"])
    code, out, _ = run(capsys, "top", log, missing)
    assert (code, "██" in out, "there is no log" in out) == (0, True, True)
    assert run(capsys, "top", log, "--interval", "0")[0] == 2
    for command in ("top", "ui"):
        code, _, error = run(capsys, command, log, "dags/orders.py:ORDERS")
        assert (code, "takes logs, and no pipelines" in error) == (2, True)


def test_top_in_a_terminal_repeats_until_it_is_interrupted(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SYSTEM_CLOCK, "sleep", sleep)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run(capsys, "top", str(fixture.root / "log"), "--interval", "3")
    assert (code, waits, out.count("\x1b[H\x1b[2J")) == (0, [3, 3], 2)


@pytest.mark.parametrize(("values", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 2, 4], "▁▃▅█"), ([7], "█")])
def test_sparkline_has_a_bar_for_each_value(values: list[int], bars: str) -> None:
    assert sparkline(values) == bars


def test_alter_shows_the_differences_and_records_them_as_a_version(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, log = fixture.root / "p.toml", str(fixture.root / "log")
    head = fixture.opened().head
    toml.write_text(f'{toml.read_text()}\n[sinks.more]\ntype = "files"\npath = "{fixture.root}/more"\n')
    refused = run(capsys, "lag", str(toml))
    assert (refused[0], f"alter {toml} --dry-run" in refused[2]) == (4, True)
    code, out, _ = run(capsys, "alter", str(toml), "--dry-run")
    first, *_, last = out.splitlines()
    assert (code, first) == (0, "immutable fields differ, so an alter is required; nothing was written")
    config = last.removeprefix("config of the log: ")
    assert f"config='{config}'" in refused[2]
    assert run(capsys, "alter", str(toml), "--alter-from", "0" * 12)[0] == 4
    code, out, _ = run(capsys, "alter", str(toml), "--alter-from", config)
    assert (code, out.splitlines()[0]) == (0, f"version {head + 1} altered the pipeline")
    assert "  sinks.more: added: it gets the rows of later versions only" in out
    assert "  guarantee of more: none before, exactly-once now" in out
    code, out, _ = run(capsys, "alter", str(toml), "--json")
    assert (code, json.loads(out)["version"]) == (0, None)
    assert run(capsys, "alter", str(toml))[1].startswith("the log has the same immutable fields")
    assert "alter, commit" in run(capsys, "log", log)[1]
    assert run(capsys, "show", log, str(head + 1))[1].startswith(f"version {head + 1}: alter, commit\n")
    assert run(capsys, "verify", str(toml))[0] == 0


def test_alter_names_the_version_that_it_aborted(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    toml = fixture.root / "p.toml"
    fixture.arrive(1)
    fixture.dies("dead")
    toml.write_text(f'{toml.read_text()}\n[sinks.more]\ntype = "files"\npath = "{fixture.root}/more"\n')
    code, out, _ = run(capsys, "alter", str(toml))
    open_version = fixture.opened().head - 1
    assert (code, out.splitlines()[-1]) == (
        0,
        f"version {open_version} is open and was aborted. If it is a batch, the next run reads its records",
    )


def test_rollback_accepts_a_time_in_place_of_a_version(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = str(fixture.root / "p.toml")
    later = CommitLog(fixture.store, ManualClock(1_700_000_600_000, name="later"))
    run_batch(fixture.pipeline(), run_key="later", log=later, engine=RowsEngine())
    refused = run(capsys, "rollback", toml, "--until", "2001-01-01T00:00:00Z")
    assert refused[0] == 2
    assert "no version was closed by this time" in refused[2]
    assert "2001-01-01T00:00:00.000+00:00" in refused[2]
    for given in ([], ["0", "--until", "2023-11-14T22:15:00Z"]):
        refused = run(capsys, "rollback", toml, *given)
        assert refused[0] == 2
        assert "give either the version N to keep, or --until TIME" in refused[2]
    assert run(capsys, "rollback", toml, "--until", "2023-11-14T22:15:00")[0] == 2
    code, out, _ = run(capsys, "rollback", toml, "--until", "2023-11-14T22:15:00Z", "--json")
    document = json.loads(out)
    assert (code, document["version"], document["to"], document["offsets"]) == (0, 2, 0, {"files": 2})


def test_quarantine_prints_records_reasons_and_locations(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(fixture.root / "log")
    code, out, _ = run(capsys, "quarantine", log, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["complete"]
    assert {record["version"] for record in document["records"]} <= {0, 1, 2}
    assert all({"raw", "error", "path"} <= set(record) for record in document["records"])
    _, out, _ = run(capsys, "quarantine", log, "--limit", "1")
    assert ("Only the first 1 are shown" in out) == (len(document["records"]) > 1)
    assert document["records"][0]["raw"] in out
    _, out, _ = run(capsys, "quarantine", log, "--since", str(fixture.opened().head))
    assert out == "there are no quarantined records\n"


def test_log_may_be_a_relative_path(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixture.root)
    assert run(capsys, "verify", "log")[0] == 0
    assert run(capsys, "lag", "p.toml")[0] == 0


def test_json_is_the_only_output_of_a_pipeline_file_that_imports_airflow(tmp_path: Path) -> None:
    """Importing Airflow gives the root logger a handler that writes to standard output. py4j logs when the process ends."""
    (tmp_path / "in").mkdir()
    code = f"""
import airflow.sdk, atexit, logging
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline
print("from the file")
atexit.register(logging.getLogger("py4j.clientserver").info, "Closing down clientserver connection")
atexit.register(logging.getLogger("other").warning, "the process ends")
P = Pipeline(name="p", log={str(tmp_path / "log")!r}, source=FilesSource(path={str(tmp_path / "in")!r}, format="text"),
    sinks={{"out": FilesSink(path={str(tmp_path / "out")!r})}}, transform="operator:pos")
"""
    (tmp_path / "p.py").write_text(code)
    command = [sys.executable, "-m", "airflow_provider_streamsem.cli.main", "run", f"{tmp_path}/p.py:P", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["status"] == "empty"
    assert "from the file" in process.stderr
    assert "Closing down" not in process.stderr


def test_transform_of_a_python_file_has_the_name_that_it_has_in_airflow(tmp_path: Path) -> None:
    code = """
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline
def clean(records):
    return records
P = Pipeline(name="p", log="/log", source=FilesSource(path="/in", format="text"), sinks={"out": FilesSink(path="/out")}, transform=clean)
"""
    (tmp_path / "orders.py").write_text(code)
    assert commands_._pipeline_of(str(tmp_path / "orders.py"), "P").transform_name == "orders:clean"


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


def test_days_to_keep_without_versions_to_keep_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(1)
    fixture.run("first")
    (tmp_path / "p.toml").write_text(
        f'name = "world"\nlog = "{tmp_path}/log"\n[source]\ntype = "files"\npath = "{tmp_path}/in"\nformat = "json"\nschema = "id long"\n'
        f'[sinks.out]\ntype = "files"\npath = "{tmp_path}/out"\nformat = "json"\n'
    )
    assert main(["vacuum", str(tmp_path / "p.toml"), "--keep-days", "3"]) == 2
    assert "--keep-days applies only together with --keep-versions" in capsys.readouterr().err
