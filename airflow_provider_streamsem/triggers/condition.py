"""The trigger of deferred sensors, and helpers that check a condition without blocking the triggerer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_streamsem import errors
from airflow_provider_streamsem.connections import use_resolver
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.hooks.connections import airflow_connection

if TYPE_CHECKING:
    from airflow_provider_streamsem.readers.conditions import CheckResult

T = TypeVar("T")


def checked(check: Callable[[], T]) -> T:
    """Call a function while connection ids are resolved by Airflow, and return its result. Blocks until the function returns."""
    with use_resolver(airflow_connection):
        return check()


async def in_thread(check: Callable[[], T]) -> T:
    """
    Call :func:`checked` in a thread, without blocking the event loop.

    The thread comes from asgiref, not from asyncio. Before Airflow 3.3, Airflow resolves a connection only in a thread that asgiref has connected to the
    triggerer's event loop.
    """
    from asgiref.sync import sync_to_async

    return await sync_to_async(checked, thread_sensitive=False)(check)


class ConditionTrigger(BaseTrigger):  # type: ignore[misc]
    """
    Checks a condition repeatedly. Fires once: with the observed values when the condition is met, or with the error when a check fails.

    Airflow stores the path of this class and the names of its arguments with deferred tasks. They must never change.

    :param condition: JSON text from :mod:`airflow_provider_streamsem.readers.conditions`
    :param poll_interval_s: seconds between the end of one check and the start of the next
    :param is_patient: whether the trigger logs a retryable error and checks again, instead of firing with the error
    """

    def __init__(self, condition: str, poll_interval_s: float = 60.0, is_patient: bool = False) -> None:
        super().__init__()
        self.condition = condition
        self.poll_interval_s = poll_interval_s
        self.is_patient = is_patient

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments as JSON values."""
        path = f"{ConditionTrigger.__module__}.{ConditionTrigger.__qualname__}"
        arguments = {"poll_interval_s": self.poll_interval_s, "is_patient": self.is_patient}
        return path, {"condition": self.condition, **arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the condition until it is met or a check fails, one check at a time."""
        while True:
            try:
                result = await in_thread(partial(_check, self.condition))
            except StreamsemError as error:
                if not (self.is_patient and error.retryable):
                    yield TriggerEvent(_error(error))
                    return
                self.log.warning("a check of the condition failed; the trigger checks again: %s", error)
            else:
                if result.met:
                    yield TriggerEvent({"observed": result.observed})
                    return
                self.log.info("the condition is not met: %s", result.observed)
            await asyncio.sleep(self.poll_interval_s)


def result_of_event(event: dict[str, Any]) -> dict[str, Any]:
    """
    Return the observed values of an event of :class:`ConditionTrigger`.

    :raises StreamsemError: the event contains this error, because a check failed
    """
    if "error" in event:
        raise getattr(errors, event["error"])(event["summary"], **event["fields"]).advising(event["do"])
    observed: dict[str, Any] = event["observed"]
    return observed


def _check(condition: str) -> CheckResult:
    # Imported in the thread, because the triggerer imports this module on its event loop.
    from airflow_provider_streamsem.readers.conditions import of_text

    return of_text(condition).check()


def _error(error: StreamsemError) -> dict[str, Any]:
    """Return the JSON from which :func:`result_of_event` recreates the error. It does not contain the cause, which may contain secrets."""
    public_class = next(cls for cls in type(error).__mro__ if cls.__module__ == StreamsemError.__module__)
    fields = {name: v if v is None or isinstance(v, (str, int)) else repr(v) for name, v in error.fields.items()}
    return {"error": public_class.__name__, "summary": error.summary, "fields": fields, "do": error.do}
