"""``dag.test()`` under a run id of one's choice, which can be continued after a kill, and cleared. The one module of testing that imports Airflow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from unittest.mock import patch


def initialise_airflow() -> None:
    """Make Airflow's metadata database where it is not there yet, in the home that the environment names."""
    import airflow.settings  # noqa: F401
    from airflow.utils.db import initdb

    initdb()


def run_dag(dag: Any, run_id: str, *, clear: Collection[str] = (), conf: dict[str, Any] | None = None) -> Any:
    """
    Run a DAG in this process as ``run_id``; returns the DagRun.

    A run id that is new makes a new run. One that exists is continued: tasks that a killed process left unfinished get their next try, as the scheduler gives
    it to them after a heartbeat time-out; finished tasks are left alone, unless ``clear`` names them.

    :param conf: of a new run: values for the DAG's params

    ``dag.test()`` itself always makes a new run, so the one function by which it does that is replaced while it runs.
    """
    from airflow.models import dagrun as dagrun_module
    from airflow.models.dagrun import DagRun
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

    with patch.object(dagrun_module, "get_or_create_dagrun", continue_or_make):
        return dag.test(run_conf=conf)
