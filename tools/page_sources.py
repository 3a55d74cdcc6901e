"""
Prints the sha256 of the sources of the web view's page.

The build of the page is committed, with this sha256, so that an installation needs no Node.js. A test compares it, so that the build cannot become stale.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
STORED = ROOT / "airflow_provider_streamsem" / "web" / "page" / "sources.sha256"


def sha256() -> str:
    """Return the sha256 of the names and bytes of all files in ``ui`` that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", "ui"], cwd=ROOT, capture_output=True, check=True).stdout
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split(b"\0"))):
        data = (ROOT / name.decode()).read_bytes()
        digest.update(b"%s %d\n" % (name, len(data)) + data)
    return digest.hexdigest()


if __name__ == "__main__":
    print(sha256())
