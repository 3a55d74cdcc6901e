"""Builds SQL that converts text to a value: exactly the value of the text, or null. Imports pyspark, so only engines import this module."""

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

from airflow_provider_streamsem.connectors.parsing.sql_text import literal, map_of, rlike, try_cast, type_name, when

INTEGERS = (ByteType, ShortType, IntegerType, LongType)
FLOATS = (FloatType, DoubleType)
INFINITY = "CAST('Infinity' AS DOUBLE)"
_FORMATS = {DateType: "dateformat", TimestampType: "timestampformat", TimestampNTZType: "timestampntzformat"}

_INTEGER = r"^[+-]?[0-9]++\z"
_NUMBER = r"^[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?\z"
# For longer exponents, Java computes powers of ten for minutes.
_SCIENTIFIC = r"^[+-]?[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{1,3}\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*+)?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2}|:[0-9]{2}:[0-9]{2})?| ?UTC)"  # historical UTC offsets have seconds
_FRACTION, _EXPONENT = r"\.((?:0*+[1-9])*+)0*+[eE]", r"[eE]([+-]?[0-9]+)"
_ZEROS = r"^([+-]?)0*+([0-9]*+(?:\.(?:0*+[1-9])*+)?+)0*+([eE].*+)?+\z"
_LONG = 2_000
"""Maximum length of the text of a decimal without leading and trailing zeros. Longer numbers have more digits than any decimal."""
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?\z"


def value(text: str, kind: DataType, options: Mapping[str, str]) -> str:
    """
    Return SQL that converts a text to a value. The result is null if the type has no value that is exactly that of the text.

    ``docs/connectors/files-source.md`` lists the accepted forms.

    :param text: SQL of the text
    :param options: options with lower-case names; ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat``, ``timeZone`` and ``locale`` have an effect
    :returns: SQL of the value
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
    if own_format(kind, options) is not None:
        return _in_format(text, kind, options)
    if isinstance(kind, DateType):
        return when((rlike(text, rf"{_DATE}\z"), try_cast(text, kind)))
    if isinstance(kind, TimestampNTZType):
        return when((rlike(text, rf"{_DATE}(?:{_TIME})?\z"), try_cast(text, kind)))
    if isinstance(kind, TimestampType):
        return when(
            (_is_usual(text), try_cast(text, kind)),
            (rlike(text, rf"{_DATE}{_TIME}{_ZONE}\z"), try_cast(text, kind)),
            (rlike(text, rf"{_DATE}(?:{_TIME})?\z"), _local(text, options.get("timezone"))),
        )
    assert isinstance(kind, StringType)
    return text


def own_format(kind: DataType, options: Mapping[str, str]) -> str | None:
    """Return the name of the option with the user's format for this type; ``None`` if the user has set none, so that ISO 8601 is used."""
    name = _FORMATS.get(type(kind))
    return name if name in options else None


def _decimal(text: str, kind: DecimalType) -> str:
    """Convert to a decimal. Digits beyond the column's scale must be zeros, because Spark's cast would round them."""
    scale = kind.scale
    after = rf"\.[0-9]{{0,{scale}}}0*+" if scale else r"\.0*+"
    alone = rf"|\.[0-9]{{1,{scale}}}0*+" if scale else ""
    fraction = f"length(regexp_extract({text}, {literal(_FRACTION)}, 1))"
    exponent = f"TRY_CAST(regexp_extract({text}, {literal(_EXPONENT)}, 1) AS INT)"
    # Java parses the digits of a decimal in quadratic time.
    stripped = f"regexp_replace({text}, {literal(_ZEROS)}, {literal('$1' + chr(92) + '0$2$3')})"
    short = when((f"length({text}) <= {_LONG}", text), (f"length({stripped}) <= {_LONG}", stripped))
    number = try_cast(short, kind)
    return when(
        (rlike(text, rf"^[+-]?(?:[0-9]++(?:{after})?{alone})\z"), number),
        (f"{rlike(text, _SCIENTIFIC)} AND {fraction} - {exponent} <= {scale}", number),
    )


def _float(text: str, kind: DataType) -> str:
    """Convert to the nearest float. The result is null if the float is infinite, or if it is zero although the number in the text is not."""
    nearest = when((rlike(text, _NUMBER), try_cast(text, kind)))
    vanished = f"{nearest} = 0 AND {rlike(text, r'^[^eE]*[1-9]')}"
    return when((f"abs({nearest}) < {INFINITY} AND NOT ({vanished})", nearest))


def _is_usual(text: str) -> str:
    """
    Return a condition that is true if a text has the form ``2024-01-31T12:00:00Z``, for texts that Spark accepts as a timestamp.

    Comparing single characters is faster than a regular expression.
    """
    signs = [f"substr({text}, {at}, 1) = '{sign}'" for at, sign in ((5, "-"), (8, "-"), (14, ":"), (17, ":"))]
    return " AND ".join([f"octet_length({text}) = 20", f"endswith({text}, 'Z')", *signs])


def _local(text: str, zone: str | None) -> str:
    """
    Convert a local time in the time zone of the option ``timeZone``, by default the session's time zone.

    The result is null for a local time that daylight saving time skips.
    """
    local_time = f"TRY_CAST({text} AS TIMESTAMP_NTZ)"
    if zone is None:
        instant = f"TRY_CAST({text} AS TIMESTAMP_LTZ)"
        return when((f"CAST({instant} AS TIMESTAMP_NTZ) = {local_time}", instant))
    utc = f"convert_timezone({literal(zone)}, 'UTC', {local_time})"
    round_trip = f"convert_timezone('UTC', {literal(zone)}, {utc})"
    return when((f"{round_trip} = {local_time}", f"TRY_CAST(concat(CAST({utc} AS STRING), 'Z') AS TIMESTAMP_LTZ)"))


def _in_format(text: str, kind: DataType, options: Mapping[str, str]) -> str:
    """Convert with a user-defined format. The text is parsed as a CSV line with one column, because ``from_csv`` accepts formats."""
    format_options = {
        name: text for name, text in options.items() if name in {*_FORMATS.values(), "timezone", "locale"}
    }
    csv_options = {
        "sep": "\uffff",
        "quote": "",
        "enableDateTimeParsingFallback": "false",
        "columnNameOfCorruptRecord": "rest",
    }
    parsed = f"from_csv({text}, 'value {type_name(kind)}, rest string', {map_of({**csv_options, **format_options})})"
    return when((f"{parsed}.rest IS NULL AND NOT contains({text}, '\uffff')", f"{parsed}.value"))
