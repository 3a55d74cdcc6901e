"""The faults. Each returns a description after it has confirmed the effect, or raises `NotInjectedError`."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.chaos.drivers import Driver
from tests.chaos.setup import PipelineFixture
from tests.integration.parts.server import Server, answers

Fault = Callable[[PipelineFixture, random.Random], str]

SECOND_RUNNER_S = 20.0  # the longest time that a second runner continues before it is killed


class NotInjectedError(Exception):
    """The victim of a fault did not exist, or was not affected."""


def confirm(condition: object, reason: str) -> None:
    """Raise `NotInjectedError` with this reason if the condition is false."""
    if not condition:
        raise NotInjectedError(reason)


def confirm_stopped(pid: int) -> None:
    """Wait until the process is stopped. A signal takes a moment to stop every thread."""
    deadline = time.monotonic() + 5
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        confirm(time.monotonic() < deadline, "the process was not frozen")
        time.sleep(0.01)


def first(fixture: PipelineFixture) -> Driver:
    confirm(fixture.first is not None and fixture.first.is_alive, "no driver ran")
    assert fixture.first is not None
    return fixture.first


def driver_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill Python and the JVM together, as when a node fails."""
    confirm(first(fixture).kill(), "the driver had ended by itself")
    return "driver and JVM killed"


def jvm_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill only the JVM, as the kernel's out-of-memory killer does."""
    jvm = first(fixture).jvm()
    confirm(jvm, "no JVM ran")
    assert jvm is not None
    jvm.kill()
    with suppress(psutil.TimeoutExpired):
        jvm.wait(5)
    confirm(not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, "the JVM is still alive")
    return "JVM killed, Python left alive"


def zombie_woken(fixture: PipelineFixture, rng: random.Random) -> str:
    """Freeze a driver until another one has committed, then resume it."""
    zombie = first(fixture)
    zombie.stop()
    try:
        confirm_stopped(zombie.pid)
        before = fixture.subject.commits()
        retry = fixture.zombie()
        in_time = fixture.until(lambda: fixture.subject.commits() > before or not retry.is_alive, 90)
        committed = fixture.subject.commits() - before
        confirm(in_time and committed > 0, "the retry committed nothing while the driver was frozen")
    finally:
        zombie.resume()
    when = "while the retry ran" if retry.is_alive else "after the retry"
    fixture.until(lambda: not retry.is_alive, SECOND_RUNNER_S)
    retry.kill()
    return (
        f"driver frozen until a retry had made {committed} commit{'' if committed == 1 else 's'}, then resumed {when}"
    )


def runner_doubled(fixture: PipelineFixture, rng: random.Random) -> str:
    """Start a second runner of the same run key, then kill a random one of the two."""
    original = first(fixture)
    second = fixture.zombie()
    confirm(
        fixture.until(lambda: any(e["pid"] == second.pid for e in fixture.setting.read_events()), 60),
        "the second runner did not start",
    )
    fixture.pass_time(rng.uniform(2, 8))
    victim = rng.choice([original, second])
    killed = victim.kill()
    fixture.until(lambda: not second.is_alive, SECOND_RUNNER_S)
    second.kill()
    which = "first" if victim is original else "second"
    return f"second runner of the same run key concurrent with the first; the {which} {'killed' if killed else 'had ended'}"


def restarted(fixture: PipelineFixture, servers: list[Server], rng: random.Random) -> str:
    for server in servers:
        server.kill()
    confirm(not any(answers(server.port, server.address) for server in servers), "a server still answers")
    seconds = rng.uniform(0.2, 4)
    fixture.pass_time(seconds)
    for server in servers:
        server.start()
    return f"{', '.join(s.name for s in servers)} killed and started again after {seconds:.1f} s"


def frozen(fixture: PipelineFixture, server: Server, rng: random.Random) -> str:
    seconds = rng.uniform(2, 8)
    server.send(signal.SIGSTOP)
    try:
        confirm_stopped(server.pid)
        fixture.pass_time(seconds)
    finally:
        server.send(signal.SIGCONT)
    return f"{server.name} frozen for {seconds:.1f} s"


def existing(server: Server | None) -> Server:
    assert server is not None
    return server


def everything_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    """Kill everything, as in a power failure. On a cluster this includes master, workers and executors."""
    killed = first(fixture).kill()
    restarts = restarted(fixture, fixture.servers, rng)
    confirm(killed, "the driver had ended by itself")
    return f"driver killed; {restarts}"


def executor_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    confirm(fixture.until(fixture.executors, 60), "no executor ran")
    victim = rng.choice(fixture.executors())
    victim.kill()
    return "executor killed"


def worker_killed(fixture: PipelineFixture, rng: random.Random) -> str:
    assert fixture.cluster is not None
    confirm(fixture.until(fixture.executors, 60), "no executor ran")
    busy = [
        w for w in fixture.cluster.workers if any(w.pid in [p.pid for p in e.parents()] for e in fixture.executors())
    ]
    confirm(busy, "no worker had an executor")
    return restarted(fixture, [rng.choice(busy)], rng)


FAULTS: dict[str, Fault] = {
    "driver killed": driver_killed,
    "JVM killed": jvm_killed,
    "zombie woken": zombie_woken,
    "runner doubled": runner_doubled,
    "broker killed": lambda fixture, rng: restarted(fixture, [fixture.broker], rng),
    "broker frozen": lambda fixture, rng: frozen(fixture, fixture.broker, rng),
    "everything killed": everything_killed,
    "S3 killed": lambda fixture, rng: restarted(fixture, [existing(fixture.s3)], rng),
    "S3 frozen": lambda fixture, rng: frozen(fixture, existing(fixture.s3), rng),
    "Postgres killed": lambda fixture, rng: restarted(fixture, [existing(fixture.postgres)], rng),
    "Postgres frozen": lambda fixture, rng: frozen(fixture, existing(fixture.postgres), rng),
    "executor killed": executor_killed,
    "worker killed": worker_killed,
}


def kinds(needs: frozenset[str]) -> list[str]:
    """Return the faults that are possible for a subject with these servers."""
    faults_of = {
        "s3": ("S3 killed", "S3 frozen"),
        "postgres": ("Postgres killed", "Postgres frozen"),
        "cluster": ("executor killed", "worker killed"),
    }
    excluded = {name for server, names in faults_of.items() if server not in needs for name in names}
    return [name for name in FAULTS if name not in excluded]


def draw(names: list[str], count: int, rng: random.Random) -> list[str]:
    """Draw faults: every kind once in a random order, then again in another order."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += rng.sample(names, len(names))
    return drawn[:count]
