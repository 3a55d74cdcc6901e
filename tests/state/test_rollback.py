"""A rollback restores the operators' state: records that are read again are counted once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Pipeline, State, rollback, run_batch, verify
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from tests.state.stateful_pipeline import arrive, counts, outcome, pipeline
from tests.state.transforms import keyed

pytestmark = pytest.mark.spark

KEPT = State(output_mode="update", partitions=2, keep_versions=3)


def counting(root: Path) -> Pipeline:
    return pipeline(root, keyed, "update", state=KEPT)


def test_records_that_are_read_again_after_a_rollback_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        arrive(tmp_path, number, [(number, "a"), (number, f"k{number}")])
        run_batch(counting(tmp_path), run_key=f"run {number}")
    expected = counts(spark, tmp_path)
    vacuum(counting(tmp_path))
    with pytest.raises(InvalidError, match="vacuum may delete them"):
        rollback(counting(tmp_path), 0)
    assert rollback(counting(tmp_path), 2).version == 5
    assert verify(counting(tmp_path)).violations == []
    assert outcome(tmp_path, 5).state == outcome(tmp_path, 2).state
    assert counts(spark, tmp_path)["a"] == 3
    vacuum(counting(tmp_path))
    run_batch(counting(tmp_path), run_key="again", drain=True)
    assert counts(spark, tmp_path) == expected
    vacuum(counting(tmp_path))
    arrive(tmp_path, 5, [(5, "a")])
    run_batch(counting(tmp_path), run_key="next")
    assert counts(spark, tmp_path) == {**expected, "a": 6}
    assert verify(counting(tmp_path)).violations == []
