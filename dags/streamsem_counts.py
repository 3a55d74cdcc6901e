r"""
Counts page views per page and hour, with the ready-made transform ``Aggregate``.

Pages send their views as JSON files, out of order and with delays. Each commit contains the counts so far. The DAG writes the count of an hour once, after the
watermark passes the end of the hour. The watermark is ten minutes before the newest view.

The DAG requires the directory ``arrivals``. This command creates it with two files:

    mkdir -p /tmp/streamsem-counts/arrivals && cd /tmp/streamsem-counts/arrivals && printf '%s\n' > 1.json \
      '{"page": "home", "user": "ann", "at": "2026-01-01T12:01:00Z"}' '{"page": "home", "user": "bob", "at": "2026-01-01T12:59:00Z"}' && \
      printf '%s\n' '{"page": "home", "user": "ann", "at": "2026-01-01T13:30:00Z"}' > 2.json

The first run reads both files and writes no rows. The view of 13:30 moves the watermark to 13:20. The second run, ten minutes later, is a no-data batch. It
writes the count of the hour from 12:00, because the watermark is after the end of that hour.

The environment variable STREAMSEM_COUNTS_HOME replaces the directory ``/tmp/streamsem-counts``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    MicroBatchOperator,
    Pipeline,
    State,
    Window,
)
from airflow_provider_streamsem.transforms import monoids as m

HOME = os.path.abspath(os.environ.get("STREAMSEM_COUNTS_HOME", "/tmp/streamsem-counts"))

COUNTS = Pipeline(
    name="counts",
    log=f"{HOME}/log",
    source=FilesSource(
        path=f"{HOME}/arrivals",
        format="json",
        schema="page string, user string, at timestamp",
        hive_partitions=False,
    ),
    transform=Aggregate(
        by=["page"],
        window=Window(time="at", size="1 hour", delay="10 minutes"),
        values={"views": m.count(), "users": m.approximate_distinct("user")},
    ),
    sinks={"counts": FilesSink(path=f"{HOME}/counts")},
    state=State(output_mode="append", partitions=2),
    require="exactly_once",
)


@dag(
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["streamsem"],
)
def streamsem_counts() -> None:
    """Read the new files, and write the counts of the hours that the watermark has passed."""
    MicroBatchOperator(
        task_id="count",
        pipeline=COUNTS,
        retries=2,
        retry_delay=timedelta(seconds=1),
        spark_conf={"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "1g"},
    )


streamsem_counts()
