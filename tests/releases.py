"""Parts of Airflow that differ between the supported releases: features that older releases lack, and modules that were moved."""

from __future__ import annotations

import os
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


def store_dag(dag: Any, file: str) -> None:
    """
    Store a DAG in Airflow's metadata database, as the DAG processor does.

    :param file: the file that creates the DAG
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    dag.fileloc = file
    DagBundlesManager().sync_bundles_to_db()
    bag = dag_files().DagBag(dag_folder=os.devnull, bundle_path=None)
    bag.bag_dag(dag)
    dag_files().sync_bag_to_db(bag, "dags-folder", None)


def serialization() -> Any:
    """Return the class that serializes a DAG to JSON."""
    from airflow.serialization import serialized_objects

    if hasattr(serialized_objects, "DagSerialization"):
        return serialized_objects.DagSerialization
    return serialized_objects.SerializedDAG  # Airflow 3.1
