"""Adds fields such as the version to the log lines of a task."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.telemetry import Event, PhaseEnded, PhaseStarted

FIELDS = ("pipeline", "version", "attempt_id")


class LogFieldsListener:
    """
    A listener that adds :data:`FIELDS` to every log line of the task during a phase, including the lines of other libraries.

    Airflow logs through structlog, which ignores extra fields of log records of the standard library. So the fields are bound to structlog's context.
    """

    def __init__(self) -> None:
        self._bound: list[Any] = []

    def __call__(self, event: Event) -> None:
        """Bind the fields when a phase starts, and restore the previous values when it ends."""
        if isinstance(event, PhaseStarted):
            from structlog.contextvars import bind_contextvars

            self._bound.append(bind_contextvars(**{name: event.facts[name] for name in FIELDS if name in event.facts}))
        elif isinstance(event, PhaseEnded):
            from structlog.contextvars import reset_contextvars

            reset_contextvars(**self._bound.pop())
