"""Lookup tables in files: the conformance suite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, FilesTable
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem


class Directory(LookupSystem):
    """A directory of JSON files. Each call of ``add`` writes one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.lookup = FilesTable(path=str(path), format="json", schema="id long")

    def add(self, ids: Iterable[int]) -> None:
        numbers = [*ids]
        (self.path / f"{numbers[0]}.json").write_text("".join(f'{{"id": {id}}}\n' for id in numbers))

    def damage(self) -> None:
        (self.path / "0.json").write_text('{"id": 9}\n')


class TestFilesTable(LookupContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Directory:
        return Directory(tmp_path / "in")


def test_dataset_of_a_pipeline_is_refused_because_it_has_replaced_files(tmp_path: Path) -> None:
    FilesSink(path=str(tmp_path / "orders")).claim("0" * 32, str(tmp_path / "log"), new=True)
    (tmp_path / "orders" / "data").mkdir()
    (tmp_path / "orders" / "data" / "0.parquet").write_bytes(b"")
    with pytest.raises(InvalidError):
        FilesTable(path=str(tmp_path / "orders"), format="parquet", schema="id long").pin(0)
