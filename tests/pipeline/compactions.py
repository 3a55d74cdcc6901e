"""A pipeline with four versions of one file each, its compaction and its visible rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, Pipeline, compact
from airflow_provider_streamsem.pipeline.maintenance.compact import Compacted
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

TARGET = 65_536


def prepared(root: Path, **arguments: Any) -> PipelineFixture:
    """Versions 0 to 3 have one file each, and one file is unread."""
    fixture = PipelineFixture(root, **arguments)
    for number in range(4):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.arrive(1)
    return fixture


def compacted(fixture: PipelineFixture, *, store: Store | None = None, **named: Any) -> list[Compacted]:
    arguments: dict[str, Any] = {"engine": RowsEngine(), "target_file_bytes": TARGET, **named}
    return compact(arguments.pop("pipeline", None) or fixture.pipeline(), log=fixture.log(store), **arguments)


def rows(fixture: PipelineFixture, **arguments: Any) -> Counter[int]:
    found = fixture.opened().files(sink="out", **arguments)
    return Counter(json.loads(line)["id"] for file in found for line in Path(file.path).read_text().splitlines())


def altered(fixture: PipelineFixture) -> Pipeline:
    new = FilesSink(path=str(fixture.root / "new"), format="json")
    return fixture.pipeline(sinks={**fixture.pipeline().sinks, "new": new})
