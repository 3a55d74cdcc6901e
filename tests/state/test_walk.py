"""
A random walk over the states of a keyed sum, compared with a dictionary.

Each step continues a random earlier state, as reprocessing runs, zombies and discarded attempts do. Sometimes two attempts continue one state concurrently.
"""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.spark import gateway
from airflow_provider_streamsem.spark.engine import SETTINGS
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.state import OperatorState, State

pytestmark = pytest.mark.spark

SUMS = State(output_mode="update", partitions=2)


@dataclass
class Known:
    """A state that an attempt wrote, and the sums that it must contain."""

    state: OperatorState | None = None
    sums: dict[int, int] = field(default_factory=dict)


def step(session: SparkSession, location: str, base: Known, rows: list[tuple[int, int]]) -> Known:
    """Run one attempt, check the rows of its result, and return the state that it wrote."""
    sums = dict(base.sums)
    for key, value in rows:
        sums[key] = sums.get(key, 0) + value
    with gateway.cloned(session, SETTINGS) as clone:
        batch = MicroBatch(
            session=clone, state=SUMS, location=location, base=base.state, attempt_id=uuid.uuid4().hex, now_ms=0
        )
        records = clone.createDataFrame(rows, "key int, value int")
        result = batch.result(batch.streaming({"": records})[""].groupBy("key").agg(F.sum("value").alias("sum")))
        found = {row["key"]: row["sum"] for row in result.collect()}
        after, _ = batch.after()
        batch.close()
    assert found == {key: sums[key] for key, _ in rows}, (base.state, found)
    return Known(after, sums)


def walk(session: SparkSession, location: str, seed: int, steps: int) -> list[Known]:
    chance = random.Random(seed)
    known = [Known()]

    def rows() -> list[tuple[int, int]]:
        return [(chance.randrange(60), chance.randrange(100)) for _ in range(30)]

    for _ in range(steps):
        base = known[-1] if chance.random() < 0.5 else chance.choice(known)
        if chance.random() < 0.3:
            with ThreadPoolExecutor(2) as pool:
                both = [pool.submit(step, session, location, base, rows()) for _ in range(2)]
                known += [attempt.result() for attempt in both]
        else:
            known.append(step(session, location, base, rows()))
    return known


@pytest.mark.prove
def test_every_attempt_continues_exactly_the_state_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    known = walk(spark, f"file:{tmp_path}/state", 0, 16)
    assert max(found.state.batches for found in known if found.state) > 3
    assert len({found.state.root for found in known if found.state}) > 1, "several attempts created a state"


@pytest.mark.prove
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_long_walks_keep_the_state_of_each_attempt(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    assert len(walk(spark, f"file:{tmp_path}/state", seed, 150)) > 150
