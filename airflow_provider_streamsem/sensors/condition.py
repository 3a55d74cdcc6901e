"""What all sensors of this package share: poke, reschedule, defer, and how an error ends the task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_streamsem.arguments import flag
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.failures import airflow_exception, mapped
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.readers.conditions import Condition, to_text
from airflow_provider_streamsem.triggers.condition import ConditionTrigger, answer_of, asked


class ConditionSensor(BaseSensorOperator):  # type: ignore[misc]
    """
    Waits for a :class:`Condition`; what the sensors have in common, not used itself.

    Its XCom ``return_value`` is what was seen when the condition was met: small JSON. Nothing is ever written to the log or the source.

    :param deferrable: wait in the triggerer, which holds no worker's slot; default: Airflow's ``[operators] default_deferrable``. The worker asks the first
        question. ``poke_interval``, ``timeout``, ``soft_fail``, ``never_fail`` and ``silent_fail`` mean what they mean for every sensor;
        ``exponential_backoff`` is for poking only
    """

    ui_color = "#d7e3ed"

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = settings.default_deferrable() if deferrable is None else flag("deferrable", deferrable)

    def condition(self, context: Any) -> Condition:
        """What to wait for, with its templates rendered."""
        raise NotImplementedError

    def poke(self, context: Any) -> PokeReturnValue:
        """Ask once; a deferrable sensor leaves the rest to the triggerer."""
        with self._mapped():
            condition = self.condition(context)
            finding = asked(condition.check)
        self.log.info("%s: %s", "met" if finding.met else "not yet", finding.seen)
        if self.deferrable and not finding.met:
            trigger = ConditionTrigger(
                to_text(condition), poll_interval_s=self.poke_interval, is_patient=self.silent_fail
            )
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return PokeReturnValue(is_done=finding.met, xcom_value=finding.seen)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Answer what the trigger saw, or fail as poking would have."""
        try:
            with self._mapped():
                return answer_of(event)
        except StreamsemError as error:
            if self.never_fail:
                raise airflow_exception("AirflowSkipException")("skipped, since never_fail is set") from error
            raise

    def _mapped(self) -> AbstractContextManager[None]:
        # Airflow skips a soft_fail sensor that must not be tried again: an alarm that cannot look would seem to be all well.
        return nullcontext() if self.soft_fail else mapped()


class PipelineSensor(HasPipeline, ConditionSensor):
    """
    Waits for a condition of a pipeline's source and log; what such sensors have in common, not used itself.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Text inside a ``Pipeline`` that holds ``{{ … }}`` is rendered too
    """

    template_fields: Sequence[str] = ("pipeline_file",)

    def __init__(self, *, pipeline: Pipeline | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)

    def condition_of(self, pipeline: Pipeline) -> Condition:
        """
        The condition of a pipeline.

        :raises InvalidError: nobody could wait for it with this pipeline
        """
        raise NotImplementedError

    def condition(self, context: Any) -> Condition:
        """The condition of the pipeline as it is rendered for this task."""
        return self.condition_of(self.rendered_pipeline(context))

    def _refuse_early(self) -> None:
        """Find out while the DAG is parsed what is wrong with a pipeline that is at hand then."""
        if self.pipeline is not None:
            self.condition_of(self.pipeline)
