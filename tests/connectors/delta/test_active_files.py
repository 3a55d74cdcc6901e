"""Add actions are read from the log of a Delta table, whatever form its checkpoint has."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_streamsem.connectors.delta.active_files import add_actions, file_of
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
ADD = pyarrow.struct([("path", pyarrow.string()), ("size", pyarrow.int64()), ("deletionVector", VECTOR)])
SIDECAR = pyarrow.struct([("path", pyarrow.string()), ("sizeInBytes", pyarrow.int64())])


def vector(number: int) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": f"dv{number:018d}", "offset": 1, "sizeInBytes": 4, "cardinality": 1}


class History:
    """A random history of a table: entries of its log, and the add actions after each of them."""

    def __init__(self, root: Path, seed: int, versions: int) -> None:
        self.log = root / "_delta_log"
        self.log.mkdir(parents=True)
        self.states: list[dict[str, dict[str, Any]]] = []
        random, state = Random(seed), dict[str, dict[str, Any]]()
        for version in range(versions):
            state = dict(state)
            actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "TEST"}}]
            for name in random.sample(NAMES, random.randrange(1, 3)):
                old = state.pop(name, None)
                if old is not None:
                    actions.append({"remove": {"path": name, "dataChange": True}})
                if old is None or random.random() < 0.6:
                    add = {"path": name, "size": version}
                    state[name] = add if old is None else {**add, "deletionVector": vector(version)}
                    actions.append({"add": {**state[name], "dataChange": True}})
            random.shuffle(actions)
            self.states.append(state)
            (self.log / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))

    def checkpoint(self, version: int, form: str) -> None:
        """Write a checkpoint, and delete the entries that it replaces."""
        adds = [*self.states[version].values()]
        name, last = f"{version:020d}.checkpoint", {"version": version, "size": len(adds)}
        if form == "one file":
            self._write(f"{name}.parquet", adds)
        elif form == "two parts":
            for part in (1, 2):
                self._write(f"{name}.{part:010d}.{2:010d}.parquet", adds[part - 1 :: 2])
            last["parts"] = 2
        else:
            (self.log / "_sidecars").mkdir()
            self._write("_sidecars/s 1.parquet", adds[1:])
            top = [{"add": add} for add in adds[:1]] + [{"sidecar": {"path": "s%201.parquet", "sizeInBytes": 1}}]
            path = f"{name}.uuid.{'json' if form == 'v2 in JSON' else 'parquet'}"
            if form == "v2 in JSON":
                (self.log / path).write_text("".join(f"{json.dumps(action)}\n" for action in top))
            else:
                columns = {kind: [action.get(kind) for action in top] for kind in ("add", "sidecar")}
                self._write_columns(path, columns)
            last["v2Checkpoint"] = {"path": path}  # type: ignore[assignment]
        (self.log / "_last_checkpoint").write_text(json.dumps(last))
        for entry in range(version + 1):
            (self.log / f"{entry:020d}.json").unlink()

    def _write(self, path: str, adds: list[dict[str, Any]]) -> None:
        self._write_columns(path, {"add": [*adds, None]})

    def _write_columns(self, path: str, columns: dict[str, list[Any]]) -> None:
        kinds = {"add": ADD, "sidecar": SIDECAR}
        table = pyarrow.table({kind: pyarrow.array(values, kinds[kind]) for kind, values in columns.items()})
        pyarrow.parquet.write_table(table, self.log / path)


@pytest.mark.parametrize("form", ["none", "one file", "two parts", "v2 in Parquet", "v2 in JSON"])
def test_add_actions_are_those_of_the_log_with_any_form_of_checkpoint(tmp_path: Path, form: str) -> None:
    for seed in range(12):
        root = tmp_path / f"{seed} %"
        history = History(root, seed, versions=8)
        if form != "none":
            history.checkpoint(seed % 8, form)
        wanted = {file_of(name, str(root)): name for name in NAMES}
        expected = {file: add for file, name in wanted.items() if (add := history.states[7].get(name)) is not None}
        found = add_actions(str(root), 7, wanted)
        assert {file: comparable(add) for file, add in found.items()} == {
            file: comparable(add) for file, add in expected.items()
        }
        assert add_actions(str(root), 7, []) == {}


def comparable(add: dict[str, Any]) -> tuple[str, Any]:
    return add["path"], add.get("deletionVector")


def test_deleted_entry_or_checkpoint_is_reported_as_unavailable(tmp_path: Path) -> None:
    history = History(tmp_path, 1, versions=8)
    wanted = [file_of(name, str(tmp_path)) for name in [*NAMES, "missing"]]
    (history.log / f"{3:020d}.json").unlink()
    with pytest.raises(UnavailableError, match="version=3"):
        add_actions(str(tmp_path), 7, wanted)
    (history.log / "_last_checkpoint").write_text(json.dumps({"version": 5, "size": 1}))
    with pytest.raises(UnavailableError, match="version=5"):
        add_actions(str(tmp_path), 7, wanted)
    with pytest.raises(UnavailableError, match="version=5"):
        add_actions(str(tmp_path), 4, wanted)


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
