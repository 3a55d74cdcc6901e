"""
Kills and stops concurrent processes of one pipeline at random moments. Each version has one outcome, and no row is lost or duplicated.

The processes are forked, so that a round is fast. A seed determines the random moments, and a failure prints it. The test counts the visible rows with
``json`` from the files that the outcomes name, without code of the package.
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
    """Drain the pipeline slowly, so that there is time to kill the process during a batch."""
    rng = random.Random(seed)
    engine = RowsEngine(lambda step: time.sleep(rng.random() * 0.01))
    run_batch(
        fixture.pipeline(),
        run_key=run_key,
        drain=True,
        engine=engine,
        log=CommitLog(LocalStore(str(fixture.root / "log")), SystemClock()),
    )


def independent_count(root: Path) -> tuple[Counter[int], list[int]]:
    """Return the visible ids and the committed versions, read from the log's files as plain JSON."""
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


def disturb(processes: list[multiprocessing.process.BaseProcess], rng: random.Random) -> None:
    """Kill some processes and stop others at random moments. Then resume the stopped ones, and wait for all."""
    stopped = []
    for process in processes:
        time.sleep(rng.random() * 0.02)
        action = rng.choice(["kill", "stop", "leave"])
        if not process.is_alive() or process.pid is None or action == "leave":
            continue
        try:
            os.kill(process.pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            continue
        stopped += [process.pid] if action == "stop" else []
    time.sleep(rng.random() * 0.1)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    for process in processes:
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), f"a process ended with {process.exitcode}"


@pytest.mark.parametrize("count", [2, 5])
def test_processes_killed_and_stopped_at_random_lose_and_duplicate_no_rows(tmp_path: Path, count: int) -> None:
    kills = overlaps = seed = 0
    # On a busy machine, more processes end before they are killed.
    while seed < ROUNDS // 2 or (min(kills, overlaps) <= 5 and seed < 5 * ROUNDS):
        rng = random.Random(seed)
        fixture = PipelineFixture(
            tmp_path / f"{count}-{seed}", store=LocalStore(str(tmp_path / f"{count}-{seed}" / "log"))
        )
        fixture.arrive(7)
        # Retries and zombies of one run, and in every third round a second, concurrent run.
        run_keys = ["run" if seed % 3 or i % 2 else "other" for i in range(count)]
        processes = [fork.Process(target=work, args=(fixture, key, seed * 10 + i)) for i, key in enumerate(run_keys)]
        for process in processes:
            process.start()
        disturb(processes, rng)
        kills += sum(process.exitcode == -signal.SIGKILL for process in processes)
        for key in sorted(set(run_keys)):
            fixture.run(key, drain=True)
        fixture.run("rest", drain=True)
        ids, versions = independent_count(fixture.root)
        assert ids == fixture.expected, (
            f"seed {seed}: lost {fixture.expected - ids}, duplicated {ids - fixture.expected}"
        )
        assert versions == list(range(len(versions))), f"seed {seed}"
        fixture.check()
        seed += 1
        overlaps += sum(len(list(path.iterdir())) > 1 for path in (fixture.root / "out" / "data").iterdir())
    assert kills > 5, "too few processes were killed for a valid test"
    assert overlaps > 5, "too few versions had two attempts for a valid test"
