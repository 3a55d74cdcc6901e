"""What becomes of a batch whose input changes, vanishes or was never there."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from airflow_provider_streamsem import FilesSource
from airflow_provider_streamsem.batch import maintenance
from airflow_provider_streamsem.errors import (
    DataError,
    RecordsGoneError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.worlds import BeforeOutcome, World, die


def test_file_changed_under_its_plan_is_named(world: World) -> None:
    world.arrive(2)

    def changes(step: str) -> None:
        if step == "transform":
            (world.root / "in" / "00001.json").write_text('{"id": 99}\n')

    with pytest.raises(RecordsGoneError, match=r"00001\.json"):
        world.run("a", engine=RowsEngine(changes))
    assert world.opened().head == -1


def test_file_that_vanished_between_plan_and_read_is_named(world: World) -> None:
    world.arrive(2)

    world.dies("a")
    (world.root / "in" / "00000.json").unlink()
    with pytest.raises(RecordsGoneError, match=r"00000\.json"):
        world.run("a")


@pytest.mark.parametrize("drain", [False, True])
def test_planned_file_that_is_gone_stops_the_run_or_becomes_a_gap_of_a_new_plan(world: World, drain: bool) -> None:
    world.arrive(3)
    world.dies("dead")
    (world.root / "in" / "00000.json").unlink()
    with pytest.raises(SourceChangedError, match="record_gap"):
        world.run("a", drain=drain)
    assert world.opened().head == -1
    result = world.run("a", drain=drain, pipeline=world.pipeline(on_data_loss="record_gap"))
    assert result.counts["read"] == (6 if drain else 3)
    aborted, outcome = (world.opened().log.outcome(n)[0] for n in (0, 1))  # type: ignore[index]
    assert (aborted.result, outcome.gaps) == ("abort", {"files": ((0, 1),)})
    assert "00000.json" in aborted.reason
    world.run("rest", drain=True)
    assert world.visible() == Counter(range(3, 9))
    assert world.verdict().findings == []


def test_file_that_is_gone_is_no_gap_after_a_persons_abort_either(world: World) -> None:
    world.arrive(2)
    world.dies("dead")
    (world.root / "in" / "00000.json").unlink()
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 0, reason="a file is gone")
    with pytest.raises(SourceChangedError, match=r"00000\.json"):
        world.run("a")


def test_attempt_that_is_complete_is_committed_though_its_files_are_gone(world: World) -> None:
    world.arrive(2)
    with pytest.raises(Crash):
        world.run("a", drain=True, store=BeforeOutcome(world.store, die))
    (world.root / "in" / "00000.json").unlink()
    assert world.run("a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap")).counts["read"] == 6
    world.check()


def test_attempt_that_is_decided_before_the_abort_for_a_missing_file_stays_committed(world: World) -> None:
    world.arrive(2)
    world.dies("dead", drain=True)
    gone = world.root / "in" / "00000.json"
    content, made = gone.read_text(), gone.stat().st_mtime_ns
    gone.unlink()

    def others() -> None:
        gone.write_text(content)
        os.utime(gone, ns=(made, made))
        world.run("dead", drain=True)

    world.run(
        "a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"), store=BeforeOutcome(world.store, others)
    )
    assert world.opened().head == 0
    world.check()


def test_attempt_that_others_complete_while_a_file_is_missed_is_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(2)
    world.dies("a", drain=True)

    def looks(source: FilesSource, pins: object, *, was_read: bool) -> None:
        monkeypatch.undo()
        with pytest.raises(Crash):
            world.run("a", drain=True, store=BeforeOutcome(world.store, die))
        raise RecordsGoneError("a planned file is no longer there")

    monkeypatch.setattr(FilesSource, "check_pins", looks)
    world.run("b", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"))
    assert world.opened().head == 0
    world.check()


def test_source_that_is_not_what_it_was_is_no_gap_where_other_records_stand_in_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(2)
    world.dies("a")

    def contradicts(source: FilesSource, pins: object, *, was_read: bool) -> None:
        raise SourceChangedError("a log was cut short below what was planned")

    monkeypatch.setattr(FilesSource, "check_pins", contradicts)
    with pytest.raises(SourceChangedError, match="cut short"):
        world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"))
    assert world.opened().head == -1


@pytest.mark.parametrize("drain", [False, True])
def test_file_that_changes_while_it_is_read_is_planned_anew_once(world: World, drain: bool) -> None:
    world.arrive(2)

    def changes(step: str, times: list[int] = []) -> None:  # noqa: B006
        if step == "transform" and not times:
            times.append(1)
            (world.root / "in" / "00001.json").write_text('{"id": 3}\n{"id": 4}\n{"id": 5}\n \n')

    gap = world.pipeline(on_data_loss="record_gap")
    world.run("a", drain=drain, pipeline=gap, engine=RowsEngine(changes))
    closed = [(v.outcome.result, dict(v.outcome.gaps)) for v in world.opened().versions() if v.outcome]
    assert closed[-2:] == [("commit", {"files": ((1, 2),)}), ("abort", {})]
    world.run("rest", drain=True, pipeline=gap)
    assert world.visible() == Counter(range(6))
    assert world.verdict().findings == []


def test_file_that_vanishes_while_it_is_read_is_a_gap_though_the_reader_calls_it_bad_data(world: World) -> None:
    world.arrive(2)

    def misses(step: str) -> None:
        if step == "transform" and (world.root / "in" / "00000.json").exists():
            (world.root / "in" / "00000.json").unlink()
            raise DataError("a file cannot be read")

    result = world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"), engine=RowsEngine(misses))
    assert (result.counts["read"], result.counts["gaps"]) == (3, 1)
    assert world.verdict().findings == []


def test_source_that_contradicts_what_it_gave_to_plan_is_not_planned_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(2)

    def contradicts(source: FilesSource, pins: object, *, was_read: bool) -> None:
        raise RecordsGoneError("a planned file is no longer there", was_read=was_read)

    monkeypatch.setattr(FilesSource, "check_pins", contradicts)
    gap = world.pipeline(on_data_loss="record_gap")
    for closed in (0, 1):  # the second run meets an open version, which it closes, and makes one of its own
        with pytest.raises(SourceChangedError, match="no longer there"):
            world.run("a", pipeline=gap)
        assert world.opened().head == closed
    monkeypatch.undo()
    world.run("a", drain=True, pipeline=gap)
    world.check()


def test_file_that_changed_before_it_was_read_is_a_gap_and_its_new_content_is_read(world: World) -> None:
    world.arrive(2)
    world.dies("dead")
    (world.root / "in" / "00001.json").write_text('{"id": 3}\n{"id": 4}\n{"id": 5}\n \n')
    world.run("a", drain=True, pipeline=world.pipeline(on_data_loss="record_gap"))
    assert world.visible() == Counter(range(6))


def test_only_files_that_are_gone_make_a_commit_of_gaps_alone(world: World) -> None:
    world.arrive(2)
    world.dies("dead")
    for path in (world.root / "in").iterdir():
        path.unlink()
    with pytest.raises(UnavailableError, match="mounted"):
        world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"))
    assert world.opened().head == -1
    (world.root / "in" / "_emptied_on_purpose").write_text("")
    engine = RowsEngine()
    result = world.run("a", pipeline=world.pipeline(on_data_loss="record_gap"), engine=engine)
    assert (result.counts["read"], result.counts["gaps"], engine.staged, world.opened().files()) == (0, 2, 0, [])
    assert [v.outcome.result for v in world.opened().versions() if v.outcome] == ["commit", "abort"]
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
