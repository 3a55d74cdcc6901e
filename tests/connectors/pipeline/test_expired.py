"""The upstream has compacted versions, and its vacuum has deleted their own files: they are read together from the files of the compaction, or not at all."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, Limits, alter, compact
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.pipeline.rewritten import RewrittenBatches, aligned_stop
from airflow_provider_streamsem.connectors.pipeline.source import PipelinePlanner
from airflow_provider_streamsem.errors import InvalidError, OpenVersionError, SourceChangedError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Fault, FaultyStore
from tests.connectors.pipeline.bronze import Bronze, pair

POLL = PipelinePlanner.poll
LATER_MS = 1_700_000_000_000 + 30 * 86_400_000


def compacted(bronze: Bronze) -> None:
    compact(bronze.pipeline(), target_file_bytes=65_536, engine=RowsEngine(), log=bronze.log())


def vacuumed(bronze: Bronze) -> None:
    vacuum(bronze.pipeline(), keep_versions=1, keep_days=0, log=CommitLog(bronze.store, ManualClock(LATER_MS)))


def expired(bronze: Bronze, versions: int) -> None:
    """Commit some versions, compact them with all earlier ones, and let them expire."""
    bronze.commit(versions)
    compacted(bronze)
    vacuumed(bronze)


def rows(versions: int) -> Counter[int]:
    return Counter(range(versions * Bronze.rows_per_file))


@pytest.mark.parametrize("limits", [Limits(), Limits(max_files=1), Limits(max_rows=1)], ids=["none", "files", "rows"])
def test_new_pipeline_reads_expired_versions_in_one_batch_within_any_limits(tmp_path: Path, limits: Limits) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": limits})
    expired(bronze, 3)
    bronze.commit(2)
    silver.run("all", drain=True)
    assert silver.visible() == rows(5)
    assert silver.verdict().violations == []
    first = silver.log().plan(0)
    assert first is not None
    ((start, stop),) = first.ranges.values()
    assert (start, stop) == ((0, 3) if limits.max_files or limits.max_rows else (0, 7))
    silver.run("fix", reprocessed=0)
    assert silver.visible() == rows(5)


def test_unread_versions_that_are_only_in_files_with_read_rows_fail_the_run(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(1)
    silver.run("first")
    expired(bronze, 2)
    with pytest.raises(
        SourceChangedError, match=r"were compacted together with versions that were read.*first=0, last=2"
    ):
        silver.run("next", drain=True)
    assert silver.visible() == rows(1)


def test_unread_versions_that_are_only_in_files_with_read_rows_become_a_gap_on_request(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"on_data_loss": "record_gap"})
    bronze.commit(1)
    silver.run("first")
    expired(bronze, 2)
    bronze.commit(1)
    silver.run("next", drain=True)
    read = rows(4)
    assert silver.visible() == read - (rows(3) - rows(1))
    gaps = [outcome.gaps for n in range(silver.opened().head + 1) if (outcome := silver.log().outcome(n))]
    assert [gap for found in gaps for spans in found.values() for gap in spans] == [(1, 2), (2, 3)]
    assert silver.verdict().violations == []


def test_pipeline_that_has_read_the_versions_continues(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(3)
    silver.run("first", drain=True)
    expired(bronze, 0)
    bronze.commit(1)
    silver.run("next", drain=True)
    assert silver.visible() == rows(4)


def test_plan_whose_files_have_expired_is_planned_again_after_an_abort(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": Limits(max_files=9)})
    bronze.commit(3)
    plan_run(silver.pipeline(), run_key="run", log=silver.log())
    expired(bronze, 0)
    with pytest.raises(SourceChangedError, match="missing or was changed"):
        silver.run("run")
    record = silver.log().read_pipeline()
    assert record is not None
    abort(silver.log(), record, 0, reason="the upstream has expired versions")
    silver.run("run", drain=True)
    assert silver.visible() == rows(3)
    assert silver.verdict().violations == []


def test_reprocessing_of_a_batch_with_a_part_of_a_compaction_is_refused(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(3)
    silver.run("first", drain=True)
    expired(bronze, 0)
    before = silver.opened().head
    with pytest.raises(
        SourceChangedError, match="upstream versions of this version and of others were compacted together"
    ):
        silver.run("fix", reprocessed=1)
    assert silver.visible() == rows(3)
    assert silver.opened().head == before


@pytest.mark.slow
def test_upstream_that_expires_at_any_request_of_a_run(tmp_path: Path) -> None:
    at, is_done = 0, False
    while not is_done:
        bronze, silver = pair(tmp_path / str(at), changes={"limits": Limits(max_files=2)})
        bronze.commit(4)

        def expire(bronze: Bronze = bronze) -> None:
            with suppress(OpenVersionError):
                compacted(bronze)
                vacuumed(bronze)

        store = FaultyStore(silver.store, at, Fault.PAUSE_BEFORE, other_processes=expire)
        try:
            silver.run("run", drain=True, store=store)
            assert silver.visible() == rows(4)
        except StreamsemError:
            assert not silver.visible() - rows(4), "a run fails, and no row is duplicated"
        is_done, at = not store.reached, at + 1
        assert silver.verdict().violations == []


def test_end_of_a_plan_divides_no_compaction() -> None:
    def end(first: int, stop: int, *batches: tuple[int, ...]) -> int:
        rewrites = [RewrittenBatches(90 + n, each, each, ()) for n, each in enumerate(batches)]
        return aligned_stop(rewrites, first, stop)

    assert end(0, 5) == 5
    assert [end(0, stop, (2, 4)) for stop in (1, 2, 3, 4, 5)] == [1, 2, 2, 2, 5]
    assert [end(2, stop, (2, 4)) for stop in (3, 4, 5, 6)] == [5, 5, 5, 6]
    assert [end(0, stop, (1, 4), (3, 6)) for stop in (2, 4, 5, 6, 7)] == [1, 1, 1, 1, 7]
    assert [end(1, stop, (3, 6), (1, 4), (8, 9)) for stop in (2, 5, 7, 9)] == [7, 7, 7, 8]


def test_versions_that_expire_after_the_poll_are_read_from_the_compaction_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for on_data_loss in ("fail", "record_gap"):
        bronze, silver = pair(
            tmp_path / on_data_loss, changes={"on_data_loss": on_data_loss, "limits": Limits(max_files=9)}
        )
        bronze.commit(3)
        polls = list[int]()

        def slow(planner: PipelinePlanner, hint: Any, bronze: Bronze = bronze, polls: list[int] = polls) -> Any:
            end = POLL(planner, hint)
            if not polls:
                expired(bronze, 0)
            polls.append(1)
            return end

        with monkeypatch.context() as patch:
            patch.setattr(PipelinePlanner, "poll", slow)
            silver.run("run", drain=True)
        silver.run("next", drain=True)
        assert silver.visible() == rows(3)
        assert silver.verdict().violations == []


def test_drain_whose_target_divides_a_compaction_ends_and_the_next_run_reads_it(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": Limits(max_files=9)})
    bronze.commit(3)
    plan_run(silver.pipeline(), run_key="run", drain=True, log=silver.log())
    expired(bronze, 3)
    with pytest.raises(SourceChangedError, match="missing or was changed"):
        silver.run("run", drain=True)
    record = silver.log().read_pipeline()
    assert record is not None
    abort(silver.log(), record, 0, reason="the upstream has expired versions")
    with pytest.raises(
        SourceChangedError, match=r"the target of the drain is between upstream versions.*another run key"
    ):
        silver.run("run", drain=True)
    silver.run("next", drain=True)
    assert silver.visible() == rows(6)
    assert silver.verdict().violations == []


def test_batch_that_recorded_the_versions_as_a_gap_is_reprocessed(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"on_data_loss": "record_gap", "limits": Limits(max_files=9)})
    bronze.commit(1)
    silver.run("first")
    expired(bronze, 2)
    bronze.commit(1)
    silver.run("next", drain=True)
    before = silver.visible()
    silver.run("fix", reprocessed=1)
    assert silver.visible() == before


def test_compaction_of_the_upstream_is_no_correction(tmp_path: Path) -> None:
    """The batches of the downstream read one version each, so each has read a part of the compaction."""
    bronze, silver = pair(tmp_path, on_reprocess="refuse")
    bronze.commit(3)
    silver.run("first", drain=True)
    bronze.correct(1)
    with pytest.raises(SourceChangedError, match="reprocess"):
        silver.run("next", drain=True)
    silver.run("fix", reprocessed=1)
    expired(bronze, 0)
    bronze.commit(2)
    silver.run("next", drain=True)
    assert silver.visible() == bronze.visible()


def test_batch_that_read_a_compaction_is_reprocessed_from_the_former_dataset(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": Limits(max_files=9)})
    expired(bronze, 3)
    silver.run("first", drain=True)
    bronze.sink = FilesSink(path=str(bronze.root / "elsewhere"), format="json")
    alter(bronze.pipeline(), log=bronze.log())
    silver.run("fix", reprocessed=0)
    assert silver.visible() == rows(3)


def test_correction_that_the_downstream_can_no_longer_apply_names_the_way_out(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, on_reprocess="reprocess")
    bronze.commit(4)
    silver.run("first", drain=True)
    compact(silver.pipeline(), target_file_bytes=65_536, engine=RowsEngine(), log=silver.log())
    vacuum(silver.pipeline(), keep_versions=1, keep_days=0, log=CommitLog(silver.store, ManualClock(LATER_MS)))
    bronze.correct(1)
    bronze.commit(1)
    with pytest.raises(InvalidError, match='set on_reprocess="ignore" of the source'):
        silver.run("next", drain=True)
    silver.source = {"on_reprocess": "ignore"}
    silver.run("next", drain=True)
    assert silver.visible() == rows(5)
