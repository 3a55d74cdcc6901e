"""All mutants, by name."""

from __future__ import annotations

from tests.model import (
    mutants_alter,
    mutants_expire,
    mutants_interval,
    mutants_publish,
    mutants_reprocess,
    mutants_rewrite,
    mutants_rollback,
    mutants_runs,
    mutants_state,
    mutants_store,
    mutants_writer,
)
from tests.model.configurations import CONFIGURATIONS
from tests.model.explore import Verdict, explore
from tests.model.mutant import MUTANTS, MutantEntry

__all__ = ["MUTANTS", "MutantEntry", "find_violation"]

_MODULES = (
    mutants_alter,
    mutants_expire,
    mutants_interval,
    mutants_publish,
    mutants_reprocess,
    mutants_rewrite,
    mutants_rollback,
    mutants_runs,
    mutants_state,
    mutants_store,
    mutants_writer,
)  # their import fills the table


def find_violation(name: str) -> Verdict:
    """Explore a mutant until an invariant is violated."""
    mutant = MUTANTS[name]
    return explore(mutant.protocol(CONFIGURATIONS[mutant.configuration]), unchecked=mutant.unchecked)
