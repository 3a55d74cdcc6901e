"""
Parses JSON text into columns on Spark. Each record is parsed exactly or marked as bad. Imports pyspark, so only engines import this module.

Spark's JSON reader rounds decimals, rewrites numbers in string columns, and replaces values that a type cannot hold. So each record is parsed in up to two
passes. The *fast* pass requests types from Spark in which most changes of a value can be detected. If Spark has changed a value, or may have changed it, the
record is *suspicious*, and the *exact* pass determines its values. The exact pass first puts numbers into quotes, so that Spark returns the original text of
every value.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame
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
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from airflow_provider_streamsem.connectors.parsing import values as exact
from airflow_provider_streamsem.connectors.parsing import wide
from airflow_provider_streamsem.connectors.parsing.sql_text import (
    MISSING,
    UNFIT,
    Parsed,
    any_of,
    for_each,
    for_each_value,
    listed,
    literal,
    map_of,
    names_where,
    null_as_false,
    reason_of,
    rlike,
    struct_of,
    try_cast,
    type_name,
    when,
    with_sql,
)
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.identifiers import more_than_once, quoted

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
# Every \u escape is a character or part of a complete surrogate pair.
_PAIRED = (
    r"^(?:[^\\]++|\\[^u]|\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*+\z"
)
_END = r"[ \t\r\n]*+[,}\]]"
# Spark converts a number with a decimal point or an exponent to double, then to text. Numbers of up to 15 digits keep their digits.
# The lookbehind tests each run of digits once. Without it, the time would be quadratic in the length of the run.
_LONG_DECIMAL = r"(?<![0-9])(?=[0-9.]{17})[0-9]*+\.|[0-9]{16}[eE]"
_LONG_NUMBER = r"[0-9][0-9.]{15}"  # a prefix of every such number, and twice as fast to search for
_FAR_EXPONENT = rf"[eE][+-]?[0-9]{{3,}}+{_END}"
_SURE_LENGTH = 16
_NEAR_ZERO = r"[eE]-[0-9]|[0-9]{30}"
_VALID_AS_BASE64 = r"^(?:[0-9]+|true)\z"
_NO_NUMBER = r"^(?:NaN|[-+]?Infinity|[-+]?INF)\z"
_ENDS_ONCE = r"^[^}]*\}[ \t\r\n]*\z"
_ESCAPE = r"\u"
# Text in a string column that may come from a number that Spark has rewritten, or from an object or array that may contain one.
_REWRITTEN = r'^(?:0\z|-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?\z|["\[{])'


def struct(ddl: str, where: str) -> StructType:
    """
    Parse columns from Spark DDL.

    :param where: the argument's name, for error messages
    :raises InvalidError: the text is not Spark DDL, has reserved names, or has names that differ only in case
    """
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


def with_json(frame: DataFrame, raw: str, columns: StructType, options: Mapping[str, str], into: str) -> Parsed:
    """
    Parse JSON records: add their columns to a frame, and a column that marks bad records.

    A record is bad unless it is one JSON object in UTF-8 whose values the columns hold exactly.

    :param raw: SQL of the text; a null text is bad
    :param options: options of Spark's JSON reader, as ``FilesSource`` accepts them
    :param into: prefix of the names of the added columns
    :raises InvalidError: a column has a type that JSON cannot represent exactly
    """
    _refuse_types(columns)
    options = {**_STRICT, **{name.lower(): text for name, text in options.items()}}
    grouped = wide.Grouped(columns)
    fast, slow = _Fast(columns, grouped.columns, options), _Exact(columns, grouped.columns, options)
    parsed, doubt, marked, exactly, whole = (
        f"{into}_{name}" for name in ("parsed", "doubt", "marked", "exactly", "whole")
    )
    values = {field.name: f"{into}_{n}" for n, field in enumerate(grouped.columns.fields)}
    steps = with_sql(frame, {parsed: fast.parsed(raw)})
    if grouped.has_arrays:
        steps = with_sql(steps, {parsed: grouped.converted(parsed, _CORRUPT)})
    fast_values = fast.values(parsed)
    is_suspicious = fast.is_suspicious(parsed, fast_values, raw)
    exact_parse = slow.parsed(raw)
    if grouped.has_arrays:
        steps = with_sql(steps, {doubt: is_suspicious, marked: when((is_suspicious, exact_parse))})
        steps = with_sql(steps, {marked: grouped.converted(marked, _CORRUPT)})
        is_suspicious, exact_parse = doubt, marked
    # A single step adds all columns, because Spark copies every row between two steps that parse JSON.
    steps = with_sql(
        steps,
        {
            **dict(zip(values.values(), fast_values, strict=True)),
            doubt: is_suspicious,
            exactly: when((is_suspicious, slow.value_and_bad(exact_parse))),
            whole: f"{_one_value(raw, options)} AND is_valid_utf8({raw}) AND NOT ({has_unpaired_surrogate(raw)})",
        },
    )
    chosen = {
        column: when((doubt, f"{exactly}.value.{quoted(name)}"), otherwise=column) for name, column in values.items()
    }
    final_values = grouped.values(values)
    bad = any_of([f"NOT {whole}", f"({doubt} AND {exactly}.bad)", *_missing(final_values, columns)])
    steps = with_sql(with_sql(steps, chosen), {f"{into}_bad": f"coalesce({bad}, true)"})
    done = steps.drop(parsed, doubt, marked, exactly, whole)
    return Parsed(done, final_values, f"{into}_bad", _reason(raw, final_values, columns, options))


class _Fast:
    """The fast pass: parses records with Spark's types. A type is replaced if a changed value could not be detected in it."""

    def __init__(self, columns: StructType, grouped: StructType, options: Mapping[str, str]) -> None:
        self._options, self._columns, self._grouped = options, columns, grouped
        self._is_usable = not any(options.get(name, "false").lower() == "true" for name in _LENIENT)
        self._has_decimals = any(isinstance(kind, DecimalType) for kind in _leaves(columns))

    def parsed(self, raw: str) -> str:
        parsed = _from_json(raw, self._columns, self._leaf, self._options)
        if not self._is_usable:
            return when(("false", parsed))
        if not self._has_decimals:
            return parsed
        is_unsafe = f"{rlike(raw, _LONG_NUMBER)} AND {rlike(raw, _LONG_DECIMAL)} OR {rlike(raw, _FAR_EXPONENT)}"
        return when((f"NOT ({is_unsafe})", parsed))

    def values(self, parsed: str) -> list[str]:
        return [_build(f"{parsed}.{quoted(f.name)}", f.dataType, self._value) for f in self._grouped.fields]

    def is_suspicious(self, parsed: str, values: list[str], raw: str) -> str:
        """
        Return SQL that is true if the record needs the exact parse.

        Combines the tests with ``greatest``, because Spark does not share subexpressions between the values and the operands of ``OR``.
        """

        def doubt(leaf: str, value: str, kind: DataType) -> str | None:
            return self._doubt(leaf, value, kind, raw)

        return f"greatest({', '.join(_tests(parsed, self._grouped, values, self._value, doubt))})"

    def _leaf(self, kind: DataType) -> DataType:
        if isinstance(kind, ByteType):
            return ShortType()  # for a byte, Jackson converts 200 to -56
        if isinstance(kind, (*exact.INTEGERS, *exact.FLOATS, BooleanType)):
            return kind
        return StringType()

    def _value(self, leaf: str, kind: DataType) -> str:
        if isinstance(kind, ByteType):
            return try_cast(leaf, kind)
        if isinstance(kind, (*exact.INTEGERS, *exact.FLOATS, BooleanType)):
            return leaf
        return exact.value(leaf, kind, self._options)

    def _doubt(self, leaf: str, value: str, kind: DataType, raw: str) -> str | None:
        if isinstance(kind, exact.FLOATS):
            return f"abs({leaf}) = {exact.INFINITY} OR ({leaf} = 0 AND {rlike(raw, _NEAR_ZERO)})"
        if isinstance(kind, (*exact.INTEGERS, BooleanType)) and not isinstance(kind, ByteType):
            return None
        if isinstance(kind, StringType):
            return _may_be_rewritten(leaf)
        wrong = f"({leaf} IS NULL) != ({value} IS NULL)"
        if isinstance(kind, DecimalType):
            return f"{wrong} OR (length({leaf}) > {_SURE_LENGTH} AND contains({leaf}, '.'))"
        if isinstance(kind, BinaryType):  # numbers and `true` may also be valid base64
            return f"{wrong} OR {rlike(leaf, _VALID_AS_BASE64)}"
        return f"{wrong} OR {_may_be_rewritten(leaf)}" if exact.own_format(kind, self._options) else wrong


class _Exact:
    """
    The exact pass: parses records with string and boolean types only.

    Each number is replaced by a string of a random mark and the digits. The mark is new for each attempt, so no record can contain it.
    """

    def __init__(self, columns: StructType, grouped: StructType, options: Mapping[str, str]) -> None:
        self._options, self._columns, self._grouped = options, columns, grouped
        self._mark = f"#{secrets.token_hex(6)}#"
        self._lenient = {name for name in _LENIENT if options.get(name, "false").lower() == "true"}

    def parsed(self, raw: str) -> str:
        quoted_number = literal(f'$1"{self._mark}$2"')
        marked = f"regexp_replace({raw}, {literal(self._pattern())}, {quoted_number})"
        return _from_json(marked, self._columns, self._leaf, self._options)

    def value_and_bad(self, parsed: str) -> str:
        """Return SQL of a struct: ``value``, a struct of the columns, and ``bad``."""

        # Spark evaluates the argument of a lambda once. The lambda over an array of one element prevents that Spark parses the record for each column.
        def of(record: str) -> str:
            return struct_of({"value": _build_fields(record, self._grouped, self._value), "bad": self._is_bad(record)})

        return f"get({for_each('transform', f'array({parsed})', of)}, 0)"

    def _leaf(self, kind: DataType) -> DataType:
        return kind if isinstance(kind, BooleanType) else StringType()

    def _pattern(self) -> str:
        """
        Return a pattern with two groups: the text since the previous number, and the number.

        A number that is the name of a field does not match.
        """
        words, skipped, other = "", [_STRING, "-(?![0-9])"], '"0-9-'
        if "allowsinglequotes" in self._lenient:
            skipped, other = [*skipped, _STRING.replace('"', "'")], other[0] + "'" + other[1:]
        if "allowunquotedfieldnames" in self._lenient:
            # A name may be or begin with a number. The parser accepts it, so it must not end the search for numbers. A word is tested only at its first
            # character. Otherwise the time would be quadratic in the length of a word of signs and digits.
            between, name = r"\s:{}\[\],", r"(?<![^\s:{}\[\],\"'])[^\s:{}\[\],\"']++(?=\s*+:)"
            words = f"[{between}]++|{name}|"
            skipped, other = [*skipped, r"[\p{L}_$][^\s:{}\[\],\"']*+"], other[0] + rf"\p{{L}}_${between}" + other[1:]
        whole = "[0-9]++" if "allownumericleadingzeros" in self._lenient else "(?:0|[1-9][0-9]*+)"
        number = rf"-?{whole}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
        return rf"\G((?:{words}[^{other}]++|{'|'.join(skipped)})*+)({number})(?!\s*+:)"

    def _is_bad(self, parsed: str) -> str:
        return any_of(_tests(parsed, self._grouped, None, self._value, self._wrong))

    def _value(self, leaf: str, kind: DataType) -> str:
        if isinstance(kind, BooleanType):
            return leaf
        is_number = f"startswith({leaf}, {literal(self._mark)})"
        digits = f"substr({leaf}, {len(self._mark) + 1})"
        if isinstance(kind, exact.INTEGERS):
            return when((is_number, exact.value(digits, kind, self._options)))
        if isinstance(kind, exact.FLOATS):
            number = (is_number, exact.value(digits, kind, self._options))
            if "allownonnumericnumbers" not in self._lenient:
                return when(number)
            name = f"""replace({leaf}, '"', '')"""
            return when(number, (rlike(name, _NO_NUMBER), try_cast(f"replace({name}, 'INF', 'Infinity')", kind)))
        if isinstance(kind, DecimalType) or exact.own_format(kind, self._options):
            return exact.value(when((is_number, digits), otherwise=leaf), kind, self._options)
        if isinstance(kind, BinaryType):
            return when((f"{leaf} != 'true'", exact.value(leaf, kind, self._options)))
        if isinstance(kind, StringType):
            number_inside = literal(f'"{self._mark}([^"]*+)"')
            inside = f"regexp_replace({leaf}, {number_inside}, '$1')"
            has_numbers = f"contains({leaf}, {literal(self._mark)})"
            return when((is_number, digits), (has_numbers, inside), otherwise=leaf)
        return exact.value(leaf, kind, self._options)

    def _wrong(self, leaf: str, value: str, kind: DataType) -> str | None:
        return None if isinstance(kind, (BooleanType, StringType)) else f"{leaf} IS NOT NULL AND {value} IS NULL"


def _from_json(raw: str, columns: StructType, leaf: Callable[[DataType], DataType], options: Mapping[str, str]) -> str:
    all_options = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    schema = ", ".join([*_fields_of(columns, leaf), f"{_CORRUPT} STRING"])
    return f"from_json({raw}, {literal(schema)}, {map_of(all_options)})"


def _may_be_rewritten(text: str) -> str:
    """Return a condition that is true if a string may contain a number that Spark has rewritten. Compares the first byte first, because that is cheap."""
    begins = " OR ".join([f"({text} >= '-' AND {text} < ':')", *(f"startswith({text}, '{sign}')" for sign in '"[{')])
    return f"({begins}) AND {rlike(text, _REWRITTEN)}"


# --- nested columns


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
        raise InvalidError("schema has types that JSON cannot represent exactly", types=refused).advising(
            "declare the columns as string, and convert them in the transform. No rows were committed."
        )


def _fields_of(columns: StructType, leaf: Callable[[DataType], DataType]) -> list[str]:
    return [f"{quoted(f.name)} {_type_of(f.dataType, leaf)}" for f in columns.fields]


def _type_of(kind: DataType, leaf: Callable[[DataType], DataType]) -> str:
    """Return the SQL name of a type whose leaf types are replaced."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(_fields_of(kind, leaf))}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_of(kind.elementType, leaf)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_name(kind.keyType)}, {_type_of(kind.valueType, leaf)}>"
    return type_name(leaf(kind))


Leaf: TypeAlias = Callable[[str, DataType], str]
Test: TypeAlias = Callable[[str, str, DataType], str | None]


def _build_fields(parsed: str, columns: StructType, leaf: Leaf) -> str:
    return struct_of({f.name: _build(f"{parsed}.{quoted(f.name)}", f.dataType, leaf) for f in columns.fields})


def _build(parsed: str, kind: DataType, leaf: Leaf) -> str:
    """Return SQL of a value of the declared type from a parsed value."""
    if isinstance(kind, StructType):
        return when((f"{parsed} IS NOT NULL", _build_fields(parsed, kind, leaf)))
    if isinstance(kind, ArrayType):
        return for_each("transform", parsed, lambda element: _build(element, kind.elementType, leaf))
    if isinstance(kind, MapType):
        return for_each_value(parsed, lambda element: _build(element, kind.valueType, leaf))
    return leaf(parsed, kind)


def _tests(parsed: str, columns: StructType, values: Sequence[str] | None, leaf: Leaf, test: Test) -> list[str]:
    """
    Return the tests of a parsed record: first the record as a whole, then the leaves of each column.

    :param values: the result of :func:`_build` for each column; ``None``: not available
    """
    tests = [f"{parsed} IS NULL", null_as_false(f"{parsed}.{_CORRUPT} IS NOT NULL")]
    for n, field in enumerate(columns.fields):
        built = None if values is None else values[n]
        condition = _any_leaf(f"{parsed}.{quoted(field.name)}", field.dataType, leaf, test, built)
        tests += [] if condition is None else [condition]
    return tests


def _any_leaf(parsed: str, kind: DataType, leaf: Leaf, test: Test, built: str | None = None) -> str | None:
    """Return a condition that is true if the test is true for any leaf; ``None`` if it cannot be true for any leaf."""
    if isinstance(kind, StructType):
        conditions_or_none = [_any_leaf(f"{parsed}.{quoted(f.name)}", f.dataType, leaf, test) for f in kind.fields]
        conditions = [condition for condition in conditions_or_none if condition is not None]
        return any_of(conditions) if conditions else None
    if isinstance(kind, ArrayType):
        return _any_element(parsed, kind.elementType, leaf, test)
    if isinstance(kind, MapType):
        keys = f"map_keys({parsed})"
        twice = null_as_false(f"size({keys}) != size(array_distinct({keys}))")
        condition = _any_element(f"map_values({parsed})", kind.valueType, leaf, test)
        return twice if condition is None else any_of([twice, condition])
    tested = test(parsed, leaf(parsed, kind) if built is None else built, kind)
    return None if tested is None else null_as_false(tested)


def _any_element(parsed: str, kind: DataType, leaf: Leaf, test: Test) -> str | None:
    if _any_leaf("NULL", kind, leaf, test) is None:
        return None
    return null_as_false(for_each("exists", parsed, lambda element: _any_leaf(element, kind, leaf, test) or "false"))


def _missing(values: Mapping[str, str], columns: StructType) -> list[str]:
    """
    Return conditions that are true if a value that is declared ``NOT NULL`` is null.

    :param values: name → SQL of the value
    """
    conditions = []
    for field in columns.fields:
        column = values[field.name]
        if not field.nullable:
            conditions.append(f"{column} IS NULL")
        condition = _missing_inside(column, field.dataType)
        conditions += [] if condition is None else [condition]
    return conditions


def _missing_inside(value: str, kind: DataType) -> str | None:
    """Return a condition that is true if a nested field that is declared ``NOT NULL`` is null; ``None`` if the type has no such field."""
    if isinstance(kind, StructType):
        missing = _missing({name: f"{value}.{quoted(name)}" for name in kind.names}, kind)
        return f"({value} IS NOT NULL AND {any_of(missing)})" if missing else None
    if isinstance(kind, ArrayType):
        elements, inner = value, kind.elementType
    elif isinstance(kind, MapType):
        elements, inner = f"map_values({value})", kind.valueType
    else:
        return None
    if _missing_inside("NULL", inner) is None:
        return None
    return null_as_false(for_each("exists", elements, lambda element: _missing_inside(element, inner) or "false"))


# --- the text as a whole


def _reason(raw: str, values: Mapping[str, str], columns: StructType, options: Mapping[str, str]) -> str:
    """Return SQL of the reason why a text is not a record; see :class:`Parsed`."""
    fields = f"from_json({raw}, 'map<string,string>', {map_of(options)})"
    is_null = f"array({', '.join(f'{value} IS NULL' for value in values.values())})"
    unfit = names_where(list(values), lambda name, at: f"get({is_null}, {at}) AND {fields}[{name}] IS NOT NULL")
    required = [name for name in values if not columns[name].nullable]
    missing = names_where(required, lambda name, _: f"{fields} IS NOT NULL AND {fields}[{name}] IS NULL")
    return reason_of(when((f"{fields} IS NULL", "'no JSON object'")), listed(UNFIT, unfit), listed(MISSING, missing))


def has_unpaired_surrogate(raw: str) -> str:
    """Return a condition that is true if a text contains the escape of an unpaired surrogate, which is not a character. Spark would replace it with ``?``."""
    return f"contains({raw}, {literal(_ESCAPE)}) AND NOT {rlike(raw, _PAIRED)}"


def _one_value(raw: str, options: Mapping[str, str]) -> str:
    """
    Return a condition that is true if a text is one JSON value with nothing after it. Spark's reader silently drops what follows the first value.

    A text whose only ``}`` is its last character is one value. Any other text is parsed as the first element of an array whose second element is a random word.
    It is one value if the array has exactly two elements and the second is the word. The word is new for each attempt, so no text can contain it.
    """
    word = secrets.token_hex(16)
    elements = f"""from_json(concat('[', {raw}, ',"{word}"]'), 'array<string>', {map_of(options)})"""
    exactly = null_as_false(f"size({elements}) = 2 AND element_at({elements}, -1) = '{word}'")
    return when((rlike(raw, _ENDS_ONCE), "true"), otherwise=exactly)
