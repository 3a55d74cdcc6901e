"""The section ``[streamsem]`` of Airflow's configuration."""

from __future__ import annotations

from typing import Any

SECTION = "streamsem"


def spark_conn_id() -> str | None:
    """The Spark connection of tasks that name none."""
    return _get("spark_conn_id") or None


def poll_interval_s() -> float:
    """Seconds between two looks of a task that waits for a driver elsewhere."""
    return float(_get("poll_interval") or 30)


def batch_url() -> str:
    """The pattern by which a batch's page is found; ``""``: there is none."""
    return _get("batch_url")


def spark_history_url() -> str:
    """The Spark history server; ``""``: there is none."""
    return _get("spark_history_url")


def default_deferrable() -> bool:
    """Whether tasks that can wait in the triggerer do so where they do not say: ``[operators] default_deferrable``."""
    found: bool = _configuration().getboolean("operators", "default_deferrable", fallback=False)
    return found


def _get(name: str) -> str:
    return str(_configuration().get(SECTION, name, fallback="") or "").strip()


def _configuration() -> Any:
    try:
        from airflow.sdk.configuration import conf
    except ImportError:  # Airflow 3.1
        from airflow.configuration import conf
    return conf
