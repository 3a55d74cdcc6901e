"""``dag.test()`` under a run id of one's choice, which can be continued after a kill, and cleared. The one module of testing that imports Airflow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.stores import Crash


def initialise_airflow() -> None:
    """Make Airflow's metadata database where it is not there yet, in the home that the environment names."""
    import airflow.settings  # noqa: F401
    from airflow.utils.db import initdb

    initdb()


def require_sqlite() -> None:
    """
    Before a test writes DAG runs into the metadata database: only one that is a file.

    :raises InvalidError: it may be a deployment's
    """
    from airflow.configuration import conf

    scheme = str(conf.get("database", "sql_alchemy_conn")).partition(":")[0]
    if not scheme.startswith("sqlite"):
        raise InvalidError(
            "tests of DAGs write DAG runs into Airflow's metadata database, and this one may be a deployment's",
            given=scheme,
            accepted="SQLite, as in an AIRFLOW_HOME of the tests' own, set before Airflow is imported",
        )


def run_dag(dag: Any, run_id: str, *, clear: Collection[str] = (), conf: dict[str, Any] | None = None) -> Any:
    """
    Run a DAG in this process as ``run_id``; returns the DagRun.

    A run id that is new makes a new run. One that exists is continued: tasks that a killed process left unfinished get their next try, as the scheduler gives
    it to them after a heartbeat time-out; finished tasks are left alone, unless ``clear`` names them.

    :param conf: of a new run: values for the DAG's params

    ``dag.test()`` itself always makes a new run, so the one function by which it does that is replaced while it runs.
    """
    import airflow.settings
    from airflow.models import dagrun as dagrun_module
    from airflow.models.dagrun import DagRun
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    finished = {TaskInstanceState.SUCCESS, TaskInstanceState.FAILED, TaskInstanceState.SKIPPED, None}
    finished |= {TaskInstanceState.UPSTREAM_FAILED, TaskInstanceState.REMOVED}
    make = dagrun_module.get_or_create_dagrun

    def continue_or_make(*, dag: Any, session: Any, **arguments: Any) -> Any:
        found = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run_id))
        if found is None:
            return make(dag=dag, session=session, **{**arguments, "run_id": run_id})
        found.dag = dag
        for ti in found.get_task_instances(session=session):
            if ti.state not in finished:
                if ti.state != TaskInstanceState.UP_FOR_RETRY:
                    ti.prepare_db_for_next_try(session)
                ti.state = None
        session.commit()
        if clear:
            dag.clear(task_ids=list(clear), run_id=run_id, dag_run_state=DagRunState.RUNNING, session=session)
        found.set_state(DagRunState.RUNNING)
        session.commit()
        return found

    with (
        patch.object(dagrun_module, "get_or_create_dagrun", continue_or_make),
        patch.object(supervisor, "in_process_api_server", _api_server),
    ):
        try:
            return dag.test(run_conf=conf)
        except Crash:
            airflow.settings.Session.remove()  # with whatever the dead process had begun
            raise


@cache
def _api_server() -> Any:
    """Airflow's API in this process, kept: before Airflow 3.3 ``dag.test()`` makes one for each run of a task, which takes seconds."""
    from airflow.api_fastapi.execution_api.app import InProcessExecutionAPI

    return InProcessExecutionAPI()


def returned(dag_run: Any, task_ids: Collection[str]) -> dict[str, Any]:
    """What tasks of a DAG run returned: task id → XCom ``return_value``; a task that pushed none is absent."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    query = XComModel.get_many(
        run_id=dag_run.run_id, key="return_value", dag_ids=dag_run.dag_id, task_ids=sorted(task_ids)
    )
    with create_session() as session:
        return {found.task_id: XComModel.deserialize_value(found) for found in session.scalars(query)}


@contextmanager
def stepped_messages(step: Callable[[str], object]) -> Iterator[None]:
    """
    While the block runs, what tasks say to Airflow is told: two steps a message, ``before Airflow gets SetXCom`` and ``after Airflow got SetXCom``.

    Airflow takes whatever a task raises for a failed try, and says so; where ``step`` raises :class:`Crash` from then on, nothing more is said, and the task
    instance stays running, as after a kill.
    """
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    send = InProcessSupervisorComms.send

    def stepped(comms: Any, msg: Any) -> Any:
        step(f"before Airflow gets {type(msg).__name__}")
        answer = send(comms, msg)
        step(f"after Airflow got {type(msg).__name__}")
        return answer

    with patch.object(InProcessSupervisorComms, "send", stepped):
        yield
