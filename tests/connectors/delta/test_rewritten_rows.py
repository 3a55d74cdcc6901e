"""Whatever rewrites rows of a Delta table keeps every value, and commits nothing if a new file has other values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.delta import rewrite as delta_rewrite
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.errors import PublishError, StreamsemError
from tests.connectors.batches import schema_of, staged
from tests.connectors.odd_values import COLUMNS, odd_rows

SCHEMA = schema_of(**{name: kind for name, (kind, _, _) in COLUMNS.items()})


def stored(path: str) -> list[str]:
    return written(DeltaTable(path).to_pyarrow_table())


def written(rows: pa.Table) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows.to_pylist())


def publish(sink: DeltaSink, rows: pa.Table, version: int, schema: str = SCHEMA) -> None:
    assert sink.publish(staged(sink, rows, version, schema=schema)) is not None


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_compaction_and_merge_keep_every_value_of_every_type(tmp_path_factory: Any, data: st.DataObject) -> None:
    first, second, third = (data.draw(odd_rows(ids=ids)) for ids in (range(4), range(4, 8), range(2, 6)))
    sink = DeltaSink(str(tmp_path_factory.mktemp("table")))
    for version, rows in enumerate((first, second)):
        publish(sink, rows, version)
    before = written(pa.concat_tables([first, second]))
    assert stored(sink.path) == before
    (done,) = sink.compact_table(target_file_bytes=2**20, max_bytes=0, dry_run=False, before_commit=lambda: None)
    assert (done.files, done.new_files) == (2, 1)
    assert stored(sink.path) == before

    merged = DeltaSink(str(tmp_path_factory.mktemp("table")), mode="upsert", keys=["id"])
    for version, rows in enumerate((first, second, third)):
        publish(merged, rows, version)
    assert stored(merged.path) == written(pa.concat_tables([first.slice(0, 2), second.slice(2, 2), third]))


@pytest.mark.parametrize("at", [0, 1], ids=["kept rows", "merged rows"])
def test_merge_whose_new_files_have_other_values_is_refused_and_names_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    sink = DeltaSink(str(tmp_path / "table"), mode="upsert", keys=["id"])
    schema = schema_of(id="long", v="long")
    publish(sink, pa.table({"id": [1, 2], "v": [1, 2]}), 0, schema)
    batch = staged(sink, pa.table({"id": [2], "v": [3]}), 1, schema=schema)
    before = (DeltaTable(sink.path).version(), sorted(Path(sink.path).glob("*.parquet")))
    real, calls = delta_rewrite.write, iter(range(9))

    def lossy(file: Any, rows: Any, *more: Any, **named: Any) -> Any:
        if next(calls) == at:
            rows = (part.set_column(1, "v", pc.add(part["v"], 1)) for part in rows)
        return real(file, rows, *more, **named)

    monkeypatch.setattr(delta_rewrite, "write", lossy)
    with pytest.raises(PublishError, match=r"columns=\['v'\]"):
        sink.publish(batch)
    assert (DeltaTable(sink.path).version(), sorted(Path(sink.path).glob("*.parquet"))) == before


def test_partitioned_rows_move_between_partitions_and_keep_their_values(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"), mode="upsert", keys=["id"], partition_by=["p", "day"])
    schema = schema_of(id="long", p="string", day="date", v="long")
    days = pa.array([0, None, 20_000], pa.date32())
    publish(sink, pa.table({"id": [1, 2, 3], "p": ["a/ b", None, "é"], "day": days, "v": [1, 2, 3]}), 0, schema)
    new = pa.table({"id": [2, 3], "p": ["é", None], "day": pa.array([20_000, None], pa.date32()), "v": [4, 5]})
    publish(sink, new, 1, schema)
    rows = [{"id": 1, "p": "a/ b", "day": days[0].as_py(), "v": 1}, *new.to_pylist()]
    assert stored(sink.path) == sorted(repr(sorted(row.items())) for row in rows)


def test_table_with_a_change_data_feed_is_refused_for_merges(tmp_path: Path) -> None:
    """The feed would have a deletion and an insertion for each row of a rewritten file, also for unchanged rows."""
    path = str(tmp_path / "table")
    columns = pa.schema([("id", pa.int64())])
    DeltaTable.create(path, columns, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaSink(path).resolve_schema(schema_of(id="long"))
    with pytest.raises(Exception, match=r"delta\.enableChangeDataFeed"):
        DeltaSink(path, mode="upsert", keys=["id"]).resolve_schema(schema_of(id="long"))


@pytest.mark.parametrize("names", [("id", "V"), ("ID", "v")], ids=str)
def test_file_whose_column_differs_in_case_is_not_rewritten(tmp_path: Path, names: tuple[str, str]) -> None:
    """Spark reads such a column. Its values would become null in a new file."""
    schema = schema_of(id="long", v="long")
    for mode in ("append", "upsert"):
        sink = DeltaSink(str(tmp_path / mode), mode=mode, keys=["id"] if mode == "upsert" else [])
        for version in range(2):
            publish(sink, pa.table({"id": [version], "v": [version]}), version, schema)
        for file in (tmp_path / mode).rglob("*.parquet"):
            if file.stat().st_size and "_delta_log" not in str(file):
                pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).rename_columns(names), file)
        before = DeltaTable(sink.path).version()
        compact = partial(
            sink.compact_table, target_file_bytes=2**20, max_bytes=0, dry_run=False, before_commit=lambda: None
        )
        merge = partial(publish, sink, pa.table({"id": [0], "v": [9]}), 2, schema)
        with pytest.raises(StreamsemError, match="differ in case"):
            (compact if mode == "append" else merge)()
        assert DeltaTable(sink.path).version() == before
