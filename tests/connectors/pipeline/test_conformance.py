"""The conformance suite of sources, on a pipeline that runs without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import PipelineSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.connectors.pipeline.bronze import Bronze, TypedEngine


class UpstreamPipeline(SourceSystem):
    """Each call of ``add`` commits one version. ``expire`` deletes the file of the oldest version, as a lifecycle rule of a bucket may do."""

    def __init__(self, root: Path) -> None:
        self.bronze = Bronze(root)
        self.bronze.pipeline()
        self.bronze.arrive(0)
        self._create()
        self.source = PipelineSource(log=self.bronze.store.url)

    def _create(self) -> None:
        """The upstream has an empty version before a source can read it."""
        (self.bronze.root / "in" / "0.json").write_text("")
        self.bronze.run("first")

    def add(self, ids: Iterable[int]) -> None:
        names = [*ids]
        path = self.bronze.root / "in" / f"{names[0]:05d}-{len(names)}.json"
        path.write_text("".join(f'{{"id": {n}}}\n' for n in names))
        self.bronze.run(f"add-{path.name}", engine=TypedEngine())

    def expire(self) -> list[int]:
        file = next(file for file in self.bronze.opened().files() if file.rows)
        Path(file.path).unlink()
        return [0, 1, 2]

    def change(self) -> bool:
        file = next(file for file in self.bronze.opened().files() if file.rows)
        Path(file.path).write_text('{"id": 100}\n')
        return True


class TestPipelineSource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> UpstreamPipeline:
        return UpstreamPipeline(tmp_path / "bronze")
