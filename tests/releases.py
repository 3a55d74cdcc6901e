"""Differences between the supported releases of Airflow: features that older releases lack, and modules that were moved."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version


def since(release: str, feature: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test of a feature on releases of Airflow before ``release``."""
    is_older = Version(version("apache-airflow-core")) < Version(release)
    return pytest.mark.skipif(is_older, reason=f"Airflow has {feature} since {release}")


def dag_files() -> Any:
    """Return the module with ``DagBag`` and ``sync_bag_to_db``."""
    try:
        from airflow.dag_processing import dagbag
    except ImportError:  # Airflow 3.1
        from airflow.models import dagbag
    return dagbag


def serialization() -> Any:
    """Return the class that serializes a DAG to JSON."""
    from airflow.serialization import serialized_objects

    if hasattr(serialized_objects, "DagSerialization"):
        return serialized_objects.DagSerialization
    return serialized_objects.SerializedDAG  # Airflow 3.1
