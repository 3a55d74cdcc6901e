"""
Rows merged into a Delta table by key (extra ``delta``): delta-rs rewrites the files that hold the keys, in one entry of the table's log.

Unlike an appended batch, a merged one is read and written once more, by the publisher: whoever publishes it holds its rows in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.keyed_rows import last_of_each, staged_columns


def check_partitions(place: str, staged: Committable, partition_by: Sequence[str]) -> None:
    """
    Refuse an empty text in a partition column: Delta keeps it as null.

    :raises DataError: names the columns
    """
    import pyarrow.compute as pc

    read = staged_columns(place, staged, partition_by) if partition_by else None
    if read is None:
        return
    texts = [field.name for field in read.schema if field.type in ("string", "large_string")]
    empty = [name for name in texts if pc.any(pc.equal(read[name], "")).as_py()]
    if empty:
        raise DataError(
            "an empty text cannot be a partition value of a Delta table: it would be null there; nothing became visible",
            columns=empty,
        )


def merge(table: Any, place: str, batch: Batch, keys: Sequence[str], properties: Any) -> None:
    """
    Write one entry in which each row of a batch stands in the place of that with its keys.

    :param table: a ``deltalake.DeltaTable``; its version is what is merged into
    :param properties: ``deltalake.CommitProperties`` with the marker and without retries
    """
    rows = last_of_each(place, batch, keys)
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys)
    values = {f"t.{_quoted(name)}": f"s.{_quoted(name)}" for name in rows.schema.names}
    merger = table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
    merger.when_matched_update(values).when_not_matched_insert(values).execute()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
