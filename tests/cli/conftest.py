"""Fixtures of the tests of the CLI."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem.stores.local import LocalStore
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(3, bad_lines=1)
    fixture.run("a")
    (tmp_path / "p.toml").write_text(f"""
name = "world"
log = "{tmp_path}/log"
where = "id >= 0"
[source]
type = "files"
path = "{tmp_path}/in"
format = "json"
schema = "id long"
[sinks.out]
type = "files"
path = "{tmp_path}/out"
format = "json"
[limits]
max_files = 2
""")
    return fixture
