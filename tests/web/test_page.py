"""The page of the web view is in the repository and in the distributions, so that no installation needs Node.js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_provider_streamsem.web.app import PAGE
from airflow_provider_streamsem.web.server import app_of
from tools import page_sources
from tools.release import wrong_contents

ROOT = Path(__file__).parents[2]
WITHOUT_NODE = {**os.environ, "PATH": str(Path(sys.executable).parent)}


def test_committed_page_was_built_from_its_sources() -> None:
    stored = page_sources.STORED.read_text().strip()
    assert stored == page_sources.sha256(), "run `make page`, and commit the page"


def test_page_loads_only_files_that_the_server_has() -> None:
    client = TestClient(app_of([], shows_records=False))
    page = client.get("/")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    names = re.findall(r'(?:src|href)="\./([^"]+)"', page.text)
    assert names == ["page.js"]
    script = client.get(f"/{names[0]}")
    assert "javascript" in script.headers["content-type"]
    assert script.content == (PAGE / names[0]).read_bytes()
    assert client.get("/none").status_code == 404


@pytest.mark.slow
def test_installation_from_a_checkout_without_node_serves_the_page(tmp_path: Path) -> None:
    """As ``pip install .`` in a clone: the files that git tracks, in an empty environment, without any other program."""
    checkout = tmp_path / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    uv = Path(sys.executable).parent / "uv"
    python = environment / "bin" / "python"
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, checkout]
    subprocess.run(command, check=True, env=WITHOUT_NODE)
    installed = "import airflow_provider_streamsem.version as v, pathlib; print(pathlib.Path(v.__file__).parent)"
    found = subprocess.run([python, "-c", installed], cwd=tmp_path, capture_output=True, text=True, check=True)
    page = Path(found.stdout.strip()) / "web" / "page"
    assert {each.name: each.read_bytes() for each in page.iterdir()} == {
        each.name: each.read_bytes() for each in PAGE.iterdir()
    }


@pytest.mark.slow
def test_wheel_and_source_distribution_contain_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", tmp_path, ROOT]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        env=WITHOUT_NODE,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert wrong_contents({*archive.namelist()}) == []
        assert archive.read("airflow_provider_streamsem/web/page/page.js") == (PAGE / "page.js").read_bytes()
