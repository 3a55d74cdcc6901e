"""Reprocessing replaces the rows of one commit and changes nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import RunResult, reprocess
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    LogDamagedError,
    SourceChangedError,
    StageError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Three committed versions of two files each, and one file that is not read yet."""
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(6)
    fixture.run("run", drain=True)
    fixture.arrive(1)
    return fixture


def marked(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**row, "fixed": True} for row in rows]


def fixed_ids(fixture: PipelineFixture) -> set[int]:
    rows = [json.loads(line) for file in fixture.opened().files() for line in Path(file.path).read_text().splitlines()]
    return {row["id"] for row in rows if row.get("fixed")}


def test_I20_reprocess_replaces_the_rows_of_one_version_with_one_object(fixture: PipelineFixture) -> None:
    result = fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=marked))
    assert (result.status, result.version, result.ranges) == ("committed", 3, {"files": (2, 4)})
    assert fixed_ids(fixture) == set(range(6, 12))
    assert fixture.visible() == Counter(range(18))
    assert fixture.verdict().violations == []
    fixture.run("rest", drain=True)
    fixture.check()


def test_reprocessing_does_not_change_the_offsets(fixture: PipelineFixture) -> None:
    before = fixture.opened().view().next
    fixture.run("fix", reprocessed=0)
    assert fixture.opened().view().next == before
    assert fixture.run("next").ranges == {"files": (6, 7)}
    fixture.check()


def test_I7_earlier_versions_are_unchanged_after_a_reprocess(fixture: PipelineFixture) -> None:
    before = fixture.opened().files(version=2)
    fixture.run("fix", reprocessed=0)
    vacuum(fixture.pipeline(), log=fixture.log())
    assert fixture.opened().files(version=2) == before
    assert all(Path(file.path).exists() for file in before)


def test_reprocessing_of_a_reprocessed_version_replaces_the_newest_reprocessing(fixture: PipelineFixture) -> None:
    for n, expected in enumerate((1, 3, 4)):
        result = fixture.run(f"fix {n}", reprocessed=1)
        outcome = fixture.log().outcome(result.version)
        assert outcome is not None
        assert outcome.replaces == expected
    assert [file.version for file in fixture.opened().files()] == [0, 2, 5]
    assert fixture.verdict().violations == []


def test_repeated_reprocessing_returns_the_same_result_and_stages_nothing(fixture: PipelineFixture) -> None:
    first = fixture.run("fix", reprocessed=1)
    engine = RowsEngine()
    assert fixture.run("fix", reprocessed=1, engine=engine) == first
    assert (engine.staged, fixture.opened().head) == (0, 3)


def test_reprocessing_without_a_run_key_resumes_an_open_run_or_else_starts_another(
    fixture: PipelineFixture,
) -> None:
    fixture.dies("reprocess:1:1", reprocessed=1)
    finished = reprocess(fixture.pipeline(), 1, log=fixture.log(), engine=RowsEngine())
    again = reprocess(fixture.pipeline(), 1, log=fixture.log(), engine=RowsEngine())
    assert (finished.version, again.version) == (3, 4)


def test_I10_aborted_reprocess_changes_nothing(fixture: PipelineFixture) -> None:
    before = fixture.visible()
    fixture.dies("fix", reprocessed=1)
    abort(fixture.log(), fixture.opened().record, 3, reason="the transform is wrong")
    assert fixture.visible() == before
    assert fixture.run("next").ranges == {"files": (6, 7)}
    assert fixture.run("fix", reprocessed=1).version == 5
    fixture.check()


def test_totals_are_net_of_what_reprocessing_runs_replaced(fixture: PipelineFixture) -> None:
    before = fixture.opened().view().counts
    fixture.run("fix", reprocessed=1)
    assert fixture.opened().view().counts == before
    assert fixture.verdict().counts == before


def test_changes_name_what_a_copy_must_add_and_remove(fixture: PipelineFixture) -> None:
    fixture.run("fix", reprocessed=1)
    changes = fixture.opened().changes(since=1)
    assert [f.version for f in changes.added] == [2, 3]
    assert [f.version for f in changes.removed] == [1]
    assert fixture.opened().changes(since=3).added == ()


def test_reprocessing_of_a_version_with_missing_input_is_refused(fixture: PipelineFixture) -> None:
    (fixture.root / "in" / "00002.json").unlink()
    with pytest.raises(SourceChangedError, match=r"00002\.json"):
        fixture.run("fix", reprocessed=1)
    assert fixture.opened().head == 2
    assert fixture.run("next").ranges == {"files": (6, 7)}


def test_open_reprocessing_run_with_missing_input_is_closed_by_the_next_run(fixture: PipelineFixture) -> None:
    before = fixture.visible()
    fixture.dies("fix", reprocessed=1)
    (fixture.root / "in" / "00002.json").unlink()
    assert fixture.run("next").ranges == {"files": (6, 7)}
    assert [v.outcome.result for v in fixture.opened().versions(limit=2) if v.outcome] == ["commit", "abort"]
    assert before <= fixture.visible()
    with pytest.raises(SourceChangedError, match=r"00002\.json"):
        fixture.run("fix", reprocessed=1)
    fixture.check()


def test_failing_reprocessing_run_does_not_stop_other_runs(fixture: PipelineFixture) -> None:
    def fail(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        raise DataError("the transform does not fit")

    before = fixture.visible()
    with pytest.raises(DataError):
        fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=fail))
    (newest,) = fixture.opened().versions(limit=1)
    assert newest.outcome is not None
    assert (newest.outcome.result, "DataError" in newest.outcome.reason) == ("abort", True)
    assert fixture.visible() == before
    assert fixture.run("next").ranges == {"files": (6, 7)}
    fixture.check()


def test_open_reprocessing_run_that_cannot_be_staged_is_closed_by_the_next_run(fixture: PipelineFixture) -> None:
    def fail_for_the_first_version(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        if any(row["id"] < 6 for row in rows):
            raise DataError("the transform does not fit")
        return rows

    before = fixture.visible()
    fixture.dies("fix", reprocessed=0)
    spec = fixture.pipeline(transform=fail_for_the_first_version)
    assert fixture.run("next", pipeline=spec).ranges == {"files": (6, 7)}
    assert [v.outcome.result for v in fixture.opened().versions(limit=2) if v.outcome] == ["commit", "abort"]
    assert before <= fixture.visible()
    fixture.check()


def raising(error: Exception) -> Any:
    def fail(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        raise error

    return fail


@pytest.mark.parametrize("error", [ValueError("the transform is wrong"), StageError("an executor was lost")])
def test_reprocessing_run_whose_attempt_fails_blocks_no_run_and_can_be_retried(
    fixture: PipelineFixture, error: Exception
) -> None:
    before = fixture.visible()
    with pytest.raises(type(error)):
        fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=raising(error)))
    (newest,) = fixture.opened().versions(limit=1)
    assert newest.outcome is not None
    assert (newest.outcome.result, fixture.visible()) == ("abort", before)
    assert fixture.run("next").ranges == {"files": (6, 7)}
    assert fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=marked)).version == 5
    assert fixed_ids(fixture) == set(range(6, 12))
    fixture.check()


@pytest.mark.parametrize("error", [ValueError("the transform is wrong"), StageError("an executor was lost")])
def test_cleared_run_whose_attempt_fails_blocks_no_run_and_can_be_retried(
    fixture: PipelineFixture, error: Exception
) -> None:
    def clear(transform: Any) -> RunResult:
        spec = fixture.pipeline(transform=transform)
        return reprocess_run(spec, run_key="run", request="clear", log=fixture.log(), engine=RowsEngine())

    with pytest.raises(type(error)):
        clear(raising(error))
    assert fixture.run("next").ranges == {"files": (6, 7)}
    assert clear(marked).batches == 3
    assert fixed_ids(fixture) == set(range(18))
    fixture.check()


def test_reprocessing_run_stays_open_if_the_store_does_not_report_a_result(fixture: PipelineFixture) -> None:
    with pytest.raises(UnavailableError):
        fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=raising(UnavailableError("no answer"))))
    assert fixture.run("fix", reprocessed=1).version == 3
    fixture.run("rest")
    fixture.check()


@pytest.mark.parametrize(
    "error",
    [
        StageError("an executor was lost"),
        DataError("the transform does not fit"),
        LogDamagedError("the source cannot read the pins", invariant="R6"),
    ],
)
@pytest.mark.parametrize("reprocessed", [None, 1])
def test_run_that_cannot_close_an_open_version_says_how_to_abort_it(
    fixture: PipelineFixture, reprocessed: int | None, error: StreamsemError
) -> None:
    """A reprocessing run of another run is aborted by the run itself, unless a retry may complete it."""
    fixture.dies("open", reprocessed=reprocessed)
    spec = fixture.pipeline(transform=lambda rows: rows if rows[0]["id"] >= 18 else raising(error)(rows))
    if reprocessed is None:
        spec = fixture.pipeline(transform=raising(error))
    elif not error.retryable:
        assert fixture.run("next", pipeline=spec).ranges == {"files": (6, 7)}
        return
    with pytest.raises(type(error), match=r"streamsem abort PIPELINE\.toml 3 --reason"):
        fixture.run("next", pipeline=spec)
    abort(fixture.log(), fixture.opened().record, 3, reason="as advised")
    assert fixture.run("next").ranges == {"files": (6, 7)}
    fixture.check()


def test_failed_abort_of_a_reprocessing_run_does_not_hide_its_error(fixture: PipelineFixture) -> None:
    class Unreachable(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key == keys.outcome(3):
                raise UnknownResultError("unreachable")
            return super().create(key, data)

    def fail(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        raise DataError("the transform does not fit")

    with pytest.raises(DataError, match="does not fit"):
        fixture.run("fix", reprocessed=1, pipeline=fixture.pipeline(transform=fail), store=Unreachable(fixture.store))
    assert fixture.run("next").ranges == {"files": (6, 7)}
    fixture.check()


def test_run_key_of_another_request_is_refused(fixture: PipelineFixture) -> None:
    first = fixture.run("fix", reprocessed=1)
    assert fixture.run("fix", reprocessed=1) == first
    for other in (0, 2, 9):
        with pytest.raises(InvalidError, match="belongs to another run"):
            fixture.run("fix", reprocessed=other)
    with pytest.raises(InvalidError, match="belongs to another run"):
        fixture.run("fix")
    with pytest.raises(InvalidError, match="belongs to another run"):
        fixture.run("run", reprocessed=1)
    assert fixture.opened().head == first.version
    fixture.run("next")
    fixture.check()


def test_cleared_run_that_was_incomplete_is_completed_and_not_reprocessed(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.dies("late")
    finished = reprocess_run(
        fixture.pipeline(), run_key="late", request="clear 1", log=fixture.log(), engine=RowsEngine()
    )
    assert (finished.version, finished.counts["read"]) == (3, 6)
    assert fixture.opened().head == 3


def test_only_committed_versions_can_be_reprocessed(fixture: PipelineFixture) -> None:
    with pytest.raises(InvalidError, match="not closed"):
        fixture.run("fix", reprocessed=3)
    fixture.dies("next")
    abort(fixture.log(), fixture.opened().record, 3, reason="for the test")
    with pytest.raises(InvalidError, match="abort"):
        fixture.run("fix", reprocessed=3)


def test_whole_run_is_reprocessed_once_for_each_request(fixture: PipelineFixture) -> None:
    first = reprocess_run(
        fixture.pipeline(transform=marked), run_key="run", request="clear 1", log=fixture.log(), engine=RowsEngine()
    )
    assert (first.ranges, first.counts["read"], first.batches, first.version) == ({"files": (0, 6)}, 18, 3, 5)
    assert fixed_ids(fixture) == set(range(18))
    engine = RowsEngine()
    assert (
        reprocess_run(
            fixture.pipeline(transform=marked), run_key="run", request="clear 1", log=fixture.log(), engine=engine
        )
        == first
    )
    assert engine.staged == 0
    assert (
        reprocess_run(
            fixture.pipeline(), run_key="run", request="clear 2", log=fixture.log(), engine=RowsEngine()
        ).version
        == 8
    )
    assert fixed_ids(fixture) == set()
    fixture.run("rest", drain=True)
    fixture.check()


@pytest.mark.slow
def test_reprocessing_runs_give_the_same_files_with_and_without_segments(tmp_path: Path) -> None:
    """The runs reprocess versions of their own segment and of an earlier one, and a version that was reprocessed before."""
    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    fixture.arrive(460)
    pipeline = fixture.pipeline()
    for n in range(230):
        if n in (20, 130, 180, 210, 225):
            fixture.run(f"reprocess {n}", reprocessed={20: 10, 130: 10, 180: 110, 210: 10, 225: 5}[n])
        fixture.run(f"run {n}", pipeline=pipeline)
    head = fixture.opened().head
    with_segments = {at: fixture.opened().files(version=at) for at in (15, 99, 150, 199, head)}
    counts = fixture.opened().view().counts
    assert fixture.verdict().violations == []
    chain = [fixture.log().outcome(v) for v in range(head + 1)]
    assert [o.version for o in chain if o is not None and o.replaces is not None] == [20, 131, 182, 213, 229]
    segments = [stat.key for stat in fixture.store.list("segments/")]
    assert len(segments) == 2
    for key in segments:
        fixture.store.delete(key)
    assert {at: fixture.opened().files(version=at) for at in with_segments} == with_segments
    assert fixture.opened().view().counts == counts
    fixture.check()


class StaleStore(MemoryStore):
    """Lists the versions that existed when ``shown`` was set. Reads are current."""

    shown: MemoryStore | None = None

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        if prefix == keys.LOG and self.shown is not None:
            return self.shown.list(prefix, limit, start_after)
        return super().list(prefix, limit, start_after)


def test_version_of_a_reprocessing_run_is_aborted_although_the_listing_lags(tmp_path: Path) -> None:
    store = StaleStore("memory://stale-listing")
    fixture = PipelineFixture(tmp_path, store=store)
    fixture.arrive(2)
    fixture.run("run")
    fixture.dies("again", reprocessed=0)
    store.shown = MemoryStore(objects={keys.outcome(0): b""})
    log = fixture.log()
    record = log.read_pipeline()
    assert record is not None
    assert abort(log, record, 1, reason="requested").result == "abort"


@pytest.mark.parametrize("missed", [1, 2, 99])
def test_reprocessing_without_a_run_key_replaces_the_rows_although_the_listing_lags(
    tmp_path: Path, missed: int
) -> None:
    """
    The derived run key depends on the head.

    With a stale head, the key could be that of an earlier reprocessing run. The call would then return the result of that run, or refuse an existing version.
    """
    store = StaleStore("memory://stale-listing")
    fixture = PipelineFixture(tmp_path, store=store)
    fixture.arrive(2)
    fixture.run("run")
    first = reprocess(fixture.pipeline(), 0, log=fixture.log(), engine=RowsEngine())
    entries = [stat.key for stat in store.list(keys.LOG)][2 * missed :]
    store.shown = MemoryStore(objects={key: b"" for key in entries})
    again = reprocess(fixture.pipeline(transform=marked), 0, log=fixture.log(), engine=RowsEngine())
    assert (first.version, again.version) == (1, 2)
    store.shown = None
    assert fixed_ids(fixture) == set(range(6))
    fixture.check()
