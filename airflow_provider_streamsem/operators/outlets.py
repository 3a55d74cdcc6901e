"""What a task tells the assets among its outlets. Nobody needs these events to be right: whoever reads the data looks into the log."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.errors import InvalidError


def checked_partition_key(template: str | None) -> str | None:
    """
    A template of partition keys, if this Airflow has them.

    :raises InvalidError: it has not
    """
    if template is None:
        return None
    import airflow.sdk

    if "PartitionedAtRuntime" not in airflow.sdk.__all__:
        raise InvalidError("partition_key needs Airflow 3.3 or newer", given=template)
    return text("partition_key", template)


def tell_outlets(task: Any, context: Any, answer: dict[str, Any]) -> None:
    """
    Put a run's answer into the ``extra`` of each outlet's event, with ``rows`` (written, over all sinks) and ``manifest`` (key of the last outcome).

    ``task.partition_key`` is rendered with the names of the answer, and becomes the event's partition key where something was committed.
    """
    rows = sum(count for name, count in answer["counts"].items() if name.startswith("written."))
    for asset in task.outlets:
        event = context["outlet_events"][asset]
        event.extra = {**answer, "rows": rows, "manifest": answer["outcome"]}
        if task.partition_key is not None and answer["status"] == "committed":
            event.add_partitions(str(task.get_template_env().from_string(task.partition_key).render(answer)))
