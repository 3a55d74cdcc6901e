"""All mutants, by name."""

from __future__ import annotations

from tests.model import mutants_publish, mutants_reprocess, mutants_runs, mutants_store, mutants_writer
from tests.model.configurations import CONFIGURATIONS
from tests.model.explore import Verdict, explore
from tests.model.mutant import MUTANTS, Broken

__all__ = ["MUTANTS", "Broken", "hunt"]

_ENTERED = (
    mutants_publish,
    mutants_reprocess,
    mutants_runs,
    mutants_store,
    mutants_writer,
)  # importing them fills the table


def hunt(name: str) -> Verdict:
    """Explore a mutant until an invariant breaks."""
    broken = MUTANTS[name]
    return explore(broken.protocol(CONFIGURATIONS[broken.configuration]), unchecked=broken.unchecked)
