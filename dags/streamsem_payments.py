r"""
A payments ledger: every payment once, whatever happens to the task. The file also defines a replay DAG and a maintenance DAG.

Nothing may be lost or repeated here, so the pipeline requires exactly-once and skips nothing: a line that cannot be parsed fails the batch, and so does a file
that vanished. A number that may be lost but not repeated, such as a metric, can do with less; money cannot.

It needs the folder ``arrivals``. This makes it, with one file:

    mkdir -p /tmp/streamsem-payments/arrivals && printf '%s\n' > /tmp/streamsem-payments/arrivals/1.json \
      '{"id": "p-1", "account": "Ann", "cents": 250, "at": "2026-01-01T00:00:00Z"}'

Environment: STREAMSEM_PAYMENTS_HOME, another folder than ``/tmp/streamsem-payments``.
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
    RedoOperator,
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
    rows="filter",  # one row for each payment: parsed = written is checked in every attempt
    sinks={"ledger": FilesSink(path=f"{HOME}/ledger", partition_by=["day"])},
    limits=Limits(max_files=100, max_quarantined=0),
    on_data_loss="fail",
    require="exactly_once",
)
LEDGER = Asset(log_uri(PAYMENTS.log))


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_payments() -> None:
    """Book what arrived. A cleared task books anew from the same files: clear it after a fix of ``book``."""

    @task.micro_batch(
        pipeline=PAYMENTS, drain=True, rerun="redo", outlets=[LEDGER], retries=3, retry_delay=timedelta(seconds=1)
    )
    def book(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("id", "account", "cents", "at", "to_date(at) as day")

    book()


def rebook(payments: DataFrame) -> DataFrame:
    """What ``book`` became: accounts in lower case."""
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
    Make the rows of the versions ``first`` to ``last``, both included, anew: the same files, the transform as it is now.

    Airflow's own backfill works on dates, and a log has none: its versions are what can be replayed. Readers switch version by version; where a replay fails
    half-way, trigger it again for the rest.
    """

    @task
    def committed(params: dict[str, Any] | None = None) -> list[int]:
        assert params is not None
        wanted = range(params["first"], params["last"] + 1)
        found = open_log(PAYMENTS.log).versions(newest_first=False)
        return [v.version for v in found if v.version in wanted and v.outcome is not None and v.outcome.committed]

    RedoOperator.partial(
        task_id="redo",
        pipeline=PAYMENTS.replace(transform=rebook),
        outlets=[LEDGER],
        max_active_tis_per_dagrun=1,
        retries=2,
        retry_delay=timedelta(seconds=1),
    ).expand(version=committed())


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_payments_maintenance() -> None:
    """Delete what lost, check the whole log and every visible file. Give it a schedule of your own, such as ``"0 3 * * *"``."""
    vacuum = VacuumOperator(task_id="vacuum", pipeline=PAYMENTS)
    verify = VerifyOperator(task_id="verify", pipeline=PAYMENTS)
    # Asks once, and is skipped where files wait: a person who looks sees it, and nothing fails.
    FreshnessSensor(task_id="fresh", pipeline=PAYMENTS, max_lag=0, timeout=0, soft_fail=True)
    vacuum >> verify


streamsem_payments()
streamsem_payments_replay()
streamsem_payments_maintenance()
