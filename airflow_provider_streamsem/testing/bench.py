"""Runs a pipeline with a log and datasets at locations of a test, and reads the rows that it committed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.readers.spark import read_committed
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.arrivals import Arrivals
from airflow_provider_streamsem.testing.crash_matrix import Output, multiset
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingEngine, StepReportingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """
    Reads the rows and records that the versions above ``since`` made visible.

    :param log: the log, for all other reads
    :param since: exclusive lower bound of the versions; -1 for all versions
    :param spark: the session for reading; ``None``: the files are JSON lines, and are read without Spark
    """

    log: CommittedLog
    since: int = -1
    spark: SparkSession | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Row counts by name: ``read``, ``parsed``, ``quarantined``, ``filtered``, ``written.<sink>``."""
        now, before = self.log.view().counts, self.log.view(version=self.since).counts
        return {name: count - before.get(name, 0) for name, count in now.items()}

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """
        The records that could not be parsed.

        Each record has ``raw``, ``error``, ``version`` and its position in the source (files: ``path``; Kafka: ``topic``, ``partition``, ``offset``).
        """
        return [*self.log.quarantined(since=self.since)]

    def rows(self, sink: str | None = None) -> list[dict[str, Any]]:
        """
        Return the rows of one sink as dicts, in any order. Times are in UTC.

        :param sink: name of the sink; required if the pipeline has several
        :raises InvalidError: there is no such sink, or the pipeline has several and ``sink`` is ``None``
        """
        if self.spark is None:
            files = self.log.files(since=self.since, sink=sink)
            return [json.loads(line) for file in files for line in Path(file.path).read_text().splitlines()]
        rows: list[dict[str, Any]] = [] if self.log.head < 0 else self.frame(sink).toArrow().to_pylist()
        return rows

    def frame(self, sink: str | None = None) -> DataFrame:
        """
        Return the rows of one sink as a Spark DataFrame.

        :param sink: name of the sink; required if the pipeline has several
        :raises InvalidError: the harness has no Spark session, or no commit has recorded the columns of the sink yet
        """
        if self.spark is None:
            raise InvalidError("frame() requires Spark, and this harness has no Spark session", accepted="rows()")
        return read_committed(self.spark, self.log, since=self.since, sink=sink)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """
    Runs a pipeline whose locations and limits were replaced by :func:`bench`.

    :param pipeline: the pipeline as it runs in the test
    :param arrivals: the input of its source
    :param spark: the session in which it runs; ``None``: :class:`RowsEngine` runs it without Spark
    """

    pipeline: Pipeline
    arrivals: Arrivals
    spark: SparkSession | None

    def engine(self, step: Callable[[str], object], spark_engine: Engine | None = None) -> Engine:
        """
        Return an engine that calls ``step`` with the name of each step.

        :param spark_engine: with Spark, the engine that stages the attempts; default: a new one
        """
        if self.spark is None:
            return RowsEngine(step)
        return StepReportingEngine(spark_engine or SparkEngine(), step, self.arrivals.loads)

    def run(self, run_key: str, step: Callable[[str], object]) -> RunResult:
        """Run the pipeline on all batches that were added and not yet read, one version for each batch."""
        log = CommitLog(StepReportingStore(open_store(self.pipeline.log), step))
        return run_batch(self.pipeline, run_key=run_key, drain=True, engine=self.engine(step), log=log)

    def head(self) -> int:
        """Return the newest closed version; -1 before the first."""
        return -1 if commit_log_at(self.pipeline.log).read_pipeline() is None else open_log(self.pipeline.log).head

    def committed(self, since: int = -1) -> Committed:
        """Return a reader of the rows that the versions above ``since`` made visible."""
        return Committed(log=open_log(self.pipeline.log), since=since, spark=self.spark)

    def output(self, ignore: Collection[str] = ()) -> Output:
        """Return everything that a crash matrix compares, without the columns of rows that ``ignore`` names."""
        committed = self.committed()
        rows = {
            f"rows of {name}": multiset(
                {column: value for column, value in row.items() if column not in ignore} for row in committed.rows(name)
            )
            for name in sorted(self.pipeline.sinks)
        }
        view = committed.log.view()
        return {
            **rows,
            "quarantined records": multiset([{**record, "version": 0} for record in committed.quarantined]),
            "counts": dict(view.counts),
            "next offsets": dict(view.next),
            "violations of verify": [str(violation) for violation in verify(self.pipeline.log).violations],
        }


def bench(original: Pipeline, arrivals: Arrivals, *, location: Path, log: str, spark: SparkSession | None) -> Bench:
    """
    Replace the locations of a pipeline with those of a test.

    Each batch that was added becomes one batch of the run. Of the pipeline's limits, only ``max_quarantined`` applies.

    :param original: the production pipeline
    :param arrivals: provides the source
    :param location: a directory, below which each sink gets a dataset
    :param log: URL of the log
    :param spark: see :class:`Bench`
    :raises InvalidError: a sink is outside the log, or has no ``path`` that could be replaced
    """
    pipeline = original.replace(
        log=log,
        log_conn_id=None,
        source=arrivals.source,
        sinks={name: _moved(name, sink, str(location / name)) for name, sink in original.sinks.items()},
        limits=Limits(max_files=1, max_quarantined=original.limits.max_quarantined),
    )
    return Bench(pipeline=pipeline, arrivals=arrivals, spark=spark)


def _moved(name: str, sink: Any, location: str) -> Sink:
    field_names = {f.name for f in dataclasses.fields(sink)} if dataclasses.is_dataclass(sink) else set()
    if (
        "path" not in field_names or sink.is_outside_log
    ):  # of a sink outside the log, path may be one location of several
        raise InvalidError(
            "the harness cannot replace the location of the sink, because the sink is outside the log or has no path; nothing was written",
            sink=name,
            given=type(sink).__name__,
            accepted="a copy of the pipeline with a files sink in its place: pipeline.replace(sinks=...)",
        )
    moved: Sink = dataclasses.replace(sink, path=location)
    return moved
