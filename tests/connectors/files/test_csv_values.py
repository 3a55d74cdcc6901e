"""CSV on real Spark: each line is read correctly or quarantined unchanged."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.errors import DataError, InvalidError
from tests.spark_location import Location

pytestmark = pytest.mark.spark

SCHEMA = "k int, s string, i int, b tinyint, d decimal(12,2), f double, t timestamp, n timestamp_ntz, y date, o boolean"
COLUMNS = ["k", "s", "i", "b", "d", "f", "t", "n", "y", "o"]
BAD = object()
UTC = datetime.timezone.utc

# column, text of its field -> value, or BAD
FIELDS: list[tuple[str, str, Any]] = [
    ("s", "plain", "plain"), ("s", "", None), ("s", '""', ""), ("s", '"say ""hi"", twice"', 'say "hi", twice'), ("s", '"a,b"', "a,b"),
    ("s", " spaced ", " spaced "), ("s", '""""', '"'), ("s", '"open', BAD), ("s", 'end"', BAD), ("s", 'in"side', BAD), ("s", '"a"b', BAD),
    ("s", '"a" ', BAD), ("s", "back\\slash", "back\\slash"), ("s", '"back\\""', BAD), ("s", "one,more", BAD), ("s", "\u00e9\u2603", "\u00e9\u2603"),
    ("s", "\ufffd", "\ufffd"), ("s", "NaN", "NaN"), ("s", "a\tb", "a\tb"), ("s", "a\x00b", "a\x00b"), ("s", "\uffff", "\uffff"),
    ("i", "12", 12), ("i", '"12"', 12), ("i", '""', None), ("i", "-7", -7), ("i", "+7", 7), ("i", "2147483648", BAD), ("i", "1e3", BAD), ("i", "0x10", BAD),
    ("i", " 1", BAD), ("i", "1 ", BAD), ("i", "1.0", BAD), ("i", "1_000", BAD), ("i", "\u0661", BAD), ("b", "127", 127), ("b", "128", BAD), ("b", "200", BAD),
    ("d", "9.99", Decimal("9.99")), ("d", "9.990", Decimal("9.99")), ("d", ".5", Decimal("0.50")), ("d", "1e2", Decimal("100.00")), ("d", "9.999", BAD),
    ("d", "995e-2", Decimal("9.95")), ("d", "9995e-3", BAD), ("d", "12345678901.00", BAD), ("d", '"1,000.00"', BAD), ("d", '"9,99"', BAD), ("d", "1e99999999", BAD),
    ("d", "9.99000000000000000000000000000000000000001", BAD), ("d", "NaN", BAD),
    ("f", "0.1", 0.1), ("f", "123456789012345678901", 123456789012345678901.0), ("f", "1e400", BAD), ("f", "1e-400", BAD), ("f", "0e-400", 0.0), ("f", "NaN", BAD),
    ("f", "Infinity", BAD), ("f", "Inf", BAD), ("f", "1d", BAD), ("f", "0x1p3", BAD),
    ("t", "2024-01-01T10:00:00Z", datetime.datetime(2024, 1, 1, 10)), ("t", "2024-01-01 10:00:00+01", datetime.datetime(2024, 1, 1, 9)),
    ("t", "2024-01-01", datetime.datetime(2024, 1, 1)), ("t", "2024-01-01 10:00:00 UTC", datetime.datetime(2024, 1, 1, 10)), ("t", "2024-01-01T10:00:00Zoo", BAD),
    ("t", "10:00", BAD), ("t", "202401", BAD), ("t", "1700000000", BAD), ("t", "2024-01-01T10:00:00.123456789Z", BAD), ("t", "2024-01-01T25:00:00Z", BAD),
    ("n", "2024-01-01T10:00:00.5", datetime.datetime(2024, 1, 1, 10, 0, 0, 500000)), ("n", "2024-01-01T10:00:00Z", BAD),
    ("y", "2024-02-29", datetime.date(2024, 2, 29)), ("y", "2024-02-30", BAD), ("y", "2024-1-1", BAD), ("y", "2024", BAD), ("y", "2024-01-01x", BAD),
    ("y", "2024-01-01T00:00:00", BAD), ("y", "202401-01-01", BAD), ("o", "true", True), ("o", "FALSE", False), ("o", "1", BAD), ("o", "yes", BAD),
]  # fmt: skip


def line(key: int, column: str, text: str) -> str:
    return ",".join([str(key), *(text if name == column else "" for name in COLUMNS[1:])])


@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
def test_every_field_is_its_exact_value_or_its_line_is_quarantined_unchanged(
    location: Location, spark: SparkSession, header: bool
) -> None:
    lines = [line(key, column, text) for key, (column, text, _) in enumerate(FIELDS)]
    first = [",".join(COLUMNS)] if header else []
    # A line with an odd number of quotes may begin a record with line breaks. So each such line has a separate file.
    location.put("a.csv", "".join(f"{text}\n" for text in first + [text for text in lines if text.count('"') % 2 == 0]))
    for n, text in enumerate(text for text in lines if text.count('"') % 2):
        location.put(f"odd-{n}.csv", "".join(f"{row_text}\n" for row_text in [*first, text]))
    source = {"format": "csv", "schema": SCHEMA, "options": {"header": str(header).lower()}}
    location.run(location.pipeline(source=source))
    rows = {row["k"]: row for row in location.rows(spark)}
    wrong = [
        (FIELDS[key], rows.get(key, {}).get(column, "no row"))
        for key, (column, _, value) in enumerate(FIELDS)
        if (key in rows) == (value is BAD) or (value is not BAD and rows[key][column] != value)
    ]
    assert wrong == []
    bad = [text for text, (_, _, value) in zip(lines, FIELDS, strict=True) if value is BAD]
    assert sorted(record["raw"] for record in location.quarantined()) == sorted(bad)


def test_bytes_that_are_not_utf8_are_quarantined_unchanged(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", b"id,name,n\n1,\xe9,1\n2,\xc3\xa9,2\n")
    location.put("b.csv", b"id,name,n\n3,\xff\xfe,\n")
    location.run(
        location.pipeline(
            source={"format": "csv", "schema": "id int, name string, n int", "options": {"header": "true"}}
        )
    )
    assert location.rows(spark) == [{"id": 2, "name": "é", "n": 2}]
    bad = {base64.b64decode(record["raw"]) for record in location.quarantined() if record["encoding"] == "base64"}
    assert bad == {b"1,\xe9,1", b"3,\xff\xfe,"}


def test_both_halves_of_a_record_with_a_quoted_line_break_are_quarantined(
    location: Location, spark: SparkSession
) -> None:
    location.put("a.csv", 'id,name,n\n1,"two\nlines",1\n2,b,2\n')
    location.run(
        location.pipeline(
            source={"format": "csv", "schema": "id int, name string, n int", "options": {"header": "true"}}
        )
    )
    assert location.rows(spark) == [{"id": 2, "name": "b", "n": 2}]
    assert {record["raw"] for record in location.quarantined()} == {'1,"two', 'lines",1'}


def test_complete_looking_line_inside_a_broken_record_fails_the_batch(location: Location) -> None:
    location.put("good.csv", "id,name,n\n8,x,8\n")
    location.put("a.csv", 'id,name,n\n7,y,7\n1,"starts\n2,looks whole,2\nends",1\n3,b,3\n')
    source = {"format": "csv", "schema": "id int, name string, n int", "options": {"header": "true"}}
    with pytest.raises(DataError, match=r"a\.csv"):
        location.run(location.pipeline(source=source))
    assert open_log(str(location.root / "log")).head == -1


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ('3,5" pipe\n1,"hello\nx,y\nend"\n', {}),
        ('1,"open\n2,"x"\n","y"\n6,z\n', {}),
        ("1,«hello\nx,y\nend«\n".encode("latin-1"), {"encoding": "ISO-8859-1", "quote": "«"}),
        ('1,"a\\"\nx,y\nend"\n', {"escape": "\\"}),
    ],
    ids=["after a quote inside a field", "after two openings", "with another quote", "after an escaped quote"],
)
def test_line_inside_quotes_is_not_a_record(location: Location, data: str | bytes, options: dict[str, str]) -> None:
    location.put("a.csv", data)
    with pytest.raises(DataError, match=r"a\.csv"):
        location.run(location.pipeline(source={"format": "csv", "schema": "a string, b string", "options": options}))


def test_quote_inside_a_field_quarantines_only_its_line(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", '1,"a"\n2,"b ""q"" c"\n3,5" pipe\n4,"two\nlines"\n5,ok\n')
    location.run(location.pipeline(source={"format": "csv", "schema": "a int, b string"}))
    assert location.rows(spark) == [{"a": 1, "b": "a"}, {"a": 2, "b": 'b "q" c'}, {"a": 5, "b": "ok"}]
    assert {record["raw"] for record in location.quarantined()} == {'3,5" pipe', '4,"two', 'lines"'}


def test_bad_line_of_a_file_that_does_not_quote_is_quarantined(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", '1,"a\n2\n3,b"\n')
    location.run(location.pipeline(source={"format": "csv", "schema": "a int, b string", "options": {"quote": ""}}))
    assert location.rows(spark) == [{"a": 1, "b": '"a'}, {"a": 3, "b": 'b"'}]
    assert [record["raw"] for record in location.quarantined()] == ["2"]


def test_line_of_empty_fields_between_tabs_is_a_record(location: Location, spark: SparkSession) -> None:
    location.put("a.csv", 'x\ty\n\t\nx\t\t"y"\n \n')
    options = {"sep": "\t", "ignoreLeadingWhiteSpace": "true"}
    location.run(location.pipeline(source={"format": "csv", "schema": "a string, b string", "options": options}))
    assert location.rows(spark) == [{"a": "x", "b": "y"}, {"a": None, "b": None}]
    assert [record["raw"] for record in location.quarantined()] == ['x\t\t"y"']


def test_header_in_quotes_or_other_case_is_accepted_and_a_different_header_fails_the_batch(
    location: Location, spark: SparkSession
) -> None:
    source = {"format": "csv", "schema": "id int, `é.b` string", "options": {"header": "true", "sep": ";"}}
    location.put("a.csv", '"ID";"é.b"\n"1";"x"\n')
    location.run(location.pipeline(source=source))
    assert location.rows(spark) == [{"id": 1, "é.b": "x"}]
    location.put("b.csv", "é.b;id\nx;2\n")
    with pytest.raises(DataError, match=r"b\.csv"):
        location.run(location.pipeline(source=source))


def test_lenient_formats_are_accepted_by_option(location: Location, spark: SparkSession) -> None:
    options = {
        "sep": "||", "escape": "\\", "nullValue": "NA", "nanValue": "nan", "positiveInf": "inf", "dateFormat": "dd/MM/yyyy", "timeZone": "Europe/Paris",
        "ignoreLeadingWhiteSpace": "true",
    }  # fmt: skip
    location.put(
        "a.csv",
        'NA||nan||31/01/2024||2024-07-01T12:00\n  "a\\"b\\\\"||inf||NA||2024-03-31T02:30\n"NA"||1||32/01/2024||\n"NA"||1||NA||\n',
    )
    location.run(
        location.pipeline(
            source={"format": "csv", "schema": "s string, f double, y date, t timestamp", "options": options}
        )
    )
    (first, second) = location.rows(spark)
    assert first == {"s": "NA", "f": 1.0, "y": None, "t": None}
    assert (second["s"], str(second["f"]), second["y"]) == (None, "nan", datetime.date(2024, 1, 31))
    assert second["t"] == datetime.datetime(2024, 7, 1, 10)
    assert len(location.quarantined()) == 2


@pytest.mark.parametrize("kind", ["binary", "array<int>", "varchar(3)"])
def test_types_that_csv_cannot_hold_are_refused(location: Location, kind: str) -> None:
    location.put("a.csv", "1\n")
    with pytest.raises(InvalidError, match="declare the columns as string"):
        location.run(location.pipeline(source={"format": "csv", "schema": f"a {kind}"}))
