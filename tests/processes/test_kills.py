"""
Real processes on one plan, killed and stopped at random moments: one outcome a version, nothing lost, nothing doubled.

The processes are forked, so that a round is cheap; the random moments come from a seed that a failure prints. What is visible is counted by ``json`` from
the files that the outcomes name, without the product's code.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_streamsem import run_batch
from airflow_provider_streamsem.clock import SystemClock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture
from tests.rounds import ROUNDS

fork = multiprocessing.get_context("fork")


def work(fixture: PipelineFixture, run_key: str, seed: int) -> None:
    """A process: drains, a little slowly, so that there are moments to be killed in."""
    chance = random.Random(seed)
    engine = RowsEngine(lambda step: time.sleep(chance.random() * 0.01))
    run_batch(
        fixture.pipeline(),
        run_key=run_key,
        drain=True,
        engine=engine,
        log=CommitLog(LocalStore(str(fixture.root / "log")), SystemClock()),
    )


def independent_count(root: Path) -> tuple[Counter[int], list[int]]:
    """Visible ids and the committed versions, read from the log's files as plain JSON."""
    ids: Counter[int] = Counter()
    versions = []
    for path in (root / "log" / "log").rglob("*.c.json"):
        outcome = json.loads(path.read_text())
        if outcome["result"] == "commit":
            versions.append(outcome["version"])
            for file in outcome["sinks"]["out"]["files"]:
                lines = (root / "out" / file["key"]).read_text().splitlines()
                assert len(lines) == file["rows"]
                ids.update(json.loads(line)["id"] for line in lines)
    return ids, sorted(versions)


def disturb(processes: list[multiprocessing.process.BaseProcess], chance: random.Random) -> None:
    """Kill some, stop and wake others, at random moments; then wait for all that live."""
    stopped = []
    for process in processes:
        time.sleep(chance.random() * 0.02)
        deed = chance.choice(["kill", "stop", "leave"])
        if not process.is_alive() or process.pid is None or deed == "leave":
            continue
        try:
            os.kill(process.pid, signal.SIGKILL if deed == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            continue
        stopped += [process.pid] if deed == "stop" else []
    time.sleep(chance.random() * 0.1)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    for process in processes:
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), f"a process ended with {process.exitcode}"


@pytest.mark.parametrize("count", [2, 5])
def test_processes_killed_and_stopped_at_random_lose_and_double_nothing(tmp_path: Path, count: int) -> None:
    kills = overlaps = 0
    for seed in range(ROUNDS // 2):
        chance = random.Random(seed)
        fixture = PipelineFixture(
            tmp_path / f"{count}-{seed}", store=LocalStore(str(tmp_path / f"{count}-{seed}" / "log"))
        )
        fixture.arrive(7)
        # Retries and zombies of one run, and in every third round a second run beside them.
        run_keys = ["run" if seed % 3 or i % 2 else "other" for i in range(count)]
        processes = [fork.Process(target=work, args=(fixture, key, seed * 10 + i)) for i, key in enumerate(run_keys)]
        for process in processes:
            process.start()
        disturb(processes, chance)
        kills += sum(process.exitcode == -signal.SIGKILL for process in processes)
        for key in sorted(set(run_keys)):
            fixture.run(key, drain=True)
        fixture.run("rest", drain=True)
        ids, versions = independent_count(fixture.root)
        assert ids == fixture.expected, f"seed {seed}: lost {fixture.expected - ids}, doubled {ids - fixture.expected}"
        assert versions == list(range(len(versions))), f"seed {seed}"
        fixture.check()
        overlaps += sum(len(list(path.iterdir())) > 1 for path in (fixture.root / "out" / "data").iterdir())
    assert kills > 5, "too few processes were killed for the test to say anything"
    assert overlaps > 5, "too few versions had two attempts for the test to say anything"
