"""The pipeline source: the versions of an upstream that it reads, and the upstreams that it refuses."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, Limits, PipelineSource, SparkEngine, fork, read_committed
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.commitlog.move import move_log
from airflow_provider_streamsem.connectors.pipeline import source as module
from airflow_provider_streamsem.errors import (
    DataError,
    DatasetOwnedError,
    InvalidError,
    LogDamagedError,
    LogMovedError,
    RecordsMissingError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.connectors.pipeline.bronze import Silver, TypedEngine, pair, results
from tests.pipeline_fixture import PipelineFixture


def test_rows_of_each_version_are_read_once_and_a_retry_reads_nothing(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(3)
    first = silver.run("a", drain=True)
    assert silver.run("a", drain=True) == first
    assert [silver.read(version) for version in range(3)] == [[0], [1], [2]]
    bronze.commit()
    silver.run("b", drain=True)
    silver.check()


def test_aborted_and_open_versions_of_the_upstream_have_no_rows(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": Limits()})
    bronze.commit()
    bronze.abort()
    bronze.run("after the abort", drain=True)
    bronze.arrive(1)
    bronze.dies("open")
    assert results(bronze) == ["batch", "abort", "batch", "open"]
    silver.run(drain=True)
    assert silver.opened().view().next == {silver_partition(silver): 3}
    silver.check()
    bronze.run("closes it", drain=True)
    silver.run("later", drain=True)
    silver.check()


def silver_partition(silver: Silver) -> str:
    (name,) = silver.opened().view().next
    return name


def test_range_without_rows_is_committed_without_reading(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.run("a", drain=True)
    bronze.abort()
    engine = TypedEngine()
    result = silver.run("b", drain=True, engine=engine)
    assert (result.counts["read"], engine.staged) == (0, 0)
    silver.check()


def test_upstream_reprocessed_before_it_was_read_is_read_once_with_its_newest_rows(tmp_path: Path) -> None:
    """This holds also if the batch ends below the reprocessing run, whose version is later read without rows."""
    bronze, silver = pair(tmp_path)
    bronze.commit(3)
    bronze.correct(0)
    second = bronze.correct(0, by=2_000)
    silver.run("single")
    assert silver.read(0) == [second]
    silver.run("rest", drain=True)
    assert silver.visible() == bronze.visible() == Counter([2_000, 2_001, 2_002, *range(3, 9)])
    silver.check()


@pytest.mark.parametrize("limits", [Limits(max_rows=7), Limits(max_files=2), Limits(max_bytes=70)], ids=str)
def test_limits_count_the_rows_and_files_of_the_upstream(tmp_path: Path, limits: Limits) -> None:
    bronze, silver = pair(tmp_path, changes={"limits": limits})
    bronze.commit(5)
    result = silver.run(drain=True)
    assert result.batches == 3
    silver.check()


def test_batch_reads_at_most_the_maximum_number_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VERSIONS", 2)
    bronze, silver = pair(tmp_path, changes={"limits": Limits()})
    bronze.commit(5)
    assert silver.run(drain=True).batches == 3
    silver.check()


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_versions_are_read_through_segments_as_without_them(tmp_path: Path, missing: int | None) -> None:
    """Reprocessing runs in later segments replace read and unread versions, and earlier reprocessing runs."""
    bronze, silver = pair(tmp_path, on_reprocess="reprocess")
    bronze.commit(4)
    silver.run("first")
    bronze.commit(3)
    bronze.correct(3)
    bronze.commit(100)
    bronze.correct(0)
    bronze.correct(3, by=2_000)
    bronze.commit(120)
    if missing is not None:
        bronze.store.delete(f"segments/1/{missing}.json")
    silver.run("single")
    silver.run("rest", drain=True, pipeline=silver.pipeline(limits=Limits(max_files=60)))
    silver.check()


def test_planning_a_batch_of_a_long_log_reads_segments_and_not_each_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze, silver = pair(tmp_path)
    bronze.arrive(305)
    bronze.run(drain=True)
    counting = CountingStore(bronze.store)
    monkeypatch.setattr("airflow_provider_streamsem.commitlog.log.open_store", lambda url: counting if url == bronze.store.url else open_store(url))  # fmt: skip
    silver.planner().slice({}, silver.planner().poll(None), Limits(max_rows=3), None, on_data_loss="fail")
    assert counting.requests["read"] < 140


@pytest.mark.parametrize(
    ("starting", "first"), [("earliest", 0), ("latest", 3), (2, 2), ("2999-01-01T00:00:00Z", 3), ("1970-01-01T00:00:00Z", 0)]
)  # fmt: skip
def test_new_pipeline_starts_at_the_given_version(tmp_path: Path, starting: str | int, first: int) -> None:
    bronze, silver = pair(tmp_path, starting=starting)
    bronze.commit(3)
    assert [*silver.pipeline().source.initial_offsets().values()] == [first]


def test_start_above_the_next_version_is_refused(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, starting=4)
    bronze.commit(3)
    with pytest.raises(InvalidError, match="starting"):
        silver.run()


def test_correction_of_a_version_below_the_start_is_not_read(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path, starting=1)
    bronze.commit(2)
    silver.run("a", drain=True)
    bronze.correct(0)
    silver.run("b", drain=True)
    assert silver.visible() == Counter(range(3, 6))


@pytest.mark.parametrize("was_planned", [False, True])
def test_missing_file_of_the_upstream_fails_the_run_by_version_and_file(tmp_path: Path, was_planned: bool) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(2)
    if was_planned:
        silver.dies()
    file = bronze.opened().files()[0]
    Path(file.path).unlink()
    with pytest.raises(RecordsMissingError if was_planned else SourceChangedError) as raised:
        silver.run()
    assert raised.value.fields["version"] == 0
    assert str(raised.value.fields["file"]) in file.path
    assert raised.value.fields["upstream"] == bronze.store.url
    assert silver.opened().head == -1


@pytest.mark.parametrize("was_planned", [False, True])
def test_missing_file_becomes_a_gap_of_its_version_on_request(tmp_path: Path, was_planned: bool) -> None:
    bronze, silver = pair(tmp_path, changes={"on_data_loss": "record_gap"})
    bronze.commit(2)
    if was_planned:
        silver.dies()
    Path(bronze.opened().files()[0].path).unlink()
    silver.run("drain", drain=True)
    assert silver.visible() == Counter(range(3, 6))
    bronze.correct(0)
    silver.run("after a correction of the gap", drain=True)
    assert silver.visible() == Counter(range(3, 6))
    assert silver.verdict().violations == []


def test_changed_file_of_a_plan_fails_the_run_though_its_size_is_the_same(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.dies()
    path = Path(bronze.opened().files()[0].path)
    path.write_text(path.read_text().replace("0", "7"))
    with pytest.raises(RecordsMissingError, match="changed"):
        silver.run()


def test_file_that_changes_while_it_is_read_fails_the_attempt(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    path = Path(bronze.opened().files()[0].path)
    engine = TypedEngine(lambda step: step == "staged" and path.write_text(path.read_text().replace("0", "7")))
    with pytest.raises(RecordsMissingError, match="changed"):
        silver.run(engine=engine)


def test_vacuum_of_the_upstream_deletes_no_file_that_a_plan_needs(tmp_path: Path) -> None:
    """The plan pins the rows before a correction, and vacuum keeps what earlier versions show."""
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.dies()
    bronze.dies("loses", reprocessed=0)
    bronze.correct(0)
    vacuum(bronze.pipeline(), log=bronze.log(), all_versions=True)
    silver.run()
    assert silver.visible() == Counter(range(3))


def test_recreated_upstream_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.run("a", drain=True)
    bronze.store.objects.clear()
    shutil.rmtree(bronze.root / "out")
    bronze.run("again", drain=True)
    bronze.commit(2)
    with pytest.raises(SourceChangedError, match="recreated"):
        silver.run("b")
    assert silver.opened().head == 0


def test_upstream_recreated_under_an_open_plan_is_refused(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.dies()
    bronze.store.objects.clear()
    shutil.rmtree(bronze.root / "out")
    bronze.run("again", drain=True)
    with pytest.raises(SourceChangedError, match="recreated"):
        silver.run()


@pytest.mark.parametrize("grows", [False, True], ids=["shorter", "grown again"])
def test_upstream_restored_from_an_older_copy_is_refused(tmp_path: Path, grows: bool) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    before = dict(bronze.store.objects)
    bronze.commit()
    silver.run("a", drain=True)
    bronze.store.objects.clear()
    bronze.store.objects.update(before)
    if grows:
        bronze.run("another", drain=True)
        bronze.commit()
    with pytest.raises(SourceChangedError, match="older copy"):
        silver.run("b")


def test_reading_continues_at_the_new_location_of_a_moved_upstream(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.run("a", drain=True)
    moved = open_memory_store(f"moved-{tmp_path.name}")
    moved.objects.clear()
    old, new = bronze.log(), bronze.log(moved)
    move_log(old, new)
    with pytest.raises(LogMovedError, match="moved-"):
        silver.run("b")
    bronze.store = new.store
    bronze.commit()
    silver.run("c", drain=True)
    silver.check()


def test_fork_of_the_upstream_is_another_upstream(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.run("a", drain=True)
    forked = bronze.pipeline(log=f"memory://fork-{tmp_path.name}", sinks={"out": FilesSink(path=str(tmp_path / "fork"), format="json")})  # fmt: skip
    open_memory_store(f"fork-{tmp_path.name}").objects.clear()
    fork(forked, bronze.store.url, version=0)
    bronze.arrive(1)
    bronze.store = open_memory_store(f"fork-{tmp_path.name}")
    bronze.run("fork", pipeline=forked)
    with pytest.raises(SourceChangedError, match="another upstream"):
        silver.run("b")


def test_forked_downstream_continues_with_the_next_version(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit(2)
    silver.run("a", drain=True)
    forked = silver.pipeline(log=f"memory://fork-{tmp_path.name}", sinks={"out": FilesSink(path=str(tmp_path / "fork"), format="json")})  # fmt: skip
    open_memory_store(f"fork-{tmp_path.name}").objects.clear()
    fork(forked, silver.log(), version=0)
    silver.store = open_memory_store(f"fork-{tmp_path.name}")
    silver.run("fork", pipeline=forked, drain=True)
    assert silver.visible() == Counter(range(3, 6))


def test_dataset_of_another_log_is_not_read(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    mark = tmp_path / "bronze" / "out" / "_streamsem.json"
    mark.write_text(json.dumps(json.loads(mark.read_bytes()) | {"pipeline_uuid": "f" * 32}))
    with pytest.raises(DatasetOwnedError):
        silver.run()


def test_upstream_without_a_version_is_awaited(tmp_path: Path) -> None:
    bronze, silver = pair(tmp_path)
    with pytest.raises(UnavailableError, match="no version") as raised:
        silver.run()
    assert raised.value.retryable
    bronze.commit()
    silver.run(drain=True)
    silver.check()


def test_upstream_with_several_sinks_needs_the_name_of_one(tmp_path: Path) -> None:
    sinks = {
        "out": FilesSink(path=str(tmp_path / "bronze" / "out"), format="json"),
        "more": FilesSink(path=str(tmp_path / "bronze" / "more"), format="json"),
    }
    bronze, silver = pair(tmp_path)
    bronze.arrive(1)
    bronze.run(pipeline=bronze.pipeline(sinks=sinks))
    with pytest.raises(InvalidError, match="several sinks"):
        silver.run()
    with pytest.raises(InvalidError, match="no such sink"):
        silver.run(pipeline=silver.pipeline(source=PipelineSource(log=bronze.store.url, sink="none")))
    silver.source = {"sink": "more"}
    silver.run(drain=True)
    assert silver.visible() == Counter(range(3))
    with pytest.raises(SourceChangedError, match="another sink"):
        silver.run("other", pipeline=silver.pipeline(source=PipelineSource(log=bronze.store.url, sink="out")))


def test_pipeline_cannot_read_its_own_log(tmp_path: Path) -> None:
    _, silver = pair(tmp_path)
    with pytest.raises(InvalidError, match="overlap"):
        silver.pipeline(log=silver.bronze.store.url)


@pytest.mark.parametrize(
    "arguments",
    [
        {"log": "relative"},
        {"sink": ""},
        {"on_reprocess": "again"},
        {"starting": "yesterday"},
        {"starting": -1},
        {"starting": 1.5},
        {"delivery": "twice"},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="location" if "log" in arguments else next(iter(arguments))):
        PipelineSource(**{"log": "/bronze", **arguments})


FORGED = [
    lambda pin: pin | {"outcome": "../../x"},
    lambda pin: pin | {"as_of": -1},
    lambda pin: pin | {"sink": "other"},
    lambda pin: pin | {"versions": pin["versions"] * 2},
    lambda pin: pin | {"versions": [pin["versions"][0] | {"commit": 7}]},
    lambda pin: _with_key(pin, "data/1/0/part.json"),
    lambda pin: _with_key(pin, "../secret.json"),
]


def _with_key(pin: dict[str, Any], key: str) -> dict[str, Any]:
    (version,) = pin["versions"]
    return pin | {"versions": [version | {"files": [version["files"][0] | {"key": key}]}]}


@pytest.mark.parametrize("forge", FORGED)
def test_forged_pin_is_refused(tmp_path: Path, forge: Any) -> None:
    bronze, silver = pair(tmp_path, sink="out")
    bronze.commit()
    silver.run()
    plan = silver.log().plan(0)
    assert plan is not None
    source = silver.pipeline().source
    assert source.read_pins(plan.pins)
    with pytest.raises(LogDamagedError):
        source.read_pins([forge(plan.pins[0])])
    with pytest.raises(LogDamagedError):
        source.read_pins(plan.pins * 2)


class TestGuarantee:
    def test_upstream_with_a_weaker_guarantee_is_refused_until_the_source_names_it(self, tmp_path: Path) -> None:
        from airflow_provider_streamsem import Dedup

        bronze, silver = pair(tmp_path)
        bronze.store = open_store(str(tmp_path / "log"))
        deduplicated = bronze.pipeline(dedup=Dedup(keys=["id"], scope="batch"))
        bronze.arrive(1)
        bronze.run(pipeline=deduplicated)
        with pytest.raises(InvalidError, match="effectively_once"):
            silver.run()
        silver.source = {"delivery": "effectively_once"}
        silver.run(drain=True)
        silver.check()
        with pytest.raises(InvalidError, match="weaker than it requires"):
            silver.pipeline(require="exactly_once")

    def test_spec_without_a_recorded_guarantee_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_provider_streamsem.connectors.pipeline import upstream

        bronze, silver = pair(tmp_path)
        bronze.commit()
        stored = upstream.stored_spec
        monkeypatch.setattr(upstream, "stored_spec", lambda data: {**stored(data), "guarantee": None})
        with pytest.raises(InvalidError, match="recorded no guarantee"):
            silver.run()

    def test_explain_shows_the_upstream_and_its_guarantee(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bronze, _ = pair(tmp_path)
        log = tmp_path / "log"
        toml = tmp_path / "silver.toml"
        toml.write_text(
            f'name = "silver"\nlog = "{tmp_path}/silver-log"\n[source]\ntype = "pipeline"\nlog = "{log}"\n'
            f'[sinks.out]\ntype = "files"\npath = "{tmp_path}/silver"\n'
        )
        assert main(["explain", str(toml)]) == 0
        assert "no version at this location yet" in capsys.readouterr().out
        bronze.arrive(1)
        bronze.store = open_store(str(log))  # type: ignore[assignment]
        bronze.run()
        assert main(["explain", str(toml)]) == 0
        out = capsys.readouterr().out
        assert f"upstream bronze, sink out, {log}: exactly-once" in out

    def test_ignored_corrections_are_a_term_of_the_guarantee(self, tmp_path: Path) -> None:
        from airflow_provider_streamsem import guarantee

        _, silver = pair(tmp_path, on_reprocess="ignore")
        assert guarantee(silver.pipeline()).named == "exactly-once (corrections of the upstream ignored)"


def test_input_of_the_downstream_has_the_name_of_the_output_of_the_upstream(tmp_path: Path) -> None:
    from airflow_provider_streamsem.stores.contract import lineage_name

    bronze, silver = pair(tmp_path)
    bronze.commit()
    assert silver.pipeline().source.lineage({}) == [lineage_name(bronze.pipeline().sinks["out"].location)]


def test_rows_that_spark_reads_are_counted_against_the_log_of_the_upstream(tmp_path: Path, spark: Any) -> None:
    bronze, silver = pair(tmp_path)
    bronze.commit()
    silver.run()
    source = silver.pipeline().source
    plan = silver.log().plan(0)
    assert plan is not None
    loaded = source.load(spark, source.read_pins(plan.pins))
    loaded.check_read(3)
    with pytest.raises(DataError, match="another number of rows"):
        loaded.check_read(2)


def test_sinks_outside_the_log_are_named_as_such(tmp_path: Path) -> None:
    from tests.external_systems import PublishingFixture

    bronze = PublishingFixture(tmp_path / "bronze", store=open_memory_store(f"publishing-{tmp_path.name}"))
    bronze.arrive(1)
    bronze.run()
    with pytest.raises(InvalidError, match="outside its log"):
        PipelineSource(log=bronze.store.url, sink="table").initial_offsets()


def test_versions_of_a_sink_with_pending_publishes_are_read(tmp_path: Path) -> None:
    """A version counts once it is committed: the rows of its files sink are visible."""
    from tests.external_systems import PublishingFixture, TableSink

    bronze = PublishingFixture(tmp_path / "bronze", store=open_memory_store(f"pending-{tmp_path.name}"))
    bronze.arrive(1)
    with TableSink.dying("before publish table"):
        bronze.run()
    silver = Silver(tmp_path / "silver", bronze=bronze, source={"sink": "out"})  # type: ignore[arg-type]
    silver.run(drain=True)
    assert silver.visible() == Counter(range(3))


class TestOnSpark:
    """Bronze and silver write Parquet with Spark."""

    def test_partitions_and_new_columns_of_the_upstream_are_read(self, tmp_path: Path, spark: Any) -> None:
        """The second version has a new column. A version that was read before it is reprocessed with the new column, which is null."""
        bronze = PipelineFixture(tmp_path / "bronze", store=open_store(str(tmp_path / "bronze-log")))
        out = FilesSink(path=str(tmp_path / "bronze" / "out"), partition_by=["half"])
        silver = PipelineFixture(tmp_path / "silver", store=open_store(str(tmp_path / "silver-log")))
        source = PipelineSource(log=bronze.store.url)
        reads = silver.pipeline(source=source, sinks={"out": FilesSink(path=str(tmp_path / "silver" / "out"))})

        def commit(*more: str) -> None:
            bronze.arrive(1)
            columns = ("id", "CASE WHEN id % 2 = 0 THEN 'a/b' END AS half", *more)
            bronze.run(f"{bronze.made}", engine=SparkEngine(), pipeline=bronze.pipeline(transform=lambda frame: frame.selectExpr(*columns), sinks={"out": out}))  # fmt: skip

        commit()
        silver.run("a", engine=SparkEngine(), pipeline=reads)
        commit("id * 10 AS ten")
        silver.run("b", engine=SparkEngine(), pipeline=reads)
        silver.run("fix", engine=SparkEngine(), pipeline=reads, reprocessed=0)
        rows = sorted(read_committed(spark, silver.store.url).collect())
        assert [tuple(row) for row in rows] == [
            (n, None if n % 2 else "a/b", None if n < 3 else n * 10) for n in range(6)
        ]
