"""Runs and kills a user's DAG in this process. The tasks run unchanged, but their pipelines read rows of the test and write to its locations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog import log as commit_log
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Job, Produced
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.testing.arrivals import Arrivals, Rows
from airflow_provider_streamsem.testing.bench import Bench, Committed, bench
from airflow_provider_streamsem.testing.crash_matrix import Output, crash_matrix
from airflow_provider_streamsem.testing.dag_runs import report_message_steps, returned, run_dag
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DagHarness:
    """
    Runs a DAG in this process, as ``dag.test()`` does, with pipelines that read rows of a test.

    Each task that runs a pipeline gets a copy of the pipeline with replaced locations, as in :class:`PipelineHarness`. It uses the test's Spark session instead
    of its connection. All other tasks run unchanged, with their real side effects. During the run, tasks can open only the logs of these pipelines.

    :param dag: a DAG whose file is in the DAGs folder, because Airflow reads it from there
    :param location: a directory for the test
    :param spark: the session in which the pipelines run; ``None``: :class:`RowsEngine` runs them without Spark
    :raises InvalidError: no task runs a pipeline, two pipelines with the same name differ, or the pipeline of a task is known only when the task runs, as in a
        mapped task
    """

    def __init__(self, dag: Any, location: Path, *, spark: SparkSession | None = None) -> None:
        self._dag = dag
        self._spark = spark
        self._name = f"{dag.dag_id}-{SYSTEM_CLOCK.new_id()[:12]}"
        self._location = location / self._name
        self._tasks = {task: _pipeline(task) for task in dag.tasks if _runs_a_pipeline(task)}
        self._originals = {pipeline.name: pipeline for pipeline in self._tasks.values()}
        if not self._tasks:
            raise InvalidError("no task of the DAG runs a pipeline", dag=dag.dag_id)
        for pipeline in self._tasks.values():
            if pipeline != self._originals[pipeline.name]:
                raise InvalidError(
                    "two tasks run different pipelines with the same name", dag=dag.dag_id, name=pipeline.name
                )
        self._numbers = count()

    def run(self, batches: Mapping[str, Sequence[Rows]]) -> dict[str, Committed]:
        """
        Run the DAG once, with new logs.

        :param batches: pipeline name → its batches, each an iterable of rows or a DataFrame
        :returns: pipeline name → reader of the rows that the run committed
        :raises AssertionError: the DAG run did not succeed
        :raises InvalidError: ``batches`` does not name exactly the pipelines of the DAG, or a row is not valid
        """
        trial = self._trial(self._arrivals(batches), (), lambda: None)
        trial.run(Steps())
        return {name: each_bench.committed() for name, each_bench in trial.benches.items()}

    def crash_matrix(
        self,
        batches: Mapping[str, Sequence[Rows]],
        *,
        ignore: Collection[str] = (),
        prepare: Callable[[], object] = lambda: None,
        observe: Callable[[], object] = lambda: None,
    ) -> list[str]:
        """
        Kill a DAG run at every step and continue it, each time with new logs. The output must equal that of a DAG run without a kill.

        A killed DAG run continues as the scheduler would continue it. A killed task gets another try, even if it has no ``retries`` left.

        There is a step before and after each request to a log, and before and after each message of a task to Airflow. Each step of the engine is a step too.

        The output is that of :meth:`PipelineHarness.crash_matrix` for each pipeline, and the return values of the tasks that run a pipeline.

        :param batches: pipeline name → its batches
        :param ignore: names of columns whose values may differ between runs
        :param prepare: called before each new DAG run, to reset the data that ``observe`` reads
        :param observe: returns additional output to compare, such as the data that the other tasks wrote
        :returns: the names of the steps, in order
        :raises AssertionError: see :meth:`PipelineHarness.crash_matrix`
        :raises InvalidError: no pipeline has a batch, so a crash matrix could not detect a lost record
        """
        if not any(batches.values()):
            raise InvalidError(
                "a crash matrix requires at least one batch, because without records it cannot fail",
                accepted="{name: [[row, …]]}",
            )
        arrivals = self._arrivals(batches)

        def trial() -> _Trial:
            prepare()
            return self._trial(arrivals, ignore, observe)

        return crash_matrix(trial)

    def _arrivals(self, batches: Mapping[str, Sequence[Rows]]) -> dict[str, Arrivals]:
        if set(batches) != set(self._originals):
            raise InvalidError(
                "the batches must name exactly the pipelines of the DAG",
                given=sorted(batches),
                accepted=sorted(self._originals),
            )
        location = self._location / f"in-{next(self._numbers)}"
        arrivals = {
            name: Arrivals(pipeline.source, location / name, self._spark) for name, pipeline in self._originals.items()
        }
        for name, batches_of_pipeline in batches.items():
            for rows in batches_of_pipeline:
                arrivals[name].add(rows)
        return arrivals

    def _trial(
        self, arrivals: Mapping[str, Arrivals], ignore: Collection[str], observe: Callable[[], object]
    ) -> _Trial:
        name = f"run-{next(self._numbers)}"
        benches = {
            pipeline: bench(
                original,
                arrivals[pipeline],
                location=self._location / name / pipeline,
                log=f"memory://harness/{self._name}/{name}/{pipeline}",
                spark=self._spark,
            )
            for pipeline, original in self._originals.items()
        }
        return _Trial(self._dag, f"{self._name}-{name}", self._tasks, benches, ignore, observe)


class _Trial:
    """One DAG run with separate logs and datasets."""

    def __init__(
        self,
        dag: Any,
        run_id: str,
        tasks: Mapping[Any, Pipeline],
        benches: Mapping[str, Bench],
        ignore: Collection[str],
        observe: Callable[[], object],
    ) -> None:
        self.benches = benches
        self._dag, self._run_id, self._tasks = dag, run_id, tasks
        self._ignore, self._observe = ignore, observe
        self._returned: dict[str, Any] = {}

    def run(self, steps: Steps) -> None:
        with self._bench_at(steps), report_message_steps(steps):
            dag_run = run_dag(self._dag, self._run_id)
        if dag_run.state != "success":
            raise AssertionError(
                f"the DAG run {self._run_id} ended in state {dag_run.state}: the logs of its tasks show the cause"
            )
        self._returned = returned(dag_run, {task.task_id for task in self._tasks})

    def output(self) -> Output:
        parts = {
            f"{name}: {part}": value
            for name, each_bench in self.benches.items()
            for part, value in each_bench.output(self._ignore).items()
        }
        return_values = {
            f"returned by {task}": _without_location(value_of_task) for task, value_of_task in self._returned.items()
        }
        return {**parts, **return_values, "observed": self._observe()}

    @contextmanager
    def _bench_at(self, steps: Steps) -> Iterator[None]:
        """Within the block, the tasks run the pipelines of the benches, and the Spark engines that they create stage through the engines of the benches."""
        by_location = {each_bench.arrivals.source.path: each_bench for each_bench in self.benches.values()}
        original_stage = SparkEngine.stage

        def stage(engine: SparkEngine, job: Job, log: CommitLog) -> Produced:
            source: Any = job.source
            spark_engine: Any = SimpleNamespace(stage=partial(original_stage, engine))
            return by_location[source.path].engine(steps, spark_engine).stage(job, log)

        with ExitStack() as stack:
            stack.enter_context(patch.object(commit_log, "open_store", self._opener(steps)))
            stack.enter_context(patch.object(SparkEngine, "stage", stage))
            for task, pipeline in self._tasks.items():
                replacements = {
                    "pipeline": self.benches[pipeline.name].pipeline,
                    "pipeline_file": None,
                    "spark_conn_id": None,
                    "run_in": "task",
                }
                for name, value in replacements.items():
                    if hasattr(task, name):
                        stack.enter_context(patch.object(task, name, value))
            yield

    def _opener(self, steps: Steps) -> Callable[[str], Store]:
        """Return a function that opens the log of a bench by its URL, or by the production URL of the pipeline."""
        test_logs = {each_bench.pipeline.log: each_bench.pipeline.log for each_bench in self.benches.values()}
        test_logs |= {pipeline.log: self.benches[pipeline.name].pipeline.log for pipeline in self._tasks.values()}

        def opened(url: str) -> Store:
            if url not in test_logs:
                raise InvalidError(
                    "a test of a DAG can open only the logs of the DAG's pipelines",
                    given=url,
                    accepted=sorted(test_logs),
                )
            return StepReportingStore(open_store(test_logs[url]), steps)

        return opened


def _without_location(value: Any) -> Any:
    """Return a task's return value without the log and the run key, which differ between trials."""
    if not isinstance(value, Mapping):
        return value
    return {name: item for name, item in value.items() if name not in ("log", "run_key")}


def _runs_a_pipeline(task: Any) -> bool:
    if not getattr(task, "is_mapped", False):
        return hasattr(task, "pipeline") and hasattr(task, "pipeline_file")
    argument_names = {
        *getattr(task, "partial_kwargs", {}),
        *(getattr(getattr(task, "expand_input", None), "value", None) or {}),
    }
    if "pipeline" in argument_names:
        raise InvalidError(
            "a harness cannot run a mapped task with pipelines, because they are known only when the task runs",
            task=task.task_id,
        )
    return False


def _pipeline(task: Any) -> Pipeline:
    if task.pipeline is not None:
        pipeline: Pipeline = task.pipeline
        return pipeline
    if "{{" in task.pipeline_file or "{%" in task.pipeline_file:
        raise InvalidError(
            "the path of the pipeline file is a template, so it is known only when the task runs",
            task=task.task_id,
            given=task.pipeline_file,
            accepted="a path without templates",
        )
    return load_pipeline(task.pipeline_file)
