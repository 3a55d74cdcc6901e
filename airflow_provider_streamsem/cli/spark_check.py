"""The checks of ``streamsem doctor-spark``: small batches that test whether this package counts records correctly on the installed Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.commitlog.doctor import Check
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.spark import versions
from airflow_provider_streamsem.state.settings import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_streamsem.spark.spark_engine import SparkEngine

_SCHEMA = "id long, amount decimal(10,2), day date, at timestamp, local timestamp_ntz, tags array<string>"
_VALUES = (
    '"amount": 1.50, "day": "2026-01-02", "at": "2026-01-02T03:04:05Z", "local": "2026-01-02T03:04:05", "tags": ["a"]'
)
_RECORDS = f'{{"id": 1, {_VALUES}}}\n{{"id": 2}}\nnot JSON\n{{"id": 3}}\n'
_LATER_RECORDS = '{"id": 3}\n{"id": 4}\n'


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


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id"])


_PLANS: tuple[tuple[Callable[[Any], Any], int], ...] = (
    (_all, 3),
    (_filtered, 2),
    (_sorted, 3),
    (_limited, 1),
    (_grouped, 3),
    (_cached, 3),
)
"""Transforms with different forms of Spark query plans, and the number of rows that each must write."""


def checks(engine: SparkEngine) -> Iterator[Check]:
    """
    Run a batch of three valid records and one malformed record for each form of query plan, and yield one check for each batch.

    If the engine supports state, also run such a batch with a stateful transform, and a second one, whose count depends on the state after the first.

    A batch counts its records, and keeps its state, through internal Spark classes. If another Spark version has changed them, a count is wrong or the batch
    fails. The batches use temporary directories, which a cluster must be able to read and write.
    """
    installed = versions.installed()
    minors = {version.rsplit(".", 1)[0] for version in installed.values()}
    text = ", ".join(f"{name} {version}" for name, version in installed.items()) or "no pyspark"
    is_tested = bool(minors) and minors <= set(versions.TESTED)
    yield Check(name="the installed Spark version is supported", passed=is_tested, observed=text)
    for transform, rows in _PLANS:
        with tempfile.TemporaryDirectory() as location:
            name = f"counts of a batch: {transform.__name__.strip('_')}"
            yield _batch(name, _pipeline(Path(location), transform), _RECORDS, _counts(4, bad=1, written=rows), engine)
    if engine.keeps_state:
        with tempfile.TemporaryDirectory() as location:
            pipeline = _pipeline(Path(location), _distinct, State(output_mode="append", partitions=1))
            first, second = "counts of a batch: with state", "counts of the next batch, which needs this state"
            yield _batch(first, pipeline, _RECORDS, _counts(4, bad=1, written=3), engine)
            yield _batch(second, pipeline, _LATER_RECORDS, _counts(2, bad=0, written=1), engine)


def _counts(read: int, *, bad: int, written: int) -> dict[str, int]:
    return {"read": read, "parsed": read - bad, "quarantined": bad, "written.out": written}


def _pipeline(location: Path, transform: Callable[[Any], Any], state: State | None = None) -> Pipeline:
    (location / "in").mkdir()
    return Pipeline(
        name="doctor",
        log=str(location / "log"),
        source=FilesSource(path=str(location / "in"), format="json", schema=_SCHEMA),
        transform=transform,
        sinks={"out": FilesSink(path=str(location / "out"))},
        rows="any",
        state=state,
    )


def _batch(name: str, pipeline: Pipeline, records: str, expected: dict[str, int], engine: SparkEngine) -> Check:
    assert pipeline.source.location is not None
    source = Path(pipeline.source.location)
    (source / f"{len([*source.iterdir()])}.json").write_text(records)
    try:
        result = run_batch(pipeline, run_key=name, engine=engine)
    except StreamsemError as error:
        cause = "" if error.__cause__ is None else f" ({type(error.__cause__).__name__})"
        return Check(name=name, passed=False, observed=f"{type(error).__name__}: {error.summary}{cause}")
    counts = {count: result.counts.get(count) for count in expected}
    return Check(
        name=name, passed=counts == expected, observed=", ".join(f"{key} {value}" for key, value in counts.items())
    )


_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_ARCHIVE = "the JVM writes an archive of its classes"
"""Name of the check of :func:`class_archive`."""


def with_class_archive(settings: Sequence[str], file: str) -> list[str]:
    """
    Return settings with which the JVM writes an archive of its classes, under another name, when it ends.

    :param settings: Spark settings, each as ``NAME=VALUE``
    """
    given = [text.partition("=")[2] for text in settings if text.startswith(f"{_JAVA_OPTIONS}=")]
    options = [*given, "-Xlog:disable", f'"-XX:ArchiveClassesAtExit={_new(file)}"']
    return [*settings, f"{_JAVA_OPTIONS}={' '.join(options)}"]


def class_archive(file: str) -> Check:
    """End the JVM, and return whether it has written the archive. A JVM that this process has not started writes none."""
    from airflow_provider_streamsem.spark import gateway

    new = _new(file)
    new.unlink(missing_ok=True)  # of a process with the same id that was killed
    gateway.end_jvm()
    is_written = new.exists() and new.stat().st_size > 0
    if is_written:
        new.replace(file)
    observed = f"{Path(file).stat().st_size:,} bytes in {file}" if is_written else f"the JVM wrote no {file}"
    return Check(name=CLASS_ARCHIVE, passed=is_written, observed=observed)


def _new(file: str) -> Path:
    path = Path(file).absolute()
    return path.with_name(f"{path.name}.{os.getpid()}")  # another command may write an archive of the same name
