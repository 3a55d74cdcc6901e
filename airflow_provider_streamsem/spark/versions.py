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


KEEPS_STATE = ("4.1", "4.2")
"""The minor versions of Spark on which pipelines with state were tested. 4.0 lacks the state checkpoint format that names each state by unique ids."""


def check_state(*, remote: bool) -> None:
    """
    Refuse Spark Connect, and versions of Spark on which state was not tested.

    :raises InvalidError: names what is supported
    """
    version = installed().get("pyspark", "")
    if remote or not version.startswith(tuple(f"{minor}." for minor in KEEPS_STATE)):
        raise InvalidError(
            "a pipeline with state does not run on this Spark; nothing was staged",
            given="Spark Connect" if remote else f"Spark {version}",
            accepted=f"classic Spark {' or '.join(KEEPS_STATE)}; Dedup works on every Spark",
        )


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
