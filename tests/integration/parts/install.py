"""
Bring the real parts onto this machine by name: jars by Maven, the S3 servers by Go. `python -m tests.integration.parts.install`.

Jars stay in Maven's own repository; `.parts/` holds the class paths that name them, and the servers that were built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLACE = ROOT / ".parts"
POM = Path(__file__).parents[1] / "pom.xml"
S3_SERVERS = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
}


class MissingPartError(Exception):
    """A part of the integration run is not on this machine. It is never passed over: the run fails."""


def classpath(profile: str) -> str:
    """The jars of one profile of the pom, as a class path; brought here where they are not."""
    file = PLACE / f"{profile}.classpath"
    if not file.exists() or file.stat().st_mtime < POM.stat().st_mtime or not _all_there(file):
        PLACE.mkdir(exist_ok=True)
        _run(
            [tool("mvn"), "-q", "-B", "-f", str(POM), "-P", profile, "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        )  # fmt: skip
        file.touch()
    return file.read_text().strip()


def _all_there(file: Path) -> bool:
    return all(os.path.exists(jar) for jar in file.read_text().strip().split(":"))


def s3_server(name: str = "versitygw") -> str:
    """The program of an S3 server, built where it is not there."""
    program = PLACE / "bin" / name
    if not program.exists():
        _run([tool("go"), "install", S3_SERVERS[name]], GOBIN=str(program.parent), GOFLAGS="-mod=mod")
    return str(program)


def debian(*packages: str) -> None:
    """Debian's packages that are not there; their services are not started."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise MissingPartError(f"not on this machine. Do: apt-get install {' '.join(missing)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    _run(["apt-get", "update", "-q"], **quiet)
    _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], **quiet)


def _is_installed(package: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True, check=False)
    return done.stdout == "install ok installed"


def tool(name: str, *places: str) -> str:
    """A program of the machine."""
    found = shutil.which(name) or next(
        (p for place in places if os.access(p := os.path.join(place, name), os.X_OK)), None
    )
    if found is None:
        raise MissingPartError(
            f"{name} is not on this machine. Do: install it (Debian: maven, golang, postgresql, mariadb-server, rabbitmq-server) and run again."
        )
    return found


def java() -> str:
    """The machine's Java, or the one that Spark runs on."""
    return tool("java", os.path.join(os.environ.get("JAVA_HOME", ""), "bin"))


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingPartError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    builders = [package for program, package in (("mvn", "maven"), ("go", "golang")) if shutil.which(program) is None]
    debian("postgresql", "mariadb-server", "rabbitmq-server", *builders)
    for each in ("kafka", "spark", "peers", "iceberg"):
        classpath(each)
    for each in sys.argv[1:] or ["versitygw"]:
        s3_server(each)
