"""Tasks that reprocess, vacuum and verify, Airflow's command group, and a killed task."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    CompactOperator,
    EraseOperator,
    ReprocessOperator,
    VacuumOperator,
    VerifyOperator,
    open_log,
)
from airflow_provider_streamsem.errors import InvalidError, OpenVersionError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.verbs import VERBS
from tests.code_blocks import blocks
from tests.operators.task_calls import context, operator
from tests.pipeline_fixture import PipelineFixture
from tests.releases import since

pytestmark = pytest.mark.airflow

PRODUCTION = Path(__file__).parents[2] / "docs" / "how-to" / "production.md"


def test_reprocess_operator_reprocesses_once_per_run_however_often_its_task_runs(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    from airflow.sdk import Asset

    first = operator(fixture, drain=True).execute(context())
    asset = Asset("orders")
    task = ReprocessOperator(task_id="reprocess", pipeline=fixture.pipeline(), version=0, outlets=[asset])
    task_context = context("reprocess-run")
    reprocessed = task.execute(task_context)
    assert (reprocessed["version"], reprocessed["counts"]["read"]) == (first["version"] + 1, 6)
    assert task_context["outlet_events"][asset].extra == {**reprocessed, "rows": 6, "manifest": reprocessed["outcome"]}
    assert task.execute(context("reprocess-run", try_number=2)) == reprocessed
    again = task.execute(context("another-run"))
    assert again["version"] == reprocessed["version"] + 1
    fixture.check()


def test_version_to_reprocess_may_be_a_template_and_must_be_an_integer(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture).execute(context())
    templated = ReprocessOperator(task_id="reprocess", pipeline=fixture.pipeline(), version="{{ 0 }}")
    assert "version" in templated.template_fields
    templated.version = "0"  # Airflow renders the template to this
    assert templated.execute(context("r2"))["version"] == 1
    templated.version = "newest"
    with pytest.raises(Exception, match="integer"):
        templated.execute(context("r3"))


def test_vacuum_operator_deletes_losing_attempts_and_returns_counts(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    fixture.dies("r", at="staged")
    operator(fixture).execute(context("x"))
    dry_run_result = VacuumOperator(task_id="v", pipeline=fixture.pipeline(), dry_run=True).execute(context())
    assert (dry_run_result["attempts"], dry_run_result["dry_run"]) == (1, True)
    assert (dry_run_result["expired"], dry_run_result["oldest_readable"]) == (0, None)
    result = VacuumOperator(task_id="v", pipeline=fixture.pipeline()).execute(context())
    assert result == {**dry_run_result, "dry_run": False}
    assert VacuumOperator(task_id="v", pipeline=fixture.pipeline()).execute(context())["attempts"] == 0
    assert fixture.verdict().clean


def test_vacuum_operator_returns_the_oldest_readable_version(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture).execute(context())
    fixture.run("fix", reprocessed=0)
    arguments: dict[str, Any] = {"task_id": "v", "pipeline": fixture.pipeline(), "keep_versions": 1, "keep_days": 0}
    dry_run_result = VacuumOperator(**arguments, dry_run=True).execute(context())
    assert (dry_run_result["expired"], dry_run_result["oldest_readable"]) == (1, 1)
    assert VacuumOperator(**arguments).execute(context()) == {**dry_run_result, "dry_run": False}
    again = VacuumOperator(**arguments).execute(context())
    assert (again["attempts"], again["expired"], again["oldest_readable"]) == (0, 0, 1)
    assert fixture.verdict().clean


def test_task_of_the_page_on_production_runs(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture, drain=True).execute(context())
    (code,) = [block for block in blocks(PRODUCTION, "python") if "VacuumOperator" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "production.md", "exec"), names)
    task = names["vacuum"]
    assert (task.keep_versions, task.keep_days, task.retries) == (100, 7, 3)
    task.set_pipeline(fixture.pipeline())
    assert task.execute(context())["expired"] == 0


def test_compact_operator_rewrites_the_files_and_returns_what_it_rewrote(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture, drain=True).execute(context())
    task = CompactOperator(task_id="c", pipeline=fixture.pipeline())
    (done,) = task.execute(context())
    assert {name: done[name] for name in ("sink", "version", "commits", "rows", "files", "new_files")} == {
        "sink": "out",
        "version": 2,
        "commits": 2,
        "rows": 9,
        "files": 2,
        "new_files": 1,
    }
    assert task.execute(context()) == []
    fixture.check()


def waiting_context(first_start: datetime | None) -> dict[str, Any]:
    """The context of a compaction that Airflow has first started at a time; ``None``: that starts now."""
    found = context()
    found["ti"].start_date = datetime.now(timezone.utc)
    found["ti"].get_first_reschedule_date = lambda _: first_start
    return found


@since("3.3", "tasks that are rescheduled and are no sensors")
def test_compaction_that_finds_an_open_version_starts_again_later_and_does_not_fail(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture, drain=True).execute(context())
    fixture.arrive(1)
    fixture.dies("a batch")
    task = CompactOperator(task_id="c", pipeline=fixture.pipeline(), retry_delay=timedelta(seconds=30))
    hours_ago = datetime.now(timezone.utc) - timedelta(minutes=59)
    for first_start in (None, hours_ago):
        with pytest.raises(airflow_exception("AirflowRescheduleException")) as caught:
            task.execute(waiting_context(first_start))
        rescheduled: Any = caught.value
        wait = rescheduled.reschedule_date - datetime.now(timezone.utc)
        assert timedelta(seconds=0) < wait <= timedelta(seconds=30)
    fixture.run("a batch")
    (done,) = task.execute(waiting_context(None))
    assert done["rows"] == 12
    fixture.check()


def test_compaction_that_gets_no_turn_fails_after_its_patience(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture, drain=True).execute(context())
    fixture.arrive(1)
    fixture.dies("a batch")
    task = CompactOperator(task_id="c", pipeline=fixture.pipeline(), patience=timedelta(minutes=10))
    with pytest.raises(OpenVersionError):
        task.execute(waiting_context(datetime.now(timezone.utc) - timedelta(minutes=6)))


def test_dag_of_the_page_on_compaction_loads_and_compacts(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    (code,) = blocks(Path(__file__).parents[2] / "docs" / "how-to" / "compact.md", "python")
    root = fixture.root
    (root / "orders.toml").write_text(
        f'name = "orders"\nlog = "{root}/log"\n[source]\ntype = "files"\npath = "{root}/in"\nformat = "json"\nschema = "id long"\n'
        f'[sinks.out]\ntype = "files"\npath = "{root}/out"\nformat = "json"\n[limits]\nmax_files = 1\n'
    )
    names: dict[str, Any] = {}
    exec(compile(code.replace("/pipelines/", f"{root}/"), "compact.md", "exec"), names)
    (compact,) = names["load"].downstream_list
    names["load"].execute(context())
    (done,) = compact.execute(context())
    assert (done["files"], done["new_files"], done["rows"]) == (3, 1, 9)
    assert fixture.visible() == fixture.expected


def test_dag_of_the_page_on_erasures_erases_the_rows_and_returns_no_value(
    fixture: PipelineFixture, rows_engine: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    operator(fixture, drain=True).execute(context())
    (code,) = blocks(Path(__file__).parents[2] / "docs" / "how-to" / "erase.md", "python")
    root = fixture.root
    (root / "orders.toml").write_text(
        f'name = "world"\nlog = "{fixture.store.url}"\n[source]\ntype = "files"\npath = "{root}/in"\nformat = "json"\nschema = "id long"\n'
        f'[sinks.out]\ntype = "files"\npath = "{root}/out"\nformat = "json"\n[limits]\nmax_files = 2\n'
    )
    names: dict[str, Any] = {}
    exec(compile(code.replace("/pipelines/", f"{root}/").replace("user_id", "id"), "erase.md", "exec"), names)
    (task,) = names["dag"].tasks
    assert task.where == "id = {{ params.user }}"
    task.where = "id IN (4, 1234567)"
    done = task.execute(context())
    assert [(each["sink"], each["rows"]) for each in done["sinks"]] == [("out", 1)]
    assert fixture.visible() == fixture.expected - Counter([4])
    assert "1234567" not in json.dumps(done) + caplog.text


def test_verify_operator_fails_without_a_retry_if_a_visible_file_is_missing(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    operator(fixture, drain=True).execute(context())
    verified = VerifyOperator(task_id="v", pipeline=fixture.pipeline())
    result = verified.execute(context())
    assert (result["versions"], result["rows"]) == (2, {"out": 9})
    assert json.loads(json.dumps(result)) == result
    Path(open_log(fixture.store.url).files()[0].path).unlink()
    with pytest.raises(AirflowFailException, match="streamsem verify"):
        verified.execute(context())


@pytest.mark.parametrize("cls", [CompactOperator, EraseOperator, ReprocessOperator, VacuumOperator, VerifyOperator])
def test_invalid_pipeline_is_reported_when_the_dag_is_parsed(cls: Any) -> None:
    required: dict[Any, dict[str, Any]] = {ReprocessOperator: {"version": 1}, EraseOperator: {"where": "id = 1"}}
    with pytest.raises(InvalidError, match="pipeline"):
        cls(task_id="t", pipeline=5, **required.get(cls, {}))


def test_configured_spark_connection_is_used_if_the_task_names_none(
    fixture: PipelineFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", '{"conn_type": "spark", "host": "spark://h", "port": 7077}')
    assert operator(fixture).engine()._master == "local[*]"
    monkeypatch.setenv("AIRFLOW__STREAMSEM__SPARK_CONN_ID", "my_spark")
    assert operator(fixture).engine()._master == "spark://h:7077"
    assert operator(fixture, spark_master="local[3]").engine()._master == "local[3]"


@pytest.mark.spark
def test_killed_task_cancels_its_spark_jobs_and_commits_nothing(
    fixture: PipelineFixture,
    spark: Any,
) -> None:
    from pyspark.sql import functions as F

    from airflow_provider_streamsem.errors import StageError

    @F.udf("long")
    def slow(value: int) -> int:
        time.sleep(60)
        return value

    task = operator(fixture, pipeline=fixture.pipeline(transform=lambda frame: frame.withColumn("id", slow("id"))))
    failed: list[tuple[BaseException, float]] = []

    def execute() -> None:
        try:
            task.execute(context())
        except BaseException as error:
            failed.append((error, time.monotonic()))

    thread = threading.Thread(target=execute)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 60
    while not tracker.getActiveStageIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.getActiveStageIds(), "the batch never started"
    killed = time.monotonic()
    task.on_kill()
    thread.join(30)
    assert not thread.is_alive()
    (error, at) = failed[0]
    assert isinstance(error, StageError)
    head = open_log(fixture.store.url).log
    assert (head.plan(0) is not None, head.outcome(0)) == (True, None)
    assert at - killed < 20  # far less than the minutes that the jobs would take


@since("3.2", "commands of providers")
def test_airflow_command_group_behaves_like_the_streamsem_command(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    operator(fixture).execute(context())
    process = subprocess.run(
        [sys.executable, "-m", "airflow", "streamsem", "log", fixture.store.url, "--json"],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    document = json.loads(process.stdout[process.stdout.index("{") :])
    assert (document["pipeline"], document["versions"][0]["counts"]["read"]) == ("world", 6)
    refused = subprocess.run(
        [sys.executable, "-m", "airflow", "streamsem", "show", fixture.store.url, "7"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (refused.returncode, "no such version" in refused.stderr) == (2, True)


@pytest.mark.prove
@since("3.2", "commands of providers")
def test_airflow_command_group_finds_connections_of_the_metadata_database(
    fixture: PipelineFixture,
    rows_engine: list[str],
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()
    operator(fixture).execute(context())

    def airflow(*arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments], capture_output=True, text=True, timeout=180, check=False
        )
        assert process.returncode == 0, process.stderr[-2000:]
        return process.stdout

    airflow("connections", "add", "kept_in_the_database", "--conn-type", "streamsem", "--conn-host", str(fixture.root))
    path = fixture.root / "p.toml"
    path.write_text(
        f'name = "log"\nlog_conn_id = "kept_in_the_database"\n[source]\ntype = "files"\npath = "{fixture.root}/in"\nformat = "json"\n'
        f'schema = "id long"\n[sinks.out]\ntype = "files"\npath = "{fixture.root}/out"\nformat = "json"\n'
    )
    shown = airflow("streamsem", "log", str(path), "--json")
    assert json.loads(shown[shown.index("{") :])["pipeline"] == "world"


@pytest.mark.parametrize(
    "operator", [CompactOperator, EraseOperator, ReprocessOperator, VacuumOperator, VerifyOperator]
)
def test_operator_has_the_arguments_and_defaults_of_its_verb(operator: type) -> None:
    verb = next(each for each in VERBS if each.name == operator.__name__.removesuffix("Operator").lower())
    given = {name: each.default for name, each in inspect.signature(operator).parameters.items()}
    shared = {each.name: each.default for each in verb.parameters if each.name in given and not each.required}
    own = {"pipeline", "version", "partition", "where", "patience", "partition_key", "spark_master", "kwargs"}
    assert {*given} - own <= {*shared}
    assert {name: given[name] or None for name in shared} == shared


def test_command_group_imports_no_heavy_modules() -> None:
    code = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules);"
        "from airflow_provider_streamsem.cli.airflow_group import commands; commands();"
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('airflow_provider_streamsem')))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"
