"""Batches of a sink that publishes, without an engine: rows are staged as Spark would stage them, and handed over as decided."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.publish import batch_of
from airflow_provider_streamsem.errors import MarkerConflictError
from airflow_provider_streamsem.protocol.entries import Marker
from airflow_provider_streamsem.sinks.contract import Batch, SinkMarker
from tests.worlds import World

UUID = "0" * 32


def outcome_of(version: int) -> str:
    """The sha256 of a version's outcome, where there is no log."""
    return hashlib.sha256(str(version).encode()).hexdigest()


def marked(version: int, state: str = "applied") -> SinkMarker:
    """The marker of a staged batch."""
    return SinkMarker(version, state, outcome_of(version))


def before(version: int) -> Marker | None:
    """The marker that the log expects in the sink before a version, where every version brought rows."""
    return Marker(version=version - 1, outcome=outcome_of(version - 1)) if version else None


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
        outcome=outcome_of(version),
        committable=sink.collect(version, attempt * 32),
        schema=schema,
        root=version if root is None else root,
        **{"expected_marker": before(version), **more},
    )


def decided(world: World, pipeline: Pipeline, name: str, version: int) -> Batch:
    """What a sink has to publish of a version of a world's log."""
    opened = open_pipeline(pipeline, world.log())
    found = opened.log.outcome(version)
    assert found is not None
    return batch_of(opened, found[0], found[1], name)


def check_that_commits_of_other_logs_are_refused(sink: Any, published: Batch, next: Batch) -> None:
    """
    A log that went back to an older copy plans versions anew which the sink has: by its number alone, the marker would say that they are applied.

    :param published: the newest batch of the sink
    :param next: of the version after it
    """
    anew = replace(published, outcome="f" * 64)
    of_other_log = replace(next, expected_marker=Marker(version=published.version, outcome=anew.outcome))
    behind = replace(next, expected_marker=published.expected_marker)
    for refused in (anew, of_other_log, behind):
        with pytest.raises(MarkerConflictError, match=f"version={refused.version}.*marker={published.version}"):
            sink.publish(refused, None)
    assert sink.publish(published, None).result == "applied"
    assert sink.skip(anew, None).result == "skipped"
    with pytest.raises(MarkerConflictError):
        sink.publish(published, None)
    found = sink.marker(published.pipeline_uuid, published.sink)
    assert found is not None
    assert (found.state, found.is_of(published.version, anew.outcome)) == ("skipped", True)
    assert sink.publish(of_other_log, None).result == "applied"
