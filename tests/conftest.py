"""Settings of all tests: a temporary home for Airflow, set before any import of Airflow, and one shared Spark session."""

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
    "Airflow reads its settings at its first import, so this file must be imported before Airflow"
)
_RAM_DISK = Path("/dev/shm")
if _RAM_DISK.is_dir() and shutil.disk_usage(_RAM_DISK).free > 8 << 30:
    # The tests kill processes but not the machine, so durable writes may go to memory, where fsync takes no time.
    os.environ.setdefault("TMPDIR", str(_RAM_DISK))
    tempfile.tempdir = None  # read TMPDIR again
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


# By default, every run uses the same examples, so that failures are reproducible. `make prove` generates new examples.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None, max_examples=1_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with the mark ``spark`` or ``airflow`` as slow, before pytest selects tests by their marks. Tests of ``make prove`` may take 20 minutes."""
    for item in items:
        if item.get_closest_marker("prove") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1_200))
        if any(item.get_closest_marker(name) for name in ("spark", "airflow")):
            item.add_marker("slow")


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(streamsem_spark: SparkSession) -> SparkSession:
    """Return the session that all Spark tests share. Engines use it as the active session."""
    return streamsem_spark


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Location:
    """Create the directories of a pipeline that runs on the shared session."""
    from tests.spark_location import Location

    return Location(tmp_path)
