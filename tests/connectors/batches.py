"""Batches for publishing sinks, built without an engine: rows are staged as Spark stages them and passed to the sink as committed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.publish import batch_of
from airflow_provider_streamsem.protocol.entries import Marker
from tests.pipeline_fixture import PipelineFixture

UUID = "0" * 32


def outcome_of(version: int) -> str:
    """Return a stand-in for the sha256 of a version's outcome, for tests without a log."""
    return hashlib.sha256(str(version).encode()).hexdigest()


def marked(version: int, state: str = "applied") -> SinkMarker:
    """Return the marker of a staged batch."""
    return SinkMarker(version, state, outcome_of(version))


def before(version: int) -> Marker | None:
    """Return the marker that the log expects in the sink before a version, if every earlier version wrote rows."""
    return Marker(version=version - 1, outcome=outcome_of(version - 1)) if version else None


def schema_of(**kinds: Any) -> str:
    """Return a Spark schema as JSON."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def resolve_schema(sink: Any, schema: str) -> None:
    """Have a sink accept columns as in the first run of a new log. This creates the storage of its markers."""
    sink.claim(UUID, "memory://batches", new=True)
    sink.resolve_schema(schema)


def staged(sink: Any, table: pyarrow.Table, version: int = 0, *, schema: str, root: int | None = None, sink_name: str = "t", attempt: str = "a", **more: Any) -> SinkCommit:  # fmt: skip
    """Return a batch with the rows of one Arrow table. The sink accepts and collects it like the files of an attempt."""
    resolve_schema(sink, schema)
    location = Path(sink.attempt_location(version, attempt * 32))
    location.mkdir(parents=True)
    pyarrow.parquet.write_table(table, location / "part-00000.parquet")
    return SinkCommit(
        pipeline_uuid=UUID,
        sink=sink_name,
        version=version,
        outcome=outcome_of(version),
        committable=sink.collect(version, attempt * 32),
        schema=schema,
        root=version if root is None else root,
        **{"expected_marker": before(version), **more},
    )


def committed_batch(fixture: PipelineFixture, pipeline: Pipeline, name: str, version: int) -> SinkCommit:
    """Return the batch that a sink has to publish for a committed version of a fixture's log."""
    opened = bind(pipeline, fixture.log())
    stored = opened.log.outcome_and_sha256(version)
    assert stored is not None
    return batch_of(opened, *stored, name)
