"""Each planted fault of files and datasets is found and named; log faults are in tests/golden. And what readers answer."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import verify
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import decode, encode
from airflow_provider_streamsem.protocol.entries import Discovery, RunPointer, Segment
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.sources.ledger import Ledger
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.small_nodes import small_nodes
from tests.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.arrive(6, bad_lines=1)
    made.run("a", drain=True)
    return made


def visible(world: World, number: int) -> Path:
    return Path(world.opened().files()[number].path)


def findings(world: World) -> list[tuple[str, int | None]]:
    return [(f.invariant, f.version) for f in world.verdict().findings]


def objects(world: World) -> dict[str, bytes]:
    assert isinstance(world.store, MemoryStore)
    return world.store._objects  # type: ignore[return-value]


def test_verdict_of_a_clean_log_counts_everything(world: World) -> None:
    verdict = world.verdict()
    assert verdict.clean
    assert (verdict.versions, verdict.commits, verdict.files, verdict.rows) == (3, 3, 3, {"out": 18})
    assert verdict.counts == {"filtered": 0, "parsed": 18, "quarantined": 6, "read": 24, "written.out": 18}


def test_I6_deleted_file(world: World) -> None:
    visible(world, 1).unlink()
    assert findings(world) == [("I6", 1)]
    assert "missing" in world.verdict().findings[0].what


def test_I6_truncated_file(world: World) -> None:
    path = visible(world, 1)
    path.write_bytes(path.read_bytes()[:-5])
    assert findings(world) == [("I6", 1)]
    assert "size" in world.verdict().findings[0].what


def test_I6_file_swapped_for_another_of_the_same_size(world: World) -> None:
    path = visible(world, 1)
    path.write_bytes(path.read_bytes()[::-1])
    assert findings(world) == [("I6", 1)]
    assert "swapped" in world.verdict().findings[0].what


def test_output_directory_with_no_log(world: World) -> None:
    objects(world).clear()
    verdict = verify(world.pipeline())
    assert not verdict.clean
    assert "no log" in verdict.findings[0].what


def test_dataset_of_another_log(world: World) -> None:
    (world.root / "out" / "_streamsem.json").write_text("{}")
    assert "another pipeline" in world.verdict().findings[0].what


def test_I8_file_outside_its_attempts_place(world: World) -> None:
    key = keys.outcome(2)
    body = json.loads(objects(world)[key])
    body["attempt_id"] = "somebody-else"
    body.pop("checksum")
    from airflow_provider_streamsem.protocol.codec import canonical, sha256

    body["checksum"] = sha256(canonical(body))
    objects(world)[key] = canonical(body)
    assert ("I8", 2) in findings(world)


def test_I9_forged_segment(world: World) -> None:
    forged = Segment(level=1, index=0, last="", next={}, commits=100, aborts=0, counts={})
    world.arrive(200)
    world.run("b", drain=True)
    objects(world)[keys.segment(1, 0)] = encode(forged).data
    assert findings(world) == [("I9", None)]


def test_I16_pointer_to_another_version(world: World) -> None:
    key = keys.pointer("a", 1)
    pointer = decode(RunPointer, key, objects(world)[key])
    objects(world)[key] = encode(RunPointer(run_key="a", j=1, version=2, target=pointer.target)).data
    assert findings(world) == [("I16", 1)]


def of_source(world: World) -> CommitLog:
    return world.log().of_source(world.pipeline().source.guarded())


def stored_key(world: World, key: str) -> str:
    """The key under the log's root of an object of the world's source."""
    return of_source(world).store.url.removeprefix(f"{world.store.url}/") + f"/{key}"


def discovered(world: World) -> Discovery:
    newest = Ledger(of_source(world)).newest()
    assert newest is not None
    return newest


def forge(world: World, entry: Discovery) -> None:
    objects(world)[stored_key(world, keys.discovered(entry.i))] = encode(entry).data


def test_D1_file_with_two_ordinals(world: World) -> None:
    first = discovered(world)
    forge(world, replace(first, i=1, first=first.end, recent=(*first.recent, first.recent[0])))
    assert findings(world) == [("D1", None)]


@pytest.mark.parametrize("change", [{"first": 5}, {"recent": ()}])
def test_D6_ordinals_that_changed_or_leave_a_hole(world: World, change: dict[str, Any]) -> None:
    world.arrive(1)
    world.run("b")
    forge(world, replace(discovered(world), **change))
    assert {*findings(world)} == {("D6", None)}


def test_missing_discovery(world: World) -> None:
    world.arrive(1)
    world.run("b")
    del objects(world)[stored_key(world, keys.discovered(0))]
    assert ("I1", None) in findings(world)


class TestTreesOfDiscoveredFiles:
    @pytest.fixture
    def grown(self, tmp_path: Path) -> Iterator[World]:
        with small_nodes():
            made = World(tmp_path)
            for n in range(4):
                made.arrive(5)
                made.run(f"r{n}", drain=True)
            assert made.verdict().clean
            yield made

    @pytest.mark.parametrize("kind", ["known", "pages"])
    def test_missing_object_is_named(self, grown: World, kind: str) -> None:
        newest = discovered(grown)
        key = keys.known(newest.known[0].sha256) if kind == "known" else keys.page(newest.pages[0].sha256)
        del objects(grown)[stored_key(grown, key)]
        assert key in {finding.key for finding in grown.verdict().findings}

    @pytest.mark.parametrize("change", [{"listed": 1}, {"digest": 7}, {"absent": 1}, {"files": 1}, {"last": ("z", "")}])
    def test_D4_range_that_is_not_the_summary_of_its_node(self, grown: World, change: dict[str, Any]) -> None:
        """A digest of other files could make an unknown file pass for a known one."""
        newest = discovered(grown)
        forge(grown, replace(newest, known=(*newest.known[:-1], replace(newest.known[-1], **change))))
        assert ("D4", None) in findings(grown)

    @pytest.mark.parametrize(
        "change", [lambda e: {"known": e.known[1:]}, lambda e: {"known": e.known[::-1]}, lambda e: {"settled_ns": 0}]
    )
    def test_D4_tree_of_other_files_than_the_pages(self, grown: World, change: Any) -> None:
        newest = discovered(grown)
        forge(grown, replace(newest, **change(newest)))
        assert findings(grown) == [("D4", None)]

    def test_D6_page_of_another_level(self, grown: World) -> None:
        newest = discovered(grown)
        assert newest.pages[0].level
        forge(grown, replace(newest, pages=(replace(newest.pages[0], level=0), *newest.pages[1:])))
        assert ("D6", None) in findings(grown)


def test_quarantine_that_is_gone_or_cut(world: World) -> None:
    (key,) = world.opened().log.outcome(1)[0].quarantine.keys  # type: ignore[index]
    kept = objects(world)[key]
    objects(world)[key] = kept.split(b"\n")[0] + b"\n"
    assert findings(world) == [("I14", 1)]
    del objects(world)[key]
    assert findings(world) == [("I6", 1)]


def test_orphans_are_counted_and_are_no_fault(world: World) -> None:
    shutil.copytree(visible(world, 0).parent, visible(world, 0).parent.parent / "lost")
    verdict = world.verdict()
    assert (verdict.clean, verdict.orphans) == (True, 1)
    world.check()


def test_open_version_is_no_fault(world: World) -> None:

    world.arrive(1)
    world.dies("b")
    assert world.verdict().clean
    assert [v.outcome is None for v in world.opened().versions()] == [True, False, False, False]


def test_I7_a_version_reads_the_same_for_ever(world: World) -> None:
    before = world.opened().files(version=1)
    world.arrive(4)
    world.run("b", drain=True)
    assert world.opened().files(version=1) == before
    assert [f.version for f in world.opened().files(since=1)] == [2, 3, 4]
    assert world.opened().files(version=1, since=1) == []


@pytest.mark.parametrize(
    "arguments",
    [{"version": 9}, {"version": -2}, {"since": 9}, {"version": 0, "since": 1}, {"version": "1"}, {"sink": "no"}],
)
def test_unreadable_versions_are_named(world: World, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        world.opened().files(**arguments)  # type: ignore[arg-type]


def test_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    from airflow_provider_streamsem import open_log

    with pytest.raises(InvalidError, match="no log"):
        open_log(str(tmp_path / "none"))


def test_reading_across_segments_equals_reading_outcomes(tmp_path: Path) -> None:
    world = World(tmp_path, rows_per_file=1)
    world.arrive(412)
    world.run("a", drain=True)
    assert world.log().read(keys.segment(1, 1)) is not None
    assert world.visible() == Counter(range(412))
    world.check()
    for index in (0, 1):
        del objects(world)[keys.segment(1, index)]
    assert world.visible() == Counter(range(412))


def test_lag_counts_what_no_commit_covers_and_writes_nothing(world: World) -> None:
    assert (lag_of(world), world.opened().head) == (0, 2)
    world.arrive(3)
    stored = len(objects(world))
    assert lag_of(world) == 3
    assert len(objects(world)) == stored


def lag_of(world: World) -> int:
    from airflow_provider_streamsem.stores import memory

    memory._OPENED[world.store.url.removeprefix("memory://")] = world.store  # type: ignore[assignment]
    return lag(world.pipeline()).lag
