"""Connections to Kafka without a server."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.connections import Connection, use_resolver


def connection_with(extra: dict[str, object]) -> Any:
    """Resolve every connection id to a connection with this extra."""
    full_extra = {"bootstrap.servers": "127.0.0.1:1", **extra}
    return use_resolver(lambda conn_id: Connection(conn_id=conn_id, conn_type="kafka", extra=full_extra))
