"""The state of a Delta table is read from its log, whatever form its checkpoint has."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_streamsem.connectors.delta.snapshot import file_of, snapshot
from airflow_provider_streamsem.errors import UnavailableError

NAMES = ["part-0.parquet", "p=a%20b/part-1.parquet", "p=%2525/part-2.parquet", "s3a://other/x%20y/part-3.parquet"]
VECTOR = pyarrow.struct(
    [
        ("storageType", pyarrow.string()),
        ("pathOrInlineDv", pyarrow.string()),
        ("offset", pyarrow.int32()),
        ("sizeInBytes", pyarrow.int32()),
        ("cardinality", pyarrow.int64()),
    ]
)
MAP = pyarrow.map_(pyarrow.string(), pyarrow.string())
TYPES = {
    "add": pyarrow.struct(
        [
            ("path", pyarrow.string()),
            ("partitionValues", MAP),
            ("size", pyarrow.int64()),
            ("dataChange", pyarrow.bool_()),
            ("stats", pyarrow.string()),
            ("baseRowId", pyarrow.int64()),
            ("deletionVector", VECTOR),
            ("stats_parsed", pyarrow.struct([("at", pyarrow.timestamp("us"))])),
        ]
    ),
    "remove": pyarrow.struct([("path", pyarrow.string()), ("dataChange", pyarrow.bool_())]),
    "sidecar": pyarrow.struct([("path", pyarrow.string()), ("sizeInBytes", pyarrow.int64())]),
    "protocol": pyarrow.struct(
        [("minReaderVersion", pyarrow.int32()), ("writerFeatures", pyarrow.list_(pyarrow.string()))]
    ),
    "metaData": pyarrow.struct([("id", pyarrow.string()), ("name", pyarrow.string()), ("configuration", MAP)]),
    "domainMetadata": pyarrow.struct(
        [("domain", pyarrow.string()), ("configuration", pyarrow.string()), ("removed", pyarrow.bool_())]
    ),
}
DOMAINS = ["delta.rowTracking", "delta.clustering"]


def vector(number: int) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": f"dv{number:018d}", "offset": 1, "sizeInBytes": 4, "cardinality": 1}


class History:
    """A random history of a table: the entries of its log, and the state after each of them as kind → key → action."""

    def __init__(self, root: Path, seed: int, versions: int) -> None:
        self.log = root / "_delta_log"
        self.log.mkdir(parents=True)
        self.states: list[dict[str, dict[str, Any]]] = []
        self._random = Random(seed)
        state: dict[str, dict[str, Any]] = {"add": {}, "domainMetadata": {}}
        for version in range(versions):
            state = {kind: dict(actions) for kind, actions in state.items()}
            actions = [{"commitInfo": {"operation": "TEST"}}, *self._changes(state, version)]
            self._random.shuffle(actions)
            self.states.append(state)
            (self.log / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))

    def _changes(self, state: dict[str, dict[str, Any]], version: int) -> list[dict[str, Any]]:
        random, actions = self._random, list[dict[str, Any]]()
        for name in random.sample(NAMES, random.randrange(1, 3)):
            old = state["add"].pop(name, None)
            if old is not None:
                actions.append({"remove": {"path": name, "dataChange": True}})
            if old is None or random.random() < 0.6:
                parts = {"p": random.choice(["a", "", None])}
                add = {"path": name, "partitionValues": parts, "size": version, "dataChange": True, "baseRowId": 7}
                state["add"][name] = add if old is None else {**add, "stats": "{}", "deletionVector": vector(version)}
                actions.append({"add": state["add"][name]})
        if version == 0 or random.random() < 0.3:
            metadata = {"id": "x", "configuration": {"delta.a": str(version)}}
            protocol = {"minReaderVersion": version, "writerFeatures": ["rowTracking"]}
            for kind, action in (("metaData", metadata), ("protocol", protocol)):
                state[kind] = {"": action}
                actions.append({kind: action})
        if random.random() < 0.5:
            domain, removed = random.choice(DOMAINS), random.random() < 0.3
            action = {"domain": domain, "configuration": str(version), "removed": removed}
            state["domainMetadata"].pop(domain, None)
            state["domainMetadata"] |= {} if removed else {domain: action}
            actions.append({"domainMetadata": action})
        return actions

    def checkpoint(self, version: int, form: str) -> None:
        """Write a checkpoint, and delete the entries that it replaces."""
        actions = [{kind: action} for kind, each in self.states[version].items() for action in each.values()]
        # A checkpoint also has the removals of files that VACUUM may still keep, here with an older deletion vector.
        actions += [
            {"remove": {"path": add["path"], "dataChange": False}} for add in self.states[version]["add"].values()
        ]
        self._random.shuffle(actions)
        name, last = f"{version:020d}.checkpoint", dict[str, Any](version=version, size=len(actions))
        if form == "one file":
            self._write(f"{name}.parquet", actions)
        elif form == "two parts":
            for part in (1, 2):
                self._write(f"{name}.{part:010d}.{2:010d}.parquet", actions[part - 1 :: 2])
            last["parts"] = 2
        else:
            (self.log / "_sidecars").mkdir()
            adds = [action for action in actions if "add" in action]
            self._write("_sidecars/s 1.parquet", adds[1:])
            top = [action for action in actions if action not in adds[1:]]
            top.append({"sidecar": {"path": "s%201.parquet", "sizeInBytes": 1}})
            path = f"{name}.uuid.{'json' if form == 'v2 in JSON' else 'parquet'}"
            if form == "v2 in JSON":
                (self.log / path).write_text("".join(f"{json.dumps(action)}\n" for action in top))
            else:
                self._write(path, top)
            last["v2Checkpoint"] = {"path": path}
        (self.log / "_last_checkpoint").write_text(json.dumps(last))
        for entry in range(version + 1):
            (self.log / f"{entry:020d}.json").unlink()

    def _write(self, path: str, actions: list[dict[str, Any]]) -> None:
        kinds = {kind for action in actions for kind in action} or {"add"}
        actions = [
            {kind: {**action, "stats_parsed": {"at": 10**18}} if kind == "add" else action}
            for each in actions
            for kind, action in each.items()
        ]
        columns = {kind: pyarrow.array([action.get(kind) for action in actions], TYPES[kind]) for kind in kinds}
        pyarrow.parquet.write_table(pyarrow.table(columns), self.log / path)


@pytest.mark.parametrize("form", ["none", "one file", "two parts", "v2 in Parquet", "v2 in JSON"])
def test_state_is_that_of_the_log_with_any_form_of_checkpoint(tmp_path: Path, form: str) -> None:
    for seed in range(16):
        root = tmp_path / f"{seed} %"
        history = History(root, seed, versions=8)
        if form != "none":
            history.checkpoint(seed % 8, form)
        found, expected = snapshot(str(root), 7), history.states[7]
        assert found.files == {file_of(name, str(root)): add for name, add in expected["add"].items()}
        assert found.domains == expected["domainMetadata"]
        assert (found.protocol, found.metadata) == (expected["protocol"][""], expected["metaData"][""])


def test_deleted_entry_or_checkpoint_is_reported_as_unavailable(tmp_path: Path) -> None:
    history = History(tmp_path, 1, versions=8)
    (history.log / f"{3:020d}.json").unlink()
    with pytest.raises(UnavailableError, match="version=3"):
        snapshot(str(tmp_path), 7)
    (history.log / "_last_checkpoint").write_text(json.dumps({"version": 5, "size": 1}))
    with pytest.raises(UnavailableError, match="version=5"):
        snapshot(str(tmp_path), 7)
    with pytest.raises(UnavailableError, match="version=5"):
        snapshot(str(tmp_path), 4)


@pytest.mark.parametrize(
    ("path", "location", "file"),
    [
        ("p=a%20b/x.parquet", "/lake/t", "p=a b/x.parquet"),
        ("file:/lake/t/p=a%20b/x.parquet", "/lake/t", "p=a b/x.parquet"),
        ("file:///lake/t%201/x.parquet", "/lake/t 1", "x.parquet"),
        ("s3a://lake/t/x.parquet", "s3://lake/t", "x.parquet"),
        ("s3://lake/t/x.parquet", "s3://lake/t/", "x.parquet"),
        ("s3a://other/t/x.parquet", "s3://lake/t", "s3://other/t/x.parquet"),
        ("file:/lake/t2/x.parquet", "/lake/t", "/lake/t2/x.parquet"),
        ("%2525/x.parquet", "/lake/t", "%25/x.parquet"),
    ],
)
def test_file_is_the_same_for_every_spelling_of_its_path(path: str, location: str, file: str) -> None:
    assert file_of(path, location) == file
