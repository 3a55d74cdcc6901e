"""
Reads the state of a Delta table as the table's log stores it (Delta protocol, *Action Reconciliation*; extra ``delta``).

deltalake returns no deletion vectors, no row ids and no metadata of columns in the form of the log. A private copy of the table needs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

_LOG = "_delta_log"
_SCHEME = re.compile(r"(s3a?)://|file:/*(?=/)")
_KINDS = ("protocol", "metaData", "domainMetadata", "add")
_MAPS = ("partitionValues", "tags", "configuration", "options")

Action = dict[str, Any]


@dataclass(slots=True)
class Snapshot:
    """
    The state of a table at a version.

    :param protocol: the ``protocol`` action
    :param metadata: the ``metaData`` action
    :param domains: domain → ``domainMetadata`` action
    :param files: file, as :func:`file_of` returns it → ``add`` action
    """

    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    domains: dict[str, Action] = field(default_factory=dict)
    files: dict[str, Action] = field(default_factory=dict)


def file_of(path: str, location: str) -> str:
    """
    Return the file that a path in the table's log names: its key below the table, or its location outside of the table.

    Writers escape characters of a path in different ways, and write absolute paths with different schemes. The results for one file are equal.
    """
    whole = _SCHEME.sub(lambda found: "s3://" if found[1] else "", unquote(path), count=1)
    return whole.removeprefix(f"{normalised(location)}/")


def snapshot(location: str, version: int) -> Snapshot:
    """
    Read the state of a table.

    :param version: the newest version of the table
    :raises UnavailableError: an entry or a checkpoint of the table's log is missing, because another writer has created a newer checkpoint
    """
    dataset, history = open_dataset(location), History(location)
    data = dataset.read(f"{_LOG}/_last_checkpoint")
    checkpoint = None if data is None else json.loads(data)
    start = -1 if checkpoint is None else int(checkpoint["version"])
    if start > version:
        raise _changed(location, start)
    replay = _Replay(location)
    for entry in range(version, start, -1):
        actions = history.actions(entry)
        if actions is None:
            raise _changed(location, entry)
        # An entry with another deletion vector for a file removes the file and adds it.
        for kind in (*_KINDS, "remove"):
            for action in (action[kind] for action in actions if kind in action):
                replay.add(kind, action)
    if checkpoint is not None:
        for kind, action in _checkpointed(dataset, location, checkpoint):
            replay.add(kind, action)
    return replay.state


class _Replay:
    """Reconciles actions. The newest one is added first."""

    def __init__(self, location: str) -> None:
        self.state = Snapshot()
        self._location = location
        self._files, self._domains = set[str](), set[str]()

    def add(self, kind: str, action: Action) -> None:
        state = self.state
        if kind == "protocol":
            state.protocol = state.protocol or action
        elif kind == "metaData":
            state.metadata = state.metadata or action
        elif kind == "domainMetadata" and action["domain"] not in self._domains:
            self._domains.add(action["domain"])
            state.domains |= {} if action.get("removed") else {action["domain"]: action}
        elif kind in ("add", "remove"):
            file = file_of(action["path"], self._location)
            if file not in self._files:
                self._files.add(file)
                if kind == "add":
                    state.files[file] = action


def _checkpointed(dataset: Dataset, location: str, checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    version, parts = int(checkpoint["version"]), checkpoint.get("parts")
    names = [f"{version:020d}.checkpoint.parquet"]
    if parts:
        names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    if "v2Checkpoint" in checkpoint:
        names = [checkpoint["v2Checkpoint"]["path"].rpartition("/")[2]]
    keys = [f"{_LOG}/{name}" for name in names]
    for key in keys:  # sidecars are appended
        if dataset.stat(key) is None:
            raise _changed(location, version)
        for kind, action in _actions(dataset, key):
            if kind == "sidecar":
                keys.append(f"{_LOG}/_sidecars/{unquote(action['path']).rpartition('/')[2]}")
            else:
                yield kind, action


def _actions(dataset: Dataset, key: str) -> Iterator[tuple[str, Action]]:
    """Yield the actions of one file of a checkpoint."""
    import pyarrow.parquet

    if key.endswith(".json"):
        for line in (dataset.read(key) or b"").splitlines():
            yield from ((kind, action) for kind, action in json.loads(line).items() if kind in (*_KINDS, "sidecar"))
        return
    with dataset.open(dataset.stat(key)) as opened:  # type: ignore[arg-type]
        parquet = pyarrow.parquet.ParquetFile(opened)
        for kind in {*_KINDS, "sidecar"} & {*parquet.schema_arrow.names}:
            # Statistics in parsed form may have times that Python cannot represent.
            names = [
                field.name for field in parquet.schema_arrow.field(kind).type if not field.name.endswith("_parsed")
            ]
            for batch in parquet.iter_batches(columns=[f"{kind}.{name}" for name in names]):
                for action in batch[kind].drop_null().to_pylist(maps_as_pydicts="strict"):
                    yield kind, _as_json(action)


def _as_json(action: Mapping[str, Any]) -> Action:
    """Remove fields without a value. A null partition value is a value."""
    return {
        name: _as_json(value) if isinstance(value, dict) and name not in _MAPS else value
        for name, value in action.items()
        if value is not None
    }


def _changed(location: str, version: int) -> UnavailableError:
    summary = "an entry or a checkpoint of the Delta table's log is missing; nothing was written"
    return UnavailableError(summary, table=location, version=version).advising(
        "run again: another writer may have created a newer checkpoint and deleted older entries."
    )
