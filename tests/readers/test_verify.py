"""``verify`` reports each planted fault of files and datasets, and readers return committed data. Faults of logs are in tests/golden."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import State, open_log, verify
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.ledger import Ledger
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import decode, encode
from airflow_provider_streamsem.protocol.entries import Discovery, RunPointer, Segment
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.pipeline_fixture import PipelineFixture
from tests.small_nodes import small_nodes


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(6, bad_lines=1)
    fixture.run("a", drain=True)
    return fixture


def visible(fixture: PipelineFixture, number: int) -> Path:
    return Path(fixture.opened().files()[number].path)


def violations(fixture: PipelineFixture) -> list[tuple[str, int | None]]:
    return [(f.invariant, f.version) for f in fixture.verdict().violations]


def objects(fixture: PipelineFixture) -> dict[str, bytes]:
    assert isinstance(fixture.store, MemoryStore)
    return fixture.store.objects  # type: ignore[return-value]


def test_verdict_of_a_clean_log_counts_everything(fixture: PipelineFixture) -> None:
    verdict = fixture.verdict()
    assert verdict.clean
    assert (verdict.versions, verdict.commits, verdict.files, verdict.rows) == (3, 3, 3, {"out": 18})
    assert verdict.counts == {"filtered": 0, "parsed": 18, "quarantined": 6, "read": 24, "written.out": 18}


def test_I6_deleted_file_is_reported(fixture: PipelineFixture) -> None:
    visible(fixture, 1).unlink()
    assert violations(fixture) == [("I6", 1)]
    assert "missing" in fixture.verdict().violations[0].what


def test_I6_truncated_file_is_reported(fixture: PipelineFixture) -> None:
    path = visible(fixture, 1)
    path.write_bytes(path.read_bytes()[:-5])
    assert violations(fixture) == [("I6", 1)]
    assert "size" in fixture.verdict().violations[0].what


def test_I6_changed_file_of_the_same_size_is_reported(fixture: PipelineFixture) -> None:
    path = visible(fixture, 1)
    path.write_bytes(path.read_bytes()[::-1])
    assert violations(fixture) == [("I6", 1)]
    assert "replaced or changed" in fixture.verdict().violations[0].what


def test_output_directory_without_a_log_is_reported(fixture: PipelineFixture) -> None:
    objects(fixture).clear()
    verdict = verify(fixture.pipeline())
    assert not verdict.clean
    assert "own log does not exist" in verdict.violations[0].what


def test_dataset_of_another_log_is_reported(fixture: PipelineFixture) -> None:
    (fixture.root / "out" / "_streamsem.json").write_text("{}")
    assert "another pipeline" in fixture.verdict().violations[0].what


def test_I8_file_outside_the_directory_of_its_attempt_is_reported(fixture: PipelineFixture) -> None:
    key = keys.outcome(2)
    body = json.loads(objects(fixture)[key])
    body["attempt_id"] = "somebody-else"
    body.pop("checksum")
    from airflow_provider_streamsem.protocol.codec import canonical, sha256

    body["checksum"] = sha256(canonical(body))
    objects(fixture)[key] = canonical(body)
    assert ("I8", 2) in violations(fixture)


def test_I9_forged_segment_is_reported(fixture: PipelineFixture) -> None:
    forged = Segment(level=1, index=0, last="", next={}, commits=100, aborts=0, counts={})
    fixture.arrive(200)
    fixture.run("b", drain=True)
    objects(fixture)[keys.segment(1, 0)] = encode(forged).data
    assert violations(fixture) == [("I9", None)]


def test_I16_pointer_to_another_version_is_reported(fixture: PipelineFixture) -> None:
    key = keys.pointer("a", 1)
    pointer = decode(RunPointer, key, objects(fixture)[key])
    objects(fixture)[key] = encode(RunPointer(run_key="a", j=1, version=2, target=pointer.target)).data
    assert violations(fixture) == [("I16", 1)]


def source_log(fixture: PipelineFixture) -> CommitLog:
    return fixture.log().of_source(fixture.pipeline().source.immutable_config())


def stored_key(fixture: PipelineFixture, key: str) -> str:
    """The key of an object of the source, relative to the root of the log."""
    return source_log(fixture).store.url.removeprefix(f"{fixture.store.url}/") + f"/{key}"


def discovered(fixture: PipelineFixture) -> Discovery:
    newest = Ledger(source_log(fixture)).newest()
    assert newest is not None
    return newest


def forge(fixture: PipelineFixture, entry: Discovery) -> None:
    objects(fixture)[stored_key(fixture, keys.discovered(entry.i))] = encode(entry).data


def test_D1_file_with_two_ordinals_is_reported(fixture: PipelineFixture) -> None:
    first = discovered(fixture)
    forge(fixture, replace(first, i=1, first=first.end, recent=(*first.recent, first.recent[0])))
    assert violations(fixture) == [("D1", None)]


@pytest.mark.parametrize("change", [{"first": 5}, {"recent": ()}])
def test_D6_changed_or_missing_ordinals_are_reported(fixture: PipelineFixture, change: dict[str, Any]) -> None:
    fixture.arrive(1)
    fixture.run("b")
    forge(fixture, replace(discovered(fixture), **change))
    assert {*violations(fixture)} == {("D6", None)}


def test_missing_discovery_is_reported(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("b")
    del objects(fixture)[stored_key(fixture, keys.discovered(0))]
    assert ("I1", None) in violations(fixture)


class TestDiscoveryTrees:
    @pytest.fixture
    def discovery_fixture(self, tmp_path: Path) -> Iterator[PipelineFixture]:
        with small_nodes():
            fixture = PipelineFixture(tmp_path)
            for n in range(4):
                fixture.arrive(5)
                fixture.run(f"r{n}", drain=True)
            assert fixture.verdict().clean
            yield fixture

    @pytest.mark.parametrize("kind", ["known", "pages"])
    def test_missing_object_is_reported_by_key(self, discovery_fixture: PipelineFixture, kind: str) -> None:
        newest = discovered(discovery_fixture)
        key = keys.known(newest.known[0].sha256) if kind == "known" else keys.page(newest.pages[0].sha256)
        del objects(discovery_fixture)[stored_key(discovery_fixture, key)]
        assert key in {finding.key for finding in discovery_fixture.verdict().violations}

    @pytest.mark.parametrize("change", [{"listed": 1}, {"digest": 7}, {"absent": 1}, {"files": 1}, {"last": ("z", "")}])
    def test_D4_range_that_differs_from_its_node_is_reported(
        self, discovery_fixture: PipelineFixture, change: dict[str, Any]
    ) -> None:
        """With a digest of other files, an unknown file could count as a known one."""
        newest = discovered(discovery_fixture)
        forge(discovery_fixture, replace(newest, known=(*newest.known[:-1], replace(newest.known[-1], **change))))
        assert ("D4", None) in violations(discovery_fixture)

    @pytest.mark.parametrize(
        "change", [lambda e: {"known": e.known[1:]}, lambda e: {"known": e.known[::-1]}, lambda e: {"settled_ns": 0}]
    )
    def test_D4_tree_with_other_files_than_the_pages_is_reported(
        self, discovery_fixture: PipelineFixture, change: Any
    ) -> None:
        newest = discovered(discovery_fixture)
        forge(discovery_fixture, replace(newest, **change(newest)))
        assert violations(discovery_fixture) == [("D4", None)]

    def test_D6_page_of_another_level_is_reported(self, discovery_fixture: PipelineFixture) -> None:
        newest = discovered(discovery_fixture)
        assert newest.pages[0].level
        forge(discovery_fixture, replace(newest, pages=(replace(newest.pages[0], level=0), *newest.pages[1:])))
        assert ("D6", None) in violations(discovery_fixture)


def test_missing_or_truncated_quarantined_records_are_reported(fixture: PipelineFixture) -> None:
    (key,) = fixture.opened().log.outcome(1).quarantine.keys  # type: ignore[union-attr]
    original = objects(fixture)[key]
    objects(fixture)[key] = original.split(b"\n")[0] + b"\n"
    assert violations(fixture) == [("I14", 1)]
    del objects(fixture)[key]
    assert violations(fixture) == [("I6", 1)]


def test_orphans_are_counted_and_not_reported_as_a_fault(fixture: PipelineFixture) -> None:
    shutil.copytree(visible(fixture, 0).parent, visible(fixture, 0).parent.parent / "lost")
    verdict = fixture.verdict()
    assert (verdict.clean, verdict.orphans) == (True, 1)
    fixture.check()


def test_open_version_is_not_reported_as_a_fault(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    assert fixture.verdict().open is None
    fixture.dies("b")
    assert (fixture.verdict().clean, fixture.verdict().open) == (True, 3)
    assert [v.outcome is None for v in fixture.opened().versions()] == [True, False, False, False]


def test_I7_files_of_a_version_never_change(fixture: PipelineFixture) -> None:
    before = fixture.opened().files(version=1)
    fixture.arrive(4)
    fixture.run("b", drain=True)
    assert fixture.opened().files(version=1) == before
    assert [f.version for f in fixture.opened().files(since=1)] == [2, 3, 4]
    assert fixture.opened().files(version=1, since=1) == []


@pytest.mark.parametrize(
    "arguments",
    [{"version": 9}, {"version": -2}, {"since": 9}, {"version": 0, "since": 1}, {"version": "1"}, {"sink": "no"}],
)
def test_versions_that_cannot_be_read_are_refused(fixture: PipelineFixture, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        fixture.opened().files(**arguments)  # type: ignore[arg-type]


def test_missing_log_is_refused(tmp_path: Path) -> None:
    from airflow_provider_streamsem import open_log

    with pytest.raises(InvalidError, match="no log"):
        open_log(str(tmp_path / "none"))


def test_reading_across_segments_equals_reading_outcomes(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    fixture.arrive(412)
    fixture.run("a", drain=True)
    assert fixture.log().read(keys.segment(1, 1)) is not None
    assert fixture.visible() == Counter(range(412))
    fixture.check()
    for index in (0, 1):
        del objects(fixture)[keys.segment(1, index)]
    assert fixture.visible() == Counter(range(412))


def test_lag_counts_uncommitted_items_and_writes_nothing(fixture: PipelineFixture) -> None:
    assert (lag_of(fixture), fixture.opened().head) == (0, 2)
    fixture.arrive(3)
    stored = len(objects(fixture))
    assert lag_of(fixture) == 3
    assert len(objects(fixture)) == stored


def lag_of(fixture: PipelineFixture) -> int:
    from airflow_provider_streamsem.stores import memory

    memory._OPENED[fixture.store.url.removeprefix("memory://")] = fixture.store  # type: ignore[assignment]
    return lag(fixture.pipeline()).lag


def test_damaged_outcome_of_a_pipeline_with_state_is_reported(fixture: PipelineFixture) -> None:
    fixture.arrive(6)
    fixture.run("a", drain=True)
    objects(fixture)[keys.outcome(1)] = b"{}"
    pipeline = fixture.pipeline().replace(state=State(keep_versions=4, output_mode="append"))
    violations = verify(open_log(fixture.log(), pipeline=pipeline)).violations
    assert "I1" in {violation.invariant for violation in violations}
