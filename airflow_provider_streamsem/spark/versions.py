"""Checks the installed Spark: pyspark and pyspark-client must have the same version. Imports neither."""

from __future__ import annotations

from importlib import metadata

from airflow_provider_streamsem.errors import InvalidError

TESTED = ("4.0", "4.1", "4.2")
"""The supported minor versions of Spark. The extras ``spark40``, ``spark`` and ``spark42`` install them."""


def installed() -> dict[str, str]:
    """The installed distributions among ``pyspark`` and ``pyspark-client``: distribution → version."""
    found = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def check() -> None:
    """
    Refuse two versions of Spark in one environment. Both distributions install the package ``pyspark``, so each overwrites files of the other.

    :raises InvalidError: the versions differ; the error names both, and what to install
    """
    found = installed()
    if len(set(found.values())) > 1:
        raise InvalidError(
            "pyspark and pyspark-client are installed in different versions, and each overwrites files of the other; nothing was staged",
            **{name.replace("-", "_"): version for name, version in found.items()},
            accepted="one version of both: pip uninstall -y pyspark pyspark-client, then pip install 'airflow-provider-streamsem[spark]' "
            "(or the extra spark40 or spark42)",
        )
