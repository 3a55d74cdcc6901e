"""The faults. Each confirms that it happened and returns a description, or raises `NotInjectedError` without a victim."""

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

BESIDE_S = 20.0  # how long at most a second runner continues beside the first before it is killed


class NotInjectedError(Exception):
    """The victim of a fault did not exist, or was not affected."""


def sure(true: object, what: str) -> None:
    if not true:
        raise NotInjectedError(what)


def sure_stopped(pid: int) -> None:
    """Wait until the process is stopped. A signal takes a moment to stop every thread."""
    deadline = time.monotonic() + 5
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        sure(time.monotonic() < deadline, "the process was not frozen")
        time.sleep(0.01)


def first(fixture: PipelineFixture) -> Driver:
    sure(fixture.first is not None and fixture.first.is_alive, "no driver ran")
    assert fixture.first is not None
    return fixture.first


def driver_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill Python and the JVM at once, as when a node fails."""
    sure(first(fixture).kill(), "the driver had ended by itself")
    return "driver and JVM killed"


def jvm_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill only the JVM, as the kernel's out-of-memory killer does."""
    jvm = first(fixture).jvm()
    sure(jvm, "no JVM ran")
    assert jvm is not None
    jvm.kill()
    with suppress(psutil.TimeoutExpired):
        jvm.wait(5)
    sure(not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, "the JVM lives")
    return "JVM killed, Python left alive"


def zombie_woken(fixture: PipelineFixture, chance: random.Random) -> str:
    """Freeze a driver until another one has committed, then let it continue as if nothing had happened."""
    sleeper = first(fixture)
    sleeper.stop()
    try:
        sure_stopped(sleeper.pid)
        before = fixture.subject.commits()
        retry = fixture.zombie()
        came = fixture.until(lambda: fixture.subject.commits() > before or not retry.is_alive, 90)
        committed = fixture.subject.commits() - before
        sure(came and committed > 0, "the retry committed nothing while the driver was frozen")
    finally:
        sleeper.resume()
    beside = "beside it" if retry.is_alive else "after it"
    fixture.until(lambda: not retry.is_alive, BESIDE_S)
    retry.kill()
    return f"driver frozen until a retry had made {committed} commits, then woken {beside}"


def runner_doubled(fixture: PipelineFixture, chance: random.Random) -> str:
    """Start a second runner of the same run key, then kill a random one of the two."""
    one = first(fixture)
    two = fixture.zombie()
    sure(
        fixture.until(lambda: any(e["pid"] == two.pid for e in fixture.setting.read_events()), 60),
        "the second did not start",
    )
    fixture.pass_time(chance.uniform(2, 8))
    victim = chance.choice([one, two])
    killed = victim.kill()
    fixture.until(lambda: not two.is_alive, BESIDE_S)
    two.kill()
    which = "first" if victim is one else "second"
    return f"second runner of the same run key beside the first; the {which} {'killed' if killed else 'had ended'}"


def restarted(fixture: PipelineFixture, servers: list[Server], chance: random.Random) -> str:
    for server in servers:
        server.kill()
    sure(not any(answers(server.port, server.address) for server in servers), "a server still answers")
    seconds = chance.uniform(0.2, 4)
    fixture.pass_time(seconds)
    for server in servers:
        server.start()
    return f"{', '.join(s.name for s in servers)} killed and started again after {seconds:.1f} s"


def frozen(fixture: PipelineFixture, server: Server, chance: random.Random) -> str:
    seconds = chance.uniform(2, 8)
    server.send(signal.SIGSTOP)
    try:
        sure_stopped(server.pid)
        fixture.pass_time(seconds)
    finally:
        server.send(signal.SIGCONT)
    return f"{server.name} frozen for {seconds:.1f} s"


def existing(server: Server | None) -> Server:
    assert server is not None
    return server


def everything_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    """Kill everything, as in a power failure. On a cluster this includes master, workers and executors."""
    killed = first(fixture).kill()
    restarts = restarted(fixture, fixture.servers, chance)
    sure(killed, "the driver had ended by itself")
    return f"driver killed; {restarts}"


def executor_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    sure(fixture.until(fixture.executors, 60), "no executor ran")
    victim = chance.choice(fixture.executors())
    victim.kill()
    return "executor killed"


def worker_killed(fixture: PipelineFixture, chance: random.Random) -> str:
    assert fixture.cluster is not None
    sure(fixture.until(fixture.executors, 60), "no executor ran")
    busy = [
        w for w in fixture.cluster.workers if any(w.pid in [p.pid for p in e.parents()] for e in fixture.executors())
    ]
    sure(busy, "no worker had an executor")
    return restarted(fixture, [chance.choice(busy)], chance)


FAULTS: dict[str, Fault] = {
    "driver killed": driver_killed,
    "JVM killed": jvm_killed,
    "zombie woken": zombie_woken,
    "runner doubled": runner_doubled,
    "broker killed": lambda fixture, chance: restarted(fixture, [fixture.broker], chance),
    "broker frozen": lambda fixture, chance: frozen(fixture, fixture.broker, chance),
    "everything killed": everything_killed,
    "S3 killed": lambda fixture, chance: restarted(fixture, [existing(fixture.s3)], chance),
    "S3 frozen": lambda fixture, chance: frozen(fixture, existing(fixture.s3), chance),
    "Postgres killed": lambda fixture, chance: restarted(fixture, [existing(fixture.postgres)], chance),
    "Postgres frozen": lambda fixture, chance: frozen(fixture, existing(fixture.postgres), chance),
    "executor killed": executor_killed,
    "worker killed": worker_killed,
}


def kinds(needs: frozenset[str]) -> list[str]:
    """Return the faults that are possible for a subject with these servers."""
    without = {
        "s3": ("S3 killed", "S3 frozen"),
        "postgres": ("Postgres killed", "Postgres frozen"),
        "cluster": ("executor killed", "worker killed"),
    }
    passed_over = {name for part, names in without.items() if part not in needs for name in names}
    return [name for name in FAULTS if name not in passed_over]


def drawn(names: list[str], count: int, chance: random.Random) -> list[str]:
    """Return every kind once in a random order, then again in another."""
    found: list[str] = []
    while len(found) < count:
        found += chance.sample(names, len(names))
    return found[:count]
