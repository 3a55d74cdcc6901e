"""Staged rows for mode ``upsert``: validates keys, and selects the last row of each key in a batch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from airflow_provider_streamsem.connectors.changes import CHANGE, TRUNCATE, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.sink import Sink, SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import parquet_files, record_batches
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError
from airflow_provider_streamsem.protocol.entries import Committable

_LONGEST_NAME = 255  # limit in bytes of a directory name in most file systems
_AT, _GROUP = "__streamsem_at", "__streamsem_group"
_PART = re.compile(r"part-(\d+)-")
_LEAVE_OUT = (
    "leave out these records with `where`, or fill the columns in the transform, then run again. A Kafka record with a null value has null in every column. A "
    "delete needs its key, too."
)
_KEY_TYPES = frozenset(
    ["string", "long", "integer", "short", "byte", "boolean", "binary", "date", "timestamp", "timestamp_ntz"]
)


def set_changes(where: str, sink: Any) -> None:
    """Let the argument ``changes`` of a sink, a frozen dataclass, set its mode, keys and sequence. Called when the sink is created."""
    if sink.changes is None:
        return
    changes = Changes.of(where, sink.changes)
    columns: dict[str, Sequence[str]] = {"keys": changes.keys, "sequence_by": changes.sequence_by}
    for name, own in columns.items():
        if list(getattr(sink, name)) not in ([], list(own)):
            raise InvalidError(f"{where} {name} must not be given beside changes").advising(
                f"remove {name} of the sink: changes.{name} replaces it."
            )
    if sink.mode not in ("append", "upsert"):
        raise InvalidError(f"{where} mode must not be given beside changes", given=sink.mode).advising("remove mode.")
    for name, value in {"changes": changes, "mode": "upsert", **columns}.items():
        object.__setattr__(sink, name, value)


def last_stays(sink: Sink) -> str:
    """Return the sentence that says which of several rows with equal keys a sink in mode ``upsert`` keeps."""
    if sink.changes is not None:
        return sink.changes.reason
    if sink.sequence_by:
        columns = ", ".join(sink.sequence_by)
        return (
            f"of rows with equal keys, the table keeps that of the latest version, and within a version the last by {columns}. Rows with equal values in these "
            "columns stay in the order of the source. If that order is unknown and the rows differ, the batch is refused"
        )
    return (
        "of rows with equal keys, the table keeps that of the latest version, and within a version the last in the order of the source. Records of different "
        "partitions of a source have no order. If the transform does not keep the order, or the source has none, a batch whose rows have equal keys and "
        "different values is refused. sequence_by defines another order"
    )


def check_sequence(where: str, sequence_by: Sequence[str], *, merges: bool) -> None:
    """Raise ``InvalidError`` if ``sequence_by`` is given for a sink that merges no rows."""
    if sequence_by and not merges:
        raise InvalidError(f"{where} sequence_by needs mode upsert, which keeps the last row of each key")


def check_keys(fields: Sequence[Any], keys: Sequence[str]) -> None:
    """Refuse keys of types whose values cannot be compared reliably, or that are not columns. No fields: a batch without rows."""
    types = {field["name"]: field["type"] for field in fields}
    missing = [name for name in keys if types and name not in types]
    if missing:
        raise DataError("the rows lack key columns", missing=missing, columns=list(types))
    unsupported = [name for name in keys if name in types and not _is_key(types[name])]
    if unsupported:
        raise DataError(
            "key columns must be strings, integers, decimals, dates, timestamps, booleans or binary",
            columns=unsupported,
        )


def _is_key(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _KEY_TYPES or kind.startswith("decimal("))


def _staged_columns(location: str, staged: Committable, columns: Sequence[str]) -> Any:
    import pyarrow

    tables = [parquet.read(columns=list(columns)) for parquet in parquet_files(location, staged)]
    return pyarrow.concat_tables(tables) if tables else None


def check_values(
    location: str,
    staged: Committable,
    keys: Sequence[str],
    partition_by: Sequence[str],
    *,
    null_texts: Sequence[str] = (),
    changes: Changes | None = None,
) -> None:
    """
    Refuse nulls in key columns, because a merge would insert such rows again each time. Also refuse strings in partition columns that are too long for a
    directory name.

    With ``changes``, also refuse null sequences. A truncate has no key.

    :param null_texts: texts that would become null as a partition value
    """
    import pyarrow.compute as pc

    own = [] if changes is None else [*changes.sequence_by, CHANGE]
    rows = _staged_columns(location, staged, [*keys, *partition_by, *own])
    if rows is None:
        return
    keyed = rows if changes is None else rows.filter(pc.not_equal(rows[CHANGE], TRUNCATE))
    with_nulls = [name for name in keys if keyed[name].null_count]
    if with_nulls:
        error = DataError("rows have nulls in key columns", columns=with_nulls)
        raise error if changes is None else error.advising(_LEAVE_OUT)
    with_nulls = [] if changes is None else [name for name in changes.sequence_by if rows[name].null_count]
    if with_nulls:
        summary = "changes have nulls in columns of sequence_by, so they have no order"
        raise DataError(summary, columns=with_nulls).advising(_LEAVE_OUT)
    values = {name: rows[name].unique().drop_null().to_pylist() for name in partition_by if rows[name].type == "string"}
    too_long = [
        name
        for name, texts in values.items()
        if any(len(quote(f"{name}={v}", safe="=")) > _LONGEST_NAME for v in texts)
    ]
    if too_long:
        summary = "a string in a partition column is too long for a directory name"
        raise DataError(summary, columns=too_long, longest=_LONGEST_NAME)
    null_like = {name: sorted(set(null_texts).intersection(texts)) for name, texts in values.items()}
    if any(null_like.values()):
        summary = "a string in a partition column would become null in the table"
        raise DataError(summary, columns={name: texts for name, texts in null_like.items() if texts})


def nulls_of_upserts(location: str, staged: Committable, names: Collection[str], changes: Changes) -> set[str]:
    """Return those of the columns that have nulls in upserts. A delete lacks values, and an upsert those of its unchanged columns."""
    import pyarrow.compute as pc

    marks = [CHANGE, *([UNCHANGED] if changes.is_partial else [])]
    rows = _staged_columns(location, staged, [*names, *marks]) if names else None
    if rows is None:
        return set()
    upserts = rows.filter(pc.equal(rows[CHANGE], UPSERT))
    found = {name for name in names if upserts[name].null_count}
    if found and changes.is_partial:
        unchanged = upserts[UNCHANGED].to_pylist()
        nulls = {name: upserts[name].is_null().to_pylist() for name in found}
        found = {
            name
            for name in found
            if any(n and name not in (u or ()) for n, u in zip(nulls[name], unchanged, strict=True))
        }
    return found


def check_sequence_types(fields: Sequence[Any], sequence_by: Sequence[str], *, of_database: bool = False) -> None:
    """
    Refuse column types that ``changes.sequence_by`` does not accept. No fields: a batch without rows.

    :param of_database: also refuse strings: a database compares them by collation, but tombstones are compared by bytes
    """
    refused = {"boolean", "binary", "float", "double", *(["string"] if of_database else [])}
    found = [
        field["name"]
        for field in fields
        if field["name"] in sequence_by and (field["type"] in refused or not _is_key(field["type"]))
    ]
    if found:
        accepted = f"integers, decimals, dates or timestamps{'' if of_database else ', or strings'}"
        summary = f"columns of changes.sequence_by must be {accepted}"
        raise DataError(summary, columns=found).advising("cast the columns in the transform, then run again.")


def refuse_ambiguous(
    location: str,
    staged: Committable,
    keys: Sequence[str],
    sequence_by: Sequence[str],
    *,
    groups: Sequence[int] = (),
    of_changes: bool = False,
) -> None:
    """
    Refuse staged rows with equal keys and different values, if nothing says which of them is the last.

    Needs about 100 bytes of memory for each row, besides the columns ``keys`` and ``sequence_by``.

    :param sequence_by: columns that order the rows; rows that differ in them are accepted
    :param groups: the group of the rows of each Spark partition. Rows of different groups are ordered. Empty: all rows are of one group
    """
    repeated = _repeated(location, staged, [*keys, *sequence_by], groups)
    if repeated is None:
        return
    ambiguous = _differing(location, staged, *repeated)
    if not ambiguous:
        return
    same = "equal keys and equal sequence_by columns" if sequence_by else "equal keys"
    summary = f"the batch has different rows with {same}, and their order is unknown"
    if of_changes:
        raise DataError(summary, keys=list(keys), sequence_by=list(sequence_by), repeated_keys=ambiguous).advising(
            "remove the step of the transform that loses the order, such as a join, a groupBy or a union, then run again. Or add a column to "
            "changes.sequence_by that orders these changes, such as kafka_offset. A log accepts that only with a new table: see `streamsem alter "
            "PIPELINE --dry-run`."
        )
    raise DataError(summary, keys=list(keys), sequence_by=list(sequence_by), repeated_keys=ambiguous).advising(
        "set sequence_by of the sink to columns that order the rows with equal keys, such as a time or an offset; then run again. Do not use dropDuplicates "
        "for this, because it keeps any of the rows. "
        "The transform does not keep the order of the source, or the source has none: the rows of one version of a table or upstream pipeline have no order."
    )


def _repeated(
    location: str, staged: Committable, names: Sequence[str], groups: Sequence[int]
) -> tuple[Any, Any] | None:
    """Positions of rows that equal another one, ascending, and the number of each one's set, as numpy arrays."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc

    columns = _staged_columns(location, staged, names)
    if columns is None:
        return None
    for at, name in enumerate(columns.schema.names):
        if pyarrow.types.is_floating(columns.schema.field(at).type):  # Spark sorts -0.0 and 0.0 as equal
            zero = pyarrow.scalar(0, columns.schema.field(at).type)
            columns = columns.set_column(at, name, pc.add(columns[name], zero))
    columns = columns.append_column(_AT, pyarrow.array(numpy.arange(columns.num_rows)))
    if groups:
        group_of_row = numpy.repeat(
            [_group_of(file.key, groups) for file in staged.files], [file.rows for file in staged.files]
        )
        columns = columns.append_column(_GROUP, pyarrow.array(group_of_row))
    sets = columns.group_by([*names, *([_GROUP] if groups else [])]).aggregate([(_AT, "list")])[f"{_AT}_list"]
    sets = sets.filter(pc.greater(pc.list_value_length(sets), 1)).combine_chunks()
    if not len(sets):
        return None
    rows, numbers = sets.flatten().to_numpy(), pc.list_parent_indices(sets).to_numpy()
    order = rows.argsort()
    return rows[order], numbers[order]


def _group_of(key: str, groups: Sequence[int]) -> int:
    """Spark names a file after its partition."""
    partition = _PART.match(key.rpartition("/")[2])
    number = int(partition[1]) if partition else len(groups)
    if number >= len(groups):
        raise DataError("a staged file is not of a planned Spark partition", file=key)
    return groups[number]


def _differing(location: str, staged: Committable, positions: Any, numbers: Any) -> int:
    """Return in how many sets the values differ. The arguments are those that :func:`_repeated` returns."""
    import numpy
    import pyarrow

    count = int(numbers.max()) + 1
    digests = numpy.zeros(count, dtype="S16")
    differs = numpy.zeros(count, dtype=bool)
    first = at = 0
    for parquet in parquet_files(location, staged):
        for batch in parquet.iter_batches():
            end = int(numpy.searchsorted(positions, first + batch.num_rows))
            wanted = batch.take(pyarrow.array(positions[at:end] - first))
            for number, row in zip(numbers[at:end].tolist(), wanted.to_pylist(), strict=True):
                digest = hashlib.blake2b(repr(row).encode(errors="surrogatepass"), digest_size=15).digest() + b"."
                if not digests[number]:
                    digests[number] = digest
                differs[number] |= digests[number] != digest
            first, at = first + batch.num_rows, end
    return int(differs.sum())


def check_times(parquet: Any, columns: Collection[str] | None = None) -> None:
    """Refuse dates and times outside the years 1 to 9999 (``columns=None``: in all columns), on which Python clients fail."""
    out_of_range = set()
    for group in range(parquet.num_row_groups):
        for index in range(parquet.num_columns):
            chunk = parquet.row_group(group).column(index)
            if columns is not None and chunk.path_in_schema not in columns:
                continue
            if not is_in_python(chunk.statistics):
                out_of_range.add(chunk.path_in_schema)
    if out_of_range:
        summary = "this sink cannot publish dates or times outside the years 1 to 9999"
        raise DataError(summary, columns=sorted(out_of_range))


def is_in_python(statistics: Any) -> bool:
    """Return whether Python can represent the bounds of a column chunk. Returns ``True`` for a chunk without bounds."""
    try:
        if statistics is not None and statistics.has_min_max:
            _ = (statistics.min, statistics.max)
    except (OverflowError, ValueError):
        return False
    return True


def staged_rows(location: str, batch: SinkCommit) -> Any:
    """
    Return the staged rows of a batch in order, as a pyarrow table: the same for every publisher.

    Raises ``PublishError`` if the number of rows differs from the count at staging, or if the batch must replace rows, which cannot be identified after a
    merge.
    """
    import pyarrow

    if batch.replaced_files:
        summary = "the sink cannot replace rows that were merged by key; nothing of the batch is in the table"
        raise PublishError(summary, version=batch.version)
    rows = pyarrow.Table.from_batches(list(record_batches(location, batch)))
    if rows.num_rows != batch.committable.rows:
        raise PublishError(
            "the number of rows in the staged files differs from the count at staging; nothing of the batch is in the table",
            version=batch.version,
            counted=batch.committable.rows,
            found=rows.num_rows,
        )
    return rows


def last_of_each(rows: Any, keys: Sequence[str]) -> Any:
    """Return the last row of each key."""
    import pyarrow

    names = [f"k{number}" for number in range(len(keys))]
    numbered = pyarrow.table(
        [*(rows[name] for name in keys), pyarrow.array(range(rows.num_rows))], names=[*names, "at"]
    )
    return rows.take(numbered.group_by(names).aggregate([("at", "max")])["at_max"].sort())
