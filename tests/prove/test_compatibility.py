"""The provider on other releases of Airflow and Python. Each combination gets a new environment, in which the tests of the provider run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The oldest and the newest release of each line, and the newest line on the newest Python.
COMBINATIONS = [("3.10", "3.1.0"), ("3.11", "3.1.*"), ("3.12", "3.2.*"), ("3.13", "3.3.*")]
# Date of the newest packages: a week after the newest release of a line, or the day after the oldest. Airflow's requirements do not pin its packages.
# With the newest packages, 3.2 runs no task (pydantic 2.14) and 3.1.0 cannot be imported (structlog 25.5). The newest line uses the newest packages.
PACKAGES_OF = {"3.1.0": "2025-09-27", "3.1.*": "2026-03-18", "3.2.*": "2026-06-05"}
TESTS = ["tests/operators", "tests/hooks", "tests/sensors", "tests/triggers", "tests/observability", "tests/test_assets.py", "tests/golden"]  # fmt: skip


def interpreter(version: str) -> str | None:
    """Find a Python of this version on the path or in pyenv."""
    path = shutil.which(f"python{version}")
    if path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
        return path
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    return str(installed[-1]) if installed else None


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("python", "airflow"), COMBINATIONS, ids=lambda value: value)
def test_provider_passes_its_tests_on_other_releases(python: str, airflow: str, tmp_path: Path) -> None:
    program = interpreter(python)
    assert program is not None, f"Python {python} is not installed. Do: install it, for example with pyenv"
    subprocess.run([program, "-m", "venv", str(tmp_path / "venv")], check=True)
    venv_python = str(tmp_path / "venv" / "bin" / "python")
    uv = str(Path(sys.executable).parent / "uv")
    requirements = [
        f"apache-airflow=={airflow}",
        "--editable",
        f"{ROOT}[kafka,openlineage,testing]",
        "fastavro",
        "pytest-timeout",
        "duckdb",
        *(["--exclude-newer", PACKAGES_OF[airflow]] if airflow in PACKAGES_OF else []),
    ]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", venv_python, *requirements], check=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHONPATH"))}
    done = subprocess.run(
        [venv_python, "-m", "pytest", "-q", "-m", "not spark and not prove and not integration", *TESTS],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
