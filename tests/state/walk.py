"""
A random walk over the states of a keyed sum, compared with a dictionary.

Each step continues a random earlier state, as reprocessing runs, zombies and discarded attempts do. Sometimes two attempts continue one state concurrently.

``python -m tests.state.walk LOCATION KNOWN SEED CONF`` walks until it is killed. It appends each state to the file ``KNOWN``, and starts with the states in it.
``CONF`` has the settings of the Spark session, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.spark import gateway
from airflow_provider_streamsem.spark.spark_engine import SETTINGS, SparkEngine
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.state.settings import OperatorState, State, operator_state, with_operator_state

SUMS = State(output_mode="update", partitions=2)


@dataclass
class Known:
    """A state that an attempt wrote, and the sums that it must contain."""

    state: OperatorState | None = None
    sums: dict[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps([with_operator_state(None, self.state), sorted(self.sums.items())])

    @staticmethod
    def from_json(text: str) -> Known:
        state, sums = json.loads(text)
        return Known(operator_state(state), dict(sums))


def sums_of(records: DataFrame) -> DataFrame:
    """Sum the values of each key."""
    return records.groupBy("key").agg(F.sum("value").alias("sum"))


def step(session: SparkSession, location: str, base: Known, rows: list[tuple[int, int]]) -> Known:
    """Run one attempt, check the rows of its result, and return the state that it wrote."""
    sums = dict(base.sums)
    for key, value in rows:
        sums[key] = sums.get(key, 0) + value
    with gateway.cloned(session, SETTINGS) as clone:
        batch = MicroBatch(
            session=clone, state=SUMS, location=location, base=base.state, attempt_id=uuid.uuid4().hex, transform=sums_of, now_ms=0
        )  # fmt: skip
        records = clone.createDataFrame(rows, "key int, value int")
        result = batch.result(sums_of(batch.streaming({"": records})[""]))
        found = {row["key"]: row["sum"] for row in result.collect()}
        after, _ = batch.after()
        batch.close()
    assert found == {key: sums[key] for key, _ in rows}, (base.state, found)
    return Known(after, sums)


def walk(session: SparkSession, location: str, seed: int, known: list[Known]) -> Iterator[Known]:
    """
    Yield the states that random attempts write, without end.

    :param known: the states that attempts may continue. The new ones are appended
    """
    chance = random.Random(seed)

    def rows() -> list[tuple[int, int]]:
        return [(chance.randrange(60), chance.randrange(100)) for _ in range(30)]

    while True:
        base = known[-1] if chance.random() < 0.5 else chance.choice(known)
        if chance.random() < 0.3:
            with ThreadPoolExecutor(2) as pool:
                both = [pool.submit(step, session, location, base, rows()) for _ in range(2)]
                new = [attempt.result() for attempt in both]
        else:
            new = [step(session, location, base, rows())]
        known += new
        yield from new


def main(location: str, file: str, seed: str, conf: str) -> None:
    known = [Known(), *(Known.from_json(line) for line in Path(file).read_text().splitlines())]
    session = SparkEngine(master="local[2]", conf=json.loads(conf)).session()
    with open(file, "a") as stored:
        for found in walk(session, location, int(seed), known):
            print(found.to_json(), file=stored, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
