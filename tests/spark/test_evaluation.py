"""What several sinks read is evaluated once: no record is lost or repeated between sinks, however the transform selects rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, open_log
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark.evaluation import consistent
from airflow_provider_streamsem.spark.jvm_plans import JvmPlans
from tests.spark import routes
from tests.spark_location import Location

pytestmark = pytest.mark.spark

RECORDS = 4_000
IDS = {"format": "json", "schema": "id long"}


@pytest.fixture
def location(location: Location) -> Location:
    for part in range(4):
        ids = range(part, RECORDS, 4)
        location.put(f"{part}.json", "\n".join(f'{{"id": {id}}}' for id in ids))
    return location


def run(location: Location, transform: Callable[..., Any] | None, **changes: Any) -> dict[str, int]:
    sinks = {name: FilesSink(path=str(location.root / name)) for name in ("a", "b")}
    pipeline = location.pipeline(source=IDS, sinks=sinks, transform=transform, **changes)
    return dict(location.run(pipeline).counts)


def ids(location: Location, spark: SparkSession) -> list[int]:
    return sorted(row["id"] for name in ("a", "b") for row in location.rows(spark, sink=name))


def stored_rdds(spark: SparkSession) -> int:
    inner: Any = spark
    return len(inner._jsc.getPersistentRDDs())


@pytest.mark.parametrize("transform", [*routes.SPLITS, *routes.CLASSIC_SPLITS], ids=lambda t: t.__name__)
def test_record_that_a_random_value_or_a_clock_routes_reaches_exactly_one_sink(
    location: Location, spark: SparkSession, transform: Callable[[DataFrame], routes.Frames]
) -> None:
    before = stored_rdds(spark)
    counts = run(location, transform)
    assert counts["read"] == RECORDS
    assert (
        min(counts["written.a"], counts["written.b"]) > 0
        or "time" in transform.__name__
        or "clock" in transform.__name__
    )
    assert ids(location, spark) == list(range(RECORDS))
    assert stored_rdds(spark) <= before + (transform is routes.common_cached)


@pytest.mark.parametrize("transform", routes.REFUSED, ids=lambda t: t.__name__)
def test_sinks_that_select_rows_by_separate_evaluations_are_refused(
    location: Location, transform: Callable[[DataFrame], routes.Frames]
) -> None:
    with pytest.raises(DataError, match="Spark evaluates for each sink") as refused:
        run(location, transform)
    assert refused.value.fields["operations"]
    assert open_log(str(location.root / "log")).head == -1


@pytest.mark.parametrize(("transform", "a", "b"), routes.ACCEPTED, ids=lambda t: getattr(t, "__name__", str(t)))
def test_sinks_that_select_rows_deterministically_are_accepted(
    location: Location, transform: Callable[[DataFrame], routes.Frames], a: int, b: int
) -> None:
    counts = run(location, transform)
    assert (counts["written.a"], counts["written.b"]) == (a, b)


def test_subquery_that_reads_shared_random_values_again_is_refused(location: Location) -> None:
    def transform(frame: DataFrame) -> routes.Frames:
        common = frame.withColumn("r", F.rand())
        common.createOrReplaceTempView("common")
        below = frame.sparkSession.sql("select id from common where r < (select avg(r) from common)")
        return {"a": below, "b": common.where("r >= 0.5")}

    with pytest.raises(DataError, match="Spark evaluates for each sink"):
        run(location, transform)


@pytest.mark.parametrize(
    "transform",
    [routes.common_udf, routes.common_pandas, routes.common_after_a_shuffle, routes.joined_with_itself],
    ids=lambda t: t.__name__,
)
def test_only_sink_with_two_branches_of_one_plan_gets_each_record_once(
    location: Location, spark: SparkSession, transform: Callable[[DataFrame], routes.Frames]
) -> None:
    def united(frame: DataFrame) -> DataFrame:
        parts = transform(frame)
        return parts["a"].select("id").union(parts["b"].select("id"))

    assert location.run(location.pipeline(source=IDS, transform=united)).counts["read"] == RECORDS
    assert sorted(row["id"] for row in location.rows(spark)) == list(range(RECORDS))


def test_batch_without_rows_for_the_sinks_is_committed(location: Location) -> None:
    assert run(location, routes.common_udf, where="id < 0")["filtered"] == RECORDS


def test_deep_plan_is_compared(spark: SparkSession) -> None:
    plans = JvmPlans(spark)
    stored: Any = plans.stored(spark.range(5).withColumn("r", F.rand()))
    plan = stored._jdf.queryExecution().analyzed()
    for _ in range(1_200):
        plan = plans._object("org.apache.spark.sql.catalyst.plans.logical.Project").apply(plan.output(), plan)
    assert plans._tree(plan).role == "stored"
    plans.release()


def test_example_of_the_pages_splits_rows_by_a_function(location: Location, spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs/connectors/index.md").read_text()
    names: dict[str, Any] = {"F": F}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    frames = consistent(
        names["route"](spark.createDataFrame([("x",), (" ",), (None,)], "name string")), JvmPlans(spark), ""
    )
    assert {sink: [row["name"] for row in frame.collect()] for sink, frame in frames.items()} == {
        "good": ["x"],
        "bad": [" ", None],
    }


def test_records_of_several_sinks_are_counted_in_one_pass(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_streamsem.spark.staging import Staging

    monkeypatch.setattr(Staging, "_count", lambda *args: pytest.fail("the records were read again"))
    assert run(location, routes.common_rand)["read"] == RECORDS


@pytest.mark.parametrize(
    "where",
    [
        "(unix_micros(current_timestamp()) + id * 7919) % 2 = 0",
        "rand() < 0.5",
        "uuid() < '8'",
        "id % 2 = cast(extract(second from now()) as int) % 2 and id in (select max(x) from values (1), (2) t(x) union select 3)",
    ],
)
@pytest.mark.parametrize(
    "transform", [None, lambda frame: frame.repartition(3).orderBy("id")], ids=["unchanged", "shuffled"]
)
def test_predicate_with_a_clock_or_a_random_value_is_evaluated_once(
    location: Location, spark: SparkSession, where: str, transform: Any
) -> None:
    one = location.run(location.pipeline(source=IDS, where=where, rows="filter", transform=transform)).counts
    assert one["filtered"] + one["written.out"] == RECORDS
    assert location.rows(spark)


def test_predicate_with_a_random_value_is_evaluated_once_for_several_sinks(
    location: Location, spark: SparkSession
) -> None:
    counts = run(location, None, where="rand() < 0.5", rows="filter")
    assert counts["filtered"] + counts["written.a"] == RECORDS
    a, b = (location.rows(spark, sink=name) for name in ("a", "b"))
    assert a == b


STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "rand": lambda frame: frame.withColumn("r", F.rand()),
    "uuid": lambda frame: frame.withColumn("r", F.expr("conv(substring(uuid(), 1, 1), 16, 10) / 16")),
    "clock": lambda frame: frame.withColumn("r", F.when(routes.odd_time(), F.col("r")).otherwise(1 - F.col("r"))),
    "udf": lambda frame: frame.withColumn("r", routes.undeclared()()),
    "declared udf": lambda frame: frame.withColumn("r", routes.undeclared().asNondeterministic()()),
    "pandas": lambda frame: frame.mapInPandas(routes._with_random, "id long, r double"),
    "shuffle": lambda frame: frame.repartition(3),
    "filter": lambda frame: frame.where("r < 0.8 or id % 3 = 0"),
    "limit": lambda frame: frame.repartition(2).limit(40),
    "sample": lambda frame: frame.sample(0.7),
    "distinct": lambda frame: frame.withColumn("k", F.expr("id div 2")).dropDuplicates(["k"]).drop("k"),
    "self-join": lambda frame: frame.join(
        frame.where("r < 0.6").select("id", F.col("r").alias("other")), "id", "left"
    ).drop("other"),
    "numbers": lambda frame: frame.withColumn(
        "r", (F.row_number().over(Window.partitionBy(F.expr("id % 4")).orderBy(F.lit(1))) % 2) * 0.9
    ),
    "deterministic": lambda frame: frame.where("id >= 0").withColumn("r", F.col("r") * 1.0),
}


@given(common=st.lists(st.sampled_from(sorted(STEPS)), max_size=4), own=st.sampled_from([None, *sorted(STEPS)]))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sinks_partition_the_rows_of_one_evaluation_of_any_transform(
    spark: SparkSession, common: list[str], own: str | None
) -> None:
    plans = JvmPlans(spark)
    frame = plans.stored(spark.range(100).repartition(3).withColumn("r", F.expr("id / 100D")))
    for step in common:
        frame = STEPS[step](frame)
    low = frame.where("r < 0.5")
    sinks = {
        "low": low,
        "high": frame.where("not r < 0.5"),
        "all": frame,
        "own": low if own is None else STEPS[own](low),
    }
    try:
        rows = {
            name: sorted(tuple(row) for row in each.collect()) for name, each in consistent(sinks, plans, "").items()
        }
    finally:
        plans.release()
    assert sorted(rows["low"] + rows["high"]) == rows["all"]
    assert {row[0] for row in rows["own"]} <= {row[0] for row in rows["low"]}
