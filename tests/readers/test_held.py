"""Tests of the comparison of a held version with the visible rows that it would replace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    FilesSink,
    Pipeline,
    commit_held,
    compact,
    diff_held,
    open_log,
    run_batch,
    stage_reprocessing,
)
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def changed(frame: Any) -> Any:
    """Change one row, drop one, and add a column."""
    from pyspark.sql import functions as F

    ids = F.when(F.col("id") == 3, F.lit(30).cast("long")).otherwise(F.col("id"))
    return frame.where("id <> 5").withColumn("id", ids).withColumn("mark", F.lit(1))


@pytest.fixture
def fixture(tmp_path: Path, spark: Any) -> PipelineFixture:
    """Versions 0 and 1 are committed, version 2 rewrites both, and version 3 reprocesses version 1 and is held."""
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    for number in range(2):
        fixture.arrive(1)
        run_batch(fixture.pipeline(), run_key=f"r{number}", log=fixture.log())
    compact(fixture.pipeline(), engine=RowsEngine(), log=fixture.log())
    stage_reprocessing(corrected(fixture), 1, log=fixture.log())
    return fixture


def corrected(fixture: PipelineFixture) -> Pipeline:
    return fixture.pipeline(transform=changed)


def test_differences_of_a_held_version_are_found(fixture: PipelineFixture, spark: Any) -> None:
    opened = open_log(str(fixture.root / "log"))
    found = diff_held(spark, opened, 3)
    assert (found.replaces, found.counts) == (1, {"visible": 3, "staged": 2})
    assert "id" in found.columns
    assert found.columns_only_in == {"visible": (), "staged": ("mark",)}
    rows = sorted((row["only_in"], json.loads(row["row"])["id"], row["times"]) for row in found.rows.collect())
    assert rows == [("staged", 30, 1), ("visible", 3, 1), ("visible", 5, 1)]
    commit_held(corrected(fixture), 3, log=fixture.log())
    with pytest.raises(InvalidError, match="is not held"):
        diff_held(spark, opened, 3)


def test_command_shows_the_differences_of_a_held_version(
    fixture: PipelineFixture, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(fixture.root / "log")
    assert main(["diff", log, "3", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["visible"] == {"rows": 3, "columns": [], "different_rows": 2}
    assert document["staged"] == {"rows": 2, "columns": ["mark"], "different_rows": 1}
    assert [row["only_in"] for row in document["rows"]].count("visible") == 2
    assert main(["diff", log, "3"]) == 1
    assert "would replace version 1" in capsys.readouterr().out
    assert main(["diff", log, "1"]) == 2


def test_sink_must_be_named_if_there_are_several(tmp_path: Path, spark: Any) -> None:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    both = fixture.pipeline(
        sinks={name: FilesSink(path=str(tmp_path / name), format="json") for name in ("out", "copy")}
    )
    fixture.arrive(1)
    run_batch(both, run_key="r", log=fixture.log())
    stage_reprocessing(both, 0, log=fixture.log())
    opened = open_log(str(tmp_path / "log"))
    with pytest.raises(InvalidError, match="several sinks"):
        diff_held(spark, opened, 1)
    assert diff_held(spark, opened, 1, sink="copy").rows.count() == 0
