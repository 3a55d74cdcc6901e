"""On Spark Connect, sinks that keep the last row of each key keep that of the newest version, and refuse rows without order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer

pytestmark = pytest.mark.integration

PROGRAM = """
import json, pathlib, sys
import pyarrow
from deltalake import DeltaTable, write_deltalake
from airflow_provider_streamsem import Dedup, DeltaSink, DeltaSource, Pipeline, run_batch
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark.spark_engine import SparkEngine

root, engine, results = pathlib.Path(sys.argv[2]), SparkEngine(remote=sys.argv[1]), {}
for version, size in enumerate([1, 5000, 1, 300]):
    rows = {"k": [*range(7)], "v": [version] * 7, "padding": ["x" * size] * 7}
    write_deltalake(str(root / "source"), pyarrow.table(rows), mode="append")

def one_run(name, sinks=("table",), **changes):
    tables = {sink: DeltaSink(str(root / name / sink), mode="upsert", keys=["k"]) for sink in sinks}
    source = DeltaSource(path=str(root / "source"), starting=changes.pop("starting", 0))
    pipeline = Pipeline(name=name, log=str(root / name / "log"), source=source, sinks=tables, **changes)
    try:
        run_batch(pipeline, run_key="all", engine=engine)
    except DataError as error:
        results[name] = error.summary
        return
    kept = [row for table in tables.values() for row in DeltaTable(table.path).to_pyarrow_table().to_pylist()]
    results[name] = sorted({row["v"] for row in kept})

def narrow(frame):
    return frame.where("k >= 0").selectExpr("k", "v", "v + 1 AS w")

one_run("plain")
one_run("narrow", transform=narrow)
one_run("two", sinks=("a", "b"), transform=narrow)
one_run("dedup", dedup=Dedup(keys=["k", "v"], ttl_s=3600))
one_run("shuffled", transform=lambda frame: frame.repartition(3))
one_run("snapshot", starting="earliest")
print("RESULTS", json.dumps(results))
"""


def test_versions_are_ordered_on_spark_connect(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    server = ConnectServer(tmp_path / "server")
    with running(server):
        command = [sys.executable, "-c", PROGRAM, server.url, str(tmp_path)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert lines, done.stderr[-3000:]
    results = json.loads(lines[0].removeprefix("RESULTS "))
    unknown = "the batch has different rows with equal keys, and their order is unknown; nothing became visible"
    newest = [3]
    assert results == {
        "plain": newest,
        "narrow": newest,
        "two": newest,
        "dedup": newest,
        "shuffled": unknown,
        "snapshot": unknown,
    }
