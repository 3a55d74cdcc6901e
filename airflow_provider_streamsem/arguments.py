"""Validates arguments from users. Each function returns the value or raises :class:`InvalidError` with the argument, its value and the accepted values."""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_streamsem.errors import InvalidError

_MOST_DIGITS = 20


def text(name: str, value: object, *, pattern: str = r".*\S.*", accepted: str = "non-empty text") -> str:
    """Return text that matches ``pattern`` completely. An error omits the parts of a URL that may contain a secret."""
    if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL) or not _is_utf8(value):
        given = redacted(value) if isinstance(value, str) else type(value).__name__
        raise InvalidError(f"{name} is not valid", given=given, accepted=accepted)
    return value


def redacted(value: str) -> str:
    """
    Return a URL in which ``…`` replaces everything before the last ``@``, which may contain a password, and the query string.

    If an ``@`` follows a ``?`` or ``#``, it may end a password or belong to the query string. Then only the scheme is returned.
    """
    path, mark, rest = next(iter(re.findall(r"([^?#]*)([?#]?)(.*)", value, re.DOTALL)))
    if "@" in rest:
        scheme, separator, _ = path.partition("://")
        return f"{scheme}{separator}…" if separator else "…"
    _, at, after = path.rpartition("@")
    return f"{'…' + at if at else ''}{after}{mark + '…' if mark else ''}"


def _is_utf8(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def exactly_one(where: str, **given: object) -> None:
    """
    Reject arguments of which not exactly one is given. ``where``: what has the arguments, with a colon; may be empty. ``given``: name → value or ``None``.
    """
    if sum(value is not None for value in given.values()) != 1:
        *names, last = given
        raise InvalidError(f"{where} exactly one of {', '.join(names)} and {last} must be given".strip())


def choice(name: str, value: object, accepted: Collection[str]) -> str:
    """Return ``value`` if it is one of the accepted strings."""
    if not isinstance(value, str) or value not in accepted:
        raise InvalidError(f"{name} is not one of the accepted values", given=value, accepted=sorted(accepted))
    return value


def integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return an integer between ``least`` and ``most``, both inclusive. ``most=None`` means no upper bound."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise InvalidError(f"{name} must be an integer {bounds}", given=value)
    return value


def integer_or_text(name: str, value: object, *, least: int) -> int:
    """Return an integer of at least ``least``, given as an integer or as decimal text. Airflow templates render to text."""
    is_text = isinstance(value, str) and value.strip().isdecimal() and len(value) <= _MOST_DIGITS
    return integer(name, int(str(value)) if is_text else value, least=least)


def seconds(name: str, value: object, *, least: int = 1) -> int:
    """Return an integer number of seconds, at least ``least``, given as a number or a ``timedelta``."""
    amount: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if type(amount) not in (int, float) or not float(amount).is_integer():
        raise InvalidError(
            f"{name} must be an integer number of seconds, or a timedelta of whole seconds", given=str(value)
        )
    return integer(name, int(amount), least=least)


def duration(seconds: int) -> str:
    """Return a number of seconds as text, such as ``24 h``."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def interval(name: str, value: object) -> float:
    """Return a finite number of seconds greater than 0, given as a number or as text."""
    try:
        found = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise InvalidError(f"{name} must be a number of seconds greater than 0", given=value)
    return found


def time_ms(name: str, value: object) -> int:
    """Return a ``datetime`` or an ISO 8601 timestamp, either with a zone, in milliseconds since the epoch."""
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        accepted = 'a time with a zone, such as "2026-01-31T12:00:00+00:00"'
        raise InvalidError(f"{name} must be a time with a zone", given=str(value)[:40], accepted=accepted)
    # A float would round some milliseconds down, and differences of the times of Airflow cannot be divided.
    return calendar.timegm(at.utctimetuple()) * 1000 + at.microsecond // 1000


def timestamp(name: str, value: object) -> str:
    """Return a time with a zone as ISO 8601 text. A ``datetime`` is accepted too, because a time without quotes in TOML is one."""
    time_ms(name, value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def flag(name: str, value: object) -> bool:
    """Return a ``bool``. Other truthy or falsy values are rejected."""
    if type(value) is not bool:
        raise InvalidError(f"{name} must be true or false", given=value)
    return value


def text_list(name: str, value: object) -> tuple[str, ...]:
    """
    Return a tuple of strings, possibly empty. Two strings that differ only in case are rejected. A single string is rejected too, because Python would
    iterate over its characters.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) and v for v in value):
        raise InvalidError(
            f"{name} must be a list of non-empty strings",
            given=value if isinstance(value, str) else type(value).__name__,
        )
    if len({v.lower() for v in value}) != len(value):
        raise InvalidError(f"{name} contains a name twice (case is ignored)", given=list(value))
    return tuple(value)


def options(name: str, value: object) -> Mapping[str, str]:
    """Return a mapping of text to text."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise InvalidError(f"{name} must map text to text", given=type(value).__name__)
    return dict(value)


def known_keys(where: str, given: Mapping[str, Any], accepted: Collection[str]) -> None:
    """Reject keys that are not in ``accepted``."""
    unknown = sorted(set(given) - set(accepted))
    if unknown:
        raise InvalidError(f"{where} contains unknown names", given=unknown, accepted=sorted(accepted))
