"""The upstream reprocesses versions that were read: refuse, reprocess or ignore; and a crash or a concurrent upstream at every step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    Dedup,
    FilesSink,
    FilesSource,
    KafkaSink,
    Limits,
    Pipeline,
    PipelineSource,
    SparkEngine,
    State,
    alter,
    reprocess,
    rollback,
)
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Job, Produced
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.protocol.view import ClosedHead
from airflow_provider_streamsem.stores import memory
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.connectors.pipeline.bronze import Bronze, Silver, TypedEngine, pair, results
from tests.external_systems import PublishingFixture, TableSink


class StatelessEngine(RowsEngine):
    """Stages the rows of a pipeline with state as if it had none."""

    def stage(self, job: Job, log: CommitLog) -> Produced:
        return super().stage(dataclasses.replace(job, state_settings=None), log)


def read_pair(root: Path, **source: Any) -> tuple[Bronze, Silver]:
    """Both versions of bronze were read by one version of silver each."""
    bronze, silver = pair(root, **source)
    bronze.commit(2)
    silver.run("first", drain=True)
    return bronze, silver


class TestAlter:
    """The upstream replaces the dataset of its sink."""

    def altered(self, bronze: Bronze) -> None:
        bronze.sink = FilesSink(path=str(bronze.root / "elsewhere"), format="json")
        alter(bronze.pipeline(), log=bronze.log())

    def test_pipeline_that_has_read_all_versions_continues_in_the_new_dataset(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        self.altered(bronze)
        bronze.commit(2)
        silver.run("next", drain=True)
        assert silver.visible() == Counter(range(4 * bronze.rows_per_file))
        assert silver.verdict().violations == []

    def test_unread_versions_in_the_former_dataset_are_refused_until_they_are_reprocessed(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.commit(1)
        self.altered(bronze)
        bronze.commit(1)
        with pytest.raises(SourceChangedError, match="replaced the dataset of this sink") as raised:
            silver.run("next", drain=True)
        assert raised.value.fields["versions"] == [2]
        bronze.run("past", reprocessed=2)
        silver.run("next", drain=True)
        assert silver.visible() == Counter(range(4 * bronze.rows_per_file))
        assert silver.verdict().violations == []

    def test_versions_that_were_read_before_are_reprocessed_from_the_former_dataset(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        before = silver.visible()
        self.altered(bronze)
        silver.run("fix", reprocessed=0)
        assert silver.visible() == before

    def test_open_version_reads_the_former_dataset(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.commit(1)
        plan_run(silver.pipeline(), run_key="next", log=silver.log())
        self.altered(bronze)
        silver.run("next")
        assert silver.visible() == Counter(range(3 * bronze.rows_per_file))

    def test_correction_of_some_versions_of_a_batch_names_the_others(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path, changes={"limits": Limits(max_rows=99)}, on_reprocess="reprocess")
        bronze.commit(2)
        silver.run("first", drain=True)
        self.altered(bronze)
        bronze.run("fix 0", reprocessed=0)
        bronze.commit(1)
        with pytest.raises(SourceChangedError, match="only in the former dataset") as raised:
            silver.run("next", drain=True)
        assert raised.value.fields["versions"] == [1]
        bronze.run("fix 1", reprocessed=1)
        silver.run("next", drain=True)
        assert silver.visible() == Counter(range(3 * bronze.rows_per_file))


class TestRollback:
    """The upstream rolls back versions that were read. Their rows are removed, as by a reprocessing run without rows."""

    def test_run_that_refuses_corrections_fails_and_names_its_versions(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.roll_back(0)
        with pytest.raises(SourceChangedError, match="streamsem reprocess") as raised:
            silver.run("next")
        assert raised.value.fields["versions"] == [1]
        silver.run("fix", reprocessed=1)
        assert silver.visible() == Counter(range(3))
        bronze.run("again", drain=True)
        silver.run("next", drain=True)
        silver.check()

    def test_run_that_reprocesses_replaces_its_rows_and_reads_the_new_versions_once(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.roll_back(0)
        bronze.run("again", drain=True)
        silver.run("next", drain=True)
        silver.check()
        silver.run("idle", drain=True)
        silver.check()

    def test_failed_reprocessing_that_no_user_requested_blocks_no_run(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.correct(1)

        def fail(rows: Any) -> Any:
            raise ValueError("the transform is wrong")

        with pytest.raises(ValueError, match="wrong"):
            silver.run("next", pipeline=silver.pipeline(transform=fail))
        assert isinstance(silver.log().newest_head(), ClosedHead)
        silver.run("next", drain=True)
        silver.check()

    @pytest.mark.parametrize("engine", [TypedEngine, pytest.param(SparkEngine, marks=pytest.mark.spark)])
    def test_ids_of_removed_rows_are_no_duplicates_when_they_are_read_again(
        self, tmp_path: Path, engine: Callable[[], Any]
    ) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        silver = Silver(
            tmp_path / "dedup", store=open_store(str(tmp_path / "dedup-log")), bronze=bronze,
            source={"on_reprocess": "reprocess"}, changes={"dedup": Dedup(keys=["id"], rows=10**6)},
        )  # fmt: skip
        silver.run("first", drain=True, engine=engine())
        bronze.roll_back(0)
        bronze.run("again", drain=True)
        silver.run("next", drain=True, engine=engine())
        silver.check()

    def test_run_that_ignores_corrections_fails_because_the_records_arrive_again(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="ignore")
        bronze.roll_back(0)
        bronze.run("again", drain=True)
        with pytest.raises(SourceChangedError, match="streamsem reprocess") as raised:
            silver.run("next", drain=True)
        assert '"ignore"' not in raised.value.do, "the rule is set already"
        silver.run("fix", reprocessed=1)
        silver.run("next", drain=True)
        silver.check()

    @pytest.mark.parametrize("rule", ["refuse", "ignore"])
    def test_pipeline_whose_sinks_cannot_replace_rows_must_start_again(
        self, tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess=rule)
        bronze.roll_back(0)
        monkeypatch.setattr(Pipeline, "sinks_that_cannot_remove_rows", ["out"])
        with pytest.raises(SourceChangedError, match=r"streamsem fork NEW\.toml LOG --at 0") as raised:
            silver.run("next")
        assert "streamsem reprocess" not in raised.value.do
        assert ('"ignore"' in raised.value.do) == (rule == "refuse")

    def test_pipeline_with_state_must_be_rolled_back_too(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path)
        silver.changes = {
            "state": State(output_mode="update", partitions=1),
            "transform": lambda rows: rows,
            "rows": "any",
        }
        bronze.commit(2)
        engine = lambda: StatelessEngine()  # noqa: E731
        silver.run("first", drain=True, engine=engine())
        bronze.roll_back(0)
        bronze.run("again", drain=True)
        with pytest.raises(SourceChangedError, match="streamsem rollback PIPELINE 0"):
            silver.run("next", drain=True, engine=engine())
        with pytest.raises(InvalidError, match="reprocessing does not change the state"):
            silver.run("fix", reprocessed=1, engine=engine())
        rollback(silver.pipeline(), 0, log=silver.log())
        silver.run("next", drain=True, engine=engine())
        silver.check()

    def test_versions_that_were_rolled_back_before_they_were_read_have_no_rows(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path)
        bronze.commit(3)
        bronze.roll_back(0)
        bronze.run("again", drain=True)
        bronze.roll_back(4)
        bronze.run("and again", drain=True)
        silver.run("first", drain=True)
        silver.check()


class TestRefuse:
    def test_run_fails_and_names_the_versions_to_reprocess(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.correct(1)
        before = silver.visible()
        with pytest.raises(SourceChangedError, match="streamsem reprocess") as raised:
            silver.run("next")
        assert raised.value.fields["versions"] == [1]
        assert (silver.visible(), silver.opened().head) == (before, 1)

    def test_reprocessing_takes_the_corrected_rows_and_the_next_run_reads_on(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        fixed = bronze.correct(1)
        bronze.commit()
        silver.run("fix", reprocessed=1)
        assert silver.read(2) == [fixed]
        silver.run("next", drain=True)
        silver.check()

    def test_second_correction_is_refused_again(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.correct(1)
        silver.run("fix", reprocessed=1)
        bronze.correct(1, by=2_000)
        with pytest.raises(SourceChangedError):
            silver.run("next")
        silver.run("fix again", reprocessed=1)
        silver.run("next", drain=True)
        silver.check()

    def test_correction_of_an_empty_version_is_found_though_its_plan_has_no_pins(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path)
        bronze.arrive(1)
        nothing = bronze.pipeline(transform=lambda rows: [])
        bronze.run("empty", pipeline=nothing)
        silver.run("first", drain=True)
        bronze.correct(0)
        with pytest.raises(SourceChangedError):
            silver.run("next")
        silver.run("fix", reprocessed=0)
        silver.run("next", drain=True)
        assert silver.visible() == Counter([1_000, 1_001, 1_002])
        silver.check()

    def test_correction_that_removes_all_rows_is_found(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.run("empty", reprocessed=0, pipeline=bronze.pipeline(transform=lambda rows: []))
        with pytest.raises(SourceChangedError):
            silver.run("next")
        silver.run("fix", reprocessed=0)
        silver.run("next", drain=True)
        assert silver.visible() == Counter(range(3, 6))

    def test_correction_before_the_read_is_not_refused(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path)
        bronze.commit(3)
        bronze.correct(0)
        silver.run("single")
        bronze.commit()
        silver.run("rest", drain=True)
        silver.check()

    def test_aborted_correction_changes_nothing(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path)

        def fails(rows: Any) -> Any:
            raise DataError("not these rows")

        with pytest.raises(DataError):
            bronze.run("fails", reprocessed=0, pipeline=bronze.pipeline(transform=fails))
        bronze.commit()
        silver.run("next", drain=True)
        assert results(bronze) == ["batch", "batch", "abort", "batch"]
        silver.check()


class TestReprocess:
    def test_run_reprocesses_outdated_versions_before_it_reads_on(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.correct(0)
        bronze.correct(1)
        bronze.commit()
        result = silver.run("next", drain=True)
        assert results(silver) == ["batch", "batch", "reprocess", "reprocess", "batch"]
        assert result.counts["read"] == 3
        assert silver.unannounced() == []
        silver.check()

    def test_one_version_that_read_several_is_reprocessed_once(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path, on_reprocess="reprocess", changes={"limits": Limits()})
        bronze.commit(3)
        silver.run("first")
        bronze.correct(0)
        bronze.correct(2)
        silver.run("next", drain=True)
        assert results(silver) == ["batch", "reprocess", "batch"]
        silver.check()

    def test_run_reprocesses_nothing_after_a_reprocessing_by_hand(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.correct(0)
        silver.run("fix", reprocessed=0)
        silver.run("next", drain=True)
        assert results(silver) == ["batch", "batch", "reprocess", "batch"]
        silver.check()

    def test_reprocessing_with_a_new_transform_reads_the_same_pins_if_nothing_was_corrected(
        self, tmp_path: Path
    ) -> None:
        bronze, silver = read_pair(tmp_path)
        bronze.commit()
        silver.run("fix", reprocessed=0)
        first, second = silver.log().plan(0), silver.log().plan(2)
        assert first is not None
        assert second is not None
        source = silver.pipeline().source
        assert source.read_pins(first.pins) == source.read_pins(second.pins)

    def test_tables_outside_the_log_get_the_corrected_rows(self, tmp_path: Path) -> None:
        bronze = Bronze(tmp_path / "bronze")
        bronze.commit(2)
        source = PipelineSource(log=bronze.store.url, on_reprocess="reprocess")
        silver = PublishingFixture(tmp_path / "silver")

        def run(key: str) -> None:
            pipeline = silver.pipeline(source=source, limits=Limits())
            silver.run(key, pipeline=pipeline, drain=True)

        run("first")
        bronze.correct(0)
        with TableSink.dying("before publish table"):
            run("dies")
        run("next")
        assert silver.rows("table") == silver.rows("audit") == silver.visible() == bronze.visible()

    def test_corrections_during_a_drain_are_read_or_reprocessed_by_it(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path, on_reprocess="reprocess")
        bronze.commit(3)

        def corrects(step: str) -> None:
            if step == "read" and engine.staged == 2:
                bronze.correct(0)
                bronze.correct(2)

        engine = RowsEngine(corrects)
        silver.run("first", drain=True, engine=engine)
        silver.check()

    def test_second_correction_during_the_reprocessing_of_another_is_reprocessed_too(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.correct(0)
        silver.run("next", drain=True)
        bronze.correct(1)
        bronze.commit(1)

        def corrects_again(step: str) -> None:
            if step == "read" and engine.staged == 1:
                bronze.correct(0)

        engine = RowsEngine(corrects_again)
        silver.run("later", drain=True, engine=engine)
        silver.run("last", drain=True)
        silver.check()

    def test_correction_below_the_start_of_a_new_pipeline_does_not_stop_it(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path, on_reprocess="reprocess", starting=1)
        bronze.commit(2)
        bronze.correct(0)
        silver.run("first", drain=True)
        assert silver.opened().head == 0

    def test_planning_without_staging_leaves_the_correction_to_the_driver(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="reprocess")
        bronze.correct(0)
        assert plan_run(silver.pipeline(), run_key="next", log=silver.log()) is None
        assert silver.opened().head == 1
        silver.run("next", drain=True)
        silver.check()

    def test_ids_of_corrected_rows_leave_the_deduplication_state(self, tmp_path: Path) -> None:
        bronze, silver = pair(tmp_path, on_reprocess="reprocess")
        silver.store = open_store(str(tmp_path / "log"))
        silver.changes = {"dedup": Dedup(keys=["id"], ttl_s=86_400), "log": silver.store.url}
        bronze.commit(2)
        silver.run("first", drain=True)
        bronze.correct(0)
        (bronze.root / "in" / "again.json").write_text('{"id": 0}\n{"id": 3}\n')
        bronze.run("again", drain=True)
        silver.run("next", drain=True)
        assert silver.visible() == Counter([0, 3, 4, 5, 1_000, 1_001, 1_002])

    @pytest.mark.parametrize(
        "changes",
        [
            {"state": State(output_mode="append"), "transform": "a:b"},
            {"sinks": {"topic": KafkaSink("/staged", topic="out", bootstrap_servers="broker:9092")}},
        ],
        ids=["state", "a sink that replaces no rows"],
    )
    def test_pipeline_that_cannot_replace_its_rows_is_refused(self, tmp_path: Path, changes: Any) -> None:
        source = PipelineSource(log="/bronze", on_reprocess="reprocess")
        with pytest.raises(InvalidError, match="on_reprocess"):
            pair(tmp_path)[1].pipeline(source=source, **changes)


class TestIgnore:
    def test_read_rows_are_kept_and_the_next_versions_are_read(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="ignore")
        bronze.correct(0)
        bronze.commit()
        silver.run("next", drain=True)
        assert silver.visible() == Counter(range(9))

    def test_rule_changed_after_ignored_corrections_leaves_them(self, tmp_path: Path) -> None:
        bronze, silver = read_pair(tmp_path, on_reprocess="ignore")
        bronze.correct(0)
        silver.run("next", drain=True)
        silver.source = {"on_reprocess": "refuse"}
        bronze.commit()
        silver.run("later", drain=True)
        assert silver.visible() == Counter(range(9))
        bronze.correct(1)
        with pytest.raises(SourceChangedError):
            silver.run("again")


class TestSeveralSources:
    """Silver reads bronze and files. The pins of the files are unchanged."""

    def test_only_the_corrected_source_takes_new_pins(self, tmp_path: Path) -> None:
        bronze = Bronze(tmp_path / "bronze")
        bronze.commit(2)
        silver = Silver(tmp_path / "silver", bronze=bronze)
        silver.arrive(1)
        sources = {
            "bronze": PipelineSource(log=bronze.store.url, on_reprocess="reprocess"),
            "files": FilesSource(path=str(tmp_path / "silver" / "in"), format="json", schema="id long", hive_partitions=False),
        }  # fmt: skip
        pipeline = silver.pipeline(source=None, sources=sources, transform="a:b")
        assert pipeline.source.on_reprocess == "reprocess"  # type: ignore[attr-defined]
        source: Any = pipeline.source
        planner = source.open(silver.log().under("x/"), None)
        planned = planner.slice(source.initial_offsets(), planner.poll(None), Limits(), None, on_data_loss="fail")
        assert [*source.repin(planned.ranges, {}, planned.pins)] == [*planned.pins]
        fixed = bronze.correct(1)
        again = source.repin(planned.ranges, {}, planned.pins)
        assert [pin.commit for pin in again[0].pins[0].versions] == [0, fixed]
        assert again[1] == planned.pins[1]
        later = planner.slice(
            {name: end for name, (_, end) in planned.ranges.items()}, planner.poll(None), Limits(), planned.hint, on_data_loss="fail"
        )  # fmt: skip
        assert [*later.corrected.values()] == [((1, 2),)]


def corrected(root: Path) -> tuple[Bronze, Silver]:
    """A read version was corrected, and another is unread."""
    bronze, silver = read_pair(root, on_reprocess="reprocess")
    bronze.correct(0)
    bronze.commit()
    return bronze, silver


def stepped(silver: Silver, steps: Steps) -> Callable[[], Any]:
    return lambda: silver.run(
        "run", drain=True, store=StepReportingStore(silver.store, steps), engine=RowsEngine(steps)
    )


def steps_of(tmp_path: Path) -> list[int]:
    """Return the steps of a run after which the stored state differs: the steps of the engine, and each created object."""
    steps = Steps()
    stepped(corrected(tmp_path / "alone")[1], steps)()
    return [
        at for at, step in enumerate(steps.taken) if not step.startswith(("before", "after")) or "after create" in step
    ]


def test_crash_at_every_step_of_a_run_with_a_correction_loses_and_duplicates_no_row(tmp_path: Path) -> None:
    """While the run is dead, the upstream commits and corrects."""
    for at in steps_of(tmp_path):
        bronze, silver = corrected(tmp_path / str(at))
        with pytest.raises(Crash):
            stepped(silver, Steps(at))()
        if at % 3:
            bronze.correct(at % 2, by=5_000)
            bronze.commit()
        silver.run("run", drain=True)
        silver.run("rest", drain=True)
        silver.check()


def test_upstream_that_commits_and_corrects_at_every_step_of_a_run(tmp_path: Path) -> None:
    """The downstream never has rows of a batch from two commits of the upstream, and the next run has the newest rows."""
    for at in steps_of(tmp_path):
        bronze, silver = corrected(tmp_path / str(at))
        taken: list[str] = []

        def step(name: str, at: int = at, bronze: Bronze = bronze, taken: list[str] = taken) -> None:
            taken.append(name)
            if len(taken) == at + 1:
                bronze.correct(0, by=2_000)
                bronze.correct(2, by=3_000)
                bronze.commit()

        stepped(silver, step)()  # type: ignore[arg-type]
        ids = silver.visible()
        assert all(sum(ids[n + by] for by in (0, 1_000, 2_000, 3_000)) <= 1 for n in range(12))
        silver.run("rest", drain=True)
        silver.check()


def test_two_runs_at_every_step_of_a_run_with_a_correction(tmp_path: Path) -> None:
    for at in steps_of(tmp_path):
        _, silver = corrected(tmp_path / str(at))
        taken: list[str] = []

        def step(name: str, at: int = at, silver: Silver = silver, taken: list[str] = taken) -> None:
            taken.append(name)
            if len(taken) == at + 1:
                silver.run("another", drain=True)

        stepped(silver, step)()  # type: ignore[arg-type]
        silver.run("rest", drain=True)
        silver.check()


def test_reprocessing_by_hand_while_the_upstream_corrects_again_stays_outdated(tmp_path: Path) -> None:
    bronze, silver = read_pair(tmp_path)
    bronze.correct(0)

    def again(step: str) -> None:
        if step == "read":
            bronze.correct(0, by=2_000)

    reprocess(silver.pipeline(), 0, log=silver.log(), engine=RowsEngine(again))
    with pytest.raises(SourceChangedError):
        silver.run("next")
    reprocess(silver.pipeline(), 0, log=silver.log(), engine=RowsEngine())
    silver.run("next", drain=True)
    silver.check()


def test_reprocessing_that_died_is_finished_with_the_pins_of_its_plan(tmp_path: Path) -> None:
    bronze, silver = read_pair(tmp_path)
    first = bronze.correct(0)
    silver.dies("fix", reprocessed=0)
    bronze.correct(0, by=2_000)
    with suppress(SourceChangedError):
        silver.run("next")
    assert silver.read(2) == [first]
    assert silver.visible() == Counter([1_000, 1_001, 1_002, 3, 4, 5])


def test_request_whose_reply_the_upstreams_store_lost_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply is lost at every tenth request of a run that finds a correction."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    _, alone = corrected(tmp_path / "alone")
    counting = CountingStore(alone.bronze.store)
    monkeypatch.setitem(memory._OPENED, alone.bronze.store.url.removeprefix("memory://"), counting)
    alone.run("run", drain=True)
    reads = counting.requests["read"] + counting.requests["list"]
    for at in range(0, reads, 10):
        bronze, silver = corrected(tmp_path / str(at))
        store = FaultyStore(bronze.store, at, Fault.LOST_REPLY)
        monkeypatch.setitem(memory._OPENED, bronze.store.url.removeprefix("memory://"), store)
        silver.run("run", drain=True)
        assert store.reached
        monkeypatch.setitem(memory._OPENED, bronze.store.url.removeprefix("memory://"), bronze.store)
        silver.check()
