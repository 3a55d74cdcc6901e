"""Processes that take turns: each is a greenlet, and who goes on is drawn by the seed. No threads, no clock of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.stores.contract import UnknownAnswerError
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.simulation.faults import Fate, Weather
from tests.simulation.store import Truth, View, shown

CALM_AFTER = 2_500
MOST_TURNS = 8_000
_BEGAN_MS = 1_700_000_000_000
_TURN_MS = 50


class Violation(AssertionError):
    """Something that the protocol excludes was seen. ``trace``: the events until then."""

    trace: Sequence[str] = ()


class TurningClock(ManualClock):
    """A process's own clock: it goes on with the turns, is off by some seconds, and to sleep is to give up one's turn."""

    def __init__(self, process: Process, off_ms: int) -> None:
        super().__init__(off_ms, process.name)
        self._process = process

    def now_ms(self) -> int:
        return super().now_ms() + self._process.scheduler.now_ms

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._process.turn()


class WaitingClock:
    """The clock by which sinks wait before they ask again: whoever sleeps gives up its turn."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def sleep(self, seconds: float) -> None:
        if self._scheduler.current is not None:
            self._scheduler.current.turn()


class Process:
    """
    One process: it dies, waits and is answered as its fate has it. Dead, it can do nothing more, whatever it tries while it unwinds.

    :attr holds_locks: whether others would wait for it forever: what it does to files meanwhile is no turn
    :attr refused: whether a sink outside the log refused it something
    :attr deferred: whether an endpoint limited the rate of its calls
    :attr manifests: keys of staged manifests that it read or made, and could decide
    :attr began_at: the newest closed version when it began
    :attr retry: what is to be started again where it ends without an answer
    :attr ended: ``answered``, ``died`` or ``failed``; ``""`` while it lives
    """

    def __init__(self, scheduler: Scheduler, kind: str, name: str, body: Callable[[Process], Any]) -> None:
        self.scheduler = scheduler
        self.kind = kind
        self.name = name
        self.dead = False
        self.wakes = 0
        self.cut_off = 0
        self.saw_stale = False
        self.disturbed = False
        self.refused = False
        self.deferred = False
        self.holds_locks = False
        self.began_at = scheduler.summary.closed
        self.manifests: set[str] = set()
        self.retry: tuple[str, str] | None = None
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = ""
        self.log = CommitLog(
            View(self, scheduler.summary),
            TurningClock(self, scheduler.rng.randrange(-5_000, 5_000)),
            RetryPolicy(tries=scheduler.rng.choice((2, 3, 5))),
        )
        self._body = body
        self.greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            self.result = self._body(self)
            self.ended = "answered"
        except Crash:
            self.ended = "died"
        except Exception as error:  # whether it may fail so, the scenario says
            self.error = error
            self.ended = "failed"

    def turn(self) -> None:
        """Let the others go on; comes back when the scheduler says so, or not at all."""
        if self.dead:
            raise Crash
        self.scheduler.hub.switch()
        if self.dead:
            raise Crash

    def sends(self, what: str, *, listing: bool = False, on_disk: bool = False) -> Fate:
        """A request or step is about to be done: wait for a turn and draw its fate."""
        self.turn()
        weather = self.scheduler.weather
        if self.cut_off and not weather.calm and not on_disk:
            self.cut_off -= 1
            fate = self.scheduler.rng.choice((Fate.NEVER, Fate.LOST_REPLY, Fate.LATE))
        else:
            fate = weather.fate_on_disk(listing=listing) if on_disk else weather.fate(listing=listing)
        if fate is not Fate.GOOD:
            self.disturbed = True
            self.scheduler.count[fate.name] += 1
            self.scheduler.says(self.name, f"{what} ! {fate.name}")
        if fate is Fate.PARTITION:
            self.cut_off = self.scheduler.rng.randrange(1, 6)
            fate = Fate.NEVER
        if fate is Fate.CRASH_BEFORE:
            self.die()
        if fate is Fate.PAUSE:
            self.wakes = self.scheduler.turns + self.scheduler.rng.randrange(10, 11 + weather.longest_pause)
            self.turn()
            fate = Fate.GOOD
        return fate

    def answered(self, fate: Fate, key: str, what: str) -> None:
        """A request was applied; whether its sender learns of it is its fate."""
        self.scheduler.says(self.name, what)
        if fate is Fate.CRASH_AFTER:
            self.die()
        if fate is Fate.SLOW:
            self.turn()
        if fate is Fate.LOST_REPLY:
            raise UnknownAnswerError(key)

    def step(self, what: str) -> None:
        """A step that is no request: it may die before it, or wait."""
        fate = self.sends(what, on_disk=True)
        self.scheduler.says(self.name, what)
        if fate is Fate.CRASH_AFTER:
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Crash


class Scheduler:
    """
    Who goes on, and when what was delayed happens.

    :param rng: the only source of chance
    :attr trace: one line an event
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.weather = Weather(rng)
        self.summary = Truth()
        self.hub = getcurrent()
        self.turns = 0
        self.live: list[Process] = []
        self.current: Process | None = None
        self.count: Counter[str] = Counter()
        self.trace: list[str] = []
        self._late: list[tuple[int, str, Callable[[], Any]]] = []
        self._born = 0

    @property
    def now_ms(self) -> int:
        """The true time."""
        return _BEGAN_MS + self.turns * _TURN_MS

    def says(self, who: str, what: str) -> None:
        self.trace.append(f"{self.turns:04d} {who:12} {what}")

    def later(self, what: str, apply: Callable[[], Any]) -> None:
        """A request that is under way and lands some turns from now."""
        self._late.append((self.turns + self.rng.randrange(1, 120), what, apply))

    def under_way(self, key: str) -> bool:
        """Whether a request for this key may still land."""
        return any(what.endswith(shown(key)) for _, what, _ in self._late)

    def age(self, changes: int) -> int:
        """How many changes a stale listing misses: mostly a few, sometimes all."""
        return min(changes, self.rng.choice((1, 2, 3, 5, 10, 10**9)))

    def start(self, kind: str, body: Callable[[Process], Any]) -> Process:
        process = Process(self, kind, f"p{self._born:02d}.{kind}", body)
        self._born += 1
        self.live.append(process)
        self.count[f"started: {kind}"] += 1
        self.says(process.name, "starts")
        return process

    def kill(self, process: Process) -> None:
        """The process dies where it stands, paused or not."""
        process.dead = True
        self.count["KILLED"] += 1
        self.says(process.name, "is killed")
        process.wakes = 0
        self._resume(process)

    def land(self, *, everything: bool = False) -> None:
        """Requests under way whose time has come are applied."""
        due = [late for late in self._late if everything or late[0] <= self.turns]
        self._late = [late for late in self._late if late not in due]
        for _, what, apply in due:
            self.says("(late)", what)
            apply()

    def run(self, tick: Callable[[], None], ended: Callable[[Process], None], more: Callable[[], bool]) -> None:
        """
        Take turns until nobody lives and nobody is to come. After many turns the faults stop, so that all comes to an end.

        :param tick: called before each turn; may start processes
        :param ended: called with each process that ended
        :param more: whether more are to come
        """
        while self.live or more():
            tick()
            self.land()
            self.turns += 1
            self.weather.calm = self.turns > CALM_AFTER
            if self.turns > MOST_TURNS:
                raise Violation("the processes never end")
            ready = [p for p in self.live if p.wakes <= self.turns]
            if ready:
                process = self.rng.choice(ready)
                self._resume(process)
            for process in [p for p in self.live if p.ended]:
                self.live.remove(process)
                self.count[f"{process.ended}: {process.kind}"] += 1
                self.says(process.name, process.ended + (f" {type(process.error).__name__}" if process.error else ""))
                ended(process)

    def _resume(self, process: Process) -> None:
        self.current = process
        process.greenlet.switch()
        self.current = None
