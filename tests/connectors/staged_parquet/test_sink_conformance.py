"""The conformance suite of sinks, on the sink of the tests: a table in SQLite that stores the marker with the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.rounds import ROUNDS
from tests.sqlite_table import Table


class TestTableSink(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Callable[[], SinkSystem]:
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: Table(next(roots))
