"""Sessions of a key: for any batches, with records out of order and late ones, each closed session has all open records that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import PersistentState
from airflow_provider_streamsem.transforms import per_session
from airflow_provider_streamsem.transforms.window import WINDOW_END, WINDOW_START


def end_of(time: int) -> int:
    """Return the end of a session with one record: 5 ms later, but 1 ms later in the second half, as when a gap of days contains a change of the clock."""
    return time + (5_000 if time < 15_000 else 1_000)


MINUTES = st.lists(st.integers(0, 60).map(lambda tick: tick * 500), max_size=12)
"""event times in microseconds. Timers have milliseconds, so several sessions may share a timer"""


class Times(PersistentState):
    """The event times of a session."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def restore(self, snapshot: Any) -> None:
        self.times = snapshot

    def update(self, rows: pd.DataFrame) -> None:
        self.times = sorted([*self.times, *map(int, rows["t"])])

    def merge(self, other: Any) -> None:
        self.times = sorted(self.times + other.times)

    def snapshot(self) -> Any:
        return self.times

    def value(self) -> Any:
        return {"times": self.times}


class Store:
    """What Spark gives a processor for one key: a value and timers."""

    def __init__(self) -> None:
        self.value: tuple[str] | None = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str) -> Any:
        return SimpleNamespace(
            exists=lambda: self.value is not None, get=lambda: self.value, update=self.update, clear=self.clear
        )

    def update(self, value: tuple[str]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None

    def registerTimer(self, timer: int) -> None:
        assert timer not in self.timers
        self.timers.add(timer)

    def deleteTimer(self, timer: int) -> None:
        self.timers.remove(timer)

    def expire(self, processor: Any, watermark_ms: int) -> Iterator[Any]:
        times = SimpleNamespace(getCurrentWatermarkInMs=lambda: watermark_ms)
        for timer in sorted(timer for timer in self.timers if timer <= watermark_ms):
            info = SimpleNamespace(getExpiryTimeInMs=lambda timer=timer: timer)
            yield from processor.handleExpiredTimer(("k",), times, info)
            self.timers.remove(timer)


@given(st.lists(MINUTES, max_size=6), st.integers(0, 10), st.integers(1, 4))
def test_sessions_of_any_batches_equal_those_of_all_open_records(
    batches: list[list[int]], delay_ms: int, chunk: int
) -> None:
    store, open_times, newest_us = Store(), list[int](), 0
    late_ms = watermark_ms = 0
    processor = per_session.PerSession(Times, {"t": "Int64"}, ["k", "start", "end", "times"], closes_windows=True)
    processor.init(store)
    with mock.patch.object(per_session, "ROWS", chunk):
        for batch in [*batches, [], [10**6], []]:
            times = [time for time in batch if end_of(time) > late_ms * 1000]
            open_times += times
            rows = iter([{"t": time, WINDOW_START: time, WINDOW_END: end_of(time)} for time in times])
            if times:
                assert list(processor.handleInputRows(("k",), rows, None)) == []
            found = sorted(tuple(row) for row in store.expire(processor, watermark_ms))
            closed = [session for session in sessions_of(open_times) if session[2] <= watermark_ms * 1000]
            assert found == closed
            open_times = [time for time in open_times if not any(time in session[3] for session in closed)]
            newest_us = max([newest_us, *batch])
            late_ms, watermark_ms = watermark_ms, max(watermark_ms, newest_us // 1000 - delay_ms)
    assert len(store.timers) == 1, "only the last session is open"


def sessions_of(times: list[int]) -> list[tuple[Any, ...]]:
    sessions: list[list[int]] = []
    for time in sorted(times):
        if sessions and time <= max(map(end_of, sessions[-1])):
            sessions[-1].append(time)
        else:
            sessions.append([time])
    return [("k", session[0], max(map(end_of, session)), session) for session in sessions]
