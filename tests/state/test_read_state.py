"""The state of each version is read as a DataFrame, and reading writes nothing to the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import State, read_state, run_batch
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance import vacuum
from tests.state.test_commits import processed
from tests.state.test_operators import arrive, joined, keyed, pipeline

pytestmark = pytest.mark.spark


def counts(spark: SparkSession, root: Path, **given: Any) -> dict[str, int]:
    rows = read_state(spark, str(root / "log"), **given).selectExpr("key.*", "value.*").collect()
    return {row["k"]: row["count"] for row in rows}


def listing(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (root / "log").rglob("*")}


def test_state_of_each_version_is_that_after_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    state = State(output_mode="update", partitions=2, keep_versions=1)
    spec = pipeline(tmp_path, keyed, "update", state=state)
    for number, events in enumerate([[(1, "a"), (2, "b")], [(3, "a")], [(4, "c"), (5, "a")]]):
        arrive(tmp_path, number, events)
        run_batch(spec, run_key=f"run {number}")
    before = listing(tmp_path)
    assert counts(spark, tmp_path) == {"a": 3, "b": 1, "c": 1}
    assert counts(spark, tmp_path, version=1) == {"a": 2, "b": 1}
    assert counts(spark, tmp_path, version=0) == {"a": 1, "b": 1}
    assert listing(tmp_path) == before
    vacuum(spec)
    assert counts(spark, tmp_path, version=1) == {"a": 2, "b": 1}
    with pytest.raises(InvalidError, match="deleted by vacuum"):
        read_state(spark, str(tmp_path / "log"), version=0)
    with pytest.raises(InvalidError, match="no such operator"):
        read_state(spark, str(tmp_path / "log"), operator=1)
    with pytest.raises(InvalidError, match="no such closed version"):
        read_state(spark, str(tmp_path / "log"), version=9)


def test_side_of_a_join_is_read_with_sparks_option(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, joined, "append"), run_key="first")
    left = read_state(spark, str(tmp_path / "log"), options={"joinSide": "left"})
    assert sorted(row["k"] for row in left.selectExpr("value.*").collect()) == ["a", "b"]


def test_state_of_a_stateful_processor_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a"), (2, "b"), (3, "a")])
    run_batch(pipeline(tmp_path, processed, "update"), run_key="first")
    with pytest.raises(InvalidError, match="transformWithState cannot be read"):
        read_state(spark, str(tmp_path / "log"))


def test_pipeline_without_state_has_none_to_read(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, lambda events: events, "append", state=None), run_key="first")
    with pytest.raises(InvalidError, match="keeps no state"):
        read_state(spark, str(tmp_path / "log"))
