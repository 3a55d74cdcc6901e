"""The faults. Each returns what it did, and only after it saw that it was done; `NotInjectedError` where its victim was not there."""

from __future__ import annotations

import os
import random
import signal
import urllib.error
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.airflow_chaos import pace
from tests.airflow_chaos.world import DAG, DRAIN, WAIT, World, supervisor_of
from tests.chaos.faults import NotInjectedError, sure
from tests.integration.parts.server import Server

Fault = Callable[[World, random.Random], str]

ORPHAN = "supervisor killed"
RETRY_S = 420.0  # until the retry of a task whose supervisor was killed is in its first batch: the heartbeat time-out, Airflow, Spark


def orphaned(world: World, chance: random.Random, kill: Callable[[psutil.Process], str]) -> str:
    """
    Kill the supervisor of a task in a batch: the task goes on as an orphan, and Airflow starts its retry beside it.

    The batch is held until the retry has come to the same version; then they race.

    :param kill: kills the supervisor that it is given, and says what it did
    """
    orphan = held_task(world)
    try:
        supervisor = supervisor_of(orphan)
        sure(supervisor, "the task has no supervisor")
        assert supervisor is not None
        done = kill(supervisor)
        with suppress(psutil.TimeoutExpired):
            supervisor.wait(5)
        sure(not is_alive(supervisor), "the supervisor lives")
        sure(is_alive(orphan), "the task died with its supervisor")
        met = world.until(lambda: any(o.older == orphan.pid for o in world.overlaps), RETRY_S)
        sure(met, "no retry came to the version of the orphan while it lived")
        overlap = next(o for o in world.overlaps if o.older == orphan.pid)
        first = chance.choice(("both at once", "the orphan first", "the retry first"))
        if first != "both at once":
            pace.hold(world.setting, but=[orphan.pid if first == "the orphan first" else overlap.younger])
            world.pass_time(chance.uniform(0.5, 3))
    finally:
        pace.let_go(world.setting)
    return f"{done}; orphan and retry in version {overlap.version} at once, let go: {first}"


def supervisor_killed(world: World, chance: random.Random) -> str:
    """As the out-of-memory killer does. Airflow sees that the heartbeats end."""

    def kill(supervisor: psutil.Process) -> str:
        supervisor.kill()
        return "supervisor killed"

    return orphaned(world, chance, kill)


def scheduler_killed_with_supervisors(world: World, chance: random.Random) -> str:
    """As when the scheduler's container goes and its tasks do not: a new scheduler takes the tasks for lost at once."""

    def kill(supervisor: psutil.Process) -> str:
        parent = supervisor.parent()
        part = next((s for s in world.airflow.schedulers if parent and s.pid == parent.pid), None)
        sure(part, "the supervisor's scheduler was not there any more")
        assert part is not None
        part.kill()
        return f"{part.name} and its supervisors killed, {restarted(world, [part], chance)}"

    return orphaned(world, chance, kill)


def held_task(world: World) -> psutil.Process:
    """The next task with a supervisor that comes to a batch, held there."""
    pace.hold(world.setting)
    found: list[psutil.Process] = []

    def came() -> bool:
        found[:] = [task for task in world.at_work() if supervisor_of(task)]
        return bool(found)

    if not world.until(came, 90):
        pace.let_go(world.setting)
        raise NotInjectedError("no task came to a batch")
    return found[0]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def task_killed(world: World, chance: random.Random) -> str:
    """The task's own process; its JVM ends with it."""
    world.until(world.is_busy, 60)
    victims = world.at_work()
    sure(victims, "no task was in a batch")
    victims[0].kill()
    with suppress(psutil.TimeoutExpired):
        victims[0].wait(5)
    sure(not is_alive(victims[0]), "the task lives")
    return "task killed"


def restarted(world: World, parts: list[Server], chance: random.Random) -> str:
    seconds = chance.uniform(0.2, 4)
    world.pass_time(seconds)
    for part in parts:
        world.airflow.start(part)
    return f"started again after {seconds:.1f} s"


def triggerer_killed(world: World, chance: random.Random) -> str:
    """While a task is deferred, which only the triggerer can wake."""
    path = f"/dags/{DAG}/dagRuns/~/taskInstances?state=deferred"

    def deferred() -> bool:
        with suppress(OSError):
            return bool(world.airflow.ask("GET", path)["task_instances"])
        return False

    sure(world.until(deferred, 180, every_s=0.2), "no task was deferred")
    part = world.airflow.parts["triggerer"]
    part.kill()
    return f"killed while a task was deferred, {restarted(world, [part], chance)}"


def scheduler_killed(world: World, chance: random.Random) -> str:
    """Alone: its supervisors and tasks go on."""
    part = chance.choice(world.airflow.schedulers)
    os.kill(part.pid, signal.SIGKILL)
    part.wait()
    left = len(world.tasks())
    return f"{part.name} killed alone, {left} tasks went on; {restarted(world, [part], chance)}"


def everything_killed(world: World, chance: random.Random) -> str:
    """Every process of Airflow and of its tasks."""
    count = len(world.airflow.processes())
    sure(count, "nothing ran")
    world.airflow.end()
    parts = list(world.airflow.parts.values())
    return f"{count} processes killed, {restarted(world, parts, chance)}"


def by_hand(world: World, chance: random.Random) -> str:
    """One to three things that a person does in the user interface, to runs that go on and to runs of the past."""
    done = []
    for _ in range(chance.randint(1, 3)):
        with suppress(urllib.error.HTTPError):  # a refusal is an answer: the task is not there yet, or the run is gone
            done.append(one_by_hand(world, chance))
        world.pass_time(chance.uniform(0, 2))
    sure(done, "every request was refused")
    return "; ".join(done)


def one_by_hand(world: World, chance: random.Random) -> str:
    airflow = world.airflow
    try:
        names = [run["dag_run_id"] for run in world.newest_runs()]
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
