"""Input files that change or go missing after they were planned: the run stops, or records a gap."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress

import pytest

from airflow_provider_streamsem import FilesSource
from airflow_provider_streamsem.errors import (
    DataError,
    RecordsMissingError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, die


def test_changed_planned_file_is_reported_by_name(fixture: PipelineFixture) -> None:
    fixture.arrive(2)

    def change_file(step: str) -> None:
        if step == "transform":
            (fixture.root / "in" / "00001.json").write_text('{"id": 99}\n')

    with pytest.raises(RecordsMissingError, match=r"00001\.json"):
        fixture.run("a", engine=RowsEngine(change_file))
    assert fixture.opened().head == -1


def test_file_deleted_between_plan_and_read_is_reported_by_name(fixture: PipelineFixture) -> None:
    fixture.arrive(2)

    fixture.dies("a")
    (fixture.root / "in" / "00000.json").unlink()
    with pytest.raises(RecordsMissingError, match=r"00000\.json"):
        fixture.run("a")


@pytest.mark.parametrize("drain", [False, True])
def test_missing_planned_file_stops_the_run_or_becomes_a_gap_of_a_new_plan(
    fixture: PipelineFixture, drain: bool
) -> None:
    fixture.arrive(3)
    fixture.dies("dead")
    (fixture.root / "in" / "00000.json").unlink()
    with pytest.raises(SourceChangedError, match="record_gap"):
        fixture.run("a", drain=drain)
    assert fixture.opened().head == -1
    result = fixture.run("a", drain=drain, pipeline=fixture.pipeline(on_data_loss="record_gap"))
    assert result.counts["read"] == (6 if drain else 3)
    aborted, outcome = (fixture.opened().log.outcome(n) for n in (0, 1))  # type: ignore[union-attr]
    assert (aborted.result, outcome.gaps) == ("abort", {"files": ((0, 1),)})
    assert "00000.json" in aborted.reason
    fixture.run("rest", drain=True)
    assert fixture.visible() == Counter(range(3, 9))
    assert fixture.verdict().violations == []


def test_missing_file_is_not_a_gap_after_an_abort_by_an_operator(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("dead")
    (fixture.root / "in" / "00000.json").unlink()
    opened = fixture.opened()
    abort(opened.log, opened.record, 0, reason="a file is missing")
    with pytest.raises(SourceChangedError, match=r"00000\.json"):
        fixture.run("a")


def test_complete_attempt_is_committed_although_its_input_files_are_missing(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    with pytest.raises(Crash):
        fixture.run("a", drain=True, store=BeforeOutcome(fixture.store, die))
    (fixture.root / "in" / "00000.json").unlink()
    assert fixture.run("a", drain=True, pipeline=fixture.pipeline(on_data_loss="record_gap")).counts["read"] == 6
    fixture.check()


def test_attempt_committed_before_the_abort_for_a_missing_file_stays_committed(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("dead", drain=True)
    missing = fixture.root / "in" / "00000.json"
    content, modified_ns = missing.read_text(), missing.stat().st_mtime_ns
    missing.unlink()

    def restore_and_commit() -> None:
        missing.write_text(content)
        os.utime(missing, ns=(modified_ns, modified_ns))
        fixture.run("dead", drain=True)

    fixture.run(
        "a",
        drain=True,
        pipeline=fixture.pipeline(on_data_loss="record_gap"),
        store=BeforeOutcome(fixture.store, restore_and_commit),
    )
    assert fixture.opened().head == 0
    fixture.check()


def test_attempt_completed_by_another_process_while_a_missing_file_is_checked_is_committed(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.arrive(2)
    fixture.dies("a", drain=True)

    def stage_and_report_missing(source: FilesSource, pins: object, *, was_read: bool) -> None:
        monkeypatch.undo()
        with pytest.raises(Crash):
            fixture.run("a", drain=True, store=BeforeOutcome(fixture.store, die))
        raise RecordsMissingError("a planned file is missing")

    monkeypatch.setattr(FilesSource, "check_pins", stage_and_report_missing)
    fixture.run("b", drain=True, pipeline=fixture.pipeline(on_data_loss="record_gap"))
    assert fixture.opened().head == 0
    fixture.check()


def test_truncated_and_refilled_source_stops_the_run_and_is_not_a_gap(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.arrive(2)
    fixture.dies("a")

    def fail_check(source: FilesSource, pins: object, *, was_read: bool) -> None:
        raise SourceChangedError("a log was truncated below what was planned")

    monkeypatch.setattr(FilesSource, "check_pins", fail_check)
    with pytest.raises(SourceChangedError, match="truncated"):
        fixture.run("a", pipeline=fixture.pipeline(on_data_loss="record_gap"))
    assert fixture.opened().head == -1


@pytest.mark.parametrize("drain", [False, True])
def test_file_that_changes_while_it_is_read_is_planned_again_once(fixture: PipelineFixture, drain: bool) -> None:
    fixture.arrive(2)

    def change_file(step: str, times: list[int] = []) -> None:  # noqa: B006
        if step == "transform" and not times:
            times.append(1)
            (fixture.root / "in" / "00001.json").write_text('{"id": 3}\n{"id": 4}\n{"id": 5}\n \n')

    gap = fixture.pipeline(on_data_loss="record_gap")
    fixture.run("a", drain=drain, pipeline=gap, engine=RowsEngine(change_file))
    closed = [(v.outcome.result, dict(v.outcome.gaps)) for v in fixture.opened().versions() if v.outcome]
    assert closed[-2:] == [("commit", {"files": ((1, 2),)}), ("abort", {})]
    fixture.run("rest", drain=True, pipeline=gap)
    assert fixture.visible() == Counter(range(6))
    assert fixture.verdict().violations == []


def test_file_deleted_while_it_is_read_is_a_gap_although_the_reader_reports_bad_data(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(2)

    def delete_and_fail(step: str) -> None:
        if step == "transform" and (fixture.root / "in" / "00000.json").exists():
            (fixture.root / "in" / "00000.json").unlink()
            raise DataError("a file cannot be read")

    result = fixture.run("a", pipeline=fixture.pipeline(on_data_loss="record_gap"), engine=RowsEngine(delete_and_fail))
    assert (result.counts["read"], result.counts["gaps"]) == (3, 1)
    assert fixture.verdict().violations == []


def test_run_stops_planning_again_if_the_source_denies_its_planned_files_repeatedly(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.arrive(2)

    def fail_check(source: FilesSource, pins: object, *, was_read: bool) -> None:
        raise RecordsMissingError("a planned file is missing", was_read=was_read)

    monkeypatch.setattr(FilesSource, "check_pins", fail_check)
    gap = fixture.pipeline(on_data_loss="record_gap")
    for closed in (0, 1):  # the second run first closes the open version and then plans its own
        with pytest.raises(SourceChangedError, match="is missing"):
            fixture.run("a", pipeline=gap)
        assert fixture.opened().head == closed
    monkeypatch.undo()
    fixture.run("a", drain=True, pipeline=gap)
    fixture.check()


def test_file_changed_before_it_was_read_is_a_gap_and_its_new_content_is_read(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("dead")
    (fixture.root / "in" / "00001.json").write_text('{"id": 3}\n{"id": 4}\n{"id": 5}\n \n')
    fixture.run("a", drain=True, pipeline=fixture.pipeline(on_data_loss="record_gap"))
    assert fixture.visible() == Counter(range(6))


def test_batch_of_missing_files_only_is_committed_as_gaps(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("dead")
    for path in (fixture.root / "in").iterdir():
        path.unlink()
    with pytest.raises(UnavailableError, match="mounted"):
        fixture.run("a", pipeline=fixture.pipeline(on_data_loss="record_gap"))
    assert fixture.opened().head == -1
    (fixture.root / "in" / "_emptied_on_purpose").write_text("")
    engine = RowsEngine()
    result = fixture.run("a", pipeline=fixture.pipeline(on_data_loss="record_gap"), engine=engine)
    assert (result.counts["read"], result.counts["gaps"], engine.staged, fixture.opened().files()) == (0, 2, 0, [])
    assert [v.outcome.result for v in fixture.opened().versions() if v.outcome] == ["commit", "abort"]
    assert fixture.verdict().violations == []


def test_retried_drain_with_an_unmounted_source_directory_records_no_gaps(fixture: PipelineFixture) -> None:
    fixture.arrive(6)

    fixture.dies("a", drain=True, batch=2)
    opened = fixture.opened()
    abort(opened.log, opened.record, 1, reason="x")
    (fixture.root / "in").rename(fixture.root / "away")
    with pytest.raises(UnavailableError, match="mounted"):
        fixture.run("a", drain=True, pipeline=fixture.pipeline(on_data_loss="record_gap"))
    (fixture.root / "away").rename(fixture.root / "in")
    fixture.run("a", drain=True, pipeline=fixture.pipeline(on_data_loss="record_gap"))
    fixture.check()


def test_file_removed_during_a_drain_becomes_a_gap_of_its_own_plan(fixture: PipelineFixture) -> None:
    fixture.arrive(4)

    def remove_file(step: str) -> None:
        (fixture.root / "in" / "00003.json").unlink(missing_ok=True)

    result = fixture.run(
        "a", drain=True, engine=RowsEngine(remove_file), pipeline=fixture.pipeline(on_data_loss="record_gap")
    )
    assert (result.counts["read"], result.counts["gaps"]) == (9, 1)


def test_files_discovered_by_a_faster_process_are_not_a_gap_of_a_slower_one(fixture: PipelineFixture) -> None:
    from airflow_provider_streamsem.testing.stores import Fault, FaultyStore

    for at in range(14):
        fixture.arrive(1)

        def run_other(at: int = at) -> None:
            fixture.arrive(1)

            def fail(step: str) -> None:
                raise RuntimeError

            with pytest.raises(RuntimeError):
                fixture.run(f"b{at}", engine=RowsEngine(fail))

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, run_other)
        fixture.run(f"a{at}", drain=True, store=store, pipeline=fixture.pipeline(on_data_loss="record_gap"))
        fixture.run(f"rest{at}", drain=True)
    fixture.check()


def test_missing_source_directory_is_an_error_and_not_an_empty_source(fixture: PipelineFixture) -> None:
    (fixture.root / "in").rmdir()
    with pytest.raises(UnavailableError, match="not mounted"):
        fixture.run("a")


def test_directory_links_and_pipes_are_ignored_and_names_that_are_not_utf8_are_reported(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(1)
    (fixture.root / "in" / "sub").mkdir()
    (fixture.root / "in" / "sub" / "x.json").write_text('{"id": 3}\n')
    (fixture.root / "in" / "current").symlink_to(fixture.root / "in" / "sub")
    (fixture.root / "in" / "loop").symlink_to(fixture.root / "in")
    os.mkfifo(fixture.root / "in" / "pipe.json")
    assert fixture.run("a").counts["read"] == 4
    with open(os.fsencode(str(fixture.root / "in")) + b"/caf\xe9.json", "w") as file:
        file.write("{}")
    with pytest.raises(DataError, match="not UTF-8"):
        fixture.run("b")


def test_attempt_of_another_process_is_adopted_if_records_are_missing_for_the_planner(fixture: PipelineFixture) -> None:
    """The other process has staged the records before they were deleted. Without its attempt, they would become a gap."""
    fixture.arrive(2)
    pipeline, others = fixture.pipeline(on_data_loss="record_gap"), list[str]()

    def other(step: str) -> None:
        if step == "transform" and not others:
            others.append(step)
            with suppress(Crash):
                fixture.run("a", store=BeforeOutcome(fixture.store, die), pipeline=pipeline)
            (fixture.root / "in" / "00000.json").unlink()

    fixture.run("a", pipeline=pipeline, engine=RowsEngine(other))
    assert others
    outcome = fixture.log().outcome(0)
    assert outcome is not None
    assert (outcome.result, outcome.gaps) == ("commit", {})
    assert fixture.visible() == Counter(range(6))
