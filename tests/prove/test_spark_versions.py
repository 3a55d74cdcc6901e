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


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", ["spark40", "spark", "spark42"])
def test_small_batches_are_counted_correctly_on_every_supported_spark(extra: str, tmp_path: Path) -> None:
    uv, venv_home = Path(sys.executable).parent / "uv", tmp_path / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv_home], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", venv_home / "bin" / "python", f"{ROOT}[{extra}]"], check=True
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    command = [venv_home / "bin" / "streamsem", "doctor-spark", "--master", "local[1]", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    version, *counted = json.loads(done.stdout)["checks"]
    assert len(counted) == 6
    assert any(f"pyspark {minor}." in version["seen"] for minor in versions.TESTED)
