"""Validates the argument ``starting`` of the Kafka source: ``earliest``, ``latest``, a timestamp, or an offset for each partition."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

TOPIC = r"[A-Za-z0-9._-]{1,249}"


def starting(where: str, given: object) -> str | Mapping[str, int]:
    """Return the argument as the source stores it: ``earliest``, ``latest``, an ISO 8601 time with a zone, or ``<topic>-<partition>`` → offset."""
    if isinstance(given, Mapping):
        if not given or not all(
            re.fullmatch(rf"{TOPIC}-\d+", str(k)) and type(v) is int and v >= 0 for k, v in given.items()
        ):
            raise InvalidError(
                f"{where} must map partitions to offsets", given=dict(given), accepted='{"orders-0": 42}'
            )
        return dict(given)
    if given not in ("earliest", "latest"):
        try:
            arguments.time_ms(where, arguments.text(where, given))
        except InvalidError as error:
            raise InvalidError(
                f"{where} is not valid",
                given=given,
                accepted=["earliest", "latest", "2026-01-31T00:00:00Z", '{"orders-0": 42}'],
            ) from error
    return str(given)
