"""Looks up Airflow connections. No other module does this."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.clock import tries
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError

_RETRY_WAITS_S = (0.5, 1.5)


def airflow_connection(conn_id: str, *, team_name: str | None = None) -> Connection:
    """
    Return the connection with an id, from any backend that Airflow is configured with. Blocks for up to two seconds if the lookup fails.

    :param team_name: the team whose connection a process outside of tasks looks up. In a task, Airflow knows the team
    :raises InvalidError: three lookups returned no such connection, or its extra is nested too deep
    """
    # Airflow raises AirflowNotFoundException also if its API server does not respond, so the lookup is retried.
    for attempt in tries(_RETRY_WAITS_S):
        try:
            stored = _look_up(conn_id, team_name)
            break
        except Exception as error:
            if type(error).__name__ != "AirflowNotFoundException":
                raise
            if attempt == len(_RETRY_WAITS_S):
                raise InvalidError(
                    "Airflow returned no connection with this id in three lookups", conn_id=conn_id
                ).advising(
                    "create it, for example with `airflow connections add`, or correct the id. No rows were committed."
                ) from error
    try:
        extra = stored.extra_dejson
    except RecursionError:
        raise InvalidError("the extra of a connection is nested too deep", conn_id=conn_id) from None
    return Connection(
        conn_id=conn_id,
        conn_type=stored.conn_type or "",
        host=stored.host or "",
        port=stored.port,
        login=stored.login or "",
        password=stored.password or "",
        schema=stored.schema or "",
        extra=extra,
    )


def _look_up(conn_id: str, team_name: str | None) -> Any:
    from airflow.sdk.bases.hook import BaseHook

    if team_name is not None:
        from airflow.models.connection import Connection as StoredConnection

        return StoredConnection.get_connection_from_secrets(conn_id, team_name=team_name)
    try:
        return BaseHook.get_connection(conn_id)
    except ImportError as error:
        if error.name != "airflow.sdk.execution_time.task_runner":
            raise
        # The SDK of Airflow 3.1.0 looks up connections through the task's supervisor. A process without a supervisor, such as the API server, must read the
        # metadata database.
        from airflow.models.connection import Connection as StoredConnection

        return StoredConnection.get_connection_from_secrets(conn_id)
