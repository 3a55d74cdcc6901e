"""Dates and times that Arrow misreads are found in columns with any names."""

from __future__ import annotations

import io
from datetime import datetime

import pyarrow
import pyarrow.parquet
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns

NEAR, FAR = datetime(2026, 1, 1), datetime(9999, 12, 31)
NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(".".join)
AT = pyarrow.timestamp("us")


def column(below: list[str], is_far: bool) -> pyarrow.Array:
    """Return a column of one time, inside structs with some names."""
    values = pyarrow.array([FAR if is_far else NEAR], AT)
    for name in reversed(below):
        values = pyarrow.StructArray.from_arrays([values], names=[name])
    return values


@given(st.dictionaries(NAMES, st.tuples(st.lists(NAMES, max_size=2), st.booleans()), min_size=1, max_size=5))
def test_misread_columns_are_found_among_names_with_dots_and_structs(
    columns: dict[str, tuple[list[str], bool]],
) -> None:
    file = io.BytesIO()
    table = pyarrow.table({name: column(below, is_far) for name, (below, is_far) in columns.items()})
    pyarrow.parquet.write_table(table, file, use_deprecated_int96_timestamps=True)
    assert misread_columns(file) == sorted(name for name, (_, is_far) in columns.items() if is_far)
