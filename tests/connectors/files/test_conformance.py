"""The files source passes the conformance suite."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem


class Directory(SourceSystem):
    """A directory of JSON files. Each call of ``add`` writes one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.source = FilesSource(path=str(path), format="json", schema="id long")

    def add(self, ids: Iterable[int]) -> None:
        numbers = [*ids]
        lines = [json.dumps({"id": id}) + "\n" for id in numbers]
        (self.path / f"{numbers[0]:05d}.json").write_text("".join(lines))

    def expire(self) -> list[int]:
        oldest = min(self.path.glob("*.json"))
        ids = [json.loads(line)["id"] for line in oldest.read_text().splitlines()]
        oldest.unlink()
        return ids

    def change(self) -> bool:
        min(self.path.glob("*.json")).write_text('{"id": 100}\n')
        return True


class TestFilesSource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Directory:
        return Directory(tmp_path / "in")
