"""The supported versions of Spark. The test installs each extra into a new environment and runs ``streamsem doctor-spark`` there."""

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
    assert len(counted) == 6
    assert any(f"pyspark {minor}." in version["observed"] for minor in versions.TESTED)


@pytest.mark.prove
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("version", ["4.2.0", "4.3.0"])
def test_tests_of_state_pass_on_newer_versions_of_spark(version: str, tmp_path: Path) -> None:
    """The rows of each operator equal those of a real query, and random walks over states with crashes are correct."""
    constraints, override = tmp_path / "constraints.txt", tmp_path / "override.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if not line.startswith("pyspark")))
    # The tests need no Spark Connect.
    override.write_text(f'pyspark=={version}\npyspark-client; python_version < "3"\n')
    binaries = installed(
        tmp_path / "venv", "--constraint", str(constraints), "--override", str(override), f"{ROOT}[dev]"
    )
    command = [binaries / "python", "-m", "pytest", "-q", "-m", "not integration and not prove", "tests/state"]
    environment = {**ENVIRONMENT, "PYSPARK_PYTHON": str(binaries / "python"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
