"""Computes the metrics of staged Parquet files, and builds their entries in an Iceberg manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.data_files.bounds import upper_bound
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import DataFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

_MAX_COLUMNS = 32
_MAX_CHARACTERS = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXACT = Context(prec=38)


def metrics(parquet: Any, *, partition_by: Sequence[str]) -> str:
    """
    Return the metrics of a file, by which readers plan splits and skip files.

    The result is JSON text: ``{"splits": [offset], "columns": {path: [bytes, values, nulls, lower, upper]}}``.

    Columns are identified by path, because the table assigns the field ids and may not exist yet. A count or bound is null if the footer lacks it, or
    if it cannot be recorded exactly. Readers do not skip such a file. Dates are days since 1970-01-01, and timestamps are microseconds since then.
    Decimals are text. For text of more than 16 characters, the lower bound is truncated, and the upper bound is truncated and incremented.

    :param parquet: pyarrow's metadata of the file
    :raises DataError: a partition value is outside the years 1 to 9999, which pyiceberg cannot represent
    """
    groups = [parquet.row_group(number) for number in range(parquet.num_row_groups)]
    columns = {}
    for path, index in _leaves(parquet, partition_by):
        chunks = [group.column(index) for group in groups]
        try:
            lower, upper = _bounds([chunk.statistics for chunk in chunks])
        except (OverflowError, ValueError) as error:  # a year that Python cannot represent
            if path in partition_by:
                raise DataError("a partition value is outside the years 1 to 9999", column=path) from error
            lower = upper = None
        columns[path] = [
            sum(chunk.total_compressed_size for chunk in chunks),
            sum(chunk.num_values for chunk in chunks),
            _nulls([chunk.statistics for chunk in chunks]),
            lower,
            upper,
        ]
    recorded = {"splits": [_start(group) for group in groups], "columns": columns}
    return json.dumps(recorded, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def data_files(table: Table) -> Iterator[str]:
    """
    Yield the data files that the current snapshot, a branch or a tag references.

    Reads the manifests, because pyiceberg cannot plan a scan of a table with equality deletes, which Flink writes.
    """
    from pyiceberg.manifest import ManifestContent

    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = [snapshot for head in sorted(heads) if (snapshot := table.snapshot_by_id(head)) is not None]
    manifests = {
        manifest.manifest_path: manifest for snapshot in snapshots for manifest in snapshot.manifests(table.io)
    }
    for manifest in manifests.values():
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def check_writable(table: Table) -> None:
    """Refuse a table that requires files that pyiceberg cannot write. Called before the commit, because after it the batch could only be skipped."""
    import pyarrow
    import pyarrow.parquet
    from pyiceberg.io.pyarrow import compute_statistics_plan

    from airflow_provider_streamsem.connectors.iceberg.internals import parquet_options

    format = table.properties.get("write.format.default", "parquet")
    problem: Exception | None = None
    try:
        compute_statistics_plan(table.schema(), table.properties)
        rows = pyarrow.table({"a": [0]})
        pyarrow.parquet.write_table(rows, pyarrow.BufferOutputStream(), **parquet_options(table.properties))
    except Exception as error:
        problem = error
    if format != "parquet" or problem is not None:
        summary = "the Iceberg table requires files that pyiceberg cannot write"
        raise DataError(summary, table=".".join(table.name()), format=format, problem=str(problem or "")) from problem


def other_formats(table: Table) -> list[str]:
    """Return the formats of data files of the current snapshot other than Parquet."""
    from pyiceberg.manifest import FileFormat, ManifestContent

    snapshot = table.current_snapshot()
    formats = {
        entry.data_file.file_format
        for manifest in ([] if snapshot is None else snapshot.manifests(table.io))
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    return sorted(str(format) for format in formats - {FileFormat.PARQUET})


def has_equality_deletes(table: Table) -> bool:
    """Return whether the current snapshot has equality deletes. pyiceberg cannot plan a scan of such a table, and so cannot replace its files."""
    from pyiceberg.manifest import DataFileContent, ManifestContent

    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )


def _leaves(parquet: Any, partition_by: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Columns in arrays and maps and of type INT96 get no metrics. If a name contains a dot, no column does: paths would be ambiguous."""
    schema = parquet.schema.to_arrow_schema()
    if any("." in name for name in _names(schema)):
        return
    for index in range(len(parquet.schema.names)):
        column = parquet.schema.column(index)
        plain = column.max_repetition_level == 0 and column.physical_type != "INT96"
        if plain and (index < _MAX_COLUMNS or column.path in partition_by):
            yield column.path, index


def _names(fields: Any) -> Iterator[str]:
    for field in fields:
        yield field.name
        if hasattr(field.type, "fields"):
            yield from _names(field.type.fields)


def _start(group: Any) -> int:
    column = group.column(0)
    offsets = [column.data_page_offset]
    if column.has_dictionary_page:
        offsets.append(column.dictionary_page_offset)
    return int(min(offsets))


def _nulls(statistics: list[Any]) -> int | None:
    if not statistics or any(chunk is None or not chunk.has_null_count for chunk in statistics):
        return None
    return int(sum(chunk.null_count for chunk in statistics))


def _bounds(statistics: list[Any]) -> tuple[Any, Any]:
    if not statistics or any(chunk is None or (not chunk.has_min_max and chunk.num_values > 0) for chunk in statistics):
        return None, None
    bounded = [chunk for chunk in statistics if chunk.has_min_max]
    if not bounded:
        return None, None
    lower, upper = min(chunk.min for chunk in bounded), max(chunk.max for chunk in bounded)
    return _bound(lower, up=False), _bound(upper, up=True)


def _bound(value: Any, *, up: bool) -> Any:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return None  # readers and writers disagree on NaN: its order, and whether a footer's bounds include it
    if isinstance(value, str):
        return upper_bound(value, _MAX_CHARACTERS) if up else value[:_MAX_CHARACTERS]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return _micros(value)
    if isinstance(value, date):
        return _days(value)
    return None


def _micros(value: datetime) -> int:
    since_epoch = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)) - _EPOCH
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds


def _days(value: date) -> int:
    return value.toordinal() - _EPOCH.toordinal()


def iceberg_file(table: TableMetadata, file: DataFile, uri: str) -> IcebergFile:
    """Build the manifest entry of one staged file. Its partition values come from the log: bounds of columns are not exact for long text."""
    from pyiceberg.typedef import Record

    schema = table.schema()
    fields = [schema.find_field(part.source_id) for part in table.spec().fields]
    partition = Record(*(_partition(str(field.field_type), file.partition[field.name]) for field in fields))
    return data_file(table, uri=uri, bytes=file.bytes, rows=file.rows, stats=file.stats, partition=partition)


def data_file(
    table: TableMetadata, *, uri: str, bytes: int, rows: int, stats: str | None, partition: Record
) -> IcebergFile:
    """Build the manifest entry of a file with the partition spec of the table. ``stats`` is the result of :func:`metrics`, or empty."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.types import PrimitiveType

    schema, recorded = table.schema(), json.loads(stats or '{"splits":null,"columns":{}}')
    maps: dict[str, Any] = {
        name: {} for name in ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    }
    for path, (size, values, nulls, lower, upper) in recorded["columns"].items():
        field = schema.find_field(path)
        assert isinstance(field.field_type, PrimitiveType)
        values_by_metric: dict[str, Any] = {"column_sizes": size, "value_counts": values, "null_value_counts": nulls}
        for name, bound in (("lower_bounds", lower), ("upper_bounds", upper)):
            values_by_metric[name] = (
                None if bound is None else to_bytes(field.field_type, _typed(str(field.field_type), bound))
            )
        for name, value in values_by_metric.items():
            if value is not None:
                maps[name][field.field_id] = value
    entry = IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows,
        file_size_in_bytes=bytes,
        split_offsets=recorded["splits"],
        **maps,
    )
    entry.spec_id = table.default_spec_id
    return entry


def _typed(kind: str, bound: Any) -> Any:
    """For :func:`pyiceberg.conversions.to_bytes`."""
    return Decimal(bound) if kind.startswith("decimal") else bound


def _partition(kind: str, text: str | None) -> Any:
    """From the text in the log to the value in a manifest."""
    if text is None:
        return None
    if kind == "boolean":
        return text == "true"
    if kind in ("int", "long"):
        return int(text)
    if kind == "date":
        return _days(date.fromisoformat(text))
    if kind in ("timestamp", "timestamptz"):
        whole, _, rest = text.replace("Z", "").replace("T", " ").partition(".")
        return _micros(datetime.fromisoformat(whole)) + int(rest.ljust(6, "0"))
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        return Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return text
