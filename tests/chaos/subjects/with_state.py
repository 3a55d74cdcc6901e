"""
KafkaSource → transforms with state → FilesSink on S3. A join, whose state is the records of earlier batches, and windows, whose state is open groups.

Both transforms return the columns of single records, so that the checker compares each record. It computes which records are expected from the topic alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from tests.chaos.subjects.contract import Locations, VisibleRows
from tests.chaos.subjects.streamsem import Streamsem, StreamsemOnACluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_streamsem import Pipeline

WINDOW = 50
"""Numbers of a window. The event time of a number is that many seconds."""
DELAY = 2_000
"""Delay of the watermark in seconds. The producer's numbers rise, so a record is late only if a partition is far behind another one."""
_NUMBER = "CAST(CAST(value AS STRING) AS BIGINT)"


def joined_with_the_next(frame: DataFrame) -> DataFrame:
    """Return each record whose next number is in the topic too, joined across batches."""
    records = frame.selectExpr(f"{_NUMBER} AS number", "value", "partition", "offset")
    following = frame.selectExpr(f"{_NUMBER} - 1 AS number")
    return records.join(following, "number").select("value", "partition", "offset")


def in_closed_windows(frame: DataFrame) -> DataFrame:
    """Return the records of each window that the watermark has passed, once."""
    from pyspark.sql import functions as F

    timed = frame.selectExpr(f"timestamp_seconds({_NUMBER}) AS at", "struct(value, partition, offset) AS record")
    windows = timed.withWatermark("at", f"{DELAY} seconds").groupBy(F.window("at", f"{WINDOW} seconds"))
    records = windows.agg(F.collect_list("record").alias("records")).select(F.explode("records").alias("record"))
    return records.select("record.*")


class _WithState(Streamsem):
    transform: ClassVar[Callable[[DataFrame], DataFrame]]

    def pipeline(self) -> Pipeline:
        from airflow_provider_streamsem import State

        return (
            super().pipeline().replace(transform=type(self).transform, state=State(output_mode="append", partitions=3))
        )

    # The checker. It uses no code of the package.

    def visible(self) -> VisibleRows:
        rows = super().visible()
        outcomes = [self._json(key) for key in self._keys("log/log/") if key.endswith(".c.json")]
        rows.violations += [f"version {o['version']} has late rows" for o in outcomes if o["counts"].get("late")]
        return rows


class StreamsemJoin(_WithState):
    title = "this package: KafkaSource → stream-stream join → FilesSink on S3"
    transform = staticmethod(joined_with_the_next)

    def expected(self, locations: Locations) -> Locations:
        return {number: at for number, at in locations.items() if number + 1 in locations}


class StreamsemWindows(_WithState, StreamsemOnACluster):
    title = "this package: KafkaSource → windowed aggregation on a standalone cluster → FilesSink on S3"
    transform = staticmethod(in_closed_windows)

    def expected(self, locations: Locations) -> Locations:
        # The newest batch returned the windows that the watermark of the previous batch had passed. No record followed.
        watermark_s = max(locations) - DELAY
        newest, _ = self.newest()
        for version in (newest - 1, newest):
            (key,) = [key for key in self._keys("log/log/") if key.endswith(f"-{version}.c.json")]
            assert self._json(key)["watermark_ms"] == watermark_s * 1000, "the log has another watermark than the topic"
        passed = watermark_s // WINDOW * WINDOW
        return {number: at for number, at in locations.items() if number < passed}
