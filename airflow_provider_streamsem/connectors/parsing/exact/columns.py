"""
Converts a column of texts to a column of values: each is exactly the value of its text, or null. Executors run this module.

Arrow converts the texts whose form leaves no doubt. The other texts are converted one by one, by the functions of
:mod:`airflow_provider_streamsem.connectors.parsing.exact.values`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from airflow_provider_streamsem.connectors.parsing.exact.values import Settings, converter, name_of_time

_DAY = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = rf"[0-9]{{4}}-{_DAY}"
_TIME = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_NUMBER = r"-?[0-9]{1,17}(?:\.[0-9]{1,17})?"


def usual(kind: pa.DataType, settings: Settings) -> str | None:
    """Return a pattern of texts that Arrow's cast converts exactly and without an error; ``None`` if there is none."""
    if name_of_time(kind) in settings.formats:
        return None
    if is_.is_integer(kind):
        return r"-?[0-9]{1,18}"
    if is_.is_decimal(kind):
        whole, scale = kind.precision - kind.scale, kind.scale
        return (rf"-?[0-9]{{1,{whole}}}" if whole else "-?0") + (rf"(?:\.[0-9]{{1,{scale}}})?" if scale else "")
    if is_.is_floating(kind):  # neither infinite nor zero, if the number in the text is not
        return _NUMBER + (r"(?:[eE][+-]?[0-9]{1,2})?" if kind.bit_width == 64 else "")
    if is_.is_boolean(kind):
        return "true|false"
    if is_.is_date(kind):
        return _DATE
    if is_.is_timestamp(kind):
        if not kind.tz:
            return _DATE + _TIME
        return rf"{_DATE}{_TIME}Z"
    return None


class ExactColumn:
    """Converts texts to a type that is neither nested nor ``string``."""

    def __init__(self, kind: pa.DataType, settings: Settings) -> None:
        self._kind, self._convert = kind, converter(kind, settings)
        pattern = usual(kind, settings)
        self._usual = None if pattern is None else f"^(?:{pattern})$"

    def __call__(self, texts: pa.Array) -> pa.Array:
        """A value is null if its text is null or has no exact value."""
        if self._usual is None:
            return self._one_by_one(texts)
        is_usual = pc.match_substring_regex(texts, self._usual)
        if pc.all(is_usual, min_count=0).as_py():  # skips nulls
            return self._cast(texts)
        values = self._cast(pc.if_else(is_usual, texts, pa.scalar(None, texts.type)))
        others = pc.indices_nonzero(pc.invert(is_usual))
        converted = self._one_by_one(texts.take(others))
        return pc.replace_with_mask(values, pc.fill_null(pc.invert(is_usual), False), converted)

    def _cast(self, texts: pa.Array) -> pa.Array:
        if is_.is_integer(self._kind) and self._kind.bit_width < 64:
            whole = texts.cast(pa.int64())
            bound = 1 << self._kind.bit_width - 1
            fits = pc.and_(pc.greater_equal(whole, -bound), pc.less(whole, bound))
            return pc.if_else(fits, whole, pa.scalar(None, pa.int64())).cast(self._kind)
        return texts.cast(self._kind)

    def _one_by_one(self, texts: pa.Array) -> pa.Array:
        return pa.array([None if text is None else self._convert(text) for text in texts.to_pylist()], self._kind)


def conversion(kind: pa.DataType, settings: Settings) -> Any:
    """Return a function from a column of texts to a column of a type that is not nested."""
    return (lambda texts: texts) if is_.is_string(kind) else ExactColumn(kind, settings)
