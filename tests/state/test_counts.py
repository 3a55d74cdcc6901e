"""Each record of a batch with state is counted once, whatever part of the records Spark reads for the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSource, Limits, run_batch
from tests.state.stateful_pipeline import SCHEMA, pipeline
from tests.state.transforms import keyed

pytestmark = pytest.mark.spark


def first_group(events: DataFrame) -> DataFrame:
    """Spark moves the limit below the aggregation, because it computes no value."""
    return events.withWatermark("t", "1 minute").groupBy("t", "k").count().selectExpr("t AS at", "k").limit(1)


def read_twice(events: DataFrame) -> DataFrame:
    return keyed(events.where("k = 'a'").union(events.where("k <> 'a'")))


def first_records(events: DataFrame) -> DataFrame:
    return events.limit(2)


def joined_with_no_rows(events: DataFrame) -> DataFrame:
    return keyed(events.join(events.sparkSession.range(0).selectExpr("string(id) AS k"), "k"))


def never_true(events: DataFrame) -> DataFrame:
    return keyed(events.where(F.lit(False)))


@pytest.mark.parametrize(
    ("transform", "mode"),
    [(keyed, "update"), (first_group, "append"), (read_twice, "update"), (first_records, "append"), (joined_with_no_rows, "update"), (never_true, "update")],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_every_record_is_counted_once_and_bad_records_are_quarantined(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> None:
    (tmp_path / "in").mkdir()
    records = [{"t": f"2024-01-01T00:0{minute}:00Z", "k": "abx"[minute % 3]} for minute in range(9)]
    for number, part in enumerate((records[:4], records[4:])):
        lines = [*map(json.dumps, part), '{"t": "no time", "k": "a"}']
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    spec = pipeline(
        tmp_path,
        transform,
        mode,
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema=SCHEMA),
        where="k <> 'x'",
        limits=Limits(max_quarantined=2),
    )
    counts = run_batch(spec, run_key="run").counts
    assert (counts["read"], counts["quarantined"], counts["filtered"]) == (11, 2, 3)
