"""
Checks whether the files of the operators' state exist in the log, and finds the files that no state needs.

Spark writes a snapshot ``<batches>_<id>.zip`` for each partition, state store and batch, into the store's directory. The snapshot names the SST files of the
batch in the subdirectory ``SSTs``. Consecutive snapshots share most SST files, and an SST file that a batch no longer uses is never used again.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state import LOCATION, OperatorState, operator_state
from airflow_provider_streamsem.stores.contract import ObjectStat, Store

logger = telemetry.log_of(__name__)

# Hadoop's local file system adds hidden files with checksums: `.name.crc`, and checksums of these.
_SNAPSHOT = re.compile(r"(?P<directory>.+)/\.?(?P<batches>[0-9]+)_(?P<id>[\w-]+)\.zip(\.crc)*")
_SST = re.compile(r"(?P<directory>.+)/SSTs/\.?(?P<name>[\w-]+\.sst)(\.crc)*")
_OFFSETS = re.compile(r"offsets/\.?(?P<batch>[0-9]+)(\.crc)*")


def is_complete(store: Store, state: Json) -> bool:
    """
    Return whether the snapshots of the operators' state exist (W17). Spark checks their content when the next batch loads them.

    :param store: the store of the log
    :param state: the field ``state`` of a manifest
    """
    parsed = operator_state(state)
    if parsed is None:
        return True
    for number, operator in enumerate(parsed.operators):
        for partition, ids in enumerate(operator.ids):
            # The files of a state store with a name are in a subdirectory of the partition's directory.
            listed = store.list(f"{LOCATION}/{parsed.root}/state/{number}/{partition}/")
            names = {item.key.rpartition("/")[2] for item in listed if item.bytes > 0}
            if not {f"{parsed.batches}_{id}.zip" for id in ids} <= names:
                return False
    return True


def is_loadable(store: Store, state: Json) -> bool:
    """Return whether the snapshots of a state exist, and the SST files that they name, which vacuum deletes first. Reads each snapshot."""
    return not unloadable(store, [state])


def unloadable(store: Store, states: Sequence[Json]) -> list[int]:
    """
    Return the indexes of the states of which a snapshot, or an SST file that a snapshot names, is missing or damaged. Reads each snapshot.

    :param states: the fields ``state`` of outcomes
    """
    listed: dict[str, set[str]] = {}
    missing = []
    for index, parsed in enumerate(map(operator_state, states)):
        if parsed is None:
            continue
        if parsed.root not in listed:
            listed[parsed.root] = {stat.key for stat in store.list(f"{LOCATION}/{parsed.root}/state/")}
        if not _is_loadable(store, parsed, listed[parsed.root]):
            missing.append(index)
    return missing


def _is_loadable(store: Store, state: OperatorState, listed: set[str]) -> bool:
    names = _snapshot_names(state)
    snapshots = [key for key in listed if key.rpartition("/")[2] in names]
    if len(snapshots) < len(names):
        return False
    for key in snapshots:
        ssts = _sst_keys(store, key)
        if ssts is None or not ssts <= listed:
            return False
    return True


def needed(store: Store, state: OperatorState) -> Iterator[str]:
    """Yield the keys of the files of a state: its snapshots, the SST files that they name, and the files that all states of its root share."""
    root = f"{LOCATION}/{state.root}/"
    names = _snapshot_names(state)
    ssts: set[str] = set()
    sst_keys = []
    for stat in list(store.list(root)):
        name = stat.key.removeprefix(root)
        if _SNAPSHOT.fullmatch(name):
            if name.rpartition("/")[2] in names:
                ssts |= _sst_keys(store, stat.key) or set()
                yield stat.key
        elif _SST.fullmatch(name):
            sst_keys.append(stat.key)
        elif not _OFFSETS.fullmatch(name):
            yield stat.key
    yield from (key for key in sst_keys if key in ssts)


def unneeded(store: Store, oldest: OperatorState) -> Iterator[ObjectStat]:
    """
    Yield the state files of other roots, and those that only states before ``oldest`` use (V7). SST files come before their snapshots.

    The function reads the snapshots that it yields, and those of ``oldest``.

    :param oldest: the oldest state that is kept
    """
    root = f"{LOCATION}/{oldest.root}/"
    directories: dict[str, _Directory] = {}
    for stat in list(store.list(f"{LOCATION}/")):
        name = stat.key.removeprefix(root)
        if name == stat.key:
            yield stat  # the root of a first attempt that lost
        elif match := _SNAPSHOT.fullmatch(name):
            directories.setdefault(match["directory"], _Directory()).add_snapshot(int(match["batches"]), stat)
        elif match := _SST.fullmatch(name):
            directories.setdefault(match["directory"], _Directory()).ssts.setdefault(match["name"], []).append(stat)
        elif (match := _OFFSETS.fullmatch(name)) and int(match["batch"]) < oldest.batches:
            yield stat
    kept = _snapshot_names(oldest)
    for directory in directories.values():
        yield from directory.unneeded(store, oldest.batches, kept)


@dataclass(slots=True)
class _Directory:
    """The files of one state store: number of batches → snapshots, and name → SST file with its checksums."""

    snapshots: dict[int, list[ObjectStat]] = field(default_factory=dict)
    ssts: dict[str, list[ObjectStat]] = field(default_factory=dict)

    def add_snapshot(self, batches: int, stat: ObjectStat) -> None:
        self.snapshots.setdefault(batches, []).append(stat)

    def unneeded(self, store: Store, oldest: int, kept: set[str]) -> Iterator[ObjectStat]:
        """
        Yield the files that are not needed.

        :param oldest: number of batches of the oldest state that is kept
        :param kept: names of the snapshots of that state
        """
        older = [stat for batches, stats in sorted(self.snapshots.items()) if batches < oldest for stat in stats]
        base = [stat.key for stat in self.snapshots.get(oldest, []) if stat.key.rpartition("/")[2] in kept]
        needed = _named_ssts(store, base[0]) if base else None
        if not older:
            return
        if needed is None:
            message = "vacuum deletes no state files in %s, because the oldest kept state has no valid snapshot. Do: run `streamsem verify` with the pipeline"
            logger.warning(message, older[0].key.rpartition("/")[0])
            return
        named: set[str] = set()
        for stat in older:
            named |= _named_ssts(store, stat.key) or set()
        for name in sorted(named - needed):
            yield from self.ssts.get(name, [])
        yield from older


def _snapshot_names(state: OperatorState) -> set[str]:
    """Return the names of the snapshots of a state."""
    return {f"{state.batches}_{id}.zip" for operator in state.operators for ids in operator.ids for id in ids}


def _sst_keys(store: Store, snapshot: str) -> set[str] | None:
    """Return the keys of the SST files that a snapshot names; ``None`` if the object is missing or is not a snapshot."""
    named = _named_ssts(store, snapshot)
    return None if named is None else {f"{snapshot.rpartition('/')[0]}/SSTs/{name}" for name in named}


def _named_ssts(store: Store, key: str) -> set[str] | None:
    """Return the names of the SST files that a snapshot names; ``None`` if the object is missing or is not a snapshot."""
    data = store.read(key) if key.endswith(".zip") else None
    if data is None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # The first line is the version of the format.
            _, _, metadata = archive.read("metadata").decode().partition("\n")
        return {sst["dfsSstFileName"] for sst in json.loads(metadata).get("sstFiles", [])}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError):
        return None
