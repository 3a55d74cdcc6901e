"""OpenTelemetry spans of a run, one a phase. Where nobody has set up a tracer provider they are no-ops."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import __version__
from airflow_provider_streamsem.telemetry import Adopted, Began, Decided, Ended, Event, SparkFound, Staged

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class SpansListener:
    """
    Spans ``streamsem.run`` and in it ``streamsem.plan``, ``.stage`` (with ``.collect``), ``.decide``, with the phase's facts as attributes ``streamsem.*``.

    An error is recorded by its class, and one of this package by its fixed sentence too; never with values or another's text.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Any, Any]] = []

    @cached_property
    def _tracer(self) -> Tracer:
        from opentelemetry import trace

        return trace.get_tracer("streamsem", __version__)

    def __call__(self, event: Event) -> None:
        """Begin, describe or end a span."""
        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, Ended):
            self._end(event)
        elif self._open:
            self._describe(self._open[-1][0], event)

    def _begin(self, event: Began) -> None:
        from opentelemetry import context, trace

        span = self._tracer.start_span(
            f"streamsem.{event.phase}", attributes={f"streamsem.{name}": value for name, value in event.facts.items()}
        )
        self._open.append((span, context.attach(trace.set_span_in_context(span))))

    def _end(self, event: Ended) -> None:
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        span, token = self._open.pop()
        if event.error:
            said = {"exception.message": event.truth} if event.truth else {}
            span.set_attribute("error.type", event.error)
            span.add_event("exception", {"exception.type": event.error, **said})
            span.set_status(Status(StatusCode.ERROR, event.error))
        span.end()
        context.detach(token)

    def _describe(self, span: Any, event: Event) -> None:
        if isinstance(event, Adopted):
            span.add_event("adopted", {"streamsem.version": event.version, "streamsem.attempt_id": event.attempt_id})
        elif isinstance(event, Staged):
            span.set_attributes({f"streamsem.rows.{name}": rows for name, rows in event.counts.items()})
        elif isinstance(event, Decided):
            span.set_attributes({"streamsem.result": event.result, "streamsem.lost": event.lost})
        elif isinstance(event, SparkFound):
            span.set_attribute("spark.application_id", event.application_id)
