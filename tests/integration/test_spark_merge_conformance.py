"""The conformance suite of sinks, on the Delta sink and the Iceberg sink that merge or append with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem.connectors.staged_parquet import transactions
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.dataset import LocalDataset
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.connectors.delta import table_system
from tests.connectors.iceberg import lake_system
from tests.rounds import ROUNDS
from tests.step_by_step import step_by_step

pytestmark = [pytest.mark.integration, pytest.mark.prove]
SYSTEMS: dict[str, Callable[[Path, str], SinkSystem]] = {
    "delta": table_system.LocalTable,
    "iceberg": lake_system.LakeSystem,
}
MODES: dict[str, dict[str, Any]] = {
    "upsert by Spark": {"mode": "upsert", "keys": ["id"], "engine": "spark"},
    "append by Spark": {"engine": "spark"},
}


class TestDeltaSinkAndIcebergSinkBySpark(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture(params=SYSTEMS)
    def system(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture(params=MODES)
    def fresh(
        self,
        request: pytest.FixtureRequest,
        system: str,
        spark: SparkSession,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Callable[[], SinkSystem]:
        monkeypatch.setattr(transactions, "_LONGEST_WAIT_S", 0.05)
        roots = (tmp_path / str(number) for number in range(1_000))

        def create() -> SinkSystem:
            made = SYSTEMS[system](next(roots), request.param)
            made.spark = SparkEngine().publishing_session
            made.watching = _watched(made.watching)  # type: ignore[method-assign]
            return made

        for modes in (table_system.MODES, lake_system.MODES):
            monkeypatch.setitem(modes, request.param, MODES[request.param])
        return create


def _watched(watching: Any) -> Any:
    """Also report a step before and after each statement of Spark, and each object that the sink creates."""

    @contextmanager
    def watched(step: Callable[[str], object]) -> Iterator[None]:
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            stack.enter_context(watching(step))
            for owner, name in ((LocalDataset, "create"), (SparkSession, "sql")):
                patch.setattr(owner, name, step_by_step(name, getattr(owner, name), step))
            yield

    return watched
