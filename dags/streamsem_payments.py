"""
A payments ledger: every payment once, whatever happens to the task, and a stop at the first record that cannot be a payment.

Nothing may be lost or repeated here, so the pipeline requires exactly-once, and refuses to pass over anything: a line that cannot be parsed stops it, and so
does a file that vanished. A number that may be lost but not repeated, such as a metric, can do with less; money cannot.

Set STREAMSEM_PAYMENTS_HOME to the folder where ``arrivals/`` gets JSON lines such as
``{"id": "p-1", "account": "a", "cents": 250, "at": "2026-01-01T00:00:00Z"}``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, dag, task

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, log_uri

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
LEDGER = Asset("streamsem_payments_ledger", uri=log_uri(PAYMENTS.log))


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_payments() -> None:
    """Book what arrived. A cleared task books anew from the same files: clear it after a fix of ``book``."""

    @task.micro_batch(
        pipeline=PAYMENTS, drain=True, rerun="redo", outlets=[LEDGER], retries=3, retry_delay=timedelta(seconds=1)
    )
    def book(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("id", "account", "cents", "at", "to_date(at) as day")

    book()


streamsem_payments()
