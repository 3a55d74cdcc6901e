"""A rollback removes the rows of later versions from each table outside the log, in the transaction that sets the marker."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem import rollback
from airflow_provider_streamsem.errors import ConflictError, InvalidError, OpenVersionError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.rollback import Rollback
from airflow_provider_streamsem.pipeline.versions.publish import rows_after, skip
from airflow_provider_streamsem.readers.history import History
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture, TableSink

SINKS = ("audit", "table")


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    return with_versions(tmp_path, 4)


def with_versions(root: Path, versions: int) -> PublishingFixture:
    """Versions of two files each, and one file that is not read yet."""
    fixture = PublishingFixture(root)
    fixture.arrive(2 * versions)
    fixture.run("run", drain=True)
    fixture.arrive(1)
    return fixture


def roll_back(fixture: PublishingFixture, to: int, *, store: Store | None = None) -> Rollback:
    return rollback(fixture.pipeline(), to, log=fixture.log(store))


def no_rows(rows: list[object]) -> list[object]:
    return []


def ids_of(versions: int) -> Counter[int]:
    """The ids of the first versions."""
    return Counter(range(versions * 6))


def continue_and_check(fixture: PublishingFixture) -> None:
    fixture.run("next", drain=True)
    fixture.check()


def test_rollback_removes_rows_from_every_table_and_the_next_run_writes_them_again(fixture: PublishingFixture) -> None:
    result = roll_back(fixture, 1)
    assert (result.version, result.offsets) == (4, {"files": 4})
    assert fixture.visible() == fixture.rows("audit") == fixture.rows("table") == ids_of(2)
    receipts = fixture.log().receipts(4)
    assert receipts is not None
    assert {name: marker.version for name, marker in receipts.markers.items()} == dict.fromkeys(SINKS, 4)
    continue_and_check(fixture)


def test_rollback_removes_the_current_rows_of_a_reprocessed_version(fixture: PublishingFixture) -> None:
    fixture.run("fix", reprocessed=2)
    fixture.run("fix again", reprocessed=2)
    roll_back(fixture, 1)
    assert fixture.rows("audit") == fixture.rows("table") == ids_of(2)
    continue_and_check(fixture)


def test_version_whose_rows_a_reprocessing_run_has_removed_has_none_to_remove(fixture: PublishingFixture) -> None:
    fixture.run("empty", reprocessed=3, pipeline=fixture.pipeline(transform=no_rows, rows="any"))
    result = roll_back(fixture, 2)
    assert result.version == 5
    outcome = fixture.log().outcome(5)
    assert outcome is not None
    assert outcome.publish == ()
    assert fixture.rows("audit") == ids_of(3)
    continue_and_check(fixture)


def test_second_rollback_removes_only_rows_that_the_first_has_left(fixture: PublishingFixture) -> None:
    roll_back(fixture, 2)
    fixture.run("again", drain=True)
    roll_back(fixture, 0)
    assert fixture.rows("audit") == fixture.rows("table") == ids_of(1)
    continue_and_check(fixture)


def test_table_without_rows_of_the_versions_is_not_changed(tmp_path: Path) -> None:
    fixture = with_versions(tmp_path, 1)
    with TableSink.dying("before publish table"):
        fixture.run("second")
    skip(fixture.pipeline(), 1, sink="table", reason="a test", log=fixture.log())
    roll_back(fixture, 0)
    outcome = fixture.log().outcome(2)
    assert outcome is not None
    assert outcome.publish == ("audit",)
    assert fixture.rows("audit") == fixture.rows("table") == ids_of(1)
    continue_and_check(fixture)


def test_newest_commit_is_published_before_the_rollback_is_planned(tmp_path: Path) -> None:
    fixture = with_versions(tmp_path, 1)
    with TableSink.dying("before publish table"):
        fixture.run("second")
    assert roll_back(fixture, 0).version == 2
    assert fixture.log().receipts(1) is not None
    assert fixture.rows("audit") == fixture.rows("table") == ids_of(1)
    continue_and_check(fixture)


def test_sink_that_cannot_remove_rows_is_refused_by_name(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableSink, "can_remove_rows", False)
    with pytest.raises(InvalidError, match="cannot remove published rows") as refused:
        roll_back(fixture, 1)
    assert refused.value.fields["sinks"] == ["audit", "table"]
    assert fixture.opened().head == 3


def test_table_that_cannot_remove_the_rows_now_is_refused_before_the_plan(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sink: TableSink, files: list[object]) -> None:
        assert len(files) == 2, "the files of versions 2 and 3"
        raise InvalidError("another writer rewrote files")

    monkeypatch.setattr(TableSink, "check_removable", refuse)
    with pytest.raises(InvalidError, match="another writer rewrote files"):
        roll_back(fixture, 1)
    assert fixture.opened().head == 3


@pytest.mark.parametrize("follower", ["rollback", "run"])
def test_rollback_that_dies_before_it_publishes_is_published_by_the_next_process(
    fixture: PublishingFixture, follower: str
) -> None:
    with TableSink.dying("before publish table"):
        roll_back(fixture, 1)
    assert fixture.rows("table") == ids_of(4)
    if follower == "rollback":
        assert roll_back(fixture, 1).version == 4
        assert fixture.rows("table") == ids_of(2)
    continue_and_check(fixture)


def test_skipped_rollback_leaves_the_rows_in_the_table(fixture: PublishingFixture) -> None:
    with TableSink.dying("before publish table"):
        roll_back(fixture, 1)
    skip(fixture.pipeline(), 4, sink="table", reason="the rows were deleted by hand", log=fixture.log())
    assert (fixture.rows("audit"), fixture.rows("table")) == (ids_of(2), ids_of(4))
    fixture.run("next", drain=True)
    assert fixture.rows("audit") == fixture.expected


def test_skip_of_a_rollback_names_a_table_to_which_it_is_published(tmp_path: Path) -> None:
    fixture = with_versions(tmp_path, 1)
    with TableSink.dying("before publish table"):
        fixture.run("second")
    skip(fixture.pipeline(), 1, sink="table", reason="a test", log=fixture.log())
    with TableSink.dying("before publish audit"):
        roll_back(fixture, 0)
    with pytest.raises(InvalidError, match="nothing to publish to these sinks") as refused:
        skip(fixture.pipeline(), 2, sink="table", reason="a slip", log=fixture.log())
    assert refused.value.fields["pending"] == ["audit"]
    assert fixture.rows("audit") == Counter(range(9))
    assert states_of(fixture, 2) == {"audit": "waiting"}
    roll_back(fixture, 0)
    assert states_of(fixture, 2) == {"audit": "applied"}


def states_of(fixture: PublishingFixture, version: int) -> dict[str, str]:
    """The states of sinks that ``streamsem log`` shows."""
    (summary,) = History(fixture.opened()).summaries(before=version + 1, limit=1)
    return dict(summary.sinks)


def test_unpublished_rollback_to_another_version_is_not_the_result_of_its_run_key(fixture: PublishingFixture) -> None:
    with TableSink.dying("before publish table"):
        rollback(fixture.pipeline(), 2, run_key="fix", log=fixture.log())
    with pytest.raises(InvalidError, match="rollback to another version"):
        rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log())
    assert rollback(fixture.pipeline(), 2, run_key="fix", log=fixture.log()).version == 4
    continue_and_check(fixture)


def test_table_with_the_marker_of_an_older_copy_is_refused_before_the_plan(fixture: PublishingFixture) -> None:
    with closing(sqlite3.connect(fixture.database)) as db, db:
        db.execute("UPDATE markers SET version = 2, outcome = '' WHERE id LIKE '%/table'")
    with pytest.raises(InvalidError, match="restored from an older copy") as refused:
        roll_back(fixture, 1)
    assert (refused.value.fields["marker"], refused.value.fields["expected_marker"]) == (2, 3)
    assert fixture.opened().head == 3


def test_late_publisher_of_a_rolled_back_version_applies_nothing(tmp_path: Path) -> None:
    fixture = with_versions(tmp_path, 2)

    def overtake(name: str) -> None:
        if name == "before publish table" and fixture.opened().head == 2:
            with TableSink.step_by_step(lambda name: None):
                fixture.run("other")
                roll_back(fixture, 1)
                assert fixture.rows("table") == ids_of(2)

    with TableSink.step_by_step(overtake):
        fixture.run("slow")
    assert fixture.rows("audit") == fixture.rows("table") == ids_of(2)
    continue_and_check(fixture)


def test_verify_reports_a_rollback_that_does_not_name_the_tables_with_rows(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "airflow_provider_streamsem.pipeline.maintenance.rollback.rows_after",
        lambda *given: {"audit": rows_after(*given)["audit"]},
    )
    roll_back(fixture, 1)
    [found] = fixture.verdict().violations
    assert found.invariant == "I21"
    assert "['audit', 'table'] have rows of the versions after 1" in found.what


@pytest.mark.slow
@pytest.mark.parametrize("follower", ["rollback", "run"])
def test_rollback_that_dies_at_any_step_is_completed_or_was_never_planned(tmp_path: Path, follower: str) -> None:
    for at in count():
        fixture = with_versions(tmp_path / str(at), 2)
        steps = Steps(at)
        with TableSink.step_by_step(steps), suppress(Crash):
            roll_back(fixture, 0, store=StepReportingStore(fixture.store, steps))
        if follower == "rollback":
            roll_back(fixture, 0)
            assert fixture.rows("audit") == fixture.rows("table") == ids_of(1)
        assert fixture.verdict().violations == []
        continue_and_check(fixture)
        if not steps.died:
            assert at >= 12
            return


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.APPLIED_LATE])
def test_rollback_after_a_bad_reply_to_any_request_removes_the_rows(tmp_path: Path, fault: Fault) -> None:
    for at in count():
        fixture = with_versions(tmp_path / str(at), 2)
        store = FaultyStore(fixture.store, at, fault)
        roll_back(fixture, 0, store=store)
        assert fixture.rows("audit") == fixture.rows("table") == ids_of(1)
        continue_and_check(fixture)
        if not store.reached:
            assert at >= 12
            return


@pytest.mark.slow
@pytest.mark.parametrize("other", ["run", "rollback", "reprocess"])
def test_rollback_concurrent_with_another_process_loses_and_duplicates_no_row(tmp_path: Path, other: str) -> None:
    for at in count():
        fixture = with_versions(tmp_path / str(at), 2)
        paused = _PausingSteps(at, partial(act, fixture, other))
        refusal = ""
        try:
            with TableSink.step_by_step(paused):
                roll_back(fixture, 0, store=StepReportingStore(fixture.store, paused))
        except (ConflictError, InvalidError, OpenVersionError) as error:
            refusal = error.summary
        assert re.search("^$|at the same time|a version is open|has reprocessed a version", refusal)
        assert fixture.verdict().violations == []
        continue_and_check(fixture)
        if not paused.reached:
            assert at >= 12
            return


@pytest.mark.slow
def test_batch_concurrent_with_a_rollback_is_published_once(tmp_path: Path) -> None:
    for at in count():
        fixture = with_versions(tmp_path / str(at), 2)
        paused = _PausingSteps(at, partial(act, fixture, "rollback"))
        with TableSink.step_by_step(paused):
            fixture.run("slow", store=StepReportingStore(fixture.store, paused), engine=RowsEngine(paused))
        assert fixture.verdict().violations == []
        continue_and_check(fixture)
        if not paused.reached:
            assert at >= 20
            return


class _PausingSteps:
    """Runs another process to its end before one step."""

    def __init__(self, at: int, other: partial[None]) -> None:
        self._at, self._other = at, other
        self._steps = 0
        self.reached = False

    def __call__(self, name: str) -> None:
        self._steps += 1
        if self._steps == self._at + 1 and not self.reached:
            self.reached = True
            with TableSink.step_by_step(lambda name: None):
                self._other()


def act(fixture: PublishingFixture, other: str) -> None:
    with suppress(StreamsemError):
        if other == "rollback":
            roll_back(fixture, 0)
        elif other == "run":
            fixture.run("other", drain=True)
        else:
            fixture.run("other", reprocessed=0)
