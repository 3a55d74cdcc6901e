"""A killed JVM discards an attempt and not the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import json, os, signal, sys
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch, verify
from airflow_provider_streamsem.errors import StageError

location = sys.argv[1]
killed = []

def kills_its_jvm_once(frame):
    if not killed:
        from pyspark import SparkContext
        process = SparkContext._gateway.proc
        # Spark's launcher replaces itself by the JVM, so the process that pyspark started is the JVM.
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed.append(process.pid)
    return frame

pipeline = Pipeline(
    name="p", log=f"{location}/log", source=FilesSource(path=f"{location}/in", format="json", schema="id long"),
    sinks={"out": FilesSink(path=f"{location}/out")}, transform=kills_its_jvm_once,
)
try:
    run_batch(pipeline, run_key="run")
    first = "committed"
except StageError as error:
    first = str(error)
second = run_batch(pipeline, run_key="run")
verdict = verify(pipeline)
print(json.dumps({"first": first, "second": second.to_json(), "clean": verdict.clean, "rows": verdict.rows, "killed": len(killed)}))
"""


@pytest.mark.prove
def test_retry_in_the_same_process_starts_another_jvm_and_commits_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=240, check=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert "nothing became visible" in result["first"]
    assert (result["second"]["status"], result["second"]["counts"]["read"]) == ("committed", 2)
    assert (result["clean"], result["rows"], result["killed"]) == (True, {"out": 2}, 1)


STOPPED = """
import json, sys
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch, verify
from airflow_provider_streamsem.errors import StageError

location = sys.argv[1]
stops = [True]

def stops_its_context_once(frame):
    if stops.pop() if stops else False:
        frame.sparkSession.sparkContext._jsc.sc().stop()
    return frame

pipeline = Pipeline(
    name="p", log=f"{location}/log", source=FilesSource(path=f"{location}/in", format="parquet", schema="id long"),
    sinks={"out": FilesSink(path=f"{location}/out")}, transform=stops_its_context_once,
)
try:
    run_batch(pipeline, run_key="run")
    first = "committed"
except StageError as error:
    first = str(error)
second = run_batch(pipeline, run_key="run")
print(json.dumps({"first": first, "second": second.to_json(), "clean": verify(pipeline).clean}))
"""


def test_retry_in_the_same_process_replaces_a_context_that_spark_has_stopped(tmp_path: Path) -> None:
    """Spark stops its context when its scheduler fails, for example on a plan of 20,000 columns. pyspark does not notice."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "in" / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert "nothing became visible" in result["first"]
    assert (result["second"]["status"], result["second"]["counts"]["read"], result["clean"]) == ("committed", 2, True)
