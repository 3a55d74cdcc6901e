"""On Spark Connect, what several sinks read is evaluated once, although the server analyzes a plan again for each action."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer
from tests.spark import routes

pytestmark = pytest.mark.integration

PROGRAM = """
import json, pathlib, sys
from airflow_provider_streamsem import FilesSink, read_committed
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.spark import staging
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.spark import routes
from tests.spark_location import Location
from pyspark.sql import functions as F

RECORDS = 4000
engine, results, passes = SparkEngine(remote=sys.argv[1]), {}, []
real_count = staging.Staging._count
def count(*args):
    passes.append(1)
    return real_count(*args)
staging.Staging._count = count

def shared_uuid(frame):
    return frame.withColumn("u", F.expr("uuid()"))

def by_dataframe(frame):
    common = frame.withColumn("r", F.rand())
    return {"a": common.where("r < 0.5").where(frame.id >= 0), "b": common.where("r >= 0.5")}

def tried(location, pipeline, tries=3):
    passes.clear()
    try:
        return dict(location.run(pipeline, engine=engine).counts)
    except StageError as error:
        # A busy server waits 100 ms for the count of a write, and may send none. The attempt is then discarded.
        if "invariant='I14'" not in str(error) or tries == 1:
            raise
        return tried(location, pipeline, tries - 1)

def one_run(name, transform, **changes):
    directory = pathlib.Path(sys.argv[2]) / name
    directory.mkdir()
    location = Location(directory)
    for part in range(4):
        location.put(f"{part}.json", "\\n".join(json.dumps({"id": id}) for id in range(part, RECORDS, 4)))
    sinks = changes.pop("sinks", None) or {sink: FilesSink(path=str(directory / sink)) for sink in ("a", "b")}
    pipeline = location.pipeline(source={"format": "json", "schema": "id long"}, sinks=sinks, transform=transform, **changes)
    try:
        counts = tried(location, pipeline)
    except DataError as error:
        results[name] = {"refused": error.summary, "operations": error.fields.get("operations"), "advice": error.do}
        return
    rows = {sink: sorted((tuple(row) for row in read_committed(engine.session(), str(directory / "log"), sink=sink).collect()), key=str) for sink in sinks}
    results[name] = {
        "counts": counts, "passes": 1 + len(passes), "ids": sorted(row[0] for part in rows.values() for row in part) == list(range(RECORDS)),
        "equal": len(set(map(str, rows.values()))) == 1,
    }

omitted = sys.argv[3:]
for transform in [*routes.SPLITS, *routes.CLASSIC_SPLITS, *routes.REFUSED, *(transform for transform, _, _ in routes.ACCEPTED), shared_uuid, by_dataframe]:
    if transform.__name__ not in omitted:
        one_run(transform.__name__, transform)
for number, where in enumerate(["unix_micros(now()) % 2 = id % 2", "uuid() < '8'", "id % 2 = 0 and coalesce(cast(id as string), '') <> 'x'"]):
    for kind, transform in (("one", None), ("shuffled", lambda frame: frame.repartition(3))):
        one_run(f"where-{number}-{kind}", transform, where=where, rows="filter", sinks={"a": FilesSink(path=f"{sys.argv[2]}/where-{number}-{kind}/a")})
    one_run(f"where-{number}-two", None, where=where, rows="filter")
print("RESULTS", json.dumps(results))
"""


MANY = {
    "common_rand", "common_declared_udf", "common_pandas", "common_numbers", "common_cached", "random_split", "common_after_a_shuffle",
    "two_texts_of_a_clock", "equal_udfs", "views", "common_table_expressions", "one_random_twice", "declared_udf_twice", "pandas_twice", "limits", "samples",
    "groups_of_each", "filter_of_one",
}  # fmt: skip
"""Transforms that resemble others. ``make prove`` runs all transforms."""


@pytest.fixture(
    scope="module", params=[pytest.param(MANY, id="some"), pytest.param(set(), id="all", marks=pytest.mark.prove)]
)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    directory = tmp_path_factory.mktemp("connect")
    server = ConnectServer(directory / "server")
    (directory / "locations").mkdir()
    with running(server):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url, str(directory / "locations"), *sorted(request.param)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-9000:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.partition("RESULTS ")[2])
    return found


def test_record_that_a_random_value_or_a_clock_routes_reaches_exactly_one_sink(
    results: dict[str, dict[str, object]],
) -> None:
    routed = {
        transform.__name__: results[transform.__name__] for transform in routes.SPLITS if transform.__name__ in results
    }
    assert len(routed) >= 6
    assert {name for name, result in routed.items() if not result.get("ids")} == set()
    assert {name for name, result in routed.items() if result["passes"] != 1} == set()


def test_sinks_that_select_rows_by_separate_evaluations_are_refused(results: dict[str, dict[str, object]]) -> None:
    refused = {transform.__name__ for transform in [*routes.REFUSED, *routes.CLASSIC_SPLITS]} & results.keys()
    assert len(refused) >= 5
    assert {name for name in refused if "refused" not in results[name]} == set()
    assert "by name" in str(results["by_dataframe"])


def test_sinks_that_select_rows_deterministically_are_accepted(results: dict[str, dict[str, object]]) -> None:
    accepted = [case for case in routes.ACCEPTED if case[0].__name__ in results]
    assert len(accepted) >= 2
    for transform, a, b in accepted:
        counts = results[transform.__name__]["counts"]
        assert isinstance(counts, dict)
        assert (counts["written.a"], counts["written.b"]) == (a, b)


def test_one_frame_of_several_sinks_is_evaluated_once(results: dict[str, dict[str, object]]) -> None:
    assert results["shared_uuid"]["equal"]


def test_predicate_with_a_clock_or_a_random_value_is_evaluated_once(results: dict[str, dict[str, object]]) -> None:
    predicates = {name: result for name, result in results.items() if name.startswith("where-")}
    for name, result in predicates.items():
        counts = result["counts"]
        assert isinstance(counts, dict), name
        assert counts["filtered"] + counts["written.a"] == 4_000
        assert result["equal"]
