"""An Iceberg table on disk with a SQL catalog, for the conformance suite of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.testing.conformance import SinkSystem
from tests.connectors.iceberg.lake import Lake, Steps

MODES: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"mode": "upsert", "keys": ["id"]}}


class LakeSystem(SinkSystem):
    """A table on disk. Its requests are those to the catalog, and the reads and writes of files."""

    def __init__(self, root: Path, mode: str) -> None:
        root.mkdir()
        self.lake = Lake(root, MODES[mode])

    def sink(self) -> IcebergSink:
        return self.lake.sink

    def ids(self) -> list[int]:
        try:
            return self.lake.rows()
        except NoSuchTableError:
            return []

    @contextmanager
    def watching(self, step: Callable[[str], object]) -> Iterator[None]:
        Steps.hook = step
        try:
            yield
        finally:
            Steps.hook = None

    def lose_markers(self) -> None:
        """The table has the markers, so it is lost too."""
        with self.lake.catalog() as catalog:
            catalog.drop_table(self.lake.name)
