"""Runs processes in turns. Each process is a greenlet, and the seed determines which one runs next. No threads and no system clock are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.stores.contract import UnknownResultError
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.simulation.faults import Fate, FaultModel
from tests.simulation.store import ProcessStore, SimulatedStore, shown

FAULTS_STOP_AFTER = 2_500
MAX_TURNS = 32_000
_START_MS = 1_700_000_000_000
_TURN_MS = 50


class Violation(AssertionError):
    """The protocol was violated. ``trace`` has the events up to the violation."""

    trace: Sequence[str] = ()


NAMES: dict[str, str] = {}
"""Beginning of the ids that a process mints → the name of the process."""


class ProcessClock(ManualClock):
    """The clock of one process. It advances with the turns and differs from other clocks by some seconds. A sleep ends the process's turn."""

    def __init__(self, process: Process, offset_ms: int) -> None:
        super().__init__(offset_ms, process.name)
        self._process = process
        NAMES[self._prefix] = process.name

    def now_ms(self) -> int:
        return super().now_ms() + self._process.scheduler.now_ms

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._process.turn()


class SinkClock:
    """The clock that sinks use to wait between tries. A sleep ends the process's turn."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def sleep(self, seconds: float) -> None:
        if self._scheduler.current is not None:
            self._scheduler.current.turn()


class Process:
    """
    One process. After it died, all its requests raise :class:`Crash` and have no effect, also while its stack unwinds.

    :attr had_fault: whether a request of it met a fault
    :attr refused: whether a sink outside the log refused a request of it
    :attr deferred: whether an endpoint limited the rate of its calls
    :attr holds_locks: whether it holds a lock. Its requests to files then wait for no turn, because other processes would wait for the lock forever
    :attr head_at_start: the newest closed version when it started
    :attr manifests: keys of staged manifests that it has read, and whose attempts it could commit
    :attr retry: the kind and run key of the process to start if this one ends without a result
    :attr ended: ``completed``, ``died`` or ``failed``; ``""`` while it runs
    """

    def __init__(self, scheduler: Scheduler, kind: str, name: str, body: Callable[[Process], Any]) -> None:
        self.scheduler = scheduler
        self.kind = kind
        self.name = name
        self.dead = False
        self.paused_until = 0
        self.partitioned_requests = 0
        self.saw_stale = False
        self.had_fault = False
        self.refused = False
        self.deferred = False
        self.holds_locks = False
        self.head_at_start = scheduler.store.closed
        self.manifests: set[str] = set()
        self.retry: tuple[str, str] | None = None
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = ""
        self.log = CommitLog(
            ProcessStore(self, scheduler.store),
            ProcessClock(self, scheduler.rng.randrange(-5_000, 5_000)),
            RetryPolicy(tries=scheduler.rng.choice((2, 3, 5))),
        )
        self._body = body
        self.greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            self.result = self._body(self)
            self.ended = "completed"
        except Crash:
            self.ended = "died"
        except Exception as error:  # the scenario checks whether this failure is allowed
            self.error = error
            self.ended = "failed"

    def turn(self) -> None:
        """End the turn. Returns in the process's next turn, or raises :class:`Crash` if the process was killed."""
        if self.dead:
            raise Crash
        self.scheduler.hub.switch()
        if self.dead:
            raise Crash

    def begin_request(self, request: str, *, listing: bool = False, on_disk: bool = False) -> Fate:
        """Wait for a turn before a request or step, and draw its fate."""
        self.turn()
        faults = self.scheduler.faults
        if self.partitioned_requests and not faults.stopped and not on_disk:
            self.partitioned_requests -= 1
            fate = self.scheduler.rng.choice((Fate.NEVER, Fate.LOST_REPLY, Fate.LATE))
        else:
            fate = faults.fate_on_disk(listing=listing) if on_disk else faults.fate(listing=listing)
        if fate is not Fate.GOOD:
            self.had_fault = True
            self.scheduler.count[fate.name] += 1
            self.scheduler.record(self.name, f"{request} ! {fate.name}")
        if fate is Fate.PARTITION:
            self.partitioned_requests = self.scheduler.rng.randrange(1, 6)
            fate = Fate.NEVER
        if fate is Fate.CRASH_BEFORE:
            self.die()
        if fate is Fate.PAUSE:
            self.paused_until = self.scheduler.turns + self.scheduler.rng.randrange(10, 11 + faults.longest_pause)
            self.turn()
            fate = Fate.GOOD
        return fate

    def end_request(self, fate: Fate, key: str, event: str) -> None:
        """Record an applied request. Depending on its fate, the sender dies or gets an unknown result."""
        self.scheduler.record(self.name, event)
        if fate is Fate.CRASH_AFTER:
            self.die()
        if fate is Fate.SLOW:
            self.turn()
        if fate is Fate.LOST_REPLY:
            raise UnknownResultError(key)

    def step(self, event: str) -> None:
        """Record a step that is not a request. The process may die before or after it, or pause."""
        fate = self.begin_request(event, on_disk=True)
        self.scheduler.record(self.name, event)
        if fate is Fate.CRASH_AFTER:
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Crash


class Scheduler:
    """
    Selects the process of each turn, and applies late requests.

    :param rng: the only source of randomness
    :attr trace: one line per event
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.faults = FaultModel(rng)
        self.store = SimulatedStore()
        self.hub = getcurrent()
        self.turns = 0
        self.live: list[Process] = []
        self.current: Process | None = None
        self.count: Counter[str] = Counter()
        self.trace: list[str] = []
        self._late: list[tuple[int, str, Callable[[], Any]]] = []
        self._started = 0
        self._last_start = 0

    @property
    def now_ms(self) -> int:
        """The time without the offset of a process's clock."""
        return _START_MS + self.turns * _TURN_MS

    def record(self, actor: str, event: str) -> None:
        self.trace.append(f"{self.turns:04d} {actor:12} {event}")

    def schedule_late(self, request: str, apply: Callable[[], Any]) -> None:
        """Apply a request some turns from now."""
        self._late.append((self.turns + self.rng.randrange(1, 120), request, apply))

    def in_flight(self, key: str) -> bool:
        """Whether a late request for this key may still be applied."""
        return any(request.endswith(shown(key)) for _, request, _ in self._late)

    def changes_missed(self, changes: int) -> int:
        """The number of changes that a stale listing misses: mostly a few, sometimes all."""
        return min(changes, self.rng.choice((1, 2, 3, 5, 10, 10**9)))

    def start(self, kind: str, body: Callable[[Process], Any]) -> Process:
        process = Process(self, kind, f"p{self._started:02d}.{kind}", body)
        self._started += 1
        self._last_start = self.turns
        self.live.append(process)
        self.count[f"started: {kind}"] += 1
        self.record(process.name, "starts")
        return process

    def kill(self, process: Process) -> None:
        """Kill the process at its current request, even if it is paused."""
        process.dead = True
        self.count["KILLED"] += 1
        self.record(process.name, "is killed")
        process.paused_until = 0
        self._resume(process)

    def stop(self) -> None:
        """End the processes that are left after a violation. Otherwise their stacks unwind during a later simulation."""
        for process in self.live:
            process.greenlet.throw()

    def apply_late(self, *, also_future: bool = False) -> None:
        """Apply the late requests that are due. With ``also_future``, apply all of them."""
        due = [late for late in self._late if also_future or late[0] <= self.turns]
        self._late = [late for late in self._late if late not in due]
        for _, request, apply in due:
            self.record("(late)", request)
            apply()

    def run(
        self, before_turn: Callable[[], None], ended: Callable[[Process], None], has_pending: Callable[[], bool]
    ) -> None:
        """
        Take turns until no process runs and none is pending. After many turns the faults stop, so that every process ends.

        :param before_turn: called before each turn. It may start processes
        :param ended: called with each process that ended
        :param has_pending: whether more processes will start
        """
        while self.live or has_pending():
            before_turn()
            self.apply_late()
            self.turns += 1
            self.faults.stopped = self.turns > FAULTS_STOP_AFTER
            if self.turns > max(self._last_start, FAULTS_STOP_AFTER) + MAX_TURNS:
                raise Violation(f"a process did not end within {MAX_TURNS} turns without faults")
            ready = [p for p in self.live if p.paused_until <= self.turns]
            if ready:
                process = self.rng.choice(ready)
                self._resume(process)
            for process in [p for p in self.live if p.ended]:
                self.live.remove(process)
                self.count[f"{process.ended}: {process.kind}"] += 1
                self.record(process.name, process.ended + (f" {type(process.error).__name__}" if process.error else ""))
                ended(process)

    def _resume(self, process: Process) -> None:
        self.current = process
        process.greenlet.switch()
        self.current = None
