"""Stateful transforms, with an output of a time, a key and a count."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def windowed(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy(F.window("t", "5 minutes"), "k").count()
    return counted.selectExpr("window.start AS at", "k", "count AS n")


def sessions(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy(F.session_window("t", "6 minutes"), "k").count()
    return counted.selectExpr("session_window.start AS at", "k", "count AS n")


def distinct(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["k"]).selectExpr("t AS at", "k", "1L AS n")


def distinct_within_watermark(events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("t", "10 minutes")
        .dropDuplicatesWithinWatermark(["k"])
        .selectExpr("t AS at", "k", "1L AS n")
    )


def joined(events: DataFrame) -> DataFrame:
    left = events.withWatermark("t", "10 minutes").alias("l")
    right = events.selectExpr("t AS t2", "k AS k2").withWatermark("t2", "12 minutes")
    both = left.join(right, F.expr("k = k2 AND t2 >= t AND t2 <= t + INTERVAL 20 MINUTES"), "leftOuter")
    return both.selectExpr("t AS at", "concat(k, coalesce(string(t2), '')) AS k", "1L AS n")


def chained(events: DataFrame) -> DataFrame:
    first = events.withWatermark("t", "5 minutes").groupBy(F.window("t", "5 minutes"), "k").count()
    second = first.groupBy(F.window(F.col("window"), "10 minutes")).agg(F.sum("count").alias("n"))
    return second.selectExpr("window.start AS at", "'' AS k", "n")


def keyed(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.max("t").alias("at"), F.count("*").alias("n")).select("at", "k", "n")


def total(events: DataFrame) -> DataFrame:
    return events.agg(F.max("t").alias("at"), F.count("*").alias("n")).selectExpr("at", "'' AS k", "n")
