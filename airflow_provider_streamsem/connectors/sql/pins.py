"""The pin of a range of a table. Pins come from the log, which is not trusted, so their form is checked (R6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json


@dataclass(frozen=True, slots=True)
class JdbcPin:
    """
    A planned range ``[start, end)`` of the cursor, which one Spark task reads. ``rows`` is the number of rows when it was planned.

    :param digest: a number that changes if a row of the range changes; ``""`` if the database or the settings give none
    """

    start: int
    end: int
    rows: int
    digest: str = ""


def read_pins(pins: Json) -> tuple[JdbcPin, ...]:
    """Pins must be ascending ranges of a cursor (``LogDamagedError``)."""
    summary = "the pins of a plan are not ranges of a table; nothing was read"
    ranges = decoded_pins(JdbcPin, pins, summary)
    is_ascending = all(one.end <= other.start for one, other in pairwise(ranges))
    if not is_ascending or any(not 0 <= pin.start < pin.end or pin.rows < 0 for pin in ranges):
        raise LogDamagedError(summary, invariant="R6")
    return ranges
