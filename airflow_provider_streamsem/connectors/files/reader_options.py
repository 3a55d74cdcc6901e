"""
Options of Spark's readers that the files source accepts.

An accepted option may change how a value is parsed. Other options are refused, because they would change the number of records, or hide bad ones.
"""

from __future__ import annotations

_TIMES = {"dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale"}
_LAX_JSON = {"allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros", "allowNonNumericNumbers"}
ENCODING = "encoding"
ENCODINGS = ("UTF-8", "ISO-8859-1", "windows-1252")
_CSV = {
    "header",
    "sep",
    "delimiter",
    "quote",
    "escape",
    "nullValue",
    "nanValue",
    "positiveInf",
    "negativeInf",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
}
OPTIONS: dict[str, frozenset[str]] = {
    "csv": frozenset(_CSV | _TIMES | {ENCODING}),
    "json": frozenset(_LAX_JSON | _TIMES | {ENCODING}),
    "parquet": frozenset({"datetimeRebaseMode", "int96RebaseMode"}),
    "orc": frozenset(),
    "text": frozenset({ENCODING}),
}
"""file format → names of its accepted options"""
