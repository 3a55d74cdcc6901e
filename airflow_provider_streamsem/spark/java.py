"""Finds the Java with which pyspark starts Spark, and checks its version. This module does not start Java, and does not import pyspark."""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_streamsem.errors import InvalidError

OLDEST = 17
"""Spark 4 is compiled for this version of Java."""
_WITHOUT_SUBJECT = 24
"""The first version of Java in which ``Subject.getSubject`` always raises an error (JEP 486)."""
_CALLS_SUBJECT = (3, 4, 2)
"""The newest release of Hadoop's client that calls ``Subject.getSubject``. Spark 4.0 and 4.1 contain it."""
ACCEPTED = "Java 17 or 21 (Spark 4.2 and newer also run on Java 25)"


def executable() -> str | None:
    """Return the path of the Java executable that Spark's launcher would start; ``None`` if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java")


def check() -> None:
    """Check that Java is installed, and that its version is not one on which the installed Spark is known to fail. An unknown version passes."""
    path = executable()
    if path is None:
        raise InvalidError(
            "Java was not found, and Spark needs it; nothing was staged",
            java_home=os.environ.get("JAVA_HOME", ""),
            accepted=f"{ACCEPTED}: on the PATH, or with JAVA_HOME set to its directory, for the process that runs the task",
        )
    version = version_of(path)
    if version is None:
        return
    error = None
    if version < OLDEST:
        error = unsupported("the installed Java is too old for Spark 4; nothing was staged", java=path, version=version)
    hadoop = _hadoop_version()
    if version >= _WITHOUT_SUBJECT and hadoop is not None and hadoop <= _CALLS_SUBJECT:
        error = unsupported(
            "the installed Java is too new for the installed Spark; nothing was staged",
            java=path,
            version=version,
            hadoop_client=".".join(map(str, hadoop)),
        )
    if error is not None:
        raise error


def unsupported(summary: str, **fields: object) -> InvalidError:
    """Return the error for a version of Java that the installed Spark does not support."""
    return InvalidError(summary, **fields).advising(
        f"set JAVA_HOME to the directory of {ACCEPTED}, for the process that runs the task and for the executors; then run again."
    )


def version_of(path: str) -> int | None:
    """Return the major version of a Java executable, which the file ``release`` of its installation names; ``None`` if there is no such file."""
    release = Path(path).resolve().parents[1] / "release"
    try:
        found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _hadoop_version() -> tuple[int, ...] | None:
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (os.path.dirname(spec.origin) if spec and spec.origin else "")
    for jar in Path(home, "jars").glob("hadoop-client-api-*.jar"):
        if found := re.search(r"-(\d+)\.(\d+)\.(\d+)", jar.name):
            return tuple(map(int, found.groups()))
    return None
