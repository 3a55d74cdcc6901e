"""Effects of reruns that need a real scheduler (docs/reference/reruns.md). All tests share one Airflow with two schedulers on Postgres."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.stores.local import LocalStore
from tests.integration.parts.airflow import Airflow
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import running
from tests.pipeline_fixture import PipelineFixture

pytestmark = [pytest.mark.prove, pytest.mark.airflow, pytest.mark.timeout(600)]

DAGS = ("manual", "reprocessed", "concurrent", "pooled", "caught_up", "backfilled")
TASK = "t"


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="streamsem-reruns-"))
    directory.chmod(0o755)  # the database runs as another user
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def airflow(home: Path) -> Iterator[Airflow]:
    for name in DAGS:
        Runs(home, name).fixture.arrive(5)
    database = Postgres(home / "postgres")
    with running(database):
        instance = Airflow(
            home / "airflow",
            Path(__file__).parent / "dags",
            database=database.dsn.replace("://", "+psycopg://"),
            schedulers=2,
            environment={"STREAMSEM_RERUNS_HOME": str(home)},
        )
        with instance.running():
            instance.until("the API answers", lambda: instance.request("GET", "/version"), 120)
            instance.request("POST", "/pools", {"name": "one_slot", "slots": 1})
            yield instance


class Runs:
    """A DAG of dags/reruns.py and its pipeline fixture."""

    def __init__(self, home: Path, name: str, airflow: Airflow | None = None) -> None:
        self.location = home / name
        self.name = name
        self.fixture = PipelineFixture(self.location, store=LocalStore(str(self.location / "log")))
        self.fixture.made = len(list((self.location / "in").iterdir()))
        self._airflow = airflow

    @property
    def airflow(self) -> Airflow:
        assert self._airflow is not None
        return self._airflow

    def trigger(self, run: str) -> None:
        self.airflow.trigger(self.name, run)

    def wait(self, run: str, seconds: float = 120) -> str:
        """Wait for the end of a run, and return its state."""
        state: str = self.airflow.until(
            f"{self.name} {run} ends",
            lambda: (s := self.airflow.state(self.name, run)) in ("success", "failed") and s,
            seconds,
        )
        return state

    def run(self, run: str) -> Any:
        """Trigger a run, check that it succeeds, and return the result of its task."""
        self.trigger(run)
        assert self.wait(run) == "success"
        return self.airflow.result(self.name, run, TASK)

    def runs(self) -> list[dict[str, Any]]:
        dag_runs: list[dict[str, Any]] = self.airflow.request("GET", f"/dags/{self.name}/dagRuns?limit=100")["dag_runs"]
        return dag_runs

    def steps(self) -> list[dict[str, Any]]:
        file = self.location / "steps.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def hold(self) -> None:
        """Hold batches from now on."""
        (self.location / "hold").touch()

    def release(self) -> None:
        (self.location / "hold").unlink(missing_ok=True)

    def wait_for_batch(self, run: str) -> None:
        """Wait until a run is in a batch."""

        def began() -> bool:
            own = [step["step"] for step in self.steps() if step["run"] == run]
            return own[-1:] == ["read"]

        self.airflow.until(f"{run} is in a batch", began, 120)


@pytest.fixture
def runs(request: pytest.FixtureRequest, home: Path, airflow: Airflow) -> Iterator[Runs]:
    runs = Runs(home, request.param, airflow)
    airflow.until("the DAG is there", lambda: airflow.request("GET", f"/dags/{runs.name}"), 120)
    yield runs
    runs.release()  # a failed test must not leave a task that waits to the next tests


def dag(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("runs", [name], indirect=True, ids=str)


@dag("manual")
def test_recreated_run_returns_the_first_result_and_the_next_run_reads_new_files(runs: Runs) -> None:
    first = runs.run("again")
    staged = len(runs.steps())
    runs.airflow.request("DELETE", runs.airflow.run_path(runs.name, "again"))
    runs.fixture.arrive(2)
    assert runs.run("again") == first
    assert len(runs.steps()) == staged
    assert runs.run("after-again")["ranges"] == {"files": [5, 7]}
    runs.fixture.check()


@dag("manual")
def test_run_that_is_deleted_in_a_batch_and_recreated_continues_to_its_first_target(runs: Runs) -> None:
    start = runs.fixture.made
    runs.fixture.arrive(4)
    runs.hold()
    runs.trigger("deleted")
    runs.wait_for_batch("deleted")
    path = runs.airflow.run_path(runs.name, "deleted")
    with pytest.raises(urllib.error.HTTPError, match="409"):
        runs.airflow.request("DELETE", path)
    runs.airflow.mark(runs.name, "deleted", "failed")
    runs.airflow.request("DELETE", path)
    runs.fixture.arrive(2)
    runs.release()
    runs.trigger("deleted")
    assert runs.wait("deleted") == "success"
    assert runs.airflow.result(runs.name, "deleted", TASK)["ranges"] == {"files": [start, start + 4]}
    assert runs.run("after-deleted")["ranges"] == {"files": [start + 4, start + 6]}
    runs.fixture.check()


@pytest.mark.parametrize("state", ["success", "failed"])
@dag("manual")
def test_task_marked_as_success_or_failed_during_a_batch_commits_nothing_and_the_next_run_reads_its_records(
    runs: Runs, state: str
) -> None:
    visible = runs.fixture.visible()
    runs.fixture.arrive(2)
    runs.hold()
    runs.trigger(f"marked-{state}")
    runs.wait_for_batch(f"marked-{state}")
    runs.airflow.mark(runs.name, f"marked-{state}", state, TASK)
    assert runs.wait(f"marked-{state}") == state
    assert runs.fixture.visible() == visible
    runs.release()
    runs.run(f"after-marked-{state}")
    runs.fixture.check()


@dag("reprocessed")
def test_cleared_run_is_reprocessed_if_the_task_has_rerun_reprocess(runs: Runs) -> None:
    first = runs.run("one")
    runs.airflow.clear_run(runs.name, "one")
    runs.airflow.until("the second try begins", lambda: runs.airflow.tries(runs.name, "one", TASK) > 1, 60)
    assert runs.wait("one") == "success"
    again = runs.airflow.result(runs.name, "one", TASK)
    assert (again["ranges"], again["counts"]) == (first["ranges"], first["counts"])
    assert again["version"] > first["version"]
    runs.fixture.check()


@dag("concurrent")
def test_three_concurrent_runs_commit_a_version_once_and_both_schedulers_run_tasks(runs: Runs) -> None:
    schedulers = {part.pid for part in runs.airflow.schedulers}
    busy_schedulers: set[int] = set()
    for n in range(8):
        runs.fixture.arrive(6)
        names = [f"{n}-{i}" for i in range(3)]
        runs.hold()
        for name in names:
            runs.trigger(name)
        for name in names:
            runs.wait_for_batch(name)
        runs.release()
        assert [runs.wait(name) for name in names] == ["success"] * 3
        runs.fixture.check()
        busy_schedulers = {pid for step in runs.steps() for pid in step["ancestors"]} & schedulers
        if busy_schedulers == schedulers:
            break
    assert busy_schedulers == schedulers


@dag("pooled")
def test_pool_of_one_slot_serializes_the_runs_of_a_pipeline(runs: Runs) -> None:
    names = ["a", "b", "c"]
    runs.hold()
    for name in names:
        runs.trigger(name)
    waiting = lambda: sorted(str(runs.airflow.state(runs.name, name, TASK)) for name in names)  # noqa: E731
    runs.airflow.until("one is in a batch, two wait", lambda: waiting() == ["running", "scheduled", "scheduled"], 90)
    runs.wait_for_batch(next(name for name in names if runs.airflow.state(runs.name, name, TASK) == "running"))
    assert len({step["run"] for step in runs.steps()}) == 1
    runs.release()
    assert [runs.wait(name) for name in names] == ["success"] * 3
    runs.fixture.check()


@dag("caught_up")
def test_catchup_creates_a_run_for_each_interval_and_every_row_is_written_once(runs: Runs) -> None:
    runs.airflow.until("three runs", lambda: [r["state"] for r in runs.runs()] == ["success"] * 3, 180)
    results = [runs.airflow.result(runs.name, r["dag_run_id"], TASK) for r in runs.runs()]
    assert sum(a["counts"].get("written.out", 0) for a in results) == 15
    assert Counter(a["status"] for a in results)["committed"] >= 1
    runs.fixture.check()


@dag("backfilled")
def test_backfill_reads_new_files_and_a_backfill_of_finished_runs_reads_nothing_again(runs: Runs) -> None:
    def fill(behavior: str) -> None:
        body = {"dag_id": runs.name, "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-03T00:00:00Z"}
        backfill = runs.airflow.request("POST", "/backfills", {**body, "reprocess_behavior": behavior})
        ended = lambda: runs.airflow.request("GET", f"/backfills/{backfill['id']}")["completed_at"]  # noqa: E731
        runs.airflow.until("the backfill ends", ended, 240)

    fill("none")
    assert {r["state"] for r in runs.runs()} == {"success"}
    runs.fixture.check()
    head, committed = runs.fixture.opened().head, len(runs.steps())
    fill("completed")
    assert {r["state"] for r in runs.runs()} == {"success"}
    assert (runs.fixture.opened().head, len(runs.steps())) == (head, committed)
    runs.fixture.check()
