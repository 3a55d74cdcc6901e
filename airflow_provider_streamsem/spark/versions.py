"""Checks the versions of pyspark and pyspark-client that are installed. This module imports neither."""

from __future__ import annotations

from importlib import metadata

from airflow_provider_streamsem.errors import InvalidError

TESTED = ("4.0", "4.1", "4.2", "4.3")
"""The supported minor versions of Spark. The extras ``spark40``, ``spark``, ``spark42`` and ``spark43`` install them."""
KEEPS_STATE = ("4.1", "4.2", "4.3")
"""The minor versions of Spark that support pipelines with state. Spark 4.0 lacks the state checkpoint format 2, which stores each state under a unique id."""


def installed() -> dict[str, str]:
    """Return distribution → version of ``pyspark`` and ``pyspark-client``, if they are installed."""
    versions = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def keeps_state(*, remote: bool) -> bool:
    """Return whether the installed Spark supports pipelines with state."""
    version = installed().get("pyspark", "")
    return not remote and version.startswith(tuple(f"{minor}." for minor in KEEPS_STATE))


def check_state(*, remote: bool) -> None:
    """Check that the installed Spark supports pipelines with state."""
    if not keeps_state(remote=remote):
        raise InvalidError(
            "the installed Spark does not support pipelines with state; nothing was staged",
            given="Spark Connect" if remote else f"Spark {installed().get('pyspark', '')}",
            accepted=f"classic Spark {' or '.join(KEEPS_STATE)}; `dedup` also works with Spark Connect and with Spark 4.0",
        )


def check() -> None:
    """
    Check that pyspark and pyspark-client, if both are installed, have the same version.

    Both distributions install the package ``pyspark``. If their versions differ, the environment has a mixture of their files.
    """
    versions = installed()
    if len(set(versions.values())) > 1:
        raise InvalidError(
            "pyspark and pyspark-client are installed in different versions, and both install files of the package pyspark; nothing was staged",
            **{name.replace("-", "_"): version for name, version in versions.items()},
        ).advising(
            "run `pip uninstall -y pyspark pyspark-client`, then `pip install 'airflow-provider-streamsem[spark]'` "
            "(or the extra spark40 or spark42; spark43 has no pyspark-client)."
        )
