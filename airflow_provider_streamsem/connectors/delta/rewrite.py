"""
Reads the rows of data files of a Delta table, and writes rows to new data files (extra ``delta``). Imports pyarrow, so only the sink imports this module, when
it rewrites rows.

delta-rs would write bounds of decimals that are not exact, and would commit the new files before anything could compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.data_files.bounds import delta_stats
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.data_files.rewrite import RowsDifferError, batches, changed, write
from airflow_provider_streamsem.connectors.delta.columns import partition_text
from airflow_provider_streamsem.connectors.delta.statistics import accepted
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

_ROWS = 65_536

AddedFile = dict[str, Any]
"""An add action of the table, flattened."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that no entry of the table's log references yet. ``partition``: column → the text of its value."""

    key: str
    bytes: int
    rows: int
    partition: Mapping[str, str | None]
    stats: str


class RewrittenTable:
    """A ``deltalake.DeltaTable`` whose rows are rewritten."""

    def __init__(self, location: str, table: Any) -> None:
        self.location, self._table, self._dataset = location, table, open_dataset(location)
        self.partition_by: Sequence[str] = tuple(table.metadata().partition_columns)
        self.schema: pa.Schema = pa.schema(table.schema().to_arrow())
        self._stored = pa.schema([field for field in self.schema if field.name not in self.partition_by])

    @property
    def dataset(self) -> Dataset:
        return self._dataset

    def files(self) -> list[AddedFile]:
        return pa.table(self._table.get_add_actions(flatten=True)).to_pylist()  # type: ignore[no-any-return]

    def rows(self, file: AddedFile, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield pyarrow tables with the types of the file. Partition columns have the values of the add action."""
        names = [name for name in self.schema.names if columns is None or name in columns]
        with self._dataset.open(self._dataset.stat(unquote(file["path"]))) as opened:  # type: ignore[arg-type]
            parquet = pyarrow.parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            self._refuse_other_case(file, parquet.schema_arrow.names)
            chosen = [name for name in names if name in parquet.schema_arrow.names and name not in self.partition_by]
            constants = {name: self._constant(file, name) for name in names if name in self.partition_by}
            for batch in parquet.iter_batches(batch_size=_ROWS, columns=chosen):
                arrays = [*batch.columns, *(pa.repeat(value, batch.num_rows) for value in constants.values())]
                yield pa.table(arrays, names=[*batch.schema.names, *constants])

    def _refuse_other_case(self, file: AddedFile, names: Sequence[str]) -> None:
        """Spark reads a column whose name differs in case from that in the table, and pyarrow would leave it out."""
        columns = {name.lower() for name in self.schema.names} - {name.lower() for name in self.partition_by}
        differing = sorted(name for name in names if name.lower() in columns and name not in self.schema.names)
        if differing:
            summary = "columns of a file of the Delta table differ in case from those of the table, so the file cannot be rewritten; no row was changed"
            raise DataError(summary, file=file["path"], columns=differing).advising(
                "rewrite the file by Spark, for example with OPTIMIZE, then run again."
            )

    def _constant(self, file: AddedFile, name: str) -> Any:
        value = file[f"partition.{name}"]
        return pa.scalar(None if value == "" else value, self.schema.field(name).type)

    def partition_of(self, file: AddedFile) -> dict[str, str | None]:
        return {name: partition_text(file[f"partition.{name}"]) for name in self.partition_by}

    def written(self, rows: Callable[[], Iterable[Any]], partition: Mapping[str, str | None] | None) -> list[NewFile]:
        """
        Write rows to new files, one for each partition; no file without rows. Read the files again, and raise ``RowsDifferError`` if a value differs.

        :param rows: returns the same pyarrow tables in each call
        :param partition: the partition of all rows; ``None`` if they must be divided
        """
        groups: list[tuple[Iterable[Any], Mapping[str, str | None]]]
        if partition is None and self.partition_by:
            groups = list(self._partitions(pa.concat_tables(rows(), promote_options="permissive")))
        else:
            groups = [(rows(), partition or {})] if any(part.num_rows for part in rows()) else []
        files = [self._write(group, of) for group, of in groups]
        facts = changed(rows, lambda: self._read(files), self.schema)
        if facts is not None:
            self.delete(files)
            raise RowsDifferError(facts)
        return files

    def _partitions(self, rows: Any) -> Iterator[tuple[list[Any], dict[str, str | None]]]:
        texts = row_texts(rows, pa.schema([self.schema.field(name) for name in self.partition_by]))
        for text in texts.unique():
            chosen = rows.filter(pc.equal(texts, text))
            yield [chosen], {name: partition_text(chosen[name][0].as_py()) for name in self.partition_by}

    def _write(self, rows: Iterable[Any], partition: Mapping[str, str | None]) -> NewFile:
        sink = pa.BufferOutputStream()
        footer = write(sink, rows, self._stored, compression="zstd")
        data, key = sink.getvalue().to_pybytes(), f"part-{SYSTEM_CLOCK.new_id()}.parquet"
        self._dataset.create(key, data)
        stats = accepted(self._table, delta_stats(footer, without=frozenset()))
        return NewFile(key, len(data), footer.num_rows, partition, stats)

    def _read(self, files: Iterable[NewFile]) -> Iterator[Any]:
        for file in files:
            constants = {name: self._parsed(file.partition[name], name) for name in self.partition_by}
            with self._dataset.open(self._dataset.stat(file.key)) as opened:  # type: ignore[arg-type]
                for part in batches(opened):
                    for name, value in constants.items():
                        part = part.append_column(name, pa.repeat(value, part.num_rows))
                    yield part

    def _parsed(self, text: str | None, name: str) -> Any:
        return pa.scalar(text, pa.string()).cast(self.schema.field(name).type)

    def delete(self, files: Iterable[NewFile]) -> None:
        """No entry may reference them."""
        for file in files:
            self._dataset.delete(file.key)


def actions(new: Iterable[NewFile], removed: Iterable[AddedFile], table: RewrittenTable, *, changes_data: bool) -> list[Any]:  # fmt: skip
    """:func:`airflow_provider_streamsem.connectors.delta.mergeable.misspelt` must not return a path of ``removed``: such a file would stay in the table."""
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = SYSTEM_CLOCK.now_ms()
    added = [AddAction(file.key, file.bytes, dict(file.partition), now_ms, changes_data, file.stats) for file in new]
    return [
        *added,
        *(
            RemoveAction(unquote(file["path"]), changes_data, now_ms, size=file["size_bytes"], partition_values=table.partition_of(file))
            for file in removed
        ),
    ]  # fmt: skip
