"""
An alter adds a source while other work is unfinished: a drain that is retried, windows that no record closes, and versions that are reprocessed later.

A retried drain reads up to its own target, and the next run reads the added source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_streamsem import (
    DeltaSource,
    FilesSink,
    FilesSource,
    JdbcSource,
    Limits,
    Pipeline,
    PipelineSource,
    RateSource,
    RunResult,
    State,
    alter,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.engine import Job, Produced, nothing_produced
from airflow_provider_streamsem.protocol.offsets import position
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.delta.tables import create_table
from tests.connectors.iceberg.tables import Tables
from tests.connectors.pipeline.bronze import Bronze
from tests.connectors.sql.sqlite_database import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 4


class NoRows(RowsEngine):
    """
    Stages attempts without rows: these tests are about the plans.

    :param dies_at: the number of the attempt during which the process dies; 0 if none
    """

    def __init__(self, dies_at: int = 0) -> None:
        super().__init__()
        self._dies_at = dies_at

    def stage(self, job: Job, log: Any) -> Produced:
        self.staged += 1
        if self.staged == self._dies_at:
            raise Crash
        return nothing_produced(job.sinks)


def first_source(frames: Mapping[str, Any]) -> Any:
    return next(iter(frames.values()))


def pipeline(root: Path, **added: Any) -> Pipeline:
    rates = {name: RateSource(rows_per_second=1, rows=ROWS, start="2026-01-01T00:00:00Z") for name in ("a", "b")}
    return Pipeline(
        name="drained", log=str(root / "log"), sources={**rates, **added}, sinks={"out": FilesSink(path=str(root / "out"))},
        transform=first_source, limits=Limits() if added else Limits(max_rows=1),
    )  # fmt: skip


def files(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (root / "in").mkdir()
    for n in range(3):
        (root / "in" / f"{n}.json").write_text(f'{{"id": {n}}}\n')
    return FilesSource(path=str(root / "in"), format="json", schema="id long", hive_partitions=False)


def rate(root: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    return RateSource(rows_per_second=1, rows=3, **arguments)


def delta(root: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    return DeltaSource(path=str(create_table(root / "table", versions=3)), **arguments)


def delta_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return delta(root, monkeypatch, starting=1)


def iceberg(root: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    tables = Tables(root / "lake")
    for n in range(3):
        tables.append(n)
    return tables.source(**arguments)


def jdbc(root: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    table = Table(root / "db.sqlite", monkeypatch, **arguments)
    table.add(range(3))
    assert isinstance(table.source, JdbcSource)
    return table.source


def jdbc_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return jdbc(root, monkeypatch, starting=2)


def upstream(root: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    bronze = Bronze(root / "bronze")
    bronze.commit(3)
    monkeypatch.setattr(upstream, "kept", bronze, raising=False)  # the store in memory lives as long as the fixture
    return PipelineSource(log=bronze.store.url, **arguments)


def upstream_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return upstream(root, monkeypatch, starting=1)


SOURCES = [files, rate, delta, delta_later, iceberg, jdbc, jdbc_later, upstream, upstream_later]


@pytest.mark.parametrize("dies_at", range(1, ROWS + 2))
@pytest.mark.parametrize("make", SOURCES)
def test_retried_drain_ends_at_its_target_and_the_next_run_reads_the_added_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, pytest.MonkeyPatch], Any], dies_at: int
) -> None:
    before, after = pipeline(tmp_path), pipeline(tmp_path, c=make(tmp_path, monkeypatch))

    def run(spec: Pipeline, key: str, dies_at: int = 0) -> RunResult:
        return run_batch(spec, run_key=key, drain=True, engine=NoRows(dies_at))

    with suppress(Crash):
        run(before, "drain", dies_at)
    alter(after)
    assert run(after, "drain").ranges == {"a/rate": (0, ROWS), "b/rate": (0, ROWS)}
    log = commit_log_at(after.log)
    assert {name.split("/")[0] for name in run(after, "next").ranges} == {"c"}
    assert run(after, "idle").ranges == {}
    planned: dict[str, int] = {}
    for version in open_log(log).versions(newest_first=False):
        if version.outcome is not None and version.outcome.committed:
            planned |= {name: end for name, (_, end) in version.plan.ranges.items()}
    assert planned == {name: position(log.newest_head().next, name) for name in planned}
    assert verify(after).violations == []


def no_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (root / "in").mkdir()
    return FilesSource(path=str(root / "in"), format="json", schema="id long", hive_partitions=False)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("make", "column", "closes_before"),
    [
        (partial(rate, starting="latest"), "value", True),
        (no_files, "id", False),
        *((partial(make, starting="latest"), "id", False) for make in (delta, iceberg, jdbc, upstream)),
    ],
)
def test_batch_without_records_has_the_columns_of_the_added_source(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    make: Callable[..., Any],
    column: str,
    closes_before: bool,
) -> None:
    """The state before the batch does not know the source. The same holds when a version before the alter is reprocessed."""
    from pyspark.sql import functions as F

    def windowed(frames: Mapping[str, DataFrame], *, reads_added: bool) -> DataFrame:
        events = frames["a"].union(frames["b"]).select("timestamp")
        if reads_added:
            events = events.union(frames["c"].select(F.timestamp_millis(F.col(column)).alias("timestamp")))
        counted = events.withWatermark("timestamp", "0 seconds").groupBy(F.window("timestamp", "1 second")).count()
        return counted.selectExpr("window.start AS at", "count AS n")

    def stateful(**added: Any) -> Pipeline:
        transform = partial(windowed, reads_added=bool(added))
        state = State(output_mode="append", partitions=1)
        return pipeline(tmp_path, **added).replace(transform=transform, state=state, limits=Limits())

    def counts() -> list[int]:
        return [row["n"] for row in read_committed(spark, spec.log).orderBy("at").collect()]

    before, spec = stateful(), stateful(c=make(tmp_path, monkeypatch))
    run_batch(before, run_key="read")
    if closes_before:
        run_batch(before, run_key="close")
    alter(spec)
    assert run_batch(spec, run_key="idle").counts.get("read", 0) == 0
    assert counts() == [2] * (ROWS - 1)
    for version in (0, 1 if closes_before else 2):
        reprocess(spec, version)
    assert counts() == [2] * (ROWS - 1)
    assert verify(spec).violations == []
