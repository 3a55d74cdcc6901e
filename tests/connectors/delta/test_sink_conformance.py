"""The conformance suite of sinks, on the Delta sink in each mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.staged_parquet import transactions
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.connectors.delta.table_system import MODES, LocalTable
from tests.rounds import ROUNDS

pytestmark = pytest.mark.slow


class TestDeltaSink(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture(params=MODES)
    def fresh(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], SinkSystem]:
        monkeypatch.setattr(transactions, "_LONGEST_WAIT_S", 0.05)
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: LocalTable(next(roots), request.param)
