"""Random walks over the states of a keyed sum: each attempt continues exactly the state that it names, also after its process and JVM were killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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


def walk_with_kills(location: str, root: Path, seed: int, conf: dict[str, str], kills: int) -> list[Known]:
    """
    Walk in one process after another. Each one is killed, with its JVM, while it runs an attempt.

    :param root: a directory for the known states and the output of the processes
    :returns: the states that the processes wrote
    """
    chance = random.Random(seed)
    file, output = root / "known.jsonl", root / "output.txt"
    file.touch()
    for process in range(kills):
        enough = len(file.read_text().splitlines()) + chance.randrange(2, 10)
        command = [sys.executable, "-m", "tests.state.walk", location, str(file), str(seed + process), json.dumps(conf)]
        with open(output, "ab") as log:
            walker = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while len(file.read_text().splitlines()) < enough:
                assert walker.poll() is None, output.read_text()[-3000:]
                time.sleep(0.05)
            time.sleep(chance.random())
            assert walker.poll() is None, output.read_text()[-3000:]
        finally:
            os.killpg(walker.pid, signal.SIGKILL)
            walker.wait()
    return [Known.from_json(line) for line in file.read_text().splitlines()]


@pytest.mark.timeout(3_600)
def test_states_of_killed_processes_are_continued_in_new_ones(tmp_path: Path) -> None:
    known = walk_with_kills(f"file:{tmp_path}/state", tmp_path, 1, LOCAL, kills=8)
    assert max(found.state.batches for found in known if found.state) > 8
