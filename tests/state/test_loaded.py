"""The next batch of a process continues the state that the last one left loaded in Spark, if it is exactly the state of the newest outcome."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import reprocess, run_batch
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark import loaded_state
from airflow_provider_streamsem.state.settings import OperatorState
from tests.state.crashes import run_and_crash_after_state_write
from tests.state.stateful_pipeline import arrive, counts, pipeline, start_new_process
from tests.state.transforms import keyed

pytestmark = pytest.mark.spark


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each attempt that continues a state: whether it continued loaded state stores."""
    real, found = loaded_state.take, []

    def take(*given: Any) -> loaded_state.Stores | None:
        found.append((stores := real(*given)) is not None)
        return stores

    monkeypatch.setattr(loaded_state, "take", take)
    return found


def run(root: Path, number: int, transform: Callable[[DataFrame], DataFrame] = keyed) -> None:
    arrive(root, number, [(number, "a"), (number, f"k{number}")])
    run_batch(pipeline(root, transform, "update"), run_key=f"run {number}")


def test_batch_continues_the_loaded_state_and_reads_no_sst_file(
    spark: SparkSession, tmp_path: Path, reused: list[bool]
) -> None:
    run(tmp_path, 0)
    hidden = [(file, file.read_bytes()) for file in (tmp_path / "log/state").rglob("*.sst")]
    for file, _ in hidden:
        file.unlink()
    run(tmp_path, 1)
    assert counts(spark, tmp_path) == {"a": 2, "k0": 1, "k1": 1}
    assert reused == [True]
    start_new_process()
    with pytest.raises(DataError, match="state of the previous batch"):
        run(tmp_path, 2)
    for file, data in hidden:
        file.write_bytes(data)
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="run 2")
    assert counts(spark, tmp_path) == {"a": 3, "k0": 1, "k1": 1, "k2": 1}
    assert reused == [True, False, False], "an attempt that fails leaves no state loaded"


def test_batch_loads_its_state_after_an_attempt_that_was_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reused: list[bool]
) -> None:
    run(tmp_path, 0)
    arrive(tmp_path, 1, [(1, "a"), (1, "k1")])
    run_and_crash_after_state_write(monkeypatch, pipeline(tmp_path, keyed, "update"), "run 1")
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="run 1")
    run(tmp_path, 2)
    assert reused == [True, False, True]
    assert counts(spark, tmp_path) == {"a": 3, "k0": 1, "k1": 1, "k2": 1}


@pytest.mark.parametrize(("batches", "is_continued"), [(18, True), (19, False)])
def test_state_that_twenty_batches_have_used_is_loaded_again(
    spark: SparkSession, batches: int, is_continued: bool
) -> None:
    state = OperatorState(root="a" * 32, batches=20, partitions=1, columns={}, settings={}, operators=())
    loaded_state.keep(spark, loaded_state.Stores(str(uuid.uuid4()), batches), "location", state, keyed)
    assert (loaded_state.take(spark, "location", state, keyed) is not None) == is_continued


def test_batch_loads_its_state_after_a_reprocessed_version(
    spark: SparkSession, tmp_path: Path, reused: list[bool]
) -> None:
    for number in range(2):
        run(tmp_path, number)
    reprocess(pipeline(tmp_path, keyed, "update"), 1)
    run(tmp_path, 2)
    assert reused == [True, False, False]
    assert counts(spark, tmp_path) == {"a": 3, "k0": 1, "k1": 1, "k2": 1}


def test_batch_loads_its_state_after_a_batch_of_another_pipeline_or_another_function(
    spark: SparkSession, tmp_path: Path, reused: list[bool]
) -> None:
    run(tmp_path / "one", 0)
    run(tmp_path / "other", 0)
    run(tmp_path / "one", 1)
    run(tmp_path / "one", 2, lambda events: keyed(events))
    run(tmp_path / "one", 3, lambda events: keyed(events))
    assert reused == [False, False, False]
    assert counts(spark, tmp_path / "one") == {"a": 4, "k0": 1, "k1": 1, "k2": 1, "k3": 1}


def test_attempt_loads_its_state_after_an_attempt_in_another_process_or_application(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reused: list[bool]
) -> None:
    run(tmp_path, 0)
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: -1)
        run(tmp_path, 1)
    run(tmp_path, 2)
    run(tmp_path, 3)
    assert reused == [False, False, True]
