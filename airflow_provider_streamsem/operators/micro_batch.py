"""The operator that runs micro-batches of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import choice, flag, seconds, text
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connections import use_resolver
from airflow_provider_streamsem.errors import InvalidError, StageError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.failures import as_airflow_failures
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import interval_of_run, last_clear_id, run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, emit_outlet_events
from airflow_provider_streamsem.operators.submission import ConnectionRecorder, Submission, refuse_unnamed_transform
from airflow_provider_streamsem.pipeline.run.interval import run_interval
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.run.run import plan_run, run_batch
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.readers.conditions import DriverWait, to_text
from airflow_provider_streamsem.triggers.condition import ConditionTrigger, result_of_event


class MicroBatchOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Run one micro-batch of a pipeline. With ``drain``, run batches up to the end offsets that the source has when the run starts.

    A retry resumes the run. If a completed task is cleared, its next try returns the committed result and starts no Spark session. With ``interval``, or with
    ``rerun="reprocess"``, it reprocesses the rows instead. A run that found nothing new planned nothing, so the
    next try of that task may process records that arrived later.

    The pipeline's log records which offsets each version read. Airflow stores no offsets: XCom and asset events only report them.

    XCom ``return_value``: the run's result as small JSON, with ``status``, ``version``, ``ranges``, ``counts``, ``batches``, ``outcome`` (key under the log's
    root), ``versions``, ``completed``, ``run_key``, ``pipeline`` and ``log``. The ``extra`` of each outlet asset's event contains the same fields, plus
    ``rows`` (rows written, summed over all sinks) and ``manifest`` (equal to ``outcome``).

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Text fields of a ``Pipeline`` that contain ``{{ … }}`` are rendered too
    :param drain: run batches until the run reaches the end offsets that its first plan has recorded, instead of one batch
    :param interval: for a pipeline with ``intervals``: ``"data_interval"``, the data interval of the DAG run, or ``START/END`` as ISO 8601 times with a zone
        (templated). The task reads the records that arrived in it, and commits their rows as one version
    :param rerun: what the task does after it was cleared. ``"resume"`` (default) returns the committed result. ``"reprocess"`` reprocesses the versions of the
        run from the same ranges and atomically replaces the output of each version in turn. If the run is incomplete, the task completes it instead. A retry
        always resumes the run where it stopped. With ``interval``, the default is ``"reprocess"``, which also applies if another run has read the interval
    :param spark_master: Spark master URL (templated). Used only if the task's process has no active Spark session
    :param spark_conn_id: as an alternative to a master, a connection of type ``spark`` (local, standalone, YARN or Kubernetes, in client mode) or
        ``spark_connect`` (templated). Default: the ``[streamsem] spark_conn_id`` option, and ``local[*]`` if that is empty
    :param spark_conf: settings of a Spark session that the task starts, or of ``spark-submit`` (templated)
    :param spark_packages: ``"auto"``: the session or application loads the Spark packages that the pipeline needs, in the versions of the installed pyspark.
        It loads them from Maven Central or ``spark.jars.repositories``. Default: it loads no packages. They must then be on Spark's class path or in
        ``spark_conf``
    :param run_in: ``"task"``: the driver is the task's process. ``"submit"``: the task plans the batch, submits the application through the Spark provider's
        hook, and waits for the outcome in the log. ``"submit"`` requires a ``spark_conn_id`` of type ``spark`` and a transform that the driver can import by
        name. It cannot be combined with ``spark_master`` or ``rerun="reprocess"``. Two drivers of one run never commit a version twice
    :param deferrable: with ``run_in="submit"``: wait in the triggerer and release the worker slot. Default: Airflow's ``[operators] default_deferrable``
    :param patience: with ``run_in="submit"``: how long the log may show no progress before the task treats the driver as lost. The task then fails, and its
        next try submits a new driver. With ``interval``: how long the task waits for the open version of another interval, from the plan of that version. The
        task then completes that version itself. Integer seconds or a ``timedelta``, 1 second or more; must be longer than one batch takes
    :param alter_from: alter the pipeline's log before the run, if its immutable fields are those with this config. The error of a run whose immutable fields
        differ names the config. Once the log has the fields of ``pipeline``, the argument has no effect. An earlier version of the DAG, whose argument names
        another config, cannot change the fields back
    :param partition_key: template of the partition key of outlet events (Airflow 3.3 or newer), for example ``"{{ version }}"``. After the run, the operator
        renders it with the fields of the result: once for the run's own version, and once for each version in ``completed``. Airflow then starts one run
        per key of each partitioned DAG, and no run of a DAG with plain ``schedule=[asset]``. If nothing was committed, no key is added.
        ``"complete_partitions"``: the keys are the starts of the partitions of ``Pipeline(partitions=...)`` that became complete. ``"interval"``: the key is
        the start of the interval in UTC, such as ``2026-01-31T05:00:00``
    :param announce_empty: whether a run that announces no commit emits the outlet events, too, with the status ``empty``. Default: it emits none
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = ("pipeline_file", "interval", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#d7ecd9"
    _submission: Submission | None = None
    outlets: list[Any]

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        drain: bool = False,
        interval: str | None = None,
        rerun: str | None = None,
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        partition_key: str | None = None,
        announce_empty: bool = False,
        run_in: str = "task",
        deferrable: bool | None = None,
        patience: timedelta | float = timedelta(hours=1),
        alter_from: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.set_engine(spark_master, spark_conn_id, spark_conf, spark_packages)
        self.drain = flag("drain", drain)
        self.interval = None if interval is None else text("interval", interval)
        default = "resume" if interval is None else "reprocess"
        self.rerun = default if rerun is None else choice("rerun", rerun, ("resume", "reprocess"))
        self.partition_key = checked_partition_key(partition_key, self.outlets)
        self.announce_empty = flag("announce_empty", announce_empty)
        self.run_in = choice("run_in", run_in, ("task", "submit"))
        self.deferrable = settings.default_deferrable() if deferrable is None else flag("deferrable", deferrable)
        self.patience_s = seconds("patience", patience)
        self.alter_from = None if alter_from is None else text("alter_from", alter_from)
        if interval is not None and (self.drain or self.run_in == "submit"):
            raise InvalidError('interval cannot be combined with drain or run_in="submit"', task=self.task_id)
        if self.run_in == "submit":
            self._check_submission()

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Run the pipeline, emit the outlet events and return the result.

        :raises AirflowFailException: the run failed, and a retry cannot help
        :raises StreamsemError: the run failed, and a retry may succeed
        """
        if self.run_in == "submit":
            result = self._submit(context)
        else:
            with (
                self.resolved_pipeline(context) as pipeline,
                self.observed(context["ti"], pipeline) as account,
            ):
                account.result = result = self._run(pipeline, context)
        document: dict[str, Any] = result.to_json()
        if document["status"] == "empty" and not self.announce_empty:
            self.outlets: list[Any] = []  # Airflow emits an event for each outlet that the task has when it succeeds
        emit_outlet_events(self, context, document)
        return document

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """
        Resume the deferred task after the trigger fired: continue the run, or fail if its driver is lost.

        :raises StageError: the log showed no progress for ``patience``. Committed versions stay committed
        """
        with as_airflow_failures():
            observed = result_of_event(event)
            if observed["stalled"]:
                raise StageError(
                    "the log showed no progress for longer than `patience`, so the task treats the driver as lost. The run is not complete; committed versions "
                    "stay committed",
                    run_key=observed["run_key"],
                    version=observed["version"],
                    patience_s=self.patience_s,
                )
        return self.execute(context)

    def on_kill(self) -> None:
        """
        Cancel the Spark jobs. With ``run_in="submit"``, also terminate the ``spark-submit`` process for which the task waits.

        In client mode, the driver ends with ``spark-submit``. In cluster mode, the driver continues.
        """
        if self._submission is not None:
            self._submission.end()
        super().on_kill()

    def _check_submission(self) -> None:
        if self.rerun == "reprocess" or self.spark_master is not None or self.spark_conn_id is None:
            raise InvalidError(
                'run_in="submit" requires spark_conn_id, and cannot be combined with spark_master or rerun="reprocess"',
                task=self.task_id,
            )
        if self.pipeline is not None:
            refuse_unnamed_transform(self.pipeline, self.task_id)

    def _submit(self, context: Any) -> RunResult:
        """Plan the run. If a version must be closed or published, submit a driver and wait until the run is complete or its task must continue it."""
        key, connections = run_key(context["ti"]), ConnectionRecorder()
        with as_airflow_failures(), use_resolver(connections):
            poll_interval_s = settings.poll_interval_s()
            pipeline = self.rendered_pipeline(context)
            refuse_unnamed_transform(pipeline, self.task_id)
            connections.need(pipeline)
            with self.observed(context["ti"], pipeline) as account:
                account.result = plan_run(pipeline, run_key=key, drain=self.drain, alter_from=self.alter_from)
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
                condition = DriverWait(pipeline=pipeline, run_key=key, patience_s=self.patience_s, since_ms=since_ms)
                if not self.deferrable:
                    self._submission.wait(connections)
                    account.result = result = self._awaited(pipeline, condition, poll_interval_s)
                    return result
                self._submission.start(connections)
        trigger = ConditionTrigger(to_text(condition), poll_interval_s=poll_interval_s, is_patient=True)
        self.defer(trigger=trigger, method_name="execute_complete")
        raise AssertionError("defer does not return")

    def _awaited(self, pipeline: Pipeline, condition: DriverWait, poll_interval_s: float) -> RunResult:
        """Wait until the run is complete in the log, after ``spark-submit`` ended. In cluster mode the driver may still be running."""
        while True:
            driver = condition.check()
            if driver.met:
                break
            SYSTEM_CLOCK.sleep(poll_interval_s)
        result = plan_run(pipeline, run_key=condition.run_key, drain=self.drain)
        if result is None:
            summary = "spark-submit ended, but the run is not complete in the log; committed versions stay committed"
            raise StageError(summary, **driver.observed)
        return result

    def _run(self, pipeline: Pipeline, context: Any) -> RunResult:
        """
        Run a batch, or read an interval; after a clear, reprocess what the run has committed.

        The retries after one clear repeat one request, so they reprocess no version twice. Another clear is a new request.
        """
        key, cleared = run_key(context["ti"]), last_clear_id(context["ti"], self.retries)
        arguments: dict[str, Any] = {"engine": self.engine(), "alter_from": self.alter_from}
        request = f"clear-{cleared}"
        if self.interval is not None:
            request = f"{key}#{request}" if cleared else key
            interval = interval_of_run(self.interval, context)
            return run_interval(
                pipeline, interval, request=request, rerun=self.rerun, patience_s=self.patience_s, **arguments
            )
        if cleared and self.rerun == "reprocess":
            return reprocess_run(pipeline, run_key=key, request=request, drain=self.drain, **arguments)
        return run_batch(pipeline, run_key=key, drain=self.drain, **arguments)
