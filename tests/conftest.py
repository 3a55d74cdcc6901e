"""Surroundings of every test: Airflow's home in a scratch folder, before anything can import Airflow; one Spark session."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tools import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_location import Location

assert "airflow" not in sys.modules, (
    "Airflow reads its settings once, at its first import: it must come after this file"
)
_MEMORY_DISK = Path("/dev/shm")
if _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free > 8 << 30:
    # Processes are killed, but the machine is not: durable writes may go to memory, where fsync takes no time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY_DISK))
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
    JAVA_TOOL_OPTIONS=class_archive.options(class_archive.archive()),
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
def spark(streamsem_spark: SparkSession) -> SparkSession:
    """The session that every Spark test shares; engines find it as the active one."""
    return streamsem_spark


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Location:
    """The directories of a pipeline that runs on the shared session."""
    from tests.spark_location import Location

    return Location(tmp_path)
