"""The directories of a pipeline (input, log, dataset) for tests on real Spark, and input lines that these tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Pipeline,
    RunResult,
    open_log,
    read_committed,
    run_batch,
    verify,
)


class Location:
    """The directories of one pipeline on Spark."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "in").mkdir()
        self.runs = 0

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def pipeline(self, *, source: dict[str, Any], sink: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
        sinks = changes.pop("sinks", None) or {"out": FilesSink(path=str(self.root / "out"), **(sink or {}))}
        return Pipeline(
            name="location", log=str(self.root / "log"), source=FilesSource(path=str(self.root / "in"), **source), sinks=sinks, **changes
        )  # fmt: skip

    def run(self, pipeline: Pipeline, **arguments: Any) -> RunResult:
        self.runs += 1
        return run_batch(pipeline, run_key=f"run-{self.runs}", **arguments)

    def rows(self, spark: SparkSession, **arguments: Any) -> list[dict[str, Any]]:
        frame = read_committed(spark, str(self.root / "log"), **arguments)
        return sorted((row.asDict() for row in frame.collect()), key=str)

    def quarantined(self) -> list[dict[str, Any]]:
        return [*open_log(str(self.root / "log")).quarantined()]

    def check(self) -> None:
        verdict = verify(str(self.root / "log"))
        assert verdict.violations == []


JSON = {"format": "json", "schema": "id long, name string"}


CSV = {"format": "csv", "schema": "id long, name string, n int", "options": {"header": "true"}}


BAD_JSON = [
    "{not json",
    '{"id": 1, "name": "x"',
    '{"id": "one"}',
    "[1, 2]",
    '[{"id": 1}, {"id": 2}]',
    "3",
    "null",
    '"text"',
    '{"id": 1} trailing',
    '{"id": 1}{"id": 2}',
    '{"id": 1}, {"id": 2}',
    '{"id": 1, "name": "}"} {"id": 2}',
]


GOOD_JSON = [
    '{"id": 1, "name": "a"}',
    '{"id": 2}',
    '{"name": "only"}',
    '{"id": 3, "name": "brace } inside"}',
    '{"id": 4, "name": "x", "unknown": {"a": [1, {"b": "}"}]}}',
    '  {"id": 5, "name": "é"}  ',
    '{"id": 6, "name": ""}',
    '{"id": 7, "name": null}',
]
