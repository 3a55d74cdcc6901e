"""The DAGs of another team in ``tests/integration/test_page.py``."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, actions_dag
from tests.rows_operator import RunsRows

HOME = Path(os.environ["STREAMSEM_PAGE_HOME"]) / "stock"
stock = Pipeline(
    name="stock",
    log=str(HOME / "log"),
    source=FilesSource(path=str(HOME / "in"), format="json", schema="id long"),
    sinks={"lake": FilesSink(path=str(HOME / "lake"), format="json")},
)

with DAG("stock", schedule=None) as dag:
    RunsRows(task_id="load", pipeline=stock)

actions = actions_dag(stock)
