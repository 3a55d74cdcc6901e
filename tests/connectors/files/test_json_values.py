"""JSON on real Spark, compared with Python's parser: each record is read correctly or quarantined unchanged."""

from __future__ import annotations

import base64
import datetime
import json
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from airflow_provider_streamsem.errors import InvalidError
from tests.spark_location import Location

pytestmark = pytest.mark.spark

KINDS = {
    "l": "long", "i": "int", "h": "smallint", "b": "tinyint", "f": "double", "g": "float", "d": "decimal(12,2)", "e": "decimal(38,10)",
    "w": "decimal(38,0)", "s": "string", "o": "boolean", "t": "timestamp", "n": "timestamp_ntz", "y": "date", "x": "binary",
}  # fmt: skip
NUMBERS = [
    "0", "-0", "7", "-7", "127", "128", "200", "-129", "32768", "2147483648", "9223372036854775807", "9223372036854775808", "12345678901234567890123456789012345678", "123456789012345678901234567890123456789", "0.5", "9.99", "9.990", "9.999", "-9.995", "1.000000000000000005", "9.9900000000000000000000000000000000000001", "9.990000000000000001", "12345678901.5", "1e2", "1E+2", "1e-2",
    "995e-2", "9951e-3", "1.5e-7", "1e-30", "1e38", "1e39", "3.5e38", "1e-50", "1e400", "1e-400", "0e-400", "1e99999999", "1.0", "0.1", "9999999999999999e0", "99999999999999999e-2", "100000000000000001e-5", "10000000000000000001e0", "1234567890123456e-4", "12345678.12345678e-3",
    "0.0000000000000000000000000000000000001e-9", "1234567890.123456789", "20240101", "1700000000", "123456789012345678",
]  # fmt: skip
TEXTS = [
    "", " ", "plain", "é☃😀", "a\"b\\c/d\n\t\x00", "9.99", "9.999", "9,99", ",5", "1,000.50", "+1.5", ".5", "1e2", " 1", "NaN", "Infinity", "true", "1234", "YWI=", "YWJj",
    "YW", "YR==", "!!!!", "1.50", "0", "[1.0]", '{"a":1.50}', "9.9900000000000000000000000000000000000000001", "٩", "5٬5", "2024-02-29", "2024-02-30", "2024-1-1", "2024", "202401",
    "2024-02-29 x", "2024-02-29T12:00:00Z", "2024-02-29 12:00:00+05:30", "2024-02-29T12:00:00.123456Z", "2024-02-29T12:00:00.1234567Z", "2024-02-29T12:00",
    "2024-02-29T12:00:00 UTC", "2024-02-29T12:00:00 PST", "12:00", "T12:00:00.1234567Z", "2024-02-29T24:00:00Z", "1700000000",
]  # fmt: skip
OTHERS = [
    "true", "false", "NaN", "Infinity", "-Infinity", "tru", "01", "1.", ".5", "+1", "1e", "--1", "0x10", "1_0", "'x'", '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"',
    '"\\\\ud800"', '"\\x"', '"\\u12"', '"open', '"tab\t"', "{}", "[]", '{"a": 1.10, "b": [1e5, "1.0", -0]}', '[1.000000000000000005, {"c": "\\u00e9"}]', "{1:2}", "[1,]", '{"a"}',
    '"YWI="', "1 2", "1} {", '"a" "b"', "nul", "1//x", "1/**/",
]  # fmt: skip
TOKENS = [
    *NUMBERS,
    *(json.dumps(text) for text in TEXTS),
    *(json.dumps(text, ensure_ascii=False) for text in TEXTS[3:4]),
    *OTHERS,
]
BAD = object()


class Number(str):
    """The digits of a number."""


def parse_strictly(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    parsed = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=refuse)
    json.dumps(parsed, ensure_ascii=False).encode()  # fails for a lone surrogate, which is not valid text
    return parsed


def expected(value: Any, kind: str) -> Any:
    """Return the value of a column of this type for a parsed value, by the rules of ``docs/connectors/files-source.md``."""
    is_number, is_text = isinstance(value, Number), isinstance(value, str) and not isinstance(value, Number)
    if kind == "string":
        return str(value).lower() if isinstance(value, bool) else value
    if kind == "boolean":
        return value if isinstance(value, bool) else BAD
    if bits := {"long": 64, "int": 32, "smallint": 16, "tinyint": 8}.get(kind):
        is_integer = is_number and re.fullmatch("-?[0-9]+", value)
        return int(value) if is_integer and -(1 << bits - 1) <= int(value) < 1 << bits - 1 else BAD
    if kind in ("double", "float"):
        nearest = float(value) if is_number else float("inf")
        if kind == "float" and abs(nearest) <= 3.4028235e38:
            (nearest,) = struct.unpack("f", struct.pack("f", nearest))
        too_far = not abs(nearest) <= (3.4028235e38 if kind == "float" else 1.7976931348623157e308)
        return BAD if too_far or (nearest == 0 and re.search("[1-9]", value.lower().split("e")[0])) else nearest
    if kind.startswith("decimal"):
        precision, scale = map(int, re.findall("[0-9]+", kind))
        if not isinstance(value, str) or not re.fullmatch(
            r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", value
        ):
            return BAD
        _, digits, exponent = Decimal(value).as_tuple()
        text = "".join(map(str, digits)).lstrip("0")
        while text.endswith("0"):
            text, exponent = text[:-1], exponent + 1
        return Decimal(value) if not text or (-exponent <= scale and len(text) + exponent <= precision - scale) else BAD
    if not is_text:
        return BAD
    if kind == "binary":
        try:
            decoded = base64.b64decode(value, validate=True)
        except ValueError:
            return BAD
        return decoded if base64.b64encode(decoded).decode() == value else BAD
    day, time, zone = r"\d{4}-\d\d-\d\d", r"[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?", r"(Z|[+-]\d\d:\d\d| UTC)"
    form = {"date": day, "timestamp": f"{day}({time}{zone}?)?", "timestamp_ntz": f"{day}({time})?"}[kind]
    try:
        if not re.fullmatch(form, value, re.ASCII):
            return BAD
        if kind == "date":
            return datetime.date.fromisoformat(value)
        at = datetime.datetime.fromisoformat(re.sub(" ?(UTC|Z)$", "+00:00", value))
        return at.astimezone(datetime.timezone.utc).replace(tzinfo=None) if at.tzinfo else at
    except ValueError:
        return BAD


def same(value: Any, expected_value: Any) -> bool:
    if isinstance(expected_value, (dict, list)):  # JSON inside a string column
        return bool(parse_strictly(value) == expected_value)
    return bool(value == expected_value)


def expected_or_bad(line: str, column: str, kind: str) -> Any:
    try:
        value = parse_strictly(line)
    except (ValueError, RecursionError):
        return BAD
    return expected(value[column], kind)


@pytest.mark.parametrize("nested", [False, True], ids=["columns", "nested"])
def test_every_value_is_what_pythons_parser_reads_or_its_record_is_quarantined(
    location: Location, spark: SparkSession, nested: bool
) -> None:
    cases = [(column, token) for column in ("dfsbtx" if nested else KINDS) for token in TOKENS]
    flat = [f'{{"k": {k}, "{column}": {token}}}' for k, (column, token) in enumerate(cases)]
    inner = [
        f'{{"k": {k}, "r": {{"m": {{"a b": [null, {{"{column}": {token}}}]}}}}}}'
        for k, (column, token) in enumerate(cases)
    ]
    lines = inner if nested else flat
    location.put("a.json", "".join(f"{line}\n" for line in lines))
    leaves = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    deep = ", ".join(f"{name}: {kind}" for name, kind in KINDS.items())
    schema = f"k int, r struct<m: map<string, array<struct<{deep}>>>>" if nested else f"k int, {leaves}"
    location.run(location.pipeline(source={"format": "json", "schema": schema}, sink={"format": "parquet"}))
    rows: dict[int, Any] = {row["k"]: row for row in location.rows(spark)}
    if nested:
        rows = {k: row["r"]["m"]["a b"][1] for k, row in rows.items()}
        assert all(isinstance(row, Row) for row in rows.values())
    wrong = []
    for k, (column, token) in enumerate(cases):
        expected_value = expected_or_bad(flat[k], column, KINDS[column])
        if (k in rows) == (expected_value is BAD) or (k in rows and not same(rows[k][column], expected_value)):
            wrong.append((KINDS[column], token, rows[k][column] if k in rows else "quarantined", expected_value))
    assert wrong == [], wrong
    bad = {line for k, line in enumerate(lines) if k not in rows}
    assert {record["raw"] for record in location.quarantined()} == bad


def test_bytes_that_are_not_utf8_are_quarantined_unchanged(location: Location) -> None:
    location.put("a.json", b'{"id": 1, "name": "\xe9"}\n{"id": 2, "name": "\xed\xa0\x80"}\n')
    location.run(location.pipeline(source={"format": "json", "schema": "id long, name string"}))
    records = location.quarantined()
    assert {base64.b64decode(r["raw"]) for r in records if r["encoding"] == "base64"} == {
        b'{"id": 1, "name": "\xe9"}', b'{"id": 2, "name": "\xed\xa0\x80"}',
    }  # fmt: skip


def test_duplicate_map_key_and_null_in_a_not_null_column_are_quarantined(
    location: Location, spark: SparkSession
) -> None:
    location.put("a.json", '{"id": 1, "m": {"a": 1, "a": 2}}\n{"id": null}\n{"id": 3, "m": {"a": 1}}\n')
    location.run(location.pipeline(source={"format": "json", "schema": "id long not null, m map<string,int>"}))
    assert [row["id"] for row in location.rows(spark)] == [3]


@pytest.mark.parametrize("name", ["7", "@5", "-5", "5a", "a7", "01", "x: {7"])
def test_number_after_an_unquoted_name_is_not_rounded(location: Location, spark: SparkSession, name: str) -> None:
    end = "}}" if "{" in name else "}"
    long, short = "9.999999999999999999", "9.99"
    location.put(
        "a.json",
        f"{{d: {long}, {name}: 0{end}\n{{{name}: 0{end[1:]}, d: {long}}}\n{{{name}: 0{end[1:]}, d: {short}, s: 1.10}}\n",
    )
    options = {"allowUnquotedFieldNames": "true", "allowNumericLeadingZeros": "true"}
    source = {"format": "json", "schema": "d decimal(12,2), s string", "options": options}
    assert location.run(location.pipeline(source=source)).counts["quarantined"] == 2
    assert location.rows(spark) == [{"d": Decimal("9.99"), "s": "1.10"}]


def test_decimal_with_thousands_of_zeros_is_exact_and_one_with_thousands_of_digits_is_quarantined(
    location: Location, spark: SparkSession
) -> None:
    zeros, digits = "0" * 5_000, "1" * 5_000
    good = [f"1.50{zeros}", f"-{zeros}1.5", zeros, f"-{zeros}.{zeros}", f"+{zeros}12{zeros[:5]}.", f".5{zeros}", f"1.5{zeros}e1", f"{zeros}1.5{zeros}E-1", f"0.{zeros[:900]}5{zeros}e901"]  # fmt: skip
    bad = [digits, f"1.{digits}", f"1.{zeros}1", f"1{zeros}", f"1.{zeros}5e5", f"{digits}e-999"]
    location.put("a.json", "".join(f'{{"k": {k}, "d": "{text}"}}\n' for k, text in enumerate([*good, *bad])))
    source = {"format": "json", "schema": "k int, d decimal(12,2)"}
    assert location.run(location.pipeline(source=source)).counts["quarantined"] == len(bad)
    values = {row["k"]: row["d"] for row in location.rows(spark)}
    assert values == {k: Decimal(text) for k, text in enumerate(good)}


def test_null_in_a_not_null_field_inside_arrays_and_maps_is_quarantined(
    location: Location, spark: SparkSession
) -> None:
    good = '{"id": 1, "a": [{"x": 1}, null], "m": {"k": [{"x": 2}]}}\n{"id": 2, "a": [], "m": null}\n'
    location.put("a.json", good + '{"id": 3, "a": [{"x": 1}, {"x": null}]}\n{"id": 4, "m": {"k": [{}]}}\n')
    schema = "id long, a array<struct<x: int not null>>, m map<string, array<struct<x: int not null>>>"
    location.run(location.pipeline(source={"format": "json", "schema": schema}))
    assert [row["id"] for row in location.rows(spark)] == [1, 2]


SESSION_SETTINGS = (
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.legacy.json.allowEmptyString.enabled",
)


@pytest.fixture
def unusual_session(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in SESSION_SETTINGS}
    for name in SESSION_SETTINGS:
        spark.conf.set(name, "true")
    yield
    for name, value in before.items():
        spark.conf.set(name, value or "false")


@pytest.mark.usefixtures("unusual_session")
def test_session_settings_do_not_change_how_json_is_parsed(location: Location, spark: SparkSession) -> None:
    lines = [
        '{"p(x)": 1, "s": 1.10, "d": 2.50}',
        '{"p(x)": 2, "s": "-0", "d": 1}',
        '{"p(x)": "", "s": "a"}',
        '{"s": "\\ud800"}',
    ]
    location.put("a.json", "\n".join(lines))
    location.run(location.pipeline(source={"format": "json", "schema": "`p(x)` long, s string, d decimal(38,2)"}))
    kept = [{"p(x)": 1, "s": "1.10", "d": Decimal("2.50")}, {"p(x)": 2, "s": "-0", "d": Decimal("1.00")}]
    assert location.rows(spark) == kept
    assert [record["raw"] for record in location.quarantined()] == lines[2:]


@pytest.mark.usefixtures("unusual_session")
def test_session_settings_do_not_change_how_csv_is_parsed(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", '1,x\n2,"y ""z"""\n3\n')
    location.run(location.pipeline(source={"format": "csv", "schema": "id long, `p(x)` string"}))
    assert location.rows(spark) == [{"id": 1, "p(x)": "x"}, {"id": 2, "p(x)": 'y "z"'}]
    assert [record["raw"] for record in location.quarantined()] == ["3"]


def test_predicate_is_not_evaluated_on_a_quarantined_record(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", "1,2024-01-01,1\n2,2024-01-\n")
    source = {"format": "csv", "schema": "id long, day string, n int"}
    location.run(location.pipeline(source=source, where="CAST(day AS DATE) >= DATE'2020-01-01'"))
    assert [row["id"] for row in location.rows(spark)] == [1]
    assert [record["raw"] for record in location.quarantined()] == ["2,2024-01-"]


def test_lenient_formats_are_accepted_by_option(location: Location, spark: SparkSession) -> None:
    options = {
        "allowSingleQuotes": "true", "allowNonNumericNumbers": "true", "allowUnquotedFieldNames": "true", "allowNumericLeadingZeros": "true",
        "timestampFormat": "dd/MM/yyyy HH:mm", "timeZone": "Europe/Paris",
    }  # fmt: skip
    location.put(
        "a.json",
        "{a1: 007, s: 'it\\'s 1.50', f: -Infinity, d: 1.50, t: '01/07/2024 12:00'}\n{a1: 1, d: 1.505}\n{a1: 1, t: 1719828000}\n",
    )
    schema = "a1 int, s string, f double, d decimal(5,2), t timestamp"
    location.run(location.pipeline(source={"format": "json", "schema": schema, "options": options}))
    at = datetime.datetime(2024, 7, 1, 10)
    assert location.rows(spark) == [{"a1": 7, "s": "it's 1.50", "f": float("-inf"), "d": Decimal("1.50"), "t": at}]


@pytest.mark.parametrize("kind", ["variant", "varchar(3)", "interval day"])
def test_types_that_json_cannot_hold_are_refused(location: Location, kind: str) -> None:
    location.put("a.json", "{}\n")
    with pytest.raises(InvalidError, match="declare the columns as string"):
        location.run(location.pipeline(source={"format": "json", "schema": f"a {kind}"}))


@pytest.mark.prove
def test_record_with_many_columns_is_parsed_or_quarantined(location: Location, spark: SparkSession) -> None:
    columns = 1_000
    good = json.dumps({f"c{i}": 1.5 for i in range(columns)})
    location.put("a.json", f"{good}\n{good.replace('1.5', '1.55')}\n")
    schema = ", ".join(f"c{i} decimal(5,1)" for i in range(columns))
    result = location.run(location.pipeline(source={"format": "json", "schema": schema}))
    assert (result.counts["read"], result.counts["quarantined"], result.counts["written.out"]) == (2, 1, 1)
