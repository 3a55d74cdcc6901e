"""Runs the quickstart DAG in this process: ``run_dag.py RUN_ID [--clear]``. The demo starts this process and kills it."""

from __future__ import annotations

import os
import sys


def main(run_id: str, *, clear: bool) -> int:
    """Run or continue a DAG run, and return the exit code: 0 if it succeeded."""
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    if not os.path.exists(os.path.join(os.environ["AIRFLOW_HOME"], "airflow.db")):
        initialise_airflow()
    from streamsem_quickstart import streamsem_quickstart

    run = run_dag(streamsem_quickstart(), run_id, clear=["clean"] if clear else [])
    return 0 if run.state == "success" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], clear="--clear" in sys.argv))
