"""The pages on expectations, gates, partitions, intervals and backfills are followed on local files. Only locations differ from the pages."""

from __future__ import annotations

import json
import os
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Expect, Pipeline, load_pipeline, open_log, read_committed
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from tests.code_blocks import blocks

PAGES = Path(__file__).parents[2] / "docs" / "how-to"

pytestmark = pytest.mark.spark


def toml(value: Any) -> str:
    """Return a JSON value in TOML, without nulls."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items() if v is not None) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


class Page:
    """The first pipeline of a page, with local files, and its file ``orders.toml``."""

    def __init__(self, name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.root = PAGES / name, root
        code, *self.others = [self.local(block) for block in blocks(self.path, "python")]
        (root / "lake" / "incoming" / "orders").mkdir(parents=True)
        scope: dict[str, Any] = {}
        exec(code, scope)
        self.pipeline: Pipeline = scope["ORDERS"]
        self.write(self.pipeline)
        monkeypatch.chdir(root)

    def write(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        spec = pipeline.without_transform()
        (self.root / "orders.toml").write_text("".join(f"{name} = {toml(value)}\n" for name, value in spec.items() if value is not None))  # fmt: skip

    def local(self, text: str) -> str:
        return text.replace("s3://lake", f"{self.root}/lake")

    def arrives(self, name: str, *rows: Any) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (self.root / "lake" / "incoming" / "orders" / f"{name}.json").write_text("\n".join(lines) + "\n")

    def commands(self) -> list[str]:
        return [line for block in blocks(self.path, "bash") for line in block.splitlines()]

    def run(self, command: str) -> int:
        program, *arguments = shlex.split(command)
        assert program == "streamsem"
        return main(arguments)


def test_page_on_expectations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    page = Page("expectations.md", tmp_path, monkeypatch)
    page.arrives("1", {"id": 1, "customer": "a", "amount": "5"}, {"id": 2, "amount": "-1"}, "no record")
    assert main(["run", "orders.toml"]) == 0
    show, quarantine, reprocess = page.commands()
    capsys.readouterr()
    assert page.run(show) == 0
    shown = capsys.readouterr().out
    for name in ("failed_records.<rule>", "quarantined", "dropped", "failed_rows.<sink>.<rule>", "quarantined_rows.<sink>", "dropped_rows.<sink>"):  # fmt: skip
        assert f"`{name}`" in page.path.read_text()
        rule = "amount is positive" if "records" in name else "id is set"
        assert f'"{name.replace("<sink>", "orders").replace("<rule>", rule)}"' in shown
    assert page.run(quarantine) == 0
    assert "breaks the rule amount is positive" in " ".join(capsys.readouterr().out.split())
    page.write(page.pipeline.replace(expect={"amount is positive": Expect("amount > -2", on_failure="quarantine")}))
    assert page.run(reprocess) == 0
    assert sorted(row.id for row in read_committed(spark, page.pipeline.log).collect()) == [1, 2]
    assert main(["explain", "orders.toml"]) == 0
    assert "expectation for sink orders: id is set: id IS NOT NULL; on failure: fail" in capsys.readouterr().out


def test_page_on_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from deltalake import DeltaTable

    page = Page("gates.md", tmp_path, monkeypatch)
    row = {"id": 1, "customer": "a", "at": "2026-01-01T00:00:00Z"}
    page.arrives("1", row)
    assert main(["run", "orders.toml"]) == 0
    page.arrives("2", {**row, "id": 2}, {**row, "id": 2})
    capsys.readouterr()
    assert main(["run", "orders.toml"]) != 0
    assert "1 values of id in orders are not unique" in capsys.readouterr().err
    diff, commit, abort = page.commands()
    assert page.run(diff) == 1
    assert "staged: 2 rows" in capsys.readouterr().out
    assert page.run("streamsem show orders.toml 1") == 0
    assert "does not pass a gate: 1 values of id in orders are not unique" in capsys.readouterr().out
    assert page.run(commit) == 0
    table = DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [1, 2, 2]
    page.arrives("3", {**row, "id": 3}, {**row, "id": 3})
    assert main(["run", "orders.toml"]) != 0
    assert page.run(abort.replace(" 1 ", " 2 ")) == 0
    assert main(["verify", "orders.toml"]) == 0


def test_checks_of_the_page_on_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    page = Page("gates.md", tmp_path, monkeypatch)
    function, suite, use = page.others
    for code in (function, suite):
        path = tmp_path / code.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, Any] = {}
    exec(use, scope)
    page.write(page.pipeline.replace(gates=scope["GATES"]))
    page.arrives("1", {"id": 1, "customer": "tester"}, {"id": 1, "customer": "a"})
    assert main(["run", "orders.toml"]) != 0
    log = open_log(page.pipeline.log)
    version = log.version(0)
    assert version is not None
    assert [failed.found for failed in version.failed_gates] == [
        "orders: 1 orders of test customers", "orders: expect_column_values_to_be_unique of id is not satisfied",
    ]  # fmt: skip
    for name in ("shop", "shop.checks", "shop.suites"):
        sys.modules.pop(name, None)


def test_page_on_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page("partitions.md", tmp_path, monkeypatch)
    page.arrives("1", {"id": 1, "at": "2026-01-30T22:59:59Z"}, {"id": 2, "at": "2026-01-30T23:00:00Z"})
    assert main(["run", "orders.toml"]) == 0
    page.arrives("2", {"id": 3, "at": "2026-02-01T12:00:00Z"})
    assert main(["run", "orders.toml"]) == 0
    show, reprocess = page.commands()
    capsys.readouterr()
    assert page.run(show) == 0
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if "2026-01-3" in line]
    assert [row[-3:-1] for row in cells] == [["complete", "1"]] * 2
    assert page.run(reprocess) == 0
    assert "1 versions are selected: 0" in capsys.readouterr().out
    assert page.run(reprocess.replace(" --dry-run", "")) == 0
    (read,) = [block for block in page.others if "def complete_days" in block]
    scope: dict[str, Any] = {}
    exec(read, scope)
    assert scope["complete_days"](page.pipeline.log) == ["2026-01-30", "2026-01-31"]


@pytest.mark.parametrize("name", ["expectations.md", "gates.md", "partitions.md"])
def test_toml_of_the_page_is_that_of_its_pipeline(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    page = Page(name, tmp_path, monkeypatch)
    spec = page.pipeline.without_transform()
    for block in blocks(page.path, "toml"):
        for field, value in tomllib.loads(page.local(block)).items():
            if field == "gates":
                assert from_json({**spec, field: value}).gates[0] == page.pipeline.gates[0]
            elif field != "sinks":
                built = from_json({**spec, field: {**(spec[field] if field == "expect" else {}), **value}})
                assert getattr(built, field) == getattr(page.pipeline, field)
            else:
                assert from_json({**spec, "sinks": value}).sinks == page.pipeline.sinks


def test_file_of_a_pipeline_with_rules_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'name = "p"\nlog = "/log"\n[source]\ntype = "rate"\n[expect."a \\"quoted\\" rule."]\npredicate = "value > 0"\n'
        '[sinks.out]\ntype = "files"\npath = "/out"\n'
    )
    assert [*load_pipeline(str(tmp_path / "p.toml")).expect] == ['a "quoted" rule.']


def test_pages_on_intervals_and_backfills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    page = Page("intervals.md", tmp_path, monkeypatch)
    for name, hour in (("1", 5), ("2", 7)):
        page.arrives(name, {"id": hour, "at": f"2026-01-31T{hour:02}:30:00Z"})
        at = datetime(2026, 1, 31, hour, 30, tzinfo=timezone.utc).timestamp()
        os.utime(tmp_path / "lake" / "incoming" / "orders" / f"{name}.json", (at, at))
    run, show, missing = page.commands()
    assert page.run(run.replace("T05", "T07").replace("T06", "T08")) == 0
    assert page.run(run) == 0
    assert page.run(run) == 0
    assert sorted(row.id for row in read_committed(spark, page.pipeline.log).collect()) == [5, 7]
    capsys.readouterr()
    assert page.run(show) == 0
    states = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if "T0" in line
    ]
    assert [row[2:] for row in states] == [
        ["orders 1", "read", "1", "2"],
        ["", "missing", "", ""],
        ["orders 1", "read", "0", "0"],
    ]
    assert page.run(missing) == 0
    assert "T06:00:00+00:00" in (out := capsys.readouterr().out)
    assert "T05" not in out
    preview, reprocess = [
        line
        for block in blocks(PAGES / "backfill.md", "bash")
        for line in block.splitlines()
        if line.startswith("streamsem")
    ]
    for month in ("2026-01-30..2026-01-31", "2026-01"):
        assert page.run(preview.replace("2026-10-01..2026-10-31", month)) == 0
        out = capsys.readouterr().out
        assert "2 versions are selected: 0-1" in out
        assert "partition 2026-01-31T05:00:00+00:00: version 1" in out
    (tmp_path / "lake" / "incoming" / "orders" / "2.json").unlink()
    assert page.run(preview.replace("2026-10-01..2026-10-31", "2026-01-31")) == 0
    assert "partition 2026-01-31T07:00:00+00:00: version 0; 0 cannot be reprocessed" in capsys.readouterr().out
    assert page.run(reprocess.replace("2026-10-01..2026-10-31", "2026-01-31")) == 1
    assert sorted(row.id for row in read_committed(spark, page.pipeline.log).collect()) == [5, 7]
    assert main(["verify", "orders.toml"]) == 0
