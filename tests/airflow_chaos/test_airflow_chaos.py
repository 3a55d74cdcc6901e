"""A short chaos trial on a real Airflow, and tests that the harness counts only real overlaps."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.airflow_chaos import trial
from tests.airflow_chaos.faults import FAULTS, ORPHAN
from tests.airflow_chaos.setup import Overlap, PipelineFixture
from tests.airflow_chaos.trial import AirflowTrial, rounds
from tests.chaos.setting import Setting


@pytest.mark.integration
@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_orphans_and_other_faults_on_a_real_airflow_duplicate_and_lose_no_records() -> None:
    result = trial.run("sqlite", 1, 11, print)
    assert (result.duplicates, result.losses, result.foreign, result.unreadable, result.violations) == (
        0,
        0,
        0,
        0,
        [],
    ), result
    assert result.injections[0].kind == ORPHAN
    assert result.orphans > 0, [i.action for i in result.injections]
    assert result.orphan_overlaps > 0
    assert result.both_wrote > 0, "only one of orphan and retry wrote files for their version"
    assert result.is_clean, result.evidence


def test_trial_starts_with_an_orphan_and_draws_every_kind_once_before_any_is_repeated() -> None:
    kinds = list(islice(rounds(random.Random(3)), 2 * len(FAULTS)))
    assert kinds[0] == ORPHAN
    assert sorted(kinds[: len(FAULTS)]) == sorted(kinds[len(FAULTS) :]) == sorted(FAULTS)


def test_trial_without_an_orphan_concurrent_with_its_retry_is_not_clean() -> None:
    result = AirflowTrial("sqlite", "", 1, drained=True, overlaps=[Overlap(3, 10, 11, orphaned=False)])
    assert not result.is_clean
    result.overlaps.append(Overlap(4, 10, 12, orphaned=True))
    assert result.is_clean
    result.duplicates = 1
    assert not result.is_clean


class OverlapCounter(PipelineFixture):
    """Counts overlaps. The test sets the newest version of the log."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.subject: Any = SimpleNamespace(newest=lambda: (self.version, self.is_committed))
        self.version, self.is_committed = 0, False
        self.overlaps, self._in_version, self._events_read = [], {}, 0

    def begin(self, pid: int, version: int) -> int:
        """Record the start of a batch in this process, and return the number of overlaps."""
        self.setting.record_event(event="started", pid=pid, version=version)
        self.version = version
        self.supervise()
        return len(self.overlaps)


@pytest.fixture
def tasks() -> Iterator[list[psutil.Process]]:
    """Start three processes with the title of a task. Their parent is not a supervisor."""
    code = "import setproctitle, time; setproctitle.setproctitle('airflow worker -- 01a2'); print(flush=True); time.sleep(60)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    yield [psutil.Process(process.pid) for process in started]
    for process in started:
        process.kill()
        process.communicate()


def test_only_two_live_tasks_in_one_open_version_overlap(tmp_path: Path, tasks: list[psutil.Process]) -> None:
    fixture = OverlapCounter(Setting(location=str(tmp_path), topic="t", bootstrap="", master=""))
    first, second, third = (task.pid for task in tasks)
    assert fixture.begin(first, 0) == 0
    assert fixture.begin(first, 1) == 0
    assert fixture.begin(second, 2) == 0
    assert fixture.begin(first, 2) == 1
    assert fixture.overlaps == [Overlap(2, second, first, orphaned=True)]
    fixture.is_committed = True
    assert fixture.begin(third, 2) == 1
    fixture.is_committed = False
    for task in tasks[:2]:
        task.kill()
        task.wait(5)
    assert fixture.begin(third, 2) == 1
