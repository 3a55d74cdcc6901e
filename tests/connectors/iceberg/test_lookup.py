"""Lookup tables in Iceberg: the conformance suite, expired snapshots, branches, and tables that were recreated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_streamsem import IcebergTable
from airflow_provider_streamsem.connectors import lookup as lookups
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, SourceChangedError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem
from tests.connectors.iceberg.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _lookup(tables: Tables, **arguments: Any) -> IcebergTable:
    return IcebergTable(path=str(tables.path), table="lake.rows", properties=tables.properties, **arguments)


def _ids(spark: SparkSession, table: IcebergTable, pin: Any) -> list[int]:
    table.check_pin(pin)
    return sorted(row["id"] for row in table.load(spark, pin).collect())


class Dimension(LookupSystem):
    """An Iceberg table. Each call of ``add`` commits one snapshot with one file. The connection has a secret."""

    secrets = ("hidden",)

    def __init__(self, root: Path) -> None:
        self.tables = Tables(root)
        self.lookup = _lookup(self.tables, conn_id="lake")

    def add(self, ids: Iterable[int]) -> None:
        self.tables.append(*ids)

    def damage(self) -> None:
        (self.tables.path / self.tables.files()[0]).unlink()


class TestIcebergTable(LookupContract):
    @pytest.fixture
    def system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dimension:
        extra = {"s3.secret-access-key": "hidden"}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "generic", "extra": extra}))
        return Dimension(tmp_path / "lake")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "lake")


def test_pinned_snapshot_is_read_after_it_has_expired_while_its_files_exist(
    tables: Tables, spark: SparkSession
) -> None:
    first = tables.append(0, 1)
    pin = _lookup(tables).pin(0)
    assert pin["snapshot"] == str(first)
    tables.append(2)
    tables.loaded().maintenance.expire_snapshots().by_id(first).commit()
    assert _ids(spark, _lookup(tables), pin) == [0, 1]


def test_deleted_file_is_named_with_its_snapshot(tables: Tables) -> None:
    first = tables.append(0, 1)
    pin = _lookup(tables).pin(0)
    (key,) = tables.files()
    (tables.path / key).unlink()
    with pytest.raises(SourceChangedError, match="--current-lookups") as raised:
        _lookup(tables).check_pin(pin)
    assert (raised.value.fields["snapshot"], raised.value.fields["file"]) == (str(first), key)


def test_table_without_snapshots_has_columns_and_no_rows(tables: Tables, spark: SparkSession) -> None:
    pin = _lookup(tables).pin(0)
    tables.append(0)
    assert _ids(spark, _lookup(tables), pin) == []
    assert _lookup(tables).load(spark, pin).columns == ["id"]


def test_branch_determines_the_rows(tables: Tables, spark: SparkSession) -> None:
    first = tables.append(0)
    tables.loaded().manage_snapshots().create_branch(first, "audited").commit()
    tables.append(1)
    audited = _lookup(tables, branch="audited")
    assert _ids(spark, audited, audited.pin(0)) == [0]


def test_recreated_table_is_refused(tables: Tables, tmp_path: Path) -> None:
    tables.append(0)
    pin = _lookup(tables).pin(0)
    tables.catalog.drop_table("lake.rows")
    with pytest.raises(SourceChangedError, match="no Iceberg table"):
        _lookup(tables).check_pin(pin)
    with pytest.raises(SourceChangedError, match="recreated"):
        _lookup(Tables(tmp_path / "lake")).check_pin(pin)


def test_table_that_lacks_a_file_or_has_too_many_is_not_planned(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.append(0)
    with monkeypatch.context() as patch:
        patch.setattr(lookups, "MOST_FILES", 0)
        with pytest.raises(InvalidError, match="more files than a plan can pin"):
            _lookup(tables).pin(0)
    (tables.path / tables.files()[0]).unlink()
    with pytest.raises(SourceChangedError, match="is missing"):
        _lookup(tables).pin(0)


@pytest.mark.parametrize(
    ("part", "change"), [("files", {"key": "../secret.parquet"}), ("table", {"schema": "no"})], ids=str
)
def test_forged_pin_is_refused(tables: Tables, part: str, change: dict[str, Any]) -> None:
    tables.append(0)
    pin = _lookup(tables).pin(0)
    (pin[part][0] if part == "files" else pin[part]).update(change)
    with pytest.raises(LogDamagedError):
        _lookup(tables).check_pin(pin)
