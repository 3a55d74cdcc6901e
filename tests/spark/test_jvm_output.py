"""The stream to which the JVM of a session writes its log."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

CODE = """
import os
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
session = SparkEngine(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"}, logs_to_stdout=True).session()
session.sparkContext._jvm.java.lang.System.err.println("printed by the JVM")
os.write(2, b"printed by Python")
"""


def test_jvm_log_goes_to_standard_output_and_python_keeps_standard_error() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    assert "printed by the JVM" in done.stdout
    assert "printed by the JVM" not in done.stderr
    assert "WARN" not in done.stderr
    assert "printed by Python" in done.stderr


UNREAD = """
import os, sys
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
engine = SparkEngine(master="local[1]", conf={"spark.ui.enabled": "false"}, logs_to_stdout=True)
engine.session()
sys.stdin.readline()  # until the reader of standard error has died
sys.stderr = open(2, "w", closefd=False)  # as in a task of Airflow: text waits to be written
sys.stderr.write("lost")
for _ in range(2):
    assert engine.session().range(3).count() == 3
print("counted", flush=True)
os._exit(0)
"""


@pytest.mark.prove
def test_session_works_after_the_reader_of_standard_error_died() -> None:
    """This is a task whose supervisor was killed. Airflow starts its retry, and both may continue."""
    process = subprocess.Popen(
        [sys.executable, "-c", UNREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.close()
    out, _ = process.communicate("go\n", timeout=120)
    assert (process.returncode, "counted" in out) == (0, True)
