r"""
Writes payments to a ledger that contains each payment exactly once, even after failures. The file also defines a DAG that replays versions and a DAG for
maintenance.

No payment may be lost or repeated, so the pipeline requires exactly-once and skips nothing. A line that cannot be parsed fails the batch, and so does a missing
file. A metric may have a weaker guarantee; see ``streamsem_metrics``.

The DAGs require the folder ``arrivals``. This command creates it with one file:

    mkdir -p /tmp/streamsem-payments/arrivals && printf '%s\n' > /tmp/streamsem-payments/arrivals/1.json \
      '{"id": "p-1", "account": "Ann", "cents": 250, "at": "2026-01-01T00:00:00Z"}'

The environment variable STREAMSEM_PAYMENTS_HOME replaces the folder ``/tmp/streamsem-payments``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Param, dag, task

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    FreshnessSensor,
    Limits,
    Pipeline,
    ReprocessOperator,
    VacuumOperator,
    VerifyOperator,
    log_uri,
    open_log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_PAYMENTS_HOME", "/tmp/streamsem-payments"))

PAYMENTS = Pipeline(
    name="payments",
    log=f"{HOME}/log",
    source=FilesSource(
        path=f"{HOME}/arrivals", format="json", schema="id string, account string, cents long, at timestamp"
    ),
    rows="filter",  # the transform returns one row for each payment, and every attempt checks this
    sinks={"ledger": FilesSink(path=f"{HOME}/ledger", partition_by=["day"])},
    limits=Limits(max_files=100, max_quarantined=0),
    on_data_loss="fail",
    require="exactly_once",
)
LEDGER = Asset(log_uri(PAYMENTS.log))


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_payments() -> None:
    """Book the new payments. A cleared task reprocesses the same files, so clear it after a fix of ``book``."""

    @task.micro_batch(
        pipeline=PAYMENTS, drain=True, rerun="reprocess", outlets=[LEDGER], retries=3, retry_delay=timedelta(seconds=1)
    )
    def book(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("id", "account", "cents", "at", "to_date(at) as day")

    book()


def rebook(payments: DataFrame) -> DataFrame:
    """Book payments as ``book`` does, but with accounts in lower case."""
    return payments.selectExpr("id", "lower(account) as account", "cents", "at", "to_date(at) as day")


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["streamsem"],
    params={"first": Param(0, type="integer", minimum=0), "last": Param(0, type="integer", minimum=0)},
)
def streamsem_payments_replay() -> None:
    """
    Reprocess the versions ``first`` to ``last`` (both inclusive) from the same files with the current transform.

    Airflow's backfill reruns a DAG for dates, but a log has versions instead of dates. Each version is replaced atomically, one after another. If a replay
    fails, trigger it again for the remaining versions.
    """

    @task
    def committed(params: dict[str, Any] | None = None) -> list[int]:
        assert params is not None
        numbers = range(params["first"], params["last"] + 1)
        versions = open_log(PAYMENTS.log).versions(newest_first=False)
        return [v.version for v in versions if v.version in numbers and v.outcome is not None and v.outcome.committed]

    ReprocessOperator.partial(
        task_id="reprocess",
        pipeline=PAYMENTS.replace(transform=rebook),
        outlets=[LEDGER],
        max_active_tis_per_dagrun=1,
        retries=2,
        retry_delay=timedelta(seconds=1),
    ).expand(version=committed())


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_payments_maintenance() -> None:
    """Delete files of attempts that did not commit, and verify the log and every visible file. Set your own schedule, such as ``"0 3 * * *"``."""
    vacuum = VacuumOperator(task_id="vacuum", pipeline=PAYMENTS)
    verify = VerifyOperator(task_id="verify", pipeline=PAYMENTS)
    # The sensor checks once. If there are unread files, it is skipped, which is visible in the UI, and the DAG run does not fail.
    FreshnessSensor(task_id="fresh", pipeline=PAYMENTS, max_lag=0, timeout=0, soft_fail=True)
    vacuum >> verify


streamsem_payments()
streamsem_payments_replay()
streamsem_payments_maintenance()
