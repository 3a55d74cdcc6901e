"""
Pushes page views as increments of counters to an HTTP endpoint. Increments may be lost, but none may be sent twice.

The endpoint adds each increment and does not support idempotency keys. An increment that is sent twice counts twice, and cannot be undone. A counter that lacks
a few views after a crash is acceptable, but a counter that is too high causes an alarm. So the delivery is ``at_most_once``. After a crash or a timeout, the
affected increments are not sent again. The receipts of the version record how many are *unknown*. For payments, this is not acceptable; see
``streamsem_payments``.

The DAG requires the folder ``arrivals`` and an endpoint that accepts POST. This command creates the folder with one file, and starts an endpoint that prints
each call:

    mkdir -p /tmp/streamsem-metrics/arrivals && echo '{"page": "/home"}' > /tmp/streamsem-metrics/arrivals/1.json && python -c '
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self):
            print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
            self.send_response(204)
            self.end_headers()
    HTTPServer(("127.0.0.1", 9091), Endpoint).serve_forever()'

The environment variable STREAMSEM_METRICS_HOME replaces the folder ``/tmp/streamsem-metrics``, and STREAMSEM_METRICS_URL sets your endpoint. For an endpoint
with credentials, use an Airflow connection of type ``http`` with ``conn_id=`` instead of ``url=``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag, task

from airflow_provider_streamsem import FilesSource, Limits, Pipeline
from airflow_provider_streamsem.connectors.http.sink import HttpSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_METRICS_HOME", "/tmp/streamsem-metrics"))

METRICS = Pipeline(
    name="metrics",
    log=f"{HOME}/log",
    source=FilesSource(path=f"{HOME}/arrivals", format="json", schema="page string"),
    sinks={
        "push": HttpSink(
            f"{HOME}/staged",
            url=os.environ.get("STREAMSEM_METRICS_URL", "http://127.0.0.1:9091/increments"),
            delivery="at_most_once",
            chunk_rows=20,  # one crash can lose at most this many increments
        )
    },
    limits=Limits(max_files=100),
    require="at_most_once",
)


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_metrics() -> None:
    """Count the new views of each page, and push one increment per page. Neither a retry nor a cleared task pushes an increment twice."""

    @task.micro_batch(pipeline=METRICS, retries=2, retry_delay=timedelta(seconds=1))
    def push(views: DataFrame) -> DataFrame:
        return views.groupBy("page").count().withColumnRenamed("count", "increment")

    push()


streamsem_metrics()
