"""Random walks over the states of a keyed sum: each attempt continues exactly the state that it names, also after its process and JVM were killed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.state.killed_walks import walk_with_kills
from tests.state.walk import Known, walk

pytestmark = [pytest.mark.spark, pytest.mark.prove]

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def test_every_attempt_continues_exactly_the_state_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    known = [*islice(walk(spark, f"file:{tmp_path}/state", 0, [Known()]), 16)]
    assert max(found.state.batches for found in known if found.state) > 3
    assert len({found.state.root for found in known if found.state}) > 1, "several attempts created a state"


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_long_walks_keep_the_state_of_each_attempt(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    assert len([*islice(walk(spark, f"file:{tmp_path}/state", seed, [Known()]), 150)]) == 150


@pytest.mark.timeout(3_600)
def test_states_of_killed_processes_are_continued_in_new_ones(tmp_path: Path) -> None:
    known = walk_with_kills(f"file:{tmp_path}/state", tmp_path, 1, LOCAL, kills=8, batches=9)
    assert any(found.state.batches > 8 for found in known if found.state)
