"""
A pytest plugin with fixtures for tests of pipelines and DAGs.

Every pytest run in an environment with this package loads the plugin, so this module imports only pytest. The plugin does nothing until a test uses a fixture.
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

    from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
    from airflow_provider_streamsem.testing.dag_harness import DagHarness
    from airflow_provider_streamsem.testing.harness import PipelineHarness

_BUCKET = "streamsem"
_LOCATIONS = count()


@pytest.fixture(scope="session")
def streamsem_s3_endpoint() -> Iterator[str]:
    """The endpoint of a moto S3 server in this process, with the bucket ``streamsem``. The fixture requires the extra ``testing``."""
    from airflow_provider_streamsem.testing.s3 import s3_server

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            _remove_aws_settings(patched)
            endpoint = stack.enter_context(s3_server(bucket=_BUCKET))
        yield endpoint


@pytest.fixture
def streamsem_log(streamsem_s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """
    The URL of an empty location for logs on that server, ``s3://streamsem/test-<n>``. Each test gets another one.

    The fixture replaces all ``AWS_*`` variables and configuration files, so that boto3 accesses only this server during the test.
    """
    from airflow_provider_streamsem.testing.s3 import environment, make_bucket

    _remove_aws_settings(monkeypatch)
    for name, value in environment(streamsem_s3_endpoint).items():
        monkeypatch.setenv(name, value)
    make_bucket(streamsem_s3_endpoint, _BUCKET)  # a test with mock_aws also deletes the buckets of moto's servers
    return f"s3://{_BUCKET}/test-{next(_LOCATIONS)}"


def _remove_aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove environment variables and configuration files that could make boto3 use another server or a missing profile."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture(scope="session")
def streamsem_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """
    A Spark session for all tests: ``local[2]``, without UI, with time zone UTC. If a session is already active, the fixture returns it unchanged.

    The fixture requires the extra ``spark`` and Java.
    """
    from airflow_provider_streamsem.testing.spark import local_session

    with local_session(str(tmp_path_factory.mktemp("spark"))) as session:
        yield session


@pytest.fixture
def streamsem_harness(streamsem_spark: SparkSession, tmp_path: Path) -> Callable[..., PipelineHarness]:
    """
    A function that creates a :class:`~airflow_provider_streamsem.testing.harness.PipelineHarness` for a production pipeline, with Spark and at locations of
    this test.

    With ``log=streamsem_log``, the logs of the harness are on S3 instead of in memory.
    """
    from airflow_provider_streamsem.testing.harness import PipelineHarness

    def make(pipeline: Pipeline, *, log: str | None = None) -> PipelineHarness:
        return PipelineHarness(pipeline, tmp_path, spark=streamsem_spark, log=log)

    return make


@pytest.fixture(scope="session")
def streamsem_airflow() -> None:
    """
    Creates Airflow's metadata database in the ``AIRFLOW_HOME`` of the process if it does not exist.

    The database must be SQLite. Tests write DAG runs into it, and another database may belong to a deployment.
    """
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, require_sqlite

    require_sqlite()
    initialise_airflow()


@pytest.fixture
def streamsem_dag_harness(
    streamsem_airflow: None, streamsem_spark: SparkSession, tmp_path: Path
) -> Callable[[Any], DagHarness]:
    """
    A function that creates a :class:`~airflow_provider_streamsem.testing.dag_harness.DagHarness` for a DAG of the DAGs folder, with Spark and at locations of
    this test.
    """
    from airflow_provider_streamsem.testing.dag_harness import DagHarness

    def make(dag: Any) -> DagHarness:
        return DagHarness(dag, tmp_path, spark=streamsem_spark)

    return make
