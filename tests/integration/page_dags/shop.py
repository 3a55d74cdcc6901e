"""The DAGs of ``tests/integration/test_page.py``. Files in their home select faults and changes: ``poison``, ``refuse`` and ``altered``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, MicroBatchOperator, Pipeline, actions_dag
from airflow_provider_streamsem.errors import PublishError
from tests.external_systems import TableSink

HOME = Path(os.environ["STREAMSEM_PAGE_HOME"])


def clean(frame: Any) -> Any:
    """Return the rows unchanged; fail while the transform is poisoned."""
    if (HOME / "poison").exists():
        raise ValueError("the transform is poisoned")
    return frame


def step(name: str) -> None:
    """Refuse to publish while the table refuses rows."""
    if (HOME / "refuse").exists() and name == "before publish table":
        raise PublishError("the table refuses the batch", sink="table")


TableSink.step = staticmethod(step)  # type: ignore[assignment]
more = {"copy": FilesSink(path=str(HOME / "copy"), format="json")} if (HOME / "altered").exists() else {}
shop = Pipeline(
    name="shop",
    log=str(HOME / "log"),
    source=FilesSource(path=str(HOME / "in"), format="json", schema="id long, country string"),
    transform=clean,
    sinks={
        "lake": FilesSink(path=str(HOME / "lake"), format="parquet", partition_by=["country"]),
        "table": TableSink(path=str(HOME / "staged"), database=str(HOME / "table.db")),
        **more,
    },
    limits=Limits(max_files=2),
)

with DAG("shop", schedule=None) as dag:
    MicroBatchOperator(task_id="load", pipeline=shop, drain=True, spark_master="local[1]")

actions = actions_dag(shop, spark_master="local[1]")
