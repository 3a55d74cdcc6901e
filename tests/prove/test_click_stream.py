"""
A click-stream of 5,000,000 events. Some arrive late, and some arrive twice. Windows count each event once, although the process is killed three times.

DuckDB generates the events, and computes the expected counts in one pass over all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from airflow_provider_streamsem import open_log, verify

EVENTS, FILES = 5_000_000, 50
KILLS = (5, 17, 33)
"""Versions during which the process is killed."""
PROGRAM = """
import os, sys
from pyspark.sql import functions as F
from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, State, run_batch
from airflow_provider_streamsem.spark.spark_engine import SparkEngine

def clicks_per_page(events):
    once = events.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
    counted = once.groupBy(F.window("at", "10 minutes"), "page").agg(F.count("*").alias("clicks"))
    return counted.selectExpr("window.start AS window_start", "page", "clicks")

root = sys.argv[1]
pipeline = Pipeline(
    name="clicks", log=f"{root}/log",
    source=FilesSource(path=f"{root}/in", format="parquet", schema="id long, page int, at timestamp"),
    sinks={"out": FilesSink(path=f"{root}/out")}, transform=clicks_per_page,
    limits=Limits(max_files=1), state=State(output_mode="append", partitions=2), require="exactly_once",
)
engine = SparkEngine(master="local[2]", conf={"spark.sql.session.timeZone": "UTC"})
run_batch(pipeline, run_key="clicks", drain=True, engine=engine)
run_batch(pipeline, run_key="no data", engine=engine)  # closes the windows that the last records have passed
"""


def generate(location: Path) -> None:
    """
    Write the events in the order of their arrival, one file for each batch.

    An event occurs every 20 milliseconds. 3 % arrive up to 33 minutes late, and 2 % arrive a second time within 16 minutes.
    """
    location.mkdir()
    duckdb.sql(f"""
        CREATE OR REPLACE TEMP TABLE events AS
        SELECT i AS id, (hash(i) % 100)::INTEGER AS page, make_timestamptz((1767225600000 + i * 20) * 1000) AS "at",
            i + CASE WHEN hash(i + 1) % 100 < 3 THEN (hash(i + 2) % 100000)::BIGINT ELSE 0 END AS arrival
        FROM range({EVENTS}) t(i)
    """)
    duckdb.sql("""
        CREATE OR REPLACE TEMP TABLE arrivals AS
        SELECT id, page, "at", row_number() OVER (ORDER BY arrival, id) AS place FROM (
            SELECT * FROM events UNION ALL
            SELECT id, page, "at", arrival + 1 + (hash(id + 3) % 50000)::BIGINT FROM events WHERE hash(id + 4) % 100 < 2
        )
    """)
    (rows,) = duckdb.sql("SELECT count(*) FROM arrivals").fetchone() or (0,)
    assert rows > EVENTS
    size = -(-rows // FILES)
    for n in range(FILES):
        duckdb.sql(
            f'COPY (SELECT id, page, "at" FROM arrivals WHERE place > {n * size} AND place <= {(n + 1) * size} ORDER BY place) '
            f"TO '{location}/{n:03d}.parquet'"
        )


def version_of(log: Path) -> int:
    """Return the newest planned version, or -1."""
    plans = [int(path.name.split("-")[1].split(".")[0]) for path in (log / "log").rglob("*.p.json")]
    return max(plans, default=-1)


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.timeout(3_600)
def test_each_click_of_five_million_is_counted_once_although_some_are_late_repeated_and_the_process_is_killed(
    tmp_path: Path,
) -> None:
    generate(tmp_path / "in")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    killed = []
    for version in (*KILLS, None):
        with open(tmp_path / "run.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while process.poll() is None:
            if version is not None and version_of(tmp_path / "log") >= version:
                time.sleep(0.5)
                os.killpg(process.pid, signal.SIGKILL)
                killed.append(process.wait())
            time.sleep(0.05)
    assert killed == [-signal.SIGKILL] * len(KILLS)
    assert process.returncode == 0, (tmp_path / "run.log").read_text()[-3000:]
    opened = open_log(str(tmp_path / "log"))
    outcomes = [entry.outcome for entry in opened.versions() if entry.outcome is not None]
    counts = opened.view().counts
    assert (counts["read"] > EVENTS, counts["late"]) == (True, 0)
    watermark_ms = max(outcome.watermark_ms or 0 for outcome in outcomes)
    duckdb.sql("SET TimeZone = 'UTC'")
    expected = duckdb.sql(f"""
        SELECT epoch_ms(time_bucket(INTERVAL 10 MINUTE, "at")) AS window_ms, page, count(*) AS clicks FROM events
        GROUP BY 1, 2 HAVING epoch_ms(time_bucket(INTERVAL 10 MINUTE, "at")) + 600000 <= {watermark_ms} ORDER BY ALL
    """).fetchall()
    files = [file.path for file in opened.files()]
    counted = duckdb.sql(
        f"SELECT epoch_ms(window_start) AS window_ms, page, clicks FROM read_parquet({files}) ORDER BY ALL"
    ).fetchall()
    assert len(counted) >= 16_000
    assert counted == expected
    assert verify(str(tmp_path / "log")).clean
