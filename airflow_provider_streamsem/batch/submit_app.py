"""
The application that ``spark-submit`` runs: one run of a pipeline in the driver, under the run key of the task that submitted it.

It decides as a task would, so that a driver that was submitted twice, or outlives its task, does nothing twice. It needs this package and what the transform
imports in the driver's Python, and connections, where the pipeline names any, in ``AIRFLOW_CONN_<ID>``.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import sys
from collections.abc import Sequence

from airflow_provider_streamsem.batch.pipeline import Pipeline, from_json
from airflow_provider_streamsem.batch.run import run_batch


def arguments(pipeline: Pipeline, *, run_key: str, drain: bool) -> list[str]:
    """The application's arguments for a run. They hold ids of connections, and nothing of what is in them."""
    encoded = base64.urlsafe_b64encode(pipeline.spec_bytes()).decode()
    return ["--spec", encoded, "--run-key", run_key, *(["--drain"] if drain else [])]


def main(argv: Sequence[str] | None = None) -> None:
    """Run in the session that spark-submit has configured; prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="submit_app.py")
    parser.add_argument("--spec", required=True)
    parser.add_argument("--run-key", required=True)
    parser.add_argument("--drain", action="store_true")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    pipeline = from_json(json.loads(base64.urlsafe_b64decode(args.spec)), where="the submitted spec")
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"streamsem {pipeline.name}").getOrCreate()
    try:
        # The task that submitted this driver emits the run's event, so it announces the versions of other runs.
        result = run_batch(pipeline, run_key=args.run_key, drain=args.drain, announces=False)
        print(json.dumps(result.to_json()))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
