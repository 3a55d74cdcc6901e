"""The trigger of deferred sensors, and how a trigger asks without stopping the triggerer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_streamsem import errors
from airflow_provider_streamsem.connections import looked_up_by
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.hooks.lookup import airflow_connection

if TYPE_CHECKING:
    from airflow_provider_streamsem.readers.conditions import Finding

T = TypeVar("T")


def asked(question: Callable[[], T]) -> T:
    """The answer to a question, with Airflow's connections. Blocks."""
    with looked_up_by(airflow_connection):
        return question()


async def in_thread(question: Callable[[], T]) -> T:
    """
    The same, while the event loop goes on.

    asgiref's threads and not asyncio's: before Airflow 3.3 a connection can be looked up only from a thread that knows the triggerer's loop.
    """
    from asgiref.sync import sync_to_async

    return await sync_to_async(asked, thread_sensitive=False)(question)


class ConditionTrigger(BaseTrigger):  # type: ignore[misc]
    """
    Fires once, when a condition is met; or with the error, where asking fails.

    The class's path and the names of its arguments are stored with deferred tasks: they are for ever.

    :param condition: JSON text of :mod:`airflow_provider_streamsem.readers.conditions`
    :param poll_interval_s: seconds between the end of one question and the next
    :param is_patient: an error that asking again may heal is logged, and is no end
    """

    def __init__(self, condition: str, poll_interval_s: float = 60.0, is_patient: bool = False) -> None:
        super().__init__()
        self.condition = condition
        self.poll_interval_s = poll_interval_s
        self.is_patient = is_patient

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Path and arguments, as JSON."""
        path = f"{ConditionTrigger.__module__}.{ConditionTrigger.__qualname__}"
        arguments = {"poll_interval_s": self.poll_interval_s, "is_patient": self.is_patient}
        return path, {"condition": self.condition, **arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask, one question at a time."""
        while True:
            try:
                finding = await in_thread(partial(_check, self.condition))
            except StreamsemError as error:
                if not (self.is_patient and error.retryable):
                    yield TriggerEvent(_error(error))
                    return
                self.log.warning("asking failed, and is done again: %s", error)
            else:
                if finding.met:
                    yield TriggerEvent({"seen": finding.seen})
                    return
                self.log.info("not yet: %s", finding.seen)
            await asyncio.sleep(self.poll_interval_s)


def answer_of(event: dict[str, Any]) -> dict[str, Any]:
    """
    What a trigger saw.

    :raises StreamsemError: the trigger ended with this error
    """
    if "error" in event:
        raise getattr(errors, event["error"])(event["truth"], **event["fields"])
    seen: dict[str, Any] = event["seen"]
    return seen


def _check(condition: str) -> Finding:
    # Imported in the thread: the triggerer imports this module on its loop.
    from airflow_provider_streamsem.readers.conditions import of_text

    return of_text(condition).check()


def _error(error: StreamsemError) -> dict[str, Any]:
    """What is needed to raise the error again. Its cause may hold secrets, and stays here."""
    known = next(cls for cls in type(error).__mro__ if cls.__module__ == StreamsemError.__module__)
    fields = {name: v if v is None or isinstance(v, (str, int)) else repr(v) for name, v in error.fields.items()}
    return {"error": known.__name__, "truth": error.truth, "fields": fields}
