"""A batch with state is killed at every step, or builds on a state with a damaged file. Each record is counted once, or nothing becomes visible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Pipeline, run_batch, verify
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.prepared_directory import PreparedDirectory
from tests.state.stateful_pipeline import arrive, counts, pipeline, start_new_process
from tests.state.transforms import keyed
from tests.step_by_step import step_by_step

pytestmark = [pytest.mark.spark, pytest.mark.prove]

PREPARED = 3
"""Number of committed batches. Batch ``n`` has one record of the key ``a`` and one of its own key."""


def spec(root: Path) -> Pipeline:
    return pipeline(root, keyed, "update")


def run(root: Path, number: int, log: CommitLog | None = None) -> None:
    run_batch(spec(root), run_key=f"run {number}", log=log)


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedDirectory:
    root = tmp_path_factory.mktemp("state") / "root"
    for number in range(PREPARED + 1):
        arrive(root, number, [(number, "a"), (number, f"k{number}")])
        if number < PREPARED:
            run(root, number)
    return PreparedDirectory(root)


def check(spark: SparkSession, root: Path) -> None:
    """Run one more batch, and check that every record is counted once."""
    arrive(root, PREPARED + 1, [(9, "a"), (9, "k0")])
    run(root, PREPARED + 1)
    assert counts(spark, root) == {"a": PREPARED + 2, "k0": 2, **{f"k{n}": 1 for n in range(1, PREPARED + 1)}}


def run_step_by_step(root: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for name in ("result", "after"):
            patched.setattr(MicroBatch, name, step_by_step(name, getattr(MicroBatch, name), steps))
        run(root, PREPARED, CommitLog(StepReportingStore(open_store(spec(root).log), steps)))


@pytest.mark.timeout(3_600)
def test_batch_that_is_killed_at_every_step_counts_each_record_once(
    spark: SparkSession, prepared: PreparedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    run_step_by_step(prepared.restore(), steps, monkeypatch)
    assert {"before result", "after after"} <= {*steps.taken}
    for at in range(len(steps.taken)):
        root, killed = prepared.restore(), Steps(at)
        with suppress(Crash):
            run_step_by_step(root, killed, monkeypatch)
        assert killed.died
        run(root, PREPARED)
        check(spark, root)
        assert verify(spec(root)).violations == []


def delete(path: Path, other: Path) -> None:
    path.unlink()


def truncate(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("damage", [delete, truncate, swap])
def test_batch_on_any_damaged_state_file_is_right_or_changes_nothing(
    spark: SparkSession, prepared: PreparedDirectory, damage: Callable[[Path, Path], None]
) -> None:
    root = prepared.restore()
    files = sorted(p.relative_to(root) for p in (root / "log" / "state" / "operators").rglob("*") if p.is_file())
    refused = []
    for file in files:
        others = [other for other in files if other.suffix == file.suffix and other != file]
        root = prepared.restore()
        start_new_process()
        damage(root / file, root / (others[-1] if others else file))
        try:
            run(root, PREPARED)
        except StreamsemError:
            refused.append(file)
            assert open_log(str(root / "log")).head == PREPARED - 1
        else:
            check(spark, root)
    assert {file.suffix for file in refused} >= {".zip"}, "files of the newest state are needed"
