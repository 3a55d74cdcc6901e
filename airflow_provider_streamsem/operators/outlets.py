"""Emits the events of a task's outlet assets. Best effort: correctness does not depend on events, because readers of the data read the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks.failures import as_airflow_failures
from airflow_provider_streamsem.hooks.pipelines import text_templates

COMPLETE_PARTITIONS = "complete_partitions"
"""The value of ``partition_key`` with which each partition by event time that became complete is a key."""
INTERVAL = "interval"
"""The value of ``partition_key`` with which the start of the interval that the run has read is the key."""
_LONGEST_KEY = 250
_DO = "correct partition_key, then clear this task: it emits the event. Committed versions stay committed."


def checked_partition_key(template: str | None, outlets: Sequence[Any]) -> str | None:
    """
    Validate a template for partition keys.

    :param outlets: the outlets of the task
    :returns: the template, or ``None`` if ``template`` is ``None``
    :raises InvalidError: this Airflow is older than 3.3, or an outlet is an asset alias, whose events have no partition keys
    """
    if template is None:
        return None
    import airflow.sdk

    if any(isinstance(outlet, airflow.sdk.AssetAlias) for outlet in outlets):
        raise InvalidError("partition_key cannot be set for an outlet that is an asset alias", given=template)

    if "PartitionedAtRuntime" not in airflow.sdk.__all__:
        raise InvalidError("partition_key requires Airflow 3.3 or newer", given=template)
    return text("partition_key", template)


@as_airflow_failures()
def emit_outlet_events(task: Any, context: Any, result: dict[str, Any]) -> None:
    """
    Set the ``extra`` of each outlet's event to the run's result, plus ``rows`` and ``manifest``.

    ``rows`` is the number of rows written, summed over all sinks. It includes the rows of the versions in ``completed``. ``manifest`` is the key of the
    outcome that the result names, relative to the log's root.

    If the run itself committed a version, this function renders ``task.partition_key`` with the fields of the result. It also renders it once for each
    version in ``completed``, with the fields of that version in place of the run's own. Each rendered key becomes a partition key of the event.

    With ``task.partition_key`` = :data:`COMPLETE_PARTITIONS`, the keys are the starts of the partitions by event time that became complete. With
    :data:`INTERVAL`, the key is the start of the interval in UTC, without a zone, as the temporal partition mappers of Airflow read it by default.

    Outlets that are neither assets nor aliases, such as files for lineage, have no events and are skipped.

    :param result: the result as JSON, from :meth:`RunResult.to_json`
    :raises AirflowFailException: a key cannot be rendered, is empty or has more than 250 characters. The task fails without a retry, and committed versions
        stay committed
    """
    versions = [result, *result["completed"]]
    rows = sum(n for version in versions for name, n in version["counts"].items() if name.startswith("written."))
    from jinja2 import StrictUndefined

    for outlet in task.outlets:
        try:
            event = context["outlet_events"][outlet]
        except TypeError:  # Airflow raises TypeError for outlets that have no events
            continue
        event.extra = {**result, "rows": rows, "manifest": result["outcome"]}
        if task.partition_key == COMPLETE_PARTITIONS:
            for key in result["complete_partitions"]:
                event.add_partitions(key)
        elif task.partition_key == INTERVAL:
            for start in result["interval"][:1]:
                event.add_partitions(start.partition("+")[0])
        elif task.partition_key is not None:
            template = text_templates(task).overlay(undefined=StrictUndefined).from_string(task.partition_key)
            for version in versions:
                if not version["counts"]:  # the run itself committed nothing
                    continue
                key = _rendered(template, {**result, **version}, task)
                if not 0 < len(key) <= _LONGEST_KEY:
                    raise InvalidError(
                        "a partition key must have 1 to 250 characters", task=task.task_id, given=key
                    ).advising(_DO)
                event.add_partitions(key)


def _rendered(template: Any, names: dict[str, Any], task: Any) -> str:
    try:
        return str(template.render(names))
    except Exception as error:
        raise InvalidError(
            "a partition key cannot be rendered",
            task=task.task_id,
            given=task.partition_key,
            problem=f"{type(error).__name__}: {error}",
            accepted=sorted(names),
        ).advising(_DO) from error
