"""The processor of ``transformWithStateInPandas`` that keeps one state object for each key. This module imports pyspark and pandas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from airflow_provider_streamsem.transforms.snapshot import as_text


class PerKey(StatefulProcessor):  # type: ignore[misc]  # pyspark has no types here
    """
    Restores, updates and stores the state object of each key. The state store has one value for each key: the snapshot as JSON text.

    :param create: creates the state object of a new key, with the methods of ``PersistentState``
    :param keys: names of the key columns. With windows the last one is the end of the window, in microseconds since the epoch
    :param closes_windows: whether a key returns its row once, when the watermark has passed the end of its window
    """

    def __init__(self, create: Callable[[], Any], keys: Sequence[str], *, closes_windows: bool) -> None:
        self._create = create
        self._keys = list(keys)
        self._closes_windows = closes_windows

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Create the state variable."""
        self._handle = handle
        self._snapshot = handle.getValueState("snapshot", "json string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Apply the rows of a key. Yield its row, or set the timer of its window."""
        state = self._restored()
        for part in rows:
            state.update(part)
        self._snapshot.update((as_text(state.snapshot()),))
        if self._closes_windows:
            self._handle.registerTimer(-(-key[-1] // 1000))
            yield pd.DataFrame()
        else:
            yield self._row(key, state)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Yield the row of a closed window, and delete its state."""
        state = self._restored()
        self._snapshot.clear()
        yield self._row(key, state)

    def close(self) -> None:
        """Release nothing."""

    def _restored(self) -> Any:
        state = self._create()
        if self._snapshot.exists():
            state.restore(json.loads(self._snapshot.get()[0]))
        return state

    def _row(self, key: Any, state: Any) -> pd.DataFrame:
        return pd.DataFrame([{**dict(zip(self._keys, key, strict=True)), **state.value()}])
