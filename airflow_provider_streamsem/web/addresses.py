"""Addresses of the pages of the web view in Airflow. This module imports no library, because tasks import it."""

from __future__ import annotations

import hashlib

PREFIX = "/streamsem"
"""The path of the web view below that of Airflow's UI."""


def pipeline_id(log: str, conn_id: str) -> str:
    """
    Return the id of a pipeline in the API.

    :param log: URL of the log
    :param conn_id: id of the log's connection; ``""`` without one
    """
    return hashlib.sha256(f"{conn_id} {log}".encode()).hexdigest()[:16]


def version_page(base_url: str, log: str, conn_id: str, version: int) -> str:
    """
    Return the URL of the page of a version.

    :param base_url: URL of Airflow's UI; ``""`` if it is not configured
    """
    return f"{base_url.rstrip('/')}{PREFIX}/#/pipelines/{pipeline_id(log, conn_id)}/versions/{version}"
