"""The commands that inspect a log: log, show, files, quarantine and top."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.cli import output
from airflow_provider_streamsem.cli.log_table import log_table
from airflow_provider_streamsem.cli.top import sparkline
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_files_prints_one_path_per_line(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "files", str(fixture.root / "log"))
    assert [
        json.loads(line)["id"] for path in out.splitlines() for line in Path(path).read_text().splitlines()
    ] == list(range(6))


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
