"""
The ``pipeline`` argument of operators and sensors.

It is validated while Airflow parses the DAG. When the task runs, its templates are rendered and the location of its log is resolved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.connections import use_resolver
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.hooks.failures import as_airflow_failures
from airflow_provider_streamsem.pipeline.spec.location import located
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.pipeline.spec.templates import refuse_secrets, rendered


def text_templates(task: Any) -> Any:
    """Return a task's Jinja environment that renders every template to a string. Native rendering would convert text such as "0x10" to a number."""
    dag = task.get_dag()
    return task.get_template_env() if dag is None else dag.get_template_env(force_sandboxed=True)


class HasPipeline:
    """
    Mixin for operators and sensors with an argument ``pipeline``.

    :ivar pipeline: the Pipeline that was given, or ``None``
    :ivar pipeline_file: the path of the TOML file that was given, or ``None``; a template field
    :ivar log_conn_id: the connection of the log, once the pipeline is rendered; ``None`` without one
    """

    pipeline: Pipeline | None
    pipeline_file: str | None
    log_conn_id: str | None = None
    task_id: str
    get_template_env: Callable[[], Any]
    get_dag: Callable[[], Any]

    def set_pipeline(self, pipeline: Pipeline | str) -> None:
        """
        Validate and store the ``pipeline`` argument of the constructor.

        If the file exists while Airflow parses the DAG, the file is validated, including ``require``. The task reads the file again when it runs.

        :raises InvalidError: the argument is neither a Pipeline nor a path, the pipeline in the file is not valid, or a template reads a connection or a
            variable
        """
        if not isinstance(pipeline, (Pipeline, str)):
            raise InvalidError(
                "pipeline must be a Pipeline or the path of a TOML file",
                task=self.task_id,
                given=type(pipeline).__name__,
            )
        self.pipeline = pipeline if isinstance(pipeline, Pipeline) else None
        self.pipeline_file = text("pipeline", pipeline) if isinstance(pipeline, str) else None
        parsed = self.pipeline
        if self.pipeline_file and os.path.isfile(self.pipeline_file):
            parsed = load_pipeline(self.pipeline_file)
        if parsed is not None:
            refuse_secrets(parsed)

    def rendered_pipeline(self, context: Any) -> Pipeline:
        """
        Return the pipeline with its templates rendered.

        :param context: Airflow's context of the task
        :raises InvalidError: the file, or the result of a template, is not valid
        """
        pipeline = load_pipeline(self.pipeline_file) if self.pipeline_file else self.pipeline
        assert pipeline is not None
        found = rendered(pipeline, text_templates(self), context, where=f"the pipeline of task {self.task_id}")
        self.log_conn_id = found.log_conn_id
        return found

    @contextmanager
    def resolved_pipeline(self, context: Any) -> Iterator[Pipeline]:
        """
        Yield the pipeline with its templates rendered and the URL of its log resolved.

        Within the block, Airflow resolves connection ids, and an error that is not retryable fails the task without a retry.

        :raises AirflowFailException: the pipeline is not valid, or the block raised an error that is not retryable
        """
        with (
            as_airflow_failures(),
            use_resolver(airflow_connection),
            located(self.rendered_pipeline(context)) as pipeline,
        ):
            yield pipeline
