"""
The application that ``spark-submit`` runs. It performs one run of a pipeline in the driver, under the run key of the task that submitted the application.

The driver follows the same protocol as a task. So no version is committed twice if a driver is submitted twice, or if it continues after its task has ended.
The Python environment of the driver needs this package and the modules that the transform imports. Connections that the pipeline names must be in the
environment variables ``AIRFLOW_CONN_<ID>``.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import sys
from collections.abc import Sequence

from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json


def arguments(pipeline: Pipeline, *, run_key: str, drain: bool) -> list[str]:
    """Build the command-line arguments of the application for a run. They contain connection ids, and never passwords or other fields of a connection."""
    encoded = base64.urlsafe_b64encode(pipeline.spec_bytes()).decode()
    return ["--spec", encoded, "--run-key", run_key, *(["--drain"] if drain else [])]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the pipeline in the session that ``spark-submit`` has configured, and print the result as JSON."""
    parser = argparse.ArgumentParser(prog="submit_app.py")
    parser.add_argument("--spec", required=True, help="the spec of the pipeline, as JSON in URL-safe base64")
    parser.add_argument("--run-key", required=True, help="run key of the task that submitted the application")
    parser.add_argument(
        "--drain", action="store_true", help="run batches until the target of the run's first plan is reached"
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    pipeline = from_json(json.loads(base64.urlsafe_b64decode(args.spec)), where="the submitted spec")
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"streamsem {pipeline.name}").getOrCreate()
    try:
        # The task that submitted this driver emits the run's asset event, so the task creates the announcement.
        result = run_batch(pipeline, run_key=args.run_key, drain=args.drain, announces=False)
        print(json.dumps(result.to_json()))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
