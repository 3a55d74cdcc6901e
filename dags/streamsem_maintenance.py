"""Every night: delete what attempts that lost have left of the payments ledger, then check its whole log and every visible file."""

from __future__ import annotations

from airflow.sdk import dag
from streamsem_payments import PAYMENTS

from airflow_provider_streamsem import FreshnessSensor, VacuumOperator, VerifyOperator


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_maintenance() -> None:
    """Give it a schedule of your own, such as ``"0 3 * * *"``."""
    vacuum = VacuumOperator(task_id="vacuum", pipeline=PAYMENTS)
    verify = VerifyOperator(task_id="verify", pipeline=PAYMENTS)
    # Asks once, and is skipped where files wait: a person who looks sees it, and nothing fails.
    FreshnessSensor(task_id="fresh", pipeline=PAYMENTS, max_lag=0, timeout=0, soft_fail=True)
    vacuum >> verify


streamsem_maintenance()
