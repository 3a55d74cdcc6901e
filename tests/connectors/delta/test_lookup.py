"""Lookup tables in Delta: the conformance suite, VACUUM, clean-up of the log, deletion vectors, and tables that were recreated."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from deltalake import DeltaTable as DeltaRsTable
from deltalake import write_deltalake

from airflow_provider_streamsem import DeltaTable
from airflow_provider_streamsem.connectors import lookup as lookups
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, SourceChangedError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem
from tests.connectors.delta.tables import VECTOR_NAME, append, create_table, with_deletion_vector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Dimension(LookupSystem):
    """A Delta table. Each call of ``add`` commits one version with one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_deltalake(str(path), pyarrow.table({"id": pyarrow.array([], pyarrow.int64())}))
        self.lookup = DeltaTable(path=str(path))

    def add(self, ids: Iterable[int]) -> None:
        append(self.path, *ids)

    def damage(self) -> None:
        (first,) = [add for add in _files(self.path) if add["num_records"]]
        (self.path / first["path"]).unlink()


class TestDeltaTable(LookupContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Dimension:
        return Dimension(tmp_path / "table")


def _files(path: Path) -> list[dict[str, Any]]:
    return pyarrow.table(DeltaRsTable(str(path)).get_add_actions()).to_pylist()


def _ids(spark: SparkSession, table: DeltaTable, pin: Any) -> list[int]:
    table.check_pin(pin)
    return sorted(row["id"] for row in table.load(spark, pin).select("id").collect())


def test_pinned_version_is_read_after_updates_and_clean_up_of_the_log(tmp_path: Path, spark: SparkSession) -> None:
    path = create_table(tmp_path / "t", 3)
    table = DeltaTable(path=str(path))
    pin = table.pin(0)
    DeltaRsTable(str(path)).delete("id = 1")
    append(path, 7, name=["new column"])
    DeltaRsTable(str(path)).create_checkpoint()
    for version in range(5):
        (path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=version == 4)
    assert _ids(spark, table, pin) == [0, 1, 2]
    assert table.load(spark, pin).columns == ["id"]


def test_file_that_vacuum_has_deleted_is_named_with_its_version(tmp_path: Path) -> None:
    path = create_table(tmp_path / "t", 2)
    table = DeltaTable(path=str(path))
    pin = table.pin(0)
    DeltaRsTable(str(path)).delete()
    DeltaRsTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceChangedError, match="--current-lookups") as raised:
        table.check_pin(pin)
    assert raised.value.fields["version"] == 1
    assert raised.value.fields["file"] in {file["path"] for file in pin["files"]}


def test_rows_that_a_deletion_vector_removes_are_not_read(tmp_path: Path, spark: SparkSession) -> None:
    with_deletion_vector(tmp_path / "t")
    table = DeltaTable(path=str(tmp_path / "t"))
    pin = table.pin(0)
    append(tmp_path / "t", 9)
    assert _ids(spark, table, pin) == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("harm", ["deleted vector", "other vector", "deleted entries"])
def test_deletion_vectors_that_cannot_be_read_again_fail_the_check(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "t"
    with_deletion_vector(path)
    table = DeltaTable(path=str(path))
    pin = table.pin(0)
    if harm == "deleted vector":
        (path / VECTOR_NAME).unlink()
    elif harm == "other vector":
        pin["deleted"] = "0" * 64
    else:
        append(path, 9)
        DeltaRsTable(str(path)).create_checkpoint()
        for version in range(3):
            (path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SourceChangedError):
        table.check_pin(pin)


def test_recreated_table_is_refused(tmp_path: Path) -> None:
    path = create_table(tmp_path / "t")
    table = DeltaTable(path=str(path))
    pin = table.pin(0)
    shutil.rmtree(path)
    with pytest.raises(SourceChangedError, match="no Delta table"):
        table.check_pin(pin)
    create_table(path, 3)
    with pytest.raises(SourceChangedError, match="recreated"):
        table.check_pin(pin)


def test_table_that_lacks_a_file_or_has_too_many_is_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_table(tmp_path / "t")
    with monkeypatch.context() as patch:
        patch.setattr(lookups, "MOST_FILES", 0)
        with pytest.raises(InvalidError, match="more files than a plan can pin"):
            DeltaTable(path=str(path)).pin(0)
    (path / _files(path)[0]["path"]).unlink()
    with pytest.raises(SourceChangedError, match="is missing"):
        DeltaTable(path=str(path)).pin(0)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("files", {"path": "../secret.parquet"}),
        ("files", {"path": "_delta_log/0.parquet"}),
        ("files", {"change": "insert"}),
        ("table", {"reader": "delta"}),
        ("table", {"end": 9}),
        ("table", {"schema": "no"}),
    ],
    ids=str,
)
def test_forged_pin_is_refused(tmp_path: Path, part: str, change: dict[str, Any]) -> None:
    table = DeltaTable(path=str(create_table(tmp_path / "t")))
    pin = table.pin(0)
    (pin[part][0] if part == "files" else pin[part]).update(change)
    with pytest.raises(LogDamagedError):
        table.check_pin(pin)
