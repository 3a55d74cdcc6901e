"""Rows with odd values of every type, as a Spark DataFrame."""

from __future__ import annotations

import datetime
from decimal import Decimal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def odd_values(spark: SparkSession) -> DataFrame:
    at = datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=datetime.timezone.utc)
    texts = [
        None,
        "",
        " ",
        "a/b",
        "%2F",
        "..",
        ".",
        "a=b",
        "__HIVE_DEFAULT_PARTITION__",
        "é",
        "e\u0301",
        "😀",
        "A",
        "a",
        "x" * 300,
        "x" * 301,
        "\n",
        "\r\n",
        "two\nlines",
        "'\"\\",
    ]
    rows = [
        (
            i,
            t,
            [None, 0, -5][i % 3],
            [None, Decimal("1.50"), Decimal("-2.00")][i % 3],
            at if i % 2 else None,
            bool(i % 2),
            at.date(),
            [0.0, -0.0, 1.5][i % 3],
            at.replace(tzinfo=None) if i % 3 else None,
        )
        for i, t in enumerate(texts)
    ]
    return spark.createDataFrame(
        rows, "id long, s string, i int, d decimal(5,2), t timestamp, b boolean, day date, f double, n timestamp_ntz"
    )


def supported_by(format: str, frame: DataFrame) -> DataFrame:
    """Return the frame without timestamps with a time zone for ORC, which cannot store them."""
    return frame.withColumn("t", F.col("n")) if format == "orc" else frame


def nested_values(frame: DataFrame, format: str) -> DataFrame:
    """Return rows with unusual values, and with nested columns if the format has them."""
    rows = supported_by(format, odd_values(frame.sparkSession))
    if format == "csv":
        return rows
    entries = F.create_map(F.lit("k"), F.col("i"), F.coalesce("s", F.lit("none")), F.lit(None).cast("int"))
    return rows.withColumn("m", F.when(F.col("id") > 2, entries)).withColumn(
        "a", F.array(F.struct("s", "f"), F.lit(None))
    )
