"""The operator that runs a pipeline's batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import choice, flag
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.redo import redo_run
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.batch.run import run_batch
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key, times_cleared
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, tell_outlets


class MicroBatchOperator(HasPipeline, HasEngine, BaseOperator):  # type: ignore[misc]
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
    :param spark_conf: settings of a session that is started for the task (templated)
    :param partition_key: Airflow 3.3: partition key of the outlets' events, a template that is rendered after the run with the names of its result, such as
        ``"{{ version }}"``. Then partitioned DAGs get one run for each, and plain ``schedule=[asset]`` none; a run that committed nothing gives no key
    """

    template_fields: Sequence[str] = ("pipeline_file", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#d7ecd9"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        drain: bool = False,
        rerun: str = "resume",
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        partition_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)
        self.take_engine(spark_master, spark_conn_id, spark_conf)
        self.drain = flag("drain", drain)
        self.rerun = choice("rerun", rerun, ("resume", "redo"))
        self.partition_key = checked_partition_key(partition_key)

    def execute(self, context: Any) -> dict[str, Any]:
        """Run, tell the outlet assets, answer."""
        with self.pipeline_on_its_log(context) as pipeline:
            result = self._run(context)(
                pipeline, run_key=run_key(context["ti"]), drain=self.drain, engine=self.engine()
            )
        answer: dict[str, Any] = result.to_json()
        tell_outlets(self, context, answer)
        return answer

    def _run(self, context: Any) -> Callable[..., RunResult]:
        """A run, or where the task was cleared and asks for it a redo of the run; retries after one clear are one redo."""
        cleared = times_cleared(context["ti"], self.retries) if self.rerun == "redo" else 0
        return partial(redo_run, request=f"clear-{cleared}") if cleared else run_batch
