"""Fields of a task's log lines."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.telemetry import Began, Ended, Event

FIELDS = ("pipeline", "version", "attempt_id")


class LogFieldsListener:
    """
    Binds :data:`FIELDS` to structlog's context while a phase lasts, so that every line of the task has them, whoever writes it.

    Airflow's logs are structlog underneath: they take fields of the context, and drop those that a stdlib record carries.
    """

    def __init__(self) -> None:
        self._bound: list[Any] = []

    def __call__(self, event: Event) -> None:
        """Bind when a phase begins, restore when it ends."""
        if isinstance(event, Began):
            from structlog.contextvars import bind_contextvars

            self._bound.append(bind_contextvars(**{name: event.facts[name] for name in FIELDS if name in event.facts}))
        elif isinstance(event, Ended):
            from structlog.contextvars import reset_contextvars

            reset_contextvars(**self._bound.pop())
