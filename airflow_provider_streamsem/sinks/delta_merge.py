"""
Rows merged into a Delta table by key (extra ``delta``): delta-rs rewrites the files that hold the keys, in one entry of the table's log.

Unlike an appended batch, a merged one is read and written once more, by the publisher: whoever publishes it holds its rows in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.keyed_rows import last_of_each

NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
"""what delta-rs writes as the value of a partition that is null"""


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
