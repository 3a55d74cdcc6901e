"""Decodes the pins of a plan (D5). Pins come from the log, which is not trusted, so each source and lookup checks what they name (R6)."""

from __future__ import annotations

from typing import TypeVar

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.codec import build
from airflow_provider_streamsem.protocol.entries import Json

P = TypeVar("P")


def decoded_pin(kind: type[P], pin: Json, summary: str, **facts: str) -> P:
    """Build a dataclass from a pin. A pin of another form is refused with an error that has ``summary`` and ``facts``."""
    try:
        built: P = build(kind, pin, "pin")
    except LogDamagedError as error:
        raise LogDamagedError(summary, invariant="R6", **facts) from error
    return built


def decoded_pins(kind: type[P], pins: Json, summary: str, **facts: str) -> tuple[P, ...]:
    """Build a dataclass from each pin of a list, as :func:`decoded_pin` does."""
    return tuple(decoded_pin(kind, pin, summary, **facts) for pin in (pins if isinstance(pins, list) else [pins]))
