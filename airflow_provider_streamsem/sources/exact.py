"""Text to values on Spark, as SQL: a value is exactly what its text says, or null. Imports pyspark: only engines import this."""

from __future__ import annotations

from collections.abc import Mapping

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

from airflow_provider_streamsem.sources.sql import literal, map_of, rlike, try_cast, type_name, when

INTEGERS = (ByteType, ShortType, IntegerType, LongType)
FLOATS = (FloatType, DoubleType)
INFINITY = "CAST('Infinity' AS DOUBLE)"
_FORMATS = {DateType: "dateformat", TimestampType: "timestampformat", TimestampNTZType: "timestampntzformat"}

_INTEGER = r"^[+-]?[0-9]++\z"
_NUMBER = r"^[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?\z"
# Longer exponents make Java compute powers of ten for minutes.
_SCIENTIFIC = r"^[+-]?[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{1,3}\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*+)?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2}|:[0-9]{2}:[0-9]{2})?| ?UTC)"  # old offsets have seconds
_FRACTION, _EXPONENT = r"\.([0-9]*?)0*+[eE]", r"[eE]([+-]?[0-9]+)"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?\z"


def value(text: str, kind: DataType, given: Mapping[str, str]) -> str:
    """
    The value of a text, or null where the text is not exactly a value of this type (``docs/sources/files.md`` lists the forms).

    :param text: SQL of the text
    :param given: options, names in lower case; ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat``, ``timeZone`` and ``locale`` count
    :return: SQL of the value
    """
    if isinstance(kind, INTEGERS):
        return when((rlike(text, _INTEGER), try_cast(text, kind)))
    if isinstance(kind, DecimalType):
        return _decimal(text, kind)
    if isinstance(kind, FLOATS):
        return _float(text, kind)
    if isinstance(kind, BooleanType):
        return when((rlike(text, r"^(?i:true|false)\z"), try_cast(text, kind)))
    if isinstance(kind, BinaryType):
        return when((rlike(text, _BASE64), f"unbase64({text})"))
    if own_format(kind, given) is not None:
        return _in_format(text, kind, given)
    if isinstance(kind, DateType):
        return when((rlike(text, rf"{_DATE}\z"), try_cast(text, kind)))
    if isinstance(kind, TimestampNTZType):
        return when((rlike(text, rf"{_DATE}(?:{_TIME})?\z"), try_cast(text, kind)))
    if isinstance(kind, TimestampType):
        return when(
            (_is_usual(text), try_cast(text, kind)),
            (rlike(text, rf"{_DATE}{_TIME}{_ZONE}\z"), try_cast(text, kind)),
            (rlike(text, rf"{_DATE}(?:{_TIME})?\z"), _local(text, given.get("timezone"))),
        )
    assert isinstance(kind, StringType)
    return text


def own_format(kind: DataType, given: Mapping[str, str]) -> str | None:
    """The option that holds a format of the user's own for this type, or ``None``: then ISO 8601 counts."""
    name = _FORMATS.get(type(kind))
    return name if name in given else None


def _decimal(text: str, kind: DecimalType) -> str:
    """Digits after the point that the column cannot hold must be zeros: Spark's own cast rounds."""
    scale = kind.scale
    after = rf"\.[0-9]{{0,{scale}}}0*+" if scale else r"\.0*+"
    alone = rf"|\.[0-9]{{1,{scale}}}0*+" if scale else ""
    fraction = f"length(regexp_extract({text}, {literal(_FRACTION)}, 1))"
    exponent = f"TRY_CAST(regexp_extract({text}, {literal(_EXPONENT)}, 1) AS INT)"
    number = try_cast(text, kind)
    return when(
        (rlike(text, rf"^[+-]?(?:[0-9]++(?:{after})?{alone})\z"), number),
        (f"{rlike(text, _SCIENTIFIC)} AND {fraction} - {exponent} <= {scale}", number),
    )


def _float(text: str, kind: DataType) -> str:
    """The nearest float; one that is infinite, or zero though the text is not, is none."""
    nearest = when((rlike(text, _NUMBER), try_cast(text, kind)))
    vanished = f"{nearest} = 0 AND {rlike(text, r'^[^eE]*[1-9]')}"
    return when((f"abs({nearest}) < {INFINITY} AND NOT ({vanished})", nearest))


def _is_usual(text: str) -> str:
    """Whether a text that is a time to Spark has the form ``2024-01-31T12:00:00Z``: told from its signs, faster than by a pattern."""
    signs = [f"substr({text}, {at}, 1) = '{sign}'" for at, sign in ((5, "-"), (8, "-"), (14, ":"), (17, ":"))]
    return " AND ".join([f"octet_length({text}) = 20", f"endswith({text}, 'Z')", *signs])


def _local(text: str, zone: str | None) -> str:
    """A time without a zone is one of the option ``timeZone``, else of the session; a time that daylight saving skips there is none."""
    wall = f"TRY_CAST({text} AS TIMESTAMP_NTZ)"
    if zone is None:
        instant = f"TRY_CAST({text} AS TIMESTAMP_LTZ)"
        return when((f"CAST({instant} AS TIMESTAMP_NTZ) = {wall}", instant))
    utc = f"convert_timezone({literal(zone)}, 'UTC', {wall})"
    back = f"convert_timezone('UTC', {literal(zone)}, {utc})"
    return when((f"{back} = {wall}", f"TRY_CAST(concat(CAST({utc} AS STRING), 'Z') AS TIMESTAMP_LTZ)"))


def _in_format(text: str, kind: DataType, given: Mapping[str, str]) -> str:
    """A format of the user's own is parsed by Spark's reader of CSV, as one column of a line."""
    own = {name: text for name, text in given.items() if name in {*_FORMATS.values(), "timezone", "locale"}}
    line = {"sep": "\uffff", "quote": "", "enableDateTimeParsingFallback": "false", "columnNameOfCorruptRecord": "rest"}
    parsed = f"from_csv({text}, 'value {type_name(kind)}, rest string', {map_of({**line, **own})})"
    return when((f"{parsed}.rest IS NULL", f"{parsed}.value"))
