"""
Reads the rows of data files of an Iceberg table, and writes rows to new data files. Imports pyiceberg, so only the sink imports this module, when it rewrites
rows.

pyiceberg turns nulls in nested columns into empty lists and maps when it projects rows. So pyarrow reads and writes the rows, and pyiceberg only says which
column of a file has which field id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import index_by_id
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.data_files.rewrite import Read, RowsDifferError, batches, changed, write
from airflow_provider_streamsem.connectors.iceberg.files import data_file, metrics
from airflow_provider_streamsem.connectors.iceberg.internals import deleted_positions, parquet_options

_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Directory:
    """Replaces pyiceberg's partition key, which would convert the values. One directory for all, because a long value is not a valid name."""

    name: str
    partition: Record

    def to_path(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RewrittenTable:
    """
    A table whose rows are rewritten. ``metadata`` includes the changes of the same commit.

    :param directory: directory of new files, below the table's directory for data files
    """

    metadata: TableMetadata
    io: FileIO
    directory: str

    @property
    def schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.metadata.schema())

    def rows(self, task: FileScanTask, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """
        Yield pyarrow tables without deleted rows. Columns (``None``: all) have their current names, and the types of the file.

        Fails with ``ValueError`` if the field ids of the columns are not known, or the file is not a Parquet file.
        """
        if task.file.file_format != FileFormat.PARQUET:
            raise ValueError(f"a data file has the format {task.file.file_format}, not Parquet")
        deleted = deleted_positions(self.io, [task]).get(task.file.file_path, [])
        positions = pa.array([at for chunks in deleted for at in chunks.to_pylist()], pa.int64())
        current = {field.field_id: field.name for field in self.metadata.schema().fields}
        names = {at: field.name for at, field in index_by_id(self.metadata.schema()).items()}
        with self.io.new_input(task.file.file_path).open() as opened:
            parquet = pyarrow.parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            stored = pyarrow_to_schema(parquet.schema_arrow, name_mapping=self.metadata.name_mapping())
            kinds = {field.name: field for field in stored.fields}
            chosen = [
                column
                for column, field in kinds.items()
                if field.field_id in current and (columns is None or current[field.field_id] in columns)
            ]
            constants = self._constants(task, {field.field_id for field in stored.fields}, columns)
            start = 0
            for batch in parquet.iter_batches(batch_size=_ROWS, columns=chosen):
                arrays = [_renamed(batch[column], kinds[column].field_type, names) for column in chosen]
                arrays += [pa.repeat(value, batch.num_rows) for value in constants.values()]
                table = pa.table(arrays, names=[*(current[kinds[column].field_id] for column in chosen), *constants])
                if len(positions):
                    at = pa.array(range(start, start + batch.num_rows), pa.int64())
                    table = table.filter(pc.invert(pc.is_in(at, value_set=positions)))
                start += batch.num_rows
                yield table

    def _constants(self, task: FileScanTask, stored: set[int], columns: Sequence[str] | None) -> dict[str, Any]:
        """Return the columns that a file lacks because they are its partition, with their values (Iceberg specification, *Column Projection*)."""
        schema, spec = self.metadata.schema(), self.metadata.specs()[task.file.spec_id]
        constants = {}
        for at, part in enumerate(spec.fields):
            if not isinstance(part.transform, IdentityTransform) or part.source_id in stored:
                continue
            name = schema.find_column_name(part.source_id)
            if name is not None and name in self.schema.names and (columns is None or name in columns):
                constants[name] = pa.scalar(task.file.partition[at], self.schema.field(name).type)
        return constants

    def write(self, rows: Iterable[Any], partition: Record) -> DataFile:
        """Write rows of one partition to a new data file, and return its entry in a manifest."""
        provider = load_location_provider(self.metadata.location, self.metadata.properties)
        name = f"{SYSTEM_CLOCK.new_id()}.parquet"
        uri = provider.new_data_location(name, _Directory(self.directory, partition))  # type: ignore[arg-type]
        output = self.io.new_output(uri)
        options = parquet_options(self.metadata.properties)
        with output.create() as stream:
            footer = write(stream, rows, self.schema, **options)
        stats = metrics(footer, partition_by=())
        return data_file(self.metadata, uri=uri, bytes=len(output), rows=footer.num_rows, stats=stats, partition=partition)  # fmt: skip

    def write_compared(self, rows: Read, partition: Record | None) -> list[DataFile]:
        """
        Write rows to new data files, one for each partition; no file without rows. Read the files again, and raise ``RowsDifferError`` if a value differs.

        :param rows: returns the same pyarrow tables in each call
        :param partition: the partition of all rows; ``None`` if they must be divided
        """
        if partition is not None:
            parts = (part for part in rows() if part.num_rows)
            first = next(parts, None)
            groups: list[tuple[Iterable[Any], Record]] = [] if first is None else [(chain([first], parts), partition)]
        else:
            all_rows = pa.concat_tables(rows(), promote_options="permissive")
            groups = [([group], of) for group, of in self.partitions(all_rows)]
        files = [self.write(group, of) for group, of in groups]
        facts = changed(rows, self.written(files), self.schema)
        if facts is not None:
            for file in files:
                self.io.delete(file.file_path)
            raise RowsDifferError(facts)
        return files

    def written(self, files: Iterable[DataFile]) -> Callable[[], Iterator[Any]]:
        listed = list(files)

        def read() -> Iterator[Any]:
            for file in listed:
                with self.io.new_input(file.file_path).open() as opened:
                    yield from batches(opened)  # type: ignore[arg-type]

        return read

    def partitions(self, rows: Any) -> Iterator[tuple[Any, Record]]:
        """Divide rows by the identity partitions of the table."""
        schema = self.metadata.schema()
        names = [str(schema.find_column_name(part.source_id)) for part in self.metadata.spec().fields]
        kinds = pa.schema([self.schema.field(name) for name in names])
        texts = row_texts(rows, kinds)
        for text in texts.unique():
            chosen = rows.filter(pc.equal(texts, text))
            yield chosen, Record(*(_internal(chosen[name][0].cast(kinds.field(name).type)) for name in names))


def _internal(value: Any) -> Any:
    """Dates and times are integers in a manifest."""
    return value.value if pa.types.is_temporal(value.type) else value.as_py()


def _renamed(values: Any, kind: IcebergType, names: dict[int, str]) -> Any:
    """A field without a name in ``names`` (field id → current name) was dropped; its name becomes one that no column has."""
    if isinstance(kind, StructType):
        parts = [_renamed(values.field(at), field.field_type, names) for at, field in enumerate(kind.fields)]
        fields = [
            pa.field(names.get(field.field_id, f"\0{field.field_id}"), part.type)
            for field, part in zip(kind.fields, parts, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
    if isinstance(kind, ListType):
        lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        elements = _renamed(values.flatten(), kind.element_type, names)
        return pa.LargeListArray.from_arrays(offsets, elements, mask=values.is_null())
    if isinstance(kind, MapType):
        keys, items = _renamed(values.keys, kind.key_type, names), _renamed(values.items, kind.value_type, names)
        return pa.MapArray.from_arrays(pc.add(values.offsets, 0), keys, items, mask=values.is_null())
    return values
