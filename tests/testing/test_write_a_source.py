"""The page about writing a source: its files form a distribution, whose source is found by its entry point and passes the conformance suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "write-a-source.md").read_text()
UV = str(Path(sys.executable).parent / "uv")
USE = """
import importlib.metadata
from pathlib import Path

from streamsem_http_log import HttpLogSource
from test_http_log import Handler, system

from airflow_provider_streamsem import Limits, load_pipeline, open_log, registry, run_batch
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee

HERE = Path(__file__).parent


def test_source_is_found_by_its_entry_point(system):
    [entry] = importlib.metadata.entry_points(group="streamsem.sources")
    assert entry.dist.name == "streamsem-http-log"
    assert registry.load("sources", "http_log") is HttpLogSource
    assert registry.name_of("sources", system.source) == "http_log"


def test_pipeline_file_of_the_page_runs(system, streamsem_spark, tmp_path):
    text = (HERE / "access_log.toml").read_text()
    text = text.replace("https://www.example.com/logs/access.log", system.source.url).replace("s3://lake", str(tmp_path))
    (tmp_path / "access_log.toml").write_text(text)
    pipeline = load_pipeline(tmp_path / "access_log.toml")
    assert str(guarantee(pipeline)).splitlines()[0] == "exactly-once (append-only log)"
    system.server.data = b"#Fields: time\\none\\n\\xff\\n"
    run_batch(pipeline, run_key="first", drain=True)
    system.server.data += b"two\\nthr"
    result = run_batch(pipeline, run_key="second", drain=True)
    assert result.counts["read"] == 1
    files = [file.path for file in open_log(pipeline.log).files()]
    rows = sorted(map(tuple, streamsem_spark.read.parquet(*files).select("offset", "line").collect()))
    assert rows == [(14, "one"), (20, "two")]


def test_transform_of_the_dag_parses_a_line(streamsem_spark):
    from access_log_dag import ACCESS_LOG

    line = '127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl"'
    lines = streamsem_spark.createDataFrame([(0, line), (80, "other")], "offset long, line string")
    rows = sorted(map(tuple, ACCESS_LOG.load_transform()(lines).collect()))
    assert rows == [(0, "127.0.0.1", 200), (80, "other", None)]


def test_poll_sends_three_requests_and_plan_two_more(system, monkeypatch):
    sent = []
    monkeypatch.setattr(Handler, "log_message", lambda handler, *args: sent.append(handler.command))
    system.add(range(3))
    planner = system.source.open(None, None)
    end = planner.poll(None)
    assert sent == ["HEAD", "GET", "GET"]
    planner.slice({}, end, Limits(), None, on_data_loss="fail")
    assert len(sent) == 5
"""


def project(location: Path) -> Path:
    """Write the files of the page to a directory. Blocks with the same title are one file."""
    files: dict[str, list[str]] = {}
    for title, code in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL):
        files.setdefault(title, []).append(code)
    location.mkdir()
    for title, parts in files.items():
        (location / title).write_text("\n\n".join(parts))
    return location


def run_tests(python: str, location: Path, **environment: str) -> str:
    """Run the tests of the page, and those of :data:`USE`, in one process outside the project. Return pytest's report."""
    location.mkdir()
    source = project(location / "unused")
    for name in ("test_http_log.py", "access_log.toml", "access_log_dag.py"):
        (source / name).rename(location / name)
    (location / "test_use.py").write_text(USE)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(location), "test_http_log.py", "test_use.py"]
    process = subprocess.run(
        [python, "-m", "pytest", *options], cwd=location, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
    return process.stdout


def test_page_shows_a_short_source(tmp_path: Path) -> None:
    lines = (project(tmp_path / "project") / "streamsem_http_log.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 150


@pytest.mark.prove
@pytest.mark.spark
def test_installed_source_is_found_and_passes_the_conformance_suite(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["--quiet", "--no-deps", "--python", sys.executable, "--target", site, project(tmp_path / "project")]
    subprocess.run([UV, "pip", "install", *install], check=True)
    paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    report = run_tests(sys.executable, tmp_path / "tests", **{**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    assert "skipped" not in report


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_source_passes_the_conformance_suite_in_an_empty_environment(tmp_path: Path) -> None:
    wheels, venv = tmp_path / "wheels", tmp_path / "venv"
    for source in (ROOT, project(tmp_path / "project")):
        subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", wheels, source], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    python = str(venv / "bin" / "python")
    # Without a refresh, uv may install another build of this version that it has cached for a wheel at the same path.
    refresh = ["--refresh-package", "airflow-provider-streamsem", "--refresh-package", "streamsem-http-log"]
    options = [
        "--quiet",
        "--python",
        python,
        "--find-links",
        wheels,
        "--constraint",
        ROOT / "constraints.txt",
        *refresh,
    ]
    subprocess.run([UV, "pip", "install", *options, "streamsem-http-log[testing]"], check=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON", "PYSPARK", "SPARK"))}
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    assert "skipped" not in run_tests(python, tmp_path / "tests", **{**inherited, **home})
