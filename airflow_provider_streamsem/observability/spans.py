"""Creates an OpenTelemetry span for each phase of a run. Without a tracer provider, OpenTelemetry discards the spans."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.telemetry import (
    Adopted,
    Event,
    PhaseEnded,
    PhaseStarted,
    SparkStarted,
    Staged,
    VersionClosed,
)
from airflow_provider_streamsem.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class SpansListener:
    """
    A listener that creates a span ``streamsem.run`` with child spans ``streamsem.plan``, ``.stage`` (with child ``.collect``), ``.commit`` and ``.publish``.

    The facts of a phase become attributes ``streamsem.*``. For an error, the span has the name of its class. For an error of this package, it also has the
    summary, which contains no values. The span does not have the messages of other exceptions, because they may contain values of records.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Any, Any]] = []

    @cached_property
    def _tracer(self) -> Tracer:
        from opentelemetry import trace

        return trace.get_tracer("streamsem", __version__)

    def __call__(self, event: Event) -> None:
        """Start or end a span, or add attributes to the current one."""
        if isinstance(event, PhaseStarted):
            self._begin(event)
        elif isinstance(event, PhaseEnded):
            self._end(event)
        elif self._open:
            self._describe(self._open[-1][0], event)

    def _begin(self, event: PhaseStarted) -> None:
        from opentelemetry import context, trace

        span = self._tracer.start_span(
            f"streamsem.{event.phase}", attributes={f"streamsem.{name}": value for name, value in event.facts.items()}
        )
        self._open.append((span, context.attach(trace.set_span_in_context(span))))

    def _end(self, event: PhaseEnded) -> None:
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        span, token = self._open.pop()
        if event.error:
            text = {"exception.message": event.summary} if event.summary else {}
            span.set_attribute("error.type", event.error)
            span.add_event("exception", {"exception.type": event.error, **text})
            span.set_status(Status(StatusCode.ERROR, event.error))
        span.end()
        context.detach(token)

    def _describe(self, span: Any, event: Event) -> None:
        if isinstance(event, Adopted):
            span.add_event("adopted", {"streamsem.version": event.version, "streamsem.attempt_id": event.attempt_id})
        elif isinstance(event, Staged):
            span.set_attributes({f"streamsem.rows.{name}": rows for name, rows in event.counts.items()})
        elif isinstance(event, VersionClosed):
            span.set_attributes({"streamsem.result": event.result, "streamsem.lost": event.lost})
        elif isinstance(event, SparkStarted):
            span.set_attribute("spark.application_id", event.application_id)
