"""A publisher to Delta that sleeps over its commit, and one that dies while it adds columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.sinks.delta_worlds import DeltaWorld


@pytest.fixture
def watchers(around: Any) -> list[Callable[[str], object]]:
    """The last of these functions is called before and after each write to a table."""
    made: list[Callable[[str], object]] = [nothing]
    around(lambda name: made[-1](name))
    return made


def nothing(step: str) -> None:
    """No step is watched."""


def test_publisher_that_sleeps_over_its_commit_changes_nothing_in_50_rounds(tmp_path: Path, watchers: Any) -> None:
    """Meanwhile others publish its version, the next one too, redo it so that its files leave the table, or another application commits."""
    world = DeltaWorld(tmp_path)
    world.arrive(2)
    world.run("first")
    others = 0
    for turn in range(50):
        kind = ("its version", "the next one too", "a redo of it", "another application")[turn % 4]
        world.arrive(4 if kind == "the next one too" else 2)
        slept: list[str] = []

        def meanwhile(step: str) -> None:
            nonlocal others
            if step != "before create_write_transaction" or slept:  # noqa: B023
                return
            slept.append(step)  # noqa: B023
            if kind == "another application":  # noqa: B023
                write_deltalake(world.table, pyarrow.table({"id": [-1]}), mode="append")
                others += 1
                return
            world.run(f"other {turn}", drain=True)  # noqa: B023
            if kind == "a redo of it":  # noqa: B023
                world.run(f"redo {turn}", redone=world.opened().log.closed_head({}))  # noqa: B023

        watchers.append(meanwhile)
        world.run(f"turn {turn}")
        watchers.append(nothing)
        assert slept, kind
        rows = world.rows()
        assert rows.pop(-1, 0) == others
        assert rows == world.expected, kind
    assert world.verdict().findings == []


@pytest.mark.parametrize("retry", ["second", "another"])
def test_death_around_every_write_that_adds_columns_then_a_retry(tmp_path: Path, watchers: Any, retry: str) -> None:
    def wider(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "half": row["id"] // 2} for row in rows]

    def run_to(at: int | None, name: str) -> tuple[DeltaWorld, Steps]:
        watchers.append(nothing)
        world, steps = DeltaWorld(tmp_path / name), Steps(at)
        world.arrive(2)
        world.run("first")
        world.arrive(2)
        watchers.append(steps)
        with suppress(Crash):
            world.run("second", pipeline=world.pipeline(transform=wider))
        watchers.append(nothing)
        return world, steps

    _, alone = run_to(None, "alone")
    writes = ("add_columns", "create_write_transaction")
    assert alone.taken == [f"{when} {name}" for name in writes for when in ("before", "after")]
    for at in range(len(alone.taken)):
        world, steps = run_to(at, f"{at}")
        assert steps.died
        world.run(retry, pipeline=world.pipeline(transform=wider))
        world.run("second", pipeline=world.pipeline(transform=wider))
        assert world.rows() == world.expected
        assert world.verdict().findings == []
        halves = DeltaTable(world.table).to_pyarrow_table()["half"].to_pylist()
        assert Counter(halves) == Counter([None] * 6 + [n // 2 for n in range(6, 12)])


def test_two_first_publishers_make_one_table(tmp_path: Path, watchers: Any) -> None:
    world = DeltaWorld(tmp_path)
    world.arrive(2)
    slept: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "before create" and not slept:
            slept.append(step)
            world.run("other")

    watchers.append(meanwhile)
    world.run("first")
    assert slept
    assert world.rows() == world.expected
    assert world.verdict().findings == []
