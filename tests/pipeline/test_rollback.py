"""A rollback removes the rows of the versions after one version at once. Their records are read again, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem import Dedup, rollback, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import ConflictError, InvalidError, OpenVersionError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.rollback import Rollback
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.readers import conditions
from airflow_provider_streamsem.readers.conditions import BatchCommitted
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.lagging_store import LaggingStore
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, PreparedFixture, die


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return four_versions(tmp_path)


def four_versions(root: Path) -> PipelineFixture:
    """Versions 0 to 3 of two files each, and one file that is not read yet."""
    return with_files(root, 8)


def with_files(root: Path, files: int) -> PipelineFixture:
    """Versions of two files each, and one file that is not read yet."""
    fixture = PipelineFixture(root)
    fixture.arrive(files)
    fixture.run("run", drain=True)
    fixture.arrive(1)
    return fixture


def roll_back(fixture: PipelineFixture, to: int, *, store: Store | None = None) -> Rollback:
    return rollback(fixture.ran or fixture.pipeline(), to, log=fixture.log(store))


def ids_of(versions: int) -> Counter[int]:
    """The ids of the first versions of the fixture."""
    return Counter(range(versions * 6))


def test_rollback_removes_the_rows_of_later_versions_and_the_next_run_reads_them_again(
    fixture: PipelineFixture,
) -> None:
    result = roll_back(fixture, 1)
    assert (result.version, result.to, result.offsets) == (4, 1, {"files": 4})
    assert result.counts == {"read": 12, "parsed": 12, "written.out": 12}
    assert fixture.visible() == ids_of(2)
    assert fixture.opened().view().counts == fixture.opened().view(version=1).counts
    assert fixture.verdict().violations == []
    fixture.run("next", drain=True)
    fixture.check()


def test_I7_earlier_versions_are_unchanged_after_a_rollback(fixture: PipelineFixture) -> None:
    before = fixture.opened().files(version=3)
    roll_back(fixture, 0)
    fixture.run("next", drain=True)
    vacuum(fixture.pipeline(), log=fixture.log(), all_versions=True)
    assert fixture.opened().files(version=3) == before
    assert all(Path(file.path).exists() for file in before)
    fixture.check()


def closed_at(root: Path, *minutes: int) -> PipelineFixture:
    """A version of two files for each minute at which one is closed."""
    fixture = PipelineFixture(root)
    for minute in minutes:
        fixture.arrive(2)
        clock = ManualClock(minute * 60_000, name=f"at {minute}")
        run_batch(fixture.pipeline(), run_key=f"at {minute}", log=CommitLog(fixture.store, clock), engine=RowsEngine())
    return fixture


@pytest.mark.parametrize(("minute", "to"), [(15, 0), (25, 1), (35, 2)])
def test_rollback_to_a_time_keeps_the_newest_version_that_was_closed_by_then(
    tmp_path: Path, minute: int, to: int
) -> None:
    fixture = closed_at(tmp_path, 10, 20, 30, 40)
    result = rollback(fixture.pipeline(), until_ms=minute * 60_000, run_key="fix", log=fixture.log())
    assert (result.version, result.to, result.offsets) == (4, to, {"files": 2 * (to + 1)})
    assert fixture.visible() == ids_of(to + 1)
    fixture.run("next", drain=True)
    assert rollback(fixture.pipeline(), until_ms=minute * 60_000, run_key="fix", log=fixture.log()) == result
    fixture.check()


def test_version_that_was_closed_at_the_time_itself_is_kept(tmp_path: Path) -> None:
    fixture = closed_at(tmp_path, 10, 20, 30)
    outcome = fixture.log().outcome(1)
    assert outcome is not None
    decided_ms = outcome.decided_at_ms
    assert rollback(fixture.pipeline(), until_ms=decided_ms, log=fixture.log()).to == 1
    assert rollback(fixture.pipeline(), until_ms=decided_ms - 1, log=fixture.log()).to == 0
    fixture.run("next", drain=True)
    fixture.check()


def test_rollback_to_a_time_without_a_visible_version_is_refused(tmp_path: Path) -> None:
    fixture = closed_at(tmp_path, 10, 20, 30)
    with pytest.raises(InvalidError, match="no version was closed by this time"):
        rollback(fixture.pipeline(), until_ms=1, log=fixture.log())
    for given in ({}, {"to": 0, "until_ms": 1}):
        with pytest.raises(InvalidError, match="exactly one of to and until_ms"):
            rollback(fixture.pipeline(), log=fixture.log(), **given)
    assert fixture.opened().head == 2


def test_rollback_to_a_time_skips_versions_that_were_rolled_back(tmp_path: Path) -> None:
    fixture = closed_at(tmp_path, 10, 20, 30)
    roll_back(fixture, 0)
    result = rollback(fixture.pipeline(), until_ms=25 * 60_000, log=fixture.log())
    assert (result.version, result.to) == (None, 0), "the pipeline is at this version already"
    fixture.run("next", drain=True)
    assert rollback(fixture.pipeline(), until_ms=25 * 60_000, log=fixture.log()).to == 0
    fixture.run("after", drain=True)
    fixture.check()


def test_rollback_to_a_time_finds_the_newest_version_although_the_listing_lags(tmp_path: Path) -> None:
    fixture = closed_at(tmp_path, 10, 20, 30)
    log = fixture.log(LaggingStore(fixture.store, 1))
    assert log.find_head().closed < 1
    assert rollback(fixture.pipeline(), until_ms=25 * 60_000, log=log).to == 1


def test_repeated_rollback_writes_nothing(fixture: PipelineFixture) -> None:
    roll_back(fixture, 1)
    again = roll_back(fixture, 1)
    assert (again.version, again.offsets, again.counts) == (None, {"files": 4}, {})
    assert roll_back(fixture, 4).version is None
    assert fixture.opened().head == 4


def test_rollback_with_a_run_key_is_performed_once(fixture: PipelineFixture) -> None:
    first = rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log())
    fixture.run("next", drain=True)
    assert rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log()) == first
    fixture.check()
    with pytest.raises(InvalidError, match="not a rollback"):
        rollback(fixture.pipeline(), 1, run_key="next", log=fixture.log())


def test_rollback_with_a_run_key_that_changed_nothing_is_not_performed_later(fixture: PipelineFixture) -> None:
    first = rollback(fixture.pipeline(), 3, run_key="fix", log=fixture.log())
    assert (first.version, first.counts) == (4, {})
    fixture.run("next", drain=True)
    assert rollback(fixture.pipeline(), 3, run_key="fix", log=fixture.log()) == first
    fixture.check()


def test_two_requests_to_one_version_are_two_versions(fixture: PipelineFixture) -> None:
    def other() -> None:
        store = BeforeOutcome(fixture.store, die)
        with suppress(Crash):
            rollback(fixture.pipeline(), 1, run_key="a", log=fixture.log(store))

    other()
    second = rollback(fixture.pipeline(), 1, run_key="b", log=fixture.log())
    assert second.version == 5
    fixture.run("next", drain=True)
    for run_key, version in (("a", 4), ("b", 5)):
        assert rollback(fixture.pipeline(), 1, run_key=run_key, log=fixture.log()).version == version
    fixture.check()


def test_run_key_of_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(8)
    fixture.dies("drain", drain=True, batch=3)
    record = fixture.log().read_pipeline()
    assert record is not None
    abort(fixture.log(), record, 2, reason="a test")
    with pytest.raises(InvalidError, match="not a rollback"):
        rollback(fixture.pipeline(), 0, run_key="drain", log=fixture.log())
    fixture.run("drain", drain=True)
    fixture.check()


def test_rollback_without_a_log_creates_none(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with pytest.raises(InvalidError, match="there is no log"):
        roll_back(fixture, 0)
    assert [*fixture.store.list("")] == []


def test_clear_that_reprocesses_leaves_out_rolled_back_versions(fixture: PipelineFixture) -> None:
    before = fixture.run("single")
    roll_back(fixture, 3)
    fixture.run("next", drain=True)
    result = reprocess_run(
        fixture.pipeline(), run_key="single", request="clear-1", log=fixture.log(), engine=RowsEngine()
    )
    assert result.version == before.version
    roll_back(fixture, 1)
    fixture.run("again", drain=True)
    reprocess_run(
        fixture.pipeline(), run_key="run", request="clear-1", drain=True, log=fixture.log(), engine=RowsEngine()
    )
    fixture.check()


def test_result_of_a_drain_counts_no_rolled_back_rows(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    fixture.run("one", drain=True)
    fixture.arrive(4)
    fixture.run("two", drain=True)
    roll_back(fixture, 0)
    result = fixture.run("two", drain=True)
    assert (result.counts["written.out"], result.ranges) == (18, {"files": (2, 8)})
    fixture.check()


def test_rollback_keeps_the_newest_hint_which_knows_deleted_partitions(fixture: PipelineFixture) -> None:
    newest = fixture.log().outcome(3)
    roll_back(fixture, 0)
    rolled_back = fixture.log().outcome(4)
    assert newest is not None
    assert rolled_back is not None
    assert rolled_back.hint == newest.hint


def test_restored_ids_that_have_expired_cause_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    pipeline = fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=1))
    fixture.arrive(4)
    fixture.run("run", drain=True, pipeline=pipeline)
    log = fixture.log()
    log.clock = ManualClock(log.clock.now_ms() + 10_000_000, "later")
    rollback(pipeline, 0, log=log)
    assert "has expired by dedup.ttl_s" in caplog.text


def test_condition_for_a_rolled_back_version_fails(fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    roll_back(fixture, 1)
    monkeypatch.setattr(conditions, "commit_log_at", lambda url, clock: fixture.log())
    assert BatchCommitted(version=1, log=fixture.store.url).check().met
    with pytest.raises(InvalidError, match="was rolled back"):
        BatchCommitted(version=2, log=fixture.store.url).check()


class BeforeRequest(CountingStore):
    """Calls a function before a request."""

    def __init__(self, store: Store, at: int, call: Callable[[], object]) -> None:
        super().__init__(store)
        self._at, self._call = at, call

    def _count(self, method: str, key: str) -> None:
        super()._count(method, key)
        if self.requests.total() == self._at:
            self._call()


def test_condition_for_a_version_is_met_although_the_listing_lags(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fixture.log(LaggingStore(fixture.store, 2))
    monkeypatch.setattr(conditions, "commit_log_at", lambda url, clock: log)
    assert BatchCommitted(version=3, log=fixture.store.url).check().met


def test_clear_that_reprocesses_finds_every_version_although_the_listing_lags(fixture: PipelineFixture) -> None:
    log = fixture.log(LaggingStore(fixture.store, 2))
    result = reprocess_run(
        fixture.pipeline(), run_key="run", request="clear-1", drain=True, log=log, engine=RowsEngine()
    )
    assert result.batches == 4


def test_clear_that_reprocesses_leaves_out_versions_that_are_rolled_back_in_the_meantime(
    fixture: PipelineFixture,
) -> None:
    class RollsBack(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key == keys.plan(4) and fixture.opened().head == 3:
                roll_back(fixture, 1)
            return super().create(key, data)

    log = fixture.log(RollsBack(fixture.store))
    result = reprocess_run(fixture.pipeline(), run_key="run", request="1", drain=True, log=log, engine=RowsEngine())
    assert (result.counts["read"], fixture.visible()) == (12, ids_of(2))
    fixture.run("next", drain=True)
    fixture.check()


def test_run_key_of_a_rollback_to_another_version_is_refused(fixture: PipelineFixture) -> None:
    rollback(fixture.pipeline(), 2, run_key="fix", log=fixture.log())
    with pytest.raises(InvalidError, match="rollback to another version"):
        rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log())
    assert fixture.opened().head == 4
    fixture.run("next", drain=True)
    fixture.check()


def test_two_processes_of_one_rollback_are_one_version_whichever_request_they_interleave(tmp_path: Path) -> None:
    start = PreparedFixture(four_versions(tmp_path))
    for at in count(1):
        fixture = start.restore()
        store = BeforeRequest(
            fixture.store, at, partial(rollback, fixture.pipeline(), 1, run_key="fix", log=fixture.log())
        )
        result = rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log(store))
        assert (result.version, result.to, fixture.opened().head) == (4, 1, 4)
        if store.requests.total() < at:
            break
    assert at > 10


def test_rollback_that_an_operator_aborts_is_no_success(fixture: PipelineFixture) -> None:
    def abort_open() -> None:
        log = fixture.log()
        record = log.read_pipeline()
        assert record is not None
        abort(log, record, 4, reason="a test")

    with pytest.raises(ConflictError, match="an operator has aborted the rollback"):
        roll_back(fixture, 1, store=BeforeOutcome(fixture.store, abort_open))
    assert fixture.visible() == ids_of(4)
    assert roll_back(fixture, 1).version == 5
    fixture.run("next", drain=True)
    fixture.check()


def test_repeated_call_that_completes_a_rollback_returns_its_result(fixture: PipelineFixture) -> None:
    with suppress(Crash):
        roll_back(fixture, 1, store=BeforeOutcome(fixture.store, die))
    result = roll_back(fixture, 1)
    assert (result.version, result.counts["read"]) == (4, 12)
    assert fixture.visible() == ids_of(2)


def test_request_that_another_process_has_planned_and_an_operator_has_aborted_is_planned_again(tmp_path: Path) -> None:
    start = PreparedFixture(four_versions(tmp_path))
    for at in count(1):
        fixture = start.restore()

        def plan_and_abort(fixture: PipelineFixture = fixture) -> None:
            with suppress(Crash):
                dying = BeforeOutcome(fixture.store, die)
                rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log(dying))
            log = fixture.log()
            record, head = log.read_pipeline(), log.newest_head()
            if record is not None and isinstance(head, OpenHead):
                abort(log, record, 4, reason="a test")

        store = BeforeRequest(fixture.store, at, plan_and_abort)
        with suppress(ConflictError):
            rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log(store))
        assert rollback(fixture.pipeline(), 1, run_key="fix", log=fixture.log()).to == 1
        assert fixture.visible() == ids_of(2)
        assert fixture.verdict().violations == []
        if store.requests.total() < at:
            break
    assert at > 10


def test_version_whose_state_is_kept_is_found_with_one_lineage_for_each_rollback(tmp_path: Path) -> None:
    fixture = with_files(tmp_path, 4)
    for _ in range(20):
        roll_back(fixture, 0)
        fixture.run("again", drain=True)
    store = CountingStore(fixture.store)
    closed = fixture.opened().head
    assert oldest_kept(fixture.log(store), closed, 1) == closed - 1
    assert store.requests.total() < 2_000


def test_version_that_was_rolled_back_is_not_the_oldest_kept_even_if_keep_versions_is_lowered(tmp_path: Path) -> None:
    fixture = four_versions(tmp_path)
    roll_back(fixture, 0)
    fixture.run("again")
    closed, log = fixture.opened().head, fixture.log()
    assert closed == 5
    # With keep_versions=2 the oldest was version 1 before the rollback to version 0, which removed it. The rollback itself does not count.
    assert {keep: oldest_kept(log, closed, keep) for keep in (0, 1, 2)} == {0: 5, 1: 0, 2: None}


def test_rollback_after_a_rollback_returns_to_a_version_that_is_still_visible(fixture: PipelineFixture) -> None:
    roll_back(fixture, 2)
    fixture.run("again", drain=True)
    roll_back(fixture, 0)
    assert fixture.visible() == ids_of(1)
    for version in (1, 2, 3, 4):
        with pytest.raises(InvalidError, match="the version was rolled back already") as caught:
            roll_back(fixture, version)
        assert caught.value.fields["newest_kept_before"] == 0
    fixture.run("again and again", drain=True)
    fixture.check()


def test_rolled_back_version_cannot_be_reprocessed_and_a_visible_one_can(fixture: PipelineFixture) -> None:
    roll_back(fixture, 1)
    for version, why in ((2, "the version was rolled back"), (4, "only a committed batch can be reprocessed")):
        with pytest.raises(InvalidError, match=why):
            fixture.run("fix", reprocessed=version)
    fixture.run("fix 1", reprocessed=1)
    fixture.run("next", drain=True)
    fixture.check()


def test_rollback_without_the_version_that_a_later_one_reprocessed_is_refused(fixture: PipelineFixture) -> None:
    fixture.run("fix", reprocessed=1)
    fixture.run("next", drain=True)
    with pytest.raises(InvalidError, match="has reprocessed a version up to") as raised:
        roll_back(fixture, 2)
    assert raised.value.fields["reprocessed"] == 4
    assert roll_back(fixture, 4).version == 6
    assert roll_back(fixture, 0).version == 7
    assert fixture.visible() == ids_of(1)
    fixture.run("again", drain=True)
    fixture.check()


def test_rollback_while_a_version_is_open_is_refused(fixture: PipelineFixture) -> None:
    fixture.dies("dies")
    with pytest.raises(OpenVersionError, match=r"a version is open.*streamsem abort"):
        roll_back(fixture, 1)
    fixture.run("next", drain=True)
    roll_back(fixture, 1)
    assert fixture.visible() == ids_of(2)


def test_rollback_to_a_version_that_is_not_closed_is_refused(fixture: PipelineFixture) -> None:
    with pytest.raises(InvalidError, match="closed versions only"):
        roll_back(fixture, 4)
    with pytest.raises(InvalidError, match="to"):
        roll_back(fixture, -1)


def test_drain_whose_versions_were_rolled_back_reads_up_to_its_target_when_it_is_cleared(
    fixture: PipelineFixture,
) -> None:
    roll_back(fixture, 0)
    fixture.run("run", drain=True)
    assert fixture.visible() == ids_of(4)
    fixture.run("next", drain=True)
    fixture.check()


def test_single_batch_that_was_rolled_back_is_complete_when_it_is_cleared(fixture: PipelineFixture) -> None:
    before = fixture.run("single")
    roll_back(fixture, 3)
    assert fixture.run("single").version == before.version
    assert fixture.visible() == ids_of(4)
    fixture.run("next")
    fixture.check()


def test_abort_after_a_rollback_keeps_the_position(fixture: PipelineFixture) -> None:
    roll_back(fixture, 1)
    fixture.dies("dies")
    record = fixture.log().read_pipeline()
    assert record is not None
    abort(fixture.log(), record, 5, reason="a test")
    assert fixture.visible() == ids_of(2)
    assert roll_back(fixture, 1).version is None
    fixture.run("next", drain=True)
    fixture.check()


def test_ids_of_rolled_back_versions_are_no_duplicates(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    fixture.arrive(8)
    pipeline = fixture.pipeline(dedup=Dedup(keys=["id"], rows=10**6))
    fixture.run("run", drain=True, pipeline=pipeline)
    roll_back(fixture, 1)
    fixture.run("next", drain=True, pipeline=pipeline)
    fixture.check()
    (tmp_path / "in" / "repeated.json").write_text('{"id": 0}\n{"id": 23}\n')
    assert fixture.run("repeated", pipeline=pipeline).counts["duplicates"] == 2
    vacuum(pipeline, log=fixture.log(), all_versions=True)
    assert fixture.verdict().violations == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.APPLIED_LATE])
@pytest.mark.parametrize("follower", ["rollback", "run"])
def test_rollback_that_dies_at_any_request_is_completed_or_was_never_planned(
    tmp_path: Path, fault: Fault, follower: str
) -> None:
    start = PreparedFixture(with_files(tmp_path, 4))
    for at in count():
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash):
            roll_back(fixture, 0, store=store)
        if follower == "rollback":
            roll_back(fixture, 0)
            assert fixture.visible() == ids_of(1)
        assert fixture.verdict().violations == []
        fixture.run("next", drain=True)
        fixture.check()
        if not store.reached:
            assert at >= 8
            return


@pytest.mark.slow
@pytest.mark.parametrize("other", ["run", "rollback", "reprocess"])
def test_rollback_concurrent_with_another_process_loses_and_duplicates_no_row(tmp_path: Path, other: str) -> None:
    start = PreparedFixture(with_files(tmp_path, 4))
    for at in count():
        fixture = start.restore()

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=partial(act, fixture, other))
        with suppress(ConflictError, InvalidError, OpenVersionError):
            roll_back(fixture, 0, store=store)
        assert fixture.verdict().violations == []
        fixture.run("next", drain=True)
        fixture.check()
        if not store.reached:
            assert at >= 8
            return


@pytest.mark.slow
def test_batch_concurrent_with_a_rollback_is_not_committed_at_the_old_offsets(tmp_path: Path) -> None:
    start = PreparedFixture(with_files(tmp_path, 4))
    for at in count():
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=partial(quietly, fixture))
        fixture.run("slow", store=store)
        assert fixture.verdict().violations == []
        fixture.run("next", drain=True)
        fixture.check()
        if not store.reached:
            assert at >= 8
            return


def act(fixture: PipelineFixture, other: str) -> None:
    if other == "rollback":
        roll_back(fixture, 0)
    elif other == "run":
        fixture.run("other", drain=True)
    else:
        fixture.run("other", reprocessed=0)


def quietly(fixture: PipelineFixture) -> None:
    with suppress(StreamsemError):
        roll_back(fixture, 0)
