"""Moving a log: what moves, who is refused, and that a death or a pause at any request loses and doubles nothing."""

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
    DatasetTakenError,
    InvalidError,
    LogMovedError,
    LogMovingError,
    StreamsemError,
)
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.outside import PublishingWorld
from tests.worlds import World

_PLACES = count()
FAULTS = (Fault.LOST_REPLY, Fault.CONFLICT, Fault.ERROR_AFTER, Fault.APPLIED_LATE)
DEATHS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
PAUSES = (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)


class MovingWorld:
    """A world with two versions, a log and a place to which it is moved."""

    def __init__(self, root: Path, kind: type[World] = World) -> None:
        self.old = kind(root)
        self.old.arrive(3)
        self.old.run("first", drain=True)
        self.new = kind(root, store=MemoryStore(f"memory://moved-{next(_PLACES)}"))
        self.new.clocks = self.old.clocks

    def move(self, old: Store | None = None, new: Store | None = None) -> MovedLog:
        return move_log(self.old.log(old), self.new.log(new))

    def follow(self, world: World, run_key: str) -> StreamsemError | None:
        """One more file arrives, and a run on one of the logs may or may not take it."""
        self.old.arrive(1)
        self.new.made = self.old.made
        try:
            world.run(run_key, drain=True)
        except (LogMovedError, LogMovingError, DatasetTakenError) as error:
            return error
        return None

    def settle(self) -> None:
        """The move is run again until it succeeds; then the pipeline goes on at the new place only."""
        self.move()
        assert isinstance(self.follow(self.old, "on the old log"), LogMovedError)
        assert self.follow(self.new, "on the new log") is None
        self.new.check()
        assert self.new.run("first", drain=True).ranges == {"files": (0, 3)}


def test_moved_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path)
    done = world.move()
    assert (done.pipeline, done.version, done.moved_to) == ("world", 1, world.new.store.url)
    world.settle()
    assert world.move().copied == 0
    assert world.new.opened().log.store.url == world.new.store.url


def test_rows_of_sinks_outside_the_log_stay_there_once(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path, PublishingWorld)
    world.settle()


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("fault", [*DEATHS, *PAUSES, *FAULTS], ids=lambda fault: fault.name)
def test_fault_at_any_request_of_a_move_beside_runs_on_both_logs(tmp_path: Path, side: str, fault: Fault) -> None:
    for at in count():
        world = MovingWorld(tmp_path / str(at))

        def meanwhile(world: MovingWorld = world) -> None:
            world.follow(world.old, "old, meanwhile")
            if fault in PAUSES:
                with suppress(InvalidError):
                    world.move()
            world.follow(world.new, "new, meanwhile")

        store = FaultyStore(getattr(world, side).store, at, fault, meanwhile=meanwhile if fault in PAUSES else None)
        with suppress(Crash):
            world.move(**{side: store})
        if not store.reached:
            assert at > 10
            return
        if fault not in PAUSES:
            meanwhile()
        world.settle()


def test_late_discovery_at_the_old_place_never_reaches_the_new_log(tmp_path: Path) -> None:
    """A planner at the old place and a second mover stand still while the move is completed, then go on."""
    for at in count():
        world = MovingWorld(tmp_path / str(at))

        def meanwhile(world: MovingWorld = world) -> None:
            zombie = world.old.pipeline().source.open(
                world.old.log().of_source(world.old.pipeline().source.guarded()), None
            )
            world.move()
            world.old.arrive(1)
            zombie.latest_offsets()
            world.follow(world.new, "new, meanwhile")
            world.old.arrive(1)
            zombie.latest_offsets()

        store = FaultyStore(world.old.store, at, Fault.PAUSE_BEFORE, meanwhile=meanwhile)
        world.move(old=store)
        if not store.reached:
            return
        world.settle()


def test_log_with_an_open_version_is_not_moved(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path)
    world.old.arrive(1)
    world.old.dies("second")
    with pytest.raises(InvalidError, match="open version") as caught:
        world.move()
    assert caught.value.fields["open"] == 2
    assert list(world.new.store.list("")) == []
    world.old.run("second")
    world.new.made = world.old.made
    world.settle()


def test_log_can_be_moved_again_and_not_back(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path)
    world.move()
    third = World(tmp_path, store=MemoryStore(f"memory://moved-{next(_PLACES)}"))
    third.clocks = world.old.clocks
    move_log(world.new.log(), third.log())
    third.arrive(4)
    third.run("second", drain=True)
    third.made = 4
    third.check()
    with pytest.raises(ConflictError, match="already holds a log"):
        move_log(third.log(), world.old.log())
    with pytest.raises(LogMovedError) as caught:
        move_log(world.old.log(), third.log())
    assert caught.value.fields["moved_to"] == world.new.store.url


def test_log_is_moved_to_one_place_only(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path)
    other = CommitLog(MemoryStore(f"memory://moved-{next(_PLACES)}"))
    world.move()
    with pytest.raises(LogMovedError):
        move_log(world.old.log(), other)
    assert list(other.store.list("")) == []


def test_log_that_was_moved_by_hand_is_recorded(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path)
    uuid = world.old.opened().record.pipeline_uuid
    for stat in [*world.old.store.list("")]:
        world.new.store.create(stat.key, world.old.store.read(stat.key) or b"")
        world.old.store.delete(stat.key)
    refused = world.follow(world.new, "too early")
    assert isinstance(refused, DatasetTakenError)
    assert refused.fields["marked_log"] == world.old.store.url
    assert refused.fields["log"] == world.new.store.url
    assert (refused.fields["marked_uuid"], refused.fields["pipeline"]) == (uuid, "world")
    assert "move-log" in str(refused)
    with pytest.raises(InvalidError, match="--already-moved"):
        world.move()
    assert move_log(world.old.log(), world.new.log(), already_moved=True).version == 1
    assert world.follow(world.new, "second") is None
    world.new.check()


def occupied(world: MovingWorld) -> tuple[CommitLog, CommitLog]:
    other = World(world.old.root / "other", store=world.new.store)
    other.run("a")
    return world.old.log(), world.new.log()


@pytest.mark.parametrize(
    ("places", "kind", "what"),
    [
        (occupied, ConflictError, "already holds a log"),
        (lambda w: (w.new.log(), w.old.log()), InvalidError, "--already-moved"),
        (lambda w: (w.new.log(), w.new.log()), InvalidError, "into itself"),
    ],
    ids=["occupied", "no log at the old place", "itself"],
)
def test_move_that_cannot_be_is_refused_before_the_old_log_ends(
    tmp_path: Path,
    places: Callable[[MovingWorld], tuple[CommitLog, CommitLog]],
    kind: type[StreamsemError],
    what: str,
) -> None:
    world = MovingWorld(tmp_path)
    with pytest.raises(kind, match=what):
        move_log(*places(world))
    assert world.old.store.read(keys.plan(2)) is None
    assert world.follow(world.old, "second") is None
    world.old.check()


def test_reader_and_vacuum_of_a_moved_log_are_told_where_it_is(tmp_path: Path) -> None:
    from airflow_provider_streamsem.batch.maintenance import vacuum

    world = MovingWorld(tmp_path)
    pipeline = world.old.pipeline()
    world.move()
    for ask in (
        lambda: world.old.opened().files(),
        lambda: world.old.verdict(),
        lambda: vacuum(pipeline, log=world.old.log()),
    ):
        with pytest.raises(LogMovedError) as caught:
            ask()
        assert caught.value.fields["moved_to"] == world.new.store.url
