"""Formats rows as lines of JSON or CSV that Spark's readers parse."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from airflow_provider_streamsem.errors import InvalidError


def json_line(row: Mapping[str, Any]) -> str:
    """
    Return a row as JSON: dates and times in ISO format, decimals as text, binary values in base64.

    :raises InvalidError: a value cannot be written as text
    """
    return json.dumps(dict(row), default=_plain)


def csv_line(row: Mapping[str, Any], columns: Sequence[str], options: Mapping[str, str]) -> str:
    """
    Return a row as CSV.

    :param columns: names of the columns in the order of the file
    :param options: options of Spark's reader, of which ``sep``, ``quote``, ``escape`` and ``nullValue`` are used
    :raises InvalidError: a value cannot be written as text
    """
    lower_options = {name.lower(): value for name, value in options.items()}
    separator = lower_options.get("sep", lower_options.get("delimiter", ","))
    quote = lower_options.get("quote", '"')
    escape = lower_options.get("escape", quote)

    def cell(value: Any) -> str:
        if value is None:
            return lower_options.get("nullvalue", "")
        text = json.dumps(value) if isinstance(value, bool) else str(_plain(value))
        if text and not any(sign in text for sign in (separator, quote, escape, "\r", "\n")):
            return text
        escaped = text if escape == quote else text.replace(escape, escape * 2)
        return quote + escaped.replace(quote, escape + quote) + quote

    return separator.join(cell(row.get(name)) for name in columns)


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (int, float, str)):
        return value
    raise InvalidError("a row contains a value that cannot be written as text", given=type(value).__name__)
