"""Fixtures of the tests of the HTTP sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.http.endpoints import Recorder, serving


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with serving(Recorder()) as recorder:
        yield recorder
