"""The faults. Each returns a description after it has confirmed the effect, or raises `NotInjectedError`."""

from __future__ import annotations

import os
import random
import signal
import urllib.error
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.airflow_chaos import pace
from tests.airflow_chaos.setup import DAG, DRAIN, WAIT, PipelineFixture, supervisor_of
from tests.chaos.faults import NotInjectedError, confirm
from tests.integration.parts.server import Server

Fault = Callable[[PipelineFixture, random.Random], str]

ORPHAN = "supervisor killed"
RETRY_S = 420.0  # time limit for the first batch of an orphan's retry: heartbeat timeout, start of Airflow's task, start of Spark


def orphaned(fixture: PipelineFixture, rng: random.Random, kill: Callable[[psutil.Process], str]) -> str:
    """
    Kill the supervisor of a task in a batch. The task continues as an orphan, and Airflow concurrently starts its retry.

    The harness holds the batch until the retry has reached the same version. Then both continue.

    :param kill: kills the supervisor and returns a description
    """
    orphan = held_task(fixture)
    try:
        supervisor = supervisor_of(orphan)
        confirm(supervisor, "the task has no supervisor")
        assert supervisor is not None
        action = kill(supervisor)
        with suppress(psutil.TimeoutExpired):
            supervisor.wait(5)
        confirm(not is_alive(supervisor), "the supervisor is still alive")
        confirm(is_alive(orphan), "the task died with its supervisor")
        has_overlap = fixture.until(lambda: any(o.older == orphan.pid for o in fixture.overlaps), RETRY_S)
        confirm(has_overlap, "no retry reached the version of the orphan while the orphan was alive")
        overlap = next(o for o in fixture.overlaps if o.older == orphan.pid)
        first = rng.choice(("both at once", "the orphan first", "the retry first"))
        if first != "both at once":
            pace.hold(fixture.setting, but=[orphan.pid if first == "the orphan first" else overlap.younger])
            fixture.pass_time(rng.uniform(0.5, 3))
    finally:
        pace.release(fixture.setting)
    return f"{action}; orphan and retry concurrent in version {overlap.version}, released: {first}"


def supervisor_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill the supervisor, as the out-of-memory killer does. Airflow detects the missing heartbeats."""

    def kill(supervisor: psutil.Process) -> str:
        supervisor.kill()
        return "supervisor killed"

    return orphaned(fixture, rng, kill)


def scheduler_killed_with_supervisors(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill a scheduler and its supervisors, but not its tasks. The restarted scheduler immediately treats the tasks as lost."""

    def kill(supervisor: psutil.Process) -> str:
        parent = supervisor.parent()
        component = next((s for s in fixture.airflow.schedulers if parent and s.pid == parent.pid), None)
        confirm(component, "the supervisor's scheduler had ended")
        assert component is not None
        component.kill()
        return f"{component.name} and its supervisors killed, {restarted(fixture, [component], rng)}"

    return orphaned(fixture, rng, kill)


def held_task(fixture: PipelineFixture) -> psutil.Process:
    """Wait for a task with a supervisor to reach a batch, hold it there, and return it."""
    pace.hold(fixture.setting)
    tasks: list[psutil.Process] = []

    def has_task() -> bool:
        tasks[:] = [task for task in fixture.active_tasks() if supervisor_of(task)]
        return bool(tasks)

    if not fixture.until(has_task, 90):
        pace.release(fixture.setting)
        raise NotInjectedError("no task reached a batch")
    return tasks[0]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def task_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill the task's own process. Its JVM ends with it."""
    fixture.until(fixture.is_busy, 60)
    victims = fixture.active_tasks()
    confirm(victims, "no task was in a batch")
    victims[0].kill()
    with suppress(psutil.TimeoutExpired):
        victims[0].wait(5)
    confirm(not is_alive(victims[0]), "the task is still alive")
    return "task killed"


def restarted(fixture: PipelineFixture, components: list[Server], rng: random.Random) -> str:
    seconds = rng.uniform(0.2, 4)
    fixture.pass_time(seconds)
    for component in components:
        fixture.airflow.start(component)
    return f"started again after {seconds:.1f} s"


def triggerer_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill the triggerer while a task is deferred. Only the triggerer can resume the task."""
    path = f"/dags/{DAG}/dagRuns/~/taskInstances?state=deferred"

    def deferred() -> bool:
        with suppress(OSError):
            return bool(fixture.airflow.request("GET", path)["task_instances"])
        return False

    confirm(fixture.until(deferred, 180, every_s=0.2), "no task was deferred")
    component = fixture.airflow.components["triggerer"]
    component.kill()
    return f"killed while a task was deferred, {restarted(fixture, [component], rng)}"


def scheduler_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill only the scheduler. Its supervisors and tasks continue."""
    component = rng.choice(fixture.airflow.schedulers)
    os.kill(component.pid, signal.SIGKILL)
    component.wait()
    left = len(fixture.tasks())
    return f"{component.name} killed alone, {left} tasks went on; {restarted(fixture, [component], rng)}"


def everything_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill every process of Airflow and of its tasks."""
    count = len(fixture.airflow.processes())
    confirm(count, "no process ran")
    fixture.airflow.end()
    components = list(fixture.airflow.components.values())
    return f"{count} processes killed, {restarted(fixture, components, rng)}"


def clear_or_mark(fixture: PipelineFixture, rng: random.Random) -> str:
    """Clear or mark active and past runs one to three times, as a user does in the user interface."""
    actions = []
    for _ in range(rng.randint(1, 3)):
        with suppress(urllib.error.HTTPError):  # refused: the task does not exist yet, or the run was deleted
            actions.append(clear_or_mark_once(fixture, rng))
        fixture.pass_time(rng.uniform(0, 2))
    confirm(actions, "every request was refused")
    return "; ".join(actions)


def clear_or_mark_once(fixture: PipelineFixture, rng: random.Random) -> str:
    airflow = fixture.airflow
    try:
        names = [run["dag_run_id"] for run in fixture.newest_runs()]
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        raise NotInjectedError(f"the API server did not answer: {error}") from error
    confirm(names, "there is no run")
    age = min(rng.choice((0, 0, 1, 2, 3)), len(names) - 1)
    run, state = names[age], rng.choice(("success", "failed"))
    match rng.choice(("clear task", "clear run", "mark task", "mark run")):
        case "clear task":
            airflow.clear(DAG, run, [rng.choice((WAIT, DRAIN, DRAIN))])
            action = "task cleared"
        case "clear run":
            airflow.clear_run(DAG, run)
            action = "run cleared"
        case "mark task":
            airflow.mark(DAG, run, state, DRAIN)
            action = f"task marked {state}"
        case _:
            airflow.mark(DAG, run, state)
            action = f"run marked {state}"
    return action + (" (newest run)" if age == 0 else f" ({age} before the newest)")


FAULTS: dict[str, Fault] = {
    ORPHAN: supervisor_killed,
    "task killed": task_killed,
    "triggerer killed": triggerer_killed,
    "scheduler killed": scheduler_killed,
    "scheduler and supervisors killed": scheduler_killed_with_supervisors,
    "everything killed": everything_killed,
    "cleared and marked": clear_or_mark,
}
