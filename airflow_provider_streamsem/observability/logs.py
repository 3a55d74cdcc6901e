"""Fields of a task's log lines."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.telemetry import Event, PhaseEnded, PhaseStarted

FIELDS = ("pipeline", "version", "attempt_id")


class LogFieldsListener:
    """
    Binds :data:`FIELDS` to structlog's context during a phase, so that every log line of the task has them, including those of other libraries.

    Airflow logs through structlog, which uses fields of the context and drops fields of stdlib log records.
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
