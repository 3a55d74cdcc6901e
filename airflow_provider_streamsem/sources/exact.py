"""Text to values on Spark: a value is exactly what its text says, or null. Imports pyspark: only engines reach this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

INTEGERS = (ByteType, ShortType, IntegerType, LongType)
FLOATS = (FloatType, DoubleType)
_FORMATS = {DateType: "dateformat", TimestampType: "timestampformat", TimestampNTZType: "timestampntzformat"}

_INTEGER = r"^[+-]?[0-9]++\z"
_NUMBER = r"^[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?\z"
# Longer exponents make Java compute powers of ten for minutes.
_SCIENTIFIC = r"^[+-]?[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{1,3}\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*+)?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2}|:[0-9]{2}:[0-9]{2})?| ?UTC)"  # old offsets have seconds
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?\z"


def value(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """
    The value of a text, or null where the text is not exactly a value of this type (``docs/sources/files.md`` lists the forms).

    :param options: names in lower case; ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat``, ``timeZone`` and ``locale`` count
    """
    if isinstance(kind, INTEGERS):
        return F.when(text.rlike(_INTEGER), text.try_cast(kind))
    if isinstance(kind, DecimalType):
        return _decimal(text, kind)
    if isinstance(kind, FLOATS):
        return _float(text, kind)
    if isinstance(kind, BooleanType):
        return F.when(text.rlike(r"^(?i:true|false)\z"), text.try_cast(kind))
    if isinstance(kind, BinaryType):
        return F.when(text.rlike(_BASE64), F.unbase64(text))
    if own_format(kind, options) is not None:
        return _in_format(text, kind, options)
    if isinstance(kind, DateType):
        return F.when(text.rlike(rf"{_DATE}\z"), text.try_cast(kind))
    if isinstance(kind, TimestampNTZType):
        return F.when(text.rlike(rf"{_DATE}(?:{_TIME})?\z"), text.try_cast(kind))
    if isinstance(kind, TimestampType):
        zoned = F.when(_is_usual(text) | text.rlike(rf"{_DATE}{_TIME}{_ZONE}\z"), text.try_cast(kind))
        return zoned.when(text.rlike(rf"{_DATE}(?:{_TIME})?\z"), _local(text, options.get("timezone")))
    assert isinstance(kind, StringType)
    return text


def any_of(tests: Sequence[Column]) -> Column:
    """Whether one of the tests is true, as a tree of small depth: Spark walks an expression recursively, and a file may have thousands of columns."""
    tests = tests or [F.lit(False)]
    if len(tests) == 1:
        return tests[0]
    middle = len(tests) // 2
    return any_of(tests[:middle]) | any_of(tests[middle:])


def own_format(kind: DataType, options: Mapping[str, str]) -> str | None:
    """The option that holds a format of the user's own for this type, or ``None``: then ISO 8601 counts."""
    name = _FORMATS.get(type(kind))
    return name if name in options else None


def _decimal(text: Column, kind: DecimalType) -> Column:
    """Digits after the point that the column cannot hold must be zeros: Spark's own cast rounds."""
    scale = kind.scale
    after = rf"\.[0-9]{{0,{scale}}}0*+" if scale else r"\.0*+"
    alone = rf"|\.[0-9]{{1,{scale}}}0*+" if scale else ""
    fraction = F.length(F.regexp_extract(text, r"\.([0-9]*?)0*+[eE]", 1))
    exponent = F.regexp_extract(text, r"[eE]([+-]?[0-9]+)", 1).try_cast("int")
    return F.when(text.rlike(rf"^[+-]?(?:[0-9]++(?:{after})?{alone})\z"), text.try_cast(kind)).when(
        text.rlike(_SCIENTIFIC) & (fraction - exponent <= scale), text.try_cast(kind)
    )


def _float(text: Column, kind: DataType) -> Column:
    """The nearest float; one that is infinite, or zero though the text is not, is none."""
    nearest = F.when(text.rlike(_NUMBER), text.try_cast(kind))
    vanished = (nearest == 0) & text.rlike(r"^[^eE]*[1-9]")
    return F.when((F.abs(nearest) < float("inf")) & ~vanished, nearest)


def _is_usual(text: Column) -> Column:
    """Whether a text that is a time to Spark has the form ``2024-01-31T12:00:00Z``: told from its signs, faster than by a pattern."""
    found = (F.octet_length(text) == 20) & text.endswith("Z")
    for at, sign in ((5, "-"), (8, "-"), (14, ":"), (17, ":")):
        found = found & (F.substring(text, at, 1) == sign)
    return found


def _local(text: Column, zone: str | None) -> Column:
    """A time without a zone is one of the option ``timeZone``, else of the session; a time that daylight saving skips there is none."""
    wall = text.try_cast("timestamp_ntz")
    if zone is None:
        instant = text.try_cast("timestamp")
        return F.when(instant.cast("timestamp_ntz") == wall, instant)
    utc = F.convert_timezone(F.lit(zone), F.lit("UTC"), wall)
    back = F.convert_timezone(F.lit("UTC"), F.lit(zone), utc)
    return F.when(back == wall, F.concat(utc.cast("string"), F.lit("Z")).try_cast("timestamp"))


def _in_format(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """A format of the user's own is parsed by Spark's reader of CSV, as one column of a line."""
    own = {name: text for name, text in options.items() if name in {*_FORMATS.values(), "timezone", "locale"}}
    line = {"sep": "\uffff", "quote": "", "enableDateTimeParsingFallback": "false", "columnNameOfCorruptRecord": "rest"}
    parsed = F.from_csv(text, f"value {kind.simpleString()}, rest string", {**line, **own})
    return F.when(parsed["rest"].isNull(), parsed["value"])
