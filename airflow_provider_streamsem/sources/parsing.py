"""
JSON text to columns on Spark: each record is parsed exactly, or marked as bad. Imports pyspark: only engines reach this.

Spark's reader rounds decimals, rewrites numbers in string columns, and turns what it cannot hold into other values. Records are therefore parsed in two ways.
The *fast* parse asks Spark for types wide enough to show a change. Where it shows one, or may hide one, the record is *suspicious*, and the *exact* parse
decides: numbers are put into quotes first, so that every value arrives as its own text.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.sources import exact, wide

_CORRUPT = "__streamsem_corrupt"
_STRICT = {"allowsinglequotes": "false", "allownonnumericnumbers": "false"}
_LENIENT = (
    "allowsinglequotes",
    "allowunquotedfieldnames",
    "allownumericleadingzeros",
    "allownonnumericnumbers",
)
_SCALARS = (
    *exact.INTEGERS, *exact.FLOATS, BinaryType, BooleanType, DateType, DecimalType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip
_STRING = r'"(?:[^"\\]++|\\[\s\S])*+"'
# Every \u escape is a character, or one half of a pair that is complete.
_PAIRED = (
    r"^(?:[^\\]++|\\[^u]|\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*+\z"
)
_END = r"[ \t\r\n]*[,}\]]"
# Spark holds a number with a point or an exponent as a double before it writes it as text. Up to 15 digits come back as they were.
_LONG_DECIMAL = r"(?=[0-9.]{17})[0-9]*+\.|[0-9]{16}[eE]"
_LONG_NUMBER = r"[0-9][0-9.]{15}"  # each of these numbers begins so, which is found in half the time
_FAR_EXPONENT = rf"[eE][+-]?[0-9]{{3,}}{_END}"
_SURE_LENGTH = 16
# What Spark writes into a string column where the JSON has a number that it has rewritten, or an object or array that may hold one.
_REWRITTEN = r'^(?:0\z|-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?\z|["\[{])'


def struct(ddl: str, where: str) -> StructType:
    """
    Columns from Spark DDL.

    :raises InvalidError: it is no DDL, or uses names that are kept
    """
    try:
        columns = StructType.fromDDL(ddl)
    except Exception as error:
        raise InvalidError(f"{where}: schema is not Spark DDL", given=ddl) from error
    reserved = [f.name for f in columns.fields if f.name.lower().startswith("__streamsem")]
    if reserved:
        raise InvalidError(f"{where}: schema uses names that are kept for this package", given=reserved)
    twins = sorted(name for name, count in Counter(name.lower() for name in columns.names).items() if count > 1)
    if twins:
        raise InvalidError(
            f"{where}: schema has names twice, or names that differ only in upper and lower case", given=twins
        )
    return columns


def with_json(frame: DataFrame, raw: Column, columns: StructType, options: Mapping[str, str], into: str) -> DataFrame:
    """
    Add a struct of the columns, and whether the record is bad: anything but one JSON object in UTF-8 whose values are exactly those of the columns.

    :param raw: the text; null is bad
    :param options: of Spark's JSON reader, as ``FilesSource`` takes them
    :param into: name of the struct; ``<into>_bad`` is the boolean
    :raises InvalidError: a column has a type that JSON cannot hold exactly
    """
    _refuse_types(columns)
    given = {**_STRICT, **{name.lower(): text for name, text in options.items()}}
    grouped = wide.Grouped(columns)
    fast, slow = _Fast(columns, grouped.columns, given), _Exact(columns, grouped.columns, given)
    parsed, doubt, marked, exactly, whole = (
        f"{into}_{name}" for name in ("parsed", "doubt", "marked", "exactly", "whole")
    )
    values = {field.name: f"{into}_{n}" for n, field in enumerate(grouped.columns.fields)}
    steps = frame.withColumn(parsed, fast.parsed(raw))
    if grouped.has_arrays:
        steps = steps.withColumn(parsed, grouped.of(parsed, _CORRUPT))
    found = fast.values(F.col(parsed))
    is_suspicious = fast.is_suspicious(F.col(parsed), found, raw)
    again = slow.parsed(raw)
    if grouped.has_arrays:
        steps = steps.withColumn(doubt, is_suspicious).withColumn(marked, F.when(F.col(doubt), again))
        steps = steps.withColumn(marked, grouped.of(marked, _CORRUPT))
        is_suspicious, again = F.col(doubt), F.col(marked)
    # One step, not one for each: between steps with JSON in them Spark copies every row.
    steps = steps.withColumns(
        {
            **dict(zip(values.values(), found, strict=True)),
            doubt: is_suspicious,
            exactly: F.when(is_suspicious, slow.decided(again)),
            whole: _one_value(raw, given) & F.is_valid_utf8(raw) & ~_half_a_pair(raw),
        }
    )
    chosen = {
        column: F.when(F.col(doubt), F.col(exactly)["value"][name]).otherwise(F.col(column))
        for name, column in values.items()
    }
    steps = steps.withColumns(chosen).withColumn(into, grouped.record(values))
    bad = ~F.col(whole) | (F.col(doubt) & F.col(exactly)["bad"])
    lacks = _lacks(F.col(into), columns)
    bad = bad if lacks is None else bad | lacks
    return steps.withColumn(f"{into}_bad", F.coalesce(bad, F.lit(True))).drop(
        parsed, doubt, marked, exactly, whole, *values.values()
    )


class _Fast:
    """The parse by Spark's own types, widened where a change would not show."""

    def __init__(self, columns: StructType, grouped: StructType, given: Mapping[str, str]) -> None:
        self._given, self._columns, self._grouped = given, columns, grouped
        self._usable = not any(given.get(name, "false").lower() == "true" for name in _LENIENT)
        has_decimals = any(isinstance(kind, DecimalType) for kind in _leaves(columns))
        self._has_decimals = has_decimals

    def parsed(self, raw: Column) -> Column:
        wanted = _struct_of(self._columns, self._leaf)
        parsed = _from_json(raw, wanted, self._given)
        if not self._usable:
            return F.when(F.lit(False), parsed)
        if not self._has_decimals:
            return parsed
        is_unsafe = (raw.rlike(_LONG_NUMBER) & raw.rlike(_LONG_DECIMAL)) | raw.rlike(_FAR_EXPONENT)
        return F.when(~is_unsafe, parsed)

    def values(self, parsed: Column) -> list[Column]:
        return [_build(parsed[f.name], f.dataType, self._value) for f in self._grouped.fields]

    def is_suspicious(self, parsed: Column, values: list[Column], raw: Column) -> Column:
        """``greatest`` and not ``or``, which Spark would not let share what it computes with the values."""

        def doubt(leaf: Column, value: Column, kind: DataType) -> Column | None:
            return self._doubt(leaf, value, kind, raw)

        return F.greatest(*_tests(parsed, self._grouped, values, self._value, doubt))

    def _leaf(self, kind: DataType) -> DataType:
        if isinstance(kind, ByteType):
            return ShortType()  # Jackson makes -56 of 200 in a byte
        if isinstance(kind, (*exact.INTEGERS, *exact.FLOATS, BooleanType)):
            return kind
        return StringType()

    def _value(self, leaf: Column, kind: DataType) -> Column:
        if isinstance(kind, ByteType):
            return leaf.try_cast(kind)
        if isinstance(kind, (*exact.INTEGERS, *exact.FLOATS, BooleanType)):
            return leaf
        return exact.value(leaf, kind, self._given)

    def _doubt(self, leaf: Column, value: Column, kind: DataType, raw: Column) -> Column | None:
        if isinstance(kind, exact.FLOATS):
            return (F.abs(leaf) == float("inf")) | ((leaf == 0) & raw.rlike(r"[eE]-[0-9]|[0-9]{30}"))
        if isinstance(kind, (*exact.INTEGERS, BooleanType)) and not isinstance(kind, ByteType):
            return None
        if isinstance(kind, StringType):
            return _may_be_rewritten(leaf)
        wrong = leaf.isNull() != value.isNull()
        if isinstance(kind, DecimalType):
            return wrong | ((F.length(leaf) > _SURE_LENGTH) & leaf.contains("."))
        if isinstance(kind, BinaryType):  # numbers and `true` may be taken for base64
            return wrong | leaf.rlike(r"^(?:[0-9]+|true)\z")
        return wrong | _may_be_rewritten(leaf) if exact.own_format(kind, self._given) else wrong


class _Exact:
    """The parse by texts alone: a number is its own digits, behind a mark that no text can hold in advance."""

    def __init__(self, columns: StructType, grouped: StructType, given: Mapping[str, str]) -> None:
        self._given, self._columns, self._grouped = given, columns, grouped
        self._mark = f"#{secrets.token_hex(6)}#"
        self._lenient = {name for name in _LENIENT if given.get(name, "false").lower() == "true"}

    def parsed(self, raw: Column) -> Column:
        wanted = _struct_of(self._columns, lambda kind: kind if isinstance(kind, BooleanType) else StringType())
        marked = F.regexp_replace(raw, F.lit(self._pattern()), F.lit(f'$1"{self._mark}$2"'))
        return _from_json(marked, wanted, self._given)

    def decided(self, parsed: Column) -> Column:
        """A struct: ``value``, a struct of the columns, and ``bad``."""
        # An array of one element gives the parsed record a name, so that it is parsed once.
        named = F.array(parsed)
        return F.transform(named, lambda p: F.struct(self._built(p).alias("value"), self._is_bad(p).alias("bad")))[0]

    def _pattern(self) -> str:
        """What precedes a number since the last one, and the number. A number that is the name of a field is none."""
        skipped, other = [_STRING, "-(?![0-9])"], '"0-9-'
        if "allowsinglequotes" in self._lenient:
            skipped, other = [*skipped, _STRING.replace('"', "'")], other[0] + "'" + other[1:]
        if "allowunquotedfieldnames" in self._lenient:
            skipped, other = [*skipped, r"[\p{L}_$][^\s:{}\[\],\"']*+"], other[0] + r"\p{L}_$" + other[1:]
        whole = "[0-9]++" if "allownumericleadingzeros" in self._lenient else "(?:0|[1-9][0-9]*+)"
        number = rf"-?{whole}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
        return rf"\G((?:[^{other}]++|{'|'.join(skipped)})*+)({number})(?!\s*+:)"

    def _built(self, parsed: Column) -> Column:
        return _build_fields(parsed, self._grouped, self._value)

    def _is_bad(self, parsed: Column) -> Column:
        values = [_build(parsed[f.name], f.dataType, self._value) for f in self._grouped.fields]
        return exact.any_of(_tests(parsed, self._grouped, values, self._value, self._wrong))

    def _value(self, leaf: Column, kind: DataType) -> Column:
        if isinstance(kind, BooleanType):
            return leaf
        is_number = leaf.startswith(self._mark)
        digits = leaf.substr(F.lit(len(self._mark) + 1), F.length(leaf))
        if isinstance(kind, exact.INTEGERS):
            return F.when(is_number, exact.value(digits, kind, self._given))
        if isinstance(kind, exact.FLOATS):
            number = F.when(is_number, exact.value(digits, kind, self._given))
            if "allownonnumericnumbers" not in self._lenient:
                return number
            name = F.regexp_replace(leaf, '"', "")
            return number.when(
                name.rlike(r"^(?:NaN|[-+]?Infinity|[-+]?INF)\z"),
                F.regexp_replace(name, "INF", "Infinity").try_cast(kind),
            )
        if isinstance(kind, DecimalType) or exact.own_format(kind, self._given):
            return exact.value(F.when(is_number, digits).otherwise(leaf), kind, self._given)
        if isinstance(kind, BinaryType):
            return F.when(leaf != "true", exact.value(leaf, kind, self._given))
        if isinstance(kind, StringType):
            inside = F.regexp_replace(leaf, f'"{self._mark}([^"]*+)"', "$1")
            return F.when(is_number, digits).when(leaf.contains(self._mark), inside).otherwise(leaf)
        return exact.value(leaf, kind, self._given)

    def _wrong(self, leaf: Column, value: Column, kind: DataType) -> Column | None:
        return None if isinstance(kind, (BooleanType, StringType)) else leaf.isNotNull() & value.isNull()


def _from_json(raw: Column, wanted: StructType, given: Mapping[str, str]) -> Column:
    own = {**given, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return F.from_json(raw, StructType([*wanted.fields, StructField(_CORRUPT, StringType())]), own)


def _may_be_rewritten(text: Column) -> Column:
    """Compared by bytes first, which costs next to nothing."""
    begins = ((text >= "-") & (text < ":")) | text.startswith('"') | text.startswith("[") | text.startswith("{")
    return begins & text.rlike(_REWRITTEN)


# --- columns inside columns


def _leaves(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(kind.valueType)
    else:
        yield kind


def _refuse_types(columns: StructType) -> None:
    refused = sorted(
        {
            kind.simpleString()
            for kind in _leaves(columns)
            if not isinstance(kind, _SCALARS) or isinstance(kind, (CharType, VarcharType))
        }
    )
    if refused:
        raise InvalidError("schema has types that JSON cannot hold exactly", types=refused).advising(
            "declare the columns as string, and convert them in the transform. No rows were committed."
        )


def _struct_of(columns: StructType, leaf: Callable[[DataType], DataType]) -> StructType:
    return StructType([StructField(f.name, _type_of(f.dataType, leaf)) for f in columns.fields])


def _type_of(kind: DataType, leaf: Callable[[DataType], DataType]) -> DataType:
    if isinstance(kind, StructType):
        return _struct_of(kind, leaf)
    if isinstance(kind, ArrayType):
        return ArrayType(_type_of(kind.elementType, leaf))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _type_of(kind.valueType, leaf))
    return leaf(kind)


Leaf: TypeAlias = Callable[[Column, DataType], Column]
Test: TypeAlias = Callable[[Column, Column, DataType], Column | None]


def _build_fields(parsed: Column, columns: StructType, leaf: Leaf) -> Column:
    return F.struct(*[_build(parsed[f.name], f.dataType, leaf).alias(f.name) for f in columns.fields])


def _build(parsed: Column, kind: DataType, leaf: Leaf) -> Column:
    """A value of the declared type from a parsed one."""
    if isinstance(kind, StructType):
        return F.when(parsed.isNotNull(), _build_fields(parsed, kind, leaf))
    if isinstance(kind, ArrayType):
        return F.transform(parsed, lambda element: _build(element, kind.elementType, leaf))
    if isinstance(kind, MapType):
        return F.transform_values(parsed, lambda _, element: _build(element, kind.valueType, leaf))
    return leaf(parsed, kind)


def _tests(parsed: Column, columns: StructType, values: Sequence[Column], leaf: Leaf, test: Test) -> list[Column]:
    """What is tested of a parsed record: the record as a whole, then the leaves of each column."""
    found = [parsed.isNull(), F.coalesce(parsed[_CORRUPT].isNotNull(), F.lit(False))]
    for field, value in zip(columns.fields, values, strict=True):
        some = _some(parsed[field.name], field.dataType, leaf, test, value)
        found += [] if some is None else [some]
    return found


def _some(parsed: Column, kind: DataType, leaf: Leaf, test: Test, built: Column | None = None) -> Column | None:
    """Whether the test is true for some leaf; ``None`` where it can be for none."""
    if isinstance(kind, StructType):
        found = [some for f in kind.fields if (some := _some(parsed[f.name], f.dataType, leaf, test)) is not None]
        return exact.any_of(found) if found else None
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        if _some(F.lit(None), inner, leaf, test) is None:
            return None
        return F.coalesce(F.exists(parsed, lambda e: _surely(_some(e, inner, leaf, test))), F.lit(False))
    if isinstance(kind, MapType):
        inner = kind.valueType
        keys = F.map_keys(parsed)
        twice = F.coalesce(F.size(keys) != F.size(F.array_distinct(keys)), F.lit(False))
        if _some(F.lit(None), inner, leaf, test) is None:
            return twice
        values = F.map_values(parsed)
        return twice | F.coalesce(F.exists(values, lambda e: _surely(_some(e, inner, leaf, test))), F.lit(False))
    tested = test(parsed, leaf(parsed, kind) if built is None else built, kind)
    return None if tested is None else F.coalesce(tested, F.lit(False))


def _surely(some: Column | None) -> Column:
    assert some is not None
    return some


def _lacks(built: Column, columns: StructType) -> Column | None:
    """Whether a column that is declared ``NOT NULL`` is null; ``None`` where none is declared so."""
    found = []
    for field in columns.fields:
        if not field.nullable:
            found.append(built[field.name].isNull())
        inside = _lacks(built[field.name], field.dataType) if isinstance(field.dataType, StructType) else None
        if inside is not None:
            found.append(built[field.name].isNotNull() & inside)
    return exact.any_of(found) if found else None


# --- the text as a whole


def _half_a_pair(raw: Column) -> Column:
    """Whether an escape is one half of a surrogate pair alone: no character, and ``?`` in Spark."""
    return raw.contains("\\u") & ~raw.rlike(_PAIRED)


def _one_value(raw: Column, given: Mapping[str, str]) -> Column:
    """
    Whether a text holds one JSON value and nothing after it: Spark's reader drops what follows without a word.

    A text whose only ``}`` is its last character does; any other is read as an array that must then have exactly two elements: the text's value and a
    random word, which no text can hold in advance.
    """
    word = secrets.token_hex(16)
    elements = F.from_json(F.concat(F.lit("["), raw, F.lit(f',"{word}"]')), "array<string>", dict(given))
    exactly = F.coalesce(F.size(elements) == 2, F.lit(False)) & F.coalesce(
        F.element_at(elements, -1) == word, F.lit(False)
    )
    return F.when(raw.rlike(r"^[^}]*\}[ \t\r\n]*\z"), F.lit(True)).otherwise(exactly)
