"""Parquet files that Spark would read with other rows, without an error, are refused before Spark reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_streamsem.connectors.data_files import columnar
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.errors import DataError

PAIRS = [[2 * n, 2 * n + 1] for n in range(5)]
LEVELS = bytes([5, 0xAA])
"""Two groups of eight repetition levels of one bit: 0, 1, 0, 1, ..."""
LISTS = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.int32()))])
NESTED: dict[str, tuple[pa.DataType, Any]] = {
    "list": (pa.list_(pa.int32()), lambda pair: pair),
    "list of structs": (pa.list_(pa.struct([("a", pa.int32())])), lambda pair: [{"a": n} for n in pair]),
    "map": (pa.map_(pa.int32(), pa.int32()), lambda pair: [(n, n) for n in pair]),
    "struct with a list": (pa.struct([("a", pa.list_(pa.int32()))]), lambda pair: {"a": pair}),
}


def footers(directory: Path) -> dict[str, columnar.Footer]:
    file = directory / "a.parquet"
    return columnar.footers(
        str(directory), "parquet", [FilePin(path="a.parquet", bytes=file.stat().st_size, identity="")]
    )


def write(directory: Path, kind: pa.DataType, values: list[Any], **options: Any) -> Path:
    file = directory / "a.parquet"
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "x": pa.array(values, kind)})
    pq.write_table(table, file, use_dictionary=False, compression="none", **options)
    return file


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("group", [0, 1])
def test_row_group_that_starts_within_a_record_is_refused(tmp_path: Path, name: str, group: int) -> None:
    kind, of = NESTED[name]
    file = write(tmp_path, kind, [of(pair) for pair in (*PAIRS, *PAIRS)], row_group_size=len(PAIRS))
    data = file.read_bytes()
    assert footers(tmp_path)["a.parquet"].rows == 10
    at = [n for n in range(len(data)) if data.startswith(LEVELS, n)]
    starts = at[:: len(at) // 2]
    file.write_bytes(data[: starts[group] + 1] + bytes([0xAB]) + data[starts[group] + 2 :])
    with pytest.raises(DataError, match=r"cannot be read as its format; nothing became visible.*a\.parquet"):
        footers(tmp_path)


@pytest.mark.parametrize("values", [[], [None], [[]], [None, [], [1], [None]]], ids=str)
def test_empty_lists_and_files_are_accepted(tmp_path: Path, values: list[Any]) -> None:
    write(tmp_path, pa.list_(pa.int32()), values)
    assert footers(tmp_path)["a.parquet"].rows == len(values)


def test_only_the_first_pages_of_lists_are_read(tmp_path: Path) -> None:
    file = write(tmp_path, pa.list_(pa.int32()), [list(range(100))] * 20_000, data_page_size=1 << 16)
    size, read = file.stat().st_size, 0

    class Counting:
        def __init__(self, file: Any) -> None:
            self.file = file

        def read(self, count: int = -1) -> Any:
            nonlocal read
            data = self.file.read(count)
            read += len(data)
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with file.open("rb") as opened:
        columnar._parquet(Counting(opened))
    assert read < size / 4
