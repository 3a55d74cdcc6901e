"""A mutant is the protocol with one rule broken. The table of mutants records which invariant detects it, and in which scope."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.model.protocol import Protocol
from tests.model.state import DELETED, State, with_attempt


class Mutant(Protocol):
    """A protocol with a broken rule. It may distinguish states that the protocol does not, so states are not folded."""

    folds = False


M = TypeVar("M", bound=type[Mutant])


@dataclass(frozen=True, slots=True)
class MutantEntry:
    """
    An entry of the table of mutants.

    :param invariant: the violated invariant
    :param configuration: the smallest known scope that detects the mutant
    :param unchecked: invariants that are ignored, so that a later violation is found
    """

    protocol: type[Mutant]
    invariant: str
    configuration: str
    unchecked: tuple[str, ...]

    @property
    def description(self) -> str:
        """The broken rule, in one line."""
        return " ".join((self.protocol.__doc__ or "").split())


MUTANTS: dict[str, MutantEntry] = {}
"""Name → mutant."""


def caught_by(invariant: str, configuration: str, *, unchecked: tuple[str, ...] = ()) -> Callable[[M], M]:
    """Add a class to the table, under its name in lower case with underscores."""

    def add(cls: M) -> M:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        assert name not in MUTANTS, name
        MUTANTS[name] = MutantEntry(cls, invariant, configuration, unchecked)
        return cls

    return add


def with_deleted_attempt(s: State, n: int, x: int) -> State:
    """The state after an attempt's files and manifest were deleted."""
    return with_attempt(s, n, x, s.log[n].attempts[x]._replace(files=DELETED, manifest=False))
