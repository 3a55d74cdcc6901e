"""What several sinks read is evaluated once: no record is lost or repeated between sinks, however the transform selects rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, open_log
from airflow_provider_streamsem.errors import DataError
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
