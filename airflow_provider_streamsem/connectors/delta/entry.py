"""Builds an entry of a Delta table's log (Delta protocol, *Delta Log Entries*; extra ``delta``). A table with features that deltalake cannot write needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.delta.history import History, encoded
from airflow_provider_streamsem.connectors.delta.table import OWN_ENTRY

_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"


def entry(
    table: Any, location: str, marks: Mapping[str, int], app: str, info: Mapping[str, Any], changes: Sequence[Any]
) -> bytes:
    """
    Return the entry that follows the newest one of a ``deltalake.DeltaTable``.

    :param marks: application id → version: the transaction identifiers that the entry sets
    :param app: the application id of the marker
    :param info: the commit information; this function replaces its times and the version that was read
    :param changes: the add, remove and cdc actions
    """
    now_ms, version = SYSTEM_CLOCK.now_ms(), table.version()
    commit_info = {**info, "timestamp": now_ms, "readVersion": version, OWN_ENTRY: app}
    if str(table.metadata().configuration.get(_IN_COMMIT_TIMESTAMPS, "")).lower() == "true":
        newest = History(location).entry(version)
        before_ms = -1 if newest is None or newest.in_commit_ms is None else newest.in_commit_ms
        commit_info["inCommitTimestamp"] = max(now_ms, before_ms + 1)
    marked = [{"txn": {"appId": name, "version": number, "lastUpdated": now_ms}} for name, number in marks.items()]
    return encoded([{"commitInfo": commit_info}, *marked, *changes])
