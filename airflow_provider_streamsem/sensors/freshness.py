"""The sensor that waits until a dataset is fresh."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds, time_ms
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class FreshnessSensor(PipelineSensor):
    """
    Wait until the lag of the pipeline is within bounds, for example before a report or to monitor a service level objective.

    Freshness is measured against the source, not against the clock. If all records are committed, the data is fresh, however long ago the last commit was.
    While the log does not exist, the sensor waits. If several bounds are given, all must hold.

    XCom ``return_value``:

    * ``pipeline``, ``log`` and ``version`` (the newest closed version)
    * ``lag``: number of uncommitted items
    * ``too_old``: number of uncommitted items older than ``max_age``
    * ``before_until``: number of uncommitted items that arrived before ``until``
    * ``unit``: unit of these three numbers
    * ``watermark_ms``: milliseconds since the epoch; ``None`` without a watermark
    * ``version_age_ms``: milliseconds since the newest version was closed; ``None`` before the first version

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param max_lag: maximum number of uncommitted items, inclusive, in the unit that ``streamsem lag`` shows, such as files, Kafka offsets or table versions
    :param max_age: maximum age of an uncommitted item, by its time of arrival: the Kafka timestamp, the modification time of a file, the commit time of a
        version of a table. Integer seconds or a ``timedelta``, 1 second or more
    :param until: wait until every item that arrived before this time is committed (templated): a time with a zone, like ``{{ data_interval_end }}``. The time
        of arrival is that of ``max_age``. The sensor also waits until the time has passed
    :param watermark: wait until the watermark of the pipeline's state has reached this time (templated): a time with a zone. The next batch
        closes windows that end at or before it and are still open
    :raises InvalidError: no bound is given, or an argument is not valid
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "until", "watermark")

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        max_lag: int | None = None,
        max_age: timedelta | float | None = None,
        until: datetime | str | None = None,
        watermark: datetime | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        if (max_lag, max_age, until, watermark) == (None, None, None, None):
            raise InvalidError("max_lag, max_age, until or watermark must be given", task=self.task_id)
        self.max_lag = None if max_lag is None else integer("max_lag", max_lag, least=0)
        self.max_age_s = None if max_age is None else seconds("max_age", max_age)
        self.until = until
        self.watermark = watermark
        self._refuse_early()

    def condition(self, context: Any) -> Freshness:
        """
        Return the condition with its templates rendered.

        :raises InvalidError: a bound was not rendered, or is not valid
        """
        for name, bound in (("until", self.until), ("watermark", self.watermark)):
            if "{{" in str(bound):
                raise InvalidError(f"{name} is a template that was not rendered", given=str(bound)[:60])
        return self.condition_of(self.rendered_pipeline(context))

    def condition_of(self, pipeline: Pipeline) -> Freshness:
        """
        Return the condition for a pipeline, with this sensor's bounds.

        :raises InvalidError: ``until`` or ``watermark`` is not a time with a zone, or the pipeline has no state and so no watermark
        """
        if self.watermark is not None and pipeline.state is None:
            raise InvalidError("this pipeline has no state, so it has no watermark", pipeline=pipeline.name)
        return Freshness(
            pipeline=pipeline,
            max_lag=self.max_lag,
            max_age_s=self.max_age_s,
            until_ms=_time_ms("until", self.until),
            watermark_ms=_time_ms("watermark", self.watermark),
        )


def _time_ms(name: str, bound: datetime | str | None) -> int | None:
    # While Airflow parses the DAG, a template is not rendered yet.
    return None if bound is None or "{{" in str(bound) else time_ms(name, bound)
