"""The form of a pipeline spec that a log stores (``specs/<sha256>.json``)."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.codec import canonical, read_json


def stored_spec(data: bytes) -> dict[str, Any]:
    """
    Parse a stored spec as JSON. Builds no objects from it.

    No caller may build a pipeline from it (R7). Otherwise, every writer of the log could choose which code runs, where, and with which credentials.

    :raises LogDamagedError: the bytes are not the JSON of a spec
    """
    spec = read_json(data, "specs/")
    if not isinstance(spec, dict) or not all(
        isinstance(spec.get(name), dict) for name in ("sinks", "immutable_config")
    ):
        raise LogDamagedError("a spec in the log is not valid", invariant="I1")
    try:
        canonical(spec)
    except TypeError:
        raise LogDamagedError("a spec in the log contains a float, which no writer stores", invariant="I1") from None
    return spec
