"""A column of texts has the values that its texts have one by one, and CSV lines are split as RFC 4180 says."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.parsing.exact.columns import ExactColumn
from airflow_provider_streamsem.connectors.parsing.exact.csv_records import Dialect, ExactCsv
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings, converter
from tests.connectors.parsing.json_texts import KINDS

DIGITS = st.text("0123456789", min_size=1, max_size=40)
NUMBERS = st.builds(
    "".join, st.tuples(st.sampled_from(["", "-", "+"]), DIGITS, st.sampled_from(["", ".", ".5", ".25", ".123456789012345678", ".000"]),
                       st.sampled_from(["", "e5", "E-3", "e+38", "e45", "e-46", "e309", "e-324", "e1000"])),
)  # fmt: skip
DAYS = st.builds("{:04d}-{:02d}-{:02d}".format, st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
ZONES = st.sampled_from(["", "Z", " UTC", "UTC", "+01", "-0330", "+05:30", "+14:00:01", "+19:00", "z", " Z"])
CLOCKS = st.builds("{:02d}:{:02d}:{:02d}{}".format, st.integers(0, 25), st.integers(0, 60), st.integers(0, 60), st.sampled_from(["", ".5", ".123456", ".1234567", ".120000000", "."]))  # fmt: skip
TIMES = st.builds("{}{}{}{}".format, DAYS, st.sampled_from("T "), CLOCKS, ZONES)
TEXTS = st.one_of(NUMBERS, DAYS, TIMES, st.sampled_from(["true", "FALSE", "True", "YWI=", "YW==", "", " 1", "1 ", "٣", "0x10", "inf", "NaN", "1_0"]), st.text(max_size=6))  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind != pa.string()], ids=str)
@given(
    texts=st.lists(st.one_of(st.none(), TEXTS), max_size=12), zone=st.sampled_from(["UTC", "Europe/Paris", "+02:00"])
)
def test_column_of_texts_has_the_value_of_each_text(kind: pa.DataType, texts: list[str | None], zone: str) -> None:
    texts = [None if text is None else text.encode(errors="replace").decode() for text in texts]
    convert = converter(kind, Settings(zone))
    expected = pa.array([None if text is None else convert(text) for text in texts], kind)
    found = ExactColumn(kind, Settings(zone))(pa.array(texts, pa.string()))
    assert [repr(value) for value in _plain(found)] == [repr(value) for value in _plain(expected)]


def _plain(values: pa.Array) -> list[object]:
    kind = values.type
    as_numbers = pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
    return values.cast(as_numbers).to_pylist()  # type: ignore[no-any-return]


FIELDS = st.text("ab\",;' \té", max_size=5)


@given(rows=st.lists(st.lists(FIELDS, min_size=2, max_size=2), min_size=1, max_size=8), quotes_all=st.booleans())
def test_lines_that_a_csv_writer_wrote_are_read_back(rows: list[list[str]], quotes_all: bool) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL).writerows(rows)
    schema = pa.schema([("first", pa.string()), ("second", pa.string())])
    block = ExactCsv(schema, Dialect(), Settings()).parse(pa.array(out.getvalue().split("\n")[:-1]))
    assert block.reasons.null_count == len(rows)
    found = [[*row] for row in zip(*(column.to_pylist() for column in block.columns), strict=True)]
    assert found == [[None if text == "" and not quotes_all else text for text in row] for row in rows]


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    separator=st.sampled_from([",", "\t", "||", "ab", " ", '","']),
    quote=st.sampled_from(['"', "'"]),
    escape=st.sampled_from(["", "quote", "\\"]),
    trims=st.booleans(),
)
def test_lines_are_split_as_by_the_grammar(
    data: st.DataObject, separator: str, quote: str, escape: str, trims: bool
) -> None:
    dialect = Dialect(
        separator=separator, quote=quote, escape=quote if escape == "quote" else escape, trims_leading=trims, trims_trailing=trims
    )  # fmt: skip
    pieces = [quote, separator, quote * 2, separator + quote, quote + separator, *"ab| \t\n\\é☃\x00"]
    line = st.lists(st.sampled_from(pieces), max_size=12).map("".join)
    lines = data.draw(st.lists(st.none() | line, max_size=20))
    parser = ExactCsv(pa.schema([("a", pa.string())]), dialect, Settings())
    expected = [
        text if text is None else parser._split(text) if quote in text else text.split(separator) for text in lines
    ]
    assert parser._fields(pa.array(lines, pa.string())).to_pylist() == expected


def test_header_that_was_not_declared_and_those_of_joined_files_are_bad() -> None:
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    lines = pa.array(["id,name", "1,ann", "name,id", "id,name", "id,"])
    block = ExactCsv(schema, Dialect(), Settings()).parse(lines)
    assert block.reasons.to_pylist() == ["the names of the columns", None, None, "the names of the columns", None]
    null = ExactCsv(schema, Dialect(), Settings()).parse(pa.array([None, "1"], pa.string()))
    assert null.reasons.to_pylist()[0] is None  # a null text is no bad record
    one = ExactCsv(pa.schema([("id", pa.string())]), Dialect(), Settings()).parse(pa.array(["id"]))
    assert one.columns[0].to_pylist() == ["id"]


@given(lines=st.lists(st.text('ab,"\\ ', max_size=8), min_size=1, max_size=20))
def test_lines_of_a_block_are_read_as_each_line_alone(lines: list[str]) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    for dialect in (
        Dialect(),
        Dialect(escape="\\", trims_leading=True, trims_trailing=True, null="a"),
        Dialect(quote=""),
    ):
        parser = ExactCsv(schema, dialect, Settings())
        block = parser.parse(pa.array(lines))
        alone = [parser.parse(pa.array([line])) for line in lines]
        assert block.reasons.to_pylist() == [one.reasons[0].as_py() for one in alone]
        for n, column in enumerate(block.columns):
            good = [row for row in range(len(lines)) if not block.reasons[row].is_valid]
            assert [column[row].as_py() for row in good] == [alone[row].columns[n][0].as_py() for row in good]
