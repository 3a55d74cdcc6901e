"""The processor of ``transformWithState`` that keeps one state object for each session of a key. This module imports pyspark and pandas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark.sql import Row

from airflow_provider_streamsem.transforms.per_key import ROWS, PerKey, timer_ms
from airflow_provider_streamsem.transforms.snapshot import as_text
from airflow_provider_streamsem.transforms.window import WINDOW_END, WINDOW_START


class PerSession(PerKey):
    """
    Restores, updates, merges and stores the state objects of the open sessions of each key. The state store has one value for each key: the sessions as JSON
    text, a list of ``[start_us, end_us, snapshot]``. Each open session has a timer at its end.

    Each row has the columns :data:`WINDOW_START` and :data:`WINDOW_END`: its event time, and its event time plus the gap, in microseconds since the epoch.
    """

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Apply the rows of a key, and set the timers of its sessions. Yield nothing."""
        sessions = self._open_sessions()
        timers = {session.timer_ms for session in sessions}
        while part := list(islice(rows, ROWS)):
            sessions = self._merged([*sessions, *self._sessions_of(part)])
        self._store(sessions)
        for timer in sorted(timers ^ {session.timer_ms for session in sessions}):
            (self._handle.deleteTimer if timer in timers else self._handle.registerTimer)(timer)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """
        Yield the rows of all sessions that the watermark has passed, and delete their state.

        The timers of these sessions expire in the same batch. The calls for the later timers find no such session.
        """
        passed_ms = max(expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs())
        sessions = self._open_sessions()
        self._store([session for session in sessions if session.timer_ms > passed_ms])
        for session in sessions:
            if session.timer_ms <= passed_ms:
                yield self._row((*key, session.start_us, session.end_us), self._state_of(session))

    def _open_sessions(self) -> list[_Session]:
        stored = json.loads(self._snapshot.get()[0]) if self._snapshot.exists() else []
        return [_Session(start_us, end_us, snapshot=snapshot) for start_us, end_us, snapshot in stored]

    def _store(self, sessions: Iterable[_Session]) -> None:
        stored = [
            [session.start_us, session.end_us, session.snapshot if session.state is None else session.state.snapshot()]
            for session in sessions
        ]
        if stored:
            self._snapshot.update((as_text(stored),))
        else:
            self._snapshot.clear()

    def _sessions_of(self, rows: list[Row]) -> Iterator[_Session]:
        """Yield the sessions of some rows, as if there were no others."""
        rows.sort(key=lambda row: row[WINDOW_START])
        first, end_us = 0, 0
        for index, row in enumerate(rows):
            end_us = max(end_us, row[WINDOW_END])
            if index + 1 == len(rows) or rows[index + 1][WINDOW_START] > end_us:
                state = self._create()
                state.update(self._frame(rows[first : index + 1]))
                yield _Session(rows[first][WINDOW_START], end_us, state=state)
                first, end_us = index + 1, 0

    def _merged(self, sessions: list[_Session]) -> list[_Session]:
        """Join sessions that overlap, and those of which one starts at the end of the other, as Spark's ``session_window`` does."""
        merged: list[_Session] = []
        for session in sorted(sessions, key=lambda session: session.start_us):
            if merged and session.start_us <= merged[-1].end_us:
                self._state_of(merged[-1]).merge(self._state_of(session))
                merged[-1].end_us = max(merged[-1].end_us, session.end_us)
            else:
                merged.append(session)
        return merged

    def _state_of(self, session: _Session) -> Any:
        if session.state is None:
            session.state = self._restored(session.snapshot)
        return session.state


@dataclass(slots=True)
class _Session:
    """An open session. ``state`` is ``None`` while it is not restored; ``snapshot`` is only valid until then."""

    start_us: int
    end_us: int
    state: Any = None
    snapshot: Any = None

    @property
    def timer_ms(self) -> int:
        return timer_ms(self.end_us)
