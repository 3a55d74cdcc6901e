"""One's own DAG over rows that a test gives, run and killed in this process: its tasks as they are, its pipelines at places of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from airflow_provider_streamsem.batch.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog import log as commit_log
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engines.contract import Job, Produced
from airflow_provider_streamsem.engines.spark import SparkEngine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.testing.arrivals import Arrivals, Rows
from airflow_provider_streamsem.testing.bench import Bench, Committed, bench
from airflow_provider_streamsem.testing.crash_matrix import Output, crash_matrix
from airflow_provider_streamsem.testing.dag_runs import returned, run_dag, stepped_messages
from airflow_provider_streamsem.testing.steps import SteppedStore, Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DagHarness:
    """
    Runs a DAG as ``dag.test()`` does, in this process, its pipelines over rows that a test gives.

    Each task that runs a pipeline gets a copy of it with its places replaced, as :class:`PipelineHarness` does it, and the test's Spark, whatever connection it
    names. All other tasks run as they are, with whatever they write elsewhere. A log that is none of these pipelines' cannot be opened meanwhile.

    :param dag: a DAG that lies in the dags folder, as Airflow needs it
    :param place: a directory of the test's own
    :param spark: the session to run in; ``None``: without Spark, by :class:`RowsEngine`
    :raises InvalidError: no task runs a pipeline; two pipelines of one name differ; a mapped task, whose pipelines are known only when it runs
    """

    def __init__(self, dag: Any, place: Path, *, spark: SparkSession | None = None) -> None:
        self._dag = dag
        self._spark = spark
        self._name = f"{dag.dag_id}-{SYSTEM_CLOCK.new_id()[:12]}"
        self._place = place / self._name
        self._tasks = {task: _pipeline(task) for task in dag.tasks if _runs_a_pipeline(task)}
        self._originals = {pipeline.name: pipeline for pipeline in self._tasks.values()}
        if not self._tasks:
            raise InvalidError("no task of the DAG runs a pipeline", dag=dag.dag_id)
        for pipeline in self._tasks.values():
            if pipeline != self._originals[pipeline.name]:
                raise InvalidError("two tasks run different pipelines of one name", dag=dag.dag_id, name=pipeline.name)
        self._places = count()

    def run(self, batches: Mapping[str, Sequence[Rows]]) -> dict[str, Committed]:
        """
        Run the DAG once, on new logs.

        :param batches: pipeline name → its batches, each a list of rows or a DataFrame
        :returns: pipeline name → what was committed
        :raises AssertionError: the DAG run did not succeed
        """
        trial = self._trial(self._given(batches), (), lambda: None)
        trial.run(Steps())
        return {name: laid.committed() for name, laid in trial.benches.items()}

    def crash_matrix(
        self,
        batches: Mapping[str, Sequence[Rows]],
        *,
        ignore: Collection[str] = (),
        prepare: Callable[[], object] = lambda: None,
        observe: Callable[[], object] = lambda: None,
    ) -> list[str]:
        """
        Run the DAG on new logs with a kill at every step, then the same DAG run again, as the scheduler continues it: the output must be that of the run that
        was left alone.

        The steps are each request to a log and each message of a task to Airflow, before and after it is applied, and each step of the engine. A task that was
        killed gets another try, whatever its ``retries``. The output is that of :meth:`PipelineHarness.crash_matrix` for each pipeline, and what the tasks that
        run one returned.

        :param batches: pipeline name → its batches
        :param ignore: columns whose values differ from run to run
        :param prepare: called before each DAG run that starts anew, to empty what is observed
        :param observe: returns what else must be equal, such as what the other tasks wrote
        :returns: the names of the steps, in order
        :raises AssertionError: see :meth:`PipelineHarness.crash_matrix`
        :raises InvalidError: no batch for any pipeline, so that nothing could be lost
        """
        if not any(batches.values()):
            raise InvalidError("a crash matrix needs a batch, or it could not fail", accepted="{name: [[row, …]]}")
        arrivals = self._given(batches)

        def trial() -> _Trial:
            prepare()
            return self._trial(arrivals, ignore, observe)

        return crash_matrix(trial)

    def _given(self, batches: Mapping[str, Sequence[Rows]]) -> dict[str, Arrivals]:
        if set(batches) != set(self._originals):
            raise InvalidError(
                "batches must be given for each pipeline of the DAG",
                given=sorted(batches),
                accepted=sorted(self._originals),
            )
        place = self._place / f"in-{next(self._places)}"
        arrivals = {
            name: Arrivals(pipeline.source, place / name, self._spark) for name, pipeline in self._originals.items()
        }
        for name, given in batches.items():
            for rows in given:
                arrivals[name].add(rows)
        return arrivals

    def _trial(
        self, arrivals: Mapping[str, Arrivals], ignore: Collection[str], observe: Callable[[], object]
    ) -> _Trial:
        name = f"run-{next(self._places)}"
        benches = {
            pipeline: bench(
                original,
                arrivals[pipeline],
                place=self._place / name / pipeline,
                log=f"memory://harness/{self._name}/{name}/{pipeline}",
                spark=self._spark,
            )
            for pipeline, original in self._originals.items()
        }
        return _Trial(self._dag, f"{self._name}-{name}", self._tasks, benches, ignore, observe)


class _Trial:
    """One DAG run on benches of its own."""

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
        with self._laid(steps), stepped_messages(steps):
            dag_run = run_dag(self._dag, self._run_id)
        if dag_run.state != "success":
            raise AssertionError(f"the DAG run {self._run_id} ended as {dag_run.state}: the log of its tasks says why")
        self._returned = returned(dag_run, {task.task_id for task in self._tasks})

    def output(self) -> Output:
        parts = {
            f"{name}: {what}": value
            for name, laid in self.benches.items()
            for what, value in laid.output(self._ignore).items()
        }
        answers = {f"returned by {task}": _of_any_place(answer) for task, answer in self._returned.items()}
        return {**parts, **answers, "observed": self._observe()}

    @contextmanager
    def _laid(self, steps: Steps) -> Iterator[None]:
        """While the block runs, tasks run the pipelines of the benches, and whatever engine they make stages as the bench's."""
        by_place = {laid.arrivals.source.path: laid for laid in self.benches.values()}
        by_spark = SparkEngine.stage

        def stage(engine: SparkEngine, job: Job, log: CommitLog) -> Produced:
            source: Any = job.source
            unpatched: Any = SimpleNamespace(stage=partial(by_spark, engine))
            return by_place[source.path].engine(steps, unpatched).stage(job, log)

        with ExitStack() as stack:
            stack.enter_context(patch.object(commit_log, "open_store", self._opener(steps)))
            stack.enter_context(patch.object(SparkEngine, "stage", stage))
            for task, pipeline in self._tasks.items():
                given = {
                    "pipeline": self.benches[pipeline.name].pipeline,
                    "pipeline_file": None,
                    "spark_conn_id": None,
                    "run_in": "task",
                }
                for name, value in given.items():
                    if hasattr(task, name):
                        stack.enter_context(patch.object(task, name, value))
            yield

    def _opener(self, steps: Steps) -> Callable[[str], Store]:
        """Opens the logs of the benches, by the places that the pipelines name in production, too."""
        known = {laid.pipeline.log: laid.pipeline.log for laid in self.benches.values()}
        known |= {pipeline.log: self.benches[pipeline.name].pipeline.log for pipeline in self._tasks.values()}

        def opened(url: str) -> Store:
            if url not in known:
                raise InvalidError(
                    "a test of a DAG opens the logs of its own pipelines only", given=url, accepted=sorted(known)
                )
            return SteppedStore(open_store(known[url]), steps)

        return opened


def _of_any_place(answer: Any) -> Any:
    """What a task returned, without what says where and by whom it was run."""
    if not isinstance(answer, Mapping):
        return answer
    return {name: part for name, part in answer.items() if name not in ("log", "run_key")}


def _runs_a_pipeline(task: Any) -> bool:
    if not getattr(task, "is_mapped", False):
        return hasattr(task, "pipeline") and hasattr(task, "pipeline_file")
    named = {*getattr(task, "partial_kwargs", {}), *(getattr(getattr(task, "expand_input", None), "value", None) or {})}
    if "pipeline" in named:
        raise InvalidError("pipelines of a mapped task are known only when it runs", task=task.task_id)
    return False


def _pipeline(task: Any) -> Pipeline:
    if task.pipeline is not None:
        found: Pipeline = task.pipeline
        return found
    if "{{" in task.pipeline_file or "{%" in task.pipeline_file:
        raise InvalidError(
            "the path of a pipeline's file is known only when the task runs",
            task=task.task_id,
            given=task.pipeline_file,
            accepted="a path without templates",
        )
    return load_pipeline(task.pipeline_file)
