"""
Parses CSV lines into columns, according to RFC 4180. Each line is parsed exactly, or refused with a reason. Executors run this module.

Arrow splits the lines at each separator. A line with a separator inside quotes, or with a quote in a wrong place, is then split alone. No parser of CSV is
used, because most of them accept quotes in any place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from airflow_provider_streamsem.connectors.parsing.exact.blocks import Block, in_order, is_utf8, reason_of
from airflow_provider_streamsem.connectors.parsing.exact.columns import conversion
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings

_SPACE = " \t"


@dataclass(frozen=True)
class Dialect:
    """
    The syntax of CSV lines.

    :param separator: one or more characters
    :param quote: one character; empty: fields are not quoted
    :param escape: the character before a quote inside a quoted field; empty or the quote: a quote is doubled
    :param null: a text that represents null, like the empty text
    :param names: texts of infinite floats and NaN
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    trims_leading: bool = False
    trims_trailing: bool = False
    names: Mapping[str, float] = field(default_factory=dict)

    @property
    def space(self) -> str:
        """The characters that are trimmed. The separator is never one of them."""
        return "".join(character for character in _SPACE if character not in self.separator)

    @property
    def inside(self) -> str:
        """A pattern of the text between the quotes of a field."""
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        if self.escape in ("", self.quote):
            return rf"[^{quote}]*(?:{quote}{quote}[^{quote}]*)*"
        return rf"[^{quote}{escape}]*(?:{escape}.[^{quote}{escape}]*)*"

    @property
    def before(self) -> str:
        """A pattern of what may precede the quote of a field."""
        return rf"[{self.space}]*" if self.trims_leading and self.space else ""

    @property
    def after(self) -> str:
        """A pattern of what may follow a quoted field."""
        return rf"[{self.space}]*" if self.trims_trailing and self.space else ""


class ExactCsv:
    """
    Parses lines. A line is bad unless it has one field for each column, each exactly a value of its type; a column that is not nullable is required.

    A line with the names of several columns is also bad: the file has a header that was not declared, or is several files in one.
    """

    def __init__(self, schema: pa.Schema, dialect: Dialect, settings: Settings) -> None:
        self._schema, self._dialect = schema, dialect
        self._conversions = [conversion(column.type, settings) for column in schema]
        self._header = dialect.separator.join(schema.names) if len(schema) > 1 else None
        if dialect.quote:
            separator, quote = re.escape(dialect.separator), re.escape(dialect.quote)
            quoted = rf"{dialect.before}{quote}{dialect.inside}{quote}{dialect.after}"
            unquoted = rf"(?:(?!{separator})[^{quote}])*" if len(dialect.separator) > 1 else rf"[^{quote}{separator}]*"
            self._field = re.compile(rf"{separator}({quoted}|{unquoted})(?={separator}|\Z)", re.DOTALL)
            self._quoted = rf"(?s)\A{quoted}\z"

    def parse(self, texts: pa.StringArray) -> Block:
        is_text = is_utf8(texts)
        fields = self._fields(pc.if_else(is_text, texts, pa.scalar(None, pa.string())))
        width = len(self._schema)
        is_whole = pc.fill_null(pc.equal(pc.list_value_length(fields), width), False)
        if self._header is not None:
            is_whole = pc.and_(is_whole, pc.fill_null(pc.not_equal(texts, self._header), False))
        rows = pc.indices_nonzero(is_whole)
        columns, reasons = self._columns(fields.filter(is_whole).flatten())
        if len(rows) == len(texts):
            return Block(columns, reasons)
        others = pc.indices_nonzero(pc.invert(is_whole))
        facts = (texts.is_valid(), is_text, pc.list_value_length(fields))
        found = zip(*(fact.take(others).to_pylist() for fact in facts), strict=True)
        why = [_reason(is_decodable, number, width) if is_given else None for is_given, is_decodable, number in found]
        bad = [*(pa.nulls(len(others), column.type) for column in self._schema), pa.array(why, pa.string())]
        *columns, reasons = in_order([(rows, [*columns, reasons]), (others, bad)])
        return Block(columns, reasons)

    def _fields(self, lines: pa.StringArray) -> pa.ListArray:
        """Split lines into fields, which keep their quotes. A list is null if the line is, or if its quotes violate RFC 4180."""
        plain = pc.split_pattern(lines, self._dialect.separator)
        if not self._dialect.quote:
            return plain
        is_doubtful = self._is_doubtful(lines, plain)
        doubtful = pc.indices_nonzero(is_doubtful)
        if len(doubtful) == 0:
            return plain
        split = pa.array([self._split(line) for line in lines.take(doubtful).to_pylist()], plain.type)
        others = pc.indices_nonzero(pc.invert(is_doubtful))
        (fields,) = in_order([(others, [plain.take(others)]), (doubtful, [split])])
        return fields

    def _is_doubtful(self, lines: pa.StringArray, plain: pa.ListArray) -> pa.BooleanArray:
        """The fields are the texts between the separators if each of them has no quote, or is a whole quoted field."""
        quote = self._dialect.quote
        if quote in self._dialect.separator:
            return pc.fill_null(pc.match_substring(lines, quote), False)
        texts, rows = plain.flatten(), pc.list_parent_indices(plain)
        has_quote = pc.match_substring(texts, quote)
        texts, rows = texts.filter(has_quote), rows.filter(has_quote)
        cut = rows.filter(pc.invert(pc.match_substring_regex(texts, self._quoted)))
        if len(cut) == 0:
            return pa.repeat(pa.scalar(False), len(lines))
        return pc.is_in(pa.array(range(len(lines)), cut.type), value_set=cut)

    def _split(self, line: str) -> list[str] | None:
        separator = self._dialect.separator
        fields = self._field.findall(separator + line)
        length = sum(map(len, fields)) + len(separator) * len(fields)
        return fields if length == len(line) + len(separator) else None

    def _columns(self, fields: pa.StringArray) -> tuple[list[pa.Array], pa.Array]:
        """The columns of the schema, and that of the reasons."""
        width = len(self._schema)
        columns = []
        unfit: dict[int, list[str]] = {}
        missing: dict[int, list[str]] = {}
        for n, (column, convert) in enumerate(zip(self._schema, self._conversions, strict=True)):
            own = fields if width == 1 else fields.take(pa.array(range(n, len(fields), width), pa.int64()))
            texts = self._texts(own, is_text=is_.is_string(column.type))
            values = self._named(texts, convert(texts))
            columns.append(values)
            if values.null_count != texts.null_count:
                _add(unfit, pc.and_(values.is_null(), texts.is_valid()), column.name)
            if not column.nullable and texts.null_count:
                _add(missing, texts.is_null(), column.name)
        lines = len(fields) // width
        if not unfit and not missing:
            return columns, pa.nulls(lines, pa.string())
        reasons = [reason_of(unfit.get(row), missing.get(row)) or None for row in range(lines)]
        return columns, pa.array(reasons, pa.string())

    def _texts(self, fields: pa.StringArray, *, is_text: bool) -> pa.StringArray:
        """Null if the field is empty or has the text that represents null."""
        dialect = self._dialect
        if dialect.space and dialect.trims_leading:
            fields = pc.utf8_ltrim(fields, characters=dialect.space)
        if dialect.space and dialect.trims_trailing:
            fields = pc.utf8_rtrim(fields, characters=dialect.space)
        texts = self._without_null(fields)
        is_quoted = pc.starts_with(fields, dialect.quote)
        if not dialect.quote or not pc.any(is_quoted).as_py():
            return texts
        inside = pc.utf8_slice_codeunits(fields, 1, -1)
        if dialect.escape in ("", dialect.quote):
            inside = pc.replace_substring(inside, dialect.quote * 2, dialect.quote)
        else:
            quote, escape = re.escape(dialect.quote), re.escape(dialect.escape)
            inside = pc.replace_substring_regex(inside, f"{escape}([{quote}{escape}])", r"\1")
        # Only a string can be empty. Writers that quote every field write a missing value as "".
        inside = inside if is_text else self._without_null(inside)
        return pc.if_else(is_quoted, inside, texts)

    def _without_null(self, texts: pa.StringArray) -> pa.StringArray:
        is_null = pc.is_in(texts, value_set=pa.array(["", self._dialect.null], pa.string()))
        return pc.if_else(is_null, pa.scalar(None, pa.string()), texts) if pc.any(is_null).as_py() else texts

    def _named(self, texts: pa.StringArray, values: pa.Array) -> pa.Array:
        if is_.is_floating(values.type):
            for text, number in self._dialect.names.items():
                values = pc.if_else(pc.fill_null(pc.equal(texts, text), False), pa.scalar(number, values.type), values)
        return values


def _reason(is_decodable: bool, number: int | None, width: int) -> str:
    if not is_decodable:
        return "not UTF-8"
    if number == width:
        return "the names of the columns"
    return "a quote inside a field" if number is None else f"number of fields: {number} instead of {width}"


def _add(names: dict[int, list[str]], rows: pa.BooleanArray, name: str) -> None:
    for row in pc.indices_nonzero(rows).to_pylist():
        names.setdefault(row, []).append(name)


class QuoteStates:
    """
    Finds lines that end inside quotes. The next line then belongs to the same record.

    A quote begins a quoted field only at the start of a field. A quote elsewhere makes the line bad, but begins nothing.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        separator, quote = re.escape(dialect.separator), re.escape(dialect.quote)
        rest = rf"(?:(?!{separator}).)*"
        self._field = re.compile(
            rf"{separator}(?:{dialect.before}{quote}(?P<inside>{dialect.inside})(?P<end>{quote})?{rest}|(?!{quote}){rest})",
            re.DOTALL,
        )

    def ends_inside(self, line: str, *, begins_inside: bool) -> bool:
        text = self._dialect.separator + (self._dialect.quote if begins_inside else "") + line
        return any(found["inside"] is not None and found["end"] is None for found in self._field.finditer(text))


def with_quote_states(
    batches: Iterator[pa.RecordBatch], *, text: str, dialect: Dialect, names: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Replace the column of lines by two columns: whether a line ends inside quotes if it begins outside of them, and if it begins inside."""
    states = QuoteStates(dialect)
    for batch in batches:
        at = batch.schema.get_field_index(text)
        lines = [data.decode(errors="replace") for data in batch.column(at).cast(pa.binary()).to_pylist()]
        columns = [
            pa.array([states.ends_inside(line, begins_inside=begins_inside) for line in lines], pa.bool_())
            for begins_inside in (False, True)
        ]
        kept = batch.drop_columns([text])
        yield pa.RecordBatch.from_arrays([*kept.columns, *columns], [*kept.schema.names, *names])
