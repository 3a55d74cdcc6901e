"""The faults. Each confirms that it happened and returns a description, or raises `NotInjectedError` without a victim."""

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
from tests.chaos.faults import NotInjectedError, sure
from tests.integration.parts.server import Server

Fault = Callable[[PipelineFixture, random.Random], str]

ORPHAN = "supervisor killed"
RETRY_S = 420.0  # until the retry of an orphaned task is in its first batch: heartbeat timeout, Airflow, Spark


def orphaned(fixture: PipelineFixture, chance: random.Random, kill: Callable[[psutil.Process], str]) -> str:
    """
    Kill the supervisor of a task in a batch. The task continues as an orphan, and Airflow starts its retry beside it.

    The batch is held until the retry has reached the same version. Then they race.

    :param kill: kills the given supervisor, and returns a description
    """
    orphan = held_task(fixture)
    try:
        supervisor = supervisor_of(orphan)
        sure(supervisor, "the task has no supervisor")
        assert supervisor is not None
        done = kill(supervisor)
        with suppress(psutil.TimeoutExpired):
            supervisor.wait(5)
        sure(not is_alive(supervisor), "the supervisor lives")
        sure(is_alive(orphan), "the task died with its supervisor")
        met = fixture.until(lambda: any(o.older == orphan.pid for o in fixture.overlaps), RETRY_S)
        sure(met, "no retry came to the version of the orphan while it lived")
        overlap = next(o for o in fixture.overlaps if o.older == orphan.pid)
        first = chance.choice(("both at once", "the orphan first", "the retry first"))
        if first != "both at once":
            pace.hold(fixture.setting, but=[orphan.pid if first == "the orphan first" else overlap.younger])
            fixture.pass_time(chance.uniform(0.5, 3))
    finally:
        pace.let_go(fixture.setting)
    return f"{done}; orphan and retry in version {overlap.version} at once, let go: {first}"


def supervisor_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill the supervisor, as the out-of-memory killer does. Airflow notices the missing heartbeats."""

    def kill(supervisor: psutil.Process) -> str:
        supervisor.kill()
        return "supervisor killed"

    return orphaned(fixture, chance, kill)


def scheduler_killed_with_supervisors(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill a scheduler and its supervisors, as when its container fails and its tasks do not. A new scheduler declares the tasks lost at once."""

    def kill(supervisor: psutil.Process) -> str:
        parent = supervisor.parent()
        part = next((s for s in fixture.airflow.schedulers if parent and s.pid == parent.pid), None)
        sure(part, "the supervisor's scheduler was not there any more")
        assert part is not None
        part.kill()
        return f"{part.name} and its supervisors killed, {restarted(fixture, [part], chance)}"

    return orphaned(fixture, chance, kill)


def held_task(fixture: PipelineFixture) -> psutil.Process:
    """Return the next task with a supervisor that reaches a batch, held there."""
    pace.hold(fixture.setting)
    found: list[psutil.Process] = []

    def came() -> bool:
        found[:] = [task for task in fixture.at_work() if supervisor_of(task)]
        return bool(found)

    if not fixture.until(came, 90):
        pace.let_go(fixture.setting)
        raise NotInjectedError("no task came to a batch")
    return found[0]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def task_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill the task's own process. Its JVM ends with it."""
    fixture.until(fixture.is_busy, 60)
    victims = fixture.at_work()
    sure(victims, "no task was in a batch")
    victims[0].kill()
    with suppress(psutil.TimeoutExpired):
        victims[0].wait(5)
    sure(not is_alive(victims[0]), "the task lives")
    return "task killed"


def restarted(fixture: PipelineFixture, parts: list[Server], chance: random.Random) -> str:
    seconds = chance.uniform(0.2, 4)
    fixture.pass_time(seconds)
    for part in parts:
        fixture.airflow.start(part)
    return f"started again after {seconds:.1f} s"


def triggerer_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill the triggerer while a task is deferred, which only the triggerer can resume."""
    path = f"/dags/{DAG}/dagRuns/~/taskInstances?state=deferred"

    def deferred() -> bool:
        with suppress(OSError):
            return bool(fixture.airflow.ask("GET", path)["task_instances"])
        return False

    sure(fixture.until(deferred, 180, every_s=0.2), "no task was deferred")
    part = fixture.airflow.parts["triggerer"]
    part.kill()
    return f"killed while a task was deferred, {restarted(fixture, [part], chance)}"


def scheduler_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill only the scheduler. Its supervisors and tasks continue."""
    part = chance.choice(fixture.airflow.schedulers)
    os.kill(part.pid, signal.SIGKILL)
    part.wait()
    left = len(fixture.tasks())
    return f"{part.name} killed alone, {left} tasks went on; {restarted(fixture, [part], chance)}"


def everything_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill every process of Airflow and of its tasks."""
    count = len(fixture.airflow.processes())
    sure(count, "nothing ran")
    fixture.airflow.end()
    parts = list(fixture.airflow.parts.values())
    return f"{count} processes killed, {restarted(fixture, parts, chance)}"


def by_hand(fixture: PipelineFixture, chance: random.Random) -> str:
    """Do one to three things that a user does in the user interface, to active and past runs."""
    done = []
    for _ in range(chance.randint(1, 3)):
        with suppress(urllib.error.HTTPError):  # refused: the task does not exist yet, or the run was deleted
            done.append(one_by_hand(fixture, chance))
        fixture.pass_time(chance.uniform(0, 2))
    sure(done, "every request was refused")
    return "; ".join(done)


def one_by_hand(fixture: PipelineFixture, chance: random.Random) -> str:
    airflow = fixture.airflow
    try:
        names = [run["dag_run_id"] for run in fixture.newest_runs()]
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        raise NotInjectedError(f"the API server did not answer: {error}") from error
    sure(names, "there is no run")
    age = min(chance.choice((0, 0, 1, 2, 3)), len(names) - 1)
    run, state = names[age], chance.choice(("success", "failed"))
    match chance.choice(("clear task", "clear run", "mark task", "mark run")):
        case "clear task":
            airflow.clear(DAG, run, [chance.choice((WAIT, DRAIN, DRAIN))])
            what = "task cleared"
        case "clear run":
            airflow.clear_run(DAG, run)
            what = "run cleared"
        case "mark task":
            airflow.mark(DAG, run, state, DRAIN)
            what = f"task marked {state}"
        case _:
            airflow.mark(DAG, run, state)
            what = f"run marked {state}"
    return what + (" (newest run)" if age == 0 else f" ({age} before the newest)")


FAULTS: dict[str, Fault] = {
    ORPHAN: supervisor_killed,
    "task killed": task_killed,
    "triggerer killed": triggerer_killed,
    "scheduler killed": scheduler_killed,
    "scheduler and supervisors killed": scheduler_killed_with_supervisors,
    "everything killed": everything_killed,
    "cleared and marked": by_hand,
}
