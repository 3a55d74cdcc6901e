"""A random walk over states on a real S3 server, in processes that are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.parts.spark import session_conf
from tests.state.killed_walks import walk_with_kills

pytestmark = [pytest.mark.integration, pytest.mark.prove]


def test_states_on_s3_of_killed_processes_are_continued_in_new_ones(lake: str, tmp_path: Path) -> None:
    location = lake.replace("s3://", "s3a://") + "/state"
    known = walk_with_kills(location, tmp_path, 2, session_conf(), kills=6, batches=7)
    assert any(found.state.batches > 6 for found in known if found.state)
