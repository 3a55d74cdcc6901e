"""
Event-driven scheduling: files that arrive start a DAG that reads them. Each successful run of that DAG starts a second DAG, which reports the table.

The trigger of an asset watcher lists the folder and reads the log. It emits an event when there are enough unread files for a batch, and may emit the same
event again. The events only start the DAGs. The first DAG determines from the log which files are unread, and the second which rows are committed.

The DAGs require the folder ``arrivals`` and a running triggerer. This command creates the folder with one file:

    mkdir -p /tmp/streamsem-parcels/arrivals && echo '{"id": 1, "grams": 250, "to": "Bern"}' > /tmp/streamsem-parcels/arrivals/1.json

The environment variable STREAMSEM_PARCELS_HOME replaces the folder ``/tmp/streamsem-parcels``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    FreshnessSensor,
    OffsetRangeTrigger,
    Pipeline,
    log_uri,
    open_log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_PARCELS_HOME", "/tmp/streamsem-parcels"))

PARCELS = Pipeline(
    name="parcels",
    log=f"{HOME}/log",
    source=FilesSource(path=f"{HOME}/arrivals", format="json", schema="id long, grams long, to string"),
    sinks={"parcels": FilesSink(path=f"{HOME}/parcels")},
    require="exactly_once",
)

ARRIVALS = Asset(
    "streamsem_parcels_arrivals",
    watchers=[
        AssetWatcher(
            name="parcels",
            trigger=OffsetRangeTrigger(PARCELS, min_rows=100, max_delay=timedelta(minutes=1), poll_interval_s=2),
        )
    ],
)
TABLE = Asset(uri=log_uri(PARCELS.log))


@dag(schedule=[ARRIVALS], catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_event_driven() -> None:
    """Read all files that are unread when the run starts. One run may read the files of many events."""

    @task.micro_batch(pipeline=PARCELS, drain=True, outlets=[TABLE], retries=2, retry_delay=timedelta(seconds=1))
    def clean(parcels: DataFrame) -> DataFrame:
        return parcels.where("grams > 0").selectExpr("id", "grams / 1000.0 as kilos", "upper(to) as destination")

    clean()


@dag(schedule=[TABLE], catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_event_driven_report() -> None:
    """Report the table when all files older than an hour are committed."""
    fresh = FreshnessSensor(task_id="fresh", pipeline=PARCELS, max_age=timedelta(hours=1), deferrable=True)

    @task
    def report() -> dict[str, int]:
        view = open_log(PARCELS.log).view()
        return {"version": view.version, "parcels": view.counts["written.parcels"]}

    fresh >> report()


streamsem_event_driven()
streamsem_event_driven_report()
