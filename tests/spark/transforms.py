"""Transforms of which each record must be evaluated once, with the number of rows that they return."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def only_id(frame: DataFrame) -> DataFrame:
    return frame.select("id")


def drop_all_rows(frame: DataFrame) -> DataFrame:
    return frame.where("1 = 0")


def first_two(frame: DataFrame) -> DataFrame:
    return frame.limit(2)


def counted_first(frame: DataFrame) -> DataFrame:
    frame.take(1)
    return frame


def twice(frame: DataFrame) -> DataFrame:
    return frame.union(frame)


def ordered(frame: DataFrame) -> DataFrame:
    return frame.orderBy("id")


def spread(frame: DataFrame) -> DataFrame:
    return frame.repartitionByRange(2, "id")


def grouped(frame: DataFrame) -> DataFrame:
    return frame.groupBy("id").count().select("id")


def cached_limit(frame: DataFrame) -> DataFrame:
    return frame.limit(2).cache()


def cached_order(frame: DataFrame) -> DataFrame:
    return frame.orderBy("id").cache()


def joined(frame: DataFrame) -> DataFrame:
    return frame.join(frame.select("id").distinct(), "id", "left")


def constant(frame: DataFrame) -> DataFrame:
    return frame.select(F.lit(1).alias("one"))


def ignored(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(3)


TRANSFORMS: list[tuple[Callable[[DataFrame], DataFrame], Callable[[int], int] | None]] = [
    (only_id, lambda n: n),
    (drop_all_rows, lambda n: 0),
    (first_two, lambda n: 2),
    (counted_first, lambda n: n),
    (twice, lambda n: 2 * n),
    (ordered, lambda n: n),
    (spread, lambda n: n),
    (grouped, None),
    (cached_limit, lambda n: 2),
    (cached_order, lambda n: n),
    (joined, lambda n: n),
    (constant, lambda n: n),
    (ignored, lambda n: 3),
]
"""Transform, and the number of rows that it returns for n records; ``None`` if the records decide."""
