"""
Parses a column of texts (JSON, CSV, change events) with Spark's Python workers. Imports pyspark, so only engines import this module.

Each record is parsed exactly or marked as bad. Spark's own readers round decimals, rewrite numbers in string columns, and replace values that a type cannot
hold. The functions are sent to the workers by value: executors need pyarrow, but not this package.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from airflow_provider_streamsem.connectors import python_worker
from airflow_provider_streamsem.connectors.columns.identifiers import more_than_once, quoted
from airflow_provider_streamsem.connectors.parsing.decoders import Debezium
from airflow_provider_streamsem.connectors.parsing.exact import (
    arrow_columns,
    arrow_json,
    blocks,
    csv_records,
    debezium_events,
    debezium_values,
    json_records,
    time_formats,
)
from airflow_provider_streamsem.connectors.parsing.exact import columns as exact_columns
from airflow_provider_streamsem.connectors.parsing.exact import values as exact_values
from airflow_provider_streamsem.connectors.parsing.exact.arrow_json import ArrowJson
from airflow_provider_streamsem.connectors.parsing.exact.blocks import (
    MANY,
    Checksums,
    Parser,
    explained_batches,
    parsed_batches,
)
from airflow_provider_streamsem.connectors.parsing.exact.csv_records import Dialect, ExactCsv, with_quote_states
from airflow_provider_streamsem.connectors.parsing.exact.json_records import LENIENT
from airflow_provider_streamsem.connectors.parsing.exact.time_formats import TimeFormat
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings, zone_of
from airflow_provider_streamsem.connectors.pickling import pickle_by_value
from airflow_provider_streamsem.errors import InvalidError

_MODULES = (
    arrow_columns, arrow_json, blocks, csv_records, debezium_events, debezium_values, exact_columns, exact_values, json_records, python_worker, time_formats
)  # fmt: skip
_SCALARS = (
    BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip
_TIMES = {"dateformat": "date", "timestampformat": "timestamp", "timestampntzformat": "timestamp_ntz"}
"""option → type whose values have its format"""
REASON = "__streamsem_reason"
"""Name of the column of the reasons, unless the added columns have a prefix."""
_MANY_CHECKSUMS = 10_000
"""With more bad texts, a filter by their checksums would make the plan too large."""
_BLANK = "".join(map(chr, range(0x21)))
_LOCALE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8})*")


@dataclass(frozen=True, slots=True)
class Parsed:
    """
    The result of a parse: the columns of a frame without that of the texts, and the columns of the records.

    :param values: declared column → SQL in the frame. The values of a bad record are undefined
    :param reason: name of the column with the reason why a text is not a record, without values of the record; null for a record
    """

    frame: DataFrame
    values: Mapping[str, str]
    reason: str

    @property
    def bad(self) -> str:
        """SQL of the condition of a bad record."""
        return f"{self.reason} IS NOT NULL"

    @property
    def columns(self) -> list[str]:
        """SQL of the declared columns, each under its name."""
        return under_names(self.values)


def under_names(values: Mapping[str, str]) -> list[str]:
    """Return SQL of values, each under its name."""
    return [f"{value} AS {quoted(name)}" for name, value in values.items()]


def struct(ddl: str, where: str) -> StructType:
    """Parse columns from Spark DDL. Reserved names, and names that differ only in case, are refused (``InvalidError``)."""
    try:
        columns = StructType.fromDDL(ddl)
    except Exception as error:
        raise InvalidError(f"{where}: schema is not Spark DDL", given=ddl) from error
    reserved = [f.name for f in columns.fields if f.name.lower().startswith("__streamsem")]
    if reserved:
        raise InvalidError(f"{where}: schema uses names that are reserved for this package", given=reserved)
    duplicates = more_than_once(columns.names)
    if duplicates:
        raise InvalidError(
            f"{where}: schema has duplicate names, or names that differ only in upper and lower case", given=duplicates
        )
    return columns


@dataclass(frozen=True)
class Records:
    """How texts become records. ``parser_of`` is called in a worker."""

    columns: StructType
    parser_of: Callable[[], Parser]

    def parsed(
        self, frame: DataFrame, text: str, into: str | None = None, *,
        masks: Mapping[str, Sequence[str]] | None = None, checksums: Checksums | None = None,
    ) -> Parsed:  # fmt: skip
        """
        Parse the column ``text``, which the result lacks. A null text has null columns, and is not bad.

        :param into: prefix of the names of the added columns; ``None``: they have the names of the schema, so no other column of the frame may have one
        :param masks: name of each mask to add → the columns of its bits, from the lowest bit. A mask is a ``bigint``, and null in most rows. The bit of a
            column is set in some row if the column is not null in some record
        :param checksums: a column to add, from which :func:`bad_checksums` makes an aggregate
        """
        reason = REASON if into is None else f"{into}_reason"
        columns = self.columns.fields
        frame, lists = without_null_lists(frame)
        names = [*(self.columns.names if into is None else (f"{into}_{n}" for n in range(len(columns)))), reason]
        kept = [field for field in frame.schema.fields if field.name != text]
        added = [StructField(name, nullable(field.dataType)) for name, field in zip(names, columns, strict=False)]
        bits = {mask: [self.columns.names.index(name) for name in of] for mask, of in (masks or {}).items()}
        parse = partial(
            parsed_batches, parser_of=self.parser_of, text=text, names=names, masks=bits, checksums=checksums
        )
        after = [StructField(reason, StringType()), *(StructField(mask, LongType()) for mask in bits)]
        after += [] if checksums is None else [StructField(checksums.name, StringType())]
        done = with_null_lists(_in_workers(frame, parse, StructType([*added, *kept, *after])), lists)
        return Parsed(done, dict(zip(self.columns.names, map(quoted, names), strict=False)), reason)

    def explained(self, frame: DataFrame, text: str, *, only_bad: bool) -> DataFrame:
        """Add the column :data:`REASON`: why a text, whose column stays, is not a record; null for a record."""
        explain = partial(explained_batches, parser_of=self.parser_of, text=text, reason=REASON, only_bad=only_bad)
        return _in_workers(frame, explain, StructType([*frame.schema.fields, StructField(REASON, StringType())]))


def bad_checksums(name: str) -> Column:
    """Return the aggregate of the checksums of all bad texts, which :func:`among_bad` needs: a text."""
    return F.array_join(F.collect_list(name), " ")


def among_bad(frame: DataFrame, text: str, checksums: str) -> DataFrame:
    """
    Return the rows whose text has the checksum of a bad text: those of all bad texts, and by chance those of others.

    Return all rows if the checksums (:func:`bad_checksums`) are not known, or if they are many.
    """
    found = set(checksums.split())
    if not found or MANY in found or len(found) > _MANY_CHECKSUMS:
        return frame
    # One text, because each call of F.lit takes time.
    listed = ", ".join(f"{int(checksum)}L" for checksum in found)
    return frame.where(f"crc32(CAST({quoted(text)} AS BINARY)) IN ({listed})")


def records_of_json(session: SparkSession, columns: StructType, options: Mapping[str, str]) -> Records:
    """A text is bad unless it is one JSON object in UTF-8 whose values the columns hold exactly. Refuses types that JSON cannot represent exactly."""
    _refuse_types("JSON", {kind for field in columns.fields for kind in _leaves(field.dataType)}, BinaryType)
    chosen = {name.lower(): value for name, value in options.items()}
    lenient = frozenset(name for name in LENIENT if chosen.get(name, "false").lower() == "true")
    settings = _settings(session, columns, chosen)
    return Records(columns, partial(ArrowJson, arrow_schema(columns), settings, lenient))


def records_of_debezium(decoder: Debezium, avro: Mapping[int, str]) -> Records:
    """
    A text is bad unless it is one change event whose values the columns hold exactly. The columns are those of the row, and then those of the event.

    :param avro: schema id → Avro schema of the events whose ``schema`` is this id
    """
    row = struct(decoder.schema, decoder.type)
    event = StructType([StructField(f.name, from_arrow_type(f.type)) for f in debezium_events.EVENT])
    shared = sorted({name.lower() for name in row.names} & {*event.names})
    if shared:
        raise InvalidError("debezium: schema has names of columns that the decoder adds", given=shared)
    _refuse_types("Debezium", {kind for field in row.fields for kind in _leaves(field.dataType)}, BinaryType)
    modes = debezium_values.Modes(decoder.decimal_handling_mode, decoder.time_precision_mode)
    schemas = {number: debezium_values.connect_schema_of_avro(json.loads(text)) for number, text in avro.items()}
    settings = modes, decoder.unavailable_value, schemas, decoder.new_columns == "quarantine"
    parser_of = partial(debezium_events.DebeziumEvents, arrow_schema(row), *settings)
    return Records(StructType([*row.fields, *event.fields]), parser_of)


class Csv:
    """The CSV lines of a source, with options as ``FilesSource`` accepts them. Refuses types that CSV cannot represent exactly."""

    def __init__(self, columns: StructType, options: Mapping[str, str]) -> None:
        self.columns = columns
        self._options = {name.lower(): text for name, text in options.items()}
        _refuse_types("CSV", {field.dataType for field in columns.fields})
        self.dialect = _dialect(self._options)

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file is a header."""
        return _is_true(self._options, "header")

    def header(self, first_line: str) -> str:
        """The header that every file must have: ``first_line`` if it names the columns of the schema, ignoring case; otherwise the joined column names."""
        separator, quote = self.dialect.separator, self.dialect.quote
        quoting: Any = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        names = self.columns.names
        try:
            reader = csv.reader(
                [first_line], strict=True, delimiter=separator, quotechar=quote or None, quoting=quoting
            )
            names_in_file = next(reader, [])
        except (csv.Error, TypeError):  # the separator has several characters
            names_in_file = []
        is_alike = [name.lower() for name in names_in_file] == [name.lower() for name in names]
        return first_line if is_alike else separator.join(names)

    def has_values(self, raw: str) -> Column:
        """A line is a record if it contains a separator, or a character that is neither a space nor a control character."""
        is_filled = F.rlike(F.col(raw), F.lit(r"[^\x00-\x20]"))
        if self.dialect.separator.strip(_BLANK):
            return is_filled
        return is_filled | F.contains(F.col(raw), F.lit(self.dialect.separator))

    def records(self, session: SparkSession) -> Records:
        settings = _settings(session, self.columns, self._options)
        return Records(self.columns, partial(ExactCsv, arrow_schema(self.columns), self.dialect, settings))

    def with_quote_states(self, frame: DataFrame, text: str, names: tuple[str, str]) -> DataFrame:
        """Replace the column of lines; see :func:`airflow_provider_streamsem.connectors.parsing.exact.csv_records.with_quote_states`."""
        kept = [field for field in frame.schema.fields if field.name != text]
        schema = StructType([*kept, *(StructField(name, BooleanType()) for name in names)])
        return _in_workers(frame, partial(with_quote_states, text=text, dialect=self.dialect, names=names), schema)


def _in_workers(
    frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    pickle_by_value(*_MODULES)
    return frame.mapInArrow(function, schema)


def without_null_lists(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """
    Replace null arrays and maps by empty ones before the rows are sent to Python workers. :func:`with_null_lists` restores the returned columns.

    After each row, Spark 4.1 computes the size of the batch. If the newest arrays of a column are null, this takes a time in proportion to their number, so a
    batch of 10,000 rows with null headers takes 50,000,000 steps.
    """
    lists = {
        f.name: f.dataType for f in frame.schema.fields if isinstance(f.dataType, (ArrayType, MapType)) and f.nullable
    }
    empty = {name: F.array() if isinstance(kind, ArrayType) else F.create_map() for name, kind in lists.items()}
    flags = {_null_flag(name): F.col(quoted(name)).isNull() for name in lists}
    filled = {name: F.coalesce(F.col(quoted(name)), empty[name].cast(kind)) for name, kind in lists.items()}
    return (frame.withColumns(flags).withColumns(filled) if lists else frame), [*lists]


def with_null_lists(frame: DataFrame, lists: Sequence[str]) -> DataFrame:
    """Restore the null arrays and maps that :func:`without_null_lists` has replaced."""
    if not lists:
        return frame
    restored = {name: F.when(~F.col(quoted(_null_flag(name))), F.col(quoted(name))) for name in lists}
    return frame.withColumns(restored).drop(*map(_null_flag, lists))


def _null_flag(name: str) -> str:
    return f"__streamsem_null_{name}"


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the columns as a schema of Arrow, with the nullability of columns and nested fields."""
    return pa.schema([_arrow_field(field) for field in columns.fields])


def _arrow_field(field: StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), field.nullable)


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), _arrow_type(kind.valueType))
    if isinstance(kind, TimestampType):  # for pyspark 4.2 and newer it needs an argument that older versions lack
        return pa.timestamp("us", "UTC")
    return to_arrow_type(kind)


def nullable(kind: Any) -> Any:
    """Return a type in which every column, element and value may be null, as Spark's readers of files return it."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def _leaves(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        yield from _leaves(kind.valueType)
    else:
        yield kind


def _refuse_types(format: str, kinds: set[DataType], *more: type[DataType]) -> None:
    refused = [
        kind for kind in kinds if not isinstance(kind, (*_SCALARS, *more)) or isinstance(kind, (CharType, VarcharType))
    ]
    if refused:
        types = sorted(kind.simpleString() for kind in refused)
        raise InvalidError(f"schema has types that {format} cannot represent exactly", types=types).advising(
            "declare the columns as string, and convert them in the transform. No rows were committed."
        )


def _dialect(options: Mapping[str, str]) -> Dialect:
    separator = options.get("sep", options.get("delimiter", ","))
    separator = "\t" if separator == "\\t" else separator
    quote = options.get("quote", '"')
    escape = options.get("escape", quote)
    if not separator or len(quote) > 1 or len(escape) > 1 or quote in (separator, " ", "\t"):
        raise InvalidError(
            "CSV needs a sep of at least one character, and a quote and an escape of at most one character; the quote must not be the sep, a space or a tab",
            given=sorted(options),
        )
    infinite = {"nanvalue": "nan", "positiveinf": "inf", "negativeinf": "-inf"}
    return Dialect(
        separator=separator, quote=quote, escape=escape, null=options.get("nullvalue", ""),
        trims_leading=_is_true(options, "ignoreleadingwhitespace"), trims_trailing=_is_true(options, "ignoretrailingwhitespace"),
        names={options[option]: float(name) for option, name in infinite.items() if option in options},
    )  # fmt: skip


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _settings(session: SparkSession, columns: StructType, options: Mapping[str, str]) -> Settings:
    kinds = {kind.typeName() for field in columns.fields for kind in _leaves(field.dataType)}
    zone = "UTC"
    if kinds & {"timestamp"}:
        zone = options.get("timezone") or session.conf.get("spark.sql.session.timeZone") or "UTC"
        try:
            zone_of(zone)
        except ValueError:
            raise InvalidError("the time zone of a source is not known; nothing became visible", given=zone).advising(
                "set the option `timeZone` to the name of a region, such as Europe/Paris, or to an offset, such as +02:00; then run again."
            ) from None
    formats = {}
    for option, name in _TIMES.items():
        if option in options and name in kinds:
            formats[name] = _format(
                session, option, options, zone=zone if name == "timestamp" else None, is_date=name == "date"
            )
    return Settings(zone=zone, formats=formats)


def _format(
    session: SparkSession, option: str, options: Mapping[str, str], *, zone: str | None, is_date: bool
) -> TimeFormat:
    pattern = options[option]
    names = format_names(session, pattern, options.get("locale", "en-US"))
    made = TimeFormat(pattern, is_date=is_date, zone=zone, texts=names)
    try:
        made.parser()
    except ValueError as error:
        raise InvalidError(
            f"the option {option} of a source is not valid: {error}; nothing became visible", given=pattern
        ).advising(
            "set a pattern of numbers, names of months and zones, or declare the columns as string and convert them in the transform."
        ) from None
    return made


def format_names(session: SparkSession, pattern: str, locale: str) -> dict[str, Sequence[str]]:
    """Return the names of months and of the halves of a day in a locale, by the letters of the pattern."""
    if not _LOCALE.fullmatch(locale):
        raise InvalidError(
            "the locale of a source is not valid; nothing became visible", given=locale, accepted="en-US"
        )
    found: dict[str, Sequence[str]] = {}
    for letters in ("MMMM", "MMM", "LLLL", "LLL", "a"):
        if letters not in pattern or letters[0] in "".join(found):
            continue
        days = [(1, "01"), (1, "13")] if letters == "a" else [(month, "01") for month in range(1, 13)]
        one = "to_csv(named_struct('t', TIMESTAMP'2024-{:02d}-01 {}:00:00Z'), map('timestampFormat', '{}', 'locale', '{}', 'timeZone', 'UTC', 'quote', ''))"
        row = session.sql(f"SELECT {', '.join(one.format(*day, letters, locale) for day in days)}").first()
        found[letters.replace("L", "M")] = [*(row or ())]
    return found
