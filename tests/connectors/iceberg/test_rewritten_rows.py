"""Whatever rewrites rows of an Iceberg table keeps every value: nulls in nested columns, renamed and dropped columns, deleted rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_provider_streamsem.connectors.iceberg import rewrite as iceberg_rewrite
from airflow_provider_streamsem.errors import PublishError
from tests.connectors.iceberg.lake import Lake
from tests.connectors.odd_values import COLUMNS, STRUCT, odd_rows

TARGET = 65_536
SPARK = [(name, kind) for name, (kind, _, _) in COLUMNS.items()]


def compacted(lake: Lake) -> int:
    return len(
        lake.sink.compact_table(target_file_bytes=TARGET, max_bytes=2**30, dry_run=False, before_commit=lambda: None)
    )


def stored(lake: Lake) -> list[str]:
    """Return all rows, read with pyarrow from the data files, because pyiceberg changes nulls in nested columns."""
    table = lake.table()
    rows: list[str] = []
    for task in table.scan().plan_files():
        parts = list(iceberg_rewrite.RewrittenTable(table.metadata, table.io, "x").rows(task))
        rows += [repr(sorted(row.items())) for part in parts for row in part.cast(schema_of(part, table)).to_pylist()]
    return sorted(rows)


def schema_of(part: pa.Table, table: Any) -> pa.Schema:
    whole = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([whole.field(name) for name in part.schema.names])


def written(rows: pa.Table) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows.to_pylist())


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_compaction_and_merge_keep_every_value_of_every_type(tmp_path_factory: Any, data: st.DataObject) -> None:
    first, second, third = (data.draw(odd_rows(ids=ids)) for ids in (range(4), range(4, 8), range(2, 6)))
    lake = Lake(tmp_path_factory.mktemp("lake"))
    for version, rows in enumerate((first, second)):
        lake.publish(lake.batch(version, [("", rows)], columns=SPARK))
    before = written(pa.concat_tables([first, second]))
    assert stored(lake) == before
    assert compacted(lake) == 1
    assert stored(lake) == before

    merged = Lake(tmp_path_factory.mktemp("lake"), {"mode": "upsert", "keys": ["id"]})
    for version, rows in enumerate((first, second, third)):
        merged.publish(merged.batch(version, [("", rows)], columns=SPARK))
    kept = [first.slice(0, 2), second.slice(2, 2), third]
    assert stored(merged) == written(pa.concat_tables(kept))


def test_null_lists_and_maps_of_structs_stay_null(tmp_path: Path) -> None:
    kind = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    columns = [
        ("id", "long"),
        ("ls", {"type": "array", "elementType": kind, "containsNull": True}),
        ("m", {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}),
    ]
    for changes in ({}, {"mode": "upsert", "keys": ["id"]}):
        lake = Lake(tmp_path / str(len(changes)), changes)
        lake.root.mkdir()
        for version in range(2):
            rows = pa.table(
                {
                    "id": pa.array([version], pa.int64()),
                    "ls": pa.array([None], pa.list_(STRUCT)),
                    "m": pa.array([None], pa.map_(pa.string(), STRUCT)),
                }
            )
            lake.publish(lake.batch(version, [("", rows)], columns=columns))
        compacted(lake)
        assert stored(lake) == [f"[('id', {n}), ('ls', None), ('m', None)]" for n in range(2)]


def test_renamed_and_dropped_columns_of_old_files_keep_their_values(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in "ab"]
    columns = [("id", "long"), ("s", {"type": "struct", "fields": fields}), ("t", "string"), ("u", "string")]
    lake = Lake(tmp_path, {"mode": "upsert", "keys": ["id"]})
    rows = pa.table({"id": [1, 2], "s": pa.array([{"a": 1, "b": 2}, None], kind), "t": ["t", None], "u": ["u", "v"]})
    lake.publish(lake.batch(0, [("", rows)], columns=columns))
    with lake.table().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("t")
        change.rename_column("u", "t")
        change.rename_column("s.a", "c")
        change.delete_column("s.b")
    fields = [{"name": "c", "type": "long", "nullable": True, "metadata": {}}]
    columns = [("id", "long"), ("s", {"type": "struct", "fields": fields}), ("t", "string")]
    new = pa.table({"id": [2], "s": pa.array([{"c": 7}]), "t": ["w"]})
    lake.publish(lake.batch(1, [("", new)], columns=columns))
    read = sorted(lake.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert read == [{"id": 1, "s": {"c": 1}, "t": "u"}, {"id": 2, "s": {"c": 7}, "t": "w"}]


@pytest.mark.parametrize("at", [0, 1], ids=["kept rows", "merged rows"])
def test_merge_whose_new_files_have_other_values_is_refused_and_names_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    lake = Lake(tmp_path, {"mode": "upsert", "keys": ["id"]})
    columns = [("id", "long"), ("v", "long")]
    lake.publish(lake.batch(0, [("", pa.table({"id": [1, 2], "v": [1, 2]}))], columns=columns))
    before = lake.table().metadata_location
    real, calls = iceberg_rewrite.write, iter(range(9))

    def lossy(file: Any, rows: Any, *more: Any, **named: Any) -> Any:
        if next(calls) == at:
            rows = (part.set_column(1, "v", pc.add(part["v"], 1)) for part in rows)
        return real(file, rows, *more, **named)

    monkeypatch.setattr(iceberg_rewrite, "write", lossy)
    with pytest.raises(PublishError, match=r"columns=\['v'\]"):
        lake.publish(lake.batch(1, [("", pa.table({"id": [2], "v": [3]}))], columns=columns))
    assert lake.table().metadata_location == before
