"""The intervals that a pipeline has read, as readers and ``streamsem partitions`` show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_streamsem import rollback
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.readers.history import History
from airflow_provider_streamsem.readers.intervals import interval_states
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.stores.local import LocalStore
from tests.interval_fixture import IntervalFixture

PREFIX = "2023-11-14T22:13:20"


@pytest.fixture
def fixture(tmp_path: Path) -> IntervalFixture:
    """Of six files, four are read, in two intervals with a gap between them. The later interval was read first, and the earlier one twice."""
    made = IntervalFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    made.arrive(6)
    made.read(3, 5)
    made.read(0, 2)
    made.read(0, 2, "again")
    return made


def states(fixture: IntervalFixture) -> list[tuple[str, str, int | None, int | None]]:
    return [
        (each.start.removeprefix(PREFIX), each.end.removeprefix(PREFIX), each.read_in, each.newest)
        for each in interval_states(fixture.opened())
    ]


def test_intervals_and_the_gap_between_them_are_shown(fixture: IntervalFixture) -> None:
    assert states(fixture) == [
        ("+00:00", ".002+00:00", 1, 2),
        (".002+00:00", ".003+00:00", None, None),
        (".003+00:00", ".005+00:00", 0, 0),
    ]
    assert [each.rows for each in interval_states(fixture.opened())] == [{"out": 6}, {}, {"out": 6}]
    assert interval_states(fixture.opened(), since="2024") == []
    assert len(interval_states(fixture.opened(), until="2023-11")) == 3
    assert lag(fixture.pipeline()).lag == 1, "the last file is after the latest interval"


def test_rolled_back_interval_is_not_shown_until_it_is_read_again(fixture: IntervalFixture) -> None:
    rollback(fixture.pipeline(), 0, log=fixture.log())
    assert states(fixture) == [(".003+00:00", ".005+00:00", 0, 0)]
    assert fixture.read(0, 2).version == 4
    assert fixture.read(0, 2).version == 4
    assert [state[2:] for state in states(fixture)] == [(4, 4), (None, None), (0, 0)]


def test_versions_name_their_interval(fixture: IntervalFixture) -> None:
    described = [each.description for each in History(fixture.opened()).summaries(limit=3)]
    assert described == ["reprocessing of version 1", f"interval {PREFIX}+00:00/{PREFIX}.002+00:00", f"interval {PREFIX}.003+00:00/{PREFIX}.005+00:00"]  # fmt: skip


def test_command_shows_intervals(fixture: IntervalFixture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", fixture.store.url, "--json"]) == 0
    assert [each["read_in"] for each in json.loads(capsys.readouterr().out)["intervals"]] == [1, None, 0]
    assert main(["partitions", fixture.store.url, "--incomplete", "--json"]) == 0
    assert [each["read_in"] for each in json.loads(capsys.readouterr().out)["intervals"]] == [None]
    assert main(["partitions", fixture.store.url, "--since", "2024"]) == 0
    assert "there are no such intervals" in capsys.readouterr().out
