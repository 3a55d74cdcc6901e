"""
Selects the pipelines that a user of Airflow may read: those of the DAGs that the user may read.

A pipeline belongs to a DAG if the newest run of one of its tasks has named the log (:data:`LOG_KEY`), and if the log has versions that the DAG has planned. The
second condition is checked when the log is read, because a task could name any log.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from threading import Lock
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends

from airflow_provider_streamsem.connections import connection, use_resolver
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.observability.observed import LOG_KEY
from airflow_provider_streamsem.pipeline.spec.location import access, is_log_of, root
from airflow_provider_streamsem.protocol.codec import read_json
from airflow_provider_streamsem.stores.s3 import use_s3_access
from airflow_provider_streamsem.web.addresses import actions_tag, pipeline_id
from airflow_provider_streamsem.web.documents import ActionsDag, Task
from airflow_provider_streamsem.web.memory import MemoryBudget
from airflow_provider_streamsem.web.pipelines import LoggedPipeline, ServedLog

User = Annotated[Any, Depends(get_user)]

_KEPT = 64
"""The number of logs that a process keeps open."""
_LONGEST = 4_096
"""The maximum number of characters of the location of a log."""
_XCOMS = 2_000
"""The maximum number of XComs that a request reads."""
Location = tuple[str, str, str | None]
"""URL of a log, id of its connection (``""`` without one), and the team whose connection it is (``None`` without one)."""
_opened: OrderedDict[Location, ServedLog] = OrderedDict()
"""Location → the log, in the order of their last use"""
_lock = Lock()


@cache
def memory() -> MemoryBudget:
    """Return the memory for logs in this process."""
    return MemoryBudget(settings.web_memory())


def authenticated(user: User) -> None:
    """
    Refuse a request without a valid token of Airflow.

    :raises HTTPException: the request has no valid token
    """


def readable(user: User) -> Sequence[LoggedPipeline]:
    """
    Return the pipelines of the DAGs that the user may read, in the order of their names.

    :raises HTTPException: the request has no valid token
    """
    dag_ids = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    tasks: dict[Location, dict[Task, None]] = {}
    names: dict[Location, set[str]] = {}
    teams = _teams(dag_ids)
    for dag_id, task_id, found in _newest_logs(dag_ids):
        key = (found["log"], found["conn_id"], teams.get(dag_id))
        tasks.setdefault(key, {})[Task(dag_id=dag_id, task_id=task_id)] = None
        names.setdefault(key, set()).add(found["pipeline"])
    actions = _actions_dags(set().union(*names.values()), dag_ids, teams, user)
    return [
        LoggedPipeline(pipeline_id(*key[:2]), _opened_log(key), tuple(tasks[key]), actions)
        for key in sorted(names, key=lambda key: (min(names[key]), key[:2], key[2] or ""))
    ]


def _teams(dag_ids: set[str]) -> dict[str, str | None]:
    """Return DAG id → its team. Without ``[core] multi_team``, and before Airflow 3.2, DAGs have no team."""
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    teams: dict[str, str | None] = DagModel.get_dag_id_to_team_name_mapping(sorted(dag_ids))
    return teams


def _opened_log(location: Location) -> ServedLog:
    with _lock:
        opened = _opened.pop(location, None) or ServedLog(location[0], _store_access(*location), memory().cache)
        _opened[location] = opened
        while len(_opened) > _KEPT:
            _opened.popitem(last=False)
        return opened


def _newest_logs(dag_ids: set[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the DAG id, the task id and the XCom of the newest run of each task that has run a pipeline."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import Text, and_, cast, func, select

    is_log = and_(XComModel.key == LOG_KEY, XComModel.dag_id.in_(dag_ids))
    newest = (
        select(XComModel.task_id, func.max(XComModel.dag_run_id).label("dag_run_id"))
        .where(is_log)
        .group_by(XComModel.dag_id, XComModel.task_id)
        .subquery()
    )
    is_newest = and_(XComModel.dag_run_id == newest.c.dag_run_id, XComModel.task_id == newest.c.task_id)
    is_short = func.length(cast(XComModel.value, Text)) <= 4 * _LONGEST
    query = select(XComModel.dag_id, XComModel.task_id, XComModel.value).join(newest, is_newest).where(is_log, is_short)
    with create_session() as session:
        found = session.execute(query.limit(_XCOMS)).all()
    for dag_id, task_id, value in found:
        parsed = _parsed(value)
        if parsed is not None:
            yield dag_id, task_id, parsed


def _actions_dags(
    names: set[str], dag_ids: set[str], teams: Mapping[str, str | None], user: Any
) -> dict[str, list[ActionsDag]]:
    """Whether the user may trigger them is only shown: Airflow checks it again, and the task refuses a pipeline with another log."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.utils.session import create_session
    from sqlalchemy import select

    by_tag = {actions_tag(name): name for name in names}
    is_action = DagTag.name.in_(by_tag) & DagModel.dag_id.in_(dag_ids) & ~DagModel.is_stale
    query = select(DagTag.name, DagModel.dag_id, DagModel.is_paused).join(DagModel, DagTag.dag_id == DagModel.dag_id)
    with create_session() as session:
        rows = session.execute(query.where(is_action).order_by(DagModel.dag_id)).all()
    found: dict[str, list[ActionsDag]] = {}
    for tag, dag_id, is_paused in rows:
        team_name = teams.get(dag_id)  # before Airflow 3.2, the details have no team
        details = DagDetails(id=dag_id, team_name=team_name) if team_name else DagDetails(id=dag_id)
        may_run = get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        actions = ActionsDag(dag_id=dag_id, may_run=may_run, is_paused=is_paused)
        found.setdefault(by_tag[tag], []).append(actions)
    return found


def _parsed(value: Any) -> dict[str, str] | None:
    """Return the value of an XCom; ``None`` if no run has written it, or an XCom backend has stored it in another form."""
    try:
        found = read_json(value, LOG_KEY) if isinstance(value, str) else value
    except LogDamagedError:
        return None
    names = ("log", "pipeline", "conn_id")
    is_valid = isinstance(found, dict) and all(_is_text(found.get(name)) for name in names)
    return {name: found[name] for name in names} if is_valid else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and not re.search("[\ud800-\udfff]", value)


def _store_access(log: str, conn_id: str, team_name: str | None) -> Any:
    """The context manager refuses a log outside the root of the connection, so that a task cannot use the credentials for another location."""

    @contextmanager
    def with_connection() -> Iterator[None]:
        with use_resolver(partial(airflow_connection, team_name=team_name)):
            conn = connection(conn_id)
            if not is_log_of(root(conn), log):
                raise InvalidError("the log is not below the root of its connection", log=log, conn_id=conn_id)
            with use_s3_access(access(conn)):
                yield

    return with_connection if conn_id else nullcontext
