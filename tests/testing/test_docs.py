"""The test files on the documentation page run exactly as the page shows them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_streamsem.testing import plugin

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "test-pipelines.md").read_text()
FILES = dict(re.findall(r"```python\n# ([\w/]+\.py)\n(.*?)```", PAGE, re.DOTALL))


def run_page(location: Path, name: str, *options: str) -> str:
    """Write the files of the page, run one of its test files in a separate process with options of pytest, and return pytest's report."""
    for path, code in FILES.items():
        (location / path).parent.mkdir(exist_ok=True)
        (location / path).write_text(code)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    environment["PYTHONPATH"] = os.pathsep.join([str(location), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(location), name, *options],
        cwd=location, env=environment, capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
    return process.stdout


@pytest.mark.prove
@pytest.mark.spark
def test_users_test_file_of_twenty_lines_passes(tmp_path: Path) -> None:
    code = [line for line in FILES["test_orders.py"].splitlines() if line]
    assert 10 < len(code) <= 20
    assert "2 passed" in run_page(tmp_path, "test_orders.py", "-k", "not kill")


@pytest.mark.prove
@pytest.mark.spark
def test_users_crash_matrix_passes(tmp_path: Path) -> None:
    assert "1 passed" in run_page(tmp_path, "test_orders.py", "-k", "kill")


@pytest.mark.prove
@pytest.mark.spark
def test_users_test_of_a_dag_passes(tmp_path: Path) -> None:
    assert "1 passed" in run_page(tmp_path, "test_orders_dag.py")


def test_every_fixture_is_on_the_page() -> None:
    defined = {name for name, _ in inspect.getmembers(plugin) if name.startswith("streamsem_")}
    assert defined == set(re.findall(r"^\| `(streamsem_\w+)` \|", PAGE, re.MULTILINE))
