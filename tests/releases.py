"""Where releases of Airflow differ: what an older one has not, and where it keeps what it has."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version


def since(release: str, what: str) -> pytest.MarkDecorator:
    """Skips a test of what Airflow has from ``release`` on, and says so."""
    is_older = Version(version("apache-airflow-core")) < Version(release)
    return pytest.mark.skipif(is_older, reason=f"Airflow has {what} since {release}")


def dag_files() -> Any:
    """The module with ``DagBag`` and ``sync_bag_to_db``."""
    try:
        from airflow.dag_processing import dagbag
    except ImportError:  # Airflow 3.1
        from airflow.models import dagbag
    return dagbag


def serialization() -> Any:
    """The class that makes JSON of a DAG."""
    from airflow.serialization import serialized_objects

    if hasattr(serialized_objects, "DagSerialization"):
        return serialized_objects.DagSerialization
    return serialized_objects.SerializedDAG  # Airflow 3.1
