"""Lookup of Airflow connections. This is the only module that looks them up."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError

_WAITS_S = (0.5, 1.5)


def airflow_connection(conn_id: str) -> Connection:
    """
    Return the connection with an id, from any backend that Airflow is configured with.

    :raises InvalidError: Airflow has no such connection after three lookups, or its extra is nested too deep
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
            # A task cannot distinguish an API server that does not respond from one that has no such connection.
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
        # Airflow 3.1.0 asks the task's supervisor. In a process without one, such as the API server, its SDK finds no connection of the metadata database.
        from airflow.models.connection import Connection as Kept

        return Kept.get_connection_from_secrets(conn_id)
