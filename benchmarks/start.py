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

BARE = """
import json, sys, time
began = time.monotonic()
from pyspark.sql import SparkSession
imported = time.monotonic()
master, source, target, schema = sys.argv[1:5]
builder = SparkSession.builder.remote(master) if master.startswith("sc://") else SparkSession.builder.master(master).config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
started = time.monotonic()
spark.read.schema(schema).json(source).write.mode("append").option("compression", "zstd").parquet(target)
print("PHASES", json.dumps({"imports": imported - began, "session": started - imported, "work": time.monotonic() - started}))
"""

PROVIDER = """
import json, sys, time
began = time.monotonic()
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, SparkEngine, run_batch
import pyspark.sql
imported = time.monotonic()
master, source, target, schema = sys.argv[1:5]
engine = SparkEngine(remote=master) if master.startswith("sc://") else SparkEngine(master=master)
engine.session()
started = time.monotonic()
files = FilesSource(path=source, format="json", schema=schema)
pipeline = Pipeline(name="start", log=target + "/log", source=files, sinks={"out": FilesSink(target + "/out")})
result = run_batch(pipeline, run_key="r", engine=engine)
assert result.status == "committed" and result.counts["written.out"] == result.counts["read"] > 0, result
print("PHASES", json.dumps({"imports": imported - began, "session": started - imported, "work": time.monotonic() - started}))
"""
SUBJECTS = {results.PROVIDER: PROVIDER, "bare script": BARE}


def phases(home: Path, master: str, source: Path, schema: str) -> dict[str, list[dict[str, float]]]:
    """Run both subjects in each round, each in a process of its own. Return subject → phase → seconds, for each round."""
    home.mkdir()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SUBJECTS}
    for number in range(ROUNDS + 1):
        for name, code in SUBJECTS.items():
            target = home / f"{name}-{number}"
            process = subprocess.run(
                [sys.executable, "-c", code, master, str(source), str(target), schema],
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                raise RuntimeError(process.stderr[-3000:])
            if number:  # the first round fills the disk caches
                found[name].append(json.loads(process.stdout.partition("PHASES ")[2]))
    return found


def measure(home: Path, master: str, case: str, source: Path) -> None:
    """Run both subjects, print the medians of their phases, and store the sums."""
    found = phases(home, master, source, SCHEMA)
    for name, rounds in found.items():
        medians = {phase: statistics.median(measured[phase] for measured in rounds) for phase in rounds[0]}
        print(f"{case}: {name}: {', '.join(f'{phase} {seconds:.2f} s' for phase, seconds in medians.items())}")
    results.record("start", case, {n: [sum(each.values()) * 1000 for each in rounds] for n, rounds in found.items()})


def main() -> None:
    """Measure with a local session and on Spark Connect."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        source = home / "in"
        source.mkdir()
        row = {"name": "ann", "amount": "1.50", "at": "2026-01-02T03:04:05Z"}
        (source / "a.json").write_text("\n".join(json.dumps({**row, "id": n}) for n in range(1_000)))
        measure(home / "local", "local[2]", "local", source)
        server = ConnectServer(home / "connect")
        with running(server):
            measure(home / "measured", server.url, "Spark Connect", source)


if __name__ == "__main__":
    main()
