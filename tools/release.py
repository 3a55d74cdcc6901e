"""
Builds the distributions of a release and checks them (``make release``). Uploads nothing, and creates no tag.

twine must accept the metadata. The wheel must contain the package, the pages and the example DAGs, and no other files. It must work in an empty environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
PACKAGE = "airflow_provider_streamsem/"
SERVES_PAGE = """
from fastapi.testclient import TestClient
from airflow_provider_streamsem.web.server import app_of

client = TestClient(app_of([], shows_records=False))
assert "page.js" in client.get("/").text and client.get("/page.js").status_code == 200, "the page is missing"
"""


def run(*command: str | Path, **environment: str) -> None:
    """
    Run a command.

    :raises subprocess.CalledProcessError: it failed
    """
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, env={**os.environ, **environment})


def wrong_contents(names: set[str]) -> list[str]:
    """
    Return the files that a wheel lacks, and the files that it must not contain, as lines of text.

    :param names: paths in the wheel
    """
    shared = next((name.partition("/docs/")[0] for name in names if name.endswith("/docs/index.md")), "share")
    required = {
        f"{PACKAGE}py.typed",
        *(f"{PACKAGE}web/page/{name}" for name in ("index.html", "page.js")),
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / PACKAGE).rglob("*.py")),
    }
    for data_file in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "dags").glob("*.py")]:
        required.add(f"{shared}/{data_file.relative_to(ROOT).as_posix()}")
    allowed = (PACKAGE, f"{shared}/")
    foreign = [name for name in names if not name.startswith(allowed) and ".dist-info/" not in name]
    return [f"missing: {name}" for name in sorted(required - names)] + [f"foreign: {name}" for name in sorted(foreign)]


def main() -> None:
    """Build and check the distributions, and print the remaining steps."""
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        sys.exit(f"The work tree has changes that the tag would not have. Do: commit or discard them.\n{changed}")
    for location in (DIST, ROOT / "build"):
        shutil.rmtree(location, ignore_errors=True)
    run("make", "fresh-page")
    run(sys.executable, "-m", "build")
    run(BIN / "uv", "tool", "run", "twine", "check", "--strict", *DIST.iterdir())
    (wheel,) = DIST.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        if faults := wrong_contents({*archive.namelist()}):
            sys.exit("\n".join(faults))
    empty = ROOT / "build" / "empty"
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, empty)
    pins = ["--constraint", ROOT / "constraints.txt"]
    run(BIN / "uv", "pip", "install", "--quiet", "--python", empty / "bin" / "python", *pins, f"{wheel}[spark]")
    run(empty / "bin" / "streamsem", "--version")
    run(empty / "bin" / "python", "-c", SERVES_PAGE, PATH="")
    run(empty / "bin" / "streamsem", "doctor-spark", PYSPARK_PYTHON=str(empty / "bin" / "python"))
    version = wheel.name.split("-")[1]
    print(f"The distributions are in dist/. Do: git tag v{version} && git push origin v{version} && uv publish dist/*")


if __name__ == "__main__":
    main()
