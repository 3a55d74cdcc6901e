"""
Detects whether a path is inside a table or dataset, or contains one: Delta, Hudi or Iceberg tables, and datasets of this package.

A files source must not read their files, because only the log of a table or dataset defines which of its files are visible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from airflow_provider_streamsem.connectors.files.spark_sink_log import PREFIX
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.protocol.keys import DATASET_MARKER
from airflow_provider_streamsem.stores.contract import open_store, split_url

_LOGS = {"_delta_log/": "a Delta table", ".hoodie/": "a Hudi table"}
_QUERY = "the output of a streaming query"
_ICEBERG = "metadata/"
_ICEBERG_FILE = r"metadata/(?:v[0-9]+|[0-9]{5,}-[0-9a-f-]{36})(?:\.gz)?\.metadata\.json"
_INSIDE = re.compile(
    rf"(?P<root>(?:.*/)?)(?:(?:_delta_log|_spark_metadata|\.hoodie)/.*|{re.escape(DATASET_MARKER)}|{_ICEBERG_FILE})",
    re.DOTALL,
)
_ABOVE = 3
"""Number of parent directories of the path that are inspected. A path inside a table is usually at most this deep, in ``data/`` and partition directories."""


def refuse_table(path: str) -> None:
    """Refuse a path that is inside a table or dataset (``InvalidError``)."""
    scheme, location = split_url(path)
    location = os.path.realpath(location) if scheme == "file" else location
    for above in range(_ABOVE + 1):
        parts = location.rstrip("/").split("/")
        directory = "/".join(parts[: len(parts) - above])
        if len(parts) - above < 1 or not directory:
            return
        where = directory if scheme == "file" else f"{scheme}://{directory}"
        # The path may be the output directory of a query itself: its log says which files are committed.
        kind = _kind_if_allowed(where, is_path=above == 0)
        if kind is not None:
            raise _refusal(where, path, f"is inside {kind}")


def refuse_tables_below(path: str, listed: Iterable[str], read_keys: Sequence[str]) -> None:
    """Raise ``InvalidError`` if a key of ``read_keys`` below the path is inside a table or dataset. ``listed`` has the keys of all objects below the path."""
    roots = sorted({match["root"] for key in listed if (match := _INSIDE.fullmatch(key)) is not None and match["root"]})
    inside = next(((root, key) for root in roots for key in read_keys if key.startswith(root)), None)
    if inside is not None:
        root, key = inside
        raise _refusal(
            f"{path.rstrip('/')}/{root.rstrip('/')}", path, "contains a table or the dataset of a pipeline", file=key
        )


def _refusal(table: str, path: str, relation: str, **facts: str) -> InvalidError:
    return InvalidError(
        f"the source's path {relation}: the source would also read files that were replaced or never committed",
        path=path,
        table=table,
        **facts,
    ).advising(
        "set a path that contains no table. Read the dataset of a pipeline with a source of type `pipeline`, or with read_committed() or changes(), "
        "and a table with Spark. No rows were committed."
    )


def _kind(location: str, *, is_path: bool) -> str | None:
    store = open_store(location)
    if not is_path and any(True for _ in store.list(PREFIX, limit=1)):
        return _QUERY
    if store.stat(DATASET_MARKER) is not None:
        return "the dataset of a pipeline"
    for log, kind in _LOGS.items():
        if any(True for _ in store.list(log, limit=1)):
            return kind
    names = (stat.key for stat in store.list(_ICEBERG))
    return "an Iceberg table" if any(re.fullmatch(_ICEBERG_FILE, name) for name in names) else None


def _kind_if_allowed(location: str, *, is_path: bool) -> str | None:
    """The pipeline may lack permission for a directory above the path. The listing reports a lack of permission for the path."""
    with suppress(StoreRefusedError):
        return _kind(location, is_path=is_path)
    return None
