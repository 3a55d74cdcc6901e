"""
Explores every interleaving breadth-first, and returns the shortest counterexample.

A state is stored as one integer that combines the indexes of its fields. The same field values occur in many states, so this saves memory.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.predicates import OF_PROCESSES, RETURNED, STEPS, STORED
from tests.model.protocol import Protocol
from tests.model.state import COMPLETED, NONE, Label, State

BITS = 24
PARTS = len(State._fields)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an exploration: the number of states and, if an invariant is violated, its name, a message and the shortest trace."""

    states: int
    invariant: str = ""
    message: str = ""
    trace: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every invariant holds in every state."""
        return not self.invariant

    def __str__(self) -> str:
        result = f"{self.states:,} states, all invariants hold" if self.holds else f"{self.invariant}: {self.message}"
        return "\n".join([result, *(f"  {k:2d}. {step}" for k, step in enumerate(self.trace, 1))])


@dataclass(slots=True)
class Explorer:
    """One exploration. The invariants in ``unchecked`` are ignored, to find later violations."""

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
        """Explore all states. The garbage collector is off: there are no cycles, and it would traverse all states repeatedly."""
        gc.disable()
        try:
            return self._run()
        finally:
            gc.enable()

    def _run(self) -> Verdict:
        start = self.protocol.normalize(self.protocol.start())
        self._add(start, 0)
        k = 0
        while k < len(self._order):
            s = self._state(k)
            for run, label, after in self.protocol.successors(s):
                violation = self._step_violation(s, after)
                known = len(self._order)
                j = self._add(after, k)
                violation = violation or (self._state_violation(after) if j == known else None)
                if violation is not None:
                    return Verdict(len(self._order), *violation, (*self._trace(k), self._label_text(label)))
                self._edges.append(j)
                self._movers.append(run)
            self._ends.append(len(self._edges))
            k += 1
        return self._liveness()

    # ---- states as numbers

    def states(self) -> Iterator[State]:
        """All states that were reached."""
        return (self._state(k) for k in range(len(self._order)))

    def _add(self, s: State, parent: int) -> int:
        key = 0
        for numbers, parts, part in zip(self._numbers, self._parts, s, strict=True):
            part_index = numbers.get(part)
            if part_index is None:
                part_index = numbers[part] = len(parts)
                parts.append(part)
            key = key << BITS | part_index
        index = self._known.get(key)
        if index is None:
            index = self._known[key] = len(self._order)
            self._order.append(key)
            self._parent.append(parent)
        return index

    def _state(self, k: int) -> State:
        key, parts = self._order[k], []
        for stored in reversed(self._parts):
            parts.append(stored[key & (1 << BITS) - 1])
            key >>= BITS
        return State(*reversed(parts))

    # ---- invariants

    def _state_violation(self, s: State) -> tuple[str, str] | None:
        """The first invariant that the state violates, and a message. Fields that passed once are not checked again."""
        stored = (s.log, s.pointers, s.external)
        returned = tuple((i, p.n) for i, p in enumerate(s.processes) if p.at == COMPLETED)
        for table, fields in ((STORED, stored), (RETURNED, (returned, s.log))):
            if fields in self._passed:
                continue
            for name, predicate in table.items():
                message = "" if name in self.unchecked else predicate(s, self.protocol.configuration)
                if message:
                    return name, message
            self._passed.add(fields)
        return None

    def _step_violation(self, before: State, after: State) -> tuple[str, str] | None:
        are_stored = before[:3] != after[:3]
        for name, predicate in STEPS.items():
            if not are_stored and name not in OF_PROCESSES:
                continue
            message = "" if name in self.unchecked else predicate(before, after, self.protocol.configuration)
            if message:
                return name, message
        return None

    def _liveness(self) -> Verdict:
        """
        Check I10. From every state some path closes the open version and completes every run. In addition, the processes of each run must close the open
        version and complete alone, while all others are halted and all requests in flight are lost. A run that may wait for others is exempt.
        """
        states = len(self._order)
        if "I10" in self.unchecked:
            return Verdict(states)
        runs = sorted({actor.run for actor in self.protocol.actors})
        good = {NONE: bytearray(), **{run: bytearray() for run in runs}}
        for k in range(states):
            s = self._state(k)
            good[NONE].append(self.protocol.is_closed(s) and self.protocol.are_all_complete(s))
            for run in runs:
                good[run].append(self.protocol.is_complete(s, run) or self.protocol.waits_for_others(s, run))
        for run, reached in good.items():
            stuck = self._spread(reached, run).find(0)
            if stuck >= 0:
                alone = f"run {run} never completes while all others are halted"
                message = "no path closes the open version and completes every run" if run == NONE else alone
                return Verdict(states, "I10", message, self._trace(stuck))
        return Verdict(states)

    def _spread(self, good: bytearray, run: int) -> bytearray:
        """Mark every state from which a marked one can be reached, by any step or only by steps of one run."""
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

    # ---- counterexamples

    def _trace(self, k: int) -> tuple[str, ...]:
        """The steps from the start to state k. Labels are not stored, so each step is computed again."""
        steps: list[str] = []
        while k:
            parent = self._parent[k]
            for _, label, after in self.protocol.successors(self._state(parent)):
                if self._add(after, parent) == k:
                    steps.append(self._label_text(label))
                    break
            k = parent
        return tuple(reversed(steps))

    @staticmethod
    def _label_text(label: Label) -> str:
        return " ".join(_item_text(item) for item in label)


def _item_text(item: object) -> str:
    if item is True:
        return "created"
    if item is False:
        return "exists"
    return "".join(_item_text(part) for part in item) if isinstance(item, tuple) else str(item)


def explore(protocol: Protocol, *, unchecked: Iterable[str] = ()) -> Verdict:
    """Explore a protocol or a mutant in its scope."""
    return Explorer(protocol, tuple(unchecked)).run()
