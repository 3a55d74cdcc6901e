"""
Fixtures for tests of pipelines and DAGs: a pytest plugin that is there wherever this package is installed, and does nothing until a fixture is used.

Imports nothing but pytest: every pytest of the environment loads this module.
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

    from airflow_provider_streamsem.batch.pipeline import Pipeline
    from airflow_provider_streamsem.testing.dag_harness import DagHarness
    from airflow_provider_streamsem.testing.harness import PipelineHarness

_BUCKET = "streamsem"
_PLACES = count()


@pytest.fixture(scope="session")
def streamsem_s3_endpoint() -> Iterator[str]:
    """The address of an S3 server in this process, moto's, with the bucket ``streamsem``. Needs the extra ``testing``."""
    from airflow_provider_streamsem.testing.s3 import s3_server

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            _forget_aws(patched)
            endpoint = stack.enter_context(s3_server(bucket=_BUCKET))
        yield endpoint


@pytest.fixture
def streamsem_log(streamsem_s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """
    The URL of an empty place for logs on that server: ``s3://streamsem/test-<n>``, another for each test.

    While the test runs, boto3 finds this server and no other: all ``AWS_*`` variables and configuration files are replaced.
    """
    from airflow_provider_streamsem.testing.s3 import environment, make_bucket

    _forget_aws(monkeypatch)
    for name, value in environment(streamsem_s3_endpoint).items():
        monkeypatch.setenv(name, value)
    make_bucket(streamsem_s3_endpoint, _BUCKET)  # a test with mock_aws empties moto's servers, too
    return f"s3://{_BUCKET}/test-{next(_PLACES)}"


def _forget_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and files by which boto3 might find another server, or fail to find a profile."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture(scope="session")
def streamsem_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session for all tests: ``local[2]``, no UI, UTC. Needs the extra ``spark`` and Java; a session that is active already is used as it is."""
    from airflow_provider_streamsem.testing.spark import local_session

    with local_session(str(tmp_path_factory.mktemp("spark"))) as session:
        yield session


@pytest.fixture
def streamsem_harness(streamsem_spark: SparkSession, tmp_path: Path) -> Callable[..., PipelineHarness]:
    """
    Call it with a pipeline as it is in production: a :class:`~airflow_provider_streamsem.testing.harness.PipelineHarness` on Spark, at places of this test.

    ``log=streamsem_log`` puts the harness's logs on S3 instead of into memory.
    """
    from airflow_provider_streamsem.testing.harness import PipelineHarness

    def made(pipeline: Pipeline, *, log: str | None = None) -> PipelineHarness:
        return PipelineHarness(pipeline, tmp_path, spark=streamsem_spark, log=log)

    return made


@pytest.fixture(scope="session")
def streamsem_airflow() -> None:
    """Airflow's metadata database, made where it is not there yet, in the ``AIRFLOW_HOME`` of the process. Only SQLite: tests write DAG runs into it."""
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, require_sqlite

    require_sqlite()
    initialise_airflow()


@pytest.fixture
def streamsem_dag_harness(
    streamsem_airflow: None, streamsem_spark: SparkSession, tmp_path: Path
) -> Callable[[Any], DagHarness]:
    """Call it with a DAG of the dags folder: a :class:`~airflow_provider_streamsem.testing.dag_harness.DagHarness` on Spark, at places of this test."""
    from airflow_provider_streamsem.testing.dag_harness import DagHarness

    def made(dag: Any) -> DagHarness:
        return DagHarness(dag, tmp_path, spark=streamsem_spark)

    return made
