"""The faults. Each returns what it did, and only after it saw that it was done; `NotInjectedError` where its victim was not there."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.chaos.drivers import Driver
from tests.chaos.world import World
from tests.integration.parts.server import Server, answers

Fault = Callable[[World, random.Random], str]

BESIDE_S = 20.0  # the most that a second runner goes on beside the first; then it is killed


class NotInjectedError(Exception):
    """The victim of a fault was not there, or did not suffer it."""


def sure(true: object, what: str) -> None:
    if not true:
        raise NotInjectedError(what)


def sure_stopped(pid: int) -> None:
    """A signal takes a moment to stop every thread."""
    deadline = time.monotonic() + 5
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        sure(time.monotonic() < deadline, "the process was not frozen")
        time.sleep(0.01)


def first(world: World) -> Driver:
    sure(world.first is not None and world.first.is_alive, "no driver ran")
    assert world.first is not None
    return world.first


def driver_killed(world: World, chance: random.Random) -> str:
    """Python and JVM at once, as when a node goes."""
    sure(first(world).kill(), "the driver had ended by itself")
    return "driver and JVM killed"


def jvm_killed(world: World, chance: random.Random) -> str:
    """As the kernel's out-of-memory killer does."""
    jvm = first(world).jvm()
    sure(jvm, "no JVM ran")
    assert jvm is not None
    jvm.kill()
    with suppress(psutil.TimeoutExpired):
        jvm.wait(5)
    sure(not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, "the JVM lives")
    return "JVM killed, Python left alive"


def zombie_woken(world: World, chance: random.Random) -> str:
    """A driver that is frozen until another has committed, and then goes on in the belief that nothing happened."""
    sleeper = first(world)
    sleeper.stop()
    try:
        sure_stopped(sleeper.pid)
        before = world.subject.commits()
        retry = world.zombie()
        came = world.until(lambda: world.subject.commits() > before or not retry.is_alive, 90)
        committed = world.subject.commits() - before
        sure(came and committed > 0, "the retry committed nothing while the driver was frozen")
    finally:
        sleeper.resume()
    beside = "beside it" if retry.is_alive else "after it"
    world.until(lambda: not retry.is_alive, BESIDE_S)
    retry.kill()
    return f"driver frozen until a retry had made {committed} commits, then woken {beside}"


def runner_doubled(world: World, chance: random.Random) -> str:
    """Two runners of one run key; one of them, drawn, is killed in the middle."""
    one = first(world)
    two = world.zombie()
    sure(world.until(lambda: any(e["pid"] == two.pid for e in world.setting.said()), 60), "the second did not start")
    world.pass_time(chance.uniform(2, 8))
    victim = chance.choice([one, two])
    killed = victim.kill()
    world.until(lambda: not two.is_alive, BESIDE_S)
    two.kill()
    which = "first" if victim is one else "second"
    return f"second runner of the same run key beside the first; the {which} {'killed' if killed else 'had ended'}"


def restarted(world: World, servers: list[Server], chance: random.Random) -> str:
    for server in servers:
        server.kill()
    sure(not any(answers(server.port, server.address) for server in servers), "a server still answers")
    seconds = chance.uniform(0.2, 4)
    world.pass_time(seconds)
    for server in servers:
        server.start()
    return f"{', '.join(s.name for s in servers)} killed and started again after {seconds:.1f} s"


def frozen(world: World, server: Server, chance: random.Random) -> str:
    seconds = chance.uniform(2, 8)
    server.send(signal.SIGSTOP)
    try:
        sure_stopped(server.pid)
        world.pass_time(seconds)
    finally:
        server.send(signal.SIGCONT)
    return f"{server.name} frozen for {seconds:.1f} s"


def there(server: Server | None) -> Server:
    assert server is not None
    return server


def everything_killed(world: World, chance: random.Random) -> str:
    """Power off: on a cluster its master, its workers and their executors, too."""
    killed = first(world).kill()
    said = restarted(world, world.servers, chance)
    sure(killed, "the driver had ended by itself")
    return f"driver killed; {said}"


def executor_killed(world: World, chance: random.Random) -> str:
    sure(world.until(world.executors, 60), "no executor ran")
    victim = chance.choice(world.executors())
    victim.kill()
    return "executor killed"


def worker_killed(world: World, chance: random.Random) -> str:
    assert world.cluster is not None
    sure(world.until(world.executors, 60), "no executor ran")
    busy = [w for w in world.cluster.workers if any(w.pid in [p.pid for p in e.parents()] for e in world.executors())]
    sure(busy, "no worker had an executor")
    return restarted(world, [chance.choice(busy)], chance)


FAULTS: dict[str, Fault] = {
    "driver killed": driver_killed,
    "JVM killed": jvm_killed,
    "zombie woken": zombie_woken,
    "runner doubled": runner_doubled,
    "broker killed": lambda world, chance: restarted(world, [world.broker], chance),
    "broker frozen": lambda world, chance: frozen(world, world.broker, chance),
    "everything killed": everything_killed,
    "S3 killed": lambda world, chance: restarted(world, [there(world.s3)], chance),
    "S3 frozen": lambda world, chance: frozen(world, there(world.s3), chance),
    "Postgres killed": lambda world, chance: restarted(world, [there(world.postgres)], chance),
    "Postgres frozen": lambda world, chance: frozen(world, there(world.postgres), chance),
    "executor killed": executor_killed,
    "worker killed": worker_killed,
}


def kinds(needs: frozenset[str]) -> list[str]:
    """What can happen to a subject with these parts."""
    without = {
        "s3": ("S3 killed", "S3 frozen"),
        "postgres": ("Postgres killed", "Postgres frozen"),
        "cluster": ("executor killed", "worker killed"),
    }
    passed_over = {name for part, names in without.items() if part not in needs for name in names}
    return [name for name in FAULTS if name not in passed_over]


def drawn(names: list[str], count: int, chance: random.Random) -> list[str]:
    """Every kind once in an order of chance, then again in another."""
    found: list[str] = []
    while len(found) < count:
        found += chance.sample(names, len(names))
    return found[:count]
