"""The commands and the Python code of how-to pages run on a small pipeline. Only locations and version numbers differ from the pages."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import read_committed, run_batch
from airflow_provider_streamsem.cli.main import main
from tests.code_blocks import blocks
from tools import class_archive

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
PIPELINE = """
name = "{name}"
log = "{lake}/_streamsem/{name}"
[source]
type = "files"
path = "{lake}/arrivals"
format = "json"
schema = "{schema}"
[sinks.lake]
type = "files"
path = "{lake}/{name}"
[limits]
max_files = 1
"""
DUCKDB = """#!{python}
import sys, duckdb
print(duckdb.sql(sys.argv[2]).fetchall())
"""

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a pipeline with three versions. The second one has a quarantined record. The tests run in a directory with the pipelines' files."""
    (tmp_path / "lake" / "arrivals").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for number, ids in enumerate(([1, 2], [3, 3_000_000_000], [4])):
        lines = [json.dumps({"id": id}) for id in ids]
        (tmp_path / "lake" / "arrivals" / f"{number}.json").write_text("\n".join(lines))
    write_pipeline(tmp_path, "PIPELINE", "orders", "id int")
    write_pipeline(tmp_path, "orders_v2", "orders_v2", "id int")
    assert main(["run", "PIPELINE.toml", "--drain"]) == 0
    return tmp_path / "lake"


def write_pipeline(location: Path, file: str, name: str, schema: str) -> None:
    text = PIPELINE.format(name=name, lake=location / "lake", schema=schema)
    (location / f"{file}.toml").write_text(text)


def with_locations(text: str, lake: Path) -> str:
    """Replace the lake and the version numbers of a page."""
    return re.sub(r"\b4([01])\b", lambda number: number[1], text.replace("s3://lake", str(lake)))


def commands(page: str, lake: Path) -> list[str]:
    """Return the commands of a page, in order."""
    return [line for block in blocks(PAGES / page, "bash") for line in with_locations(block, lake).splitlines() if line]


def run(command: str) -> int:
    program, *arguments = shlex.split(command)
    assert program == "streamsem"
    return main(arguments)


def test_commands_and_code_of_the_page_on_forks(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, replay, drain, compare, dry_run, drop = commands("fork.md", lake)
    assert [run(command) for command in (fork, drain, compare, dry_run, drop)] == [0] * 5
    assert [run(command) for command in (replay, drain)] == [0, 0]
    assert run(compare) == 2, "a fork from a time has not read the same records"
    write_pipeline(Path.cwd(), "orders_v3", "orders_v3", "id int")
    code = "from airflow_provider_streamsem import load_pipeline\nORDERS_V2 = load_pipeline('orders_v3.toml')\n"
    Path("my_pipelines.py").write_text(code)
    monkeypatch.syspath_prepend(os.getcwd())
    (block,) = blocks(PAGES / "fork.md", "python")
    exec(compile(with_locations(block, lake), "fork.md", "exec"), {})
    assert main(["run", "orders_v3.toml", "--drain"]) == 0
    assert main(["diff", f"{lake}/_streamsem/orders_v3", f"{lake}/_streamsem/orders"]) == 0


def test_commands_and_code_of_the_page_on_rollbacks(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(Path.cwd(), "orders", "orders", "id int")
    later = "2099-01-31T12:00:00Z", "4_073_328_000_000"  # after the newest version
    log, roll_back, until, drain = commands("roll-back.md", lake)
    assert [run(log), run(roll_back), run(until.replace("2026-01-31T12:00:00Z", later[0])), run(drain)] == [0] * 4
    code = "from airflow_provider_streamsem import load_pipeline\nORDERS = load_pipeline('orders.toml')\n"
    Path("my_pipelines.py").write_text(code)
    monkeypatch.syspath_prepend(os.getcwd())
    sys.modules.pop("my_pipelines", None)
    (block,) = blocks(PAGES / "roll-back.md", "python")
    assert "1_769_860_800_000" in block
    exec(compile(with_locations(block, lake).replace("1_769_860_800_000", later[1]), "roll-back.md", "exec"), {})
    assert main(["run", "orders.toml", "--drain"]) == 0
    assert main(["verify", "orders.toml"]) == 0


def test_commands_and_code_of_the_page_on_alters(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(Path.cwd(), "orders", "orders", "id long")
    (sink,) = blocks(PAGES / "alter.md", "toml")
    Path("orders.toml").write_text(f"{Path('orders.toml').read_text()}\n{with_locations(sink, lake)}")
    dry_run, alter, drain = commands("alter.md", lake)
    assert run(drain) == 4, "the spec is not that of the log"
    assert [run(dry_run), run(alter), run(drain)] == [0] * 3
    code = "from airflow_provider_streamsem import load_pipeline\nORDERS = load_pipeline('orders.toml')\n"
    Path("my_pipelines.py").write_text(code)
    monkeypatch.syspath_prepend(os.getcwd())
    sys.modules.pop("my_pipelines", None)
    for block in blocks(PAGES / "alter.md", "python"):
        exec(compile(block, "alter.md", "exec"), {})
    assert main(["verify", "orders.toml"]) == 0
    sys.modules.pop("my_pipelines", None)


def test_commands_of_the_page_on_compaction(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry_run, compact, *_ = (command.replace("orders.toml", "PIPELINE.toml") for command in commands("compact.md", lake))
    page = (PAGES / "compact.md").read_text()
    for command in (dry_run, compact):
        capsys.readouterr()
        assert run(command) == 0
        printed = re.sub(r"\d+", "N", capsys.readouterr().out.strip())
        assert printed in re.sub(r"\d+", "N", page)
    assert main(["verify", "PIPELINE.toml"]) == 0
    assert main(["log", "PIPELINE.toml"]) == 0
    assert "rewrite of" in capsys.readouterr().out


def test_commands_of_the_page_on_compaction_of_a_table(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = (tmp_path / "PIPELINE.toml").read_text().replace('"orders"', '"sold"').replace("/orders", "/sold")
    table = f'[sinks.warehouse]\ntype = "delta"\npath = "{lake}/warehouse"\n'
    (tmp_path / "SOLD.toml").write_text(spec.replace("[limits]", f"{table}[limits]"))
    assert main(["run", "SOLD.toml", "--drain"]) == 0
    *_, dry_run, compact = (command.replace("orders.toml", "SOLD.toml") for command in commands("compact.md", lake))
    assert "--sink warehouse" in compact
    capsys.readouterr()
    assert [run(dry_run), run(compact)] == [0, 0]
    printed = re.sub(r"\d+", "N", capsys.readouterr().out.strip().splitlines()[-1])
    assert printed in re.sub(r"\d+", "N", (PAGES / "compact.md").read_text())


def test_commands_of_the_page_on_erasures(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(tmp_path, "orders", "orders", "id int")
    found = [command.replace("user_id", "id").replace("= 42", "= 3") for command in commands("erase.md", lake)]
    preview, erase, from_input, quarantined = found
    page = re.sub(r"\d+", "N", (PAGES / "erase.md").read_text())
    capsys.readouterr()
    assert run(preview) == 0
    lines = [re.sub(r"\d+", "N", line) for line in capsys.readouterr().out.strip().splitlines()]
    assert lines[0] == "would erase N row(s) from sink lake, in N file(s)"
    assert [line for line in lines if line not in page] == []
    assert run(erase) == 0
    assert re.search(r"versions: \d+; the versions before have expired", capsys.readouterr().out)
    command, redirect, file = from_input.rpartition(" < ")
    assert (redirect, file) == (" < ", "predicate.txt")
    monkeypatch.setattr("sys.stdin", io.StringIO("id IN (1, 4)\n"))
    assert run(command) == 0
    assert "erased 2 row(s) from sink lake, in 2 file(s)" in capsys.readouterr().out
    assert run(quarantined) == 0
    assert main(["verify", "orders.toml"]) == 0
    assert main(["log", "orders.toml"]) == 0
    assert "erasure of rows of" in capsys.readouterr().out
    assert main(["erase", "orders.toml", "--where", "id = '1'"]) == 2


def test_commands_of_the_page_on_reprocessing(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands("reprocess.md", lake)
    log, reprocess, dry_run, by_time, by_offsets, stage, compare, commit, abort, quarantined = found
    assert [run(command) for command in (log, reprocess, dry_run, by_time, by_offsets)] == [0] * 5
    for decide in (commit, abort):
        assert run(stage) == 0
        capsys.readouterr()
        assert main(["log", "PIPELINE.toml", "--limit", "1", "--json"]) == 0
        (newest,) = json.loads(capsys.readouterr().out)["versions"]
        assert newest["result"] == "held"
        held = str(newest["version"])
        assert [run(command.replace("57", held)) for command in (compare, decide)] == [0, 0]
    write_pipeline(Path.cwd(), "PIPELINE", "orders", "id long")  # the fix of the schema
    assert run(quarantined) == 0
    capsys.readouterr()
    assert main(["quarantine", "PIPELINE.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == []


def test_commands_of_the_page_on_production(lake: Path) -> None:
    *vacuums, archive = commands("production.md", lake)
    assert [run(command.replace("orders.toml", "PIPELINE.toml")) for command in vacuums] == [0, 0]
    file = lake / "spark.jsa"
    program, *arguments = shlex.split(archive.replace("/opt/spark.jsa", str(file)).replace("local[*]", "local[2]"))
    command = [Path(sys.executable).with_name(program), *arguments]
    # A JVM that uses an archive does not write one.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": class_archive.SHORT_LIVED}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert file.stat().st_size > 1 << 20
    assert [path.name for path in lake.glob("spark.jsa*")] == ["spark.jsa"]


def test_commands_and_code_of_the_page_on_reading(
    lake: Path, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shim = tmp_path / "bin" / "duckdb"
    shim.parent.mkdir()
    shim.write_text(DUCKDB.format(python=sys.executable))
    shim.chmod(0o755)
    count, *exports, manifests = commands("read.md", lake)
    search_path = os.pathsep.join([str(shim.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", count],
        env={**os.environ, "PATH": search_path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[(4,)]", done.stderr
    for export in exports:
        command, _, target = export.partition(" > ")
        capsys.readouterr()
        assert run(command) == 0
        (tmp_path / target).write_text(capsys.readouterr().out)
    with duckdb.connect() as db:
        db.execute((tmp_path / "orders.sql").read_text())
        assert db.execute("SELECT count(*) FROM orders").fetchall() == [(4,)]
    scope: dict[str, Any] = {}
    exec((tmp_path / "orders.py").read_text(), scope)
    assert scope["orders"].collect().height == 4
    assert run(manifests) == 0
    assert [*lake.glob("orders_at_*/manifest")]
    block, *_ = blocks(PAGES / "read.md", "python")
    lines = with_locations(block, lake).replace("\nread_committed(", "\nfound += read_committed(")
    found: list[object] = []
    code = re.sub(r"(found \+= read_committed\([^)]*\))", r"\1.collect()", lines)
    exec(compile(code, "read.md", "exec"), {"spark": spark, "found": found})
    assert sorted(row.id for row in found) == [1, 1, 2, 2, 3, 3, 3, 4, 4]  # type: ignore[attr-defined]


def test_commands_and_code_of_the_page_on_monoids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = [block for block in blocks(PAGES / "aggregate.md", "python") if block.startswith("# my_monoids.py")]
    (tmp_path / "my_monoids.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (block,) = [block for block in blocks(PAGES / "aggregate.md", "bash") if "check-monoid" in block]
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-ec", block], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [block for block in blocks(PAGES / "aggregate.md", "python") if "from my_monoids" in block]
    for test in tests:
        names: dict[str, object] = {}
        exec(compile(test, "aggregate.md", "exec"), names)
        for name, function in names.items():
            if name.startswith("test_"):
                function()  # type: ignore[operator]
    sys.modules.pop("my_monoids", None)


def test_pipeline_begins_with_the_rows_of_a_directory(tmp_path: Path, spark: SparkSession) -> None:
    """The topic is replaced by a directory of JSON files, with the same columns."""
    (code,) = [block for block in blocks(PAGES / "structured-streaming.md", "python") if "with_history" in block]
    spark.range(6).selectExpr("id", "'a' AS shop", "now() AS at").repartition(3).write.parquet(f"{tmp_path}/old_orders")
    (tmp_path / "topic").mkdir()
    line = json.dumps({"id": 6, "shop": "b", "at": "2026-01-01T00:00:00Z"})
    (tmp_path / "topic" / "1.json").write_text(line)
    topic = f'FilesSource(path="{tmp_path}/topic", format="json", schema=COLUMNS, hive_partitions=False)'
    code = re.sub(r"KafkaSource\(topics.*\),\n", f"{topic},\n", code.replace("s3://lake", str(tmp_path)))
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)
    result = run_batch(names["ORDERS"], run_key="start", drain=True)
    assert (result.counts["read.history"], result.counts["read.orders"]) == (6, 1)
    rows = read_committed(spark, f"{tmp_path}/_streamsem/orders").select("id").collect()
    assert sorted(row["id"] for row in rows) == list(range(7))
    assert run_batch(names["ORDERS"], run_key="again", drain=True).batches == 0
