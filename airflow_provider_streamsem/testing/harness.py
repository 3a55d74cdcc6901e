"""Runs a user's pipeline on rows of a test. Its transform, predicate and sinks are unchanged, but source, log and datasets are at locations of the test."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.testing.arrivals import Arrivals, Rows
from airflow_provider_streamsem.testing.bench import Bench, Committed, bench
from airflow_provider_streamsem.testing.crash_matrix import Output, crash_matrix
from airflow_provider_streamsem.testing.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineHarness:
    """
    Runs a production pipeline on rows of a test.

    The harness keeps the transform, the predicate, the declared ``rows``, the limit of quarantined records, and the formats and partitions of the sinks. It
    replaces the locations: :class:`Arrivals` takes the place of the source, the log is in memory, and the dataset of each sink is below ``location``.

    Each batch of a test is one batch of the run. The other limits of the pipeline do not apply.

    :param pipeline: the production pipeline
    :param location: a directory for the test
    :param spark: the session in which the pipeline runs; ``None``: :class:`RowsEngine` runs it without Spark. Input and output are then JSON lines, and the
        transform receives a list of dicts
    :param log: a URL such as ``s3://bucket/prefix``, below which the logs are stored; default: in memory
    :raises InvalidError: the harness cannot replace a source or a sink of this type
    """

    def __init__(
        self, pipeline: Pipeline, location: Path, *, spark: SparkSession | None = None, log: str | None = None
    ) -> None:
        self._original = pipeline
        self._spark = spark
        self._name = f"{pipeline.name}-{SYSTEM_CLOCK.new_id()[:12]}"
        self._location = location / self._name
        self._logs = (log or "memory://harness").rstrip("/")
        self._matrices, self._runs = count(), count()
        self._bench = self._bench_at("main", self._arrivals("main"))

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline with replaced locations, as it runs in the test."""
        return self._bench.pipeline

    def run(self, *batches: Rows) -> Committed:
        """
        Run the pipeline on batches, in order, as one run with ``drain``.

        :param batches: each an iterable of rows or a DataFrame; see :data:`airflow_provider_streamsem.testing.arrivals.Rows`
        :returns: a reader of the rows that this run committed
        :raises InvalidError: a row is not valid for the source
        :raises StreamsemError: the run of the pipeline failed
        """
        for rows in batches:
            self._bench.arrivals.add(rows)
        before = self._bench.head()
        self._bench.run(f"run-{next(self._runs)}", Steps())
        return self._bench.committed(since=before)

    def crash_matrix(
        self,
        *batches: Rows,
        ignore: Collection[str] = (),
        prepare: Callable[[], object] = lambda: None,
        observe: Callable[[], object] = lambda: None,
    ) -> list[str]:
        """
        Kill a run on these batches at every step and retry it, each time with a new log. The output must equal that of a run without a kill.

        There is a step before and after each request to the log, and for each step of the engine. Every step is killed once.

        The output consists of the rows of every sink and the quarantined records (as multisets), the counts, the next offsets and the violations of ``verify``.
        It also contains the return value of ``observe``, and whether a repeated run returns the same result.

        :param batches: as in :meth:`run`
        :param ignore: names of columns whose values may differ between runs, such as a load timestamp
        :param prepare: called before each new run, to reset the data that ``observe`` reads
        :param observe: returns additional output to compare, such as data that the transform wrote elsewhere
        :returns: the names of the steps, in order
        :raises AssertionError: the output differs after a kill; the message names each such step, with lost and duplicated elements. Or two runs without a kill
            have different output
        :raises InvalidError: there is no batch, so a crash matrix could not detect a lost record
        """
        if not batches:
            raise InvalidError(
                "a crash matrix requires at least one batch, because without records it cannot fail",
                accepted="crash_matrix([row, …])",
            )
        name = f"matrix-{next(self._matrices)}"
        arrivals = self._arrivals(name)
        for rows in batches:
            arrivals.add(rows)
        numbers = count()

        def trial() -> _Trial:
            prepare()
            return _Trial(self._bench_at(f"{name}/{next(numbers)}", arrivals), ignore, observe)

        return crash_matrix(trial)

    def _arrivals(self, name: str) -> Arrivals:
        return Arrivals(self._original.source, self._location / name / "in", self._spark)

    def _bench_at(self, name: str, arrivals: Arrivals) -> Bench:
        return bench(
            self._original,
            arrivals,
            location=self._location / name / "out",
            log=f"{self._logs}/{self._name}/{name}",
            spark=self._spark,
        )


class _Trial:
    """One run with a separate log and separate datasets."""

    def __init__(self, bench: Bench, ignore: Collection[str], observe: Callable[[], object]) -> None:
        self._bench, self._ignore, self._observe = bench, ignore, observe
        self._result: RunResult | None = None

    def run(self, steps: Steps) -> None:
        self._result = self._bench.run("run", steps)

    def output(self) -> Output:
        output = {**self._bench.output(self._ignore), "observed": self._observe()}
        again = self._bench.run("run", Steps())
        return {**output, "result of a repeated run": "unchanged" if again == self._result else again.to_json()}
