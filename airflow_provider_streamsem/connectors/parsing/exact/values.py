"""
Converts text to a value: exactly the value of the text, or none. Needs only the standard library and pyarrow, because executors run this module.

``docs/connectors/files-source.md`` lists the accepted forms. Values are in the form that pyarrow accepts for the type: days since 1970 for a date, microseconds
since 1970 for a time.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as is_

Convert: TypeAlias = Callable[[str], Any]
"""A function from a text to its value. It returns ``None`` if the type has no value that is exactly that of the text."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?")
_NOT_ZERO = re.compile(r"[^eE]*[1-9]")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6})0*)?)?)?(.*)", re.DOTALL
)
_ZONE = re.compile(r"([+-])([0-9]{2})(?::?([0-9]{2})(?::([0-9]{2}))?)?")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?")
_LONGEST_INTEGER = 19
_DAYS_OF_400_YEARS = 146_097
_SECONDS_OF_DAY = 86_400
_MICROS = 1_000_000
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_LARGEST_OFFSET = 18 * 3_600


class Format(Protocol):
    """A format of dates or times."""

    def parser(self) -> Convert: ...


@dataclass(frozen=True)
class Settings:
    """Time zone of times without a zone, as Spark accepts it, and formats of the user by ``date``, ``timestamp`` and ``timestamp_ntz``."""

    zone: str = "UTC"
    formats: Mapping[str, Format] = field(default_factory=dict)


def converter(kind: pa.DataType, settings: Settings) -> Convert:
    """Return the conversion of texts to a type that is neither nested nor ``string``."""
    own = settings.formats.get(name_of_time(kind))
    if own is not None:
        return own.parser()
    if is_.is_integer(kind):
        return _integers(kind)
    if is_.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if is_.is_floating(kind):
        return float32 if kind.bit_width == 32 else float64
    if is_.is_boolean(kind):
        return lambda text: {"true": True, "false": False}.get(text.lower()) if text.isascii() else None
    if is_.is_date(kind):
        return days
    if is_.is_timestamp(kind):
        zone = zone_of(settings.zone) if kind.tz else None
        return lambda text: _micros(text, zone)
    assert is_.is_binary(kind), kind
    return lambda text: base64.b64decode(text) if _BASE64.fullmatch(text) else None


def name_of_time(kind: pa.DataType) -> str:
    """Return the name of a type of dates or times in Spark; ``""`` for any other type."""
    if is_.is_date(kind):
        return "date"
    return "" if not is_.is_timestamp(kind) else "timestamp" if kind.tz else "timestamp_ntz"


def _integers(kind: pa.DataType) -> Convert:
    least = -(1 << kind.bit_width - 1)

    def integer(text: str) -> int | None:
        if not _INTEGER.fullmatch(text):
            return None
        digits = text.lstrip("+-").lstrip("0")
        if len(digits) > _LONGEST_INTEGER:  # Python parses digits in quadratic time
            return None
        value = int(digits or 0) * (-1 if text[0] == "-" else 1)
        return value if least <= value < -least else None

    return integer


def _decimals(precision: int, scale: int) -> Convert:
    def decimal(text: str) -> Decimal | None:
        parts = _DECIMAL.fullmatch(text)
        if parts is None or not (parts[2] or parts[3]):
            return None
        fraction, exponent = (parts[3] or "").rstrip("0"), int(parts[4] or 0)
        digits = (parts[2] + fraction).lstrip("0")
        significant = digits.rstrip("0")
        if not significant:
            return Decimal(0)
        after = len(fraction) - exponent - (len(digits) - len(significant))
        if after > scale or len(significant) - after > precision - scale:
            return None
        return Decimal((parts[1] == "-", tuple(map(int, significant)), -after))

    return decimal


def float64(text: str) -> float | None:
    """Return the nearest double; ``None`` if it is infinite, or if it is zero although the number in the text is not."""
    if not _NUMBER.fullmatch(text):
        return None
    nearest = float(text)
    return None if math.isinf(nearest) or (nearest == 0 and _NOT_ZERO.match(text)) else nearest


def float32(text: str) -> float | None:
    """Return the nearest float, as :func:`float64` does."""
    if not _NUMBER.fullmatch(text):
        return None
    # Rounding the nearest double to a float can differ from the nearest float.
    nearest: float = pa.scalar(text.lstrip("+")).cast(pa.float32()).as_py()
    return None if math.isinf(nearest) or (nearest == 0 and _NOT_ZERO.match(text)) else nearest


def days(text: str) -> int | None:
    """Return the days since 1970 of a date such as ``2024-02-29``."""
    parts = _DATE.fullmatch(text)
    return None if parts is None else days_of(int(parts[1]), int(parts[2]), int(parts[3]))


def days_of(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a day in the proleptic Gregorian calendar; ``None`` if there is no such day."""
    cycle = 0 if year > 0 else -(year // 400) + 1
    try:
        shifted = datetime.date(year + cycle * 400, month, day)
    except (ValueError, OverflowError):
        return None
    return shifted.toordinal() - _EPOCH - cycle * _DAYS_OF_400_YEARS


def _micros(text: str, zone: datetime.tzinfo | None) -> int | None:
    """Return microseconds since 1970. ``zone=None``: the type has no zone, and a text with a zone has no value."""
    parts = _TIME.fullmatch(text)
    if parts is None:
        return None
    date, hour, minute, second, fraction, rest = parts.groups()
    day = days(date)
    if day is None or (hour is None and rest):
        return None
    local = micros_of(day, int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "").ljust(6, "0")))
    if local is None or zone is None:
        return local if not rest else None
    if not rest:
        return in_zone(local, zone)
    offset = 0 if rest in ("Z", "UTC", " UTC") else offset_of(rest)
    return None if offset is None else local - offset * _MICROS


def micros_of(day: int, hour: int, minute: int, second: int, micros: int) -> int | None:
    """Return the microseconds since 1970 of a local time; ``None`` if there is no such time of day."""
    if hour > 23 or minute > 59 or second > 59:
        return None
    return ((day * 24 + hour) * 60 + minute) * 60 * _MICROS + second * _MICROS + micros


def offset_of(text: str) -> int | None:
    """Return the seconds of an offset such as ``+02:00``; ``None`` if it is none."""
    parts = _ZONE.fullmatch(text)
    if parts is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()[1:])
    total = hours * 3_600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _LARGEST_OFFSET:
        return None
    return -total if parts[1] == "-" else total


def zone_of(name: str) -> datetime.tzinfo:
    """Return a time zone by its name or offset in Spark."""
    if name in ("Z", "UTC", "GMT", "UT", "Etc/UTC"):
        return datetime.timezone.utc
    offset = offset_of(re.sub(r"^(?:UTC|GMT|UT)(?=[+-])", "", name))
    if offset is not None:
        return datetime.timezone(datetime.timedelta(seconds=offset))
    try:
        return ZoneInfo(name)
    except (OSError, KeyError) as error:
        raise ValueError(f"unknown time zone: {name}") from error


def in_zone(local: int, zone: datetime.tzinfo) -> int | None:
    """
    Return the instant of a local time: the first if it occurs twice, ``None`` if daylight saving time skips it. Both are microseconds since 1970.
    """
    if zone is datetime.timezone.utc:
        return local
    seconds, micros = divmod(local, _MICROS)
    day, second = divmod(seconds, _SECONDS_OF_DAY)
    ordinal = day + _EPOCH
    # In the years that Python does not know, a zone has the offset of a year of the same calendar.
    cycle = -((ordinal - 366) // _DAYS_OF_400_YEARS) if ordinal < 366 else 0
    at = datetime.datetime.fromordinal(ordinal + cycle * _DAYS_OF_400_YEARS) + datetime.timedelta(seconds=second)
    offset = at.replace(tzinfo=zone).utcoffset()
    assert offset is not None
    instant = seconds - int(offset.total_seconds())
    back = (at - offset).replace(tzinfo=datetime.timezone.utc).astimezone(zone).replace(tzinfo=None)
    return instant * _MICROS + micros if back == at else None
