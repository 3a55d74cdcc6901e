"""
Replay: make the rows of some versions of the payments ledger anew, from the same files, with the transform as it is now.

Trigger it with ``{"first": 3, "last": 7}``. Airflow's own backfill works on dates, and a log has none: its versions are what can be replayed. Readers switch
version by version, and a replay that fails half-way has replaced what it has replaced; trigger it again to go on with the rest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task
from streamsem_payments import PAYMENTS

from airflow_provider_streamsem import RedoOperator, open_log


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["streamsem"],
    params={"first": Param(0, type="integer", minimum=0), "last": Param(0, type="integer", minimum=0)},
)
def streamsem_replay() -> None:
    """One mapped task for each committed version between ``first`` and ``last``, both included."""

    @task
    def committed(params: dict[str, Any] | None = None) -> list[int]:
        assert params is not None
        wanted = range(params["first"], params["last"] + 1)
        found = open_log(PAYMENTS.log).versions(newest_first=False)
        return [v.version for v in found if v.version in wanted and v.outcome is not None and v.outcome.committed]

    RedoOperator.partial(
        task_id="redo",
        pipeline=PAYMENTS.replace(transform="streamsem_replay:book"),
        max_active_tis_per_dagrun=1,
        retries=2,
        retry_delay=timedelta(seconds=1),
    ).expand(version=committed())


def book(payments: Any) -> Any:
    """The ledger's transform, as it is after a fix: accounts in lower case."""
    return payments.selectExpr("id", "lower(account) as account", "cents", "at", "to_date(at) as day")


streamsem_replay()
