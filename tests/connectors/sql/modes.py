"""The modes of the JDBC sink, and the columns that their tables have."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.protocol.entries import Receipt

MODES: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "upsert": {"mode": "upsert", "keys": ["id"]},
    "replace_version": {"mode": "replace_version"},
}
CREATE = {
    "append": "id bigint",
    "upsert": "id bigint PRIMARY KEY",
    "replace_version": "id bigint, _streamsem_version bigint",
}


def publish(sink: JdbcSink, batch: Any) -> Receipt | None:
    return sink.publish(batch)
