"""The replay source passes the conformance suite."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import ReplaySource
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class Directory(SourceSystem):
    """A directory of eight files with one record each. The clock determines how many of them have arrived."""

    source: ReplaySource

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        for id in range(8):
            (path / f"{id}.json").write_text(json.dumps({"id": id}) + "\n")
        self.source = ReplaySource(
            path=str(path), format="json", schema="id long", start="2026-01-01T00:00:00Z", files_per_minute=7
        )
        self.clock = ManualClock(START_MS - 1)

    def add(self, ids: Iterable[int]) -> None:
        self.clock.sleep((self.source.arrived_at_ms(max(ids)) - self.clock.now_ms() + 1) / 1000)

    def expire(self) -> list[int]:
        oldest = min(self.path.iterdir())
        oldest.unlink()
        return [int(oldest.stem)]

    def change(self) -> bool:
        min(self.path.iterdir()).write_text('{"id": 100}\n')
        return True


class TestReplaySource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Directory:
        return Directory(tmp_path / "in")
