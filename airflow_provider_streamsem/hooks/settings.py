"""Options of the ``[streamsem]`` section of Airflow's configuration, ``[operators] default_deferrable`` and ``[api] base_url``."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.arguments import integer, interval

SECTION = "streamsem"


def spark_conn_id() -> str | None:
    """Return the id of the Spark connection of tasks that set neither ``spark_master`` nor ``spark_conn_id``; ``None`` if the option is empty."""
    return _get("spark_conn_id") or None


def poll_interval_s() -> float:
    """
    Return the seconds between two reads of the log by a task that waits for a driver in another process. Default: 30.

    :raises InvalidError: the option is not a number of seconds greater than 0
    """
    return interval(f"[{SECTION}] poll_interval of Airflow's configuration", _get("poll_interval") or 30)


def batch_url() -> str:
    """Return the URL pattern of the Batch link; ``""`` if the option is empty, which means the web view."""
    return _get("batch_url")


def airflow_url() -> str:
    """Return Airflow's ``[api] base_url``, the URL of its UI; ``""`` if the option is empty."""
    return str(_configuration().get("api", "base_url", fallback="") or "").strip()


def spark_history_url() -> str:
    """Return the URL of the Spark history server; ``""`` if the option is empty."""
    return _get("spark_history_url")


def shows_records() -> bool:
    """Return whether the web view shows the contents of quarantined records. Default: no."""
    enabled: bool = _configuration().getboolean(SECTION, "show_records", fallback=False)
    return enabled


def web_memory() -> int:
    """
    Return the MiB of memory that the web view may use for logs in each process of the API server. Default: 256.

    :raises InvalidError: the option is not an integer from 16 to 1,048,576
    """
    name = f"[{SECTION}] web_memory of Airflow's configuration"
    given = _get("web_memory") or "256"
    return integer(name, int(given) if given.isdecimal() and len(given) < 10 else given, least=16, most=1 << 20)


def default_deferrable() -> bool:
    """Return Airflow's ``[operators] default_deferrable``: whether tasks wait in the triggerer if their ``deferrable`` is not set."""
    enabled: bool = _configuration().getboolean("operators", "default_deferrable", fallback=False)
    return enabled


def _get(name: str) -> str:
    return str(_configuration().get(SECTION, name, fallback="") or "").strip()


def _configuration() -> Any:
    try:
        from airflow.sdk.configuration import conf
    except ImportError:  # Airflow 3.1
        from airflow.configuration import conf
    return conf
