"""The protocol satisfies all invariants in every scope, and every mutant that breaks one of its rules is caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_streamsem.protocol.kinds.erase import Erase
from airflow_provider_streamsem.protocol.machine import RECOVERY, Step
from tests.model.configurations import AMO, CONFIGURATIONS, EXHAUSTIVE, SMALL, TXN, A, Configuration, D, R
from tests.model.explore import Explorer, explore
from tests.model.mutants import MUTANTS, find_violation
from tests.model.predicates import RETURNED, STEPS, STORED
from tests.model.protocol import Protocol
from tests.model.state import (
    ABORT,
    ALTER,
    BATCH,
    COMMIT,
    COMPLETED,
    EXPIRE,
    INTERVAL,
    KINDS,
    NONE,
    PLAN,
    REPROCESS,
    REWRITE,
    ROLLBACK,
    WITHOUT_PUBLISH,
    WITHOUT_ROWS,
    Budget,
    Outcome,
    Plan,
    State,
    Version,
)


def require_holds(name: str) -> None:
    verdict = explore(Protocol(CONFIGURATIONS[name]))
    assert verdict.holds, f"{name}: {verdict}"
    assert verdict.states == CONFIGURATIONS[name].states, "the number of explored states has changed"


@pytest.mark.parametrize("name", SMALL)
def test_protocol_holds_in_every_small_configuration(name: str) -> None:
    require_holds(name)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", EXHAUSTIVE)
def test_protocol_holds_in_every_exhaustive_configuration(name: str) -> None:
    require_holds(name)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    verdict = find_violation(name)
    assert verdict.invariant == MUTANTS[name].invariant, f"{name}: {verdict}"


def test_model_has_every_kind_of_version_of_the_package() -> None:
    # An erasure is a rewrite and an expiry in one version; tests/pipeline/test_erase.py enumerates its requests and those of other writers.
    assert {BATCH, INTERVAL, REPROCESS, ROLLBACK, ALTER, REWRITE, EXPIRE} == {*KINDS} - {Erase.kind}
    assert {*WITHOUT_PUBLISH} == {*WITHOUT_ROWS} - {ROLLBACK, Erase.kind}, (
        "a rollback removes rows from sinks outside the log"
    )


def test_every_invariant_is_violated_by_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS.values()} == {*STORED, *RETURNED, *STEPS, "I10"}


def test_every_mutant_has_a_docstring() -> None:
    for name, mutant in MUTANTS.items():
        assert mutant.protocol.__dict__.get("__doc__"), name


def test_pages_have_the_numbers_of_scopes_states_and_mutants() -> None:
    small, exhaustive, states = len(SMALL), len(EXHAUSTIVE), sum(s.states for s in CONFIGURATIONS.values())
    readme = Path(__file__).with_name("README.md").read_text()
    assert (
        f"in all {small} small and {exhaustive} exhaustive scopes, {states:,} states together. "
        f"All {len(MUTANTS)} mutants"
    ) in readme
    status = (Path(__file__).parents[2] / "docs" / "STATUS.md").read_text()
    assert f"{small} small scopes and every mutant in `make test`, {exhaustive} exhaustive scopes" in status


def test_readme_lists_every_scope_and_every_mutant() -> None:
    text = Path(__file__).with_name("README.md").read_text()
    for name, scope in CONFIGURATIONS.items():
        assert re.search(rf"^\| {name} \|.*\| {scope.states:,} \|$", text, re.MULTILINE), name
    for name, mutant in MUTANTS.items():
        assert re.search(rf"^\| {name} \| {mutant.invariant} \| {mutant.configuration}", text, re.MULTILINE), name


@pytest.mark.parametrize(("result", "position"), RECOVERY)
def test_model_takes_the_step_of_the_recovery_table_of_the_product(result: str, position: str) -> None:
    target = {"no target": NONE, "below target": 9, "target reached": 2}[position]
    outcome = Outcome(COMMIT, 0, 2) if result == "commit" else Outcome(ABORT, NONE, 2)
    protocol = Protocol(Configuration((D if target != NONE else A,), Budget()))
    log = (Version(Plan(BATCH, 0, 2, 0, 0, target), outcome),)
    start = protocol.start()._replace(log=log, pointers=((0,),))
    expected = {Step.PLAN: PLAN, Step.COMPLETE: COMPLETED}[RECOVERY[result, position]]
    assert protocol.next_step(start, 0, -1).at == expected


TINY = {
    "twins": Configuration((A, A), Budget(unknown=1, aborts=1)),
    "crash": Configuration((A, A), Budget(crashes=1, clears=1)),
    "drain": Configuration((D, D), Budget()),
    "reprocess": Configuration((A, R, R), Budget()),
    "transactional": Configuration((A, A), Budget(unknown=1, skips=1), (TXN,)),
    "at-most-once": Configuration((A, A), Budget(crashes=1, skips=1), (AMO,)),
}


def with_attempt_0(s: State) -> State:
    """The state with attempt 0 as the winning attempt in the sink and in transactions in flight."""
    rows = tuple((root, n, 0) for root, n, _ in s.external.rows)
    late = frozenset((*r[:2], 0, False) if r[0] == "transaction" and not r[3] else r for r in s.late)
    return s._replace(external=s.external._replace(rows=rows), late=late)


@pytest.mark.parametrize("name", TINY)
def test_folding_reaches_the_same_states(name: str) -> None:
    """Without folding, the protocol reaches more states and holds in all of them. Folded, they are exactly the states that are reached with folding."""

    class Unfolded(Protocol):
        folds = False

    folded, unfolded = Explorer(Protocol(TINY[name])), Explorer(Unfolded(TINY[name]))
    verdicts = folded.run(), unfolded.run()
    assert all(verdict.holds for verdict in verdicts), [str(verdict) for verdict in verdicts]
    assert verdicts[0].states < verdicts[1].states
    normalize = Protocol(TINY[name]).normalize
    assert {normalize(with_attempt_0(s)) for s in unfolded.states()} == set(folded.states())


def test_counterexample_is_the_shortest_and_readable() -> None:
    verdict = find_violation("plan_ahead")
    assert verdict.trace == (
        "A[0] lists the head and sees version -1",
        "A[0] reads its run pointers after version -1, then: plan 0",
        "A[0] sends its plan of version 0 -> created",
        "A[1] plans ahead of version 0",
        "A[1] sends its plan of version 1 -> created",
    )
    assert str(verdict).startswith("I2: version 1 is planned while version 0 is open")


def test_small_scopes_cover_all_faults_runs_and_sinks() -> None:
    """Every kind of fault, run and sink occurs in a small scope. No two scopes are the same."""
    for field in ("unknown", "crashes", "aborts", "vacuums", "state_vacuums", "clears", "skips"):
        assert any(getattr(scope.budget, field) for scope in SMALL.values()), field
    assert {sink for scope in SMALL.values() for sink in scope.sinks} == {
        "transactional",
        "at-least-once",
        "at-most-once",
    }
    assert {actor.kind for scope in SMALL.values() for actor in scope.actors} == {
        "single",
        "drain",
        "reprocess",
        "rollback",
        "alter",
        "compaction",
        "expiry",
        "interval",
    }
    scopes: list[Configuration] = list(CONFIGURATIONS.values())
    for scope in scopes:
        runs = {(actor.run, actor.kind, actor.of, actor.config, actor.after) for actor in scope.actors}
        assert len({actor.run for actor in scope.actors}) == len(runs), "a run key belongs to one run"
    assert len({(c.actors, c.budget, c.sinks, c.stale, c.poison, c.keep) for c in scopes}) == len(scopes)
