"""Aggregations and state objects: for any division into batches, the rows equal those of one pass over all records."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    JdbcSink,
    PersistentState,
    Pipeline,
    State,
    StatePerKey,
    Window,
    read_committed,
    read_state,
    run_batch,
)
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.transforms import monoids as m
from tests.connectors.sql.sqlite_database import database_at
from tests.state.crashes import run_and_crash_after_state_write

SCHEMA = "t timestamp, k string, n long, price decimal(9,2), x double"
COLUMNS = {
    "t": pa.timestamp("us", "UTC"),
    "k": pa.string(),
    "n": pa.int64(),
    "price": pa.decimal128(9, 2),
    "x": pa.float64(),
    "window": pa.string(),
    "window_start": pa.int64(),
}
START = datetime.datetime(2024, 1, 1)
RECORDS = [
    {"minute": minute, "k": "abc"[number % 3], "n": number, "price": Decimal(f"{number}.25"), "x": number / 4}
    for number, minute in enumerate((1, 2, 7, 3, 9, 12, 8, 14, 11, 17, 16, 21))
]
"""records whose event times are at most four minutes out of order"""
CUTS = [(12,), (1, 4, 4, 3)]
LAST = {"minute": 1_000, "k": "z", "n": 0, "price": Decimal(0), "x": 0.0}
"""closes all windows of the other records"""
FIVE_MINUTES = Window(time="t", size="5 minutes", delay="5 minutes")
SESSIONS = Window(time="t", gap="5 minutes", delay="5 minutes")


class Balance(PersistentState):
    """The number of records and the sum of a key."""

    def __init__(self) -> None:
        self.records, self.total = 0, 0

    def restore(self, snapshot: Any) -> None:
        self.records, self.total = snapshot

    def update(self, rows: pd.DataFrame) -> None:
        self.records += len(rows)
        self.total += rows["n"].sum()

    def snapshot(self) -> Any:
        return [self.records, self.total]

    def value(self) -> Mapping[str, Any]:
        return {"records": self.records, "total": self.total}


def pipeline(root: Path, transform: Callable[[Any], Any] | None, mode: str) -> Pipeline:
    return Pipeline(
        name="aggregate",
        log=str(root / "log"),
        source=FilesSource(path=str(root / "in"), format="parquet", schema=SCHEMA),
        sinks={"out": FilesSink(path=str(root / "out"))},
        transform=transform,
        state=State(output_mode=mode, partitions=2),
    )


def run_cut(root: Path, spec: Pipeline, cut: tuple[int, ...], *, then_close: bool) -> None:
    """Run one batch for each part of the records, and with ``then_close`` the batches that close all windows."""
    pending = iter(RECORDS)
    batches = [[next(pending) for _ in range(size)] for size in cut]
    batches += [[LAST], [{**LAST, "minute": 1_001}]] if then_close else []
    for number, batch in enumerate(batches):
        arrive(root, number, batch)
        run_batch(spec, run_key=f"run {number}")


def arrive(root: Path, number: int, records: list[dict[str, Any]]) -> None:
    """Write the records of a batch as a Parquet file, which costs Spark less than JSON lines."""
    (root / "in").mkdir(parents=True, exist_ok=True)
    columns = [(name, COLUMNS[name]) for name in ("t", *records[0]) if name != "minute"]
    table = pa.Table.from_pylist([{"t": at(record), **record} for record in records], pa.schema(columns))
    pq.write_table(table, root / "in" / f"{number}.parquet")


def at(record: Mapping[str, Any]) -> datetime.datetime:
    return START + datetime.timedelta(minutes=record["minute"])


def rows(spark: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    frame = read_committed(spark, str(root / "log"))
    return sorted((tuple(row) for row in frame.where("k <> 'z'").collect()), key=repr)


def newest(rows: list[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """key → the row with the largest count. Every later batch increases the count."""
    return {key: max(row[1:] for row in rows if row[0] == key) for key in {row[0] for row in rows}}


@pytest.mark.spark
@pytest.mark.parametrize("cut", [pytest.param(CUTS[0], marks=pytest.mark.prove), CUTS[1]], ids=str)
def test_windows_of_spark_functions_equal_those_of_one_pass(
    spark: SparkSession, tmp_path: Path, cut: tuple[int, ...]
) -> None:
    aggregate = Aggregate(
        by=["k"],
        window=FIVE_MINUTES,
        values={"count": m.count(), "price": m.sum("price"), "least": m.min("n"), "last": m.max_by("n", "t"), "ns": m.distinct_values("n")},
    )  # fmt: skip
    run_cut(tmp_path, pipeline(tmp_path, aggregate, "append"), cut, then_close=True)
    groups = defaultdict(list)
    for record in RECORDS:
        start = START + datetime.timedelta(minutes=record["minute"] // 5 * 5)
        groups[record["k"], start].append(record)
    expected = [
        (
            k, start, start + datetime.timedelta(minutes=5), len(group), sum(r["price"] for r in group), min(r["n"] for r in group),
            max(group, key=at)["n"], sorted(r["n"] for r in group),
        )
        for (k, start), group in groups.items()
    ]  # fmt: skip
    found = rows(spark, tmp_path)
    assert found == sorted(expected, key=repr)
    assert sum(row[4] for row in found) * 100 == sum(r["n"] * 100 + 25 for r in RECORDS)


@pytest.mark.spark
@pytest.mark.parametrize(
    "numbers",
    [m.distinct_values("n"), pytest.param(m.Top("n", 99, "array<bigint>"), marks=pytest.mark.prove)],
    ids=["Spark", "Python"],
)
def test_record_is_in_each_overlapping_window_that_contains_its_time(
    spark: SparkSession, tmp_path: Path, numbers: Any
) -> None:
    window = Window(time="t", size="10 minutes", slide="4 minutes", delay="5 minutes")
    aggregate = Aggregate(by=["k"], window=window, values={"numbers": numbers})
    run_cut(tmp_path, pipeline(tmp_path, aggregate, "append"), CUTS[1], then_close=True)
    midnight = int(START.replace(tzinfo=datetime.timezone.utc).timestamp()) // 60
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for record in RECORDS:
        minute = midnight + record["minute"]
        newest = minute - minute % 4  # windows start at multiples of the slide since the epoch
        for start in range(newest, minute - 10, -4):
            groups[record["k"], start - midnight].append(record["n"])
    expected = [
        (k, at({"minute": start}), at({"minute": start + 10}), sorted(group)) for (k, start), group in groups.items()
    ]
    assert sum(map(len, groups.values())) > 2 * len(RECORDS), "a record is in two or three windows"
    assert [(*row[:3], sorted(row[3])) for row in rows(spark, tmp_path)] == sorted(expected, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize(
    "window", [None, pytest.param(FIVE_MINUTES, marks=pytest.mark.prove)], ids=["no window", "windows"]
)
def test_complete_result_of_each_batch_equals_one_pass_over_the_records_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: Window | None
) -> None:
    aggregate = Aggregate(by=["k"], window=window, values={"n": m.count(), "total": m.sum("n")})
    start = "'-'" if window is None else "date_format(window_start, 'HH:mm')"
    db = database_at(tmp_path / "db.sqlite", monkeypatch)
    db.run('CREATE TABLE "t" (k VARCHAR(9), start VARCHAR(9), n BIGINT, total BIGINT, PRIMARY KEY (k, start))')
    staging = str(tmp_path / "staging")
    spec = pipeline(tmp_path, None, "update").replace(
        state=State(output_mode="complete", partitions=2),
        transform=lambda records: aggregate(records).selectExpr("k", f"{start} AS start", "n", "total"),
        sinks={"out": JdbcSink(conn_id="db", table="t", staging=staging, mode="upsert", keys=["k", "start"])},
    )
    done = 0
    for number, size in enumerate(CUTS[1]):
        arrive(tmp_path, number, RECORDS[done : done + size])
        done += size
        groups = defaultdict(list)
        for record in RECORDS[:done]:
            groups[record["k"], "-" if window is None else f"00:{record['minute'] // 5 * 5:02d}"].append(record["n"])
        written = run_batch(spec, run_key=f"run {number}").counts["written.out"]
        assert written == len(groups), "each batch returns all groups"
        found = sorted(db.run('SELECT k, start, n, total FROM "t"'))
        assert found == sorted((*key, len(group), sum(group)) for key, group in groups.items())


@pytest.mark.spark
def test_every_function_of_spark_is_accepted_by_a_streaming_aggregation(spark: SparkSession, tmp_path: Path) -> None:
    values = {
        "counted": m.count("n"), "total": m.sum("n"), "least": m.min("n"), "most": m.max("n"), "first": m.min_by("n", "t"), "last": m.max_by("n", "t"),
        "mean": m.mean("n"), "variance": m.variance("n"), "distinct": m.approximate_distinct("n"), "theta": m.approximate_distinct_theta("n"),
        "median": m.approximate_quantile("x", 0.5), "frequent": m.approximate_most_frequent("n", 2),
    }  # fmt: skip
    run_cut(tmp_path, pipeline(tmp_path, Aggregate(values=values, by=["k"]), "update"), (5, 7), then_close=False)
    for k, (counted, total, least, most, first, last, mean, variance, distinct, theta, median, frequent) in newest(
        rows(spark, tmp_path)
    ).items():
        group = sorted((r for r in RECORDS if r["k"] == k), key=at)
        numbers = [r["n"] for r in group]
        assert (counted, total, least, most) == (len(numbers), sum(numbers), min(numbers), max(numbers))
        assert (first, last, distinct, theta) == (numbers[0], numbers[-1], 4, 4)
        assert (mean, variance) == pytest.approx((pd.Series(numbers).mean(), pd.Series(numbers).var()))
        assert min(numbers) / 4 <= median <= max(numbers) / 4
        assert [count for _, count in frequent] == sorted(Counter(numbers).values(), reverse=True)[:2]
        assert all(Counter(numbers)[item] == count for item, count in frequent)


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.parametrize("cut", CUTS[1:], ids=str)
def test_windows_of_python_monoids_equal_those_of_one_pass(
    spark: SparkSession, tmp_path: Path, cut: tuple[int, ...]
) -> None:
    aggregate = Aggregate(by=["k"], window=FIVE_MINUTES, values={"top": m.Top("n", 2, "array<bigint>")})
    run_cut(tmp_path, pipeline(tmp_path, aggregate, "append"), cut, then_close=True)
    groups = defaultdict(list)
    for record in RECORDS:
        groups[record["k"], record["minute"] // 5 * 5].append(record["n"])
    expected = {
        (k, START + datetime.timedelta(minutes=start)): sorted(ns, reverse=True)[:2]
        for (k, start), ns in groups.items()
    }
    found = rows(spark, tmp_path)
    assert {(k, start): top for k, start, _, top in found} == expected
    assert len(found) == len(expected)
    assert all(end - start == datetime.timedelta(minutes=5) for _, start, end, _ in found)


@pytest.mark.spark
@pytest.mark.parametrize("cut", [pytest.param(CUTS[0], marks=pytest.mark.prove), (6, 2, 4)], ids=str)
def test_sessions_of_python_monoids_equal_those_of_one_pass(
    spark: SparkSession, tmp_path: Path, cut: tuple[int, ...]
) -> None:
    """In the second case, a record of the last batch joins two sessions of the first one: those of ``c`` at minutes 7 and 12."""
    aggregate = Aggregate(
        by=["k"], window=SESSIONS, values={"numbers": m.Top("n", 99, "array<bigint>"), "total": SumOf("n")}
    )
    run_cut(tmp_path, pipeline(tmp_path, aggregate, "append"), cut, then_close=True)
    expected = []
    for k in "abc":
        sessions: list[list[dict[str, Any]]] = []
        for record in sorted((record for record in RECORDS if record["k"] == k), key=at):
            # A record at the end of a session extends it.
            if sessions and record["minute"] <= sessions[-1][-1]["minute"] + 5:
                sessions[-1].append(record)
            else:
                sessions.append([record])
        for session in sessions:
            numbers = sorted(record["n"] for record in session)
            end = at({"minute": session[-1]["minute"] + 5})
            expected.append((k, at(session[0]), end, numbers, sum(numbers)))
    assert ("c", at({"minute": 7}), at({"minute": 17}), [2, 5, 8], 15) in expected
    assert [(*row[:3], sorted(row[3]), row[4]) for row in rows(spark, tmp_path)] == sorted(expected, key=repr)


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.parametrize("column", ["t", "a time"])
def test_time_column_of_a_python_state_may_have_any_name_and_case(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    window = Window(time=column.upper(), size="5 minutes", delay="5 minutes")
    aggregate = Aggregate(by=["k"], window=window, values={"n": SumOf("n"), "top": m.Top("n", 9, "array<bigint>")})
    spec = pipeline(tmp_path, lambda records: aggregate(records.withColumnRenamed("t", column)), "append")
    run_cut(tmp_path, spec, (12,), then_close=True)
    assert sum(row[3] for row in rows(spark, tmp_path)) == sum(record["n"] for record in RECORDS)


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.parametrize("window", [{"size": "5 minutes"}, {"gap": "5 minutes"}], ids=["windows", "sessions"])
def test_python_monoids_and_spark_functions_have_the_same_windows_and_late_records(
    spark: SparkSession, tmp_path: Path, window: dict[str, str]
) -> None:
    """The watermark is at minute 21 when the last records arrive. Some of them are before it, in windows that are open."""
    found = []
    for name, values in (("Spark", {"total": m.sum("n")}), ("Python", {"total": SumOf("n")})):
        aggregate = Aggregate(by=["k"], window=Window(time="t", delay="0 minutes", **window), values=values)
        spec, late = pipeline(tmp_path / name, aggregate, "append"), 0
        for number, minutes in enumerate(([10, 20], [21], [22], [14, 16, 17, 20, 21, 23], [60], [61])):
            records = [{**RECORDS[minute % 2], "minute": minute, "n": minute} for minute in minutes]
            arrive(tmp_path / name, number, records)
            late += run_batch(spec, run_key=f"run {number}").counts["late"]
        found.append((late > 0, rows(spark, tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0], "no record was late"


@pytest.mark.spark
@pytest.mark.parametrize(
    "values",
    [{"n": m.count()}, pytest.param({"n": m.Top("n", 9, "array<bigint>")}, marks=pytest.mark.prove)],
    ids=["Spark", "Python"],
)
def test_windows_do_not_depend_on_the_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, values: Mapping[str, Any]
) -> None:
    """Clocks in New York show the hour from 01:00 twice on this day. The records are one hour apart and have the same local time."""
    spec = pipeline(tmp_path, Aggregate(by=["k"], window=FIVE_MINUTES, values=values), "append")
    midnight = int((datetime.datetime(2024, 11, 3) - START).total_seconds()) // 60
    minutes = [midnight + hour * 60 + 31 for hour in (5, 6)]
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        for number, minute in enumerate((*minutes, minutes[1] + 20, minutes[1] + 21)):
            arrive(tmp_path, number, [{**RECORDS[0], "minute": minute}])
            run_batch(spec, run_key=f"run {number}")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    frame = read_committed(spark, str(tmp_path / "log")).selectExpr("unix_micros(window_start) AS at").orderBy("at")
    expected = [
        (START + datetime.timedelta(minutes=minute - 1)).replace(tzinfo=datetime.timezone.utc) for minute in minutes
    ]
    assert [row["at"] for row in frame.collect()] == [int(start.timestamp()) * 1_000_000 for start in expected]


@pytest.mark.spark
def test_state_object_applies_each_record_once_over_batches_and_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pipeline(tmp_path, StatePerKey(by=["k"], state=Balance, schema="records bigint, total bigint"), "update")
    for number, batch in enumerate((RECORDS[:5], RECORDS[5:])):
        arrive(tmp_path, number, batch)
        if number == 1:
            run_and_crash_after_state_write(monkeypatch, spec, "run 1")
        run_batch(spec, run_key=f"run {number}")
    counted = Counter(record["k"] for record in RECORDS)
    expected = {k: (counted[k], sum(r["n"] for r in RECORDS if r["k"] == k)) for k in counted}
    assert newest(rows(spark, tmp_path)) == expected
    snapshots = read_state(spark, spec.log, options={"stateVarName": "snapshot"}).selectExpr("key.k", "value.json")
    assert {k: tuple(json.loads(text)) for k, text in snapshots.collect()} == expected


@pytest.mark.spark
def test_null_changes_no_integer_of_its_key_or_of_another_and_null_keys_are_a_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    large = 2**53 + 1
    spec = pipeline(tmp_path, Aggregate(by=["k"], values={"top": m.Top("n", 2, "array<bigint>")}), "update")
    given = [("a", large), ("a", None), ("b", None), ("c", large), (None, large)]
    arrive(tmp_path, 0, [{**RECORDS[0], "k": k, "n": n} for k, n in given])
    run_batch(spec, run_key="first")
    found = read_committed(spark, str(tmp_path / "log")).collect()
    assert {row["k"]: row["top"] for row in found} == {"a": [large], "b": [], "c": [large], None: [large]}


@dataclass(frozen=True, slots=True)
class SumOf(m.Monoid):
    column: str
    since: datetime.date = datetime.date(2024, 1, 1)
    type = "bigint"

    def identity(self) -> int:
        return 0

    def of(self, rows: pd.DataFrame) -> int:
        return int(rows[self.column].sum())

    def combine(self, left: int, right: int) -> int:
        return left + right


def test_definition_shows_each_attribute_of_a_monoid_and_each_argument_of_a_state() -> None:
    assert str(SumOf("n")) == 'SumOf(column="n", since=datetime.date(2024, 1, 1))'
    states = [StatePerKey(by=["k"], state=partial(Scaled, scale), schema="n bigint").definition for scale in (1, 2)]
    assert "Scaled" in states[0]
    assert states[0] != states[1]


class Scaled(Balance):
    def __init__(self, scale: int) -> None:
        super().__init__()
        self.scale = scale


@pytest.mark.parametrize(
    ("transform", "mode"),
    [
        (Aggregate(by=["k"], values={"n": m.count()}), "append"),
        (Aggregate(by=["k"], values={"n": SumOf("n")}), "append"),
        (Aggregate(by=["k"], values={"n": SumOf("n")}, window=FIVE_MINUTES), "update"),
        (StatePerKey(by=["k"], state=Balance, schema="n bigint"), "append"),
    ],
    ids=str,
)
def test_output_mode_that_the_transform_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Callable[[Any], Any], mode: str
) -> None:
    with pytest.raises(InvalidError, match="one of the accepted output modes"):
        pipeline(tmp_path, transform, mode)
    with pytest.raises(InvalidError, match="one of the accepted output modes"):
        pipeline(tmp_path, None, "update").replace(transform=transform, state=None)
    monkeypatch.setattr("tests.transforms.NAMED", transform, raising=False)
    named = pipeline(tmp_path, None, mode).replace(transform="tests.transforms:NAMED")
    with pytest.raises(InvalidError, match="one of the accepted output modes"):
        named.load_transform()


def test_session_windows_are_not_returned_before_they_are_closed() -> None:
    """A sink with mode="upsert" would keep the rows of sessions that a later record merges, so it would hold their records twice."""
    sessions = Window(time="t", gap="3 minutes", delay="5 minutes")
    assert Aggregate(by=["k"], values={"n": m.count()}, window=sessions).output_modes == ("append",)


def test_ready_made_transform_of_several_sources_is_refused(tmp_path: Path) -> None:
    parts = {
        name: FilesSource(path=str(tmp_path / name), format="json", schema=SCHEMA, hive_partitions=False)
        for name in ("a", "b")
    }
    with pytest.raises(InvalidError, match="the pipeline has several"):
        pipeline(tmp_path, Aggregate(by=["k"], values={"n": m.count()}), "update").replace(source=None, sources=parts)


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.parametrize("values", [{"n": m.count()}, {"n": SumOf("n")}], ids=["Spark", "Python"])
def test_columns_may_have_the_names_of_window_columns(
    spark: SparkSession, tmp_path: Path, values: Mapping[str, Any]
) -> None:
    schema = "`window` string, window_start long, n long, t timestamp"
    spec = pipeline(tmp_path, Aggregate(by=["window"], window=FIVE_MINUTES, values=values), "append").replace(
        source=FilesSource(path=str(tmp_path / "in"), format="parquet", schema=schema)
    )
    for number, minute in enumerate((1, 100, 101)):
        arrive(tmp_path, number, [{"minute": minute, "window": "w", "window_start": 5, "n": 1}])
        run_batch(spec, run_key=f"run {number}")
    (row,) = read_committed(spark, str(tmp_path / "log")).collect()
    assert (row["window"], row["window_start"], row["n"]) == ("w", START, 1)


def test_spec_names_the_aggregation_and_changes_with_it(tmp_path: Path) -> None:
    counts = pipeline(tmp_path, Aggregate(by=["k"], values={"n": m.count()}), "update")
    sums = pipeline(tmp_path, Aggregate(by=["k"], values={"n": m.sum("n")}), "update")
    assert counts.transform_name == "airflow_provider_streamsem.transforms.aggregate:<Aggregate(by=[k], n=count(*))>"
    assert counts.spec_sha256 != sums.spec_sha256


def test_transform_that_is_an_object_of_the_user_is_named_by_its_class(tmp_path: Path) -> None:
    class Scaled:
        def __call__(self, frame: DataFrame) -> DataFrame:
            return frame

    name = pipeline(tmp_path, Scaled(), "update").transform_name
    assert name.endswith(":<test_transform_that_is_an_object_of_the_user_is_named_by_its_class.<locals>.Scaled>")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Aggregate(values={}), "at least one column"),
        (lambda: Aggregate(values={"n": "count(*)"}), "must be a monoid"),  # type: ignore[dict-item]
        (lambda: Aggregate(by=["n"], values={"N": m.count()}), "contains a name twice"),
        (lambda: Aggregate(by=["k"], values={"n": m.count(), "top": m.Top("n", 2, "array<bigint>")}), "cannot mix"),
        (lambda: Aggregate(values={"top": m.Top("n", 2, "array<bigint>")}), "at least one key column"),
        (lambda: StatePerKey(by=["k"], state=Balance, schema="n bigint", window=SESSIONS), "need a state with the method merge"),
        (lambda: Window(time="t", delay="1 minute"), "either a size"),
        (lambda: Window(time="t", delay="1 minute", size="1 hour", gap="1 hour"), "either a size"),
        (lambda: Aggregate(by=["k"], values={"window_end": m.count()}, window=FIVE_MINUTES), "window_start and window_end"),
        (lambda: m.Top("price", 2, "array<decimal(9,2)>"), "top.type is not valid"),
        (lambda: m.Top("n", 0, "array<bigint>"), "must be an integer of 1 or more"),
        (lambda: m.approximate_quantile("x", 2), "from 0 to 1"),
        (lambda: StatePerKey(by=["k"], state=3, schema="n bigint"), "must create a PersistentState"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_invalid_aggregation_is_refused_when_it_is_created(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


@pytest.mark.spark
@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"n": m.count()}, id="Spark"),
        pytest.param({"n": m.Top("n", 9, "array<bigint>")}, id="Python", marks=pytest.mark.prove),
    ],
)
def test_record_of_a_closed_window_is_late_and_does_not_open_it_again(
    spark: SparkSession, tmp_path: Path, values: Mapping[str, Any]
) -> None:
    spec = pipeline(tmp_path, Aggregate(by=["k"], window=FIVE_MINUTES, values=values), "append")
    late = []
    for number, minute in enumerate((1, 100, 101, 2, 102, 103)):
        arrive(tmp_path, number, [{**RECORDS[0], "minute": minute}])
        late.append(run_batch(spec, run_key=f"run {number}").counts["late"])
    assert late == [0, 0, 0, 1, 0, 0]
    assert [row[1] for row in rows(spark, tmp_path)] == [START]


@pytest.mark.spark
def test_changed_aggregation_is_refused_because_the_meaning_of_its_state_would_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path, 0, RECORDS[:3])
    first = Aggregate(by=["k"], values={"v": m.sum("n")}, window=FIVE_MINUTES)
    run_batch(pipeline(tmp_path, first, "update"), run_key="first")
    arrive(tmp_path, 1, RECORDS[3:6])
    for changed in (
        Aggregate(by=["k"], values={"v": m.sum("minute")}, window=FIVE_MINUTES),
        Aggregate(by=["k"], values={"w": m.sum("n")}, window=FIVE_MINUTES),
        Aggregate(by=["k"], values={"v": m.sum("n")}, window=Window(time="t", size="6 minutes", delay="5 minutes")),
    ):
        with pytest.raises(InvalidError, match="would have another meaning"):
            run_batch(pipeline(tmp_path, changed, "update"), run_key="second")
    later = Aggregate(by=["k"], values={"v": m.sum("n")}, window=Window(time="t", size="5 minutes", delay="6 minutes"))
    assert run_batch(pipeline(tmp_path, later, "update"), run_key="second").status == "committed"


def test_definition_with_a_set_is_the_same_in_every_process() -> None:
    code = "from airflow_provider_streamsem.transforms.snapshot import text_of; print(text_of({'a': frozenset('bcdefgh')}))"
    texts = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(texts) == 1


def test_definition_names_the_arguments_of_monoids_and_the_class_of_a_state() -> None:
    top = Aggregate(by=["k"], values={"top": m.Top("n", 2, "array<bigint>")})
    assert "k=2" in top.definition
    assert "Balance" in StatePerKey(by=["k"], state=Balance, schema="n bigint").definition
