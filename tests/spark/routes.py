"""Transforms that return a DataFrame for each of the sinks ``a`` and ``b``, for tests of classic Spark and of Spark Connect. The records have the column id."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pandas
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Frames = dict[str, DataFrame]


def _random() -> float:
    return random.random()


def undeclared() -> Any:
    return F.udf(_random, "double")


def _with_random(batches: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
    for batch in batches:
        batch["r"] = [random.random() for _ in range(len(batch))]
        yield batch


def split(common: DataFrame) -> Frames:
    return {"a": common.where("r < 0.5"), "b": common.where("r >= 0.5")}


def odd_time() -> Column:
    return (F.unix_micros(F.current_timestamp()) + F.col("id") * 7919) % 2 == 0


def common_rand(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", F.rand()))


def common_uuid(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", F.expr("conv(substring(uuid(), 1, 1), 16, 10) / 16")))


def common_clock(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", F.when(odd_time(), 0.0).otherwise(1.0)))


def common_udf(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", undeclared()()))


def common_declared_udf(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", undeclared().asNondeterministic()()))


def common_pandas(frame: DataFrame) -> Frames:
    return split(frame.mapInPandas(_with_random, "id long, r double"))


def common_after_a_shuffle(frame: DataFrame) -> Frames:
    return split(frame.repartition(3).withColumn("r", F.rand()).repartition(2))


def common_numbers(frame: DataFrame) -> Frames:
    numbered = frame.withColumn("n", F.row_number().over(Window.partitionBy(F.col("id") % 2).orderBy(F.lit(1))))
    return split(numbered.withColumn("r", F.when(F.col("n") % 2 == 0, 0.0).otherwise(1.0)))


def common_cached(frame: DataFrame) -> Frames:
    return split(frame.withColumn("r", F.expr("conv(substring(uuid(), 1, 1), 16, 10) / 16")).cache())


def random_split(frame: DataFrame) -> Frames:
    a, b = frame.randomSplit([0.5, 0.5])
    return {"a": a, "b": b}


def random_split_after_a_shuffle(frame: DataFrame) -> Frames:
    a, b = frame.repartition(5).randomSplit([0.5, 0.5])
    return {"a": a, "b": b}


def joined_with_itself(frame: DataFrame) -> Frames:
    common = frame.withColumn("r", undeclared()())
    low = common.where("r < 0.5")
    return {"a": low.join(common.where("r < 0.5").select("id"), "id"), "b": common.where("r >= 0.5")}


def computed_further(frame: DataFrame) -> Frames:
    common = frame.withColumn("r", F.rand())
    again = common.where("r < 0.7").withColumn("q", undeclared()())
    a, b = again.where("q < 0.5"), again.where("q >= 0.5")
    return {"a": a.select("id"), "b": b.select("id").unionByName(common.where("r >= 0.7").select("id"))}


SPLITS: list[Callable[[DataFrame], Frames]] = [
    common_rand, common_uuid, common_clock, common_udf, common_declared_udf, common_pandas, common_after_a_shuffle, common_numbers, common_cached,
    random_split, random_split_after_a_shuffle, joined_with_itself, computed_further,
]  # fmt: skip
"""Each record reaches exactly one of the two sinks."""


def two_clocks(frame: DataFrame) -> Frames:
    return {"a": frame.where(odd_time()), "b": frame.where(~odd_time())}


def two_texts_of_a_clock(frame: DataFrame) -> Frames:
    early = "(unix_micros(now()) + id) % 2 = 0"
    return {"a": frame.where(early), "b": frame.where(f"not ({early})")}


def equal_udfs(frame: DataFrame) -> Frames:
    function = undeclared()
    return {
        "a": frame.withColumn("r", function()).where("r < 0.5"),
        "b": frame.withColumn("r", function()).where("r >= 0.5"),
    }


def views(frame: DataFrame) -> Frames:
    frame.withColumn("r", F.rand()).createOrReplaceTempView("with_random")
    sql = frame.sparkSession.sql
    return {"a": sql("select * from with_random where r < 0.5"), "b": sql("select * from with_random where r >= 0.5")}


def common_table_expressions(frame: DataFrame) -> Frames:
    frame.withColumn("r", undeclared()()).createOrReplaceTempView("with_random")
    sql = "with low as (select * from with_random where r < 0.7) select id from low where r {} 0.3 union all select id from with_random where r {} 0.7"
    return {"a": frame.sparkSession.sql(sql.format("<", ">=")), "b": frame.sparkSession.sql(sql.format(">=", "< -1 +"))}


CLASSIC_SPLITS: list[Callable[[DataFrame], Frames]] = [
    two_clocks,
    two_texts_of_a_clock,
    equal_udfs,
    views,
    common_table_expressions,
]
"""The same on classic Spark. Spark Connect refuses them."""


def two_randoms(frame: DataFrame) -> Frames:
    return {"a": frame.where(F.rand() < 0.5), "b": frame.where(F.rand() >= 0.5)}


def one_random_twice(frame: DataFrame) -> Frames:
    low = F.rand() < 0.5
    return {"a": frame.repartition(3).where(low), "b": frame.repartition(3).where(~low)}


def uuid_texts(frame: DataFrame) -> Frames:
    return {"a": frame.where("uuid() < '8'"), "b": frame.where("uuid() >= '8'")}


def udf_twice(frame: DataFrame) -> Frames:
    function = undeclared()
    return {"a": frame.where(function() < 0.5), "b": frame.where(function() >= 0.5)}


def declared_udf_twice(frame: DataFrame) -> Frames:
    function = undeclared().asNondeterministic()
    return {"a": frame.where(function() < 0.5), "b": frame.where(function() >= 0.5)}


def pandas_twice(frame: DataFrame) -> Frames:
    low = frame.mapInPandas(_with_random, "id long, r double").where("r < 0.5")
    return {"a": low, "b": frame.where("id >= 0").mapInPandas(_with_random, "id long, r double").where("r >= 0.5")}


def limits(frame: DataFrame) -> Frames:
    return {"a": frame.limit(5), "b": frame.exceptAll(frame.limit(6))}


def samples(frame: DataFrame) -> Frames:
    return {"a": frame.repartition(3).sample(0.5, 7), "b": frame.repartition(4).sample(0.5, 7)}


def exploded(frame: DataFrame) -> Frames:
    some = F.expr("sequence(1, cast(rand() * 2 as int))")
    return {"a": frame.select("id", F.explode(some)), "b": frame.select("id", F.explode_outer(some))}


REFUSED: list[Callable[[DataFrame], Frames]] = [
    two_randoms, one_random_twice, uuid_texts, udf_twice, declared_udf_twice, pandas_twice, limits, samples, exploded,
]  # fmt: skip
"""Two sinks select rows by values that are not computed in one DataFrame."""


def own_values(frame: DataFrame) -> Frames:
    one, two = F.udf(lambda id: id + 1, "long"), F.udf(lambda id: id + 2, "long")
    return {
        "a": frame.where("id % 2 = 0").select("id", one("id").alias("x"), F.current_timestamp().alias("at")),
        "b": frame.where(F.col("id") % 2 == 1).select("id", two("id").alias("x"), F.expr("uuid()").alias("u")),
    }


def groups_of_each(frame: DataFrame) -> Frames:
    by = frame.groupBy((F.col("id") % 10).alias("id"))
    return {
        "a": by.agg(F.collect_list("id")),
        "b": frame.groupBy(F.expr("id div 1000 as id")).agg(F.sum(F.col("id") * 1.5), F.first("id")),
    }


def filter_of_one(frame: DataFrame) -> Frames:
    return {"a": frame, "b": frame.where(F.udf(lambda id: id % 2 == 0, "boolean")("id"))}


def sample_of_one(frame: DataFrame) -> Frames:
    return {
        "a": frame.where("upper(cast(id as string)) is not null and id in (1, 2)"),
        "b": frame.orderBy("id").limit(10),
    }


ACCEPTED: list[tuple[Callable[[DataFrame], Frames], int, int]] = [
    (own_values, 2000, 2000), (groups_of_each, 10, 4), (filter_of_one, 4000, 2000), (sample_of_one, 2, 10),
]  # fmt: skip
"""Transforms without a risk, and the numbers of rows of their sinks if the ids are 0 to 3,999."""


def no_problem(frame: DataFrame) -> list[str]:
    """Check staged rows for a gate."""
    return []


def no_problem_but_one(frame: DataFrame) -> list[str]:
    """Check staged rows for a gate."""
    return [f"the batch has {frame.count()} rows"]


def one_text(frame: DataFrame) -> str:
    """Return something else than a list."""
    return "a problem"


def orders_suite() -> Any:
    """Return a suite of Great Expectations. One of its expectations is not satisfied, and one names a column that does not exist."""
    import great_expectations as gx
    from great_expectations import expectations as gxe

    expectations = [
        gxe.ExpectColumnValuesToNotBeNull(column="id"),
        gxe.ExpectColumnValuesToBeInSet(column="user", value_set=["b"]),
        gxe.ExpectColumnValuesToNotBeNull(column="name"),
    ]
    return gx.ExpectationSuite(name="orders", expectations=expectations)


def __getattr__(name: str) -> Any:
    """Create the suite only for the test that uses it, because the library takes seconds to import."""
    if name != "ORDERS_SUITE":
        raise AttributeError(name)
    return orders_suite()


def yields_one(frame: DataFrame) -> Iterator[str]:
    """A function of a gate that is a generator."""
    yield f"the batch has {frame.count()} rows"


def nothing(frame: DataFrame) -> None:
    """A function of a gate that returns no list."""


def raises(frame: DataFrame) -> list[str]:
    """A function of a gate with a fault."""
    raise ValueError(frame.count())
