"""An alter of the state: later batches start without it, and vacuum keeps the state after the alter."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Pipeline, State, alter, read_committed, run_batch, verify
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess
from airflow_provider_streamsem.state.settings import operator_state
from tests.state.stateful_pipeline import arrive, outcome, pipeline
from tests.state.transforms import keyed

pytestmark = pytest.mark.spark


def with_state(root: Path, keep_versions: int = 1) -> Pipeline:
    state = State(output_mode="update", partitions=2, keep_versions=keep_versions)
    return pipeline(root, keyed, "update", state=state)


def plain(events: DataFrame) -> DataFrame:
    return events.select(F.col("t").alias("at"), "k", F.lit(1).cast("long").alias("n"))


def without_state(root: Path) -> Pipeline:
    return pipeline(root, plain, "append", state=None)


def next_batch(root: Path, spec: Pipeline, number: int) -> None:
    arrive(root, number, [(number, "a")])
    run_batch(spec, run_key=f"run {number}")


def newest_rows(spark: SparkSession, root: Path, version: int) -> list[tuple[str, int]]:
    rows = read_committed(spark, str(root / "log"), version=version, since=version - 1).collect()
    return [(row["k"], row["n"]) for row in rows]


def test_state_that_is_removed_and_added_again_starts_empty(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        next_batch(tmp_path, with_state(tmp_path), number)
    assert newest_rows(spark, tmp_path, 1) == [("a", 2)]
    assert alter(without_state(tmp_path)).version == 2
    assert outcome(tmp_path, 2).state is None
    next_batch(tmp_path, without_state(tmp_path), 2)
    assert newest_rows(spark, tmp_path, 3) == [("a", 1)]
    assert alter(with_state(tmp_path)).version == 4
    for number in (3, 4):
        next_batch(tmp_path, with_state(tmp_path), number)
    assert newest_rows(spark, tmp_path, 6) == [("a", 2)]
    with pytest.raises(InvalidError, match="altered after the version"):
        reprocess(with_state(tmp_path), 3)
    assert verify(with_state(tmp_path)).violations == []


def test_vacuum_keeps_the_state_after_an_alter_whatever_it_selects(spark: SparkSession, tmp_path: Path) -> None:
    """``keep_versions`` decreases. The oldest kept version is before the alters, then each alter, then after them."""
    for number in range(2):
        next_batch(tmp_path, with_state(tmp_path), number)
    alter(without_state(tmp_path))
    alter(with_state(tmp_path))
    for number in (2, 3):
        next_batch(tmp_path, with_state(tmp_path), number)
    former, newest = (operator_state(outcome(tmp_path, version).state) for version in (1, 5))
    assert former is not None
    assert newest is not None
    assert former.root != newest.root
    roots = tmp_path / "log" / "state" / "operators"
    for keep_versions in (4, 3, 2, 1):
        vacuum(with_state(tmp_path, keep_versions))
        assert verify(with_state(tmp_path, keep_versions)).violations == []
        assert any((roots / newest.root).rglob("*.zip"))
    assert not any((roots / former.root).rglob("*.zip"))
    next_batch(tmp_path, with_state(tmp_path), 4)
    assert newest_rows(spark, tmp_path, 6) == [("a", 3)]
