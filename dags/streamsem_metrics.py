"""
A metric push that may lose and must not repeat: page views become increments of counters at an endpoint.

The endpoint adds what it gets and keeps no keys, so a call that is made twice counts twice, and nobody can take it back. A counter that lacks a few views after
a crash is still a good counter; one that jumps wakes somebody up. Hence ``at_most_once``: what a crash or a time-out leaves is never sent again, and the
receipts of the version say how many increments are *unknown*. A payment could not live with that: see ``streamsem_payments``.

It needs the folder ``arrivals``, and an endpoint that takes POST. This makes the folder with one file, and starts an endpoint that prints what it gets:

    mkdir -p /tmp/streamsem-metrics/arrivals && echo '{"page": "/home"}' > /tmp/streamsem-metrics/arrivals/1.json && python -c '
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self):
            print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
            self.send_response(204)
            self.end_headers()
    HTTPServer(("127.0.0.1", 9091), Endpoint).serve_forever()'

Environment: STREAMSEM_METRICS_HOME, another folder than ``/tmp/streamsem-metrics``; STREAMSEM_METRICS_URL, your endpoint. An endpoint with credentials is an
Airflow connection of type ``http``: ``conn_id=`` in the place of ``url=``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag, task

from airflow_provider_streamsem import FilesSource, Limits, Pipeline
from airflow_provider_streamsem.sinks.http import HttpSink

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
            part_rows=20,  # the most that one crash can lose
        )
    },
    limits=Limits(max_files=100),
    require="at_most_once",
)


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_metrics() -> None:
    """Count the views that arrived, and push one increment a page. Neither a retry nor a clear pushes one twice."""

    @task.micro_batch(pipeline=METRICS, retries=2, retry_delay=timedelta(seconds=1))
    def push(views: DataFrame) -> DataFrame:
        return views.groupBy("page").count().withColumnRenamed("count", "increment")

    push()


streamsem_metrics()
