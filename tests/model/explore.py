"""
Breadth-first exploration of every interleaving, and the shortest way to what is wrong.

A state is kept as one integer made of the numbers of its parts, since parts repeat far more often than states do.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.predicates import STEPS, STORED, TOLD
from tests.model.protocol import Protocol
from tests.model.state import ANSWERED, NONE, Label, State

BITS = 24
PARTS = len(State._fields)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an exploration found: the invariant that broke and the shortest way there, or nothing; and how many states it looked at."""

    states: int
    invariant: str = ""
    what: str = ""
    trace: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every invariant holds in every state."""
        return not self.invariant

    def __str__(self) -> str:
        said = [f"{self.states:,} states, all invariants hold" if self.holds else f"{self.invariant}: {self.what}"]
        return "\n".join([*said, *(f"  {k:2d}. {step}" for k, step in enumerate(self.trace, 1))])


@dataclass(slots=True)
class Explorer:
    """One exploration. ``unchecked`` are invariants whose breach is let pass, to see what follows from it."""

    protocol: Protocol
    unchecked: Collection[str] = ()
    _numbers: list[dict[Any, int]] = field(default_factory=lambda: [{} for _ in range(PARTS)])
    _parts: list[list[Any]] = field(default_factory=lambda: [[] for _ in range(PARTS)])
    _known: dict[int, int] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _parent: array[int] = field(default_factory=lambda: array("I"))
    _edges: array[int] = field(default_factory=lambda: array("I"))
    _movers: array[int] = field(default_factory=lambda: array("b"))
    _ends: array[int] = field(default_factory=lambda: array("Q"))
    _passed: set[Any] = field(default_factory=set)

    def run(self) -> Verdict:
        """Look at every state. The garbage collector has nothing to find here and would look at everything again and again."""
        gc.disable()
        try:
            return self._run()
        finally:
            gc.enable()

    def _run(self) -> Verdict:
        start = self.protocol.tidy(self.protocol.start())
        self._add(start, 0)
        k = 0
        while k < len(self._order):
            s = self._state(k)
            for run, label, after in self.protocol.successors(s):
                broken = self._step_breaks(s, after)
                known = len(self._order)
                j = self._add(after, k)
                broken = broken or (self._state_breaks(after) if j == known else None)
                if broken is not None:
                    return Verdict(len(self._order), *broken, (*self._trace(k), self._say(label)))
                self._edges.append(j)
                self._movers.append(run)
            self._ends.append(len(self._edges))
            k += 1
        return self._liveness()

    # ---- states as numbers

    def states(self) -> Iterator[State]:
        """Every state that was reached."""
        return (self._state(k) for k in range(len(self._order)))

    def _add(self, s: State, parent: int) -> int:
        key = 0
        for numbers, parts, part in zip(self._numbers, self._parts, s, strict=True):
            number = numbers.get(part)
            if number is None:
                number = numbers[part] = len(parts)
                parts.append(part)
            key = key << BITS | number
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self._order)
            self._order.append(key)
            self._parent.append(parent)
        return found

    def _state(self, k: int) -> State:
        key, parts = self._order[k], []
        for stored in reversed(self._parts):
            parts.append(stored[key & (1 << BITS) - 1])
            key >>= BITS
        return State(*reversed(parts))

    # ---- invariants

    def _state_breaks(self, s: State) -> tuple[str, str] | None:
        """The first invariant that the state breaks. What was found right once is not looked at again."""
        stored = (s.log, s.pointers, s.outside)
        told = tuple((i, p.n) for i, p in enumerate(s.processes) if p.at == ANSWERED)
        for table, seen in ((STORED, stored), (TOLD, (told, s.log))):
            if seen in self._passed:
                continue
            for name, predicate in table.items():
                what = "" if name in self.unchecked else predicate(s, self.protocol.configuration)
                if what:
                    return name, what
            self._passed.add(seen)
        return None

    def _step_breaks(self, before: State, after: State) -> tuple[str, str] | None:
        if before[:3] == after[:3]:
            return None
        for name, predicate in STEPS.items():
            what = "" if name in self.unchecked else predicate(before, after, self.protocol.configuration)
            if what:
                return name, what
        return None

    def _liveness(self) -> Verdict:
        """
        I10: from every state some path closes the open version and answers every run; and the processes of each run alone, all others halted and all
        requests on their way lost, close whatever stands in their way and are answered, unless they are meant to wait.
        """
        states = len(self._order)
        if "I10" in self.unchecked:
            return Verdict(states)
        runs = sorted({actor.run for actor in self.protocol.actors})
        good = {NONE: bytearray(), **{run: bytearray() for run in runs}}
        for k in range(states):
            s = self._state(k)
            good[NONE].append(self.protocol.is_closed(s) and all(p.at == ANSWERED for p in s.processes))
            for run in runs:
                good[run].append(self.protocol.is_served(s, run) or self.protocol.waits_for_others(s, run))
        for run, reached in good.items():
            stuck = self._spread(reached, run).find(0)
            if stuck >= 0:
                what = "no path closes the open version and answers every run"
                what = what if run == NONE else f"run {run} alone, all others halted, is never answered"
                return Verdict(states, "I10", what, self._trace(stuck))
        return Verdict(states)

    def _spread(self, good: bytearray, run: int) -> bytearray:
        """Mark every state from which a marked one can be reached, by any step or by those of one run."""
        edges, movers, ends = self._edges, self._movers, self._ends
        changed = True
        while changed:
            changed = False
            for k in range(len(good) - 1, -1, -1):
                if not good[k]:
                    for e in range(ends[k - 1] if k else 0, ends[k]):
                        if good[edges[e]] and (run == NONE or movers[e] == run):
                            good[k] = changed = True
                            break
        return good

    # ---- the way there

    def _trace(self, k: int) -> tuple[str, ...]:
        """The steps from the start to state k: each label is found again by taking the step again."""
        steps: list[str] = []
        while k:
            parent = self._parent[k]
            for _, label, after in self.protocol.successors(self._state(parent)):
                if self._add(after, parent) == k:
                    steps.append(self._say(label))
                    break
            k = parent
        return tuple(reversed(steps))

    @staticmethod
    def _say(label: Label) -> str:
        return " ".join(_word(item) for item in label)


def _word(item: object) -> str:
    if item is True:
        return "created"
    if item is False:
        return "exists"
    return "".join(_word(part) for part in item) if isinstance(item, tuple) else str(item)


def explore(protocol: Protocol, *, unchecked: Iterable[str] = ()) -> Verdict:
    """Explore a protocol, or a mutant of it, on its configuration."""
    return Explorer(protocol, tuple(unchecked)).run()
