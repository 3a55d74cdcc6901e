"""
Decides which pipelines a user of Airflow may read: those of the DAGs that the user may read.

A pipeline belongs to each DAG with a task that has run it. When a run starts, its operator pushes the location of the log as XCom (:data:`LOG_KEY`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends

from airflow_provider_streamsem.connections import connection, use_resolver
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.observability.observed import LOG_KEY
from airflow_provider_streamsem.pipeline.location import access
from airflow_provider_streamsem.stores.s3 import use_s3_access
from airflow_provider_streamsem.web.documents import Task
from airflow_provider_streamsem.web.pipelines import LoggedPipeline, OpenedLog

User = Annotated[Any, Depends(get_user)]

_opened: dict[tuple[str, str], OpenedLog] = {}
"""URL of a log and id of its connection → the log"""


def authenticated(user: User) -> None:
    """
    Refuse a request without a valid token of Airflow.

    :raises HTTPException: nobody is logged in
    """


def readable(user: User) -> Sequence[LoggedPipeline]:
    """
    Return the pipelines of the DAGs that the user may read, in the order of their names.

    :raises HTTPException: nobody is logged in
    """
    dag_ids = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    tasks: dict[str, list[Task]] = {}
    logs: dict[str, dict[str, str]] = {}
    for dag_id, task_id, found in _newest_logs(dag_ids):
        tasks.setdefault(found["log"], []).append(Task(dag_id=dag_id, task_id=task_id))
        logs[found["log"]] = found
    return [
        LoggedPipeline(_id(log), _opened_log(log, found["conn_id"]), tuple(tasks[log]))
        for log, found in sorted(logs.items(), key=lambda item: item[1]["pipeline"])
    ]


def _id(log: str) -> str:
    return hashlib.sha256(log.encode()).hexdigest()[:16]


def _opened_log(log: str, conn_id: str) -> OpenedLog:
    return _opened.setdefault((log, conn_id), OpenedLog(log, _store_access(conn_id)))


def _newest_logs(dag_ids: set[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the DAG id, the task id and the XCom of the newest run of each task that has run a pipeline."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import and_, func, select

    group = (XComModel.dag_id, XComModel.task_id, XComModel.map_index)
    newest = (
        select(*group, func.max(XComModel.dag_run_id).label("dag_run_id"))
        .where(XComModel.key == LOG_KEY)
        .group_by(*group)
        .subquery()
    )
    query = select(XComModel.dag_id, XComModel.task_id, XComModel.value).join(
        newest,
        and_(
            XComModel.dag_run_id == newest.c.dag_run_id,
            XComModel.task_id == newest.c.task_id,
            XComModel.map_index == newest.c.map_index,
            XComModel.key == LOG_KEY,
        ),
    )
    with create_session() as session:
        found = session.execute(query).all()
    for dag_id, task_id, value in found:
        parsed = _parsed(value)
        if dag_id in dag_ids and parsed is not None:
            yield dag_id, task_id, parsed


def _parsed(value: Any) -> dict[str, str] | None:
    """Return the value of an XCom; ``None`` if an XCom backend has stored it in another form."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    names = ("log", "pipeline", "conn_id")
    is_valid = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in names)
    return {name: found[name] for name in names} if is_valid else None


def _store_access(conn_id: str) -> Any:
    """Return a context manager within which a log is opened with the S3 access of a connection of type ``streamsem``."""

    @contextmanager
    def with_connection() -> Iterator[None]:
        with use_resolver(airflow_connection), use_s3_access(access(connection(conn_id))):
            yield

    return with_connection if conn_id else nullcontext
