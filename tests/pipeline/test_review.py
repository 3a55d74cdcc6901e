"""Tests of held versions: their rows are invisible until a user commits them, and no other process closes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, Pipeline, alter, rollback
from airflow_provider_streamsem.errors import ConflictError, HeldVersionError, InvalidError, StageError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.review import Held, commit_held, stage_reprocessing
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture
from tests.pipeline_fixture import PipelineFixture

HELD = 3


def wrong(rows: Any) -> Any:
    return [{**row, "mark": "wrong"} for row in rows]


def right(rows: Any) -> Any:
    """Mark the rows of version 1."""
    return [{**row, "mark": "right" if 3 <= row["id"] < 6 else "wrong"} for row in rows]


class ReviewedFixture(PublishingFixture):
    """A pipeline whose transform is wrong."""

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"transform": wrong, **changes})


def fixed(fixture: PipelineFixture) -> Pipeline:
    return fixture.pipeline(transform=right)


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    return prepared(tmp_path)


def prepared(root: Path) -> PublishingFixture:
    """Versions 0 to 2 are committed, and two files are unread."""
    fixture = ReviewedFixture(root)
    for number in range(3):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.arrive(2)
    return fixture


def staged(fixture: PipelineFixture, version: int = 1, *, store: Store | None = None, **named: Any) -> Held:
    arguments = {"engine": RowsEngine(), "log": fixture.log(store), **named}
    return stage_reprocessing(arguments.pop("pipeline", None) or fixed(fixture), version, **arguments)


def committed(fixture: PipelineFixture, version: int = HELD, *, store: Store | None = None, **named: Any) -> Any:
    return commit_held(fixed(fixture), version, log=fixture.log(store), **named)


def aborted(fixture: PipelineFixture, *, store: Store | None = None) -> None:
    log = fixture.log(store)
    record = log.read_pipeline()
    assert record is not None
    abort(log, record, HELD, reason="the rows are wrong")


def marks(fixture: PipelineFixture) -> Counter[int]:
    """Return version → number of its visible rows that the corrected transform has marked."""
    found: Counter[int] = Counter()
    for file in fixture.opened().files(sink="out"):
        rows = [json.loads(line) for line in Path(file.path).read_text().splitlines()]
        found[file.version] += sum(row["mark"] == "right" for row in rows)
    return +found


def test_staged_rows_are_invisible_until_they_are_committed(fixture: PublishingFixture) -> None:
    before = fixture.visible()
    held = staged(fixture)
    assert (held.version, held.replaces, held.counts["read"]) == (HELD, 1, 3)
    assert (fixture.visible(), marks(fixture)) == (before, Counter())
    assert fixture.verdict().violations == []
    result = committed(fixture)
    assert (result.version, result.counts["read"]) == (HELD, 3)
    assert marks(fixture) == Counter({HELD: 3})
    fixture.run("rest", drain=True)
    fixture.check()


def test_rows_of_an_aborted_version_are_never_visible_and_the_version_can_be_staged_again(
    fixture: PublishingFixture,
) -> None:
    first = staged(fixture)
    aborted(fixture)
    assert marks(fixture) == Counter()
    fixture.run("rest", drain=True)
    second = staged(fixture)
    assert second.attempt_id != first.attempt_id
    committed(fixture, second.version)
    assert marks(fixture) == Counter({second.version: 3})
    fixture.check()


WRITERS: dict[str, Callable[[PublishingFixture], object]] = {
    "run": lambda fixture: fixture.run("other"),
    "reprocessing run": lambda fixture: fixture.run("other", reprocessed=0),
    "reprocessing run of the version": lambda fixture: fixture.run("reprocess:1:1", reprocessed=1),
    "review of another version": lambda fixture: staged(fixture, 2),
    "alter": lambda fixture: alter(
        fixture.pipeline(sinks={"out": FilesSink(path=str(fixture.root / "out"), format="json")}), log=fixture.log()
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_other_writer_closes_a_held_version(fixture: PublishingFixture, writer: str) -> None:
    staged(fixture)
    before = sorted(stat.key for stat in fixture.store.list(""))
    with pytest.raises(HeldVersionError, match=f"is held.*version={HELD}"):
        WRITERS[writer](fixture)
    specs = {key for key in before if key.startswith("specs/")}
    after = {stat.key for stat in fixture.store.list("")}
    assert {key for key in after if not key.startswith("specs/")} == {*before} - specs
    committed(fixture)
    fixture.run("rest", drain=True)
    fixture.check()


def test_rollback_and_a_submitted_run_do_not_close_a_held_version(fixture: PublishingFixture) -> None:
    staged(fixture)
    with pytest.raises(HeldVersionError, match="no rollback was planned"):
        rollback(fixture.pipeline(), 1, log=fixture.log())
    with pytest.raises(HeldVersionError):
        plan_run(fixture.pipeline(), run_key="submitted", log=fixture.log())
    vacuum(fixture.pipeline(), log=fixture.log())
    committed(fixture)
    assert marks(fixture) == Counter({HELD: 3})


def test_repeated_calls_return_the_first_results(fixture: PublishingFixture) -> None:
    held = staged(fixture)
    assert staged(fixture) == held
    first = committed(fixture)
    assert committed(fixture) == first
    fixture.run("rest", drain=True)
    assert committed(fixture) == first


def test_commit_of_a_version_that_is_not_held_is_refused(fixture: PublishingFixture) -> None:
    for version in (1, HELD):
        with pytest.raises(InvalidError, match="is not held"):
            committed(fixture, version)
    fixture.dies("other")
    with pytest.raises(InvalidError, match="is not held"):
        committed(fixture)
    fixture.run("rest", drain=True)
    fixture.check()


def test_commit_of_an_aborted_version_is_refused(fixture: PublishingFixture) -> None:
    staged(fixture)
    aborted(fixture)
    with pytest.raises(InvalidError, match="was aborted; nothing was committed"):
        committed(fixture)
    fixture.run("rest", drain=True)
    fixture.check()


def test_commit_is_refused_if_files_of_the_reviewed_attempt_are_missing(fixture: PublishingFixture) -> None:
    held = staged(fixture)
    for path in (fixture.root / "out").glob(f"data/{HELD}/{held.attempt_id}/*"):
        path.unlink()
    with pytest.raises(InvalidError, match="reviewed rows cannot be committed"):
        committed(fixture)
    aborted(fixture)
    fixture.run("rest", drain=True)
    fixture.check()


def test_commit_of_an_aborted_version_never_returns_the_one_that_was_staged_after_it(
    fixture: PublishingFixture,
) -> None:
    first = staged(fixture)
    aborted(fixture)
    second = staged(fixture)
    committed(fixture, second.version)
    for attempt_id in (None, first.attempt_id):
        with pytest.raises(InvalidError, match="was aborted; nothing was committed"):
            committed(fixture, first.version, attempt_id=attempt_id)
    with pytest.raises(InvalidError, match="another attempt of the held version is committed"):
        committed(fixture, second.version, attempt_id=first.attempt_id)
    assert committed(fixture, second.version, attempt_id=second.attempt_id).version == second.version
    fixture.dies("later")
    assert committed(fixture, second.version).version == second.version


def test_open_reprocessing_run_is_not_closed_without_a_review(fixture: PublishingFixture) -> None:
    fixture.dies("old code", reprocessed=1)
    with pytest.raises(InvalidError, match="visible without a review; nothing was staged"):
        staged(fixture)
    assert fixture.opened().head == 2
    aborted(fixture)
    committed(fixture, staged(fixture).version)
    fixture.run("rest", drain=True)
    fixture.check()


def test_attempt_with_another_spec_is_not_taken_for_the_requested_one(
    fixture: PublishingFixture, caplog: pytest.LogCaptureFixture
) -> None:
    staged(fixture)
    with pytest.raises(InvalidError, match="staged with another spec; nothing was staged"):
        staged(fixture, pipeline=fixture.pipeline(transform=right, where="id > 3"))
    caplog.set_level("WARNING")
    staged(fixture)
    assert "is held already, so this call staged nothing" in caplog.text


@pytest.mark.parametrize("error", [StageError("an executor was lost"), ValueError("the transform is wrong")])
def test_version_without_an_attempt_is_not_held(fixture: PublishingFixture, error: Exception) -> None:
    def fail(rows: Any) -> Any:
        raise error

    with pytest.raises(type(error)):
        staged(fixture, pipeline=fixture.pipeline(transform=fail))
    fixture.run("rest", drain=True)
    fixture.check()


def test_commit_names_the_attempt_if_several_were_staged(fixture: PublishingFixture) -> None:
    first = staged(fixture)
    for path in (fixture.root / "out").glob(f"data/{HELD}/{first.attempt_id}/*"):
        path.rename(path.with_suffix(".hidden"))
    second = staged(fixture)
    for path in (fixture.root / "out").glob(f"data/{HELD}/{first.attempt_id}/*"):
        path.rename(path.with_suffix(".json"))
    with pytest.raises(InvalidError, match="staged several attempts"):
        committed(fixture)
    with pytest.raises(InvalidError, match="no such attempt"):
        committed(fixture, attempt_id="none")
    committed(fixture, attempt_id=second.attempt_id)
    assert fixture.log().closed_version(HELD)[1].attempt_id == second.attempt_id


def test_held_version_that_cannot_be_staged_does_not_block_other_runs(fixture: PublishingFixture) -> None:
    def fail(rows: Any) -> Any:
        from airflow_provider_streamsem.errors import DataError

        raise DataError("the transform cannot process the rows")

    with pytest.raises(StreamsemError, match="cannot process"):
        staged(fixture, pipeline=fixture.pipeline(transform=fail))
    fixture.run("rest", drain=True)
    fixture.check()


def test_error_of_another_process_does_not_abort_a_reviewed_version(fixture: PublishingFixture) -> None:
    held = staged(fixture)
    other = fixture.pipeline(sinks={"out": FilesSink(path=str(fixture.root / "out"), format="json")})
    with pytest.raises(ConflictError):
        staged(fixture, pipeline=other)
    assert committed(fixture).version == held.version
    assert marks(fixture) == Counter({HELD: 3})


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)])
def test_repeated_calls_complete_a_review_after_a_fault_at_any_request(tmp_path: Path, fault: Fault) -> None:
    at, is_done = 0, False
    while not is_done:
        fixture = prepared(tmp_path / str(at))
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            staged(fixture, store=store)
            assert marks(fixture) == Counter()
            committed(fixture, store=store)
        is_done, at = not store.reached, at + 1
        if fixture.opened().head < HELD:
            staged(fixture)
        committed(fixture)
        assert marks(fixture) == Counter({HELD: 3})
        fixture.run("rest", drain=True)
        fixture.check()


@pytest.mark.slow
@pytest.mark.parametrize("other", ["commit", "abort", "run", "stage"])
def test_concurrent_writers_commit_only_a_staged_attempt_of_a_held_version(tmp_path: Path, other: str) -> None:
    at, is_done = 0, False
    while not is_done:
        fixture = prepared(tmp_path / str(at))
        others = {
            "commit": partial(committed, fixture),
            "abort": partial(aborted, fixture),
            "run": partial(fixture.run, "concurrent"),
            "stage": partial(staged, fixture),
        }

        def quietly(act: Callable[[], object] = others[other]) -> None:
            with suppress(StreamsemError):
                act()

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(StreamsemError):
            held = staged(fixture, store=store)
            commit_held(fixed(fixture), held.version, attempt_id=held.attempt_id, log=fixture.log(store))
        is_done, at = not store.reached, at + 1
        head = fixture.log().newest_head()
        open_plan = getattr(head, "plan", None)
        if open_plan is not None and open_plan.work.is_held:  # several attempts may have been staged
            attempt = fixture.log().find_staged(head)[0] if fixture.log().find_staged(head) else None  # type: ignore[arg-type]
            if attempt is None:
                staged(fixture)
            commit_held(fixed(fixture), open_plan.version, attempt_id=attempt and attempt.attempt_id, log=fixture.log())
        assert sum(marks(fixture).values()) in (0, 3)
        fixture.run("rest", drain=True)
        fixture.check()
