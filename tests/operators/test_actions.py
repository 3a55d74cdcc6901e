"""Tests of the DAG that performs the actions of the web view: a preview writes nothing, and a confirmed action does what the preview described."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_streamsem import ActionOperator, FilesSink, actions_dag, open_log, rollback
from airflow_provider_streamsem.errors import DataError, InvalidError, OpenVersionError, PublishError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.operators import actions
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag
from airflow_provider_streamsem.web.addresses import ACTION_KEY, ACTION_TASK
from tests.external_systems import PublishingFixture, refusing, run_with_refused_publish
from tests.pipeline_fixture import PipelineFixture
from tests.releases import serialization, store_dag

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("rows_engine")]


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    fixture = PublishingFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(2)
    return fixture


def act(fixture: PipelineFixture, *, pipeline: Any = None, run_id: str = "r", **params: Any) -> dict[str, Any]:
    """Run the task of an action and return its XCom. A failure of the task has its text as ``problem``."""
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="world_actions", task_id=ACTION_TASK, run_id=run_id, map_index=-1, try_number=1, max_tries=0,
        xcom_push=lambda *, key, value: pushed.__setitem__(key, value),
    )  # fmt: skip
    task = ActionOperator(task_id=ACTION_TASK, pipeline=pipeline or fixture.pipeline())
    try:
        task.execute({"ti": ti, "run_id": run_id, "ds": "2024-01-01", "params": params})
    except airflow_exception("AirflowFailException"):
        assert pushed[ACTION_KEY]["problem"]
    else:
        assert pushed[ACTION_KEY]["problem"] is None
    return json.loads(json.dumps(pushed[ACTION_KEY]))


def objects(fixture: PipelineFixture) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(fixture.root.rglob("*")) if path.is_file()}


def preview(fixture: PipelineFixture, **params: Any) -> dict[str, Any]:
    """Return the XCom of a dry run, which writes nothing."""
    before = objects(fixture)
    found = act(fixture, dry_run=True, **params)
    assert objects(fixture) == before
    return found


def confirmed(fixture: PipelineFixture, found: dict[str, Any], **params: Any) -> dict[str, Any]:
    """Run the action that a preview describes, with further params."""
    assert found["confirm"]["dry_run"] is False
    return act(fixture, **{**found["confirm"], **params})


def test_reprocessing_replaces_only_the_versions_of_the_preview(fixture: PublishingFixture) -> None:
    for number in range(3):
        fixture.run(f"r{number}")
        fixture.arrive(1)
    found = preview(fixture, action="reprocess", since="1970-01-01T00:00:00Z")
    assert found["lines"][0] == "3 versions are selected: 0-2"
    fixture.run("more")
    done = confirmed(fixture, found)
    assert [line.split(":")[0] for line in done["lines"]] == ["version 0", "version 1", "version 2"]
    assert [version.plan.work.kind for version in fixture.opened().versions(limit=4)] == ["reprocess"] * 3 + ["batch"]
    fixture.check()


def test_retry_of_a_reprocessing_action_reprocesses_no_version_twice(fixture: PublishingFixture) -> None:
    fixture.run("first")
    first = act(fixture, action="reprocess", versions="0")
    assert act(fixture, action="reprocess", versions="0") == first
    assert fixture.opened().head == 1
    act(fixture, action="reprocess", versions="0", run_id="another")
    assert fixture.opened().head == 2
    fixture.check()


def test_open_version_is_aborted_once(fixture: PublishingFixture) -> None:
    fixture.dies("first")
    found = preview(fixture, action="abort")
    assert "would be aborted" in found["lines"][1]
    done = confirmed(fixture, found, reason="it cannot be parsed")
    assert done["lines"] == ["version 0: aborted: it cannot be parsed"]
    assert confirmed(fixture, found, reason="it cannot be parsed") == done
    assert preview(fixture, action="abort") == {
        "lines": ["no version is open, so there is nothing to abort"], "confirm": None, "problem": None
    }  # fmt: skip
    fixture.run("second")
    fixture.check()


def test_abort_does_nothing_if_the_version_was_committed_first(fixture: PublishingFixture) -> None:
    fixture.dies("first")
    found = preview(fixture, action="abort")
    fixture.run("second")
    assert "an attempt committed it first" in confirmed(fixture, found, reason="late")["lines"][0]
    fixture.check()


@pytest.mark.parametrize("params", [{"version": 0}, {"version": 0, "reason": " "}, {"reason": "why"}])
def test_abort_requires_a_version_and_a_reason(fixture: PublishingFixture, params: dict[str, Any]) -> None:
    fixture.dies("first")
    before = objects(fixture)
    assert "InvalidError" in act(fixture, action="abort", **params)["problem"]
    assert objects(fixture) == before


def test_pending_publish_is_skipped_once(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    found = preview(fixture, action="skip", sinks=["table"])
    assert found["lines"][0] == "version 0: 6 rows for table would not be published"
    done = confirmed(fixture, found, reason="poison")
    assert done["lines"] == ["version 0: sink audit: applied", "version 0: sink table: skipped"]
    assert confirmed(fixture, found, reason="poison") == done
    assert preview(fixture, action="skip")["confirm"] is None
    fixture.arrive(2)
    fixture.run("second")
    assert fixture.rows("audit") == fixture.expected
    assert fixture.rows("table") == Counter(range(6, 12))


def test_vacuum_deletes_what_its_preview_describes(fixture: PublishingFixture) -> None:
    fixture.dies("first", at="staged")
    fixture.run("second")
    found = preview(fixture, action="vacuum")
    assert confirmed(fixture, found)["lines"] == [found["lines"][0].replace("would delete", "deleted")]
    assert preview(fixture, action="vacuum")["confirm"] is None
    fixture.check()


@pytest.fixture
def replaced(fixture: PublishingFixture) -> PublishingFixture:
    """Versions 0 and 1 are batches. Version 2 reprocesses version 0."""
    fixture.run("first")
    fixture.arrive(1)
    fixture.run("second")
    fixture.run("fix", reprocessed=0)
    return fixture


def test_preview_of_a_vacuum_names_the_versions_that_expire_by_it(replaced: PublishingFixture) -> None:
    (published,) = preview(replaced, action="vacuum")["lines"]
    assert published.startswith("would delete 6 attempts"), "staged rows of the two tables"
    found = preview(replaced, action="vacuum", keep_versions=1)
    deleted, expired, meaning, reprocessing, oldest = found["lines"]
    assert deleted.startswith("would delete 7 attempts")
    assert (expired, oldest) == ("versions that would expire: 0-1", "oldest readable version would be: 2")
    assert "cannot be read or rolled back to" in meaning
    assert "cannot be undone" in meaning
    assert "cannot be reprocessed" in reprocessing
    assert found["confirm"]["keep_versions"] == 1
    done = confirmed(replaced, found)
    assert done["lines"][:2] == [deleted.replace("would delete", "deleted"), "expired versions: 0-1"]
    assert replaced.opened().head == 3
    assert (
        confirmed(replaced, found)["lines"][1]
        == "no version has expired: no file is needed only by versions older than those to keep"
    )
    assert replaced.opened().head == 3, "a retry commits no further expiry"
    replaced.check()


def test_days_to_keep_may_be_zero_and_are_those_of_the_preview(
    replaced: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def watched(pipeline: Any, **arguments: Any) -> Any:
        given.append((arguments["keep_versions"], arguments["keep_days"]))
        return vacuum(pipeline, **arguments)

    monkeypatch.setattr(actions, "vacuum", watched)
    found = preview(replaced, action="vacuum", keep_versions=1, keep_days=0)
    confirmed(replaced, found)
    preview(replaced, action="vacuum", keep_versions=2)
    preview(replaced, action="vacuum")
    assert given == [(1, 0), (1, 0), (2, 7), (None, 7)]


def test_preview_of_a_vacuum_names_the_version_that_must_be_closed_first(replaced: PublishingFixture) -> None:
    replaced.arrive(1)
    replaced.dies("third")
    found = preview(replaced, action="vacuum", keep_versions=1)
    assert found["lines"][-1].startswith("version 3 is open. Before it is closed, no version can expire")
    with pytest.raises(OpenVersionError, match="a version is open, so no expiry was planned"):
        confirmed(replaced, found)
    assert replaced.opened().log.newest_head().closed == 2
    replaced.run("third")
    assert "expired versions: 0-2" in confirmed(replaced, found)["lines"], "the newest version is kept"
    replaced.check()


def test_preview_of_a_vacuum_names_the_version_that_must_be_published_first(replaced: PublishingFixture) -> None:
    replaced.arrive(1)
    with refusing("table"), pytest.raises(PublishError):
        replaced.run("third")
    found = preview(replaced, action="vacuum", keep_versions=2)
    assert found["lines"][-1].startswith("version 3 is not published yet. Before that, no version can expire")


def test_alter_applies_only_to_the_fields_that_its_preview_compared(fixture: PublishingFixture) -> None:
    fixture.run("first")
    sinks = fixture.pipeline().sinks
    new = fixture.pipeline(sinks={**sinks, "copy": FilesSink(path=str(fixture.root / "copy"), format="json")})
    found = preview(fixture, action="alter", pipeline=new)
    assert "  sinks.copy: added" in found["lines"][1]
    other = fixture.pipeline(sinks={**sinks, "more": FilesSink(path=str(fixture.root / "more"), format="json")})
    confirmed(fixture, preview(fixture, action="alter", pipeline=other), pipeline=other)
    assert "ConflictError" in confirmed(fixture, found, pipeline=new)["problem"]
    done = confirmed(fixture, preview(fixture, action="alter", pipeline=new), pipeline=new)
    assert done["lines"][0] == "version 2 altered the pipeline"


def test_action_is_refused_if_the_pipeline_has_changed_since_its_preview(fixture: PublishingFixture) -> None:
    fixture.run("first")
    sinks = fixture.pipeline().sinks
    new = fixture.pipeline(sinks={**sinks, "copy": FilesSink(path=str(fixture.root / "copy"), format="json")})
    found = preview(fixture, action="alter", pipeline=new)
    deployed = fixture.pipeline(sinks={"out": sinks["out"]})
    for confirmable, pipeline in ((found, deployed), (preview(fixture, action="reprocess", versions="0"), deployed)):
        done = confirmed(fixture, confirmable, pipeline=pipeline)
        assert "has changed since the preview; nothing was done" in done["problem"]
    assert fixture.opened().head == 0


def test_preview_of_an_alter_names_the_version_that_it_aborts(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.arrive(1)
    fixture.dies("second")
    new = fixture.pipeline(sinks={"out": fixture.pipeline().sinks["out"]})
    assert "version 1 is open and would be aborted" in "\n".join(
        preview(fixture, action="alter", pipeline=new)["lines"]
    )


def test_result_of_a_failed_reprocessing_has_the_versions_that_were_replaced(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.run("first")
    fixture.arrive(1)
    fixture.run("second")
    real = actions.reprocess

    def failing(pipeline: Any, version: int, **arguments: Any) -> Any:
        if version == 1:
            raise DataError("the transform cannot process the rows")
        return real(pipeline, version, **arguments)

    monkeypatch.setattr(actions, "reprocess", failing)
    done = act(fixture, action="reprocess", versions="0-1")
    assert [line.split(":")[0] for line in done["lines"]] == ["version 0"]
    assert "cannot process the rows" in done["problem"]


def test_skip_of_a_rollback_says_which_rows_stay(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.arrive(1)
    fixture.run("second")
    with refusing("table"), pytest.raises(PublishError):
        rollback(fixture.pipeline(), 0, log=fixture.log())
    found = preview(fixture, action="skip", sinks=["table"])
    assert found["lines"][0] == "version 2: the rows that the version removes would stay in table"
    assert "no publish to these sinks is pending" in act(fixture, action="skip", sinks=["tabel"])["problem"]


def test_verification_that_finds_a_violation_fails(fixture: PublishingFixture) -> None:
    fixture.run("first")
    assert act(fixture, action="verify", dry_run=True)["lines"][0].startswith("clean")
    Path(open_log(fixture.store.url).files()[0].path).unlink()
    assert act(fixture, action="verify", log_only=True)["problem"] is None
    found = act(fixture, action="verify")
    assert found["lines"][0].startswith("VIOLATIONS FOUND")


def test_pipeline_with_another_log_is_refused(fixture: PublishingFixture) -> None:
    fixture.dies("first")
    before = objects(fixture)
    found = act(fixture, action="abort", version=0, reason="why", log="s3://another/log")
    assert "another log; nothing was done" in found["problem"]
    assert objects(fixture) == before
    assert act(fixture, action="abort", version=0, reason="why", log=fixture.store.url)["problem"] is None


@pytest.mark.parametrize(
    "params",
    [
        {"action": "drop"},
        {"action": "reprocess"},
        {"action": "reprocess", "versions": "x"},
        {"action": "reprocess", "offsets": ["files"]},
        {"action": "reprocess", "since": "yesterday"},
        {"action": "reprocess", "offsets": ["files=0:1", "files=2:3"]},
        {"action": "vacuum", "versions": "0"},
        {"action": "vacuum", "keep_versions": 0},
        {"action": "vacuum", "keep_versions": "many"},
        {"action": "vacuum", "keep_versions": 1, "keep_days": -1},
        {"action": "vacuum", "keep_days": 7},
        {"action": "verify", "keep_versions": 1},
        {"action": "abort", "version": -1},
        {"action": "abort", "versions": "0", "reason": "why"},
        {"action": "skip", "version": 1, "sinks": ["table"]},
    ],
)
def test_invalid_params_fail_the_task_without_a_retry(fixture: PublishingFixture, params: dict[str, Any]) -> None:
    run_with_refused_publish(fixture)
    before = objects(fixture)
    assert "InvalidError" in act(fixture, **params)["problem"]
    assert objects(fixture) == before


def test_text_of_an_unknown_error_is_not_stored_in_an_xcom(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.run("first")
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda *, key, value: pushed.__setitem__(key, value))

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a value of a record")

    monkeypatch.setattr("airflow_provider_streamsem.operators.actions.vacuum", fail)
    task = ActionOperator(task_id=ACTION_TASK, pipeline=fixture.pipeline())
    with pytest.raises(ValueError, match="a value"):
        task.execute({"ti": ti, "run_id": "r", "ds": "2024-01-01", "params": {"action": "vacuum"}})
    assert pushed[ACTION_KEY]["problem"] == "ValueError. Do: read the log of the task."


def test_dag_has_the_tag_and_the_params_of_its_pipeline(fixture: PublishingFixture) -> None:
    dag = actions_dag(fixture.pipeline(), tags=["lake"])
    stored = json.dumps(serialization().serialize_dag(dag))
    assert dag.dag_id == "world_actions"
    assert '"streamsem:world"' in stored
    assert '"lake"' in stored
    assert (dag.params["keep_versions"], dag.params["keep_days"]) == (None, None), "no version expires by default"
    assert dag.params["dry_run"] is True, "a run that a user triggers without values writes nothing"
    with pytest.raises(InvalidError, match="pipeline"):
        actions_dag(5)  # type: ignore[arg-type]


def test_run_of_the_dag_performs_the_action(fixture: PublishingFixture) -> None:
    initialise_airflow()
    fixture.run("first")
    dag = actions_dag(fixture.pipeline(), dag_id=f"actions-{fixture.root.name}")
    store_dag(dag, __file__)
    assert run_dag(dag, "default").state == "success"
    assert fixture.opened().head == 0
    conf = {"action": "reprocess", "versions": "0", "dry_run": False, "log": fixture.store.url}
    assert run_dag(dag, "first", conf=conf).state == "success"
    assert fixture.opened().head == 1
    assert run_dag(dag, "second", conf={**conf, "log": "s3://another/log"}).state == "failed"
    fixture.check()


def test_dags_in_the_documentation_of_the_web_view_run_a_batch_and_verify_it(tmp_path: Path) -> None:
    initialise_airflow()
    page = (Path(__file__).parents[2] / "docs" / "reference" / "web-view.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    # The engine of this test writes JSON only.
    code = code.replace("s3://", f"{tmp_path}/").replace('"parquet"', '"json"').replace('"@hourly"', "None")
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    (tmp_path / "landing" / "orders" / "a.json").write_text('{"id": 1, "amount": 2.5}\n')
    namespace: dict[str, Any] = {"__name__": "orders_dag"}
    exec(compile(code, "web-view.md", "exec"), namespace)
    for name in ("dag", "actions"):
        store_dag(namespace[name], __file__)
        assert run_dag(namespace[name], "first").state == "success"
    assert namespace["actions"].dag_id == "orders_actions"
    assert open_log(str(tmp_path / "lake" / "logs" / "orders")).view().counts["written.lake"] == 1
