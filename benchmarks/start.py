"""
The time from the start of a process to the commit of 1,000 rows, compared with a bare PySpark script: ``make bench ARGS=start``.

Each round starts one process of each subject in turn, so that other load on the machine affects both equally. The process reports its phases: imports,
session (with the JVM), and work.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import results
from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SCHEMA = "id long, name string, amount decimal(12,2), at timestamp"

BARE = f"""
import json, sys, time
began = time.monotonic()
from pyspark.sql import SparkSession
imported = time.monotonic()
master, source, target = sys.argv[1:4]
builder = SparkSession.builder.remote(master) if master.startswith("sc://") else SparkSession.builder.master(master).config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
started = time.monotonic()
rows = spark.read.schema("{SCHEMA}").json(source)
rows.where("amount > 0").write.mode("append").parquet(target)
print("PHASES", json.dumps({{"imports": imported - began, "session": started - imported, "work": time.monotonic() - started}}))
"""

PROVIDER = f"""
import json, sys, time
began = time.monotonic()
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, SparkEngine, run_batch
import pyspark.sql
imported = time.monotonic()
master, source, target = sys.argv[1:4]
engine = SparkEngine(remote=master) if master.startswith("sc://") else SparkEngine(master=master)
engine.session()
started = time.monotonic()
pipeline = Pipeline(
    name="start", log=target + "/log", source=FilesSource(path=source, format="json", schema="{SCHEMA}"), where="amount > 0",
    sinks={{"out": FilesSink(target + "/out")}},
)
result = run_batch(pipeline, run_key="r", engine=engine)
assert result.status == "committed" and result.counts["written.out"] == 999, result
print("PHASES", json.dumps({{"imports": imported - began, "session": started - imported, "work": time.monotonic() - started}}))
"""


def measure(home: Path, master: str, title: str) -> None:
    """Run both subjects, and print the medians of their phases and the ratio of their sums."""
    source = home / "in"
    source.mkdir(exist_ok=True)
    row = {"name": "ann", "amount": "1.50", "at": "2026-01-02T03:04:05Z"}
    lines = [json.dumps({**row, "id": n, **({} if n else {"amount": "0.00"})}) for n in range(1_000)]
    (source / "a.json").write_text("\n".join(lines))
    phases_by_subject: dict[str, list[dict[str, float]]] = {"bare": [], "provider": []}
    for number in range(ROUNDS + 1):
        for name, code in (("bare", BARE), ("provider", PROVIDER)):
            target = home / f"{title}-{name}-{number}"
            process = subprocess.run(
                [sys.executable, "-c", code, master, str(source), str(target)],
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                raise RuntimeError(process.stderr[-3000:])
            if number:  # the first round fills the disk caches
                phases_by_subject[name].append(json.loads(process.stdout.partition("PHASES ")[2]))
    medians = {
        name: {phase: statistics.median(measured[phase] for measured in rounds) for phase in rounds[0]}
        for name, rounds in phases_by_subject.items()
    }
    sums = {
        name: statistics.median(sum(measured.values()) for measured in rounds)
        for name, rounds in phases_by_subject.items()
    }
    for name, phases in medians.items():
        phases_text = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in phases.items())
        print(f"{title}: {name}: {sums[name]:.2f} s: {phases_text}")
    case = {"local": "local", "connect": "Spark Connect"}[title]
    results.record("start", case, {"provider": sums["provider"] * 1000, "bare script": sums["bare"] * 1000})
    print(f"{title}: provider / bare = {sums['provider'] / sums['bare']:.2f}")


def main() -> None:
    """Measure with a local session and on Spark Connect."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        measure(home, "local[2]", "local")
        server = ConnectServer(home / "connect")
        with running(server):
            measure(home, server.url, "connect")


if __name__ == "__main__":
    main()
