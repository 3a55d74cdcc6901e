"""The processor of ``transformWithState`` that keeps one state object for each key. This module imports pyspark and pandas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from airflow_provider_streamsem.transforms.snapshot import as_text

ROWS = 10_000
"""Maximum number of rows in one call of ``update``."""


class PerKey(StatefulProcessor):  # type: ignore[misc]  # pyspark has no types here
    """
    Restores, updates and stores the state object of each key. The state store has one value for each key: the snapshot as JSON text.

    :param create: creates the state object of a new key, with the methods of ``PersistentState``
    :param columns: column of the records → its pandas type. Other columns are not passed to the state
    :param names: the columns of the result: those of the key, in its order, and those of the state's value
    :param closes_windows: whether a key returns its row once, when the watermark has passed the end of its window. The last column of the key is then the end
        of the window, in microseconds since the epoch
    """

    def __init__(
        self, create: Callable[[], Any], columns: Mapping[str, str], names: Sequence[str], *, closes_windows: bool
    ) -> None:
        self._create = create
        self._columns = dict(columns)
        self._names = list(names)
        self._closes_windows = closes_windows

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Create the state variable."""
        self._handle = handle
        self._snapshot = handle.getValueState("snapshot", "json string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Apply the rows of a key. Yield the row of the key, or set the timer of its window."""
        state = self._stored()
        while part := list(islice(rows, ROWS)):
            state.update(self._frame(part))
        self._snapshot.update((as_text(state.snapshot()),))
        if self._closes_windows:
            self._handle.registerTimer(timer_ms(key[-1]))
        else:
            yield self._row(key, state)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Yield the row of a closed window, and delete its state."""
        state = self._stored()
        self._snapshot.clear()
        yield self._row(key, state)

    def close(self) -> None:
        """Release nothing."""

    def _stored(self) -> Any:
        return self._restored(json.loads(self._snapshot.get()[0])) if self._snapshot.exists() else self._create()

    def _restored(self, snapshot: Any) -> Any:
        state = self._create()
        state.restore(snapshot)
        return state

    def _frame(self, rows: list[Row]) -> pd.DataFrame:
        # Without explicit types, pandas would convert a column of integers with a null to floating-point numbers.
        return pd.DataFrame(
            {name: pd.Series([row[name] for row in rows], dtype=type) for name, type in self._columns.items()}
        )

    def _row(self, key: Any, state: Any) -> Row:
        value = state.value()
        values = [*key, *(_python(value[name]) for name in self._names[len(key) :])]
        return Row(**dict(zip(self._names, values, strict=True)))


def timer_ms(end_us: int) -> int:
    """Return the time of the timer of a window: its end in milliseconds since the epoch, rounded up."""
    return -(-end_us // 1000)


def _python(value: Any) -> Any:
    if value is pd.NA:
        return None
    return value.item() if hasattr(value, "item") else value
