"""The time of parsing grows in proportion to the length of a record, whatever its fields contain."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.parsing.exact.arrow_json import ArrowJson
from airflow_provider_streamsem.connectors.parsing.exact.blocks import Parser
from airflow_provider_streamsem.connectors.parsing.exact.csv_records import Dialect, ExactCsv, QuoteStates
from airflow_provider_streamsem.connectors.parsing.exact.json_records import LENIENT
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings

SHORT, FACTOR = 8_000, 50
LEAST_GROWTH_OF_QUADRATIC_TIME = 500
CONSTANT_S = 0.002
FLAT = pa.schema(
    {
        "d": pa.decimal128(38, 10), "s": pa.string(), "l": pa.int64(), "f": pa.float64(), "o": pa.bool_(), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"),
        "y": pa.date32(),
    }
)  # fmt: skip
PRICE = pa.decimal128(12, 2)
NESTED = pa.struct({"a": pa.list_(PRICE), "m": pa.map_(pa.string(), PRICE), "s": pa.list_(pa.string())})
SCHEMA = FLAT.append(pa.field("x", pa.binary())).append(pa.field("r", NESTED))
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
    ("", ""), ("", ",a"), ('"', '"'), ('"', '",a'), (' "', '" ,a'), ("1.", "1e5,a"), ("1,", ""), ('1,"', '",x'), ("1,a,2,", ",true"), ("1.", "1e5,a,2,1.5,true,,,"),
]  # fmt: skip

Shape = tuple[tuple[str, str], str]


class Lines:
    """Parses CSV lines and finds those that end inside quotes, as a batch with bad lines does."""

    def __init__(self, schema: pa.Schema, dialect: Dialect) -> None:
        self._csv, self._states = ExactCsv(schema, dialect, Settings()), QuoteStates(dialect)

    def parse(self, texts: pa.StringArray) -> object:
        for text in texts.to_pylist():
            for begins_inside in (False, True):
                self._states.ends_inside(text, begins_inside=begins_inside)
        return self._csv.parse(texts)


def json_parser(*lenient: str, schema: pa.Schema = SCHEMA) -> Parser:
    return ArrowJson(schema, Settings(), frozenset(lenient))


def csv_parser(dialect: Dialect) -> Lines:
    return Lines(FLAT, dialect)


PARSERS = {
    "json": (json_parser(), JSON_FRAMES),
    "json by Arrow": (json_parser(schema=FLAT), JSON_FRAMES),
    "lenient json": (json_parser(*LENIENT), JSON_FRAMES),
    "csv": (csv_parser(Dialect()), CSV_FRAMES),
    "csv with spaces and an escape": (
        csv_parser(Dialect(escape="\\", trims_leading=True, trims_trailing=True)),
        CSV_FRAMES,
    ),
    "csv with a long separator": (csv_parser(Dialect(separator="--")), CSV_FRAMES),
}


def record(shape: Shape, length: int) -> str:
    (before, after), piece = shape
    return f"{before}{piece * (length // len(piece))}{after}"


def seconds(parser: Parser | Lines, shape: Shape, length: int) -> float:
    texts = pa.array([record(shape, length)], pa.string())
    started = time.process_time()
    parser.parse(texts)
    return time.process_time() - started


def check_growth(parser: Parser | Lines, shape: Shape) -> None:
    """Compare two lengths: linear time grows by the factor, and quadratic time by its square."""
    short = min(seconds(parser, shape, SHORT) for _ in range(2))
    long = seconds(parser, shape, SHORT * FACTOR)
    assert long < LEAST_GROWTH_OF_QUADRATIC_TIME * (short + CONSTANT_S), (
        f"{shape}: {long} s for {FACTOR} times the length of {short} s"
    )


QUADRATIC_BEFORE: dict[str, list[Shape]] = {
    "json": [(('{"unknown": "', '"}'), "7"), (('{"d": "1.', '1e5}'), "0"), (('{"r": {"m": {"k": "', '"}}}'), "7"), (('{"d": "1', '"}'), "0")],
    "json by Arrow": [(('{"unknown": "', '"}'), "7"), (('{"d": "1.', '1e5}'), "0"), (('{"d": "1', '"}'), "0")],
    "lenient json": [(("{", ": 1}"), "-"), (("{", ": 1}"), "#1"), (('{"d": ', "}"), "-"), (("", ""), "#-"), (("", ""), '\\"'), (("", ""), "'")],
    "csv": [(("1.", "1e5,a,2,1.5,true,,,"), "0"), (('"', '",a'), '""')],
}  # fmt: skip


@pytest.mark.parametrize("name", QUADRATIC_BEFORE)
def test_time_is_proportional_to_the_length_of_a_run_of_equal_characters(name: str) -> None:
    for shape in QUADRATIC_BEFORE[name]:
        check_growth(PARSERS[name][0], shape)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARSERS)
def test_time_is_proportional_to_the_length_of_any_field(name: str) -> None:
    parser, frames = PARSERS[name]
    for frame in frames:
        for piece in PIECES:
            check_growth(parser, (frame, piece))


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_time_is_proportional_to_the_length_of_any_repeated_text(name: str, data: st.DataObject) -> None:
    parser, frames = PARSERS[name]
    piece = data.draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join))
    check_growth(parser, (data.draw(st.sampled_from(frames)), piece))
