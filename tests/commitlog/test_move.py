"""Moving a log: refused moves, and faults at every request of a move. No fault loses or duplicates rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.commitlog.move import MovedLog, move_log
from airflow_provider_streamsem.errors import (
    ConflictError,
    DatasetOwnedError,
    InvalidError,
    LogMovedError,
    LogMovingError,
    StreamsemError,
)
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture
from tests.pipeline_fixture import PipelineFixture

_LOCATIONS = count()


def new_store() -> MemoryStore:
    return MemoryStore(f"memory://moved-{next(_LOCATIONS)}")


FAULTS = (Fault.LOST_REPLY, Fault.CONFLICT, Fault.APPLIED_LATE)
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
PAUSES = (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)


class MovingFixture:
    """A pipeline with two versions, whose log is moved to another store."""

    def __init__(self, root: Path, kind: type[PipelineFixture] = PipelineFixture) -> None:
        self.old = kind(root)
        self.old.arrive(3)
        self.old.run("first", drain=True)
        self.new = kind(root, store=new_store())
        self.new.clocks = self.old.clocks

    def move(self, old: Store | None = None, new: Store | None = None) -> MovedLog:
        return move_log(self.old.log(old), self.new.log(new))

    def move_on(self) -> PipelineFixture:
        """Move the log from its new location to a third one."""
        third = PipelineFixture(self.old.root, store=new_store())
        third.clocks = self.old.clocks
        move_log(self.new.log(), third.log())
        return third

    def follow(self, fixture: PipelineFixture, run_key: str) -> StreamsemError | None:
        """Add a file, and run the pipeline on one of the logs. Return the error if the log refuses the run."""
        self.old.arrive(1)
        self.new.made = self.old.made
        try:
            fixture.run(run_key, drain=True)
        except (LogMovedError, LogMovingError, DatasetOwnedError) as error:
            return error
        return None

    def settle(self) -> None:
        """Complete the move, and check that the pipeline continues only at the new location."""
        self.move()
        assert isinstance(self.follow(self.old, "on the old log"), LogMovedError)
        assert self.follow(self.new, "on the new log") is None
        self.new.check()
        assert self.new.run("first", drain=True).ranges == {"files": (0, 3)}


def test_moved_log_continues_at_its_last_version(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    moved = fixture.move()
    assert (moved.pipeline, moved.version, moved.moved_to) == ("world", 1, fixture.new.store.url)
    fixture.settle()
    assert fixture.move().copied == 0
    assert fixture.new.opened().log.store.url == fixture.new.store.url


def test_move_leaves_the_rows_of_sinks_outside_the_log_unchanged(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path, PublishingFixture)
    fixture.settle()


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("fault", [*CRASHES, *PAUSES, *FAULTS], ids=lambda fault: fault.name)
def test_move_with_a_fault_at_any_request_and_concurrent_runs_loses_no_version(
    tmp_path: Path, side: str, fault: Fault
) -> None:
    for at in count():
        fixture = MovingFixture(tmp_path / str(at))

        def run_concurrently(fixture: MovingFixture = fixture) -> None:
            fixture.follow(fixture.old, "old, concurrent")
            if fault in PAUSES:
                with suppress(InvalidError):
                    fixture.move()
            fixture.follow(fixture.new, "new, concurrent")

        store = FaultyStore(
            getattr(fixture, side).store, at, fault, other_processes=run_concurrently if fault in PAUSES else None
        )
        with suppress(Crash):
            fixture.move(**{side: store})
        if not store.reached:
            assert at > 10
            return
        if fault not in PAUSES:
            run_concurrently()
        fixture.settle()


def test_late_discovery_in_the_old_log_never_reaches_the_new_log(tmp_path: Path) -> None:
    """A planner on the old log and a second move pause while another process completes the move. Then they continue."""
    for at in count():
        fixture = MovingFixture(tmp_path / str(at))

        def run_concurrently(fixture: MovingFixture = fixture) -> None:
            zombie = fixture.old.pipeline().source.open(
                fixture.old.log().of_source(fixture.old.pipeline().source.immutable_config()), None
            )
            fixture.move()
            fixture.old.arrive(1)
            zombie.poll(None)
            fixture.follow(fixture.new, "new, concurrent")
            fixture.old.arrive(1)
            zombie.poll(None)

        store = FaultyStore(fixture.old.store, at, Fault.PAUSE_BEFORE, other_processes=run_concurrently)
        fixture.move(old=store)
        if not store.reached:
            assert at > 5
            return
        fixture.settle()


def test_log_with_an_open_version_is_not_moved(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    fixture.old.arrive(1)
    fixture.old.dies("second")
    with pytest.raises(InvalidError, match="open version") as caught:
        fixture.move()
    assert caught.value.fields["open"] == 2
    assert list(fixture.new.store.list("")) == []
    fixture.old.run("second")
    fixture.new.made = fixture.old.made
    fixture.settle()


def test_log_can_be_moved_again_but_not_back(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    fixture.move()
    third = fixture.move_on()
    third.arrive(4)
    third.run("second", drain=True)
    third.made = 4
    third.check()
    with pytest.raises(ConflictError, match="already holds a log"):
        move_log(third.log(), fixture.old.log())
    with pytest.raises(LogMovedError) as caught:
        move_log(fixture.old.log(), third.log())
    assert caught.value.fields["moved_to"] == fixture.new.store.url


def test_log_cannot_be_moved_to_a_second_location(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    other = CommitLog(new_store())
    fixture.move()
    with pytest.raises(LogMovedError):
        move_log(fixture.old.log(), other)
    assert list(other.store.list("")) == []


def test_log_that_a_user_copied_is_accepted_with_already_moved(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    uuid = fixture.old.opened().record.pipeline_uuid
    for stat in [*fixture.old.store.list("")]:
        fixture.new.store.create(stat.key, fixture.old.store.read(stat.key) or b"")
        fixture.old.store.delete(stat.key)
    refused = fixture.follow(fixture.new, "too early")
    assert isinstance(refused, DatasetOwnedError)
    assert refused.fields["marked_log"] == fixture.old.store.url
    assert refused.fields["log"] == fixture.new.store.url
    assert (refused.fields["marked_uuid"], refused.fields["pipeline"]) == (uuid, "world")
    assert "move-log" in str(refused)
    with pytest.raises(InvalidError, match="--already-moved"):
        fixture.move()
    assert move_log(fixture.old.log(), fixture.new.log(), already_moved=True).version == 1
    assert fixture.follow(fixture.new, "second") is None
    fixture.new.check()


def copy_of(fixture: PipelineFixture) -> PipelineFixture:
    """Copy all objects of a log to another store, as a user does by hand."""
    copy = PipelineFixture(fixture.root, store=new_store())
    copy.clocks = fixture.clocks
    for stat in [*fixture.store.list("")]:
        copy.store.create(stat.key, fixture.store.read(stat.key) or b"")
    return copy


def delete_all(store: Store) -> None:
    for stat in [*store.list("")]:
        store.delete(stat.key)


@pytest.mark.parametrize("old_log", ["kept", "deleted"])
def test_copy_of_a_moved_log_is_refused(tmp_path: Path, old_log: str) -> None:
    fixture = MovingFixture(tmp_path)
    fixture.settle()
    if old_log == "deleted":
        delete_all(fixture.old.store)
    copy = copy_of(fixture.new)
    assert isinstance(fixture.follow(copy, "on the copy"), DatasetOwnedError)
    assert fixture.follow(fixture.new, "on the moved log") is None
    fixture.new.check()


def test_moved_log_that_is_then_moved_by_hand_is_accepted_with_already_moved(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    fixture.settle()
    delete_all(fixture.old.store)
    third = copy_of(fixture.new)
    delete_all(fixture.new.store)
    assert isinstance(fixture.follow(third, "too early"), DatasetOwnedError)
    move_log(fixture.new.log(), third.log(), already_moved=True)
    third.made = fixture.old.made
    third.run("third", drain=True)
    third.check()


def test_log_that_was_moved_twice_needs_no_object_of_the_old_logs(tmp_path: Path) -> None:
    fixture = MovingFixture(tmp_path)
    fixture.settle()
    third = fixture.move_on()
    for store in (fixture.old.store, fixture.new.store):
        delete_all(store)
    third.made = fixture.old.made
    third.arrive(1)
    third.run("third", drain=True)
    third.check()


def occupied_location(fixture: MovingFixture) -> tuple[CommitLog, CommitLog]:
    other = PipelineFixture(fixture.old.root / "other", store=fixture.new.store)
    other.run("a")
    return fixture.old.log(), fixture.new.log()


@pytest.mark.parametrize(
    ("locations", "kind", "message"),
    [
        (occupied_location, ConflictError, "already holds a log"),
        (lambda fixture: (fixture.new.log(), fixture.old.log()), InvalidError, "--already-moved"),
        (lambda fixture: (fixture.new.log(), fixture.new.log()), InvalidError, "contain each other"),
    ],
    ids=["occupied", "no log at the old location", "itself"],
)
def test_invalid_move_is_refused_before_the_old_log_is_closed(
    tmp_path: Path,
    locations: Callable[[MovingFixture], tuple[CommitLog, CommitLog]],
    kind: type[StreamsemError],
    message: str,
) -> None:
    fixture = MovingFixture(tmp_path)
    with pytest.raises(kind, match=message):
        move_log(*locations(fixture))
    assert fixture.old.store.read(keys.plan(2)) is None
    assert fixture.follow(fixture.old, "second") is None
    fixture.old.check()


def test_readers_and_vacuum_of_a_moved_log_get_an_error_with_the_new_location(tmp_path: Path) -> None:
    from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum

    fixture = MovingFixture(tmp_path)
    pipeline = fixture.old.pipeline()
    fixture.move()
    for call in (
        lambda: fixture.old.opened().files(),
        lambda: fixture.old.verdict(),
        lambda: vacuum(pipeline, log=fixture.old.log()),
    ):
        with pytest.raises(LogMovedError) as caught:
            call()
        assert caught.value.fields["moved_to"] == fixture.new.store.url
