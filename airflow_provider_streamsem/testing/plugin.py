"""
A pytest plugin with fixtures for tests of pipelines and DAGs. pytest loads it wherever this package is installed. It does nothing until a test uses a
fixture.

The module imports only pytest, because every pytest run in the environment loads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.pipeline.spec import Pipeline
    from airflow_provider_streamsem.testing.dag_harness import DagHarness
    from airflow_provider_streamsem.testing.harness import PipelineHarness

_BUCKET = "streamsem"
_LOCATIONS = count()


@pytest.fixture(scope="session")
def streamsem_s3_endpoint() -> Iterator[str]:
    """Endpoint of a moto S3 server in this process, with the bucket ``streamsem``. Requires the extra ``testing``."""
    from airflow_provider_streamsem.testing.s3 import s3_server

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            _forget_aws(patched)
            endpoint = stack.enter_context(s3_server(bucket=_BUCKET))
        yield endpoint


@pytest.fixture
def streamsem_log(streamsem_s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """
    URL of an empty location for logs on that server: ``s3://streamsem/test-<n>``, a different one for each test.

    During the test, boto3 finds only this server. The fixture replaces all ``AWS_*`` variables and configuration files.
    """
    from airflow_provider_streamsem.testing.s3 import environment, make_bucket

    _forget_aws(monkeypatch)
    for name, value in environment(streamsem_s3_endpoint).items():
        monkeypatch.setenv(name, value)
    make_bucket(streamsem_s3_endpoint, _BUCKET)  # a test with mock_aws also empties moto's servers
    return f"s3://{_BUCKET}/test-{next(_LOCATIONS)}"


def _forget_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables and files that could lead boto3 to another server or to a missing profile."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture(scope="session")
def streamsem_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """
    A Spark session for all tests: ``local[2]``, no UI, UTC. Requires the extra ``spark`` and Java. If a session is already active, the fixture returns it
    unchanged.
    """
    from airflow_provider_streamsem.testing.spark import local_session

    with local_session(str(tmp_path_factory.mktemp("spark"))) as session:
        yield session


@pytest.fixture
def streamsem_harness(streamsem_spark: SparkSession, tmp_path: Path) -> Callable[..., PipelineHarness]:
    """
    Factory: call it with a production pipeline to get a :class:`~airflow_provider_streamsem.testing.harness.PipelineHarness` on Spark, at locations of this
    test.

    ``log=streamsem_log`` stores the harness's logs on S3 instead of in memory.
    """
    from airflow_provider_streamsem.testing.harness import PipelineHarness

    def made(pipeline: Pipeline, *, log: str | None = None) -> PipelineHarness:
        return PipelineHarness(pipeline, tmp_path, spark=streamsem_spark, log=log)

    return made


@pytest.fixture(scope="session")
def streamsem_airflow() -> None:
    """Airflow's metadata database in the ``AIRFLOW_HOME`` of the process, created if it does not exist. Only SQLite, because tests write DAG runs into it."""
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, require_sqlite

    require_sqlite()
    initialise_airflow()


@pytest.fixture
def streamsem_dag_harness(
    streamsem_airflow: None, streamsem_spark: SparkSession, tmp_path: Path
) -> Callable[[Any], DagHarness]:
    """
    Factory: call it with a DAG of the DAGs folder to get a :class:`~airflow_provider_streamsem.testing.dag_harness.DagHarness` on Spark, at locations of this
    test.
    """
    from airflow_provider_streamsem.testing.dag_harness import DagHarness

    def made(dag: Any) -> DagHarness:
        return DagHarness(dag, tmp_path, spark=streamsem_spark)

    return made
