"""Fixtures of the tests of table files."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tables"))
