"""Lookup tables that another pipeline writes: the conformance suite, reprocessed rows, and logs that were recreated or restored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_streamsem import PipelineTable
from airflow_provider_streamsem.errors import LogDamagedError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem
from tests.connectors.pipeline.bronze import Bronze, TypedEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Upstream(LookupSystem):
    """A pipeline. Each call of ``add`` commits one version."""

    def __init__(self, root: Path) -> None:
        self.bronze = Bronze(root)
        self.bronze.arrive(0)
        self.lookup = PipelineTable(log=self.bronze.store.url)

    def add(self, ids: Iterable[int]) -> None:
        names = [*ids]
        path = self.bronze.root / "in" / f"{names[0]:05d}.json"
        path.write_text("".join(f'{{"id": {n}}}\n' for n in names))
        self.bronze.run(f"add-{path.name}", engine=TypedEngine())

    def damage(self) -> None:
        Path(next(file for file in self.bronze.opened().files() if file.rows).path).write_text('{"id": 9}\n')


class TestPipelineTable(LookupContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Upstream:
        return Upstream(tmp_path / "bronze")


@pytest.fixture
def bronze(tmp_path: Path) -> Bronze:
    return Bronze(tmp_path / "bronze")


def _ids(spark: SparkSession, table: PipelineTable, pin: Any) -> list[int]:
    table.check_pin(pin)
    return sorted(row["id"] for row in table.load(spark, pin).collect())


def test_rows_that_a_reprocessing_run_replaces_stay_those_of_the_pin(bronze: Bronze, spark: SparkSession) -> None:
    bronze.commit(2)
    table = PipelineTable(log=bronze.store.url)
    before = table.pin(0)
    former = sorted(bronze.visible())
    bronze.correct(0)
    assert _ids(spark, table, before) == former
    assert _ids(spark, table, table.pin(0)) == sorted(bronze.visible()) != former


def test_open_and_aborted_versions_add_no_rows(bronze: Bronze, spark: SparkSession) -> None:
    bronze.commit()
    table = PipelineTable(log=bronze.store.url)
    bronze.abort()
    pin = table.pin(0)
    bronze.arrive(1)
    bronze.dies("open")
    assert (pin["version"], table.pin(0)) == (1, pin)
    assert _ids(spark, table, pin) == sorted(bronze.visible())


def test_upstream_without_rows_is_not_planned(bronze: Bronze) -> None:
    with pytest.raises(UnavailableError):
        PipelineTable(log=bronze.store.url).pin(0)
    bronze.arrive(1)
    bronze.dies("open")
    with pytest.raises(UnavailableError):
        PipelineTable(log=bronze.store.url).pin(0)


def test_upstream_that_was_recreated_or_restored_is_refused(bronze: Bronze) -> None:
    bronze.commit(2)
    table = PipelineTable(log=bronze.store.url)
    pin = table.pin(0)
    with pytest.raises(SourceChangedError, match="older copy"):
        table.check_pin({**pin, "version": 9})
    with pytest.raises(SourceChangedError, match="older copy"):
        table.check_pin({**pin, "outcome": "0" * 64})
    with pytest.raises(SourceChangedError, match="recreated") as raised:
        table.check_pin({**pin, "pipeline_uuid": "0" * 32})
    assert raised.value.fields["upstream"] == table.log


@pytest.mark.parametrize("change", [{"version": -1}, {"outcome": "x"}, {"sink": "other"}], ids=str)
def test_forged_pin_is_refused(bronze: Bronze, change: dict[str, Any]) -> None:
    bronze.commit()
    table = PipelineTable(log=bronze.store.url, sink="out")
    with pytest.raises(LogDamagedError):
        table.check_pin({**table.pin(0), **change})
