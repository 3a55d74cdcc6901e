"""A Delta publisher that pauses before its commit, and one that dies while it adds columns."""

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
from tests.connectors.delta.delta_fixture import DeltaFixture
from tests.rounds import ROUNDS


@pytest.fixture
def watchers(watch_delta_writes: Any) -> list[Callable[[str], object]]:
    """Return a list of callbacks. The last one is called before and after each write to a table."""
    callbacks: list[Callable[[str], object]] = [ignore]
    watch_delta_writes(lambda name: callbacks[-1](name))
    return callbacks


def ignore(step: str) -> None:
    """Ignore a step."""


def test_publisher_paused_before_its_commit_changes_nothing_in_every_round(tmp_path: Path, watchers: Any) -> None:
    """
    While the publisher is paused, other processes commit to the table.

    They publish its version, or also the next one. Or they reprocess its version, which removes its files from the table. In one case another application commits.
    """
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(2)
    fixture.run("first")
    others = 0
    for turn in range(ROUNDS):
        kind = ("its version", "the next one too", "a reprocessing run of it", "another application")[turn % 4]
        fixture.arrive(4 if kind == "the next one too" else 2)
        pauses: list[str] = []
        completed: list[str] = []  # the sink would retry after an error of the callback, and hide it

        def others_publish(step: str) -> None:
            nonlocal others
            if step != "before create_write_transaction" or pauses:  # noqa: B023
                return
            pauses.append(step)  # noqa: B023
            if kind == "another application":  # noqa: B023
                write_deltalake(fixture.table, pyarrow.table({"id": [-1]}), mode="append")
                others += 1
            else:
                fixture.run(f"other {turn}", drain=True)  # noqa: B023
            if kind == "a reprocessing run of it":  # noqa: B023
                fixture.run(f"reprocess {turn}", reprocessed=fixture.opened().log.closed_head())  # noqa: B023
            completed.append(kind)  # noqa: B023

        watchers.append(others_publish)
        fixture.run(f"turn {turn}")
        watchers.append(ignore)
        assert completed == [kind]
        rows = fixture.rows()
        assert rows.pop(-1, 0) == others
        assert rows == fixture.expected, kind
    assert fixture.verdict().violations == []


@pytest.mark.parametrize("retry", ["second", "another"])
def test_crash_around_every_write_that_adds_columns_then_retry_publishes_each_row_once(
    tmp_path: Path, watchers: Any, retry: str
) -> None:
    def add_column(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "half": row["id"] // 2} for row in rows]

    def run_to(at: int | None, name: str) -> tuple[DeltaFixture, Steps]:
        watchers.append(ignore)
        fixture, steps = DeltaFixture(tmp_path / name), Steps(at)
        fixture.arrive(2)
        fixture.run("first")
        fixture.arrive(2)
        watchers.append(steps)
        with suppress(Crash):
            fixture.run("second", pipeline=fixture.pipeline(transform=add_column))
        watchers.append(ignore)
        return fixture, steps

    _, complete_run = run_to(None, "complete")
    writes = ("add_columns", "create_write_transaction")
    assert complete_run.taken == [f"{when} {name}" for name in writes for when in ("before", "after")]
    for at in range(len(complete_run.taken)):
        fixture, steps = run_to(at, f"{at}")
        assert steps.died
        fixture.run(retry, pipeline=fixture.pipeline(transform=add_column))
        fixture.run("second", pipeline=fixture.pipeline(transform=add_column))
        assert fixture.rows() == fixture.expected
        assert fixture.verdict().violations == []
        halves = DeltaTable(fixture.table).to_pyarrow_table()["half"].to_pylist()
        assert Counter(halves) == Counter([None] * 6 + [n // 2 for n in range(6, 12)])


def test_two_concurrent_first_publishers_create_one_table(tmp_path: Path, watchers: Any) -> None:
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(2)
    pauses: list[str] = []

    def others_publish(step: str) -> None:
        if step == "before create" and not pauses:
            pauses.append(step)
            fixture.run("other")

    watchers.append(others_publish)
    fixture.run("first")
    assert pauses
    assert fixture.rows() == fixture.expected
    assert fixture.verdict().violations == []
