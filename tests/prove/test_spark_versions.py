"""
The supported versions of Spark. Each test installs one version into a new environment.

``streamsem doctor-spark`` runs on every version. The tests of state and of parsed records run on the versions that are newer than the one of the other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_streamsem.spark import versions

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}

PARTS = (
    "test_every_attempt_continues_exactly_the_state_that_it_names",
    "test_each_batch_gives_the_rows_of_a_streaming_micro_batch[chained-append]",
    "test_stateful_processor_keeps_its_state",
    "test_windows_of_python_monoids_equal_those_of_one_pass",
    "test_every_value_is_what_pythons_parser_reads_or_its_record_is_quarantined",
)
"""Tests of each part of the selection."""


def installed(location: Path, *arguments: str) -> Path:
    """Install packages into a new virtual environment, and return the path of its ``bin`` directory."""
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, location], check=True)
    python = location / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *arguments], check=True)
    return location / "bin"


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", ["spark40", "spark", "spark42", "spark43"])
def test_small_batches_are_counted_correctly_on_every_supported_spark(extra: str, tmp_path: Path) -> None:
    binaries = installed(tmp_path / "venv", f"{ROOT}[{extra}]")
    command = [binaries / "streamsem", "doctor-spark", "--master", "local[1]", "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    version, *counted = json.loads(done.stdout)["checks"]
    assert len(counted) == (6 if extra == "spark40" else 8), "Spark 4.0 keeps no state"
    assert any(f"pyspark {minor}." in version["observed"] for minor in versions.TESTED)


@pytest.mark.prove
@pytest.mark.timeout(2 * 3_600)
@pytest.mark.parametrize("version", ["4.2.0", "4.3.0"])
def test_tests_of_state_and_of_parsed_records_pass_on_newer_versions_of_spark(version: str, tmp_path: Path) -> None:
    """
    The tests of ``tests/state``, ``tests/transforms`` and of the values of JSON and CSV, including those of ``make prove``.

    The rows of every operator equal those of a real query, a stateful processor keeps its state, the walk over states with concurrent attempts is correct, and
    ready-made transforms give the rows of one pass. The long walks, and the random faults and kills, run on one version only: they are about attempts, which do
    not depend on the version of Spark.
    """
    constraints, override = tmp_path / "constraints.txt", tmp_path / "override.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if not line.startswith("pyspark")))
    # The tests need no Spark Connect.
    override.write_text(f'pyspark=={version}\npyspark-client; python_version < "3"\n')
    binaries = installed(
        tmp_path / "venv", "--constraint", str(constraints), "--override", str(override), f"{ROOT}[dev]"
    )
    left_out = "not long_walks and not killed_processes and not with_faults and not killed_at_every_step"
    values = [
        "tests/connectors/parsing",
        *(f"tests/connectors/files/test_{name}_values.py" for name in ("json", "csv")),
    ]
    selection = ["-m", "not integration", "-k", left_out, "tests/state", "tests/transforms", *values]
    workers = ["-n", "2", "--dist", "worksteal"]
    command = [binaries / "python", "-m", "pytest", "-v", "-p", "no:cacheprovider", *workers, *selection]
    environment = {**ENVIRONMENT, "PYSPARK_PYTHON": str(binaries / "python"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = {line.partition(" PASSED ")[2] for line in done.stdout.splitlines() if " PASSED " in line}
    missing = [name for name in PARTS if not any(name in test for test in passed)]
    assert not missing, f"the selection has left out {missing}"
