"""The sensor that waits until a version, a run or a range of offsets is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem.arguments import exactly_one, integer_or_text, known_keys, text
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import BatchCommitted
from airflow_provider_streamsem.sensors.condition import ConditionSensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1


class BatchCommittedSensor(HasPipeline, ConditionSensor):
    """
    Wait until a version, a run or a range of offsets is committed in a pipeline's log.

    The sensor reads the log and never the state of a task. If a user marks a task as success, the log contains no commit of it, and the sensor waits.

    Exactly one of ``version``, ``run`` and ``offsets`` must be given. While the log does not exist, the sensor waits. If the version was aborted or rolled
    back, the sensor fails without a retry, because the version can never be visible.

    The log contains nothing of a run that found nothing new, so the sensor waits for such a run until its timeout. Use ``offsets`` instead.

    XCom ``return_value``: ``pipeline``, ``log`` and ``version``. For ``version`` and ``run`` also ``counts`` and ``outcome`` (key under the log's root). For
    ``run`` also ``run_key``. For ``offsets`` also ``next``, the next offset to read of each partition.

    :param log: URL of the log (templated). Either ``log`` or ``pipeline`` must be given
    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param version: wait for this version (templated)
    :param run: wait until this run is complete (templated): a run key, or ``{"dag_id": …, "task_id": …, "run_id": …, "map_index": …}`` of the task instance.
        ``map_index`` is required only for a mapped task
    :param offsets: partition → offset, exclusive (templated). The sensor waits until all lower offsets are committed. Examples: ``{"files": 40}``,
        ``{"orders-0": 1200}``
    :raises InvalidError: both or neither of ``log`` and ``pipeline`` are given, or not exactly one of ``version``, ``run`` and ``offsets``
    """

    template_fields: Sequence[str] = ("log_url", "pipeline_file", "version", "run_of", "offsets")

    def __init__(
        self,
        *,
        log: str | None = None,
        pipeline: Pipeline | str | None = None,
        version: int | str | None = None,
        run: str | Mapping[str, Any] | None = None,
        offsets: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        exactly_one(f"task {self.task_id}:", log=log, pipeline=pipeline)
        exactly_one(f"task {self.task_id}:", version=version, run=run, offsets=offsets)
        self.log_url = log
        self.pipeline, self.pipeline_file = None, None
        if pipeline is not None:
            self.set_pipeline(pipeline)
        self.version = version
        self.run_of = run
        self.offsets = offsets

    def condition(self, context: Any) -> BatchCommitted:
        """
        Return the condition with its templates rendered and its values validated.

        :raises InvalidError: a rendered value is not valid
        """
        return BatchCommitted(
            log="" if self.log_url is None else text("log", self.log_url),
            pipeline=self.rendered_pipeline(context) if self.log_url is None else None,
            version=None if self.version is None else integer_or_text("version", self.version, least=0),
            run_key=None if self.run_of is None else _run_key(self.run_of),
            offsets=None if self.offsets is None else _offsets(self.offsets),
        )


def _run_key(run: object) -> str:
    if not isinstance(run, Mapping):
        return text("run", run, accepted="a run key, or dag_id, task_id and run_id")
    known_keys("run", run, ("dag_id", "task_id", "run_id", "map_index"))
    parts = {name: text(f"run {name}", run.get(name)) for name in ("dag_id", "task_id", "run_id")}
    index = run.get("map_index", -1)
    return run_key(
        _Run(**parts, map_index=-1 if index in (-1, "-1", None) else integer_or_text("run map_index", index, least=0))
    )


def _offsets(offsets: object) -> dict[str, int]:
    if not isinstance(offsets, Mapping) or not offsets:
        raise InvalidError("offsets must map partitions to offsets", given=type(offsets).__name__)
    return {text("partition", p): integer_or_text(f"offset of {p}", at, least=0) for p, at in offsets.items()}
