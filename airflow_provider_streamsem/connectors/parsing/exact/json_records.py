"""
Parses JSON text into values in plain Python. A record is parsed exactly, or refused with a reason. Executors run this module.

Numbers stay text until the type of their column is known. So no digit is lost.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from airflow_provider_streamsem.connectors.parsing.exact.blocks import Block, reason_of
from airflow_provider_streamsem.connectors.parsing.exact.columns import ExactColumn
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings, converter, name_of_time

DEEPEST = 1_000
"""Maximum number of nested objects and arrays of a record."""
NO_OBJECT = "no JSON object"
_NOTHING: dict[str, Any] = {}
_Number = bytes
"""The type of parsed numbers: their digits, or one of the names of an infinite float or NaN. Python creates bytes faster than objects of a class of ours."""
_number_of = str.encode
SINGLE_QUOTES, UNQUOTED_NAMES, LEADING_ZEROS, NON_NUMERIC = (
    "allowsinglequotes", "allowunquotedfieldnames", "allownumericleadingzeros", "allownonnumericnumbers"
)  # fmt: skip
LENIENT = (SINGLE_QUOTES, UNQUOTED_NAMES, LEADING_ZEROS, NON_NUMERIC)

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
# A string that does not end reaches to the end of the text. Otherwise each quote in it would be tried as the beginning of a string.
_DOUBLE, _SINGLE = (rf"{quote}[^{quote}\\]*(?:\\.[^{quote}\\]*)*(?:{quote}|\\?\Z)" for quote in ('"', "'"))
_STRING = re.compile(_DOUBLE, re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_NAMES_OF_NON_NUMBERS = {"NaN": "nan", "INF": "inf", "+INF": "inf", "-INF": "-inf"} | {
    f"{sign}Infinity": f"{sign}inf" for sign in ("", "+", "-")
}


class BadRecordError(Exception):
    """A text is not a record. The message is the reason, and has no values of the record."""


class _Repeated(dict[str, Any]):
    """An object in which a name occurs twice. The last value counts."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class Unfit(Exception):
    """No value of the column's type is exactly the given one."""


class JsonObjects:
    """Parses texts into objects. Numbers stay text. ``lenient`` is a part of :data:`LENIENT`."""

    def __init__(self, lenient: frozenset[str] = frozenset()) -> None:
        self._lenient = _Lenient(lenient) if lenient else None
        constant = _number_of if NON_NUMERIC in lenient else _refuse
        self._decoder = json.JSONDecoder(
            parse_float=_number_of, parse_int=_number_of, parse_constant=constant, object_pairs_hook=_object
        )

    def parsed(self, text: str) -> dict[str, Any]:
        """Return the only object of a text, or raise :class:`BadRecordError`."""
        strict = text if self._lenient is None else self._lenient.strict(text)
        if _has_half_of_pair(strict):
            raise BadRecordError("half of a surrogate pair")
        if strict.count("[") + strict.count("{") > DEEPEST and is_too_deep(strict):
            raise BadRecordError(f"more than {DEEPEST} nested objects and arrays")
        try:
            record = self._decoder.decode(strict)
        except ValueError as error:
            is_longer = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
            raise BadRecordError("text after the JSON object" if is_longer else NO_OBJECT) from None
        if not isinstance(record, dict):
            raise BadRecordError(NO_OBJECT)
        return record


class ExactJson:
    """Parses records of a schema. A column or nested field that is not nullable is required. ``lenient`` is a part of :data:`LENIENT`."""

    def __init__(self, schema: pa.Schema, settings: Settings, lenient: frozenset[str] = frozenset()) -> None:
        self._columns = [(field, column_reader(field.type, settings, lenient)) for field in schema]
        self._objects = JsonObjects(lenient)

    def parse(self, texts: Sequence[str | None]) -> Block:
        """A text is bad unless it is one JSON object whose values the columns hold exactly. A null has null columns, and is not bad."""
        with deep_recursion():
            return self._parsed(texts)

    def _parsed(self, texts: Sequence[str | None]) -> Block:
        records: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for text in texts:
            record, reason = _NOTHING, None
            try:
                record = _NOTHING if text is None else self._objects.parsed(text)
            except BadRecordError as error:
                reason = str(error)
            records.append(record)
            reasons.append(reason)
        columns = []
        unfit: dict[int, list[str]] = {}
        missing: dict[int, list[str]] = {}
        for field, column_of in self._columns:
            given = [record.get(field.name) for record in records]
            values = column_of(given)
            columns.append(values)
            nulls = given.count(None)
            if values.null_count != nulls:
                for row in pc.indices_nonzero(values.is_null()).to_pylist():
                    if given[row] is not None:
                        unfit.setdefault(row, []).append(field.name)
            if nulls and not field.nullable:
                for row, value in enumerate(given):
                    if value is None and texts[row] is not None:
                        missing.setdefault(row, []).append(field.name)
        for row in {**unfit, **missing}:
            if reasons[row] is None:
                reasons[row] = reason_of(unfit.get(row), missing.get(row))
        return Block(columns, pa.array(reasons, pa.string()))


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Within the block, Python can parse and convert :data:`DEEPEST` nested objects and arrays."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 4 * DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _has_half_of_pair(text: str) -> bool:
    """Half of a surrogate pair is not a character."""
    if "\\u" not in text:
        return False
    high_ends = -1
    for escape in _ESCAPE.finditer(text):
        unit = int(escape[1] or "0", 16)
        is_low = 0xDC00 <= unit < 0xE000
        follows_high = high_ends == escape.start()
        if is_low != follows_high or (high_ends != -1 and not follows_high):
            return True
        high_ends = escape.end() if 0xD800 <= unit < 0xDC00 else -1
    return high_ends != -1


def is_too_deep(text: str) -> bool:
    """Return whether a JSON text has more than :data:`DEEPEST` objects and arrays inside each other, or has brackets without a counterpart."""
    brackets = _STRING.sub("", text).encode(errors="replace").translate(_BRACKETS, _OTHERS)
    for _ in range(DEEPEST):
        inner = brackets.replace(b"[]", b"")  # removes the innermost ones
        if len(inner) == len(brackets):
            break
        brackets = inner
    return bool(brackets)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(pairs)


def column_reader(kind: pa.DataType, settings: Settings, lenient: frozenset[str]) -> Callable[[list[Any]], pa.Array]:
    """Return a function from the parsed values of a column to the column. A value that does not fit exactly becomes null."""
    if is_.is_string(kind):
        return lambda given: pa.array([v if v is None or type(v) is str else _text(v) for v in given], kind)
    if is_.is_boolean(kind):
        return lambda given: pa.array([v if isinstance(v, bool) else None for v in given], kind)
    names_of_floats = is_.is_floating(kind) and NON_NUMERIC in lenient
    if is_.is_nested(kind) or names_of_floats:
        value_of = value_reader(kind, settings, lenient)
        return lambda given: pa.array([None if v is None else _or_none(value_of, v) for v in given], kind)
    convert, accepted = ExactColumn(kind, settings), _accepted(kind, settings)

    def column(given: list[Any]) -> pa.Array:
        return convert(pa.array([v if type(v) in accepted else None for v in given], pa.string()))

    return column


def _or_none(value_of: Callable[[Any], Any], value: Any) -> Any:
    try:
        return value_of(value)
    except Unfit:
        return None


def _accepted(kind: pa.DataType, settings: Settings) -> frozenset[type]:
    if is_.is_integer(kind) or is_.is_floating(kind):
        return frozenset({_Number})
    both = is_.is_decimal(kind) or name_of_time(kind) in settings.formats
    return frozenset({_Number, str} if both else {str})


def value_reader(kind: pa.DataType, settings: Settings, lenient: frozenset[str]) -> Callable[[Any], Any]:
    """Return a function from a parsed value, which is not null, to the value of a type. The function raises ``Unfit``."""
    if is_.is_struct(kind):
        return struct_reader([(f.name, value_reader(f.type, settings, lenient), f.nullable) for f in kind])
    if is_.is_list(kind):
        return list_reader(value_reader(kind.value_type, settings, lenient))
    if is_.is_map(kind):
        return map_reader(value_reader(kind.item_type, settings, lenient))
    if is_.is_string(kind):
        return _text
    if is_.is_boolean(kind):
        return lambda value: _of_type(value, bool)
    convert, accepted = converter(kind, settings), _accepted(kind, settings)
    if is_.is_floating(kind) and NON_NUMERIC in lenient:
        return _float(convert)

    def scalar(value: Any) -> Any:
        return _fitting(convert(_text(value)) if type(value) in accepted else None)

    return scalar


def struct_reader(fields: Sequence[tuple[str, Callable[[Any], Any], bool]]) -> Callable[[Any], Any]:
    """Return a function as :func:`value_reader` does. Each field has a name, the function of its values, and whether it may be null."""

    def struct(value: Any) -> dict[str, Any]:
        found = _of_type(value, dict)
        values = {}
        for name, value_of, is_nullable in fields:
            inner = found.get(name)
            if inner is None and not is_nullable:
                raise Unfit
            values[name] = None if inner is None else value_of(inner)
        return values

    return struct


def list_reader(value_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function as :func:`value_reader` does, from that of the elements, which may be null."""
    return lambda value: [None if item is None else value_of(item) for item in _of_type(value, list)]


def map_reader(value_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function as :func:`value_reader` does, from that of the values, which may be null. A map with a key twice is refused."""

    def pairs(value: Any) -> list[tuple[str, Any]]:
        found = _of_type(value, dict)
        if isinstance(found, _Repeated):
            raise Unfit
        return [(name, None if inner is None else value_of(inner)) for name, inner in found.items()]

    return pairs


def _float(convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    def number(value: Any) -> Any:
        text = _text(value)
        name = text.replace('"', "") if isinstance(value, (str, _Number)) else ""
        if name in _NAMES_OF_NON_NUMBERS:
            return float(_NAMES_OF_NON_NUMBERS[name])
        return _fitting(convert(text) if isinstance(value, _Number) else None)

    return number


def _of_type(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise Unfit
    return value


def _fitting(value: Any) -> Any:
    if value is None:
        raise Unfit
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    if isinstance(value, _Number):
        return value.decode()
    # Lists, and no generators: a nested call from C code has a lower limit in Python 3.12.
    if isinstance(value, dict):
        pairs = value.pairs if isinstance(value, _Repeated) else value.items()
        members = [f"{json.dumps(name, ensure_ascii=False)}:{_compact(inner)}" for name, inner in pairs]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_compact(inner) for inner in value]) + "]"
    return json.dumps(value, ensure_ascii=False)


class _Lenient:
    """Rewrites the syntax of Jackson's features into strict JSON. A token that is neither a string, a number nor a name stays as it is."""

    def __init__(self, lenient: frozenset[str]) -> None:
        self._lenient = lenient
        strings = [_DOUBLE, *([_SINGLE] if SINGLE_QUOTES in lenient else [])]
        between = r"\s:{}\[\],\"" + ("'" if SINGLE_QUOTES in lenient else "")
        self._token = re.compile(
            rf"(?P<string>{'|'.join(strings)})|(?P<word>[^{between}]+)(?P<name>[ \t\r\n]*:)?", re.DOTALL
        )
        self._zeros = re.compile(r"(-?)0+(?=[0-9])(.*)", re.DOTALL)

    def strict(self, text: str) -> str:
        return self._token.sub(self._rewritten, text)

    def _rewritten(self, token: re.Match[str]) -> str:
        string, word, name = token["string"], token["word"], token["name"]
        if string is not None:
            return _in_double_quotes(string) if string[0] == "'" else string
        if name is not None:
            return f'"{word}"{name}' if UNQUOTED_NAMES in self._lenient and "\\" not in word else token[0]
        zeros = self._zeros.fullmatch(word) if LEADING_ZEROS in self._lenient else None
        if zeros is not None:
            word = f"{zeros[1]}{zeros[2]}"
        if NON_NUMERIC in self._lenient and word in _NAMES_OF_NON_NUMBERS:
            return f'"{word}"' if word not in ("NaN", "Infinity", "-Infinity") else word
        return word


def _in_double_quotes(single: str) -> str:
    inside = re.sub(
        r"\\'|\"|\\.", lambda found: {"\\'": "'", '"': '\\"'}.get(found[0], found[0]), single[1:-1], flags=re.DOTALL
    )
    return f'"{inside}"'
