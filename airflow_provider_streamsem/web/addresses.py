"""
Addresses of the pages of the web view in Airflow, and the names by which the page and tasks find each other.

This module imports no third-party library, because tasks import it.
"""

from __future__ import annotations

import hashlib

PREFIX = "/streamsem"
"""The path of the web view below that of Airflow's UI."""
ACTION_TASK = "perform_action"
"""Id of the task of a DAG that performs actions."""
ACTION_KEY = "streamsem_action"
"""Key of the XCom with which that task describes what it did or would do."""


def actions_tag(pipeline: str) -> str:
    """Return the tag by which the web view finds the DAGs that perform actions on a pipeline."""
    return f"streamsem:{pipeline}"


def pipeline_id(log: str, conn_id: str) -> str:
    """
    Return the id of a pipeline in the API.

    :param conn_id: id of the log's connection; ``""`` without one
    """
    return hashlib.sha256(f"{conn_id} {log}".encode()).hexdigest()[:16]


def version_page(base_url: str, log: str, conn_id: str, version: int) -> str:
    """
    Return the URL of the page of a version.

    :param base_url: URL of Airflow's UI; ``""`` if it is not configured
    """
    return f"{base_url.rstrip('/')}{PREFIX}/#/pipelines/{pipeline_id(log, conn_id)}/versions/{version}"
