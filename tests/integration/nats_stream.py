"""A JetStream stream, and a pipeline that reads it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Json, NatsSource, Pipeline, open_log, run_batch, verify
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.parts.nats import NatsServer

_NAMES = count()


class Stream:
    """A stream for one test, and a pipeline that reads it."""

    def __init__(self, nats: NatsServer, root: Path, **config: Any) -> None:
        self.nats, self.root, self.name = nats, root, f"ORDERS{next(_NAMES)}"
        nats.create(self.name, **config)

    def put(self, ids: Iterable[int], subject: str = "eu", **headers: str) -> None:
        self.nats.publish(f"{self.name}.{subject}", [json.dumps({"id": id}).encode() for id in ids], **headers)

    def source(self, **changes: Any) -> NatsSource:
        arguments = {"stream": self.name, "servers": self.nats.address_of_clients, "value": Json("id long"), **changes}
        return NatsSource(**arguments)

    def pipeline(self, source: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
        spec = Pipeline(
            name="orders",
            log=str(self.root / "log"),
            source=self.source(**(source or {})),
            sinks={"out": FilesSink(path=str(self.root / "out"), format="parquet")},
        )
        return spec.replace(**changes) if changes else spec

    def run(self, run_key: str, source: dict[str, Any] | None = None, **changes: Any) -> Any:
        return run_batch(self.pipeline(source, **changes), run_key=run_key, drain=True)

    def dies_after_its_plan(self, run_key: str) -> None:
        class Dies(RowsEngine):
            def stage(self, job: object, log: object) -> object:  # type: ignore[override]
                raise Crash

        with pytest.raises(Crash):
            run_batch(self.pipeline(), run_key=run_key, engine=Dies())  # type: ignore[arg-type]

    def rows(self, *columns: str) -> list[Any]:
        import duckdb

        files = [file.path for file in open_log(str(self.root / "log")).files()]
        return duckdb.sql(f"SELECT {', '.join(columns)} FROM read_parquet({files}) ORDER BY ALL").fetchall()

    def check(self, ids: Iterable[int]) -> None:
        assert Counter(id for (id,) in self.rows("id")) == Counter(ids)
        assert verify(str(self.root / "log")).violations == []

    def consumers(self) -> int:
        return int(self.nats.ask(f"STREAM.INFO.{self.name}")["state"]["consumer_count"])
