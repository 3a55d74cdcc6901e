"""Redo, vacuum and verify as tasks; the command group of Airflow; a task that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import RedoOperator, VacuumOperator, VerifyOperator, open_log
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from tests.operators.test_airflow import context, operator, rows_engine, world  # noqa: F401
from tests.releases import since
from tests.worlds import World

pytestmark = pytest.mark.airflow


def test_redo_operator_replaces_a_version_once_however_often_its_task_runs(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    from airflow.sdk import Asset

    first = operator(world, drain=True).execute(context())
    asset = Asset("orders")
    made = RedoOperator(task_id="redo", pipeline=world.pipeline(), version=0, outlets=[asset])
    given = context("redo-run")
    redone = made.execute(given)
    assert (redone["version"], redone["counts"]["read"]) == (first["version"] + 1, 6)
    assert given["outlet_events"][asset].extra == {**redone, "rows": 6, "manifest": redone["outcome"]}
    assert made.execute(context("redo-run", try_number=2)) == redone
    again = made.execute(context("another-run"))
    assert again["version"] == redone["version"] + 1
    world.check()


def test_version_of_a_redo_may_be_a_template_and_must_be_a_number(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    operator(world).execute(context())
    templated = RedoOperator(task_id="redo", pipeline=world.pipeline(), version="{{ 0 }}")
    assert "version" in templated.template_fields
    templated.version = "0"  # as Airflow has rendered it
    assert templated.execute(context("r2"))["version"] == 1
    templated.version = "newest"
    with pytest.raises(Exception, match="whole number"):
        templated.execute(context("r3"))


def test_vacuum_operator_deletes_what_lost_and_says_how_much(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    world.dies("r", at="staged")
    operator(world).execute(context("x"))
    said = VacuumOperator(task_id="v", pipeline=world.pipeline(), dry_run=True).execute(context())
    assert (said["attempts"], said["dry_run"]) == (1, True)
    done = VacuumOperator(task_id="v", pipeline=world.pipeline()).execute(context())
    assert done == {**said, "dry_run": False}
    assert VacuumOperator(task_id="v", pipeline=world.pipeline()).execute(context())["attempts"] == 0
    assert world.verdict().clean


def test_verify_operator_fails_without_a_retry_where_a_visible_file_is_gone(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    operator(world, drain=True).execute(context())
    verified = VerifyOperator(task_id="v", pipeline=world.pipeline())
    answer = verified.execute(context())
    assert (answer["versions"], answer["rows"]) == (2, {"out": 9})
    assert json.loads(json.dumps(answer)) == answer
    Path(open_log(world.store.url).files()[0].path).unlink()
    with pytest.raises(AirflowFailException, match="streamsem verify"):
        verified.execute(context())


@pytest.mark.parametrize("cls", [RedoOperator, VacuumOperator, VerifyOperator])
def test_bad_pipeline_is_named_when_the_dag_is_parsed(cls: Any) -> None:
    with pytest.raises(InvalidError, match="pipeline"):
        cls(task_id="t", pipeline=5, **({"version": 1} if cls is RedoOperator else {}))


def test_spark_connection_of_the_configuration_is_used_where_the_task_names_none(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", '{"conn_type": "spark", "host": "spark://h", "port": 7077}')
    assert operator(world).engine()._master == "local[*]"
    monkeypatch.setenv("AIRFLOW__STREAMSEM__SPARK_CONN_ID", "my_spark")
    assert operator(world).engine()._master == "spark://h:7077"
    assert operator(world, spark_master="local[3]").engine()._master == "local[3]"


@pytest.mark.spark
def test_killed_task_cancels_its_spark_jobs_and_decides_nothing(
    world: World,  # noqa: F811
    spark: Any,
) -> None:
    from pyspark.sql import functions as F

    from airflow_provider_streamsem.errors import StageError

    @F.udf("long")
    def slow(value: int) -> int:
        time.sleep(60)
        return value

    made = operator(world, pipeline=world.pipeline(transform=lambda frame: frame.withColumn("id", slow("id"))))
    failed: list[tuple[BaseException, float]] = []

    def execute() -> None:
        try:
            made.execute(context())
        except BaseException as error:
            failed.append((error, time.monotonic()))

    task = threading.Thread(target=execute)
    task.start()
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 60
    while not tracker.getActiveStageIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.getActiveStageIds(), "the batch never began"
    killed = time.monotonic()
    made.on_kill()
    task.join(30)
    assert not task.is_alive()
    (error, at) = failed[0]
    assert isinstance(error, StageError)
    head = open_log(world.store.url).log
    assert (head.plan(0) is not None, head.outcome(0)) == (True, None)
    assert at - killed < 20  # far from the minutes that the jobs would take


@since("3.2", "commands of providers")
def test_airflows_command_group_does_what_the_command_does(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    operator(world).execute(context())
    answer = subprocess.run(
        [sys.executable, "-m", "airflow", "streamsem", "log", world.store.url, "--json"],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    document = json.loads(answer.stdout[answer.stdout.index("{") :])
    assert (document["pipeline"], document["versions"][0]["counts"]["read"]) == ("world", 6)
    refused = subprocess.run(
        [sys.executable, "-m", "airflow", "streamsem", "show", world.store.url, "7"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (refused.returncode, "no such version" in refused.stderr) == (2, True)


@since("3.2", "commands of providers")
def test_airflows_command_group_finds_connections_of_the_metadata_database(
    world: World,  # noqa: F811
    rows_engine: list[str],  # noqa: F811
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()
    operator(world).execute(context())

    def airflow(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments], capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    airflow("connections", "add", "kept_in_the_database", "--conn-type", "streamsem", "--conn-host", str(world.root))
    path = world.root / "p.toml"
    path.write_text(
        f'name = "log"\nlog_conn_id = "kept_in_the_database"\n[source]\ntype = "files"\npath = "{world.root}/in"\nformat = "json"\n'
        f'schema = "id long"\n[sinks.out]\ntype = "files"\npath = "{world.root}/out"\nformat = "json"\n'
    )
    shown = airflow("streamsem", "log", str(path), "--json")
    assert json.loads(shown[shown.index("{") :])["pipeline"] == "world"


def test_command_group_is_light_to_import() -> None:
    code = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules);"
        "from airflow_provider_streamsem.cli.airflow_group import commands; commands();"
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('airflow_provider_streamsem')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
