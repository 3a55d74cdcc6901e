"""The operator that runs a pipeline's batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import choice, flag, text
from airflow_provider_streamsem.batch.pipeline import Pipeline, from_json, load_pipeline
from airflow_provider_streamsem.batch.redo import redo_run
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.batch.run import run_batch
from airflow_provider_streamsem.connections import looked_up_by
from airflow_provider_streamsem.engines.contract import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.operators.failures import mapped
from airflow_provider_streamsem.operators.lookup import airflow_connection


class MicroBatchOperator(BaseOperator):  # type: ignore[misc]
    """
    Run one micro-batch of a pipeline, or with ``drain`` batches until the end that the source has when the run starts.

    A retry resumes the run; a clear returns the committed result and starts no Spark. A run that found nothing new wrote nothing, so clearing it later may
    process what came since. Which records were read stands in the pipeline's log, nowhere in Airflow: XCom and asset events only tell of it.

    The result (XCom ``return_value``, and ``extra`` of each outlet asset's event) is small JSON: ``status``, ``version``, ``ranges``, ``counts``,
    ``batches``, ``outcome`` (key under the log), ``run_key``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Text inside a ``Pipeline`` that holds ``{{ … }}`` is rendered too
    :param drain: several batches towards a frozen target, instead of one batch
    :param rerun: what a task does that was cleared: ``"resume"`` returns what is committed; ``"redo"`` makes the rows of its versions anew from the same
        ranges, and readers switch to them version by version. A retry always goes on where the run stopped
    :param spark_master: Spark master where no session is active in the task's process (templated)
    :param spark_conn_id: instead of a master: a connection of type ``spark`` (local, standalone, YARN or Kubernetes, in client mode) or ``spark_connect``
        (templated)
    :param spark_conf: settings of a session that is started for the task (templated)
    """

    template_fields: Sequence[str] = ("pipeline_file", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#d7ecd9"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        drain: bool = False,
        rerun: str = "resume",
        spark_master: str = "local[*]",
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(pipeline, (Pipeline, str)):
            raise InvalidError(
                "pipeline must be a Pipeline or the path of a TOML file",
                task=self.task_id,
                given=type(pipeline).__name__,
            )
        self.pipeline = pipeline if isinstance(pipeline, Pipeline) else None
        self.pipeline_file = text("pipeline", pipeline) if isinstance(pipeline, str) else None
        self.drain = flag("drain", drain)
        self.rerun = choice("rerun", rerun, ("resume", "redo"))
        if spark_conn_id is not None and spark_master != "local[*]":
            raise InvalidError("spark_conn_id and spark_master exclude each other", task=self.task_id)
        self.spark_master = spark_master
        self.spark_conn_id = None if spark_conn_id is None else text("spark_conn_id", spark_conn_id)
        self.spark_conf = spark_conf

    def execute(self, context: Any) -> dict[str, Any]:
        """Run, tell the outlet assets, answer."""
        with mapped(), looked_up_by(airflow_connection):
            result = self._run(context)(
                self._pipeline(context), run_key=run_key(context["ti"]), drain=self.drain, engine=self._engine()
            )
        answer: dict[str, Any] = result.to_json()
        for asset in self.outlets:
            context["outlet_events"][asset].extra = answer
        return answer

    def _engine(self) -> Engine:
        from airflow_provider_streamsem.engines import spark

        if self.spark_conn_id is not None:
            return spark.engine_of(airflow_connection(self.spark_conn_id), self.spark_conf)
        return spark.SparkEngine(master=self.spark_master, conf=self.spark_conf)

    def _run(self, context: Any) -> Callable[..., RunResult]:
        """A run, or where the task was cleared and asks for it a redo of the run; retries after one clear are one redo."""
        cleared = times_cleared(context["ti"], self.retries) if self.rerun == "redo" else 0
        return partial(redo_run, request=f"clear-{cleared}") if cleared else run_batch

    def _pipeline(self, context: Any) -> Pipeline:
        """The pipeline with its templates rendered. One object serves every run of the DAG's process, so it is replaced, never changed."""
        pipeline = load_pipeline(self.pipeline_file) if self.pipeline_file else self.pipeline
        assert pipeline is not None
        spec = pipeline.to_json()
        if "{{" not in json.dumps(spec) and "{%" not in json.dumps(spec):
            return pipeline
        environment = self.get_template_env()
        rendered = _rendered(
            {k: v for k, v in spec.items() if k not in ("guarded", "transform")},
            lambda value: str(environment.from_string(value).render(context)),
        )
        return from_json(rendered, where=f"the pipeline of task {self.task_id}").replace(transform=pipeline.transform)


def _rendered(value: Any, render: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return render(value) if "{{" in value or "{%" in value else value
    if isinstance(value, dict):
        return {key: _rendered(item, render) for key, item in value.items()}
    return [_rendered(item, render) for item in value] if isinstance(value, list) else value


def times_cleared(ti: Any, retries: int) -> int:
    """
    0 for a task instance that was never cleared; else a number that every clear raises and every retry leaves.

    Airflow allows an instance ``retries`` tries beyond those it had when it was last cleared, and keeps the sum as ``max_tries``.
    """
    return max(0, int(ti.max_tries) - retries)


def run_key(ti: Any) -> str:
    """The run key of a task instance: the same for its retries and clears, another for each mapped index."""
    return "airflow:" + json.dumps([ti.dag_id, ti.task_id, ti.run_id, ti.map_index], separators=(",", ":"))
