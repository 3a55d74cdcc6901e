"""The checks of ``streamsem doctor-spark``: small batches that test whether this package counts records correctly on the installed Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.commitlog.doctor import Check
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.pipeline.run import run_batch
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.spark import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECORDS = '{"id": 1}\n{"id": 2}\nnot JSON\n{"id": 3}\n'
_COUNTS = {"read": 4, "parsed": 3, "quarantined": 1}


def _all(rows: DataFrame) -> DataFrame:
    return rows


def _filtered(rows: DataFrame) -> DataFrame:
    return rows.where("id > 1")


def _sorted(rows: DataFrame) -> DataFrame:
    return rows.orderBy("id")


def _limited(rows: DataFrame) -> DataFrame:
    return rows.limit(1)


def _grouped(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").count().select("id")


def _cached(rows: DataFrame) -> DataFrame:
    cached = rows.cache()
    cached.count()
    return cached


_PLANS: tuple[tuple[Callable[[Any], Any], int], ...] = (
    (_all, 3),
    (_filtered, 2),
    (_sorted, 3),
    (_limited, 1),
    (_grouped, 3),
    (_cached, 3),
)
"""Transforms with different forms of Spark query plans, and the number of rows that each must write."""


def checks(engine: Engine) -> Iterator[Check]:
    """
    Run a batch of three valid records and one malformed record for each form of query plan, and yield one check for each batch.

    A batch counts its records through internal Spark classes. If another Spark version has changed them, a count is wrong or the batch fails. The batches use
    temporary directories, which a cluster must be able to read and write.
    """
    installed = versions.installed()
    minors = {version.rsplit(".", 1)[0] for version in installed.values()}
    text = ", ".join(f"{name} {version}" for name, version in installed.items()) or "no pyspark"
    is_tested = bool(minors) and minors <= set(versions.TESTED)
    yield Check(name="the installed Spark version is supported", passed=is_tested, observed=text)
    for transform, rows in _PLANS:
        with tempfile.TemporaryDirectory() as location:
            yield _batch(Path(location), engine, transform, rows)


def _batch(location: Path, engine: Engine, transform: Callable[[Any], Any], rows: int) -> Check:
    (location / "in").mkdir()
    (location / "in" / "records.json").write_text(_RECORDS)
    pipeline = Pipeline(
        name="doctor",
        log=str(location / "log"),
        source=FilesSource(path=str(location / "in"), format="json", schema="id long"),
        transform=transform,
        sinks={"out": FilesSink(path=str(location / "out"))},
        rows="any",
    )
    name = f"counts of a batch: {transform.__name__.strip('_')}"
    try:
        result = run_batch(pipeline, run_key="doctor", engine=engine)
    except StreamsemError as error:
        cause = "" if error.__cause__ is None else f" ({type(error.__cause__).__name__})"
        return Check(name=name, passed=False, observed=f"{type(error).__name__}: {error.summary}{cause}")
    expected = {**_COUNTS, "written.out": rows}
    counts = {count: result.counts.get(count) for count in expected}
    return Check(
        name=name, passed=counts == expected, observed=", ".join(f"{key} {value}" for key, value in counts.items())
    )
