"""Options of the ``[streamsem]`` section of Airflow's configuration, and ``[operators] default_deferrable``."""

from __future__ import annotations

from typing import Any

SECTION = "streamsem"


def spark_conn_id() -> str | None:
    """The Spark connection of tasks that name neither a master nor a connection, or ``None``."""
    return _get("spark_conn_id") or None


def poll_interval_s() -> float:
    """Seconds between two polls of a task that waits for a driver in another process. Default: 30."""
    return float(_get("poll_interval") or 30)


def batch_url() -> str:
    """The URL pattern of a batch's page, or ``""`` if none is set."""
    return _get("batch_url")


def spark_history_url() -> str:
    """The URL of the Spark history server, or ``""`` if none is set."""
    return _get("spark_history_url")


def default_deferrable() -> bool:
    """Whether deferrable tasks wait in the triggerer by default: ``[operators] default_deferrable``."""
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
