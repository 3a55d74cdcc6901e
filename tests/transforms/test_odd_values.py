"""Aggregations of odd values: for any division into batches, the rows equal those of one pass with the equality of ``GROUP BY``."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, MapType, StringType, StructType

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    PersistentState,
    Pipeline,
    State,
    StatePerKey,
    read_committed,
    run_batch,
)
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.transforms import monoids as m
from airflow_provider_streamsem.transforms.equality import never_empty, normal_form

NAN = math.nan
DOUBLES = [NAN, 0.0, -0.0, math.inf, -math.inf, 5e-324, 1.5, None]
COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "x": ("double", pa.float64(), DOUBLES),
    "f": ("float", pa.float32(), [NAN, 0.0, -0.0, 1.5, None]),
    "xs": ("array<double>", pa.list_(pa.float64()), [[NAN, -0.0], [0.0], [-0.0], [None], [], None]),
    "p": (
        "struct<a:double,b:string>",
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        [{"a": a, "b": b} for a in (NAN, 0.0, -0.0, None) for b in ("", None)] + [None],
    ),
    "s": ("string", pa.string(), ["", "a", "A", "é", "e\u0301", "\x00", None]),
    "b": ("binary", pa.binary(), [b"", b"\x00", b"\xff", None]),
    "d": ("decimal(38,2)", pa.decimal128(38, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("9" * 36 + ".99"), None]),
    "n": ("bigint", pa.int64(), [0, 2**63 - 1, -(2**63), 2**53 + 1, None]),
}
SCHEMA = ", ".join(["k string", *(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())])
ARROW = pa.schema([("k", pa.string()), *((name, kind) for name, (_, kind, _) in COLUMNS.items())])


def pipeline(root: Path, transform: Any) -> Pipeline:
    return Pipeline(
        name="odd",
        log=str(root / "log"),
        source=FilesSource(path=str(root / "in"), format="parquet", schema=SCHEMA),
        sinks={"out": FilesSink(path=str(root / "out"))},
        transform=transform,
        state=State(output_mode="update", partitions=1),
    )


def run(root: Path, transform: Any, batches: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    (root / "in").mkdir(parents=True)
    for number, batch in enumerate(batches):
        table = pa.Table.from_pylist(list(batch), ARROW)
        # Several row groups and files give Spark several tasks, whose partial values it merges.
        for part in range(2):
            pq.write_table(table[part::2] if len(batch) > 1 else table, root / "in" / f"{number}-{part}.parquet")
            if len(batch) == 1:
                break
        run_batch(pipeline(root, transform), run_key=f"run {number}")


def canonical(value: Any) -> Any:
    """Return a value that is equal for values that are equal in ``GROUP BY``."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, Mapping):
        return tuple(canonical(each) for each in value.values())
    return tuple(map(canonical, value)) if isinstance(value, (list, tuple)) else value


def is_negative_zero(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(is_negative_zero, value))
    return isinstance(value, float) and value == 0 and math.copysign(1, value) < 0


def random_records(seed: int) -> list[dict[str, Any]]:
    choose = random.Random(seed)
    records = [
        {"k": f"{choose.randrange(6)}", **{name: choose.choice(values) for name, (_, _, values) in COLUMNS.items()}}
        for _ in range(240)
    ]
    return [*records, *({"k": "null", **dict.fromkeys(COLUMNS)} for _ in range(3))]


@pytest.mark.spark
def test_odd_values_are_counted_and_distinguished_as_in_one_group_by(spark: SparkSession, tmp_path: Path) -> None:
    values = {f"distinct_{name}": m.distinct_values(name) for name in COLUMNS}
    frequent = ("x", "f", "s", "d", "n")
    values |= {f"frequent_{name}": m.approximate_most_frequent(name, 20) for name in frequent}
    values |= {f"hll_{name}": m.approximate_distinct(name) for name in ("s", "b", "n")}
    values |= {f"theta_{name}": m.approximate_distinct_theta(name) for name in ("s", "b", "n", "x", "f")}
    values |= {"rows": m.count(), "largest": m.approximate_quantile("x", 1.0)}
    records = random_records(49)
    run(tmp_path, Aggregate(by=["k"], values=values), [records[:100], records[100:101], records[101:]])
    newest = {row["k"]: row for row in sorted(read_committed(spark, str(tmp_path / "log")).collect(), key=rows_of)}
    for key in {record["k"] for record in records}:
        group, row = [record for record in records if record["k"] == key], newest[key]
        for name in COLUMNS:
            counts = Counter(canonical(record[name]) for record in group)
            distinct = set(counts) - {None}
            found = row[f"distinct_{name}"]
            assert Counter(map(canonical, found)) == Counter(distinct), (key, name)
            assert not any(map(is_negative_zero, found)), (key, name)
            if name in frequent:
                assert {canonical(each["item"]): each["count"] for each in row[f"frequent_{name}"]} == counts
                assert len(row[f"frequent_{name}"]) == len(counts), (key, name)
            for sketch in ("hll", "theta"):
                if f"{sketch}_{name}" in values:
                    assert row[f"{sketch}_{name}"] == len(distinct), (key, sketch, name)
        numbers = [x for record in group if (x := record["x"]) is not None and not math.isnan(x)]
        assert row["largest"] == max(numbers, default=None), key


def rows_of(row: Any) -> int:
    return int(row["rows"])


class Rows(PersistentState):
    """The number of records of a key."""

    def __init__(self) -> None:
        self.rows = 0

    def restore(self, snapshot: Any) -> None:
        self.rows = snapshot

    def update(self, rows: pd.DataFrame) -> None:
        self.rows += len(rows)

    def snapshot(self) -> Any:
        return self.rows

    def value(self) -> Mapping[str, Any]:
        return {"rows": self.rows}


@pytest.mark.spark
def test_equal_keys_of_a_state_object_have_one_state(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[{"x": x, "p": {"a": x, "b": ""}} for x in part] for part in ([0.0, NAN], [-0.0, NAN], [-0.0, 0.0, NAN])]
    run(tmp_path, StatePerKey(by=["x", "p"], state=Rows, schema="rows bigint"), batches)
    newest: dict[Any, int] = {}
    for row in sorted(read_committed(spark, str(tmp_path / "log")).collect(), key=rows_of):
        newest[canonical((row["x"], row["p"]))] = row["rows"]
    assert newest == {(0.0, (0.0, "")): 4, ("NaN", ("NaN", "")): 3}


@pytest.mark.spark
@pytest.mark.parametrize("column", ["n", "d"])
def test_sum_that_overflows_fails_the_batch_without_ansi_mode_too(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    largest = max(value for value in COLUMNS[column][2] if value is not None)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        aggregate = Aggregate(by=["k"], values={"total": m.sum(column)})
        with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
            run(tmp_path, aggregate, [[{"k": "a", column: largest}], [{"k": "a", column: largest}] * 60])
        rows = read_committed(spark, str(tmp_path / "log")).collect()
        assert [row["total"] for row in rows] == [largest]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def test_largest_values_do_not_depend_on_the_order_of_zeros() -> None:
    top = m.Top("x", 1, "array<double>")
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        assert str(top.of(pd.DataFrame({"x": [*zeros, NAN]}))) == "[0.0]"


def test_types_without_odd_values_are_compared_unchanged() -> None:
    kinds = [
        LongType(),
        StringType(),
        ArrayType(StringType()),
        StructType().add("a", "string"),
        MapType(StringType(), LongType()),
    ]
    assert [normal_form("`v`", kind) for kind in kinds] == ["`v`"] * 5
    assert never_empty("`v`", LongType()) == "`v`"
    assert never_empty("`v`", BinaryType()) != "`v`"
    nested = normal_form("`v`", ArrayType(ArrayType(DoubleType())))
    assert nested == "transform(`v`, item_0 -> transform(item_0, item_1 -> (nanvl(item_1, double('NaN')) + double(0))))"
