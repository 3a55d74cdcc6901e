"""Delta and Iceberg tables with odd values of every type, and the predicates that filter them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.predicate import Predicate
from tests.connectors.batches import schema_of, staged
from tests.connectors.iceberg.lake import Lake
from tests.connectors.odd_values import COLUMNS

HOW = ("append", "others", "upsert", "compaction", "erasure")
"""How rows came into the table. ``others``: appended to a table that another writer created."""
SCALARS = {name: values for name, (kind, _, values) in COLUMNS.items() if isinstance(kind, str) and name != "id"}
SCHEMA = schema_of(**{name: kind for name, (kind, _, _) in COLUMNS.items()})
_OTHER = 1_000_000
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    ">": pc.greater,
    "<=": pc.less_equal,
}


def rows(file: int) -> pa.Table:
    """Return the rows of one file: files of one odd value, files with a null beside it, and a file that has only nulls."""
    arrays = [pa.array([2 * file, 2 * file + 1], pa.int64())]
    for name, (_, kind, values) in COLUMNS.items():
        if name != "id":
            value = values[(file - 1) % len(values)] if file else None
            arrays.append(pa.array([value, None if file % 2 else value], kind))
    return pa.table(arrays, names=list(COLUMNS))


FILES = 1 + max(len(values) for values in SCALARS.values())
EXPECTED = pa.concat_tables([rows(file) for file in range(FILES)])


def publish_all(publish: Callable[[int, pa.Table], None], how: str) -> None:
    """Publish all rows, one file in each version. For ``upsert``, first publish other rows with half of the ids."""
    version = 0
    if how == "upsert":
        publish(0, EXPECTED.slice(2, EXPECTED.num_rows // 2).set_column(0, "id", pc.add(rows(0)["id"][0:1].take([0] * (EXPECTED.num_rows // 2)), pa.array(range(EXPECTED.num_rows // 2)))))  # fmt: skip
        version = 1
    step = 2 if how == "compaction" else 1
    for at in range(0, FILES, step):
        parts = [rows(file) for file in range(at, min(at + step, FILES))]
        if how == "erasure":
            (other,) = (rows((at + 1) % FILES).slice(0, 1),)
            parts.append(other.set_column(0, "id", pa.array([_OTHER + at], pa.int64())))
        publish(version, pa.concat_tables(parts))
        version += 1


def _erase_others(sink: Any) -> None:
    """Erase the rows that ``publish_all`` has added to each file."""
    others = ", ".join(str(_OTHER + at) for at in range(FILES))
    done = sink.erase_rows(Predicate.parse(f"id IN ({others})"), dry_run=False, before_commit=lambda: None)
    assert (done.rows, done.files) == (FILES, FILES)


@lru_cache
def delta(root: str, how: str) -> str:
    path = f"{root}/delta-{how}"
    upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id"]} if how == "upsert" else {}
    sink = DeltaSink(path, **upsert)
    if how == "others":
        write_deltalake(path, EXPECTED.slice(0, 0))
    publish_all(lambda version, table: _publish_delta(sink, version, table), how)
    if how == "compaction":
        size = max(Path(path, file["path"]).stat().st_size for file in pa.table(DeltaTable(path).get_add_actions()).to_pylist())  # fmt: skip
        (done,) = sink.compact_table(target_file_bytes=4 * size, max_bytes=0, dry_run=False, before_commit=lambda: None)
        assert done.new_files is not None
        assert done.new_files > 1
    if how == "erasure":
        _erase_others(sink)
    return path


def _publish_delta(sink: DeltaSink, version: int, table: pa.Table) -> None:
    assert sink.publish(staged(sink, table, version, schema=SCHEMA)) is not None


@lru_cache
def lake(root: str, how: str) -> Lake:
    directory = Path(root) / f"iceberg-{how}"
    directory.mkdir()
    made = Lake(directory, {"mode": "upsert", "keys": ["id"]} if how == "upsert" else {})
    columns = [(name, kind) for name, (kind, _, _) in COLUMNS.items()]
    publish_all(lambda version, table: _publish_iceberg(made, version, table, columns), how)
    if how == "compaction":
        size = max(task.file.file_size_in_bytes for task in made.table().scan().plan_files())
        done = made.sink.compact_table(
            target_file_bytes=4 * size, max_bytes=2**30, dry_run=False, before_commit=lambda: None
        )
        assert sum(each.new_files or 0 for each in done) > 1
    if how == "erasure":
        _erase_others(made.sink)
    return made


def _publish_iceberg(made: Lake, version: int, table: pa.Table, columns: Any) -> None:
    assert made.publish(made.batch(version, [("", table)], columns=columns)) is not None


def predicates() -> Iterator[tuple[str, str, Any]]:
    """Yield column, operator and value: each odd value with each operator, and tests for null."""
    for name, values in SCALARS.items():
        yield name, "is null", None
        yield name, "is not null", None
        for value in values:
            operators = ("=",) if COLUMNS[name][0] in ("boolean", "binary") else _OPERATORS
            for operator in operators:
                yield name, operator, value


def expression(name: str, operator: str, value: Any) -> Any:
    """Return a predicate as a pyarrow expression."""
    column = pc.field(name)
    if operator.endswith("null"):
        return column.is_null() if operator == "is null" else column.is_valid()
    scalar = pa.scalar(value, COLUMNS[name][1])
    return {
        "=": column == scalar,
        ">": column > scalar,
        "<=": column <= scalar,
    }[operator]
