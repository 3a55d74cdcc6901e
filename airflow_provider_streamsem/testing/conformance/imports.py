"""The modules that the import of a connector loads."""

from __future__ import annotations

import subprocess
import sys

from airflow_provider_streamsem import extras

CLIENTS = ("boto3", "pandas", "pyarrow", "pyspark", *extras.MODULES.values())
"""Modules that a connector may import only when it sends a request or reads records."""


def imported_by(module: str) -> set[str]:
    """Return the names of the modules that the import of a module loads, in a new process."""
    code = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=True)
    return {*process.stdout.split()}
