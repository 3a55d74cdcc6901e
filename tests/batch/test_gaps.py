"""What becomes of a batch whose input changes, vanishes or was never there."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_streamsem.batch import maintenance
from airflow_provider_streamsem.errors import (
    DataError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World


def test_file_changed_under_its_plan_is_named(world: World) -> None:
    world.arrive(2)

    def changes(step: str) -> None:
        if step == "transform":
            (world.root / "in" / "00001.json").write_text('{"id": 99}\n')

    with pytest.raises(SourceChangedError, match=r"00001\.json"):
        world.run("a", engine=RowsEngine(changes))
    assert world.opened().head == -1


def test_file_that_vanished_between_plan_and_read_is_named(world: World) -> None:
    world.arrive(2)

    world.dies("a")
    (world.root / "in" / "00000.json").unlink()
    with pytest.raises(SourceChangedError, match=r"00000\.json"):
        world.run("a")


@pytest.mark.parametrize("drain", [False, True])
def test_way_past_a_file_that_is_gone_is_an_abort_and_a_recorded_gap(world: World, drain: bool) -> None:
    world.arrive(3)
    world.dies("dead")
    (world.root / "in" / "00000.json").unlink()
    with pytest.raises(SourceChangedError, match="record_gap"):
        world.run("a", drain=drain)
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 0, reason="a file is gone")
    with pytest.raises(SourceChangedError, match=r"00000\.json"):
        world.run("a", drain=drain)
    result = world.run("a", drain=drain, pipeline=world.pipeline(on_data_loss="record_gap"))
    assert result.counts["read"] == (6 if drain else 3)
    outcome = world.opened().log.outcome(1)[0]  # type: ignore[index]
    assert outcome.gaps == {"files": ((0, 1),)}
    world.run("rest", drain=True)
    assert world.visible() == Counter(range(3, 9))
    assert world.verdict().findings == []


def test_file_that_changed_before_it_was_read_is_a_gap_and_its_new_content_is_read(world: World) -> None:
    world.arrive(2)
    world.dies("dead")
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 0, reason="a file was still being written")
    (world.root / "in" / "00001.json").write_text('{"id": 3}\n{"id": 4}\n{"id": 5}\n \n')
    world.run("a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"))
    assert world.visible() == Counter(range(6))


def test_only_files_that_are_gone_make_a_commit_of_gaps_alone(world: World) -> None:
    world.arrive(2)
    world.dies("dead")
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 0, reason="all gone")
    for path in (world.root / "in").iterdir():
        path.unlink()
    with pytest.raises(UnavailableError, match="mounted"):
        world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"))
    (world.root / "in" / "_emptied_on_purpose").write_text("")
    engine = RowsEngine()
    result = world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"), engine=engine)
    assert (result.counts["read"], result.counts["gaps"], engine.staged, world.opened().files()) == (0, 2, 0, [])
    assert world.verdict().findings == []


def test_retried_drain_whose_place_is_not_mounted_records_no_gaps(world: World) -> None:
    world.arrive(6)

    world.dies("a", drain=True, batch=2)
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 1, reason="x")
    (world.root / "in").rename(world.root / "away")
    with pytest.raises(UnavailableError, match="mounted"):
        world.run("a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"))
    (world.root / "away").rename(world.root / "in")
    world.run("a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"))
    world.check()


def test_file_removed_during_a_drain_becomes_a_gap_of_its_own_plan(world: World) -> None:
    world.arrive(4)

    def removes(step: str) -> None:
        (world.root / "in" / "00003.json").unlink(missing_ok=True)

    result = world.run("a", drain=True, engine=RowsEngine(removes), pipeline=world.pipeline(on_data_loss="record_gap"))
    assert (result.counts["read"], result.counts["gaps"]) == (9, 1)


def test_discovery_by_a_faster_process_is_no_gap_for_a_slower_one(world: World) -> None:
    from airflow_provider_streamsem.testing.stores import Fault, FaultyStore

    for at in range(14):
        world.arrive(1)

        def meanwhile(at: int = at) -> None:
            world.arrive(1)

            def dies(step: str) -> None:
                raise RuntimeError

            with pytest.raises(RuntimeError):
                world.run(f"b{at}", engine=RowsEngine(dies))

        store = FaultyStore(world.store, at, Fault.PAUSE_BEFORE, meanwhile)
        world.run(f"a{at}", drain=True, store=store, pipeline=world.pipeline(on_data_loss="record_gap"))
        world.run(f"rest{at}", drain=True)
    world.check()


def test_place_that_is_not_there_is_not_an_empty_place(world: World) -> None:
    (world.root / "in").rmdir()
    with pytest.raises(UnavailableError, match="not mounted"):
        world.run("a")


def test_links_to_directories_and_pipes_are_no_files_and_odd_names_are_named(world: World) -> None:
    import os

    world.arrive(1)
    (world.root / "in" / "sub").mkdir()
    (world.root / "in" / "sub" / "x.json").write_text('{"id": 3}\n')
    (world.root / "in" / "current").symlink_to(world.root / "in" / "sub")
    (world.root / "in" / "loop").symlink_to(world.root / "in")
    os.mkfifo(world.root / "in" / "pipe.json")
    assert world.run("a").counts["read"] == 4
    with open(os.fsencode(str(world.root / "in")) + b"/caf\xe9.json", "w") as file:
        file.write("{}")
    with pytest.raises(DataError, match="not UTF-8"):
        world.run("b")
