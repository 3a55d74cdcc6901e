"""
Checks whether the files of the operators' state exist in the log and have the recorded content, and finds the files that no state needs.

Spark writes a snapshot ``<batches>_<id>.zip`` for each partition, state store and batch, into the store's directory. The snapshot names the SST files of the
batch in the subdirectory ``SSTs``. Consecutive snapshots share most SST files, and an SST file that a batch no longer uses is never used again.

Spark loads any valid snapshot, also that of another batch. So an outcome has a digest of each snapshot. An SST file needs none: a snapshot has its size, which
Spark compares, and its unique id, which RocksDB compares when it opens the file.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state.settings import LOCATION, OperatorState, operator_state, with_operator_state
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import ObjectStat, Store, split_url
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = telemetry.log_of(__name__)

# Hadoop's local file system adds hidden files with checksums: `.name.crc`, and checksums of these.
_SNAPSHOT = re.compile(r"(?P<directory>.+)/\.?(?P<batches>[0-9]+)_(?P<id>[\w-]+)\.zip(\.crc)*")
_SST = re.compile(r"(?P<directory>.+)/SSTs/\.?(?P<name>[\w-]+\.sst)(\.crc)*")
_TEMPORARY = re.compile(r"/\.[^/]*$|\.tmp$")
_OFFSETS = re.compile(r"offsets/\.?(?P<batch>[0-9]+)(\.crc)*")
_STORES = {
    "symmetricHashJoin": (
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    )
}
"""Name of an operator with several state stores → Spark's names of them, in the order of their ids. Each is a subdirectory of the partition's directory."""
_DIGITS = 16
"""Length of a digest, in hexadecimal digits."""
_MOST_METADATA_BYTES = 4 << 20
"""Spark writes about 130 bytes for each SST file, so this is the metadata of 30,000 files."""
DAMAGED = "a file of the state of the previous batch is missing, truncated or swapped; no batch was built on it, and nothing became visible"
"""The summary of the error for a damaged state file. Some damage is detected before Spark starts, and some by Spark."""
RESTORE = (
    "restore the files below state/operators in the log from a backup, each under its own name; "
    "or fork the pipeline at an earlier version: streamsem fork."
)
"""Advice for a damaged state file."""


def with_digests(store: Store, state: Json) -> Json:
    """
    Read the snapshots that an attempt has written, and return its state with their digests. A state with digests stays unchanged. Sends one read for each id.
    """
    parsed = operator_state(state)
    if parsed is None or all(operator.digests for operator in parsed.operators):
        return state
    found = iter(in_threads(lambda key: _digest(store, key), [key for key, _ in _snapshots(parsed)]))
    digests = [[tuple(next(found) for _ in ids) for ids in operator.ids] for operator in parsed.operators]
    if not all(digest for operator in digests for partition in operator for digest in partition):
        raise StageError(
            "the executors' state files are not in the log, as if the executors had another disk or S3 endpoint",
            directory=f"{store.url}/{LOCATION}/{parsed.root}",
        ).advising("use a log on S3 or on a disk that driver and executors share, and run again.")
    pairs = zip(parsed.operators, digests, strict=True)
    operators = tuple(replace(operator, digests=tuple(each)) for operator, each in pairs)
    return with_operator_state(state, replace(parsed, operators=operators))


def make_durable(store: Store, state: OperatorState) -> None:
    """
    Make the files of a state in a directory durable, because Spark leaves them in the page cache, and the outcome must not be durable before them.

    S3 confirms a write only when it is durable.
    """
    if split_url(store.url)[0] != "file":
        return
    files = open_dataset(store.url)
    # Other attempts create temporary files in the same root, and delete metadata of transformWithState, which the outcome contains.
    names = [key for key in needed(files, state) if "/_metadata/v2/" not in key and not _TEMPORARY.search(key)]
    sums = [f"{directory}/.{name}.crc" for directory, _, name in (key.rpartition("/") for key in names)]
    keys = [*names, *(key for key in sums if files.stat(key) is not None)]
    files.make_durable(keys, f"{LOCATION}/{state.root}/")


def check_base(store: Store, state: Json, version: int) -> None:
    """Check that the snapshots on which a batch builds exist and have the recorded content. Sends one read for each id."""
    if wrong := _wrong_snapshots(store, state):
        error = DataError(DAMAGED, version=version, file=f"{store.url}/{wrong[0]}", files=len(wrong))
        raise error.advising(RESTORE)


def is_complete(store: Store, state: Json) -> bool:
    """Return whether the snapshots of the operators' state exist and have the recorded content (W17). Sends one read for each id."""
    return not _wrong_snapshots(store, state)


def _wrong_snapshots(store: Store, state: Json) -> list[str]:
    parsed = operator_state(state)
    snapshots = [] if parsed is None else list(_snapshots(parsed))
    found = in_threads(lambda snapshot: _digest(store, snapshot[0]), snapshots)
    return [key for (key, digest), now in zip(snapshots, found, strict=True) if now != digest or not now]


def _snapshots(state: OperatorState) -> Iterator[tuple[str, str]]:
    """Yield the key of each snapshot of a state, and its recorded digest, which is empty if there is none."""
    for number, operator in enumerate(state.operators):
        for partition, ids in enumerate(operator.ids):
            stores = [f"{name}/" for name in _STORES.get(operator.name, ())] or [""]
            digests = operator.digests[partition] if operator.digests else [""] * len(ids)
            for name, id, digest in zip(stores, ids, digests, strict=True):
                yield f"{LOCATION}/{state.root}/state/{number}/{partition}/{name}{state.batches}_{id}.zip", digest


def _digest(store: Store, key: str) -> str:
    """Return the digest of an object; empty if the object is missing."""
    data = store.read(key)
    return "" if data is None else sha256(data)[:_DIGITS]


def is_loadable(store: Store, state: Json) -> bool:
    """
    Return whether the snapshots of a state exist and have the recorded content, and the SST files that they name exist. Reads each snapshot.

    Vacuum deletes SST files before snapshots, so :func:`is_complete` is not sufficient.
    """
    return not unloadable(store, [state])


def unloadable(store: Store, states: Sequence[Json]) -> list[int]:
    """
    Return the indexes of the states of which a snapshot is missing or differs, or an SST file that one names is missing or truncated. Reads each snapshot.
    """
    listed: dict[str, dict[str, int]] = {}
    missing = []
    for index, parsed in enumerate(map(operator_state, states)):
        if parsed is None:
            continue
        if parsed.root not in listed:
            listed[parsed.root] = {stat.key: stat.bytes for stat in store.list(f"{LOCATION}/{parsed.root}/state/")}
        if not _is_loadable(store, parsed, listed[parsed.root]):
            missing.append(index)
    return missing


def _is_loadable(store: Store, state: OperatorState, listed: Mapping[str, int]) -> bool:
    """``listed`` maps the key of each state file to its size in bytes."""
    for key, digest in _snapshots(state):
        data = store.read(key) if key in listed else None
        if data is None or sha256(data)[:_DIGITS] != digest:
            return False
        ssts = _ssts_in(data)
        directory = f"{key.rpartition('/')[0]}/SSTs"
        if ssts is None or any(listed.get(f"{directory}/{name}") != size for name, size in ssts.items()):
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
    """Yield the state files of other roots, and those that only states before ``oldest`` use (V7). SST files come before their snapshots."""
    root = f"{LOCATION}/{oldest.root}/"
    directories: dict[str, _Directory] = {}
    for stat in list(store.list(f"{LOCATION}/")):
        name = stat.key.removeprefix(root)
        if name == stat.key:
            yield stat  # the root directory of a first attempt that was not committed
        elif match := _SNAPSHOT.fullmatch(name):
            directories.setdefault(match["directory"], _Directory()).add_snapshot(int(match["batches"]), stat)
        elif match := _SST.fullmatch(name):
            directories.setdefault(match["directory"], _Directory()).ssts.setdefault(match["name"], []).append(stat)
        elif (match := _OFFSETS.fullmatch(name)) and int(match["batch"]) < oldest.batches:
            yield stat
    kept = {key.rpartition("/")[2]: digest for key, digest in _snapshots(oldest)}
    for directory in directories.values():
        yield from directory.unneeded(store, oldest.batches, kept)


@dataclass(slots=True)
class _Directory:
    """The files of one state store: number of batches → snapshots, and name → SST file with its checksums."""

    snapshots: dict[int, list[ObjectStat]] = field(default_factory=dict)
    ssts: dict[str, list[ObjectStat]] = field(default_factory=dict)

    def add_snapshot(self, batches: int, stat: ObjectStat) -> None:
        self.snapshots.setdefault(batches, []).append(stat)

    def unneeded(self, store: Store, oldest: int, kept: Mapping[str, str]) -> Iterator[ObjectStat]:
        """``oldest`` is the number of batches of the oldest state that is kept. ``kept`` maps each of its snapshots to its digest."""
        older = [stat for batches, stats in sorted(self.snapshots.items()) if batches < oldest for stat in stats]
        base = [stat.key for stat in self.snapshots.get(oldest, []) if stat.key.rpartition("/")[2] in kept]
        # The SST files that a swapped snapshot names are not those that the state needs.
        is_valid = bool(base) and _digest(store, base[0]) == kept[base[0].rpartition("/")[2]]
        needed = _named_ssts(store, base[0]) if is_valid else None
        if not older:
            return
        if needed is None:
            message = "vacuum deletes no state files in %s, because the oldest kept state has no valid snapshot. Do: run `streamsem verify` with the pipeline"
            logger.warning(message, older[0].key.rpartition("/")[0])
            return
        named: set[str] = set()
        for stat in older:
            named |= (_named_ssts(store, stat.key) or {}).keys()
        for name in sorted(named - needed.keys()):
            yield from self.ssts.get(name, [])
        yield from older


def _snapshot_names(state: OperatorState) -> set[str]:
    return {f"{state.batches}_{id}.zip" for operator in state.operators for ids in operator.ids for id in ids}


def _sst_keys(store: Store, snapshot: str) -> set[str] | None:
    named = _named_ssts(store, snapshot)
    return None if named is None else {f"{snapshot.rpartition('/')[0]}/SSTs/{name}" for name in named}


def _named_ssts(store: Store, key: str) -> dict[str, int] | None:
    """Return the SST files that a snapshot names, with their sizes in bytes; ``None`` if the object is missing or is not a snapshot."""
    data = store.read(key) if key.endswith(".zip") else None
    return None if data is None else _ssts_in(data)


def _ssts_in(snapshot: bytes) -> dict[str, int] | None:
    """Return sizes in bytes; ``None``: no snapshot. A small archive may decompress to gigabytes, so :data:`_MOST_METADATA_BYTES` limits the read."""
    try:
        with zipfile.ZipFile(io.BytesIO(snapshot)) as archive:
            member = archive.getinfo("metadata")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return None
            with archive.open(member) as file:
                data = file.read(_MOST_METADATA_BYTES + 1)
        if len(data) > _MOST_METADATA_BYTES:
            return None
        # The first line is the version of the format.
        _, _, metadata = data.decode().partition("\n")
        return {sst["dfsSstFileName"]: sst["sizeBytes"] for sst in json.loads(metadata).get("sstFiles", [])}
    except (zipfile.BadZipFile, zlib.error, AttributeError, EOFError, KeyError, RuntimeError, TypeError, ValueError):
        return None
