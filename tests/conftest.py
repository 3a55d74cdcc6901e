"""Surroundings of every test: Airflow's home in a scratch folder, before anything can import Airflow; one Spark session; stores."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

assert "airflow" not in sys.modules, (
    "Airflow reads its settings once, at its first import: it must come after this file"
)
_HOME = tempfile.mkdtemp(prefix="streamsem-tests-")
for _name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_", "AWS_"))]:
    del os.environ[_name]
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__DAGS_FOLDER=str(Path(__file__).parent.parent / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AWS_EC2_METADATA_DISABLED="true",
    SPARK_LOCAL_IP="127.0.0.1",
    TZ="UTC",
)


# The same examples in every run: a test that fails does so for everyone. `make prove` looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None, max_examples=1_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that every Spark test shares; engines find it as the active one."""
    from airflow_provider_streamsem.engines.spark import SparkEngine

    session = SparkEngine(
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": f"{_HOME}/warehouse",
        },
    ).session()
    session.sparkContext.setLogLevel("OFF")
    # py4j speaks when the process ends, after pytest has closed its streams.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """moto's S3 server, one request at a time (see testing/s3.py)."""
    from airflow_provider_streamsem.testing.s3 import s3_server

    with s3_server(bucket="lake") as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server in boto3's environment; returns the bucket's URL."""
    from airflow_provider_streamsem.testing.s3 import environment

    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return "s3://lake"
