"""The operator that runs a pipeline's batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import choice, flag, seconds
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.redo import redo_run
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.batch.run import plan_run, run_batch
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connections import looked_up_by
from airflow_provider_streamsem.errors import InvalidError, StageError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.failures import mapped
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key, times_cleared
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, tell_outlets
from airflow_provider_streamsem.operators.submission import Recorded, Submission, refuse_unnamed_transform
from airflow_provider_streamsem.readers.conditions import RunNeedsItsTask, to_text
from airflow_provider_streamsem.triggers.condition import ConditionTrigger, answer_of


class MicroBatchOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Run one micro-batch of a pipeline, or with ``drain`` batches until the end that the source has when the run starts.

    A retry resumes the run; a clear returns the committed result and starts no Spark. A run that found nothing new wrote nothing, so clearing it later may
    process what came since. Which records were read stands in the pipeline's log, nowhere in Airflow: XCom and asset events only tell of it.

    The result (XCom ``return_value``) is small JSON: ``status``, ``version``, ``ranges``, ``counts``, ``batches``, ``outcome`` (key under the log),
    ``run_key``. The ``extra`` of each outlet asset's event holds the same, and ``rows`` (written, over all sinks) and ``manifest`` (which is ``outcome``).

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Text inside a ``Pipeline`` that holds ``{{ … }}`` is rendered too
    :param drain: several batches towards a frozen target, instead of one batch
    :param rerun: what a task does that was cleared: ``"resume"`` returns what is committed; ``"redo"`` makes the rows of its versions anew from the same
        ranges, and readers switch to them version by version. A retry always goes on where the run stopped
    :param spark_master: Spark master where no session is active in the task's process (templated)
    :param spark_conn_id: instead of a master: a connection of type ``spark`` (local, standalone, YARN or Kubernetes, in client mode) or ``spark_connect``
        (templated). Default: ``[streamsem] spark_conn_id`` of Airflow's configuration; where that is empty, too, ``local[*]``
    :param spark_conf: settings of a session that is started for the task, or of ``spark-submit`` (templated)
    :param spark_packages: ``"auto"``: that session, or the application, loads the Spark packages that the pipeline needs, in the versions of the installed
        pyspark, from Maven Central or ``spark.jars.repositories``. Default: they are there, or ``spark_conf`` names them
    :param run_in: ``"task"``: the driver is the task's process. ``"submit"``: the task plans, submits the application through the Spark provider's hook, and
        waits for the outcome in the log; needs ``spark_conn_id`` of type ``spark``, and a transform that the driver can import by name. A driver that is
        submitted twice does nothing twice
    :param deferrable: with ``run_in="submit"``: wait in the triggerer, which holds no worker's slot; default: Airflow's ``[operators] default_deferrable``
    :param patience: with ``run_in="submit"``: after so long without a step in the log the driver is taken for lost, and the task's next try submits another;
        whole seconds or a ``timedelta``. More than one batch takes
    :param partition_key: Airflow 3.3: partition key of the outlets' events, a template that is rendered after the run with the names of its result, such as
        ``"{{ version }}"``. Then partitioned DAGs get one run for each, and plain ``schedule=[asset]`` none; a run that committed nothing gives no key
    """

    template_fields: Sequence[str] = ("pipeline_file", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#d7ecd9"
    _submission: Submission | None = None

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        drain: bool = False,
        rerun: str = "resume",
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        partition_key: str | None = None,
        run_in: str = "task",
        deferrable: bool | None = None,
        patience: timedelta | float = timedelta(hours=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)
        self.take_engine(spark_master, spark_conn_id, spark_conf, spark_packages)
        self.drain = flag("drain", drain)
        self.rerun = choice("rerun", rerun, ("resume", "redo"))
        self.partition_key = checked_partition_key(partition_key, self.outlets)
        self.run_in = choice("run_in", run_in, ("task", "submit"))
        self.deferrable = settings.default_deferrable() if deferrable is None else flag("deferrable", deferrable)
        self.patience_s = seconds("patience", patience)
        if self.run_in == "submit":
            self._check_submission()

    def execute(self, context: Any) -> dict[str, Any]:
        """Run, tell the outlet assets, answer."""
        if self.run_in == "submit":
            result = self._submit(context)
        else:
            with (
                self.pipeline_on_its_log(context) as pipeline,
                self.observed(context["ti"], pipeline) as account,
            ):
                run = self._run(context)
                result = run(pipeline, run_key=run_key(context["ti"]), drain=self.drain, engine=self.engine())
                account.result = result
        answer: dict[str, Any] = result.to_json()
        tell_outlets(self, context, answer)
        return answer

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Go on when the triggerer saw that the run is done, or needs its task."""
        with mapped():
            seen = answer_of(event)
            if seen["stalled"]:
                raise StageError(
                    "the driver made no step for too long and is taken for lost; the version stays open",
                    run_key=seen["run_key"],
                    version=seen["version"],
                    patience_s=self.patience_s,
                )
        return self.execute(context)

    def on_kill(self) -> None:
        """Also end ``spark-submit`` where the task waits for it, and with it a driver in client mode."""
        if self._submission is not None:
            self._submission.end()
        super().on_kill()

    def _check_submission(self) -> None:
        if self.rerun == "redo" or self.spark_master is not None or self.spark_conn_id is None:
            raise InvalidError(
                'run_in="submit" needs spark_conn_id, and neither spark_master nor rerun="redo"', task=self.task_id
            )
        if self.pipeline is not None:
            refuse_unnamed_transform(self.pipeline, self.task_id)

    def _submit(self, context: Any) -> RunResult:
        """Plan; where a driver is needed, submit one, and wait until the run is done or needs its task again."""
        key, connections = run_key(context["ti"]), Recorded()
        with mapped(), looked_up_by(connections):
            pipeline = self.rendered_pipeline(context)
            refuse_unnamed_transform(pipeline, self.task_id)
            connections.need(pipeline)
            with self.observed(context["ti"], pipeline) as account:
                account.result = plan_run(pipeline, run_key=key, drain=self.drain)
                if account.result is not None:
                    return account.result
                self._submission = Submission(
                    pipeline,
                    run_key=key,
                    drain=self.drain,
                    conn_id=self.spark_conn_id or "",
                    conf=self.conf_for(pipeline),
                )
                since_ms = SYSTEM_CLOCK.now_ms()
                condition = RunNeedsItsTask(
                    pipeline=pipeline, run_key=key, patience_s=self.patience_s, since_ms=since_ms
                )
                if not self.deferrable:
                    self._submission.wait(connections)
                    account.result = result = self._awaited(pipeline, condition)
                    return result
                self._submission.start(connections)
        trigger = ConditionTrigger(to_text(condition), poll_interval_s=settings.poll_interval_s(), is_patient=True)
        self.defer(trigger=trigger, method_name="execute_complete")
        raise AssertionError  # defer does not return

    def _awaited(self, pipeline: Pipeline, condition: RunNeedsItsTask) -> RunResult:
        """What ``spark-submit`` left; in cluster mode the driver may still be at work."""
        while True:
            finding = condition.check()
            if finding.met:
                break
            SYSTEM_CLOCK.sleep(settings.poll_interval_s())
        answer = plan_run(pipeline, run_key=condition.run_key, drain=self.drain)
        if answer is None or finding.seen["stalled"]:
            raise StageError("the driver ended without an outcome; the version stays open", **finding.seen)
        return answer

    def _run(self, context: Any) -> Callable[..., RunResult]:
        """A run, or where the task was cleared and asks for it a redo of the run; retries after one clear are one redo."""
        cleared = times_cleared(context["ti"], self.retries) if self.rerun == "redo" else 0
        return partial(redo_run, request=f"clear-{cleared}") if cleared else run_batch
