"""A Delta table on disk, for the conformance suite of sinks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.testing.conformance import SinkSystem
from tests.connectors.delta.delta_fixture import WRITES
from tests.step_by_step import step_by_step

MODES: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"mode": "upsert", "keys": ["id"]}}


class LocalTable(SinkSystem):
    """A table on disk. Its requests are the writes of delta-rs to the table."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root, self.mode = root, mode

    def sink(self) -> DeltaSink:
        return DeltaSink(str(self.root), **MODES[self.mode])

    def ids(self) -> list[int]:
        if not DeltaTable.is_deltatable(str(self.root)):
            return []
        return DeltaTable(str(self.root)).to_pyarrow_table()["id"].to_pylist()

    @contextmanager
    def watching(self, step: Callable[[str], object]) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in WRITES:
                patch.setattr(owner, name, step_by_step(name, getattr(owner, name), step))
            yield

    def lose_markers(self) -> None:
        """The table has the markers, so it is lost too."""
        shutil.rmtree(self.root / "_delta_log")

    def lost_reply(self) -> Exception:
        return OSError("the connection was lost")
