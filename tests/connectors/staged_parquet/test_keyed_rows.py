"""Of rows with equal keys, batches are refused if and only if the rows differ and nothing orders them."""

from __future__ import annotations

import itertools
import math
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import FilesSink
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable
from tests.connectors import batches

COLUMNS = pyarrow.schema(
    [("k", "string"), ("n", "int64"), ("s", "double"), ("v", pyarrow.list_(pyarrow.float64())), ("part", "int64")]
)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "n": st.integers(0, 1),
        "s": st.sampled_from([0.0, -0.0, 1.0, math.nan, None]),
        "v": st.sampled_from([None, [], [1.0], [None], [math.nan]]),
    }
)


def collected(root: Path, files: list[pyarrow.Table]) -> tuple[FilesSink, Committable]:
    """Stage one file for each Spark partition."""
    sink = FilesSink(str(root / "table"))
    sink.claim(batches.UUID, "memory://batches", new=True)
    location = Path(sink.attempt_location(0, "a" * 32))
    location.mkdir(parents=True)
    for at, rows in enumerate(files):
        pyarrow.parquet.write_table(
            rows, location / f"part-{at:05}-0-c000.snappy.parquet", row_group_size=2 if rows.num_rows < 10 else None
        )
    return sink, sink.collect(0, "a" * 32)


def same(value: Any) -> Any:
    """Return a value that equals another one if Spark sorts both as equal."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def ambiguous(files: list[list[dict[str, Any]]], names: list[str], groups: list[int]) -> int:
    """Return the number of sets of rows with equal values in ``names``, in one group, that differ in another column."""
    sets: dict[Any, set[str]] = {}
    for at, rows in enumerate(files):
        for row in rows:
            key = (groups[at] if groups else 0, *(same(row[name]) for name in names))
            sets.setdefault(key, set()).add(repr([row[name] for name in ("k", "n", "s", "v")]))
    return sum(len(rows) > 1 for rows in sets.values())


@given(
    st.lists(st.lists(ROW, max_size=4), min_size=1, max_size=4),
    st.sampled_from([[], ["s"], ["n", "s"]]),
    st.one_of(st.just([]), st.lists(st.integers(0, 2), min_size=4, max_size=4).map(sorted)),
)
def test_batch_is_refused_exactly_if_rows_of_a_key_and_group_differ(
    files: list[list[dict[str, Any]]], sequence_by: list[str], groups: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        tables = [pyarrow.Table.from_pylist([{**row, "part": 0} for row in rows], COLUMNS) for rows in files]
        sink, staged = collected(Path(root), tables)
        expected = ambiguous(files, ["k", *sequence_by], groups)
        if not expected:
            keyed_rows.refuse_ambiguous(sink.location, staged, ["k"], sequence_by, groups=groups)
            return
        with pytest.raises(DataError, match="their order is unknown; nothing became visible") as refused:
            keyed_rows.refuse_ambiguous(sink.location, staged, ["k"], sequence_by, groups=groups)
        assert refused.value.fields["repeated_keys"] == expected


def test_staged_file_outside_the_planned_partitions_is_refused(tmp_path: Path) -> None:
    rows = pyarrow.table({"k": ["a"]})
    sink, staged = collected(tmp_path, [rows, rows, rows])
    with pytest.raises(DataError, match="not of a planned Spark partition"):
        keyed_rows.refuse_ambiguous(sink.location, staged, ["k"], [], groups=[0, 1])


def test_check_of_many_keys_builds_no_python_objects_for_each_row(tmp_path: Path) -> None:
    keys = numpy.random.default_rng(1).permutation(100_000)
    sink, staged = collected(tmp_path, [pyarrow.table({"k": keys, "v": keys})])
    keyed_rows.refuse_ambiguous(sink.location, staged, ["k"], [])  # imports what it needs
    tracemalloc.start()
    try:
        keyed_rows.refuse_ambiguous(sink.location, staged, ["k"], [])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * 100_000


def test_versions_inside_the_span_of_a_rewrite_are_of_its_group() -> None:
    from airflow_provider_streamsem.connectors.data_files import groups

    found = groups.of_items([("rewritten", 1, 4), ("a", 0, 0), ("b", 2, 2), ("c", 5, 5), ("again", 4, 6), ("d", 7, 7)])
    assert found == {"a": 0, "rewritten": 1, "b": 1, "again": 1, "c": 1, "d": 2}


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=8)


@given(SPANS)
def test_items_are_ordered_if_their_spans_of_versions_do_not_overlap(spans: list[tuple[int, int]]) -> None:
    from airflow_provider_streamsem.connectors.data_files import groups

    items = [(key, first, first + more) for key, (first, more) in enumerate(spans)]
    found = groups.of_items(items)
    for (one, first, last), (other, other_first, other_last) in itertools.permutations(items, 2):
        if first <= other_last and other_first <= last:
            assert found[one] == found[other]
        if found[one] < found[other]:
            assert last < other_first


@given(st.lists(st.integers(0, 900 << 20), min_size=2, max_size=20))
def test_each_group_has_partitions_in_order(sizes: list[int]) -> None:
    from airflow_provider_streamsem.connectors.data_files import groups

    layout = groups.partitions({at: at for at in range(len(sizes))}, dict(enumerate(sizes)))
    assert layout == sorted(layout)
    assert set(layout) == set(range(len(sizes)))
    assert groups.partitions({0: 0, 1: 0}, {0: 1 << 40, 1: 1}) == []
