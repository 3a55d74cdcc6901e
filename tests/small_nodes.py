"""Limits the nodes and pages of discovered files to a few files, so that a test needs only a few files to reach every case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.files import ledger
from airflow_provider_streamsem.protocol import discovery, known

SMALL: list[tuple[Any, str, int]] = [
    (known, "NODE_FILES", 3),
    (known, "NODE_RANGES", 3),
    (discovery, "RECENT_FILES", 3),
    (discovery, "PAGE_FILES", 2),
    (discovery, "PAGE_REFS", 3),
    (discovery, "OUTDATED_NODES", 1),
    (ledger, "BLOCK_FILES", 4),
]


@contextmanager
def small_nodes() -> Iterator[None]:
    """Limit the size of nodes and pages within the block."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SMALL:
            patch.setattr(module, name, value)
        yield
