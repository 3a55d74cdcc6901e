"""Airflow's connections as values: the one place where they are looked up."""

from __future__ import annotations

from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError


def airflow_connection(conn_id: str) -> Connection:
    """
    The connection of an id, from wherever Airflow keeps it.

    :raises InvalidError: Airflow has none
    """
    from airflow.sdk.bases.hook import BaseHook

    try:
        found = BaseHook.get_connection(conn_id)
    except Exception as error:
        if type(error).__name__ != "AirflowNotFoundException":
            raise
        raise InvalidError("Airflow has no such connection", conn_id=conn_id) from error
    return Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        schema=found.schema or "",
        extra=found.extra_dejson,
    )
