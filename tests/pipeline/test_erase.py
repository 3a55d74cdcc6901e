"""Tests of erasures: no version that can be read, and no object, has an erased row again, and no other row changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, Limits, Pipeline, PipelineSource, alter, rollback
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.commitlog.move import move_log
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    OpenVersionError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.maintenance.erase import Erased, erase
from airflow_provider_streamsem.pipeline.maintenance.fork import fork
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.review import stage_reprocessing
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.pipeline.compactions import altered, compacted, prepared, rows
from tests.pipeline_fixture import PipelineFixture, PreparedFixture

IDS = (4, 9, 10)
WHERE = "id IN (4, 9, 10)"


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Versions 0 to 3 have three rows each. The ids 4, 9 and 10 are in the versions 1 and 3."""
    return prepared(tmp_path)


def erased(
    fixture: PipelineFixture,
    where: str = WHERE,
    *,
    store: Store | None = None,
    pipeline: Pipeline | None = None,
    **named: Any,
) -> Erased:
    arguments: dict[str, Any] = {"engine": RowsEngine(), **named}
    return erase(pipeline or fixture.pipeline(), where=where, log=fixture.log(store), **arguments)


def left(fixture: PipelineFixture, ids: tuple[int, ...] = IDS) -> Counter[int]:
    return fixture.expected - Counter(ids)


def stored_ids(fixture: PipelineFixture) -> set[int]:
    """Return the ids in all files of the dataset, visible or not."""
    files = (path for path in (fixture.root / "out").rglob("*.json") if not path.name.startswith("_"))
    return {json.loads(line)["id"] for path in files for line in path.read_text().splitlines()}


def readable(fixture: PipelineFixture) -> Iterator[Counter[int]]:
    """Yield the rows of each version that can be read."""
    head = fixture.log().newest_head()
    for version in range(head.oldest_readable, head.closed + 1):
        yield rows(fixture, version=version)


def check(fixture: PipelineFixture, ids: tuple[int, ...] = IDS) -> None:
    """Check that no file has an erased row, that every other row is visible once, and that the log is clean."""
    assert fixture.verdict().violations == []
    assert rows(fixture) == left(fixture, ids)
    assert not stored_ids(fixture) & {*ids}
    for found in readable(fixture):
        assert not found.keys() & {*ids}


def test_rows_are_erased_from_every_version_that_can_be_read(fixture: PipelineFixture) -> None:
    result = erased(fixture)
    assert [(each.sink, each.rows, each.files) for each in result.sinks] == [("out", 3, 2)]
    assert result.versions == (4,)
    with pytest.raises(InvalidError, match="expired"):
        fixture.opened().files(version=3)
    fixture.run("rest", drain=True)
    check(fixture)


def test_versions_without_erased_rows_keep_their_files(fixture: PipelineFixture) -> None:
    before = {file.version: file.path for file in fixture.opened().files()}
    erased(fixture)
    after = {file.version: file.path for file in fixture.opened().files()}
    assert {*after} == {0, 2, 4}
    assert (after[0], after[2]) == (before[0], before[2])


def test_dry_run_writes_nothing(fixture: PipelineFixture) -> None:
    before = sorted(stat.key for stat in fixture.store.list(""))
    result = erased(fixture, dry_run=True)
    assert [(each.sink, each.rows, each.files) for each in result.sinks] == [("out", 3, 2)]
    assert result.versions == ()
    assert sorted(stat.key for stat in fixture.store.list("")) == before


def test_repeated_erasure_commits_no_version(fixture: PipelineFixture) -> None:
    erased(fixture)
    assert erased(fixture).versions == ()
    assert erased(fixture, "id = 1000").sinks == ()
    fixture.run("rest", drain=True)
    check(fixture)


def test_all_rows_of_a_commit_are_erased(fixture: PipelineFixture) -> None:
    erased(fixture, "id IN (3, 4, 5)")
    fixture.run("rest", drain=True)
    check(fixture, (3, 4, 5))


def test_erasure_is_divided_into_versions_by_size(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=3_000)
    for number in range(4):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    ids = (1, 3_001, 6_001, 9_001)
    size = max(file.bytes for file in fixture.opened().files())
    result = erased(fixture, f"id IN {ids}", max_bytes=2 * max(size, 65_536 // 2))
    assert result.versions == (4, 5)
    assert [(each.rows, each.files) for each in result.sinks] == [(4, 4)]
    check(fixture, ids)


def test_later_erasure_erases_from_the_files_of_an_earlier_one(fixture: PipelineFixture) -> None:
    erased(fixture, "id = 4")
    result = erased(fixture, "id = 5")
    assert [(each.rows, each.files) for each in result.sinks] == [(1, 1)]
    erased(fixture, "id = 9")
    fixture.run("rest", drain=True)
    check(fixture, (4, 5, 9))


@pytest.mark.parametrize("compacted_first", [True, False])
def test_compaction_keeps_erased_rows_erased(fixture: PipelineFixture, compacted_first: bool) -> None:
    if compacted_first:
        compacted(fixture)
    erased(fixture)
    fixture.run("rest", drain=True)
    compacted(fixture)
    check(fixture)
    erased(fixture, "id = 6")
    check(fixture, (*IDS, 6))


def test_versions_before_an_erasure_are_neither_rolled_back_to_nor_reprocessed(fixture: PipelineFixture) -> None:
    erased(fixture)
    fixture.run("rest")
    with pytest.raises(InvalidError, match="expired"):
        rollback(fixture.pipeline(), 3, log=fixture.log())
    with pytest.raises(InvalidError, match="expired"):
        fixture.run("again", reprocessed=1)
    rollback(fixture.pipeline(), 4, log=fixture.log())
    fixture.run("once more", drain=True)
    check(fixture)


def test_commit_without_erased_rows_can_be_reprocessed(fixture: PipelineFixture) -> None:
    erased(fixture)
    fixture.run("again", reprocessed=0)
    fixture.run("rest", drain=True)
    check(fixture)


def test_rows_of_replaced_and_rolled_back_commits_are_deleted(fixture: PipelineFixture) -> None:
    fixture.run("fix", reprocessed=1)
    fixture.run("wrong")
    rollback(fixture.pipeline(), 4, log=fixture.log())
    assert 4 in stored_ids(fixture)
    erased(fixture)
    fixture.run("rest", drain=True)
    check(fixture)


@pytest.mark.parametrize("how", ["rolled back", "replaced"])
def test_rows_that_only_earlier_versions_show_are_erased(fixture: PipelineFixture, how: str) -> None:
    if how == "rolled back":
        rollback(fixture.pipeline(), 2, log=fixture.log())
    else:
        without = fixture.pipeline(transform=lambda rows: [row for row in rows if row["id"] not in IDS])
        for version in (1, 3):
            fixture.run(f"fix {version}", reprocessed=version, pipeline=without)
    ids = (9, 10) if how == "rolled back" else IDS
    where = f"id IN {ids}"
    preview = erased(fixture, where, dry_run=True)
    done = erased(fixture, where)
    assert [each.rows for each in preview.sinks] == [each.rows for each in done.sinks] == [len(ids)]
    assert len(done.versions) == 1
    assert not stored_ids(fixture) & {*ids}
    for found in readable(fixture):
        assert not found.keys() & {*ids}
    assert fixture.verdict().violations == []
    assert erased(fixture, where).versions == ()


def test_erasure_that_finds_nothing_lets_no_version_expire(fixture: PipelineFixture) -> None:
    fixture.run("fix", reprocessed=1)
    assert erased(fixture, "id = 1000").versions == ()
    assert fixture.log().newest_head().oldest_readable == 0


def test_quarantined_records_that_contain_the_value_are_erased(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    path = fixture.root / "in" / "00000.json"
    with path.open("a") as file:
        file.write('{"id": 4, broken\n{"id": 44, broken\n"text"\n')
    fixture.arrive(1)
    fixture.run("first", drain=True)
    assert len([*fixture.opened().quarantined()]) == 3
    result = erased(fixture)
    assert (result.quarantined, len(result.versions)) == (1, 1)
    assert [record["raw"] for record in fixture.opened().quarantined()] == ['{"id": 44, broken', '"text"']
    assert not any(b'"id\\": 4,' in (fixture.store.read(stat.key) or b"") for stat in fixture.store.list(""))
    assert fixture.verdict().violations == []
    assert erased(fixture, "id = 44").quarantined == 1
    assert [record["raw"] for record in fixture.opened().quarantined()] == ['"text"']
    assert fixture.verdict().violations == []


@pytest.mark.parametrize(
    ("where", "selected", "others"),
    [
        (
            "id = 4",
            ['{"id": 4, x', "4,a", "a;4", "id 4."],
            ['{"id": 44, x', "-4", "4.25", "2024-1-4", "v4", "4-1", "1.4"],
        ),
        ("name = 'é\"x'", ['"\\u00E9\\"x"', '"\\u00e9\\"x"', 'é""x', "é&quot;x"], ["é", "x", 'eé"x']),
        ("name = 'a/b'", ["a/b", "a\\/b"], ["a/bc", "xa/b"]),
        ("id = 4 AND name = 'a'", ["4,a"], ["4,b", "5,a"]),
    ],
)
def test_quarantined_records_are_selected_by_whole_words(where: str, selected: list[str], others: list[str]) -> None:
    predicate = Predicate.parse(where)
    assert [text for text in selected if not predicate.is_in_text(text)] == []
    assert [text for text in others if predicate.is_in_text(text)] == []


def test_names_of_source_files_select_no_quarantined_record(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1, bad_lines=1)
    (fixture.root / "in" / "00000.json").rename(fixture.root / "in" / "part-77.json")
    fixture.run("first")
    assert erased(fixture, "id = 77").quarantined == 0


def test_quarantined_records_are_erased_even_if_no_sink_has_the_column(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    with (fixture.root / "in" / "00000.json").open("a") as file:
        file.write('{"email": "bob@example.com", broken\n')
    fixture.run("first")
    where = "email = 'bob@example.com'"
    with pytest.raises(InvalidError, match="no sink of the pipeline has the columns"):
        erased(fixture, where)
    assert fixture.opened().head == 0
    done = erased(fixture, where, only_quarantined=True)
    assert (done.quarantined, done.quarantined_in) == (1, (0,))
    assert erased(fixture, where, only_quarantined=True, dry_run=True).quarantined == 0


def test_only_quarantined_records_are_erased_on_request(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    with (fixture.root / "in" / "00000.json").open("a") as file:
        file.write('{"id": 1, broken\n')
    fixture.run("first")
    done = erased(fixture, "id = 1", only_quarantined=True)
    assert (done.quarantined, done.sinks) == (1, ())
    assert rows(fixture) == fixture.expected
    assert fixture.verdict().violations == []


def test_former_location_of_a_moved_log_is_named(tmp_path: Path) -> None:
    fixture = prepared(tmp_path, store=LocalStore(str(tmp_path / "log")))
    new = str(tmp_path / "moved")
    move_log(commit_log_at(str(tmp_path / "log")), commit_log_at(new))
    done = erase(fixture.pipeline(log=new), where=WHERE, engine=RowsEngine())
    assert any(str(tmp_path / "log") in sentence and "delete it" in sentence for sentence in done.remaining)


def test_fork_without_a_version_is_refused(tmp_path: Path) -> None:
    fixture = prepared(tmp_path, store=LocalStore(str(tmp_path / "log")))
    forked = fixture.pipeline(
        log=str(tmp_path / "fork"), sinks={"out": FilesSink(str(tmp_path / "copy"), format="json")}
    )
    fork(forked, fixture.store.url)
    with pytest.raises(InvalidError, match="the fork has no version yet"):
        erase(forked, where=WHERE, engine=RowsEngine())


def test_no_object_of_the_log_contains_the_predicate(fixture: PipelineFixture) -> None:
    result = erased(fixture, "id = 987654321")
    assert not any("objects of the log" in sentence for sentence in result.remaining)
    erased(fixture)
    assert not any(b"987654321" in (fixture.store.read(stat.key) or b"") for stat in fixture.store.list(""))


def test_downstream_pipeline_at_the_head_reads_the_other_rows_once(tmp_path: Path) -> None:
    fixture = prepared(tmp_path, store=LocalStore(str(tmp_path / "log")))
    downstream = PipelineFixture(tmp_path / "downstream")
    pipeline = downstream.pipeline(
        source=PipelineSource(log=fixture.store.url, sink="out", on_reprocess="reprocess"), limits=Limits()
    )
    downstream.run("first", pipeline=pipeline, drain=True)
    erased(fixture)
    fixture.run("rest", drain=True)
    downstream.run("second", pipeline=pipeline, drain=True)
    assert rows(downstream) == fixture.expected, "its own rows are erased by an erasure of its own"
    downstream.ran = pipeline
    erase(pipeline, where=WHERE, log=downstream.log(), engine=RowsEngine())
    assert rows(downstream) == left(fixture)


def test_new_downstream_pipeline_reads_no_erased_row(tmp_path: Path) -> None:
    fixture = prepared(tmp_path, store=LocalStore(str(tmp_path / "log")))
    erased(fixture)
    fixture.run("rest", drain=True)
    downstream = PipelineFixture(tmp_path / "downstream")
    pipeline = downstream.pipeline(source=PipelineSource(log=fixture.store.url, sink="out"), limits=Limits())
    downstream.run("first", pipeline=pipeline, drain=True)
    assert rows(downstream) == left(fixture)


@pytest.mark.parametrize(
    "where", ["", "id", "id = 1.5", "id = 'a' OR id = 'b'", "id LIKE 'a%'", "id = 1; DROP TABLE x", "id IN ()", "1 = 1"]
)
def test_predicate_that_is_not_supported_erases_nothing(fixture: PipelineFixture, where: str) -> None:
    with pytest.raises(InvalidError, match="where"):
        erased(fixture, where)
    assert fixture.opened().head == 3


def test_erasure_is_refused_while_a_version_is_open_or_held(fixture: PipelineFixture) -> None:
    fixture.dies("other")
    with pytest.raises(OpenVersionError, match="no erasure was planned"):
        erased(fixture)
    fixture.run("rest", drain=True)
    stage_reprocessing(fixture.pipeline(), 0, engine=RowsEngine(), log=fixture.log())
    with pytest.raises(StreamsemError, match="held"):
        erased(fixture)


def killed(fixture: PipelineFixture, at: str) -> None:
    """Erase in a process that is killed at a step."""

    def die(step: str) -> None:
        if step == at:
            raise Crash

    with suppress(Crash):
        erased(fixture, engine=RowsEngine(die))
        raise AssertionError("the process did not die")


WRITERS: dict[str, Callable[[PipelineFixture], object]] = {
    "run": lambda fixture: fixture.run("rest"),
    "reprocessing run": lambda fixture: fixture.run("fix", reprocessed=1),
    "alter": lambda fixture: alter(altered(fixture), log=fixture.log()),
    "rollback": lambda fixture: rollback(fixture.pipeline(), 2, log=fixture.log()),
    "compaction": compacted,
    "erasure": erased,
    "vacuum": lambda fixture: vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=fixture.log()),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("at", ["write", "staged"])
def test_writer_that_finds_an_open_erasure_closes_it(fixture: PipelineFixture, writer: str, at: str) -> None:
    killed(fixture, at)
    with suppress(InvalidError, OpenVersionError):
        WRITERS[writer](fixture)
    pipeline = altered(fixture) if writer == "alter" else None
    fixture.run("after", drain=True, pipeline=pipeline)
    erased(fixture, pipeline=pipeline)
    check(fixture)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*Fault])
def test_erasure_with_a_fault_at_any_request_is_repeated(tmp_path: Path, fault: Fault) -> None:
    at, is_done, start = 0, False, PreparedFixture(_with_records(prepared(tmp_path)))
    while not is_done:
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            erased(fixture, store=store)
        is_done, at = not store.reached, at + 1
        fixture.run("rest", drain=True)
        erased(fixture)
        check(fixture)
    assert at > 20


def _with_records(fixture: PipelineFixture) -> PipelineFixture:
    fixture.arrive(1, bad_lines=1)
    fixture.run("records", drain=True)
    compacted(fixture)
    fixture.arrive(1)
    return fixture


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_other_writer_at_any_request_of_an_erasure_leaves_no_erased_row(tmp_path: Path, writer: str) -> None:
    at, is_done, start = 0, False, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()

        def write(fixture: PipelineFixture = fixture) -> None:
            with suppress(InvalidError, OpenVersionError, ConflictError):
                WRITERS[writer](fixture)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=write)
        with suppress(OpenVersionError, ConflictError, DataError, InvalidError):
            erased(fixture, store=store)
        is_done, at = not store.reached, at + 1
        pipeline = altered(fixture) if writer == "alter" and not is_done else None
        fixture.run("rest", drain=True, pipeline=pipeline)
        erased(fixture, pipeline=pipeline)
        check(fixture)
    assert at > 10


@pytest.mark.slow
@pytest.mark.parametrize("writer", [name for name in WRITERS if name not in ("erasure", "vacuum")])
def test_erasure_at_any_request_of_another_writer_leaves_no_erased_row(tmp_path: Path, writer: str) -> None:
    at, is_done, start = 0, False, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()

        def write(fixture: PipelineFixture = fixture) -> None:
            with suppress(OpenVersionError, ConflictError):
                erased(fixture)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=write)
        with suppress(StreamsemError):
            _written(writer, fixture, store)
        is_done, at = not store.reached, at + 1
        pipeline = altered(fixture) if writer == "alter" and "new" in open_log(fixture.log()).sinks else None
        fixture.run("rest", drain=True, pipeline=pipeline)
        erased(fixture, pipeline=pipeline)
        check(fixture)


def _written(writer: str, fixture: PipelineFixture, store: Store) -> None:
    match writer:
        case "run":
            fixture.run("rest", store=store)
        case "reprocessing run":
            fixture.run("fix", reprocessed=1, store=store)
        case "alter":
            alter(altered(fixture), log=fixture.log(store))
        case "rollback":
            rollback(fixture.pipeline(), 2, log=fixture.log(store))
        case "compaction":
            compacted(fixture, store=store)


class History:
    """Random runs, reprocessing runs, rollbacks, compactions, vacuums and erasures, and what each version shows."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random, self.fixture = Random(seed), PipelineFixture(root)
        self.shown: list[dict[int, set[int]]] = []
        """For each version: the version of a batch → its ids."""
        self.read: list[int] = []
        """For each version: the number of files that are read."""
        self.erased: set[int] = set()
        self.steps = 0
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Perform one operation. The refusal of an expired version changes nothing."""
        self.steps += 1
        kinds = ["run"] * 4 + ["reprocess", "roll_back", "compact", "vacuum", "erase", "erase"]
        kind = self.random.choice(kinds) if len(self.shown) > 2 else "run"
        with suppress(InvalidError):
            getattr(self, kind)()
            self.done[kind] += 1

    def closed(self, shown: dict[int, set[int]], read: int) -> None:
        """Record the versions that an operation has added."""
        added = self.fixture.log().newest_head().closed + 1 - len(self.shown)
        self.shown += [shown] * added
        self.read += [read] * added

    def run(self) -> None:
        self.fixture.arrive(1)
        version, read = len(self.shown), self.read[-1] if self.read else 0
        self.fixture.run(f"run {self.steps}", pipeline=self.fixture.pipeline(limits=Limits()))
        ids = {*range(3 * read, 3 * self.fixture.made)}
        self.erased -= ids  # a rollback has returned to offsets before them, and the source still has them
        self.closed({**(self.shown[-1] if self.shown else {}), version: ids}, self.fixture.made)

    def reprocess(self) -> None:
        self.fixture.run(f"fix {self.steps}", reprocessed=self.random.choice(sorted(self.shown[-1])))
        self.closed(self.shown[-1], self.read[-1])

    def roll_back(self) -> None:
        to = self.random.randrange(max(0, len(self.shown) - 4), len(self.shown))
        rollback(self.fixture.pipeline(), to, log=self.fixture.log())
        self.closed(self.shown[to], self.read[to])

    def compact(self) -> None:
        compacted(self.fixture)
        self.closed(self.shown[-1], self.read[-1])

    def vacuum(self) -> None:
        vacuum(self.fixture.pipeline(), keep_versions=self.random.randrange(1, 5), keep_days=0, log=self.fixture.log())
        self.closed(self.shown[-1], self.read[-1])

    def erase(self) -> None:
        known = sorted({at for shown in self.shown for ids in shown.values() for at in ids})
        chosen = {*self.random.sample(known, self.random.randrange(1, 4))}
        erased(self.fixture, f"id IN ({', '.join(map(str, sorted(chosen)))})")
        self.erased |= chosen
        self.closed({batch: ids - chosen for batch, ids in self.shown[-1].items()}, self.read[-1])

    def check(self) -> None:
        assert self.fixture.verdict().violations == []
        for version in range(self.fixture.log().newest_head().oldest_readable, len(self.shown)):
            expected = Counter(at for ids in self.shown[version].values() for at in ids)
            assert rows(self.fixture, version=version) == expected, version
        assert not stored_ids(self.fixture) & self.erased


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_show_no_erased_row_and_every_other_row_once(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(30):
        history.step()
        history.check()
    assert history.done["erase"]
    assert history.done["compact"] + history.done["reprocess"] + history.done["roll_back"]
