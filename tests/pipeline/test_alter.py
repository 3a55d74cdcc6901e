"""An alter changes the immutable fields of a pipeline in its log. No record is lost or read twice, and no process mixes the two specs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Dedup, FilesSink, FilesSource, Limits, Pipeline, alter, rollback, run_batch
from airflow_provider_streamsem.errors import ConflictError, InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance import alter as alter_module
from airflow_provider_streamsem.pipeline.maintenance.alter import Alteration
from airflow_provider_streamsem.pipeline.maintenance.fork import fork
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.readers.files import open_log, sink_of
from airflow_provider_streamsem.readers.history import History
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, die

FILES, TABLES = "files", "tables"


def files_sink(fixture: PipelineFixture, name: str) -> FilesSink:
    return FilesSink(path=str(fixture.root / name), format="json")


def with_sinks(fixture: PipelineFixture, *names: str, **sinks: Any) -> Pipeline:
    """The pipeline with files sinks of these names, and with other sinks."""
    return fixture.pipeline(sinks={name: files_sink(fixture, name) for name in names} | sinks)


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Versions 0 and 1 of two files each, and two files that are not read yet."""
    return with_versions(PipelineFixture(tmp_path))


def with_versions(fixture: PipelineFixture, **named: Any) -> PipelineFixture:
    fixture.arrive(4)
    fixture.run("run", drain=True, **named)
    fixture.arrive(2)
    return fixture


def altered(fixture: PipelineFixture, pipeline: Pipeline, *, store: Store | None = None, **named: Any) -> Alteration:
    return alter(pipeline, log=fixture.log(store), **named)


def ids(first: int, stop: int) -> Counter[int]:
    """The ids of some files of the fixture."""
    return Counter(range(first * 3, stop * 3))


def visible_in(fixture: PipelineFixture, sink: str, version: int | None = None) -> Counter[int]:
    found: Counter[int] = Counter()
    for file in open_log(fixture.log()).files(sink=sink, version=version):
        found.update(json.loads(line)["id"] for line in Path(file.path).read_text().splitlines())
    return found


def kinds(result: Alteration) -> dict[str, str]:
    return {change.field: change.kind for change in result.changes}


def test_added_sink_gets_the_rows_of_later_versions(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    result = altered(fixture, pipeline)
    assert (result.version, kinds(result), result.aborted) == (2, {"sinks.more": "added"}, None)
    assert result.guarantee["more"] == (None, "exactly_once")
    fixture.run("next", drain=True, pipeline=pipeline)
    assert (visible_in(fixture, "out"), visible_in(fixture, "more")) == (ids(0, 6), ids(4, 6))
    assert fixture.verdict().violations == []


def test_added_sink_gets_the_rows_of_earlier_versions_by_reprocessing(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    altered(fixture, pipeline)
    fixture.run("next", drain=True, pipeline=pipeline)
    for version in (0, 1):
        fixture.run(f"past {version}", pipeline=pipeline, reprocessed=version)
    assert visible_in(fixture, "out") == visible_in(fixture, "more") == ids(0, 6)
    assert fixture.verdict().violations == []


def test_removed_sink_is_visible_at_earlier_versions_only(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    both = with_sinks(fixture, "out", "more")
    with_versions(fixture, pipeline=both)
    result = altered(fixture, fixture.pipeline())
    assert kinds(result) == {"sinks.more": "removed"}
    fixture.run("next", drain=True, pipeline=fixture.pipeline())
    opened = open_log(fixture.log())
    assert visible_in(fixture, "more", version=1) == ids(0, 4)
    assert {file.sink for file in opened.files(version=1)} == {"out", "more"}
    assert {file.sink for file in opened.files()} == {"out"}
    assert sink_of(opened, None, version=3) == "out"
    with pytest.raises(InvalidError, match="several sinks"):
        sink_of(opened, None, version=1)
    with pytest.raises(InvalidError, match="no such sink"):
        opened.files(sink="more")
    fixture.check()


def test_reprocessing_run_after_the_removal_keeps_earlier_rows_of_the_removed_sink(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with_versions(fixture, pipeline=with_sinks(fixture, "out", "more"))
    altered(fixture, fixture.pipeline())
    fixture.run("fix", pipeline=fixture.pipeline(), reprocessed=0)
    vacuum(fixture.pipeline(), log=fixture.log(), all_versions=True)
    assert visible_in(fixture, "more", version=1) == ids(0, 4)
    fixture.run("next", drain=True, pipeline=fixture.pipeline())
    fixture.check()


def test_changed_location_is_a_new_dataset(fixture: PipelineFixture) -> None:
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere")})
    assert kinds(altered(fixture, pipeline)) == {"sinks.out": "replaced"}
    fixture.run("next", drain=True, pipeline=pipeline)
    assert (visible_in(fixture, "out"), visible_in(fixture, "out", version=1)) == (ids(4, 6), ids(0, 4))
    assert fixture.verdict().violations == []


def test_moved_dataset_keeps_all_rows_visible(fixture: PipelineFixture) -> None:
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere")})
    shutil.copytree(fixture.root / "out", fixture.root / "elsewhere")
    assert kinds(altered(fixture, pipeline, moved=["out"])) == {"sinks.out": "moved"}
    shutil.rmtree(fixture.root / "out")
    fixture.run("next", drain=True, pipeline=pipeline)
    fixture.run("fix", pipeline=pipeline, reprocessed=1)
    assert visible_in(fixture, "out", version=1) == ids(0, 4)
    fixture.check()


def test_moved_dataset_that_lacks_a_file_is_refused(fixture: PipelineFixture) -> None:
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere")})
    shutil.copytree(fixture.root / "out", fixture.root / "elsewhere")
    next((fixture.root / "elsewhere" / "data").rglob("*.json")).unlink()
    with pytest.raises(InvalidError, match="missing at the new path"):
        altered(fixture, pipeline, moved=["out"])
    assert fixture.opened().head == 1


def test_moved_must_name_a_sink_with_another_location(fixture: PipelineFixture) -> None:
    with pytest.raises(InvalidError, match="does not have"):
        altered(fixture, with_sinks(fixture, "out"), moved=["other"])
    with pytest.raises(InvalidError, match="unchanged"):
        altered(fixture, with_sinks(fixture, "out", "more"), moved=["out"])


def test_dataset_that_was_moved_and_then_replaced_is_read_where_it_was_moved_to(fixture: PipelineFixture) -> None:
    shutil.copytree(fixture.root / "out", fixture.root / "moved")
    moved = fixture.pipeline(sinks={"out": files_sink(fixture, "moved")})
    altered(fixture, moved, moved=["out"])
    shutil.rmtree(fixture.root / "out")
    fixture.run("next", pipeline=moved)
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere")})
    altered(fixture, pipeline)
    for version, read in ((1, ids(0, 4)), (3, ids(0, 6)), (4, Counter())):
        assert visible_in(fixture, "out", version=version) == read


def test_changes_remove_the_files_of_a_replaced_sink(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with_versions(fixture, pipeline=with_sinks(fixture, "out", "more"))
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere"), "more": files_sink(fixture, "more")})
    altered(fixture, pipeline)
    fixture.run("next", pipeline=pipeline)
    fixture.run("fix", reprocessed=0, pipeline=pipeline)
    opened = open_log(fixture.log())
    for since in (-1, 1, 2):
        copy = {(file.version, file.path) for file in opened.files(version=since)}
        changes = opened.changes(since=since)
        copy -= {(file.version, file.path) for file in changes.removed}
        copy |= {(file.version, file.path) for file in changes.added}
        assert copy == {(file.version, file.path) for file in opened.files()}


def test_dataset_of_another_log_is_refused(fixture: PipelineFixture, tmp_path: Path) -> None:
    other = PipelineFixture(tmp_path / "other")
    other.arrive(1)
    other.run()
    pipeline = with_sinks(fixture, "out", more=FilesSink(path=str(other.root / "out"), format="json"))
    with pytest.raises(ConflictError, match="belongs to another pipeline or log"):
        altered(fixture, pipeline)
    assert fixture.opened().head == 1


def test_dedup_that_is_added_starts_without_ids(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    with_versions(fixture)
    pipeline = fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=86_400))
    assert kinds(altered(fixture, pipeline)) == {"dedup": "added"}
    fixture.run("next", drain=True, pipeline=pipeline)
    outcome = fixture.log().outcome(3)
    assert outcome is not None
    assert sum(layer["rows"] for layer in outcome.state["dedup"]) == 6
    with pytest.raises(InvalidError, match="altered after the version"):
        fixture.run("fix", pipeline=pipeline, reprocessed=1)
    fixture.check()
    result = altered(fixture, fixture.pipeline())
    outcome = fixture.log().outcome(4)
    assert outcome is not None
    assert (kinds(result), outcome.state) == ({"dedup": "removed"}, None)
    fixture.check()


def test_version_from_before_dedup_was_removed_and_added_again_is_not_reprocessed(tmp_path: Path) -> None:
    """The alter dropped the deduplication state, so the ids that later versions wrote are unknown."""
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    dedup = fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=86_400))
    with_versions(fixture, pipeline=dedup)
    altered(fixture, fixture.pipeline())
    altered(fixture, dedup)
    with pytest.raises(InvalidError, match="altered after the version"):
        fixture.run("fix", pipeline=dedup, reprocessed=0)


def test_fields_that_are_not_immutable_need_no_alter(fixture: PipelineFixture) -> None:
    pipeline = fixture.pipeline(limits=Limits(max_files=1))
    result = altered(fixture, pipeline)
    assert (result.version, kinds(result)) == (None, {"limits.max_files": "changed"})
    assert fixture.opened().head == 1
    pipeline = with_sinks(fixture, "out", "more").replace(limits=Limits(max_files=1))
    assert kinds(altered(fixture, pipeline)) == {"sinks.more": "added", "limits.max_files": "changed"}


def test_dry_run_writes_nothing(fixture: PipelineFixture) -> None:
    before = [stat.key for stat in fixture.store.list("")]
    result = altered(fixture, with_sinks(fixture, "out", "more"), dry_run=True)
    assert (result.version, kinds(result)) == (None, {"sinks.more": "added"})
    assert [stat.key for stat in fixture.store.list("")] == before
    assert not (fixture.root / "more").exists()


def test_other_source_is_refused(fixture: PipelineFixture) -> None:
    source = FilesSource(path=str(fixture.root / "elsewhere"), format="json", schema="id long")
    with pytest.raises(InvalidError, match="cannot continue after the committed offsets"):
        altered(fixture, fixture.pipeline(source=source))
    assert fixture.opened().head == 1


def test_version_0_that_is_still_open_is_aborted(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    fixture.dies("first")
    pipeline = with_sinks(fixture, "out", "more")
    assert kinds(altered(fixture, pipeline, dry_run=True)) == {"sinks.more": "added"}
    result = altered(fixture, pipeline)
    assert (result.aborted, result.version) == (0, 1)
    fixture.run("first", pipeline=pipeline)
    assert visible_in(fixture, "more") == ids(0, 2)
    fixture.ran = pipeline
    assert fixture.verdict().violations == []


def test_log_without_a_version_is_refused(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with pytest.raises(InvalidError, match="the log has no version"):
        altered(fixture, fixture.pipeline())
    assert [*fixture.store.list("")] == []


def test_run_with_the_former_spec_is_refused_after_an_alter(fixture: PipelineFixture) -> None:
    altered(fixture, with_sinks(fixture, "out", "more"))
    with pytest.raises(ConflictError, match="immutable fields differ"):
        fixture.run("next")
    assert fixture.opened().head == 2


def test_run_that_was_opened_before_the_alter_plans_nothing_after_it(fixture: PipelineFixture) -> None:
    """The alter is committed between the checks at the start of the run and its plan."""

    class AlteredBeforePlan(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key.endswith(".p.json") and fixture.opened().head == 1:
                altered(fixture, with_sinks(fixture, "out", "more"))
            return super().create(key, data)

    with pytest.raises(ConflictError, match="immutable fields differ"):
        fixture.run("next", store=AlteredBeforePlan(fixture.store))
    assert fixture.opened().head == 2
    pipeline = with_sinks(fixture, "out", "more")
    fixture.run("next", drain=True, pipeline=pipeline)
    assert (visible_in(fixture, "out"), visible_in(fixture, "more")) == (ids(0, 6), ids(4, 6))


def test_run_that_finds_the_open_version_of_its_retry_with_the_new_spec_does_not_stage_it(
    fixture: PipelineFixture,
) -> None:
    """The first try of a task plans at the same time as an alter. The retry has the new spec, and dies before its outcome."""

    class DiesBeforeOutcome(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key.endswith("-3.c.json"):
                raise Crash
            return super().create(key, data)

    new = fixture.pipeline(sinks={"out": files_sink(fixture, "elsewhere")})

    class AlteredAndRetried(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key.endswith("-2.p.json") and fixture.opened().head == 1:
                altered(fixture, new)
                with suppress(Crash):
                    fixture.run("K", pipeline=new, store=DiesBeforeOutcome(fixture.store))
            return super().create(key, data)

    with pytest.raises(ConflictError, match="immutable fields differ"):
        fixture.run("K", store=AlteredAndRetried(fixture.store))
    assert fixture.opened().head == 2
    fixture.run("K", pipeline=new)
    assert visible_in(fixture, "out") == ids(4, 6)
    assert fixture.verdict().violations == []


def test_verify_reports_a_commit_with_other_immutable_fields_than_its_plan(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.dies("next")
    monkeypatch.setattr(
        "airflow_provider_streamsem.pipeline.run.run.check_immutable_config", lambda *given, **named: None
    )
    monkeypatch.setattr(
        "airflow_provider_streamsem.pipeline.spec.binding.check_immutable_config", lambda *given, **named: None
    )
    pipeline = fixture.pipeline(sinks={"out": files_sink(fixture, "out"), "more": files_sink(fixture, "more")})
    (fixture.root / "more").mkdir()
    shutil.copy(fixture.root / "out" / "_streamsem.json", fixture.root / "more")
    fixture.run("next", pipeline=pipeline)
    assert ("I22", 2) in [(found.invariant, found.version) for found in fixture.verdict().violations]


def test_rollback_that_was_opened_before_the_alter_plans_nothing_after_it(fixture: PipelineFixture) -> None:
    class AlteredBeforePlan(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key.endswith(".p.json") and fixture.opened().head == 1:
                altered(fixture, with_sinks(fixture, "out", "more"))
            return super().create(key, data)

    with pytest.raises(ConflictError):
        rollback(fixture.pipeline(), 0, log=fixture.log(AlteredBeforePlan(fixture.store)))
    assert fixture.opened().head == 2


def test_open_version_is_aborted_and_its_records_are_read_with_the_new_spec(fixture: PipelineFixture) -> None:
    fixture.dies("next")
    pipeline = with_sinks(fixture, "out", "more")
    result = altered(fixture, pipeline)
    assert (result.aborted, result.version) == (2, 3)
    fixture.run("next", drain=True, pipeline=pipeline)
    assert (visible_in(fixture, "out"), visible_in(fixture, "more")) == (ids(0, 6), ids(4, 6))
    assert fixture.verdict().violations == []


def test_alter_with_an_equal_spec_does_not_close_an_open_version(fixture: PipelineFixture) -> None:
    fixture.dies("next")
    assert altered(fixture, fixture.pipeline()).aborted is None
    assert fixture.opened().head == 1


def test_alter_from_replaces_only_the_named_spec(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    config = altered(fixture, pipeline, dry_run=True).config
    with pytest.raises(ConflictError) as raised:
        fixture.run("next", pipeline=pipeline)
    assert raised.value.fields["config"] == config
    with pytest.raises(ConflictError, match="does not match the log"):
        altered(fixture, pipeline, alter_from="0" * 12)
    with pytest.raises(InvalidError, match="12 characters"):
        altered(fixture, pipeline, alter_from="0")
    assert altered(fixture, pipeline, alter_from=config).version == 2
    assert altered(fixture, pipeline, alter_from=config).version is None
    with pytest.raises(ConflictError, match="does not match the log"):  # a task of an older version of the DAG
        altered(fixture, fixture.pipeline(), alter_from=config)
    altered(fixture, fixture.pipeline())
    with pytest.raises(ConflictError, match="does not match the log"):  # a retry of the task that altered the pipeline
        altered(fixture, pipeline, alter_from=config)


def test_run_with_alter_from_alters_the_log_first_and_once(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    config = altered(fixture, pipeline, dry_run=True).config
    for run_key in ("next", "next", "later"):
        run_batch(pipeline, run_key=run_key, drain=True, alter_from=config, log=fixture.log(), engine=RowsEngine())
    assert plan_run(pipeline, run_key="later", alter_from=config, log=fixture.log()) is not None
    assert [summary.kind for summary in History(open_log(fixture.log())).summaries(limit=9)] == [
        "batch",
        "alter",
        "batch",
        "batch",
    ]
    assert visible_in(fixture, "more") == ids(4, 6)


def test_run_with_alter_from_creates_a_new_log_without_an_alter(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    run_batch(fixture.pipeline(), run_key="run", alter_from="0" * 12, log=fixture.log(), engine=RowsEngine())
    fixture.check()


def test_rollback_to_a_version_before_an_alter_is_refused(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    altered(fixture, pipeline)
    fixture.run("next", drain=True, pipeline=pipeline)
    with pytest.raises(InvalidError, match="altered after the version"):
        rollback(pipeline, 1, log=fixture.log())
    rollback(pipeline, 2, log=fixture.log())
    assert (visible_in(fixture, "out"), visible_in(fixture, "more")) == (ids(0, 4), Counter())
    fixture.run("again", drain=True, pipeline=pipeline)
    assert (visible_in(fixture, "out"), visible_in(fixture, "more")) == (ids(0, 6), ids(4, 6))
    assert fixture.verdict().violations == []


def test_rollback_commits_an_open_alter_and_does_not_return_to_a_version_before_it(fixture: PipelineFixture) -> None:
    with suppress(Crash):
        altered(fixture, with_sinks(fixture, "out", "more"), store=BeforeOutcome(fixture.store, die))
    with pytest.raises(InvalidError, match="altered after the version"):
        rollback(with_sinks(fixture, "out", "more"), 0, log=fixture.log())
    assert fixture.log().outcome(2).committed  # type: ignore[union-attr]


def test_alter_itself_cannot_be_reprocessed(fixture: PipelineFixture) -> None:
    pipeline = with_sinks(fixture, "out", "more")
    altered(fixture, pipeline)
    with pytest.raises(InvalidError, match="only a committed batch") as raised:
        fixture.run("fix", pipeline=pipeline, reprocessed=2)
    assert raised.value.fields["result"] == "alter"


def test_fork_at_a_version_compares_with_the_spec_of_that_version(fixture: PipelineFixture, tmp_path: Path) -> None:
    both = with_sinks(fixture, "out", "more")
    altered(fixture, both)
    copy = fixture.pipeline(log=str(tmp_path / "fork"), sinks={"out": files_sink(fixture, "fork-out")})
    assert fork(copy, fixture.log(), version=2).offsets == {"files": 4}


@pytest.fixture
def publishing(tmp_path: Path) -> PublishingFixture:
    fixture = PublishingFixture(tmp_path)
    with_versions(fixture)
    return fixture


def table(fixture: PublishingFixture, name: str, database: str) -> TableSink:
    return TableSink(path=str(fixture.root / name), database=str(fixture.root / database))


def test_added_table_gets_later_rows_and_earlier_rows_by_reprocessing(publishing: PublishingFixture) -> None:
    pipeline = publishing.pipeline()
    pipeline = pipeline.replace(sinks={**pipeline.sinks, "new": table(publishing, "new", "outside.db")})
    altered(publishing, pipeline)
    publishing.run("next", drain=True, pipeline=pipeline)
    assert publishing.rows("new") == ids(4, 6)
    for version in (0, 1):
        publishing.run(f"past {version}", pipeline=pipeline, reprocessed=version)
    assert publishing.rows("new") == ids(0, 6)
    publishing.check()


def test_replaced_table_is_empty_and_reprocessing_removes_nothing_from_it(publishing: PublishingFixture) -> None:
    pipeline = publishing.pipeline()
    pipeline = pipeline.replace(sinks={**pipeline.sinks, "table": table(publishing, "other", "other.db")})
    assert kinds(altered(publishing, pipeline)) == {"sinks.table": "replaced"}
    publishing.run("next", drain=True, pipeline=pipeline)
    record = publishing.log().read_pipeline()
    assert record is not None
    removed: list[object] = []
    publish, TableSink.publish = (
        TableSink.publish,
        lambda sink, batch: (  # type: ignore[method-assign]
            removed.append({root: rows.rows for root, rows in batch.replaced.items()})
            if batch.sink == "table"
            else None,
            publish(sink, batch),
        )[1],
    )
    try:
        publishing.run("past", pipeline=pipeline, reprocessed=0)
        publishing.run("past again", pipeline=pipeline, reprocessed=0)
    finally:
        TableSink.publish = publish  # type: ignore[method-assign]
    assert removed == [{}, {0: 6}]
    assert publishing.rows("table") == ids(0, 4)  # the former table is unchanged
    assert publishing.verdict().violations == []


def without_table(fixture: PublishingFixture) -> Pipeline:
    everything = fixture.pipeline()
    return everything.replace(sinks={name: sink for name, sink in everything.sinks.items() if name != "table"})


def test_sink_that_is_added_again_needs_another_name_and_another_location(publishing: PublishingFixture) -> None:
    everything, without = publishing.pipeline(), without_table(publishing)
    altered(publishing, without)
    publishing.run("next", drain=True, pipeline=without)
    with pytest.raises(ConflictError, match="has files of an earlier sink"):
        altered(publishing, everything)
    again = {**without.sinks, "table": table(publishing, "again", "outside.db")}
    with pytest.raises(ConflictError, match="give the sink another name"):
        altered(publishing, without.replace(sinks=again))
    assert publishing.opened().head == 3
    named = without.replace(sinks={**without.sinks, "table_2": table(publishing, "named", "outside.db")})
    assert altered(publishing, named).version == 4


@pytest.mark.parametrize("kind", ["files", "table"])
def test_location_of_a_sink_cannot_be_given_to_a_sink_of_another_type(publishing: PublishingFixture, kind: str) -> None:
    """Vacuum deletes other files of a published sink than of a files sink, so a location keeps the type of its sink."""
    sinks = dict(publishing.pipeline().sinks)
    if kind == "files":
        sinks["table"] = FilesSink(path=str(publishing.root / "table"), format="json")
    else:
        sinks["out"] = TableSink(path=str(publishing.root / "out"), database=publishing.database)
    with pytest.raises(ConflictError, match="has files of an earlier sink"):
        altered(publishing, publishing.pipeline().replace(sinks=sinks))


def test_vacuum_with_the_former_spec_is_refused(fixture: PipelineFixture) -> None:
    altered(fixture, with_sinks(fixture, "out", "more"))
    with pytest.raises(ConflictError, match="immutable fields differ"):
        vacuum(fixture.pipeline(), log=fixture.log())


def test_vacuum_deletes_only_files_of_sinks_to_which_the_version_was_published(publishing: PublishingFixture) -> None:
    """A new sink uses the emptied location of a removed sink. The earlier receipts are of other sinks, so vacuum must keep files there."""
    altered(publishing, without_table(publishing))
    shutil.rmtree(publishing.root / "table" / "data")
    names = {**without_table(publishing).sinks, "other": table(publishing, "table", "other.db")}
    pipeline = without_table(publishing).replace(sinks=names)
    altered(publishing, pipeline)
    kept = publishing.root / "table" / "data" / "0" / publishing.log().closed_version(0)[1].attempt_id / "x"  # type: ignore[operator]
    kept.parent.mkdir(parents=True)
    kept.write_text("a file of the removed sink")
    vacuum(pipeline, log=publishing.log(), all_versions=True)
    assert kept.exists()


def test_pending_publish_is_completed_before_an_alter(publishing: PublishingFixture) -> None:
    pipeline = publishing.pipeline()
    pipeline = pipeline.replace(sinks={**pipeline.sinks, "new": table(publishing, "new", "outside.db")})
    with TableSink.dying("before publish table"):
        publishing.run("next")
    assert altered(publishing, pipeline).version == 3
    publishing.run("later", drain=True, pipeline=pipeline)
    publishing.check()


def test_pending_publish_to_a_removed_table_is_refused_until_it_is_published_or_skipped(
    publishing: PublishingFixture,
) -> None:
    everything = publishing.pipeline()
    without = everything.replace(sinks={name: sink for name, sink in everything.sinks.items() if name != "table"})
    with TableSink.dying("before publish table"):
        publishing.run("next")
    with pytest.raises(ConflictError, match="not published yet to sinks that the given spec lacks"):
        altered(publishing, without)
    skip(everything, 2, sink="table", reason="a test", log=publishing.log())
    assert altered(publishing, without).version == 3


def test_only_the_path_of_a_files_sink_can_be_moved(publishing: PublishingFixture) -> None:
    sinks = publishing.pipeline().sinks
    for name, sink in (
        ("audit", table(publishing, "audit", "copy.db")),
        ("out", table(publishing, "elsewhere", "outside.db")),
        ("out", FilesSink(path=str(publishing.root / "elsewhere"), format="parquet")),
    ):
        with pytest.raises(InvalidError, match="more than the path differs"):
            altered(publishing, publishing.pipeline().replace(sinks={**sinks, name: sink}), moved=[name])
    assert publishing.opened().head == 1


def prepared(root: Path, sinks: str) -> tuple[PipelineFixture, Pipeline, Pipeline]:
    """A fixture with two versions and an open one, its pipeline, and the pipeline after the alter."""
    if sinks == FILES:
        fixture = PipelineFixture(root)
        before = with_sinks(fixture, "out", "old")
        after = with_sinks(fixture, "out", "new")
    else:
        fixture = PublishingFixture(root)
        before = fixture.pipeline()
        replaced = TableSink(path=str(root / "other"), database=str(root / "other.db"))
        after = before.replace(sinks={**before.sinks, "table": replaced})
    with_versions(fixture, pipeline=before)
    fixture.dies("next", pipeline=before)
    return fixture, before, after


def check_after(fixture: PipelineFixture, after: Pipeline) -> None:
    """The given spec is in the log, every record is in the kept sinks once, and the new sinks have the rows of later versions."""
    fixture.run("later", drain=True, pipeline=after)
    assert fixture.verdict().violations == []
    assert visible_in(fixture, "out") == ids(0, 6)
    if isinstance(fixture, PublishingFixture):
        assert fixture.rows("audit") == ids(0, 6)
    else:
        assert visible_in(fixture, "new") == ids(4, 6)
    alters = [s.version for s in History(open_log(fixture.log())).summaries(limit=20) if s.kind == "alter"]
    assert len(alters) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sinks"),
    [*((fault, FILES) for fault in Fault), (Fault.CRASH_AFTER, TABLES), (Fault.LOST_REPLY, TABLES)],
)
def test_repeated_call_completes_an_alter_after_a_fault_at_any_request(
    tmp_path: Path, fault: Fault, sinks: str
) -> None:
    for at in count():
        fixture, _, after = prepared(tmp_path / str(at), sinks)
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            altered(fixture, after, store=store)
        altered(fixture, after)
        check_after(fixture, after)
        if not store.reached:
            assert at >= 12
            return


def runs_with(fixture: PipelineFixture, pipeline: Pipeline) -> None:
    """Continue the interrupted run in another process, which may be refused."""
    with suppress(StreamsemError):
        run_batch(pipeline, run_key="next", drain=True, log=fixture.log(), engine=RowsEngine())


def check_not_mixed(fixture: PipelineFixture, before: Pipeline, after: Pipeline) -> None:
    """No version with the former spec follows one with the new spec, and every record is in the kept sinks once."""
    fixture.run("later", drain=True, pipeline=after)
    assert fixture.verdict().violations == []
    assert visible_in(fixture, "out") == ids(0, 6)
    specs = [fixture.log().closed_version(version)[1].spec for version in range(fixture.opened().head + 1)]
    assert specs == sorted(specs, key=[before.spec_sha256, after.spec_sha256].index)


@pytest.mark.slow
@pytest.mark.parametrize("sinks", [FILES, TABLES])
def test_run_with_the_former_spec_at_any_request_of_an_alter_commits_before_it_or_not_at_all(
    tmp_path: Path, sinks: str
) -> None:
    for at in count():
        fixture, before, after = prepared(tmp_path / str(at), sinks)
        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=partial(runs_with, fixture, before))
        altered(fixture, after, store=store)
        check_not_mixed(fixture, before, after)
        if not store.reached:
            assert at >= 12
            return


@pytest.mark.slow
@pytest.mark.parametrize("sinks", [FILES, TABLES])
def test_alter_at_any_request_of_a_run_never_mixes_two_specs(tmp_path: Path, sinks: str) -> None:
    for at in count():
        fixture, before, after = prepared(tmp_path / str(at), sinks)

        def alters(fixture: PipelineFixture = fixture, after: Pipeline = after) -> None:
            with suppress(ConflictError):  # while a publish to the replaced table is pending
                altered(fixture, after)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=alters)
        with suppress(StreamsemError):
            run_batch(before, run_key="next", drain=True, log=fixture.log(store), engine=RowsEngine())
        altered(fixture, after)
        check_not_mixed(fixture, before, after)
        if not store.reached:
            assert at >= 12
            return


@pytest.mark.slow
def test_concurrent_alters_commit_one_after_the_other(tmp_path: Path) -> None:
    for at in count():
        fixture, _, after = prepared(tmp_path / str(at), FILES)
        other = with_sinks(fixture, "out", "other")
        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=partial(altered, fixture, other))
        altered(fixture, after, store=store)
        newest = other if fixture.log().newest_head().spec == other.spec_sha256 else after
        fixture.run("later", drain=True, pipeline=newest)
        assert fixture.verdict().violations == []
        assert visible_in(fixture, "out") == ids(0, 6)
        if not store.reached:
            assert at >= 12
            return


def test_alter_that_another_process_has_made_first_changes_nothing(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new sink has files of a version that another process has committed since."""
    pipeline = with_sinks(fixture, "out", "extra")
    claim, others = alter_module.claim_dataset, list[Alteration]()

    def after_another(*args: Any, **named: Any) -> None:
        if not others:
            monkeypatch.setattr(alter_module, "claim_dataset", claim)
            others.append(altered(fixture, pipeline))
            run_batch(pipeline, run_key="another", log=fixture.log(), engine=RowsEngine())
        claim(*args, **named)

    monkeypatch.setattr(alter_module, "claim_dataset", after_another)
    result = altered(fixture, pipeline)
    assert (others[0].version, result.version, result.changes) == (2, None, ())
    assert visible_in(fixture, "extra") == ids(4, 6)


def test_any_run_completes_an_alter_whose_process_died(fixture: PipelineFixture) -> None:
    for name in ("former", "new"):
        copy = with_versions(PipelineFixture(fixture.root / name))
        pipeline = with_sinks(copy, "out", "more")
        with suppress(Crash):
            altered(copy, pipeline, store=BeforeOutcome(copy.store, die))
        assert copy.opened().head == 1
        if name == "former":
            with pytest.raises(ConflictError, match="immutable fields differ"):
                copy.run("next", drain=True)
        copy.run("next", drain=True, pipeline=pipeline)
        assert (visible_in(copy, "out"), visible_in(copy, "more")) == (ids(0, 6), ids(4, 6))


def test_segments_hide_the_files_of_removed_sinks(tmp_path: Path) -> None:
    """Segments hide the files of removed sinks, also those of earlier segments."""
    fixture = PipelineFixture(tmp_path, rows_per_file=1, store=MemoryStore(f"memory://segments-{tmp_path.name}"))
    one = Limits(max_files=1)
    both = with_sinks(fixture, "out", "old").replace(limits=one)
    fixture.arrive(130)
    fixture.run("first", drain=True, pipeline=both)
    only = with_sinks(fixture, "out").replace(limits=one)
    altered(fixture, only)
    fixture.arrive(90)
    fixture.run("second", drain=True, pipeline=only)
    opened = open_log(fixture.log())
    assert (len(opened.files(sink="out")), {file.sink for file in opened.files()}) == (220, {"out"})
    assert len(opened.files(sink="old", version=129)) == 130
    assert len(opened.files(sink="out", version=150)) == 150
    assert fixture.verdict().violations == []
