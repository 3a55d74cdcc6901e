"""
Reads the add actions of files of a Delta table, as the table's log stores them (Delta protocol, *Action Reconciliation*; extra ``delta``).

An entry that removes a file must repeat its path and its deletion vector. deltalake returns no deletion vectors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

_LOG = "_delta_log"
_SCHEME = re.compile(r"(s3a?)://|file:/*(?=/)")


def file_of(path: str, location: str) -> str:
    """
    Return the file that a path in the table's log names: its key below the table, or its location outside of the table.

    Writers escape characters of a path in different ways, and write absolute paths with different schemes. The results for one file are equal.
    """
    whole = _SCHEME.sub(lambda found: "s3://" if found[1] else "", unquote(path), count=1)
    return whole.removeprefix(f"{normalised(location)}/")


def add_actions(location: str, version: int, files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """
    Return the add actions of files that the table has at a version.

    :param version: the newest version of the table
    :param files: the files, as :func:`file_of` returns them
    :returns: file → add action. A file that the table does not have is left out
    :raises UnavailableError: an entry or a checkpoint of the table's log is missing, because another writer has created a newer checkpoint
    """
    dataset = open_dataset(location)
    checkpoint = _last_checkpoint(dataset)
    missing, found = {*files}, dict[str, dict[str, Any]]()
    start = -1 if checkpoint is None else int(checkpoint["version"])
    for entry in range(version, start, -1):
        if not missing:
            return found
        actions = History(location).actions(entry)
        if actions is None:
            raise _changed(location, entry)
        # An entry with another deletion vector for a file removes the file and adds it.
        for kind in ("add", "remove"):
            for action in (action[kind] for action in actions if kind in action):
                file = file_of(action["path"], location)
                if file in missing:
                    missing.discard(file)
                    found |= {file: action} if kind == "add" else {}
    if missing and checkpoint is not None:
        if start > version:
            raise _changed(location, start)
        for action in _checkpointed(dataset, location, checkpoint, missing):
            found[file_of(action["path"], location)] = action
    return found


def _last_checkpoint(dataset: Dataset) -> Mapping[str, Any] | None:
    data = dataset.read(f"{_LOG}/_last_checkpoint")
    return None if data is None else json.loads(data)


def _checkpointed(
    dataset: Dataset, location: str, checkpoint: Mapping[str, Any], files: set[str]
) -> Iterator[dict[str, Any]]:
    version, parts = int(checkpoint["version"]), checkpoint.get("parts")
    names = [f"{version:020d}.checkpoint.parquet"]
    if parts:
        names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    if "v2Checkpoint" in checkpoint:
        names = [checkpoint["v2Checkpoint"]["path"].rpartition("/")[2]]
    sidecars = []
    for name in names:
        for kind, action in _actions(dataset, location, version, f"{_LOG}/{name}", files):
            if kind == "add":
                yield action
            else:
                sidecars.append(f"{_LOG}/_sidecars/{unquote(action['path']).rpartition('/')[2]}")
    for key in sidecars:
        for _, action in _actions(dataset, location, version, key, files):
            yield action


def _actions(
    dataset: Dataset, location: str, version: int, key: str, files: set[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the add actions of ``files``, and all sidecar actions, of one file of a checkpoint."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    stat = dataset.stat(key)
    if stat is None:
        raise _changed(location, version)
    if key.endswith(".json"):
        for line in (dataset.read(key) or b"").splitlines():
            for kind, action in json.loads(line).items():
                if kind == "sidecar" or (kind == "add" and file_of(action["path"], location) in files):
                    yield kind, action
        return
    with dataset.open(stat) as opened:
        parquet = pyarrow.parquet.ParquetFile(opened)
        for kind in {"add", "sidecar"} & {*parquet.schema_arrow.names}:
            for batch in parquet.iter_batches(columns=[f"{kind}.path", f"{kind}.deletionVector"]):
                actions = batch[kind]
                paths = pc.struct_field(actions, "path").to_pylist()
                chosen = [
                    at
                    for at, path in enumerate(paths)
                    if path is not None and (kind == "sidecar" or file_of(path, location) in files)
                ]
                for action in actions.take(pyarrow.array(chosen, pyarrow.int64())).to_pylist():
                    yield kind, _without_nulls(action)


def _without_nulls(action: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in action.items()
        if value is not None
    }


def _changed(location: str, version: int) -> UnavailableError:
    summary = "an entry or a checkpoint of the Delta table's log is missing; nothing was written"
    return UnavailableError(summary, table=location, version=version).advising(
        "run again: another writer may have created a newer checkpoint and deleted older entries."
    )
