"""Stateful processors of transformWithState."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.state.stateful_pipeline import ORIGIN_MS


class Counting(StatefulProcessor):
    """Counts the records of a key, and emits the count when a timer of the batch's processing time fires."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self.count.get()[0] if self.count.exists() else 0) + sum(len(part) for part in rows)
        self.count.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def processed(events: DataFrame) -> DataFrame:
    return events.groupBy("k").transformWithStateInPandas(
        statefulProcessor=Counting(), outputStructType="k string, n long", outputMode="Update", timeMode="None"
    )


RESULT = "at timestamp, k string, n long"


def result(k: str, n: int) -> pd.DataFrame:
    """One row of the result, without a time."""
    return pd.DataFrame({"at": [pd.NaT], "k": [k], "n": [n]}).astype({"at": "datetime64[us]"})


def minutes_of(rows: Iterator[pd.DataFrame]) -> list[int]:
    """The minute of each record of a key, in order."""
    return sorted(int(t.timestamp() * 1000 - ORIGIN_MS) // 60_000 for part in rows for t in part["t"])


class Processor(StatefulProcessor):
    """Has no state to close."""

    def close(self) -> None:
        pass


class Closing(Processor):
    """Counts the records of a key, from an initial count. Emits the count when the watermark is 15 minutes after the newest record."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.count.update((int(initialState["n"].iloc[0]),))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        new = minutes_of(rows)
        n = (self.count.get()[0] if self.count.exists() else 0) + len(new)
        self.count.update((n,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(ORIGIN_MS + (new[-1] + 15) * 60_000)
        yield result(key[0], n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        minutes = (
            (ms - ORIGIN_MS) // 60_000
            for ms in (expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs())
        )
        yield result(f"{key[0]} expired at {list(minutes)}", self.count.get()[0])
        self.count.clear()


class Rows(Processor):
    """Counts the records of a key, which are rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get()[0] if self.count.exists() else 0) + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(at=None, k=key[0], n=n)


def closing(events: DataFrame) -> DataFrame:
    """Key c has an initial count, and no records."""
    initial = events.sparkSession.createDataFrame([("a", 100), ("c", 7)], "k string, n long").groupBy("k")
    keys = events.withWatermark("t", "5 minutes").groupBy("k")
    return keys.transformWithStateInPandas(Closing(), RESULT, "Update", "EventTime", initial)


def of_rows(events: DataFrame) -> DataFrame:
    return events.groupBy("k").transformWithState(Rows(), RESULT, "Update", "None")
