"""One's own pipeline over rows that a test gives: its transform, predicate and sinks as they are, at places of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.arrivals import Arrivals, Rows
from airflow_provider_streamsem.testing.bench import Bench, Committed, bench
from airflow_provider_streamsem.testing.crash_matrix import Output, crash_matrix
from airflow_provider_streamsem.testing.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineHarness:
    """
    Runs a pipeline as it is in production, over rows that a test gives.

    Transform, predicate, declared ``rows``, the bound on bad records and the sinks' formats and partitions are the pipeline's own. Source, log and datasets
    lie at other places: :class:`Arrivals` stands in for the source, the log is in memory, each sink below ``place``. Each batch that a test gives is one
    batch of the run; limits of its size do not count.

    :param pipeline: as it is in production
    :param place: a directory of the test's own
    :param spark: the session to run in; ``None``: without Spark, by :class:`RowsEngine` (JSON lines in and out, a transform of lists of dicts)
    :param log: a URL below which logs lie instead of in memory, such as ``s3://bucket/prefix``
    :raises InvalidError: a source or a sink of a kind that nothing can stand in for
    """

    def __init__(
        self, pipeline: Pipeline, place: Path, *, spark: SparkSession | None = None, log: str | None = None
    ) -> None:
        self._original = pipeline
        self._spark = spark
        self._name = f"{pipeline.name}-{SYSTEM_CLOCK.new_id()[:12]}"
        self._place = place / self._name
        self._logs = (log or "memory://harness").rstrip("/")
        self._matrices, self._runs = count(), count()
        self._bench = self._laid("main", self._arrivals("main"))

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as it runs here, its places replaced."""
        return self._bench.pipeline

    def run(self, *batches: Rows) -> Committed:
        """
        Run on these batches, one after the other, as one run that drains its source.

        :param batches: each a list of rows or a DataFrame: see :data:`airflow_provider_streamsem.testing.arrivals.Rows`
        :returns: what this run committed
        :raises StreamsemError: what a run of the pipeline raises
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
        Run these batches on a new log with a kill at every step, then the retry: the output must be that of the run that was left alone.

        The steps are each request to the log, before and after it is applied, and each step of the engine: all of them, one run each. The output is the rows
        of every sink and the quarantined records, as multisets, the counts, the next offsets, what ``verify`` finds, whether the same run answers the same
        when it is asked again, and what ``observe`` returns.

        :param ignore: columns whose values differ from run to run, such as the time of loading
        :param prepare: called before each run that starts anew, to empty what is observed
        :param observe: returns what else must be equal, such as what the transform wrote elsewhere
        :returns: the names of the steps, in order
        :raises AssertionError: names each step after which the output differs, what was lost and what was doubled; or two runs differ that nobody disturbed
        :raises InvalidError: no batch, so that nothing could be lost
        """
        if not batches:
            raise InvalidError("a crash matrix needs a batch, or it could not fail", accepted="crash_matrix([row, …])")
        name = f"matrix-{next(self._matrices)}"
        arrivals = self._arrivals(name)
        for rows in batches:
            arrivals.add(rows)
        numbers = count()

        def trial() -> _Trial:
            prepare()
            return _Trial(self._laid(f"{name}/{next(numbers)}", arrivals), ignore, observe)

        return crash_matrix(trial)

    def _arrivals(self, name: str) -> Arrivals:
        return Arrivals(self._original.source, self._place / name / "in", self._spark)

    def _laid(self, name: str, arrivals: Arrivals) -> Bench:
        return bench(
            self._original,
            arrivals,
            place=self._place / name / "out",
            log=f"{self._logs}/{self._name}/{name}",
            spark=self._spark,
        )


class _Trial:
    """One run key on a bench of its own."""

    def __init__(self, bench: Bench, ignore: Collection[str], observe: Callable[[], object]) -> None:
        self._bench, self._ignore, self._observe = bench, ignore, observe
        self._result: RunResult | None = None

    def run(self, steps: Steps) -> None:
        self._result = self._bench.run("run", steps)

    def output(self) -> Output:
        output = {**self._bench.output(self._ignore), "observed": self._observe()}
        again = self._bench.run("run", Steps())
        return {**output, "the same run, asked again": "answers the same" if again == self._result else again.to_json()}
