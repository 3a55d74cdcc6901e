"""The predicate of an erasure: it selects rows by the values of columns, in the same way in every engine."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN = re.compile(
    r"""\s*(?: (?P<name>`(?:[^`]|``)+`) | (?P<text>'(?:[^']|'')*') | (?P<number>[+-]?\d+)(?![\w.]) | (?P<word>[^\W\d]\w*) | (?P<sign>[=(),]) )""",
    re.VERBOSE,
)
_INTEGERS = ("byte", "short", "integer", "long")
_DO = "write conditions such as user_id = 42, name = 'O''Brien' or id IN (1, 2), joined by AND."


@dataclass(frozen=True, slots=True)
class Term:
    """
    One condition of a predicate.

    :param column: the name of a top-level column
    :param values: strings or integers, all of one type; at least one
    """

    column: str
    values: tuple[str, ...] | tuple[int, ...] = field(repr=False)  # values must not appear in an error or a log

    @property
    def is_text(self) -> bool:
        return isinstance(self.values[0], str)


@dataclass(frozen=True, slots=True)
class Predicate:
    """
    Selects the rows in which each column has one of some values.

    A value equals a string or an integer exactly: no type is converted, upper and lower case differ, and null equals nothing. Upper and lower case differ in
    names of columns, too.

    :param terms: a row is selected if all of them hold
    """

    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, where: object) -> Predicate:
        """
        Parse a predicate in SQL: ``column = value`` and ``column IN (value, …)``, joined by ``AND``.

        A value is an integer or a string in single quotes. A column name with other characters than letters, digits and ``_`` is quoted by backticks.

        :raises InvalidError: the text is not such a predicate. The error does not contain values
        """
        tokens = _tokens(arguments.text("where", where))
        terms: list[Term] = []
        while True:
            terms.append(_term(tokens))
            if not tokens:
                break
            if not _is_word(tokens.pop(0), "AND"):
                raise _error("conditions are not joined by AND")
        repeated = sorted({term.column for term in terms if [t.column for t in terms].count(term.column) > 1})
        if repeated:
            raise _error("a column has two conditions; use IN for several values", columns=repeated)
        return cls(tuple(terms))

    @property
    def columns(self) -> Sequence[str]:
        return [term.column for term in self.terms]

    def applies_to(self, schema: str, where: str) -> bool:
        """
        Return whether rows have the columns of the predicate. ``False``: at least one is missing, so no row is selected.

        :param schema: their columns, as schema JSON in Spark's form
        :param where: names the sink in an error
        :raises InvalidError: a column has a type whose values cannot equal those of the predicate
        """
        types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
        if not {*self.columns} <= types.keys():
            return False
        for term in self.terms:
            self.check_type(
                term, where, is_text=types[term.column] == "string", is_integer=types[term.column] in _INTEGERS
            )
        return True

    def check_type(self, term: Term, where: str, *, is_text: bool, is_integer: bool) -> None:
        """
        Refuse a column whose values cannot equal those of a term.

        :raises InvalidError: the column has neither texts nor integers, or not those of the term
        """
        if not (is_text if term.is_text else is_integer):
            expected = (
                "a string in single quotes"
                if is_text
                else "an integer"
                if is_integer
                else "no value: only strings and integers can be compared"
            )
            summary = "the type of a column does not fit the values of the predicate; no row was erased there"
            raise InvalidError(summary, location=where, column=term.column, accepts=expected).advising(
                "erase again with a value of this type. For a column of another type, delete the rows with a statement of your own."
            )

    def selected(self, rows: pa.Table, where: str = "") -> Any:
        """
        Return for each row of a pyarrow table whether it is selected. A column that the table lacks is null.

        :param where: names the table in an error
        :raises InvalidError: the type of a column does not fit
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        selected: Any = None
        for term in self.terms:
            if term.column not in rows.schema.names:
                return pa.repeat(False, rows.num_rows)
            column = rows[term.column]
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            self.check_type(term, where, is_text=is_text, is_integer=pa.types.is_integer(column.type))
            wanted = pa.array(term.values, pa.large_string() if term.is_text else pa.int64())
            found = pc.is_in(column.cast(wanted.type), value_set=wanted)
            selected = found if selected is None else pc.and_(selected, found)
        return selected

    def count(self, parts: Iterable[pa.Table], where: str = "") -> int:
        """Return the number of selected rows in pyarrow tables; see :meth:`selected`."""
        import pyarrow.compute as pc

        return sum(pc.sum(self.selected(part, where)).as_py() or 0 for part in parts)

    def others(self, rows: pa.Table, where: str = "") -> pa.Table:
        """Return the rows of a pyarrow table that are not selected; see :meth:`selected`."""
        import pyarrow.compute as pc

        return rows.filter(pc.invert(self.selected(rows, where)))

    def is_in_text(self, text: str) -> bool:
        """
        Return whether a record that was not parsed contains a value of each condition, as a whole word: plain, or as JSON writes it.

        Such a record has no columns. So this finds every record that contains the values as text, and may find records in which they mean something else.
        Escapes of JSON and XML and the doubled quotes of CSV and SQL are also searched without the escapes.
        """
        texts = {text, _unescaped(text), html.unescape(text), text.replace('""', '"').replace("''", "'")}
        return all(any(_contains(each, value) for value in term.values for each in texts) for term in self.terms)

    def names_value_in(self, text: str) -> bool:
        """
        Return whether a text contains a value that must not remain, as a whole word. Values with fewer than six characters are not sought, because they occur
        by chance. With several conditions, none is sought: each value may remain in other rows.
        """
        values = self.terms[0].values if len(self.terms) == 1 else ()
        return any(len(str(value)) >= 6 and _contains(text, value) for value in values)


def _contains(text: str, value: str | int) -> bool:
    if isinstance(value, int):  # no part of another number, and of no date or version
        return re.search(rf"(?<![\w.+-]){value}(?![\w-]|\.\d)", text) is not None
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return any(form and re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text) for form in forms)


def _unescaped(text: str) -> str:
    """Return a text without the escapes of JSON strings. A surrogate pair is one character."""
    decoded = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", r"\1", decoded).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _tokens(where: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    rest = where.rstrip()
    while at < len(rest):
        match = _TOKEN.match(rest, at)
        if match is None:
            raise _error("the predicate cannot be parsed", position=at)
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


def _term(tokens: list[tuple[str, str]]) -> Term:
    column = _column(tokens)
    operator = tokens.pop(0) if tokens else ("", "")
    if operator == ("sign", "="):
        values = [_value(tokens)]
    elif _is_word(operator, "IN") and tokens and tokens.pop(0) == ("sign", "("):
        values = [_value(tokens)]
        while (sign := tokens.pop(0) if tokens else ("", "")) == ("sign", ","):
            values.append(_value(tokens))
        if sign != ("sign", ")"):
            raise _error("the values of IN are not separated by commas, or not closed by a parenthesis", column=column)
    else:
        raise _error("a column is followed by neither = nor IN with a list in parentheses", column=column)
    if len({type(value) for value in values}) > 1:
        raise _error("the list of IN mixes strings and integers", column=column)
    return Term(column, tuple(values))  # type: ignore[arg-type]


def _column(tokens: list[tuple[str, str]]) -> str:
    kind, text = tokens.pop(0) if tokens else ("", "")
    if kind == "name":
        return text[1:-1].replace("``", "`")
    if kind != "word":
        raise _error("a condition does not begin with a column")
    return text


def _value(tokens: list[tuple[str, str]]) -> str | int:
    kind, text = tokens.pop(0) if tokens else ("", "")
    if kind == "text":
        return text[1:-1].replace("''", "'")
    if kind != "number" or not -(2**63) <= int(text) < 2**63:
        raise _error("a value is neither an integer of 64 bits nor a string in single quotes")
    return int(text)


def _is_word(token: tuple[str, str], word: str) -> bool:
    return token[0] == "word" and token[1].upper() == word


def _error(summary: str, **facts: object) -> InvalidError:
    return InvalidError(f"where: {summary}; nothing was erased", **facts).advising(_DO)
