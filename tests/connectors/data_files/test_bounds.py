"""Bounds of decimals hold for readers that parse them exactly, and for readers that parse them as doubles."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.data_files.bounds import delta_stats

KINDS = st.integers(1, 38).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits)))


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Decimal128Type, list[Decimal]]:
    digits, scale = draw(KINDS)
    unscaled = st.integers(1 - 10**digits, 10**digits - 1)
    values = draw(st.lists(unscaled, min_size=1, max_size=3))
    return pa.decimal128(digits, scale), [Decimal(f"{value}E-{scale}") for value in values]


def footer(kind: Any, values: list[Decimal]) -> Any:
    pq.write_table(pa.table({"v": pa.array(values, kind)}), file := io.BytesIO())
    return pq.read_metadata(file)


@given(columns())
def test_bounds_of_decimals_contain_all_values_and_fit_the_type(
    column: tuple[pa.Decimal128Type, list[Decimal]],
) -> None:
    kind, values = column
    text = delta_stats(footer(kind, values), without=frozenset())
    for number in (Decimal, lambda digits: Decimal(repr(float(digits)))):
        stats = json.loads(text, parse_float=number, parse_int=Decimal)
        if "minValues" in stats:
            lower, upper = stats["minValues"]["v"], stats["maxValues"]["v"]
            assert lower <= min(values) <= max(values) <= upper
            assert [pa.scalar(bound, kind).as_py() for bound in (lower, upper)] == [lower, upper]
