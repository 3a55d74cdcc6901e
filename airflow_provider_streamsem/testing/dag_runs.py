"""
Runs a DAG as ``dag.test()`` does, but with a run id of the caller. So a killed DAG run can be continued, and tasks can be cleared.

No other module of :mod:`airflow_provider_streamsem.testing` imports Airflow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.stores import Crash


def initialise_airflow() -> None:
    """Create Airflow's metadata database if it does not exist, in the ``AIRFLOW_HOME`` of the environment."""
    import airflow.settings  # noqa: F401
    from airflow.utils.db import initdb

    initdb()


def require_sqlite() -> None:
    """
    Check that Airflow's metadata database is SQLite, before a test writes DAG runs into it.

    :raises InvalidError: the database is not SQLite, so it may belong to a deployment
    """
    from airflow.configuration import conf

    scheme = str(conf.get("database", "sql_alchemy_conn")).partition(":")[0]
    if not scheme.startswith("sqlite"):
        raise InvalidError(
            "tests of DAGs write DAG runs into Airflow's metadata database, and this database may belong to a deployment",
            given=scheme,
            accepted="SQLite, for example in a separate AIRFLOW_HOME for tests that is set before Airflow is imported",
        )


def run_dag(dag: Any, run_id: str, *, clear: Collection[str] = (), conf: dict[str, Any] | None = None) -> Any:
    """
    Run a DAG in this process with a run id, and return the DagRun.

    If there is no run with this id, the function creates one. Otherwise it continues the run. A task that a killed process left unfinished gets its next try,
    as from the scheduler after a heartbeat timeout. A finished task does not run again, unless ``clear`` names it.

    ``dag.test()`` always creates a new run, so this function patches the function with which ``dag.test()`` does so.

    :param dag: the DAG
    :param clear: ids of the tasks to clear in an existing run
    :param conf: ``conf`` of a new run: values for the DAG's params
    """
    import airflow.settings
    from airflow.models import dagrun as dagrun_module
    from airflow.models.dagrun import DagRun
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    finished = {TaskInstanceState.SUCCESS, TaskInstanceState.FAILED, TaskInstanceState.SKIPPED, None}
    finished |= {TaskInstanceState.UPSTREAM_FAILED, TaskInstanceState.REMOVED}
    original = dagrun_module.get_or_create_dagrun

    def continue_or_make(*, dag: Any, session: Any, **arguments: Any) -> Any:
        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run_id))
        if dag_run is None:
            return original(dag=dag, session=session, **{**arguments, "run_id": run_id})
        dag_run.dag = dag
        for ti in dag_run.get_task_instances(session=session):
            if ti.state not in finished:
                if ti.state != TaskInstanceState.UP_FOR_RETRY:
                    ti.prepare_db_for_next_try(session)
                ti.state = None
        session.commit()
        if clear:
            dag.clear(task_ids=list(clear), run_id=run_id, dag_run_state=DagRunState.RUNNING, session=session)
        dag_run.set_state(DagRunState.RUNNING)
        session.commit()
        return dag_run

    with (
        patch.object(dagrun_module, "get_or_create_dagrun", continue_or_make),
        patch.object(supervisor, "in_process_api_server", _api_server),
    ):
        try:
            return dag.test(run_conf=conf)
        except Crash:
            airflow.settings.Session.remove()  # discard the uncommitted changes of the killed process
            raise


@cache
def _api_server() -> Any:
    """Return an in-process API server, the same for all runs. Before Airflow 3.3, ``dag.test()`` creates one for each task try, which takes seconds."""
    from airflow.api_fastapi.execution_api.app import InProcessExecutionAPI

    return InProcessExecutionAPI()


def returned(dag_run: Any, task_ids: Collection[str]) -> dict[str, Any]:
    """Return task id → XCom ``return_value`` for tasks of a DAG run. A task that has pushed none is left out."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    query = XComModel.get_many(
        run_id=dag_run.run_id, key="return_value", dag_ids=dag_run.dag_id, task_ids=sorted(task_ids)
    )
    with create_session() as session:
        return {xcom.task_id: XComModel.deserialize_value(xcom) for xcom in session.scalars(query)}


@contextmanager
def report_message_steps(step: Callable[[str], object]) -> Iterator[None]:
    """
    Within the block, report each message of a task to Airflow as two steps, such as ``before Airflow gets SetXCom`` and ``after Airflow got SetXCom``.

    Airflow's task runner treats every exception as a failed try, and sends a message about it. If ``step`` raises :class:`Crash` at that message and at all
    later ones, no more messages are sent. The task instance then stays in state running, as after a kill.
    """
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    send = InProcessSupervisorComms.send

    def step_by_step(comms: Any, msg: Any) -> Any:
        step(f"before Airflow gets {type(msg).__name__}")
        response = send(comms, msg)
        step(f"after Airflow got {type(msg).__name__}")
        return response

    with patch.object(InProcessSupervisorComms, "send", step_by_step):
        yield
