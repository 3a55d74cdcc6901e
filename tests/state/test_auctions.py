"""Queries over a stream of auctions and bids: for any division into batches, with a crash in between, the rows equal those of DuckDB in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    PersistentState,
    Pipeline,
    State,
    StatePerKey,
    Window,
    read_committed,
    run_batch,
)
from airflow_provider_streamsem.transforms import monoids as m
from tests.state import auctions
from tests.state.crashes import run_and_crash_after_state_write

pytestmark = [pytest.mark.prove, pytest.mark.spark]
DELAY = f"{auctions.DISORDER_S} seconds"
EVENTS = 240


def bids(events: DataFrame) -> DataFrame:
    return events.where("kind IN ('bid', 'end')")


def converted(events: DataFrame) -> DataFrame:
    """A filter and a map before an operator that makes the batch stateful."""
    return (
        events.where("kind = 'bid' AND auction % 3 = 0").dropDuplicates(["id"]).selectExpr("id", "price * 908 AS cents")
    )


def bids_of_auctions(events: DataFrame) -> DataFrame:
    """Bids within ten minutes of the start of their auction, with its category."""
    left = events.where("kind IN ('auction', 'end')").selectExpr("auction", "category", "at AS opened")
    right = bids(events).selectExpr("auction AS bid_on", "id", "at", "price")
    return (
        left.withWatermark("opened", DELAY)
        .join(
            right.withWatermark("at", DELAY),
            F.expr("auction = bid_on AND at >= opened AND at <= opened + INTERVAL 10 MINUTES"),
        )
        .where("id >= 0")
        .select("category", "id", "price")
    )


class LastPrices(PersistentState):
    """The average of the prices of the three newest bids."""

    def __init__(self) -> None:
        self.newest: list[list[int]] = []

    def restore(self, snapshot: Any) -> None:
        self.newest = snapshot

    def update(self, rows: pd.DataFrame) -> None:
        pairs = zip(rows["id"].tolist(), rows["price"].tolist(), strict=True)
        self.newest = sorted([*self.newest, *(list(pair) for pair in pairs)])[-3:]

    def snapshot(self) -> Any:
        return self.newest

    def value(self) -> Mapping[str, Any]:
        return {"last": self.newest[-1][0], "average": sum(price for _, price in self.newest) / len(self.newest)}


def average_of_last(events: DataFrame) -> DataFrame:
    return StatePerKey(by=["person"], state=LastPrices, schema="last bigint, average double")(
        events.where("kind = 'bid'")
    )


def over_bids(aggregate: Aggregate) -> Callable[[DataFrame], DataFrame]:
    return lambda events: aggregate(bids(events))


@dataclass(frozen=True)
class Query:
    """
    A transform, its output mode, the columns to compare, and the DuckDB query for the expected rows.

    :param newest: with output mode ``update``: the column that determines the newest row of each key (the first column)
    """

    transform: Callable[[DataFrame], DataFrame]
    mode: str
    columns: tuple[str, ...]
    sql: str
    newest: str = ""


QUERIES = {
    "filter and map": Query(
        converted, "append", ("id", "cents"),
        "SELECT id, price * 908 FROM events WHERE kind = 'bid' AND auction % 3 = 0",
    ),
    "join of two streams": Query(
        bids_of_auctions, "append", ("category", "id", "price"),
        """SELECT a.category, b.id, b.price FROM events a JOIN events b ON a.auction = b.auction AND b."at" >= a."at" AND b."at" <= a."at" + INTERVAL 10 MINUTE
           WHERE a.kind = 'auction' AND b.kind = 'bid'""",
    ),
    "top three of a window": Query(
        over_bids(Aggregate(by=["auction"], window=Window(time="at", size="5 minutes", delay=DELAY), values={"top": m.Top("price", 3, "array<bigint>")})),
        "append", ("auction", "window_start", "top"),
        """SELECT auction, time_bucket(INTERVAL 5 MINUTE, "at", TIMESTAMP '2026-01-01') AS w, max(price, 3) FROM events WHERE kind = 'bid' GROUP BY auction, w""",
    ),
    "average of the last three": Query(
        average_of_last, "update", ("person", "average"),
        "SELECT person, list_avg(list_slice(list(price ORDER BY id DESC), 1, 3)) FROM events WHERE kind = 'bid' GROUP BY person",
        newest="last",
    ),
    "sessions of a bidder": Query(
        over_bids(Aggregate(by=["person"], window=Window(time="at", gap="1 minute", delay=DELAY), values={"bids": m.count(), "most": m.max("price")})),
        "append", ("person", "window_start", "bids", "most"),
        """WITH gaps AS (SELECT *, coalesce("at" > lag("at") OVER w + INTERVAL 1 MINUTE, true)::INT AS opens FROM events WHERE kind = 'bid'
                         WINDOW w AS (PARTITION BY person ORDER BY "at", id)),
                numbered AS (SELECT *, sum(opens) OVER (PARTITION BY person ORDER BY "at", id) AS session FROM gaps)
           SELECT person, min("at"), count(*), max(price) FROM numbered GROUP BY person, session""",
    ),
    "distinct bidders of an auction per day": Query(
        over_bids(Aggregate(by=["auction"], window=Window(time="at", size="1 day", delay=DELAY), values={"people": m.distinct_values("person")})),
        "append", ("auction", "people"),
        "SELECT auction, list_sort(list(DISTINCT person)) FROM events WHERE kind = 'bid' GROUP BY auction, \"at\"::DATE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", QUERIES)
def test_result_of_any_division_into_batches_with_a_crash_equals_one_pass(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    query = QUERIES[name]
    spec = Pipeline(
        name="auctions",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema=auctions.SCHEMA),
        sinks={"out": FilesSink(path=str(tmp_path / "out"))},
        transform=query.transform,
        state=State(output_mode=query.mode, partitions=2, late="fail"),
    )
    for number, batch in enumerate(auctions.batches(seed, EVENTS)):
        auctions.write(tmp_path / "in", number, batch)
        if number == 1:
            run_and_crash_after_state_write(monkeypatch, spec, f"run {number}")
        run_batch(spec, run_key=f"run {number}")
    frame = read_committed(spark, str(tmp_path / "log"))
    if query.newest:
        frame = frame.groupBy(query.columns[0]).agg(
            *(F.max_by(column, query.newest).alias(column) for column in query.columns[1:])
        )
    result = sorted((tuple(row) for row in frame.select(*query.columns).collect()), key=repr)
    expected = auctions.in_one_pass(tmp_path / "in", query.sql)
    assert expected
    assert result == [row for row in expected if row[0] != -1]
