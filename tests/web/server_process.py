"""The process of streamsem ui."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``streamsem ui``, and yield the URL of the page and the process."""
    command = [sys.executable, "-m", "airflow_provider_streamsem.cli.main", "ui", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = re.match(r"(http://127\.0\.0\.1:\d+/)", line := process.stderr.readline())
        assert found, line
        yield found[1], process
    finally:
        process.kill()
        process.communicate()
