"""Batches of a sink that publishes, without an engine: rows are staged as Spark would stage them, and handed over as decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.publish import batch_of
from airflow_provider_streamsem.sinks.contract import Batch
from tests.worlds import World

UUID = "0" * 32


def schema_of(**kinds: Any) -> str:
    """Schema JSON in Spark's form."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def accept(sink: Any, schema: str) -> None:
    """Have a sink accept columns as in the first run of a new log, which creates what keeps its markers."""
    sink.claim(UUID, "memory://batches", new=True)
    sink.accept(schema)


def staged(sink: Any, table: pyarrow.Table, version: int = 0, *, schema: str, root: int | None = None, sink_name: str = "t", attempt: str = "a", **more: Any) -> Batch:  # fmt: skip
    """A batch of the rows of one Arrow table, accepted and collected as an attempt's are."""
    accept(sink, schema)
    place = Path(sink.attempt_place(version, attempt * 32))
    place.mkdir(parents=True)
    pyarrow.parquet.write_table(table, place / "part-00000.parquet")
    return Batch(
        pipeline_uuid=UUID,
        sink=sink_name,
        version=version,
        committable=sink.collect(version, attempt * 32),
        schema=schema,
        root=version if root is None else root,
        **more,
    )


def decided(world: World, pipeline: Pipeline, name: str, version: int) -> Batch:
    """What a sink has to publish of a version of a world's log."""
    opened = open_pipeline(pipeline, world.log())
    found = opened.log.outcome(version)
    assert found is not None
    return batch_of(opened, found[0], name)
