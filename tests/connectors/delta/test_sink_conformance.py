"""The conformance suite of sinks, on the Delta sink in each mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.staged_parquet import transactions
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.connectors.delta.delta_fixture import WRITES
from tests.rounds import ROUNDS
from tests.step_by_step import step_by_step

pytestmark = pytest.mark.slow
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


class TestDeltaSink(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture(params=MODES)
    def fresh(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], SinkSystem]:
        monkeypatch.setattr(transactions, "_LONGEST_WAIT_S", 0.05)
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: LocalTable(next(roots), request.param)
