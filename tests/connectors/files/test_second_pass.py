"""The second pass over JSON and CSV files parses the texts that may be bad, and finds the same bad records as the first."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.connectors.parsing import parsed
from tests.spark_location import Location

pytestmark = pytest.mark.spark

CRC_COLLISION = ('{"id": "1bb2f2f975"}', '{"id": 527057302916657}')
"""A bad and a good record with the same CRC-32."""


def candidates(spark: SparkSession, texts: list[str], *, partitions: int = 2) -> list[str]:
    """Return the texts that the second pass parses."""
    records = parsed.records_of_json(spark, parsed.struct("id long", "test"), {})
    frame = spark.createDataFrame([(text,) for text in texts], "text string").repartition(partitions)
    counted = records.parsed(frame, "text", checksums="sums").frame.agg(parsed.bad_checksums("sums").alias("sums"))
    (row,) = counted.collect()
    return [text for (text,) in parsed.among_bad(frame, "text", row["sums"]).collect()]


@pytest.mark.parametrize("seed", range(3))
def test_second_pass_parses_the_bad_texts_and_no_others(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    bad = [chance.choice(["{", '{"id": "x"}', "é", "[1]", f'{{"id": {n}.5}}']) for n in range(100)]
    good = [f'{{"id": {n}}}' for n in range(1_000)]
    texts = bad + good
    chance.shuffle(texts)
    assert Counter(candidates(spark, texts)) == Counter(bad)


def test_block_with_many_bad_texts_lets_the_second_pass_parse_every_text(spark: SparkSession) -> None:
    texts = [f"{{{n}" for n in range(201)] + ['{"id": 1}']
    assert len(candidates(spark, texts, partitions=1)) == len(texts)


@pytest.mark.parametrize(
    "source", [{"format": "json"}, {"format": "json", "options": {"encoding": "windows-1252"}}], ids=str
)
def test_good_record_with_the_checksum_of_a_bad_one_is_not_quarantined(
    location: Location, spark: SparkSession, source: dict[str, Any]
) -> None:
    bad, good = CRC_COLLISION
    location.put("a.json", f"{good}\n{bad}\n{good}\n")
    location.put("b.json", f"{bad}\n")
    result = location.run(
        location.pipeline(source={**source, "schema": "id long"}, limits=Limits(max_quarantined=2)),
    )
    assert (result.counts["read"], result.counts["quarantined"]) == (4, 2)
    assert [row["id"] for row in location.rows(spark)] == [527057302916657] * 2
    quarantined = location.quarantined()
    assert [record["raw"] for record in quarantined] == [bad, bad]
    assert {record["path"].rpartition("/")[2] for record in quarantined} == {"a.json", "b.json"}
