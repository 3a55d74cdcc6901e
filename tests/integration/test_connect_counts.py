"""Counts of records on Spark Connect. They are correct for any transform, and need one pass if the server's plan shows that one is enough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer

pytestmark = pytest.mark.integration

ONE_PASS = {"only_id", "constant", "counted_first", "upper", "exploded"}
MANY = {
    "drop_all_rows",
    "twice",
    "spread",
    "ordered",
    "grouped",
    "cached_limit",
    "cached_order",
    "constant",
    "ignored",
    "numbered",
}
"""Transforms whose plans resemble those of other transforms. ``make prove`` runs all transforms."""

PROGRAM = """
import json, pathlib, sys
from airflow_provider_streamsem.spark import remote, staging
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.spark_location import BAD_JSON, GOOD_JSON, JSON, Location
from tests.spark.transforms import TRANSFORMS
from pyspark.sql import Window
from pyspark.sql import functions as F

def numbered(frame):
    return frame.select("id", F.row_number().over(Window.orderBy("id")).alias("n"))

def with_a_subquery(frame):
    frame.createOrReplaceTempView("records")
    return frame.where("id in (select id from records)")

def with_a_view(frame):
    frame.createOrReplaceTempView("twice")
    return frame.sparkSession.sql("select a.id from twice a join twice b on a.id = b.id")

def upper(frame):
    return frame.select("id", F.udf(lambda name: (name or "").upper(), "string")("name").alias("name"))

def exploded(frame):
    return frame.select("id", F.explode(F.array(F.lit(1), F.lit(2))).alias("n"))

passes = []
real_once, real_count = remote.reads_input_once, staging.Staging._count
def count(*args):
    passes.append(1)
    return real_count(*args)
staging.Staging._count = count
engine, results = SparkEngine(remote=sys.argv[1]), {}
for transform in [*(t for t, _ in TRANSFORMS), numbered, with_a_subquery, with_a_view, upper, exploded]:
    name = transform.__name__
    if name in sys.argv[3:]:
        continue
    (pathlib.Path(sys.argv[2]) / name).mkdir()
    location = Location(pathlib.Path(sys.argv[2]) / name)
    location.put("a.json", "\\n".join([*GOOD_JSON, "", *BAD_JSON]))
    passes.clear()
    counts = location.run(location.pipeline(source=JSON, transform=transform), engine=engine).counts
    correct = (counts["read"], counts["quarantined"]) == (len(GOOD_JSON) + len(BAD_JSON), len(BAD_JSON))
    results[name] = {"correct": correct, "passes": 1 + len(passes)}
print("RESULTS", json.dumps(results))
"""


@pytest.mark.prove
@pytest.mark.parametrize("omitted", [pytest.param(MANY, id="some"), pytest.param(set(), id="all")])
def test_records_are_counted_correctly_and_in_one_pass_if_the_plan_shows_it(tmp_path: Path, omitted: set[str]) -> None:
    server = ConnectServer(tmp_path / "connect")
    (tmp_path / "locations").mkdir()
    with running(server):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url, str(tmp_path / "locations"), *omitted],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-9000:]
    results = json.loads(done.stdout.partition("RESULTS ")[2])
    assert {name for name, result in results.items() if not result["correct"]} == set()
    assert {name for name, result in results.items() if result["passes"] == 1} == ONE_PASS - omitted
    assert len(results) + len(omitted) == 18
