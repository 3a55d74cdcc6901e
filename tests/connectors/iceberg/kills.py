"""An Iceberg publisher that dies at every step: before and after each catalog call and each file read, write or delete."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.iceberg.lake import ID, Lake, Steps


class Later:
    """A clock that is two minutes ahead."""

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + 120_000

    def sleep(self, seconds: float) -> None:
        """Do not sleep."""


SCENARIOS = ("first", "next", "column", "reprocess", "skip", "expire", "merge")


def scenario(root: Path, name: str, location: str, rest: str) -> tuple[Lake, Any, list[int], str]:
    """Return a lake, the action to test, the ids that must be in the table afterwards, and the newest marker."""
    lake = Lake(root, location=location, rest=rest, name=f"lake.rows_{uuid.uuid4().hex}" if rest else "lake.rows")
    if name == "merge":
        merging = lake.with_options(mode="upsert", keys=["id"])
        valued = [("id", "long"), ("more", "string")]
        old = pyarrow.table({"id": [0, 1], "more": ["of version 0"] * 2})
        new = pyarrow.table({"id": [1, 2], "more": ["of version 1"] * 2})
        merging.publish(merging.batch(0, [("", old)], columns=valued))
        batch = merging.batch(1, [("", new)], columns=valued)
        return merging, lambda: merging.publish(batch), [0, 1, 2], "1 applied"
    if name == "first":
        batch = lake.batch(0, [0])
        return lake, lambda: lake.publish(batch), [0], "0 applied"
    first = lake.batch(0, [0])
    lake.publish(first)
    if name == "skip":
        batch = lake.batch(1, [1])
        return lake, lambda: lake.skip(batch), [0], "1 skipped"
    if name == "reprocess":
        batch = lake.batch(1, [1], reprocesses=first)
        return lake, lambda: lake.publish(batch), [1], "1 applied"
    if name == "expire":
        lake.publish(lake.batch(1, [1]))
        last = lake.with_options(expire_after_s=1)
        batch = lake.batch(2, [2])
        return lake, lambda: last.publish(batch), [0, 1, 2], "2 applied"
    columns = [*ID, ("more", "string")] if name == "column" else ID
    rows = [("", pyarrow.table({"id": [1], "more": ["x"]}))] if name == "column" else [1]
    batch = lake.batch(1, rows, columns=columns)
    return lake, lambda: lake.publish(batch), [0, 1], "1 applied"


def kill_at_every_step(directory: Path, name: str, *, location: str = "", rest: str = "") -> None:
    """
    Kill a publisher before and after every catalog call and file access, then publish again twice.

    :param location: location of the tables, ``s3://…``. Without it they are below ``directory``
    :param rest: URL of a REST catalog. Without it each round has its own SQL catalog
    """
    count, reached_steps, lock = 0, [], threading.Lock()
    while True:
        root = directory / str(count)
        root.mkdir()
        lake, act, expected, mark = scenario(root, name, f"{location}/{count}" if location else "", rest)
        steps: list[str] = []

        def die(step: str, steps: list[str] = steps, count: int = count, lock: Any = lock) -> None:
            with lock:  # pyiceberg writes from several threads
                steps.append(step)
                dies = len(steps) > count
            if dies:
                raise Crash

        Steps.hook = die
        try:
            act()
        except Crash:
            Steps.hook = None
            assert act() is not None, steps[-1]
        Steps.hook = None
        assert act() is not None
        assert lake.rows() == expected, (name, steps[-1])
        if name == "merge":
            assert lake.rows("more") == ["of version 0", "of version 1", "of version 1"], steps[-1]
        assert lake.marked().count(mark) == 1, (name, steps[-1])
        if len(steps) <= count:
            break
        reached_steps.append(steps[count])
        count += 1
    assert {"before commit_table", "after commit_table", "after write"} <= set(reached_steps)
    assert count > (6 if rest else 10), reached_steps  # a REST catalog writes the table's metadata itself
