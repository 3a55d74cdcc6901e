"""Fixtures of the pipeline tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return PipelineFixture(tmp_path)
