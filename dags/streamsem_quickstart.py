r"""
Quickstart: writes the rows of files that arrive in a folder to a table, exactly once.

Flights arrive as one CSV file a day. Each run of the DAG reads the new files in batches of 60, cleans each row, and writes Parquet files by month. After kills,
retries and clears, the table still contains each departed flight once. ``make demo`` shows this with the flights of a year.

The DAG requires the folder ``arrivals``. This command creates it with one file:

    mkdir -p /tmp/streamsem-quickstart/arrivals && printf '%s\n' > /tmp/streamsem-quickstart/arrivals/2013-01-01.csv \
      year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour \
      2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T05:00:00Z

The environment variable STREAMSEM_QUICKSTART_HOME replaces the folder ``/tmp/streamsem-quickstart``, and STREAMSEM_QUICKSTART_LOG sets the location of the
commit log (``s3://bucket/prefix`` or a path).
"""  # noqa: E501

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, dag, task

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_QUICKSTART_HOME", "/tmp/streamsem-quickstart"))
LOG = os.environ.get("STREAMSEM_QUICKSTART_LOG", f"{HOME}/log")

FLIGHTS = Pipeline(
    name="flights",
    log=LOG,
    source=FilesSource(
        path=f"{HOME}/arrivals",
        format="csv",
        options={"header": "true", "nullValue": "NA"},
        schema=(
            "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, arr_delay int, "
            "carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int, hour int, minute int, "
            "time_hour timestamp"
        ),
    ),
    where="dep_time is not null",  # a flight without a departure time was cancelled
    rows="filter",  # the transform returns one row for each input row, and every attempt checks this
    sinks={"flights": FilesSink(path=f"{HOME}/flights", format="parquet", partition_by=["month"])},
    limits=Limits(max_files=60),
    require="exactly_once",
)


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_quickstart() -> None:
    """Read the new files in batches of 60."""

    @task.micro_batch(
        pipeline=FLIGHTS,
        drain=True,
        outlets=[Asset("streamsem_quickstart_flights")],
        retries=2,
        retry_delay=timedelta(seconds=1),
        spark_conf={
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a faster start for small batches
        },
    )
    def clean(flights: DataFrame) -> DataFrame:
        return flights.selectExpr(
            "make_date(year, month, day) as day",
            "month",
            "time_hour as scheduled_hour",
            "carrier || ' ' || flight as flight",
            "nullif(tailnum, '') as tail_number",
            "origin",
            "dest as destination",
            "sched_dep_time as scheduled_departure",
            "dep_delay as departure_delay_minutes",
            "coalesce(arr_delay, 0) > 15 as late",
            "round(distance * 1.609344) as distance_km",
        )

    clean()


streamsem_quickstart()
