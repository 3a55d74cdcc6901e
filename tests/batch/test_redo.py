"""Redo: the rows of a commit made anew, and nothing else changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_streamsem import redo
from airflow_provider_streamsem.batch import maintenance
from airflow_provider_streamsem.batch.redo import redo_run
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three committed versions of two files each, and a file that waits."""
    world = World(tmp_path)
    world.arrive(6)
    world.run("run", drain=True)
    world.arrive(1)
    return world


def marked(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**row, "fixed": True} for row in rows]


def fixed_ids(world: World) -> set[int]:
    rows = [json.loads(line) for file in world.opened().files() for line in Path(file.path).read_text().splitlines()]
    return {row["id"] for row in rows if row.get("fixed")}


def test_I20_redo_replaces_the_rows_of_one_version_by_one_object(world: World) -> None:
    result = world.run("fix", redone=1, pipeline=world.pipeline(transform=marked))
    assert (result.status, result.version, result.ranges) == ("committed", 3, {"files": (2, 4)})
    assert fixed_ids(world) == set(range(6, 12))
    assert world.visible() == Counter(range(18))
    assert world.verdict().findings == []
    world.run("rest", drain=True)
    world.check()


def test_redo_leaves_the_offsets_where_they_are(world: World) -> None:
    before = world.opened().view().next
    world.run("fix", redone=0)
    assert world.opened().view().next == before
    assert world.run("next").ranges == {"files": (6, 7)}
    world.check()


def test_I7_earlier_versions_read_as_they_did_after_a_redo(world: World) -> None:
    before = world.opened().files(version=2)
    world.run("fix", redone=0)
    maintenance.vacuum(world.pipeline(), log=world.log())
    assert world.opened().files(version=2) == before
    assert all(Path(file.path).exists() for file in before)


def test_redo_of_a_redone_version_replaces_the_newest_redo(world: World) -> None:
    for n, expected in enumerate((1, 3, 4)):
        result = world.run(f"fix {n}", redone=1)
        outcome = world.log().outcome(result.version)
        assert outcome is not None
        assert outcome[0].replaces is not None
        assert outcome[0].replaces.version == expected
    assert [file.version for file in world.opened().files()] == [0, 2, 5]
    assert world.verdict().findings == []


def test_same_redo_again_answers_the_same_and_stages_nothing(world: World) -> None:
    first = world.run("fix", redone=1)
    engine = RowsEngine()
    assert world.run("fix", redone=1, engine=engine) == first
    assert (engine.staged, world.opened().head) == (0, 3)


def test_redo_without_a_run_key_resumes_what_died_and_starts_anew_after_it_committed(world: World) -> None:
    world.dies("redo:1:1", redone=1)
    finished = redo(world.pipeline(), 1, log=world.log(), engine=RowsEngine())
    again = redo(world.pipeline(), 1, log=world.log(), engine=RowsEngine())
    assert (finished.version, again.version) == (3, 4)


def test_I10_redo_that_cannot_be_staged_is_aborted_and_nothing_changed(world: World) -> None:
    before = world.visible()
    world.dies("fix", redone=1)
    maintenance.abort(world.log(), world.opened().record, 3, reason="the transform is wrong")
    assert world.visible() == before
    assert world.run("next").ranges == {"files": (6, 7)}
    assert world.run("fix", redone=1).version == 5
    world.check()


def test_totals_are_net_of_what_redos_replaced(world: World) -> None:
    before = world.opened().view().counts
    world.run("fix", redone=1)
    assert world.opened().view().counts == before
    assert world.verdict().counts == before


def test_changes_name_what_a_copy_must_add_and_remove(world: World) -> None:
    world.run("fix", redone=1)
    changes = world.opened().changes(since=1)
    assert [f.version for f in changes.added] == [2, 3]
    assert [f.version for f in changes.removed] == [1]
    assert world.opened().changes(since=3).added == ()


def test_redo_of_a_version_whose_input_is_gone_is_refused_and_says_so(world: World) -> None:
    (world.root / "in" / "00002.json").unlink()
    with pytest.raises(SourceChangedError, match=r"00002\.json"):
        world.run("fix", redone=1)
    assert world.opened().head == 2
    assert world.run("next").ranges == {"files": (6, 7)}


def test_redo_that_died_and_whose_input_is_gone_is_closed_by_the_next_run(world: World) -> None:
    before = world.visible()
    world.dies("fix", redone=1)
    (world.root / "in" / "00002.json").unlink()
    assert world.run("next").ranges == {"files": (6, 7)}
    assert [v.outcome.result for v in world.opened().versions(limit=2) if v.outcome] == ["commit", "abort"]
    assert before <= world.visible()
    with pytest.raises(SourceChangedError, match=r"00002\.json"):
        world.run("fix", redone=1)
    world.check()


def test_redo_that_no_retry_can_stage_stops_no_other_run(world: World) -> None:
    def wrong(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        raise DataError("the transform does not fit")

    before = world.visible()
    with pytest.raises(DataError):
        world.run("fix", redone=1, pipeline=world.pipeline(transform=wrong))
    (newest,) = world.opened().versions(limit=1)
    assert newest.outcome is not None
    assert (newest.outcome.result, "DataError" in newest.outcome.reason) == ("abort", True)
    assert world.visible() == before
    assert world.run("next").ranges == {"files": (6, 7)}
    world.check()


def test_cleared_run_that_had_not_finished_is_finished_and_not_made_twice(world: World) -> None:
    world.arrive(1)
    world.dies("late")
    finished = redo_run(world.pipeline(), run_key="late", request="clear 1", log=world.log(), engine=RowsEngine())
    assert (finished.version, finished.counts["read"]) == (3, 6)
    assert world.opened().head == 3


def test_only_committed_versions_can_be_redone(world: World) -> None:
    with pytest.raises(InvalidError, match="not closed"):
        world.run("fix", redone=3)
    world.dies("next")
    maintenance.abort(world.log(), world.opened().record, 3, reason="for the test")
    with pytest.raises(InvalidError, match="abort"):
        world.run("fix", redone=3)


def test_whole_run_is_redone_once_for_each_request(world: World) -> None:
    first = redo_run(
        world.pipeline(transform=marked), run_key="run", request="clear 1", log=world.log(), engine=RowsEngine()
    )
    assert (first.ranges, first.counts["read"], first.batches, first.version) == ({"files": (0, 6)}, 18, 3, 5)
    assert fixed_ids(world) == set(range(18))
    engine = RowsEngine()
    assert (
        redo_run(world.pipeline(transform=marked), run_key="run", request="clear 1", log=world.log(), engine=engine)
        == first
    )
    assert engine.staged == 0
    assert (
        redo_run(world.pipeline(), run_key="run", request="clear 2", log=world.log(), engine=RowsEngine()).version == 8
    )
    assert fixed_ids(world) == set()
    world.run("rest", drain=True)
    world.check()


def test_redos_across_segments_read_as_those_without_segments(tmp_path: Path) -> None:
    """Redos inside a hundred, of an earlier hundred, and of a redo of an earlier hundred; read through segments and without them."""
    world = World(tmp_path, rows_per_file=1)
    world.arrive(460)
    pipeline = world.pipeline()
    for n in range(230):
        if n in (20, 130, 180, 210, 225):
            world.run(f"redo {n}", redone={20: 10, 130: 10, 180: 110, 210: 10, 225: 5}[n])
        world.run(f"run {n}", pipeline=pipeline)
    head = world.opened().head
    with_segments = {at: world.opened().files(version=at) for at in (15, 99, 150, 199, head)}
    counts = world.opened().view().counts
    assert world.verdict().findings == []
    chain = [world.log().outcome(v) for v in range(head + 1)]
    assert [o[0].version for o in chain if o is not None and o[0].replaces is not None] == [20, 131, 182, 213, 229]
    segments = [stat.key for stat in world.store.list("segments/")]
    assert len(segments) == 2
    for key in segments:
        world.store.delete(key)
    assert {at: world.opened().files(version=at) for at in with_segments} == with_segments
    assert world.opened().view().counts == counts
    world.check()


class StaleStore(MemoryStore):
    """Its listing of versions shows what was there when ``shown`` was taken; its reads lag behind nothing."""

    shown: MemoryStore | None = None

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        if prefix == keys.LOG and self.shown is not None:
            return self.shown.list(prefix, limit, start_after)
        return super().list(prefix, limit, start_after)


@pytest.mark.parametrize("missed", [1, 2, 99])
def test_redo_without_a_run_key_makes_rows_anew_though_the_listing_lags(tmp_path: Path, missed: int) -> None:
    """A stale head names an earlier redo's run, whose answer would be given without any work; or refuses a version that is there."""
    store = StaleStore("memory://stale-world")
    world = World(tmp_path, store=store)
    world.arrive(2)
    world.run("run")
    first = redo(world.pipeline(), 0, log=world.log(), engine=RowsEngine())
    entries = [stat.key for stat in store.list(keys.LOG)][2 * missed :]
    store.shown = MemoryStore(objects={key: b"" for key in entries})
    again = redo(world.pipeline(transform=marked), 0, log=world.log(), engine=RowsEngine())
    assert (first.version, again.version) == (1, 2)
    store.shown = None
    assert fixed_ids(world) == set(range(6))
    world.check()
