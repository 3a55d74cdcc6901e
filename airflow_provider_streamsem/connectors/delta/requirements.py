"""
Checks the requirements of a Delta table for its writers: table features, table properties, constraints (extra ``delta``).

Publishing adds files that Spark wrote as plain Parquet, so no Delta writer checks their rows. A table is accepted only if this module checks all of
its requirements. Table features and table properties are checked against allow-lists, so an unknown feature is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

_NEWEST_PROTOCOL = (3, 7)
_WITH_IDENTITY = 6  # writer version with identity columns, which delta-rs cannot write
# Table features that an entry with added and removed files satisfies. The constraints and generated columns of a table are checked separately.
_FEATURES = frozenset(
    [
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "timestampNtz",
        "v2Checkpoint",
    ]
)
# Spark's own writer satisfies these. An entry that Spark has written to a private copy of the table becomes an entry of the table.
_FEATURES_OF_SPARK = _FEATURES | frozenset(
    [
        "allowColumnDefaults",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "identityColumns",
        "inCommitTimestamp",
        "rowTracking",
        "typeWidening",
        "typeWidening-preview",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    ]
)
# Accepted table properties: settings of checkpoints, statistics and clean-up, and of the file sizes and names of other writers.
_PROPERTIES = frozenset(
    f"delta.{name}"
    for name in [
        "appendOnly",
        "checkpointInterval",
        "checkpointPolicy",
        "checkpointRetentionDuration",
        "columnMapping.maxColumnId",
        "dataSkippingNumIndexedCols",
        "dataSkippingStatsColumns",
        "deletedFileRetentionDuration",
        "enableChangeDataFeed",
        "enableExpiredLogCleanup",
        "isolationLevel",
        "logRetentionDuration",
        "minReaderVersion",
        "minWriterVersion",
        "randomPrefixLength",
        "randomizeFilePrefixes",
        "targetFileSize",
        "tuneFileSizesForRewrites",
    ]
)
_PROPERTIES_OF_SPARK = _PROPERTIES | frozenset(
    f"delta.{name}"
    for name in [
        "columnMapping.mode",
        "enableDeletionVectors",
        "enableInCommitTimestamps",
        "enableRowTracking",
        "enableTypeWidening",
        "inCommitTimestampEnablementTimestamp",
        "inCommitTimestampEnablementVersion",
        "rowTracking.materializedRowCommitVersionColumnName",
        "rowTracking.materializedRowIdColumnName",
    ]
)
_PROPERTY_GROUPS = ("delta.autoOptimize.", "delta.checkpoint.", "delta.feature.", "delta.parquet.")
_SWITCHED_OFF = ("false", "none")
_TEXT_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
_COLUMN_NOTES = frozenset([_TEXT_LENGTH, "delta.columnMapping.id", "delta.columnMapping.physicalName"])
_DEFAULTS = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")


def unwritable(table: Any) -> list[str]:
    """Return the requirements of a table that this sink does not satisfy, by their Delta names; empty if the table is accepted."""
    protocol, metadata = table.protocol(), table.metadata()
    requirements = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
    requirements -= _FEATURES
    version = (protocol.min_reader_version, protocol.min_writer_version)
    if any(actual > newest for actual, newest in zip(version, _NEWEST_PROTOCOL, strict=True)):
        requirements.add(f"protocol version {version}")
    if protocol.min_writer_version == _WITH_IDENTITY:
        requirements.add("identityColumns")
    # A retention time of transaction identifiers is refused too. After that time, a late publisher would find no marker and publish its batch twice.
    requirements |= {name for name, value in metadata.configuration.items() if not _is_accepted(name, value)}
    for path, field in _fields(_schema(table)):
        name = ".".join(path)
        requirements |= {f"{name}: {note}" for note in field["metadata"] if _is_required(note)}
        requirements |= {f"{name}: NOT NULL inside an array or map" for kind in [field["type"]] if _has_required(kind)}
        length = field["metadata"].get(_TEXT_LENGTH)
        if length is not None and (len(path) > 1 or _length(length) is None):
            requirements.add(f"{name}: {length} inside another type")
    return sorted(requirements)


def unwritable_by_spark(table: Any) -> list[str]:
    """
    Return the requirements of a table that a write by Spark does not satisfy, by their Delta names; empty if the table is accepted.

    Spark checks constraints, and computes generated columns, identity columns and row ids.
    """
    protocol, metadata = table.protocol(), table.metadata()
    requirements = (set(protocol.writer_features or ()) | set(protocol.reader_features or ())) - _FEATURES_OF_SPARK
    version = (protocol.min_reader_version, protocol.min_writer_version)
    if any(actual > newest for actual, newest in zip(version, _NEWEST_PROTOCOL, strict=True)):
        requirements.add(f"protocol version {version}")
    for name, value in metadata.configuration.items():
        is_constraint = name.lower().startswith("delta.constraints.")
        if not (is_constraint or name in _PROPERTIES_OF_SPARK or _is_accepted(name, value)):
            requirements.add(name)
    return sorted(requirements)


def check_constraints(table: Any, columns: Sequence[str]) -> dict[str, str]:
    """
    Return the CHECK constraints of a table that rows with these columns can be checked against: name → SQL expression.

    The expressions name no columns in a form that can be parsed, so a constraint is left out only if it contains the name of a column that the rows lack.
    """
    prefix = "delta.constraints."
    lacking = [field["name"].lower() for field in _schema(table) if field["name"] not in columns]
    return {
        name.removeprefix(prefix): expression
        for name, expression in table.metadata().configuration.items()
        if name.startswith(prefix) and not any(column in expression.lower() for column in lacking)
    }


def not_null_constraints(table: Any) -> dict[str, str]:
    """Return the columns and struct fields of a table that must not be null: name → SQL expression."""
    paths = Requirements.of(table).never_null
    return {f"{'.'.join(path)} IS NOT NULL": f"{'.'.join(map(quoted, path))} IS NOT NULL" for path in paths}


def is_append_only(table: Any) -> bool:
    """Return whether the table forbids the removal of rows (``delta.appendOnly``)."""
    return str(table.metadata().configuration.get("delta.appendOnly", "")).lower() == "true"


def _is_accepted(name: str, value: str | None) -> bool:
    if not name.lower().startswith("delta.") or name in _PROPERTIES or name.startswith(_PROPERTY_GROUPS):
        return True
    return str(value).lower() in _SWITCHED_OFF and not name.lower().startswith("delta.constraints.")


def _is_required(note: str) -> bool:
    return note in _DEFAULTS or (note.startswith(("delta.", "__")) and note not in _COLUMN_NOTES)


def _schema(table: Any) -> list[Any]:
    fields: list[Any] = json.loads(table.schema().to_json())["fields"]
    return fields


def _fields(fields: Sequence[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each column and each field of its structs, with its path. Leaves out fields inside arrays and maps."""
    for field in fields:
        path = (*above, field["name"])
        yield path, field
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _fields(field["type"]["fields"], path)


def _has_required(kind: Any, *, inside: bool = False) -> bool:
    """Return whether an array or map has values that must not be null, or fields with requirements. Delta's own writers do not check these."""
    if not isinstance(kind, dict) or (kind["type"] == "struct" and not inside):
        return False
    if not all(kind.get(mark, True) for mark in ("containsNull", "valueContainsNull")):
        return True
    fields = kind.get("fields", [])
    if any(not field["nullable"] or any(map(_is_required, field["metadata"])) for field in fields):
        return True
    parts = [field["type"] for field in fields] + [kind[n] for n in ("elementType", "keyType", "valueType") if n in kind]  # fmt: skip
    return any(_has_required(part, inside=True) for part in parts)


@dataclass(frozen=True, slots=True)
class Requirements:
    """
    The requirements of a table for values: columns that must not be null, and lengths of text.

    :param never_null: paths of the columns and struct fields that must not be null. A field counts as null if its struct is null, as in Delta's own writer
    :param lengths: ``(text column, kind, n)``: ``varchar`` allows at most n characters, ``char`` requires exactly n
    """

    never_null: tuple[tuple[str, ...], ...]
    lengths: tuple[tuple[str, str, int], ...]

    @classmethod
    def of(cls, table: Any) -> Requirements:
        fields = list(_fields(_schema(table)))
        lengths = []
        for path, field in fields:
            length = _length(field["metadata"].get(_TEXT_LENGTH, ""))
            if length is not None and len(path) == 1:
                lengths.append((path[0], *length))
        return cls(tuple(path for path, field in fields if not field["nullable"]), tuple(lengths))

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse rows that lack a column that must not be null. No names: a batch without rows."""
        missing = sorted({path[0] for path in self.never_null if len(path) == 1} - {*names}) if names else []
        if missing:
            summary = "the rows lack columns that are NOT NULL in the Delta table"
            raise DataError(summary, columns=missing)

    def check_values(self, location: str, staged: Committable) -> None:
        """Refuse staged files with values that the table does not accept. Nulls are counted from the footers. A file whose footer has no counts is read."""
        if not staged.rows or not (self.never_null or self.lengths):
            return
        dataset = open_dataset(location)
        with_nulls, misfits = set[str](), set[str]()
        for file in staged.files:
            with_nulls |= {".".join(path) for path in _with_nulls(dataset, file.key, self.never_null)}
            misfits |= _with_other_length(dataset, file.key, self.lengths)
        if with_nulls:
            summary = "rows have nulls in columns that are NOT NULL in the Delta table"
            raise DataError(summary, table=location, columns=sorted(with_nulls))
        if misfits:
            summary = "text is longer than VARCHAR(n), or not exactly as long as CHAR(n), in the Delta table"
            accepted = {name: f"{kind}({length})" for name, kind, length in self.lengths if name in misfits}
            raise DataError(summary, table=location, columns=accepted)


def _length(kind: str) -> tuple[str, int] | None:
    match = re.fullmatch(r"(char|varchar)\((\d+)\)", kind)
    return None if match is None else (match[1], int(match[2]))


def _with_nulls(dataset: Dataset, key: str, paths: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    import pyarrow.compute as pc
    import pyarrow.parquet

    if not paths:
        return set()
    paths_with_nulls = set()
    with dataset.open(_existing(dataset, key)) as opened:
        file = pyarrow.parquet.ParquetFile(opened)
        columns = {name.name for name in file.schema_arrow}
        for path in paths:
            if path[0] not in columns:
                paths_with_nulls.add(path)
                continue
            count = _null_count(file.metadata, path)
            if count is None:
                values = file.read(columns=[path[0]])[path[0]]
                for name in path[1:]:
                    values = pc.struct_field(values, name)  # null if the struct is null
                count = values.null_count
            if count:
                paths_with_nulls.add(path)
    return paths_with_nulls


def _null_count(parquet: Any, path: tuple[str, ...]) -> int | None:
    """``None`` if the footer has no counts for the column, or if it is not a leaf column."""
    if any("." in name for name in path):
        return None
    names = [parquet.schema.column(at).path for at in range(parquet.num_columns)]
    if ".".join(path) not in names:
        return None
    at = names.index(".".join(path))
    if parquet.schema.column(at).max_definition_level == 0:
        return 0
    chunks = [parquet.row_group(group).column(at).statistics for group in range(parquet.num_row_groups)]
    if any(chunk is None or not chunk.has_null_count for chunk in chunks):
        return None
    return sum(int(chunk.null_count) for chunk in chunks)


def _with_other_length(dataset: Dataset, key: str, lengths: Sequence[tuple[str, str, int]]) -> set[str]:
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    if not lengths:
        return set()
    wrong = set()
    with dataset.open(_existing(dataset, key)) as opened:
        file = pyarrow.parquet.ParquetFile(opened)
        existing = {field.name for field in file.schema_arrow}
        for batch in file.iter_batches(columns=[name for name, _, _ in lengths if name in existing]):
            for name, kind, length in lengths:
                if name in existing:
                    bounds = pc.min_max(pc.utf8_length(batch[name].cast(pyarrow.string())))
                    shortest, longest = bounds["min"].as_py(), bounds["max"].as_py()
                    if longest is not None and (longest > length or (kind == "char" and shortest != length)):
                        wrong.add(name)
    return wrong


def _existing(dataset: Dataset, key: str) -> Any:
    stat = dataset.stat(key)
    if stat is None:
        raise DataError("a staged file was deleted before it was published", file=key)
    return stat
