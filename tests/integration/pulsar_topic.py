"""A Pulsar topic, and a pipeline that reads it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, Json, Pipeline, PulsarSource, read_committed, run_batch
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.parts.pulsar import PulsarServer

_NAMES = count()


class Topic:
    """A topic of two partitions, and a pipeline that reads it."""

    def __init__(self, server: PulsarServer, root: Path) -> None:
        self.server, self.root, self.name = server, root, f"orders{next(_NAMES)}"
        server.create(self.name, 2)

    def partition(self, number: int) -> str:
        return f"{self.name}-partition-{number}"

    def put(self, ids: range, *, partition: int = 0, batch: int = 1, **more: Any) -> None:
        self.server.put(self.partition(partition), [json.dumps({"id": id}).encode() for id in ids], batch=batch, **more)

    def source(self, **changes: Any) -> PulsarSource:
        return PulsarSource(**{"topic": self.name, "conn_id": "my_pulsar", "value": Json("id long"), **changes})

    def pipeline(self, *, source: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
        arguments: dict[str, Any] = {
            "name": "orders", "log": str(self.root / "log"), "source": self.source(**(source or {})),
            "sinks": {"out": FilesSink(path=str(self.root / "out"))},
        }  # fmt: skip
        return Pipeline(**{**arguments, **changes})

    def run(self, key: str, *, drain: bool = True, **changes: Any) -> Any:
        return run_batch(self.pipeline(**changes), run_key=key, drain=drain)

    def ids(self, spark: SparkSession) -> Counter[int]:
        return Counter(row["id"] for row in read_committed(spark, str(self.root / "log")).collect())

    def dies_after_its_plan(self, key: str) -> None:
        class Dies(RowsEngine):
            def stage(self, job: object, log: object) -> object:  # type: ignore[override]
                raise Crash

        with pytest.raises(Crash):
            run_batch(self.pipeline(), run_key=key, engine=Dies())
