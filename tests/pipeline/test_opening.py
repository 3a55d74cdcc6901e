"""Which pipeline spec may run on an existing log and dataset."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, reprocess, rollback, verify
from airflow_provider_streamsem.errors import (
    ConflictError,
    DatasetOwnedError,
    InvalidError,
    LogDamagedError,
)
from airflow_provider_streamsem.pipeline.spec.binding import create_log
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.pipeline_fixture import PipelineFixture


def test_two_logs_over_one_dataset_are_refused(fixture: PipelineFixture, tmp_path: Path) -> None:
    fixture.arrive(1)
    fixture.run("a")
    other = PipelineFixture(tmp_path)
    other.made = fixture.made
    with pytest.raises(DatasetOwnedError, match="the dataset's ownership marker names a log") as caught:
        other.run("b")
    assert (caught.value.fields["pipeline"], caught.value.fields["log"]) == ("world", other.store.url)
    assert caught.value.fields["marked_uuid"] == fixture.opened().record.pipeline_uuid
    assert caught.value.fields["marked_log"] == fixture.store.url
    assert caught.value.do.startswith("correct `log` of the pipeline")
    assert "restore it" in caught.value.do


@pytest.mark.parametrize("call", [rollback, reprocess])
def test_refused_call_on_a_log_without_versions_does_not_determine_where_the_first_run_starts(
    fixture: PipelineFixture, call: Callable[..., object]
) -> None:
    pipeline, log = fixture.pipeline(), fixture.log()
    with pytest.raises(InvalidError, match="no log"):
        call(pipeline, 0, log=log)
    create_log(pipeline, log)
    with pytest.raises(InvalidError):
        call(pipeline, 0, log=log)
    assert log.list_keys("initial_offsets/") == ()


def test_dataset_with_files_of_unknown_origin_is_refused(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    (fixture.root / "out" / "data" / "0").mkdir(parents=True)
    (fixture.root / "out" / "data" / "0" / "x.json").write_text("{}")
    with pytest.raises(ConflictError, match="no ownership marker that names the log"):
        fixture.run("a")
    assert fixture.log().read_pipeline() is None


def test_dataset_without_its_ownership_marker_is_refused(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    (fixture.root / "out" / "_streamsem.json").unlink()
    with pytest.raises(LogDamagedError, match="marker is missing"):
        fixture.run("b")


def test_spec_with_changed_immutable_fields_is_refused_and_the_fields_are_reported(
    fixture: PipelineFixture, tmp_path: Path
) -> None:
    fixture.arrive(1)
    fixture.run("a")
    moved = fixture.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "elsewhere"), format="json")})
    with pytest.raises(ConflictError, match="immutable fields differ"):
        fixture.run("b", pipeline=moved)
    with pytest.raises(ConflictError, match="another name") as renamed:
        fixture.run("b", pipeline=fixture.pipeline(name="other"))
    assert renamed.value.fields["stored"] == "world"
    assert renamed.value.do.startswith("keep the name `stored`")


def test_spec_with_changed_mutable_fields_is_accepted_and_recorded(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    fixture.arrive(1)
    changed = fixture.pipeline(limits=Limits(max_files=7))
    fixture.run("b", pipeline=changed)
    assert fixture.opened().log.outcome(1).spec == changed.spec_sha256  # type: ignore[union-attr]
    assert json.loads(fixture.opened().log.read_spec(changed.spec_sha256))["limits"]["max_files"] == 7


def test_run_refuses_the_log_of_another_pipeline(fixture: PipelineFixture, tmp_path: Path) -> None:
    from airflow_provider_streamsem import run_batch

    with pytest.raises(InvalidError, match="not the pipeline's"):
        run_batch(fixture.pipeline(), run_key="a", log=PipelineFixture(tmp_path / "other").log(), engine=RowsEngine())


def with_wrong_path(fixture: PipelineFixture, *, files: int = 0) -> Pipeline:
    """The pipeline with the path of a directory that holds other files."""
    other = fixture.root / "wrong"
    other.mkdir(exist_ok=True)
    for n in range(files):
        (other / f"{n}.json").write_text('{"id": 999}\n')
    return fixture.pipeline(
        source=FilesSource(path=str(other), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(fixture.root / "wrong out"), format="json")},
    )


def test_source_path_can_be_corrected_while_no_version_is_planned(fixture: PipelineFixture) -> None:
    assert fixture.run("a", pipeline=with_wrong_path(fixture)).status == "empty"
    fixture.arrive(2)
    assert fixture.run("a").counts["read"] == 6
    fixture.check()
    assert not (fixture.root / "wrong out").exists()


def test_crash_with_a_wrong_path_before_the_first_plan_leaves_nothing_for_the_corrected_path(tmp_path: Path) -> None:
    for at in count():
        fixture = PipelineFixture(tmp_path / str(at))
        wrong = with_wrong_path(fixture, files=3)
        store = FaultyStore(fixture.store, at, Fault.CRASH_AFTER)
        with pytest.raises(Crash):
            fixture.run("a", pipeline=wrong, store=store)
        if any(stat.key.startswith("log/") for stat in fixture.store.list("")):
            assert at > 5
            with pytest.raises(ConflictError, match="immutable fields differ"):
                fixture.run("b")
            return
        fixture.arrive(2)
        assert fixture.run("b").ranges == {"files": (0, 2)}
        fixture.check()


def run_and_record(
    results: dict[str, str], fixture: PipelineFixture, name: str, pipeline: Pipeline, store: FaultyStore | None = None
) -> None:
    try:
        results[name] = fixture.run(name, pipeline=pipeline, store=store).status
    except ConflictError as error:
        results[name] = f"refused: planned by {error.fields['planned_by']}"


@pytest.mark.parametrize("fault", [Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER], ids=lambda fault: fault.name)
def test_first_plan_binds_the_log_to_one_of_two_concurrent_specs(tmp_path: Path, fault: Fault) -> None:
    results_of_right = set()
    for at in count():
        fixture = PipelineFixture(tmp_path / str(at))
        fixture.arrive(1)
        wrong = with_wrong_path(fixture, files=3)
        results: dict[str, str] = {}

        right = partial(run_and_record, results, fixture, "right", fixture.pipeline())
        store = FaultyStore(fixture.store, at, fault, other_processes=right)
        run_and_record(results, fixture, "wrong", wrong, store)
        if not store.reached:
            break
        assert sorted(results.values()) in (
            ["committed", "refused: planned by right"],
            ["committed", "refused: planned by wrong"],
        )
        results_of_right.add(results["right"])
        assert verify(fixture.log()).violations == []
    assert len(results_of_right) == 2


def test_first_run_with_a_source_fixes_its_initial_offsets(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = count(10)
    monkeypatch.setattr(FilesSource, "initial_offsets", lambda self: {"files": 0, "latest": next(starts)})
    other = fixture.pipeline(source=FilesSource(path=str(fixture.root / "in"), format="json", schema="id long, x long"))
    for pipeline in (fixture.pipeline(), other, fixture.pipeline()):
        fixture.run("empty", pipeline=pipeline)
    fixture.arrive(1)
    fixture.run("a", pipeline=other)
    plan = fixture.log().plan(0)
    assert plan is not None
    assert plan.initial_offsets == {"files": 0, "latest": 11}
    assert fixture.opened().log.find_head().next == {"files": 1, "latest": 11}


KEYS = [json.dumps([dag, "load", "run", -1], separators=(",", ":")) for dag in ("orders", "orders_v2")]


def identity(rows: object) -> object:
    return rows


def plan_with(fixture: PipelineFixture, run_key: str, transform: Callable[[object], object] | None) -> None:
    fixture.arrive(1)
    fixture.run(run_key, pipeline=fixture.pipeline(transform=transform))


def test_changed_transform_is_logged_when_a_version_is_planned(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plan_with(fixture, "a", None)
    plan_with(fixture, "b", identity)
    (record,) = [r for r in caplog.records if "another spec" in r.message]
    assert record.levelname == "INFO"
    expected = "version 1 is planned with another spec than version 0: transform; transform: '' before, 'tests.pipeline.test_opening:identity' now"
    assert expected in record.message


def test_two_tasks_with_different_specs_are_reported_by_name(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    plan_with(fixture, f"airflow:{KEYS[0]}", None)
    plan_with(fixture, f"airflow:{KEYS[1]}", identity)
    (record,) = [r for r in caplog.records if "two tasks run one pipeline" in r.message]
    assert record.levelname == "WARNING"
    for part in ("version 0 by DAG orders, task load", "version 1 by DAG orders_v2, task load", "transform"):
        assert part in record.message


def test_return_to_an_earlier_spec_is_logged_as_a_warning(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    for run_key, transform in (("a", None), ("b", identity), ("c", None)):
        plan_with(fixture, run_key, transform)
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "is the same as that of version 0" in record.message


def test_spec_in_the_plan_of_a_rollback_is_not_compared(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """The command may read a pipeline without its transform, which is the function of a task."""
    caplog.set_level(logging.INFO)
    plan_with(fixture, "a", identity)
    plan_with(fixture, "b", identity)
    rollback(fixture.pipeline(), 0, log=fixture.log())
    plan_with(fixture, "c", identity)
    assert [r for r in caplog.records if "spec" in r.message] == []


@pytest.mark.parametrize("planner", [KEYS[0], KEYS[1]])
def test_staging_an_open_version_with_another_spec_logs_a_warning_with_the_changed_fields(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture, planner: str
) -> None:
    fixture.arrive(1)
    fixture.dies(f"airflow:{planner}")
    fixture.run(f"airflow:{KEYS[1]}", pipeline=fixture.pipeline(transform=identity))
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    by = " by DAG orders, task load" if planner == KEYS[0] else ""
    assert (
        record.getMessage()
        == f"version 0 was planned{by} with another spec (transform); this process stages it with its own spec"
    )


def test_error_for_a_refused_spec_names_the_version_and_task_that_planned_it(
    fixture: PipelineFixture, tmp_path: Path
) -> None:
    plan_with(fixture, f"airflow:{KEYS[0]}", None)
    moved = fixture.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "moved"), format="json")})
    with pytest.raises(ConflictError) as caught:
        fixture.run("b", pipeline=moved)
    assert caught.value.fields["fields"] == ["sinks.out.path"]
    assert (caught.value.fields["version"], caught.value.fields["planned_by"]) == (0, "DAG orders, task load")
