"""Places of tables and datasets: only their own log says which files there count."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.protocol.keys import DATASET_MARKER
from airflow_provider_streamsem.stores.contract import open_store, split_url

_LOGS = {"_delta_log/": "a Delta table", ".hoodie/": "a Hudi table"}
_ICEBERG, _METADATA = "metadata/", ".metadata.json"
_LOOKED_AT = 1_000
_ABOVE = 3
"""how many directories above the path are looked at, such as ``data/`` and those of partitions"""


def refuse_table(path: str) -> None:
    """
    A path whose files are all to be read must not lie in a table.

    :raises InvalidError: it does
    """
    scheme, place = split_url(path)
    for above in range(_ABOVE + 1):
        parts = place.rstrip("/").split("/")
        held = "/".join(parts[: len(parts) - above])
        if len(parts) - above < 1 or not held:
            return
        where = held if scheme == "file" else f"{scheme}://{held}"
        found = _kind(where) if above == 0 else _kind_if_allowed(where)
        if found is not None:
            raise InvalidError(
                f"the source's path lies in {found}: files that were replaced or never committed lie there, too, and would be read as rows. Nothing was "
                "written. Do: give a path that holds no table; read_committed() and changes() read the dataset of a pipeline, and Spark reads tables",
                path=path,
                table=where,
            )


def _kind(place: str) -> str | None:
    store = open_store(place)
    if store.stat(DATASET_MARKER) is not None:
        return "the dataset of a pipeline"
    for log, kind in _LOGS.items():
        if any(True for _ in store.list(log, limit=1)):
            return kind
    names = (stat.key for stat in store.list(_ICEBERG, limit=_LOOKED_AT))
    return "an Iceberg table" if any(name.endswith(_METADATA) for name in names) else None


def _kind_if_allowed(place: str) -> str | None:
    """A directory above the path, which one may not be allowed to look at."""
    with suppress(StreamsemError):
        return _kind(place)
    return None
