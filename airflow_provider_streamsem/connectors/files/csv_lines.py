"""
Parses CSV lines into columns on Spark, according to RFC 4180. Imports pyspark, so only engines import this module.

Each line is parsed exactly or marked as bad. After an unbalanced quote, Spark's own reader returns the remaining text as a value without an error. So this
module splits the lines into fields.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)
from pyspark.sql.types import BooleanType as Boolean

from airflow_provider_streamsem.connectors.parsing import values as exact
from airflow_provider_streamsem.connectors.parsing.sql_text import (
    MISSING,
    UNFIT,
    Parsed,
    any_of,
    for_each,
    listed,
    literal,
    names_where,
    reason_of,
    rlike,
    type_name,
    when,
    with_sql,
)
from airflow_provider_streamsem.errors import InvalidError

_TYPES = (*exact.INTEGERS, *exact.FLOATS, Boolean, DateType, DecimalType, StringType, TimestampNTZType, TimestampType)
_INFINITE = {"nanvalue": "NaN", "positiveinf": "Infinity", "negativeinf": "-Infinity"}
_SPACE = " \t"
_BLANK = "".join(map(chr, range(0x21)))


class Csv:
    """
    The CSV dialect of a source: builds the SQL that parses lines.

    :param columns: the columns of the files
    :param options: options of Spark's CSV reader, as ``FilesSource`` accepts them
    :raises InvalidError: a column has a type that CSV cannot represent exactly, or the separator, quote or escape is invalid
    """

    def __init__(self, columns: StructType, options: Mapping[str, str]) -> None:
        self._columns = columns
        self._options = {name.lower(): text for name, text in options.items()}
        refused = sorted(
            {
                f.dataType.simpleString()
                for f in columns.fields
                if not isinstance(f.dataType, _TYPES) or isinstance(f.dataType, (BinaryType, CharType, VarcharType))
            }
        )
        if refused:
            raise InvalidError("schema has types that CSV cannot hold exactly", types=refused).advising(
                "declare the columns as string, and convert them in the transform. No rows were committed."
            )
        separator = self._options.get("sep", self._options.get("delimiter", ","))
        self._separator = "\t" if separator == "\\t" else separator
        self._quote = self._options.get("quote", '"')
        self._escape = self._options.get("escape", self._quote)
        if not self._separator or len(self._quote) > 1 or len(self._escape) > 1 or self._quote == self._separator:
            raise InvalidError(
                "CSV needs a sep of at least one character, and a quote and an escape of at most one character; quote and sep must differ",
                given=sorted(self._options),
            )

    @property
    def has_header(self) -> bool:
        """Whether the first line of each file is a header."""
        return self._options.get("header", "false").lower() == "true"

    def header(self, first_line: str) -> str:
        """
        Return the header line that every file must have.

        It is ``first_line`` if that line names the columns of the schema, ignoring case. Otherwise it is the column names joined by the separator.

        :param first_line: the first line of a file
        """
        dialect = {
            "delimiter": self._separator,
            "quotechar": self._quote or None,
            "quoting": csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
        }
        names = [f.name for f in self._columns.fields]
        try:
            names_in_file = next(csv.reader([first_line], strict=True, **dialect), [])  # type: ignore[arg-type]
        except (csv.Error, TypeError):  # the separator has several characters
            names_in_file = []
        return (
            first_line
            if [n.lower() for n in names_in_file] == [n.lower() for n in names]
            else self._separator.join(names)
        )

    def with_columns(self, frame: DataFrame, raw: str, into: str) -> Parsed:
        """
        Parse CSV lines: add their columns to a frame, and a column that marks bad lines.

        A line is bad unless it has one field for each column, and each field's text is exactly a value of the column's type. Columns of the same type are
        converted as one array (:mod:`airflow_provider_streamsem.connectors.parsing.wide`).

        :param raw: SQL of the line
        :param into: prefix of the names of the added columns
        """
        fields = f"{into}_fields"
        groups: dict[tuple[DataType, bool], list[int]] = {}
        for n, field in enumerate(self._columns.fields):
            groups.setdefault((field.dataType, field.nullable), []).append(n)
        texts, values, tests = {}, {}, []
        fields_at: dict[int, str] = {}
        for g, ((kind, nullable), positions) in enumerate(groups.items()):
            text, value = f"{into}_texts_{g}", f"{into}_values_{g}"
            texts[text] = self._texts(fields, positions, kind)
            values[value] = for_each("transform", text, partial(self._value, kind=kind))
            missing = _nulls(value)
            tests.append(f"{missing} != {_nulls(text)}" if nullable else f"{missing} > 0")
            fields_at |= {n: f"get({value}, {at})" for at, n in enumerate(positions)}
        tests += [f"{fields} IS NULL", f"size({fields}) != {len(self._columns.fields)}", f"NOT is_valid_utf8({raw})"]
        steps = with_sql(with_sql(with_sql(frame, {fields: self._split(raw)}), texts), values)
        steps = with_sql(steps, {f"{into}_bad": f"coalesce({any_of(tests)}, true)"})
        values_by_name = {field.name: fields_at[n] for n, field in enumerate(self._columns.fields)}
        return Parsed(steps, values_by_name, f"{into}_bad", self._reason(fields, groups, texts, values))

    def _reason(
        self,
        fields: str,
        groups: Mapping[tuple[DataType, bool], list[int]],
        texts: Iterable[str],
        values: Iterable[str],
    ) -> str:
        """
        Return SQL of the reason why a line is not a record; see :class:`Parsed`.

        :param fields: name of the column of fields
        :param texts: names of the columns of texts, one for each group
        :param values: names of the columns of values, one for each group
        """
        size = len(self._columns.fields)
        unfit, missing = [], []
        for ((_, nullable), positions), text, value in zip(groups.items(), texts, values, strict=True):
            names = [self._columns.names[n] for n in positions]
            unfit.append(names_where(names, partial(_is_unfit, text, value)))
            missing.append(names_where([] if nullable else names, partial(_is_missing, text)))
        return reason_of(
            when((f"size({fields}) != {size}", f"concat('number of fields: ', size({fields}), ' instead of {size}')")),
            listed(UNFIT, f"concat({', '.join(unfit)})"),
            listed(MISSING, f"concat({', '.join(missing)})"),
        )

    def ends_inside_quotes(self, raw: str, *, begins_inside: bool) -> str:
        """
        Return a condition that is true if a line ends inside quotes. The next line then belongs to the same record.

        A quote begins a quoted field only at the start of a field. A quote elsewhere makes the line bad, but begins nothing.

        :param raw: SQL of the line
        :param begins_inside: whether the line begins inside quotes
        """
        if not self._quote:
            return "false"
        separator, quote, escape = map(re.escape, (self._separator, self._quote, self._escape))
        inside = (
            rf"(?:[^{quote}]|{quote}{quote})*+"
            if escape == quote
            else rf"(?:[^{quote}{escape}]|{escape}(?:[\s\S]|\z))*+"
        )
        before = rf"[{self._space}]*+" if self._trims("leading") else ""
        rest = rf"(?:(?!{separator})[\s\S])*+"
        field = rf"{separator}{before}(?:{quote}{inside}{quote}{rest}|(?!{quote}){rest})"
        prefix = self._separator + (self._quote if begins_inside else "")
        return rlike(f"concat({literal(prefix)}, {raw})", rf"^(?:{field})*+{separator}{before}{quote}{inside}\z")

    def has_values(self, raw: str) -> str:
        """Return a condition that is true if a line is a record: it contains a separator, or a character that is neither a space nor a control character."""
        is_filled = rlike(raw, r"[^\x00-\x20]")
        if self._separator.strip(_BLANK):
            return is_filled
        return f"({is_filled} OR contains({raw}, {literal(self._separator)}))"

    @property
    def _space(self) -> str:
        """The characters that a dialect with trimming removes around a field. The separator is never one of them."""
        return "".join(character for character in _SPACE if character not in self._separator)

    def _split(self, raw: str) -> str:
        """Return SQL that splits a line into fields, which keep their quotes. The result is null if the quotes violate RFC 4180."""
        separator = re.escape(self._separator)
        plain = f"split({raw}, {literal(separator)}, -1)"
        if not self._quote:
            return plain
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        inside = rf"(?:[^{quote}]|{quote}{quote})*+" if escape == quote else rf"(?:[^{quote}{escape}]|{escape}[\s\S])*+"
        before, after = (rf"[{self._space}]*+" if self._trims(side) else "" for side in ("leading", "trailing"))
        unquoted = rf"(?:(?!{separator})[^{quote}])*+"
        field = rf"{separator}({before}{quote}{inside}{quote}{after}(?={separator}|\z)|{unquoted})"
        line = f"concat({literal(self._separator)}, {raw})"
        quoted_fields = when((rlike(line, rf"^(?:{field})++\z"), f"regexp_extract_all({line}, {literal(field)}, 1)"))
        return when((f"contains({raw}, {literal(self._quote)})", quoted_fields), otherwise=plain)

    def _trims(self, side: str) -> bool:
        return self._options.get(f"ignore{side}whitespace", "false").lower() == "true"

    def _texts(self, fields: str, positions: list[int], kind: DataType) -> str:
        at = f"array({', '.join(map(str, positions))})"
        return for_each("transform", at, lambda n: self._text(f"get({fields}, {n})", kind))

    def _text(self, field: str, kind: DataType) -> str:
        """Return SQL of the text of a field without quotes; null if the field is empty or has the text that represents null."""
        if self._trims("leading"):
            field = f"ltrim({literal(self._space)}, {field})"
        if self._trims("trailing"):
            field = f"rtrim({literal(self._space)}, {field})"
        null = literal(self._options.get("nullvalue", ""))
        text = when((f"{field} != '' AND {field} != {null}", field))
        if not self._quote:
            return text
        inside = f"substr({field}, 2, length({field}) - 2)"
        if self._escape == self._quote:
            inside = f"replace({inside}, {literal(self._quote * 2)}, {literal(self._quote)})"
        else:
            quote, escape = re.escape(self._quote), re.escape(self._escape)
            inside = f"regexp_replace({inside}, {literal(f'{escape}([{quote}{escape}])')}, '$1')"
        # Only a string can be empty. Writers that quote every field write a missing value as "".
        if not isinstance(kind, StringType):
            inside = when((f"{inside} != '' AND {inside} != {null}", inside))
        return when((f"startswith({field}, {literal(self._quote)})", inside), otherwise=text)

    def _value(self, text: str, *, kind: DataType) -> str:
        value = exact.value(text, kind, self._options)
        if not isinstance(kind, exact.FLOATS):
            return value
        named = {self._options[option]: name for option, name in _INFINITE.items() if option in self._options}
        if not named:
            return value
        branches = [
            (f"{text} = {literal(given)}", f"CAST('{name}' AS {type_name(kind)})") for given, name in named.items()
        ]
        return when(*branches, otherwise=value)


def _is_unfit(texts: str, values: str, name: str, at: str) -> str:
    """Return a condition that is true if the text at a position of an array was not converted to a value."""
    return f"get({texts}, {at}) IS NOT NULL AND get({values}, {at}) IS NULL"


def _is_missing(texts: str, name: str, at: str) -> str:
    """Return a condition that is true if there is no text at a position of an array."""
    return f"get({texts}, {at}) IS NULL"


def _nulls(values: str) -> str:
    return f"size({for_each('filter', values, lambda value: f'{value} IS NULL')})"
