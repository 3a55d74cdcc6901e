"""Base classes of the sensors: poke, reschedule and defer modes, and the mapping of errors to task failures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_streamsem.arguments import flag
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.failures import airflow_exception, as_airflow_failures
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import Condition, to_text
from airflow_provider_streamsem.triggers.condition import ConditionTrigger, checked, result_of_event


class ConditionSensor(BaseSensorOperator):  # type: ignore[misc]
    """
    Abstract base of sensors that wait for a :class:`Condition`.

    XCom ``return_value``: the values that the sensor observed when the condition was met, as small JSON. A sensor never writes to the log or the source.

    :param deferrable: wait in the triggerer and release the worker slot. Default: Airflow's ``[operators] default_deferrable``. The worker always checks the
        condition once before it defers. ``poke_interval``, ``timeout``, ``soft_fail``, ``never_fail`` and ``silent_fail`` work as in every Airflow sensor.
        ``exponential_backoff`` applies only without ``deferrable``
    """

    ui_color = "#d7e3ed"

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = settings.default_deferrable() if deferrable is None else flag("deferrable", deferrable)

    def condition(self, context: Any) -> Condition:
        """
        Return the condition with its templates rendered. Subclasses implement this method.

        :raises InvalidError: a rendered value is not valid
        """
        raise NotImplementedError

    def poke(self, context: Any) -> PokeReturnValue:
        """
        Check the condition once. If it is not met, a deferrable sensor defers to the triggerer.

        :raises StreamsemError: the check failed. If a retry cannot help, an ``AirflowFailException`` is raised instead, unless ``soft_fail`` is set
        """
        with self._mapped():
            condition = self.condition(context)
            result = checked(condition.check)
        self.log.info("the condition is %s: %s", "met" if result.met else "not met yet", result.observed)
        if self.deferrable and not result.met:
            trigger = ConditionTrigger(
                to_text(condition), poll_interval_s=self.poke_interval, is_patient=self.silent_fail
            )
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return PokeReturnValue(is_done=result.met, xcom_value=result.observed)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """
        Return the observed values of the trigger's event.

        :raises StreamsemError: the trigger's check failed; as in :meth:`poke`
        """
        with self._mapped():
            return result_of_event(event)

    def resume_execution(self, *args: Any, **kwargs: Any) -> Any:
        """
        Resume the deferred task. Airflow 3.1 applies ``never_fail`` only to sensors that are not deferred, and ``soft_fail`` not to the timeout of a deferral.

        :raises AirflowSkipException: ``never_fail`` is set and the check failed, or ``soft_fail`` is set and the timeout is over
        """
        try:
            return super().resume_execution(*args, **kwargs)
        except airflow_exception("AirflowSkipException"):
            raise
        except Exception as error:
            is_timeout = isinstance(error, airflow_exception("AirflowSensorTimeout"))
            if self.never_fail or (self.soft_fail and is_timeout):
                reason = f"skipped, because {'never_fail' if self.never_fail else 'soft_fail'} is set: {error}"
                raise airflow_exception("AirflowSkipException")(reason) from error
            raise

    def _mapped(self) -> AbstractContextManager[None]:
        # Airflow skips a soft_fail sensor that raises AirflowFailException. A skipped alarm would hide the error, so the error is not mapped to that exception.
        return nullcontext() if self.soft_fail else as_airflow_failures()


class PipelineSensor(HasPipeline, ConditionSensor):
    """
    Abstract base of sensors that wait for a condition of a pipeline's source and log.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Text fields of a ``Pipeline`` that contain ``{{ … }}`` are rendered too
    """

    template_fields: Sequence[str] = ("pipeline_file",)

    def __init__(self, *, pipeline: Pipeline | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)

    def condition_of(self, pipeline: Pipeline) -> Condition:
        """
        Return the condition for a pipeline. Subclasses implement this method.

        :raises InvalidError: this pipeline cannot have the condition, for example because the items of its source do not expire
        """
        raise NotImplementedError

    def condition(self, context: Any) -> Condition:
        """Return the condition for the pipeline, with the pipeline's templates rendered."""
        return self.condition_of(self.rendered_pipeline(context))

    def _refuse_early(self) -> None:
        """If the pipeline was given as an object, validate it while Airflow parses the DAG. A file is validated when the task runs."""
        if self.pipeline is not None:
            self.condition_of(self.pipeline)
