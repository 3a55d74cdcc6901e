"""Tests of compaction: readers get the same rows from fewer files, and no crash or other writer changes that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, Limits, Pipeline, PipelineSource, alter, rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Contents, RewriteJob, RewrittenFiles
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    HeldVersionError,
    InvalidError,
    OpenVersionError,
    StageError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.maintenance.compact import Compacted
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.review import stage_reprocessing
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture
from tests.pipeline.compactions import TARGET, altered, compacted, prepared, rows
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, PreparedFixture, die
from tests.protocol import samples

DAY_MS = 86_400_000


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return prepared(tmp_path)


def files(fixture: PipelineFixture, **arguments: Any) -> list[int]:
    """Return the versions of the files that a reader reads."""
    return [file.version for file in fixture.opened().files(sink="out", **arguments)]


def test_rows_of_many_files_are_read_from_one_file(fixture: PipelineFixture) -> None:
    before = fixture.opened().view()
    (done,) = compacted(fixture)
    assert (done.version, done.commits, done.rows, done.files, done.new_files) == (4, 4, 12, 4, 1)
    assert (files(fixture), rows(fixture)) == ([4], Counter(range(12)))
    assert fixture.verdict().files == 1
    after = fixture.opened().view()
    assert (after.counts, after.next) == (before.counts, before.next)
    fixture.run("rest", drain=True)
    fixture.check()


def test_dry_run_writes_nothing(fixture: PipelineFixture) -> None:
    before = sorted(stat.key for stat in fixture.store.list(""))
    (possible,) = compacted(fixture, dry_run=True)
    assert (possible.version, possible.files, possible.new_files) == (None, 4, None)
    assert sorted(stat.key for stat in fixture.store.list("")) == before


def test_readers_of_earlier_versions_and_of_some_versions_read_the_files_of_the_commits(
    fixture: PipelineFixture,
) -> None:
    compacted(fixture)
    for version in range(4):
        assert rows(fixture, version=version) == Counter(range(3 * version + 3))
    for since in range(-1, 5):
        assert rows(fixture, since=since) == Counter(range(3 * since + 3, 12))
    assert (files(fixture, since=0), files(fixture, since=-1)) == ([1, 2, 3], [4])
    assert files(fixture, with_rewrites=False) == [0, 1, 2, 3]


@pytest.mark.parametrize("since", [-1, 1, 4, 6])
def test_changes_between_two_versions_update_a_copy(fixture: PipelineFixture, since: int) -> None:
    compacted(fixture)
    fixture.run("rest")
    fixture.run("fix", reprocessed=1)
    compacted(fixture)
    opened = fixture.opened()
    for version in range(since, opened.head + 1):
        copy = {file.path for file in opened.files(version=since)} if since >= 0 else set()
        changes = opened.changes(since=since, version=version)
        copy = copy - {file.path for file in changes.removed} | {file.path for file in changes.added}
        assert copy == {file.path for file in opened.files(version=version)}


def test_second_compaction_rewrites_the_result_of_the_first(fixture: PipelineFixture) -> None:
    compacted(fixture)
    assert compacted(fixture) == []
    fixture.arrive(3)
    fixture.run("rest", drain=True)
    (done,) = compacted(fixture)
    assert (done.commits, done.rows, files(fixture)) == (6, 24, [7])
    fixture.check()


def test_compaction_is_split_into_versions_by_size(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=2_800)
    for number in range(5):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    sizes = [file.bytes for file in fixture.opened().files()]
    assert all(TARGET / 2 < size < TARGET for size in sizes)
    done = compacted(fixture, target_file_bytes=100 * TARGET, max_bytes=2 * max(sizes))
    assert [(each.version, each.files) for each in done] == [(5, 2), (6, 2)]
    assert files(fixture) == [4, 5, 6]
    fixture.check()


def test_commit_with_more_bytes_than_a_rewrite_may_have_is_rewritten_alone(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=5_000)
    for number in range(3):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    compacted(fixture, target_file_bytes=100 * TARGET)
    fixture.rows_per_file = 1
    assert fixture.opened().files()[0].bytes > TARGET
    assert compacted(fixture, target_file_bytes=100 * TARGET, max_bytes=TARGET) == []


def test_row_is_rewritten_again_only_when_its_rewrite_doubles(tmp_path: Path) -> None:
    fixture, rewritten, compactions = PipelineFixture(tmp_path), 0, 32
    for number in range(compactions):
        for part in range(2):
            fixture.arrive(1)
            fixture.run(f"r{number}.{part}")
        rewritten += sum(done.rows for done in compacted(fixture))
    total = compactions * 2 * fixture.rows_per_file
    assert rewritten <= 6 * total, "each row at most once for each doubling"
    assert len(files(fixture)) <= 6
    fixture.check()


class LargeFilesEngine(RowsEngine):
    """Writes three times as many files as the target size requires."""

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        done = super().rewrite(job, log)
        directory = Path(job.sink.attempt_location(job.version, job.attempt_id))
        lines = (directory / "part-00000.json").read_text().splitlines()
        for number in range(1, 3):
            (directory / f"part-{number:05d}.json").write_text("".join(f"{line}\n" for line in lines[number::3]))
        (directory / "part-00000.json").write_text("".join(f"{line}\n" for line in lines[::3]))
        return replace(done, output=job.sink.collect(job.version, job.attempt_id))


def test_rewrite_with_more_files_than_expected_is_not_repeated(fixture: PipelineFixture) -> None:
    assert [done.new_files for done in compacted(fixture, engine=LargeFilesEngine())] == [3]
    assert compacted(fixture, engine=LargeFilesEngine()) == []
    fixture.run("rest")
    fixture.check()


def test_files_are_written_with_the_columns_of_their_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback may remove later columns, and the rewrite still applies after it."""
    schemas: list[str] = []

    class Recording(RowsEngine):
        def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
            schemas.append(job.schema)
            return super().rewrite(job, log)

    fixture = PipelineFixture(tmp_path, rows_per_file=2_800)
    columns = []
    for number in range(4):
        name = "later" if number > 1 else "first"
        columns.append(
            json.dumps({"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}}]})
        )
        monkeypatch.setattr("airflow_provider_streamsem.testing.rows.SCHEMA", columns[-1])
        fixture.arrive(1)
        fixture.run(f"r{number}")
    size = max(file.bytes for file in fixture.opened().files())
    compacted(fixture, engine=Recording(), target_file_bytes=100 * TARGET, max_bytes=2 * size)
    assert schemas == [columns[0], columns[3]]


def test_commits_before_many_rewrites_are_announced(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=2_800)
    for number in range(44):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.arrive(1)
    with suppress(Crash):
        fixture.run("killed", store=_WithoutAnnouncement(fixture.store))
    size = max(file.bytes for file in fixture.opened().files())
    assert len(compacted(fixture, target_file_bytes=100 * TARGET, max_bytes=2 * size)) == 22
    result = fixture.run("next")
    assert [completed.version for completed in result.completed] == [44]
    assert fixture.unannounced() == [*range(45, 67)], "the rewrites"


class _WithoutAnnouncement(CountingStore):
    """A process that uses this store is killed before it creates its announcement."""

    def create(self, key: str, data: bytes) -> bool:
        if key.startswith("announced/"):
            raise Crash
        return super().create(key, data)


def test_rewrites_are_not_counted_among_the_versions_whose_state_is_kept(fixture: PipelineFixture) -> None:
    before = oldest_kept(fixture.log(), 3, 2)
    compacted(fixture)
    assert before == 1
    assert oldest_kept(fixture.log(), 4, 2) == 1
    fixture.run("rest")
    assert oldest_kept(fixture.log(), 5, 2) == 2


def test_dry_run_with_another_limit_in_the_spec_writes_nothing(fixture: PipelineFixture) -> None:
    before = sorted(stat.key for stat in fixture.store.list(""))
    compacted(fixture, pipeline=fixture.pipeline(limits=Limits(max_files=7)), dry_run=True)
    assert sorted(stat.key for stat in fixture.store.list("")) == before
    with pytest.raises(ConflictError, match="immutable fields differ"):
        compacted(fixture, pipeline=moved(fixture), dry_run=True)


def test_second_vacuum_does_not_inspect_old_rewrites(tmp_path: Path) -> None:
    fixture, requests = PipelineFixture(tmp_path), []
    for number in range(40):
        fixture.arrive(1)
        fixture.run(f"a{number}")
        fixture.arrive(1)
        fixture.run(f"b{number}")
        compacted(fixture)
        if number in (9, 39):
            _vacuumed(fixture)
            store = CountingStore(fixture.store)
            _vacuumed(fixture, store)
            requests.append(sum(store.requests.values()))
    assert requests[1] <= requests[0] + 4, "only the search by time reads more"


def test_lost_file_of_a_rewrite_is_replaced_by_those_of_the_commits(fixture: PipelineFixture) -> None:
    fixture.run("rest")
    compacted(fixture)
    Path(fixture.opened().files()[0].path).unlink()
    (violation,) = fixture.verdict().violations
    assert (violation.invariant, "reprocess PIPELINE.toml 0" in violation.do) == ("I6", True)
    fixture.run("fix", reprocessed=0)
    assert rows(fixture) == fixture.expected


def test_files_of_the_target_size_are_not_rewritten(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=5_000)
    for number in range(2):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    assert all(file.bytes > TARGET / 2 for file in fixture.opened().files())
    assert compacted(fixture) == []


def test_reprocessed_commit_is_read_with_the_files_of_the_other_commits(fixture: PipelineFixture) -> None:
    compacted(fixture)
    fixture.run("fix", reprocessed=1)
    assert (files(fixture), rows(fixture)) == ([0, 2, 3, 5], Counter(range(12)))
    compacted(fixture)
    assert files(fixture) == [6]
    fixture.run("fix again", reprocessed=1)
    fixture.run("rest", drain=True)
    fixture.check()


def test_rollback_below_the_rewritten_commits_removes_their_rows(fixture: PipelineFixture) -> None:
    compacted(fixture)
    rollback(fixture.pipeline(), 1, log=fixture.log())
    assert (files(fixture), rows(fixture)) == ([0, 1], Counter(range(6)))
    fixture.run("rest", drain=True)
    fixture.check()


def test_rollback_above_the_rewritten_commits_keeps_the_rewrite(fixture: PipelineFixture) -> None:
    fixture.run("wrong")
    compacted(fixture, max_bytes=TARGET)
    fixture.run("fix", reprocessed=4)
    rollback(fixture.pipeline(), 6, log=fixture.log())
    assert fixture.opened().head == 6, "nothing was committed after version 6"
    fixture.arrive(1)
    fixture.run("wrong again")
    compacted(fixture)
    rollback(fixture.pipeline(), 8, log=fixture.log())
    rollback(fixture.pipeline(), 7, log=fixture.log())
    assert files(fixture) == [8]
    fixture.check()


def test_rollback_to_a_version_before_a_rewrite_writes_nothing(fixture: PipelineFixture) -> None:
    compacted(fixture)
    assert rollback(fixture.pipeline(), 3, log=fixture.log()).version is None


def test_rewrite_cannot_be_reprocessed(fixture: PipelineFixture) -> None:
    compacted(fixture)
    with pytest.raises(InvalidError, match=r"only a committed batch can be reprocessed.*result='rewrite'"):
        fixture.run("fix", reprocessed=4)


def test_sink_that_an_alter_removes_is_no_longer_read_from_its_rewrite(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    both = fixture.pipeline(
        sinks={name: FilesSink(path=str(tmp_path / name), format="json") for name in ("out", "old")}
    )
    for number in range(3):
        fixture.arrive(1)
        fixture.run(f"r{number}", pipeline=both)
    assert [done.sink for done in compacted(fixture, pipeline=both)] == ["old", "out"]
    fixture.check(lambda: rows(fixture))
    alter(fixture.pipeline(), log=fixture.log())
    fixture.ran = None
    assert {file.sink for file in fixture.opened().files()} == {"out"}
    fixture.check()


def moved(fixture: PipelineFixture) -> Pipeline:
    return fixture.pipeline(sinks={"out": FilesSink(path=str(fixture.root / "other"), format="json")})


def test_alter_that_replaces_the_dataset_hides_its_rewrite_and_the_log_stays_clean(fixture: PipelineFixture) -> None:
    fixture.run("rest", drain=True)
    compacted(fixture)
    alter(moved(fixture), log=fixture.log())
    opened = fixture.opened()
    assert (opened.files(), len(opened.files(version=5))) == ([], 1)
    fixture.ran = moved(fixture)
    assert fixture.verdict().violations == []


@pytest.mark.slow
def test_alter_at_any_request_of_a_compaction_stays_in_effect(tmp_path: Path) -> None:
    at, is_done, committed, start = 0, False, 0, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()
        fixture.run("rest", drain=True)

        def alter_pipeline(fixture: PipelineFixture = fixture) -> None:
            alter(moved(fixture), log=fixture.log())

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=alter_pipeline)
        with suppress(ConflictError, OpenVersionError):
            committed += len(compacted(fixture, store=store))
        is_done, at = not store.reached, at + 1
        fixture.arrive(1)
        if not is_done:
            fixture.run("new", pipeline=moved(fixture))
        fixture.run("old" if is_done else "new", pipeline=None if is_done else moved(fixture))
        assert fixture.verdict().violations == []
    assert committed > 1


def test_only_files_sinks_are_compacted(tmp_path: Path) -> None:
    fixture = PublishingFixture(tmp_path)
    for number in range(3):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    with pytest.raises(InvalidError, match="only the files of a files sink"):
        compacted(fixture, sink="table")
    with pytest.raises(InvalidError, match="the pipeline has no such sink"):
        compacted(fixture, sink="tabel")
    (done,) = compacted(fixture)
    assert done.sink == "out"
    fixture.arrive(1)
    fixture.run("next")
    fixture.check()


@pytest.mark.parametrize("arguments", [{"target_file_bytes": 1}, {"max_bytes": 0}, {"sink": "none"}])
def test_invalid_arguments_are_refused(fixture: PipelineFixture, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        compacted(fixture, **arguments)
    assert fixture.opened().head == 3


def test_compaction_without_a_log_is_refused(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with pytest.raises(InvalidError, match="there is no log"):
        compacted(fixture)


def test_result_of_a_run_does_not_name_rewrites(fixture: PipelineFixture) -> None:
    compacted(fixture)
    result = fixture.run("rest")
    assert (result.version, result.completed, result.versions) == (5, (), (4, 6))
    compacted(fixture)
    assert fixture.run("nothing").status == "empty"


def test_downstream_pipeline_reads_each_row_once(tmp_path: Path) -> None:
    fixture = prepared(tmp_path, store=LocalStore(str(tmp_path / "log")))
    downstream = PipelineFixture(tmp_path / "downstream")

    def run(key: str) -> None:
        pipeline = downstream.pipeline(
            source=PipelineSource(log=fixture.store.url, sink="out", on_reprocess="reprocess"), limits=Limits()
        )
        downstream.run(key, pipeline=pipeline, drain=True)

    run("first")
    compacted(fixture)
    run("second")
    fixture.run("rest")
    fixture.run("fix", reprocessed=1)
    compacted(fixture)
    run("third")
    assert rows(downstream) == rows(fixture) == fixture.expected


class FailingEngine(RowsEngine):
    """Returns other rows than those that it has read, or fails."""

    def __init__(self, change: Callable[[RewrittenFiles], RewrittenFiles]) -> None:
        super().__init__()
        self._change = change

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        return self._change(super().rewrite(job, log))


def _fail(result: RewrittenFiles) -> RewrittenFiles:
    raise StageError("an executor was lost")


CHANGES: dict[str, tuple[Callable[[RewrittenFiles], RewrittenFiles], type[StreamsemError]]] = {
    "row lost": (lambda r: replace(r, after=Contents(rows=11, digest=r.after.digest)), DataError),
    "value changed": (lambda r: replace(r, after=Contents(rows=12, digest="other")), DataError),
    "file changed before": (lambda r: replace(r, before=(c := Contents(rows=13, digest="x")), after=c), DataError),
    "rows of the footers": (lambda r: replace(r, output=replace(r.output, rows=11)), DataError),
    "engine": (_fail, StageError),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_with_different_rows_never_become_visible(fixture: PipelineFixture, name: str) -> None:
    change, error = CHANGES[name]
    with pytest.raises(error):
        compacted(fixture, engine=FailingEngine(change))
    assert files(fixture) == [0, 1, 2, 3]
    assert not isinstance(fixture.log().newest_head(), OpenHead), "the rewrite is aborted, so that no run finds it open"
    compacted(fixture)
    fixture.run("rest", drain=True)
    fixture.check()


def test_compaction_is_refused_while_a_version_is_open(fixture: PipelineFixture) -> None:
    fixture.dies("other")
    with pytest.raises(OpenVersionError, match=r"no rewrite was planned.*version=4"):
        compacted(fixture)
    fixture.run("rest", drain=True)
    compacted(fixture)
    fixture.check()


def test_compaction_is_refused_while_a_version_is_held(fixture: PipelineFixture) -> None:
    stage_reprocessing(fixture.pipeline(), 1, engine=RowsEngine(), log=fixture.log())
    with pytest.raises(HeldVersionError, match="no rewrite was planned"):
        compacted(fixture)


class _WithoutReceipts(CountingStore):
    """A process that uses this store is killed before it creates receipts."""

    def create(self, key: str, data: bytes) -> bool:
        if key.endswith(".d.json"):
            raise Crash
        return super().create(key, data)


def test_compaction_is_refused_while_a_commit_is_not_published(tmp_path: Path) -> None:
    fixture = PublishingFixture(tmp_path)
    fixture.arrive(3)
    fixture.run("first")
    with suppress(Crash):
        fixture.run("second", store=_WithoutReceipts(fixture.store))
    assert fixture.log().newest_head().has_pending_publishes
    with pytest.raises(OpenVersionError, match="not published yet"):
        compacted(fixture)
    fixture.run("third")
    fixture.check()


def killed(fixture: PipelineFixture, at: str) -> None:
    """Run a compaction in a process that is killed at a step."""

    def die(step: str) -> None:
        if step == at:
            raise Crash

    with suppress(Crash):
        compacted(fixture, engine=RowsEngine(die))
        raise AssertionError("the process did not die")


WRITERS: dict[str, Callable[[PipelineFixture], object]] = {
    "run": lambda fixture: fixture.run("rest"),
    "reprocessing run": lambda fixture: fixture.run("fix", reprocessed=1),
    "held version": lambda fixture: stage_reprocessing(fixture.pipeline(), 1, engine=RowsEngine(), log=fixture.log()),
    "alter": lambda fixture: alter(altered(fixture), log=fixture.log()),
    "rollback": lambda fixture: rollback(fixture.pipeline(), 3, log=fixture.log()),
    "compaction": compacted,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writer_that_finds_an_open_unstaged_rewrite_aborts_it(fixture: PipelineFixture, writer: str) -> None:
    killed(fixture, "write")
    WRITERS[writer](fixture)
    outcome = fixture.log().outcome(4)
    assert outcome is not None
    assert (outcome.result, outcome.rewrites) == ("abort", ())
    assert rows(fixture) == Counter(range(15 if writer == "run" else 12))
    assert fixture.opened().head >= 5 or writer in ("held version", "rollback")


@pytest.mark.parametrize("writer", WRITERS)
def test_writer_that_finds_an_open_staged_rewrite_commits_it(fixture: PipelineFixture, writer: str) -> None:
    with suppress(Crash):
        compacted(fixture, store=BeforeOutcome(fixture.store, die))
        raise AssertionError("the process did not die")
    WRITERS[writer](fixture)
    outcome = fixture.log().outcome(4)
    assert outcome is not None
    assert outcome.rewrites
    fixture.ran = altered(fixture) if writer == "alter" else None
    assert fixture.verdict().violations == []


@pytest.mark.parametrize("change", [{"sinks": {}}, {"sinks": {"out": Committable(format="json", rows=1)}}])
def test_manifest_without_the_rows_of_the_rewrite_is_not_committed(
    fixture: PipelineFixture, change: dict[str, Any]
) -> None:
    killed(fixture, "write")
    head = fixture.log().newest_head()
    assert isinstance(head, OpenHead)
    empty = samples.manifest(
        samples.plan(4), plan=head.plan_sha, attempt_id="0" * 32, **{"schemas": {}, "counts": {}, **change}
    )
    fixture.log().put_staged(empty)
    fixture.run("rest", drain=True)
    outcome = fixture.log().outcome(4)
    assert outcome is not None
    assert outcome.result == "abort"
    fixture.check()


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)])
@pytest.mark.slow
def test_fault_at_any_request_of_a_compaction_changes_no_row(tmp_path: Path, fault: Fault) -> None:
    at, is_done, start = 0, False, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            compacted(fixture, store=store)
        is_done, at = not store.reached, at + 1
        assert rows(fixture) == Counter(range(12))
        if at % 2:
            fixture.run("rest", drain=True)
        compacted(fixture)
        assert len(files(fixture)) <= 2, "a rewrite, and a commit that is smaller"
        fixture.run("rest", drain=True)
        fixture.check()


def _vacuumed(fixture: PipelineFixture, store: Store | None = None) -> None:
    log = CommitLog(store or fixture.store, ManualClock(1_700_000_000_000 + 30 * DAY_MS))
    vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=log)


OTHERS: dict[str, Callable[[PipelineFixture], object]] = {
    "run": WRITERS["run"],
    "reprocessing run": WRITERS["reprocessing run"],
    "rollback": lambda fixture: rollback(fixture.pipeline(), 1, log=fixture.log()),
    "compaction": compacted,
    "vacuum": _vacuumed,
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_other_process_at_any_request_of_a_compaction(tmp_path: Path, other: str) -> None:
    at, is_done, committed, start = 0, False, 0, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()

        def quietly(fixture: PipelineFixture = fixture) -> None:
            with suppress(StreamsemError):
                OTHERS[other](fixture)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(OpenVersionError):
            committed += len(compacted(fixture, store=store))
        is_done, at = not store.reached, at + 1
        fixture.run("rest", drain=True)
        fixture.check()
        compacted(fixture)
        _vacuumed(fixture)
        fixture.check()
    assert committed > 1


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_compaction_at_any_request_of_another_process(tmp_path: Path, other: str) -> None:
    at, is_done, committed, start = 0, False, list[Compacted](), PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()
        if other == "vacuum":
            compacted(fixture)
            fixture.run("fix", reprocessed=2)

        plain = replace(fixture)

        def quietly(fixture: PipelineFixture = plain) -> None:
            with suppress(OpenVersionError):
                committed.extend(compacted(fixture))

        fixture.store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(StreamsemError):
            OTHERS[other](fixture)
        is_done, at = not fixture.store.reached, at + 1
        plain.run("rest", drain=True)
        plain.check()
    assert committed or other == "vacuum"


def test_vacuum_deletes_the_files_of_a_rewrite_that_no_longer_applies(fixture: PipelineFixture) -> None:
    compacted(fixture)
    fixture.run("fix", reprocessed=1)
    compacted(fixture)
    _vacuumed(fixture)
    stored = {int(path.parts[-3]) for path in (fixture.root / "out" / "data").glob("*/*/*")}
    assert stored == {6}, "the second rewrite has all rows, and no readable version needs the files of the commits"
    fixture.run("rest")
    fixture.check()


def test_vacuum_keeps_the_files_of_a_rewrite_that_still_applies_after_a_rollback(fixture: PipelineFixture) -> None:
    fixture.run("wrong")
    rollback(fixture.pipeline(), 3, log=fixture.log())
    fixture.run("right")
    compacted(fixture)
    rollback(fixture.pipeline(), 6, log=fixture.log())
    fixture.arrive(1)
    fixture.run("next")
    rollback(fixture.pipeline(), 6, log=fixture.log())
    assert files(fixture) == [7]
    _vacuumed(fixture)
    fixture.run("next again")
    fixture.check()


def test_segments_give_the_same_view_as_outcomes(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    for number in range(105):
        fixture.arrive(1)
        fixture.run(f"r{number}")
        if number in (40, 60, 97):
            compacted(fixture)
    fixture.run("fix", reprocessed=90)
    opened = fixture.opened()
    assert fixture.store.read("segments/1/0.json") is not None
    assert rows(fixture) == fixture.expected
    compacted(fixture)
    assert files(fixture) == [opened.head]
    fixture.check()


def test_verify_finds_a_missing_file_of_a_rewrite(fixture: PipelineFixture) -> None:
    compacted(fixture)
    Path(fixture.opened().files()[0].path).unlink()
    (violation,) = fixture.verdict().violations
    assert (violation.invariant, violation.version) == ("I6", 4)
