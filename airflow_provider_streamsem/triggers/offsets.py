"""
The trigger of asset watchers. It emits one event for each bounded range of unread offsets.

The trigger derives the unread offsets from the log. In memory it keeps only the offsets of its last event, so that it does not repeat the event at every
poll. After a restart it emits the events of pending offsets again. A run whose offsets another run has already claimed does nothing.

If no run claims the offsets of an event, the trigger repeats the event. Causes are a lost event, a paused DAG and a run that died. So an event may occur
twice. Correctness does not depend on events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_streamsem.arguments import interval, seconds, text
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.triggers.condition import in_thread

if TYPE_CHECKING:
    from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
    from airflow_provider_streamsem.readers.waiting import Waiting

DEFAULT_MAX_DELAY_S = 300
"""Default of ``max_delay`` in seconds, if the pipeline has no ``limits.max_delay_s``."""


class OffsetRangeTrigger(BaseEventTrigger):  # type: ignore[misc]
    """
    Fires when a run of the pipeline would find work. Use it in an ``AssetWatcher``.

    Each event covers one bounded range: the next batch. The trigger emits the next event after a run has claimed that range, by its plan or by its drain, if
    more records are unread. If no run claims the range, the trigger repeats the event after ``max_delay``. Set ``max_active_runs=1`` on the DAG and
    ``drain=True`` on its task, so that one run reads all records that arrived in the meantime.

    Payload (``extra["payload"]`` of the asset event): ``pipeline``, ``log``, ``is_new``, ``version``, ``open_version``, ``ranges``, ``rows``, ``lag``,
    ``unit``, as in :class:`airflow_provider_streamsem.readers.waiting.Waiting`. The payload is informational. The run itself reads the log.

    If a poll fails, the trigger logs the error and polls again. If the error is not retryable, the trigger also emits one event with ``error`` in its
    payload. The run that this event starts fails with the same error, so that a user sees the error.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file, which is read while Airflow parses the DAG. A pipeline with templates is refused,
        because no run renders them here
    :param min_rows: minimum number of rows for an event. Default: the pipeline's ``limits.min_rows``, or 1
    :param max_delay: time after the newest outcome at which fewer than ``min_rows`` rows are enough, and time before the trigger repeats an event. Integer
        seconds or a ``timedelta``, 1 second or more. Default: the pipeline's ``limits.max_delay_s``, or five minutes
    :param poll_interval_s: seconds between the end of one poll and the start of the next, greater than 0
    :raises InvalidError: the pipeline or a limit is not valid, or the pipeline contains templates
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        min_rows: int | None = None,
        max_delay: timedelta | float | None = None,
        poll_interval_s: float = 30.0,
    ) -> None:
        super().__init__()
        # Airflow stores the spec as JSON text, which was validated when the DAG was parsed. The triggerer constructs this object on its event loop, so the
        # constructor must not block.
        self.pipeline = str(pipeline) if _is_spec(pipeline) else _spec(pipeline, min_rows, max_delay)
        self.poll_interval_s = interval("poll_interval_s", poll_interval_s)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """
        Return the class path and the arguments. Airflow stores both, so they must never change.

        Airflow treats watchers with equal path and arguments as one trigger. The spec contains the name and the log of the pipeline, so only watchers of the
        same pipeline are equal. The text of the spec is canonical, so that all processes of the scheduler compute the same value.
        """
        path = f"{OffsetRangeTrigger.__module__}.{OffsetRangeTrigger.__qualname__}"
        return path, {"pipeline": self.pipeline, "poll_interval_s": self.poll_interval_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the source and the log, and emit an event for each new range. Never returns, because Airflow would restart the trigger immediately."""
        clock = asyncio.get_running_loop().time
        spec = json.loads(self.pipeline)
        name, again_after_s = spec["name"], spec["limits"]["max_delay_s"]
        emitted_state, emitted_at, logged_error = "", 0.0, ""
        while True:
            try:
                waiting = await in_thread(partial(_check, self.pipeline))
            except StreamsemError as error:
                kind = type(error).__name__
                if error.retryable:
                    self.log.warning("polling pipeline %s failed: %s", name, error)
                elif logged_error != kind:
                    self.log.error("polling pipeline %s failed: %s", name, error)
                    yield TriggerEvent({"pipeline": name, "log": spec["log"], "error": f"{kind}: {error}"})
                    logged_error = kind
            except Exception:
                self.log.exception("polling pipeline %s failed", name)
            else:
                logged_error = ""
                if waiting.is_due and (emitted_state != _state(waiting) or clock() >= emitted_at + again_after_s):
                    yield TriggerEvent(waiting.to_json())
                    emitted_state, emitted_at = _state(waiting), clock()
            await asyncio.sleep(self.poll_interval_s)


def _state(waiting: Waiting) -> str:
    """The text changes only when a run claims offsets. It is constant before the log exists: initial offsets may differ at every poll."""
    return "new" if waiting.is_new else repr(sorted(waiting.planned_ends.items()))


def _check(pipeline: str) -> Waiting:
    # Imported in the thread, because the triggerer imports this module on its event loop.
    from airflow_provider_streamsem.readers.conditions import of_spec_text
    from airflow_provider_streamsem.readers.waiting import waiting

    return waiting(of_spec_text(pipeline))


def _is_spec(pipeline: object) -> bool:
    try:
        return isinstance(pipeline, str) and isinstance(json.loads(pipeline), dict)
    except ValueError:
        return False


def _spec(pipeline: object, min_rows: int | None, max_delay: timedelta | float | None) -> str:
    """Return the pipeline's spec as JSON text for the triggerer. Its limits are those of the trigger."""
    from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
    from airflow_provider_streamsem.pipeline.spec.templates import holds_templates
    from airflow_provider_streamsem.readers.conditions import spec_text
    from airflow_provider_streamsem.readers.waiting import limited

    accepted = "a Pipeline, or the path of its TOML file"
    watched = (
        pipeline if isinstance(pipeline, Pipeline) else load_pipeline(text("pipeline", pipeline, accepted=accepted))
    )
    max_delay_s = None if max_delay is None else seconds("max_delay", max_delay)
    if max_delay_s is None and watched.limits.max_delay_s is None:
        max_delay_s = DEFAULT_MAX_DELAY_S
    watched = limited(watched, min_rows=min_rows, max_delay_s=max_delay_s)
    if holds_templates(watched):
        summary = "the pipeline of an asset watcher must not contain templates, because no run renders them"
        raise InvalidError(summary, pipeline=watched.name)
    return spec_text(watched)
