"""Airflow's connections as values: the one place where they are looked up."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError

_WAITS_S = (0.5, 1.5)


def airflow_connection(conn_id: str) -> Connection:
    """
    The connection of an id, from wherever Airflow keeps it.

    :raises InvalidError: Airflow has none
    """
    for wait_s in (*_WAITS_S, None):
        try:
            found = _found(conn_id)
            break
        except Exception as error:
            if type(error).__name__ != "AirflowNotFoundException":
                raise
            if wait_s is None:
                raise InvalidError("Airflow has no such connection", conn_id=conn_id) from error
            # An API server that does not answer looks the same to a task as one that knows no such connection.
            SYSTEM_CLOCK.sleep(wait_s)
    try:
        extra = found.extra_dejson
    except RecursionError:
        raise InvalidError("the extra of a connection is nested too deep", conn_id=conn_id) from None
    return Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        schema=found.schema or "",
        extra=extra,
    )


def _found(conn_id: str) -> Any:
    from airflow.sdk.bases.hook import BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except ImportError as error:
        if error.name != "airflow.sdk.execution_time.task_runner":
            raise
        # Airflow 3.1.0 asks a task's supervisor, and where there is none, as in the API server, its SDK finds no connection of the metadata database.
        from airflow.models.connection import Connection as Kept

        return Kept.get_connection_from_secrets(conn_id)
