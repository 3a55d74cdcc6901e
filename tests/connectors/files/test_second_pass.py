"""The second pass over JSON and CSV files parses the texts that may be bad, and finds the same bad records as the first."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.connectors.files import records
from airflow_provider_streamsem.connectors.parsing import parsed
from airflow_provider_streamsem.connectors.parsing.exact.arrow_json import ArrowJson
from airflow_provider_streamsem.connectors.parsing.exact.blocks import Checksums, parsed_batches
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings
from tests.spark_location import Location

pytestmark = pytest.mark.spark

CRC_COLLISION = ('{"id": "1bb2f2f975"}', '{"id": 527057302916657}')
"""A bad and a good record with the same CRC-32."""


def candidates(spark: SparkSession, texts: list[str], *, partitions: int = 2, most: int = 100) -> list[str]:
    """Return the texts that the second pass parses."""
    records = parsed.records_of_json(spark, parsed.struct("id long", "test"), {})
    frame = spark.createDataFrame([(text,) for text in texts], "text string").repartition(partitions)
    counted = records.parsed(frame, "text", checksums=Checksums("sums", most)).frame.agg(
        parsed.bad_checksums("sums").alias("sums")
    )
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


@pytest.mark.parametrize("partitions", [1, 3])
def test_task_with_many_bad_texts_lets_the_second_pass_parse_every_text(spark: SparkSession, partitions: int) -> None:
    texts = [f"{{{n}" for n in range(40)] + ['{"id": 1}']
    assert len(candidates(spark, texts, partitions=partitions, most=10)) == len(texts)


@pytest.mark.parametrize(("checksums", "parsed_texts"), [(10_000, 0), (10_001, 1)])
def test_many_bad_texts_let_the_second_pass_parse_every_text(
    spark: SparkSession, checksums: int, parsed_texts: int
) -> None:
    frame = spark.createDataFrame([('{"id": 1}',)], "text string")
    of_others = " ".join(str(number) for number in range(checksums))
    assert parsed.among_bad(frame, "text", of_others).count() == parsed_texts


def test_task_returns_no_more_checksums_than_it_may() -> None:
    texts = [["{", '{"id": 1}'], ["[", "]"], ["x"], ["y"]]
    batches = [pa.record_batch([pa.array(block)], names=["text"]) for block in texts]
    parser_of = partial(ArrowJson, pa.schema([("id", pa.int64())]), Settings())
    for most, expected in ((4, [1, 2, 1, 1]), (3, [1, 2, 1, 0]), (2, [1, 1, 0, 0]), (5, [1, 2, 1, 1])):
        parsed_ = parsed_batches(
            iter(batches),
            parser_of=parser_of,
            text="text",
            names=["id", "why"],
            masks={},
            checksums=Checksums("sums", most),
        )
        sums = [batch.to_pydict()["sums"][0] for batch in parsed_]
        assert [0 if text is None else len(text.split()) for text in sums] == expected
        assert ("*" in sums) == (most < 5)


@pytest.mark.parametrize(
    ("size", "files", "most"),
    [(1, 1, 2_000), (1 << 30, 1, 1_250), (1 << 36, 1, None), (0, 1, 2_000), (1, 1_000, 200), (1, 10_001, None)],
)
def test_large_input_has_few_checksums_or_none(size: int, files: int, most: int | None) -> None:
    checksums = records._checksums(size, files)
    assert (None if checksums is None else checksums.most) == most


@pytest.mark.parametrize(
    "source", [{"format": "json"}, {"format": "json", "options": {"encoding": "windows-1252"}}], ids=str
)
def test_good_record_with_the_checksum_of_a_bad_one_is_not_quarantined(
    location: Location, spark: SparkSession, source: dict[str, Any]
) -> None:
    bad, good = CRC_COLLISION
    encoding = source.get("options", {}).get("encoding", "utf-8")
    other = '{"id": "caf\xe9"}'
    location.put("day=1/a.json", f"{good}\n{bad}\n{good}\n")
    location.put("b.json", f"{bad}\n{other}\n".encode(encoding))
    result = location.run(
        location.pipeline(source={**source, "schema": "id long"}, limits=Limits(max_quarantined=3)),
    )
    assert (result.counts["read"], result.counts["quarantined"]) == (5, 3)
    assert [row["id"] for row in location.rows(spark)] == [527057302916657] * 2
    quarantined = {(record["path"].rpartition("/")[2], record["raw"]) for record in location.quarantined()}
    assert {name for name, _ in quarantined} == {"a.json", "b.json"}
    assert len(quarantined) == 3
