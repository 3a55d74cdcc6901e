"""
The time from the start of a process to its first commit, by the size of the state on S3: ``make bench ARGS=cold_state``.

For each number of keys, one process writes the state. Then a new process for each round runs one batch of 1,000 records. The peer is the same pipeline
without state, also in a new process. Both processes report their phases.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import kafka, results

ROUNDS = int(os.environ.get("ROUNDS", "3"))
KEYS = [int(n) for n in os.environ.get("KEYS", "1000 100000 1000000").split()]
BATCH = 1_000

PROGRAM = """
import json, sys, time
began = time.monotonic()
from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, SparkEngine, State, run_batch
from pyspark.sql import functions as F
imported = time.monotonic()
source, log, has_state, conf = sys.argv[1], sys.argv[2], sys.argv[3] == "state", json.loads(sys.argv[4])
engine = SparkEngine(master="local[2]", conf=conf)
engine.session()
started = time.monotonic()
pipeline = Pipeline(
    name="cold", log=log, source=FilesSource(path=source, format="parquet", schema="id long"), limits=Limits(max_files=1),
    sinks={"out": FilesSink(log + "-out")},
    transform=(lambda events: events.groupBy("id").agg(F.count("*").alias("n"))) if has_state else None,
    state=State(output_mode="update", partitions=2) if has_state else None,
)
result = run_batch(pipeline, run_key=sys.argv[5], engine=engine)
assert result.status == "committed", result
phases = {"imports": imported - began, "session": started - imported, "work": time.monotonic() - started}
print("PHASES", json.dumps({**phases, "read": result.counts["read"]}))
"""


def run(source: Path, log: str, subject: str, conf: dict[str, str], run_key: str) -> dict[str, float]:
    """Run one batch in a new process, and return its phases in seconds."""
    command = [sys.executable, "-c", PROGRAM, str(source), log, subject, json.dumps(conf), run_key]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr[-3000:])
    phases: dict[str, float] = json.loads(process.stdout.partition("PHASES ")[2])
    return phases


def write_records(source: Path, number: int, ids: range) -> None:
    """Write one Parquet file, which is one batch."""
    import pyarrow
    import pyarrow.parquet

    path = source / f"{number:03d}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64())}), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def measure(home: Path, conf: dict[str, str], keys: int) -> list[str]:
    """Return a row of the table for a number of keys."""
    source = home / f"in-{keys}"
    source.mkdir()
    write_records(source, 0, range(keys))
    logs = {subject: f"s3://lake/cold/{keys}/{subject}" for subject in ("state", "none")}
    for subject, log in logs.items():
        assert run(source, log, subject, conf, "first")["read"] == keys
    phases_by_subject: dict[str, list[dict[str, float]]] = {"state": [], "none": []}
    for number in range(1, ROUNDS + 1):
        write_records(source, number, range(keys // 2, keys // 2 + BATCH))
        for subject, log in logs.items():
            phases = run(source, log, subject, conf, f"run-{number}")
            assert phases.pop("read") == BATCH
            phases_by_subject[subject].append(phases)
    totals = {name: statistics.median(sum(p.values()) for p in rounds) for name, rounds in phases_by_subject.items()}
    work = {name: statistics.median(p["work"] for p in rounds) for name, rounds in phases_by_subject.items()}
    subjects = {results.PROVIDER: "state", "without state": "none"}
    times = {title: [sum(p.values()) * 1000 for p in phases_by_subject[name]] for title, name in subjects.items()}
    results.record("cold_state", f"{keys:,} keys", times)
    return [
        f"{keys:,}",
        *(f"{totals[n]:.1f} s" for n in totals),
        *(f"{work[n]:.1f} s" for n in work),
        f"{totals['state'] - totals['none']:.1f} s",
    ]


def main() -> None:
    """Measure each number of keys, and print a table."""
    from tests.integration.parts.spark import session_conf

    with tempfile.TemporaryDirectory() as directory, kafka.servers(home := Path(directory)) as (_, s3):
        rows = [measure(home, {**session_conf(), **s3.s3a_conf()}, keys) for keys in KEYS]
    columns = ["keys", "with state", "without", "work with state", "work without", "difference"]
    kafka.show("From the start of a process to a commit of 1,000 records, log and state on s3a", columns, rows)


if __name__ == "__main__":
    main()
