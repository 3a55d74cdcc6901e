"""The time of parsing grows in proportion to the length of a record, whatever its fields contain."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from airflow_provider_streamsem.connectors.files.csv_lines import Csv
from airflow_provider_streamsem.connectors.parsing import json_text
from airflow_provider_streamsem.connectors.parsing.sql_text import Parsed, with_sql

pytestmark = pytest.mark.spark

SHORT, FACTOR = 4_000, 50
LEAST_GROWTH_OF_QUADRATIC_TIME = 100
SCHEMA = (
    "d decimal(38,10), s string, l long, f double, o boolean, t timestamp, n timestamp_ntz, y date, x binary, "
    "r struct<a: array<decimal(12,2)>, m: map<string, decimal(12,2)>, s: array<string>>"
)
FLAT = "d decimal(38,10), s string, l long, f double, o boolean, t timestamp, n timestamp_ntz, y date"
LENIENT = ("allowSingleQuotes", "allowUnquotedFieldNames", "allowNumericLeadingZeros", "allowNonNumericNumbers")
PIECES = [
    "7", "0", ".", "-", "e", "1e5", "1.", "0.0", "12.5e-3,", " ", "\\", '"', '\\"', "'", "''", '""', '","', "\\u00e9", "\\ud83d\\ude00", "\\ud800", "a", "a ", "#1", "-#",
    "$1 ", "1:", "1 :", "a:", ":", ",", "[", "{", "[1.5,", '{"a":', "]", "}", "} ", "é", "/", "/*", "true", "2024-02-29", "0Z", "+", "=", "YWJj", "\t",
]  # fmt: skip
JSON_FRAMES = [
    ("", ""), ('{"d": ', "}"), ('{"d": "', '"}'), ('{"d": 1.', "1e5}"), ('{"d": "1.', '1e5"}'), ('{"d": "1.', 'x"}'), ('{"d": 1', ".5}"), ('{"s": "', '"}'), ('{"s": ', "}"),
    ('{"f": ', "}"), ('{"t": "2024-02-29T12:00:00.1', 'Z"}'), ('{"x": "', '"}'), ('{"unknown": "', '"}'), ('{"unknown": ', "}"), ('{"unknown": "', ""), ('{"', '": 1}'),
    ("{", ": 1}"), ('{"r": {"a": [', "]}}"), ('{"r": {"m": {"k": "', '"}}}'), ('{"r": {"s": ["', '"]}}'), ('{"d": 1.5}', ""),
]  # fmt: skip
CSV_FRAMES = [
    ("", ""),
    ("", ",a"),
    ('"', '"'),
    ('"', '",a'),
    (' "', '" ,a'),
    ("1.", "1e5,a"),
    ("1,", ""),
    ('1,"', '",x'),
    ("1,a,2,", ",true"),
]

Shape = tuple[tuple[str, str], str]


def record(shape: Shape, length: int) -> str:
    (before, after), piece = shape
    return f"{before}{piece * (length // len(piece))}{after}"


def seconds(spark: SparkSession, parse: Callable[..., Parsed], shapes: list[Shape], length: int) -> float:
    frame = spark.createDataFrame([(record(shape, length),) for shape in shapes], "raw string").coalesce(1)
    parsed = parse(frame)
    columns = ["*", *parsed.columns, f"CASE WHEN {parsed.bad} THEN {parsed.reason} END AS reason"]
    started = time.perf_counter()
    parsed.frame.selectExpr(*columns).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def check_growth(spark: SparkSession, parse: Callable[..., Parsed], shapes: list[Shape]) -> None:
    """
    Compare two lengths. The time for the short records is mostly a constant. So linear time grows by less than the factor, and quadratic time by its square,
    even if it is the time of a single record.
    """
    seconds(spark, parse, shapes, 100)  # compiles the plan
    short = seconds(spark, parse, shapes, SHORT)
    long = seconds(spark, parse, shapes, SHORT * FACTOR)
    assert long < LEAST_GROWTH_OF_QUADRATIC_TIME * short, f"{long} s for {FACTOR} times the length of {short} s"


def json_parser(*lenient: str) -> Callable[..., Parsed]:
    columns = json_text.struct(SCHEMA, "test")
    return lambda frame: json_text.with_json(frame, "raw", columns, dict.fromkeys(lenient, "true"), "p")


def csv_parser(**options: str) -> Callable[..., Parsed]:
    csv = Csv(StructType.fromDDL(FLAT), options)
    inside = {f"inside_{begins}": csv.ends_inside_quotes("raw", begins_inside=begins) for begins in (False, True)}
    return lambda frame: csv.with_columns(with_sql(frame.where(csv.has_values("raw")), inside), "raw", "p")


PARSERS = {
    "json": (json_parser, JSON_FRAMES),
    "lenient json": (lambda: json_parser(*LENIENT), JSON_FRAMES),
    "csv": (csv_parser, CSV_FRAMES),
    "csv with spaces and an escape": (
        lambda: csv_parser(escape="\\", ignoreLeadingWhiteSpace="true", ignoreTrailingWhiteSpace="true"),
        CSV_FRAMES,
    ),
    "csv with a long separator": (lambda: csv_parser(sep="--"), CSV_FRAMES),
}


QUADRATIC_BEFORE: dict[str, list[Shape]] = {
    "json": [
        (('{"unknown": "', '"}'), "7"),
        (('{"d": "1.', '1e5"}'), "0"),
        (('{"r": {"m": {"k": "', '"}}}'), "7"),
        (('{"d": "1', '"}'), "0"),
    ],
    "lenient json": [(("{", ": 1}"), "-"), (("{", ": 1}"), "#1"), (('{"d": ', "}"), "-"), (("", ""), "#-")],
    "csv": [(("1.", "1e5,a,2,1.5,true,,,"), "0"), (('"', '",a'), '""')],
}


@pytest.mark.parametrize("name", QUADRATIC_BEFORE)
def test_time_is_proportional_to_the_length_of_a_run_of_equal_characters(spark: SparkSession, name: str) -> None:
    check_growth(spark, PARSERS[name][0](), QUADRATIC_BEFORE[name])


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARSERS)
def test_time_is_proportional_to_the_length_of_any_field(spark: SparkSession, name: str) -> None:
    parser, frames = PARSERS[name]
    for frame in frames:
        check_growth(spark, parser(), [(frame, piece) for piece in PIECES])


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None, max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_time_is_proportional_to_the_length_of_any_repeated_text(
    spark: SparkSession, name: str, data: st.DataObject
) -> None:
    parser, frames = PARSERS[name]
    pieces = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
    shapes = data.draw(st.lists(st.tuples(st.sampled_from(frames), pieces), min_size=40, max_size=40))
    check_growth(spark, parser(), shapes)
