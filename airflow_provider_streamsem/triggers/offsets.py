"""
The trigger of asset watchers: one event for each bounded range of offsets that waits to be read.

Its cursor is the log. In memory it keeps only where the log stood when it spoke last, so that it does not say the same thing at every look. A triggerer that is
started anew says again what still waits, and a run that finds its rows taken does nothing. An event that nobody acted on, because it was lost, its DAG was
paused, or its run died, is repeated. So an event may come twice, and none is needed twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_streamsem.arguments import seconds, text
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.triggers.condition import in_thread

if TYPE_CHECKING:
    from airflow_provider_streamsem.batch.pipeline import Pipeline
    from airflow_provider_streamsem.readers.waiting import Waiting

UNSAID_WAIT_S = 300
"""how long an event waits for a run to act on it, where neither trigger nor pipeline says it"""


class OffsetRangeTrigger(BaseEventTrigger):  # type: ignore[misc]
    """
    Fires when a run of the pipeline would find work. For ``AssetWatcher``.

    One event is one bounded range: what the next batch would read. The next comes when a run has planned that range, or the drain that took it, and more
    waits; or after ``max_wait``, while no run takes it. Give the DAG ``max_active_runs=1`` and its task ``drain=True``: one run takes all that came meanwhile.

    The payload (asset event, ``extra["payload"]``): ``pipeline``, ``log``, ``is_new``, ``version`` (newest closed), ``open_version``, ``ranges``, ``rows``,
    ``lag``, ``unit``. It wakes the scheduler and tells people; the run itself looks into the log.

    A look that fails is logged, and taken again. An error that only a person can heal is said once, by an event with ``error`` in its payload: the run that it
    starts then fails with that error, where somebody sees it.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file, which is read when the DAG is parsed. Templates are refused: no run renders them here
    :param min_rows: so many rows are worth an event; default: the pipeline's ``limits.min_rows``, or 1
    :param max_wait: how long fewer rows wait after the newest outcome, and how long an event on which no run acted; whole seconds or a ``timedelta``;
        default: the pipeline's ``limits.max_delay_s``, or five minutes
    :param poll_interval_s: seconds between the end of one look and the next
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        min_rows: int | None = None,
        max_wait: timedelta | float | None = None,
        poll_interval_s: float = 30.0,
    ) -> None:
        super().__init__()
        # What Airflow stored was checked when the DAG was parsed; the triggerer makes this object on its loop.
        is_stored = isinstance(pipeline, str) and pipeline.startswith("{")
        self.pipeline = str(pipeline) if is_stored else _spec(pipeline, min_rows, max_wait)
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """
        Path and arguments, for ever as they are: Airflow stores both.

        Watchers whose path and arguments are equal are one trigger to Airflow. The spec holds the pipeline's name and log, so that only those of one
        pipeline are; its text is canonical, so that the scheduler's parts agree on it.
        """
        path = f"{OffsetRangeTrigger.__module__}.{OffsetRangeTrigger.__qualname__}"
        return path, {"pipeline": self.pipeline, "poll_interval_s": self.poll_interval_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, and speak where there is something new to say. Never ends: Airflow would start it anew at once."""
        clock = asyncio.get_running_loop().time
        spec = json.loads(self.pipeline)
        name, again_after_s = spec["name"], spec["limits"]["max_delay_s"]
        spoke_of, spoke_at, error_told = "", 0.0, ""
        while True:
            try:
                found = await in_thread(partial(_look, self.pipeline))
            except StreamsemError as error:
                kind = type(error).__name__
                if error.retryable:
                    self.log.warning("looking at pipeline %s failed: %s", name, error)
                elif error_told != kind:
                    self.log.error("looking at pipeline %s failed: %s", name, error)
                    yield TriggerEvent({"pipeline": name, "log": spec["log"], "error": f"{kind}: {error}"})
                    error_told = kind
            except Exception:
                self.log.exception("looking at pipeline %s failed", name)
            else:
                error_told = ""
                if found.is_due and (spoke_of != _state(found) or clock() >= spoke_at + again_after_s):
                    yield TriggerEvent(found.to_json())
                    spoke_of, spoke_at = _state(found), clock()
            await asyncio.sleep(self.poll_interval_s)


def _state(found: Waiting) -> str:
    """What a run changes when it takes offsets, and nothing else does. Before there is a log, a source may begin elsewhere at every look."""
    return "new" if found.is_new else repr(sorted(found.taken.items()))


def _look(pipeline: str) -> Waiting:
    # Imported in the thread: the triggerer imports this module on its loop.
    from airflow_provider_streamsem.readers.conditions import of_spec_text
    from airflow_provider_streamsem.readers.waiting import waiting

    return waiting(of_spec_text(pipeline))


def _spec(pipeline: object, min_rows: int | None, max_wait: timedelta | float | None) -> str:
    """The spec that travels, with the limits that say what is worth an event."""
    from airflow_provider_streamsem.batch.pipeline import Pipeline, load_pipeline
    from airflow_provider_streamsem.batch.templates import holds_templates
    from airflow_provider_streamsem.readers.conditions import spec_text
    from airflow_provider_streamsem.readers.waiting import limited

    accepted = "a Pipeline, or the path of its TOML file"
    found = pipeline if isinstance(pipeline, Pipeline) else load_pipeline(text("pipeline", pipeline, accepted=accepted))
    max_delay_s = None if max_wait is None else seconds("max_wait", max_wait)
    if max_delay_s is None and found.limits.max_delay_s is None:
        max_delay_s = UNSAID_WAIT_S
    found = limited(found, min_rows=min_rows, max_delay_s=max_delay_s)
    if holds_templates(found):
        what = "a pipeline under a watcher must not hold templates: there is no run to render them for"
        raise InvalidError(what, pipeline=found.name)
    return spec_text(found)
