"""The conformance suite of staging, on the files sink in each format that can be written without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.testing.conformance import DatasetSystem, StagingContract


class Dataset(DatasetSystem):
    def __init__(self, root: Path, format: str) -> None:
        self.root, self.format = root, format

    def sink(self) -> FilesSink:
        return FilesSink(str(self.root), format=self.format)

    def staged_file(self, ids: Sequence[int]) -> bytes:
        if self.format == "orc":
            import pyarrow.orc

            path = self.root.parent / "written.orc"
            pyarrow.orc.write_table(self.table(ids), str(path))
            return path.read_bytes()
        if self.format == "parquet":
            return super().staged_file(ids)
        lines = [json.dumps({"id": id}) for id in ids] if self.format == "json" else ["id", *map(str, ids)]
        return "".join(f"{line}\n" for line in lines).encode()


class TestFilesSink(StagingContract):
    @pytest.fixture(params=["csv", "json", "orc", "parquet"])
    def fresh(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], DatasetSystem]:
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: Dataset(next(roots), request.param)
