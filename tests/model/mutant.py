"""A mutant is the protocol with one rule broken. It says which invariant catches it, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.model.protocol import Protocol
from tests.model.state import DELETED, State, with_attempt


class Mutant(Protocol):
    """A protocol that may tell apart what the unbroken one cannot: nothing is folded."""

    folds = False


M = TypeVar("M", bound=type[Mutant])


@dataclass(frozen=True, slots=True)
class Broken:
    """
    An entry of the table of mutants.

    :param invariant: what catches it
    :param configuration: the smallest scope that was found to show it
    :param unchecked: invariants that are let pass, so that not the missing object is caught but what follows from it
    """

    protocol: type[Mutant]
    invariant: str
    configuration: str
    unchecked: tuple[str, ...]

    @property
    def says(self) -> str:
        """What is wrong, in one line."""
        return " ".join((self.protocol.__doc__ or "").split())


MUTANTS: dict[str, Broken] = {}
"""name → mutant"""


def caught_by(invariant: str, configuration: str, *, unchecked: tuple[str, ...] = ()) -> Callable[[M], M]:
    """Enter a class into the table, under its name in lower case with underscores."""

    def enter(cls: M) -> M:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        assert name not in MUTANTS, name
        MUTANTS[name] = Broken(cls, invariant, configuration, unchecked)
        return cls

    return enter


def deleted(s: State, n: int, x: int) -> State:
    """The state after an attempt's files and manifest were deleted."""
    return with_attempt(s, n, x, s.log[n].attempts[x]._replace(files=DELETED, manifest=False))
