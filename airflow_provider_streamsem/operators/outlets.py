"""What a task tells the assets among its outlets. Nobody needs these events to be right: whoever reads the data looks into the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks.failures import mapped
from airflow_provider_streamsem.hooks.pipelines import text_templates

_LONGEST_KEY = 250
_DO = "correct partition_key, then run again; what was committed stays."


def checked_partition_key(template: str | None, outlets: Sequence[Any]) -> str | None:
    """
    A template of partition keys, if this Airflow has them.

    :raises InvalidError: it has not, or an outlet is an alias, whose events have no partitions
    """
    if template is None:
        return None
    import airflow.sdk

    if any(isinstance(outlet, airflow.sdk.AssetAlias) for outlet in outlets):
        raise InvalidError("events of an asset alias have no partition key", given=template)

    if "PartitionedAtRuntime" not in airflow.sdk.__all__:
        raise InvalidError("partition_key needs Airflow 3.3 or newer", given=template)
    return text("partition_key", template)


@mapped()
def tell_outlets(task: Any, context: Any, answer: dict[str, Any]) -> None:
    """
    Put a run's result into the ``extra`` of each outlet's event, with ``rows`` and ``manifest`` (key of the last outcome).

    ``rows`` are those written over all sinks, of the run itself and of the versions of other runs in ``completed``.

    ``task.partition_key`` is rendered with the names of the result, and once for each version in ``completed`` with that version's values in their place.
    Each gives the event a partition key. Outlets that are neither asset nor alias, such as files for lineage, have no events.

    A key that is empty or too long fails the task without a retry; what was committed stays.
    """
    counted = [answer, *answer["completed"]]
    rows = sum(n for one in counted for name, n in one["counts"].items() if name.startswith("written."))
    from jinja2 import StrictUndefined

    for outlet in task.outlets:
        try:
            event = context["outlet_events"][outlet]
        except TypeError:  # Airflow's own word for what has no events
            continue
        event.extra = {**answer, "rows": rows, "manifest": answer["outcome"]}
        if task.partition_key is not None:
            template = text_templates(task).overlay(undefined=StrictUndefined).from_string(task.partition_key)
            for one in counted:
                if not one["counts"]:  # the run itself committed nothing
                    continue
                key = _rendered(template, {**answer, **one}, task)
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
