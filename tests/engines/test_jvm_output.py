"""Where the JVM of a session writes its log."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

CODE = """
import os
from airflow_provider_streamsem.engines.spark import SparkEngine
session = SparkEngine(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"}, logs_to_stdout=True).session()
session.sparkContext._jvm.java.lang.System.err.println("said by the JVM")
os.write(2, b"said by Python")
"""


def test_log_of_the_jvm_goes_to_standard_output_and_that_of_python_stays() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    assert "said by the JVM" in done.stdout
    assert "said by the JVM" not in done.stderr
    assert "WARN" not in done.stderr
    assert "said by Python" in done.stderr
