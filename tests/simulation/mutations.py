"""Mutations of the product, each with one fault. The simulation must detect all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.ledger import Ledger
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.deduplication import batch
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.pipeline.maintenance import abort
from airflow_provider_streamsem.pipeline.maintenance import vacuum as vacuum_module
from airflow_provider_streamsem.pipeline.run import plan_reprocess, run
from airflow_provider_streamsem.pipeline.run.plan import plan_batch
from airflow_provider_streamsem.pipeline.versions import commit as versions
from airflow_provider_streamsem.protocol import codec, keys, known, machine, procedures
from airflow_provider_streamsem.protocol.entries import Discovery, Outcome, RunPointer
from airflow_provider_streamsem.protocol.view import ClosedHead
from tests.simulation.scenario import ALTER_SEEDS, REWRITE_SEEDS, fixture_of
from tests.simulation.store import SimulatedStore


@dataclass(frozen=True)
class Mutation:
    """
    A mutation and the violation that it must cause.

    :param apply: mutates the product until the test ends
    :param message: a pattern for the message of the violation. A mutation that fails for another reason is not detected
    :param fixture: the name of the pipeline that must detect it
    :param first: a seed to try first, if few seeds detect it
    """

    apply: Callable[[pytest.MonkeyPatch], None]
    message: str
    fixture: str = "files"
    first: int | None = None

    def seeds(self, seeds: int) -> list[int]:
        """The seeds with the mutation's pipeline, in the order in which they are tried."""
        first = {"rewrites": REWRITE_SEEDS, "alters": ALTER_SEEDS}.get(self.fixture)
        if first is not None:
            return [*range(first, first + seeds)]
        own_seeds = [seed for seed in range(seeds) if fixture_of(seed).name == self.fixture and seed != self.first]
        return own_seeds if self.first is None else [self.first, *own_seeds]


def request_trusts_a_listing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "newest_head", CommitLog.find_head)


def outcome_is_created_before_its_pointer(patch: pytest.MonkeyPatch) -> None:
    def decide(head: Any, outcome: Outcome) -> Any:
        key = keys.outcome(head.plan.version)
        written = yield from procedures.create_entry(key, outcome)
        stored = outcome if written.mine else (yield from procedures.read_spilled(Outcome, key, written.data))[0]
        plan = head.plan
        pointer = RunPointer(run_key=plan.run_key, j=plan.j, version=plan.version, target=plan.target)
        yield from procedures.create_entry(keys.pointer(plan.run_key, plan.j), pointer)
        return head.with_outcome(stored, codec.sha256(written.data)), stored

    patch.setattr(procedures, "decide", decide)


def writer_returns_its_own_outcome_after_a_lost_create(patch: pytest.MonkeyPatch) -> None:
    real = procedures.decide

    def decide(head: Any, outcome: Outcome) -> Any:
        closed, _ = yield from real(head, outcome)
        return replace(closed, outcome=outcome), outcome

    patch.setattr(procedures, "decide", decide)


def plans_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedStore, "overwrites", lambda self, key: key.endswith(".p.json"))


def outcomes_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedStore, "overwrites", lambda self, key: key.endswith(".c.json"))


def unknown_answer_is_treated_as_created(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(machine.CREATE, (machine.CreateState.SENT, "unknown"), machine.CreateState.WON)


def writer_deletes_its_files_after_an_unknown_answer(patch: pytest.MonkeyPatch) -> None:
    real = run.Run.close_version

    def close(self: run.Run, head: Any) -> Any:
        try:
            return real(self, head)
        except UnavailableError:
            own = self.bound.log.clock._prefix  # type: ignore[attr-defined]
            for sink in self.bound.pipeline.sinks.values():
                for version, attempt in sorted(sink.attempts(head.plan.version)):
                    if attempt.startswith(own):
                        sink.discard(version, attempt)
            raise

    patch.setattr(run.Run, "close_version", close)


def adoption_does_not_check_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FilesSink, "is_complete", lambda self, committable: True)


def plan_is_staged_after_a_lost_create(patch: pytest.MonkeyPatch) -> None:
    def put_plan(head: Any, plan: Any) -> Any:
        written = yield from procedures.create_entry(keys.plan(plan.version), plan)
        own = head.with_plan(plan, codec.encode(plan).sha256, is_new=written.first)
        return procedures.Planned(own=own, head=own)

    patch.setattr(procedures, "put_plan", put_plan)


def drain_target_is_polled_for_each_batch(patch: pytest.MonkeyPatch) -> None:
    def plan(opened: Any, planner: Any, ready: Any, **kwargs: Any) -> Any:
        if ready.target is not None:
            ready = replace(ready, target=planner.poll(ready.head.hint).offsets)
        return plan_batch(opened, planner, ready, **kwargs)

    patch.setattr(run, "plan_batch", plan)


def reprocess_replaces_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    def find_current(version: int, head: Any) -> Any:
        return version
        yield

    patch.setattr(procedures, "find_current", find_current)


def reprocess_trusts_the_listed_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "confirm_head", lambda self, head: head)


def pointers_are_read_before_the_head(patch: pytest.MonkeyPatch) -> None:
    real = procedures.locate

    def locate(run_key: str, head: Any) -> Any:
        early = yield from procedures._newest_pointer(run_key)
        head = yield from procedures.confirm_head(head)
        if early is None and isinstance(head, ClosedHead):
            return procedures.Ready(head=head)
        return (yield from real(run_key, head))

    patch.setattr(procedures, "locate", locate)


def pointers_are_read_from_a_listing(patch: pytest.MonkeyPatch) -> None:
    def newest_pointer(run_key: str) -> Any:
        listed = yield from machine.list_keys(keys.run(run_key), 1)
        if not listed:
            return None
        stored = yield from procedures.read_entry(RunPointer, listed[0])
        return None if stored is None else stored[0]

    patch.setattr(procedures, "_newest_pointer", newest_pointer)


def newest_pointer_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    def newest_pointer(run_key: str) -> Any:
        first = yield from procedures.read_entry(RunPointer, keys.pointer(run_key, 0))
        listed = yield from machine.list_keys(keys.run(run_key), 1)
        hint = max((j for j in map(keys.parse_newest_first, listed) if j is not None), default=0)
        newest = (yield from procedures.read_entry(RunPointer, keys.pointer(run_key, hint))) if hint else first
        return None if newest is None else newest[0]

    patch.setattr(procedures, "_newest_pointer", newest_pointer)


def drain_checks_only_its_own_last_outcome(patch: pytest.MonkeyPatch) -> None:
    real = procedures.position_after

    def position_after(head: Any, plan: Any, outcome: Outcome) -> Any:
        position = real(replace(head, outcome=outcome), plan, outcome)
        return replace(position, head=head)

    patch.setattr(procedures, "position_after", position_after)
    patch.setattr(run, "position_after", position_after)


def vacuum_deletes_attempts_of_open_versions(patch: pytest.MonkeyPatch) -> None:
    real = vacuum_module._LostAttempts.__call__

    def has_lost(self: Any, attempt_id: str) -> bool:
        return real(self, attempt_id) or self._outcome() is None

    patch.setattr(vacuum_module._LostAttempts, "__call__", has_lost)
    patch.setattr(vacuum_module, "range", lambda *bounds: range(*bounds[:-1], bounds[-1] + 1), raising=False)


def vacuum_deletes_files_that_reprocessing_runs_replaced(patch: pytest.MonkeyPatch) -> None:
    real = vacuum_module.vacuum

    def vacuum(pipeline: Any, *, log: CommitLog, **kwargs: Any) -> Any:
        report = real(pipeline, log=log, **kwargs)
        version = 0
        while (stored := log.outcome(version)) is not None:
            if stored.replaces is not None:
                for at, attempt in sorted(pipeline.sinks["out"].attempts(stored.replaces)):
                    pipeline.sinks["out"].discard(at, attempt)
            version += 1
        return report

    patch.setattr(vacuum_module, "vacuum", vacuum)


def files_missing_from_a_listing_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = known.compare

    def compare(node: known.Node, listed: Any, settled_ns: int, **named: Any) -> Any:
        new = yield from real(node, listed, settled_ns, **named)
        node.files = {file: True for file, was_listed in node.files.items() if was_listed}
        return new

    patch.setattr(known, "compare", compare)


def discovery_is_used_after_a_lost_create(patch: pytest.MonkeyPatch) -> None:
    def create(self: Ledger, entry: Discovery) -> bool:
        self._log.perform(procedures.create_entry(keys.discovered(entry.i), entry))
        self._newest = entry
        return True

    patch.setattr(Ledger, "_create", create)


def abort_drops_the_state(patch: pytest.MonkeyPatch) -> None:
    real = versions.abort_outcome
    for module in (versions, abort, run, plan_reprocess):
        patch.setattr(module, "abort_outcome", lambda *args, **named: replace(real(*args, **named), state=None))


def with_states(patch: pytest.MonkeyPatch, mutate: Callable[[Any, Any, Any], None]) -> None:
    """Let ``mutate`` change the states of each attempt. It is called with the pipeline, the open head and the states."""
    real = run.states_of

    def states_of(opened: Any, head: Any) -> Any:
        found = real(opened, head)
        mutate(opened, head, found)
        return found

    patch.setattr(run, "states_of", states_of)


def reprocess_uses_the_current_deduplication_state(patch: pytest.MonkeyPatch) -> None:
    def mutate(opened: Any, head: Any, found: Any) -> None:
        found.base = None if head.outcome is None else head.outcome.state
        found.batch_time_ms = head.plan.planned_at_ms

    with_states(patch, mutate)


def reprocess_ignores_ids_after_its_root(patch: pytest.MonkeyPatch) -> None:
    def mutate(opened: Any, head: Any, found: Any) -> None:
        if found.chain is not None:
            found.chain = replace(found.chain, current=found.chain.commits[0][0])

    with_states(patch, mutate)


def adoption_does_not_check_the_deduplication_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run.layers, "is_complete", lambda log, state: True)


def each_attempt_reads_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    def mutate(opened: Any, head: Any, found: Any) -> None:
        found.batch_time_ms = opened.log.clock.now_ms()

    with_states(patch, mutate)


def layers_expire_with_their_oldest_id(patch: pytest.MonkeyPatch) -> None:
    real = batch.state_after

    def state_after(kept: Any, older: Any, written: Any, now_ms: int, *, state: Any) -> Any:
        state = real(kept, older, written, now_ms, state=state)
        state["dedup"][-1]["newest_ms"] = min([now_ms, *(layer.newest_ms for layer in older)])
        return state

    patch.setattr(batch, "state_after", state_after)


RESULT = "(run|abort|skip) result"
NO_POINTER = f"I16|{RESULT}|more than once|not numbered"
DUPLICATES = "duplicate id|as a duplicate|missing or duplicated|id twice"

MUTATIONS = (
    Mutation(request_trusts_a_listing, "has not reprocessed a version", first=308),
    Mutation(outcome_is_created_before_its_pointer, f"{NO_POINTER}|no run pointer"),
    Mutation(writer_returns_its_own_outcome_after_a_lost_create, RESULT),
    Mutation(plans_are_overwritten, "I3|I4|sha256 of its plan"),
    Mutation(outcomes_are_overwritten, f"I3|{RESULT}|duplicated|I7"),
    Mutation(unknown_answer_is_treated_as_created, "."),
    Mutation(writer_deletes_its_files_after_an_unknown_answer, "I6|visible file is missing", first=3_064),
    Mutation(adoption_does_not_check_files, "I6|visible file is missing", first=84),
    Mutation(plan_is_staged_after_a_lost_create, "I3"),
    Mutation(drain_target_is_polled_for_each_batch, "target"),
    Mutation(reprocess_replaces_the_first_commit, "I20|not visible"),
    Mutation(reprocess_trusts_the_listed_head, "made no new version|only a committed batch"),
    Mutation(pointers_are_read_before_the_head, NO_POINTER, first=80),
    Mutation(pointers_are_read_from_a_listing, NO_POINTER),
    Mutation(newest_pointer_is_not_confirmed, NO_POINTER),
    Mutation(drain_checks_only_its_own_last_outcome, "a drain has not reached its target, but", first=42),
    Mutation(vacuum_deletes_attempts_of_open_versions, "I6|visible file is missing", first=124),
    Mutation(vacuum_deletes_files_that_reprocessing_runs_replaced, "I6|visible file is missing"),
    Mutation(files_missing_from_a_listing_are_forgotten, "D1|duplicated", first=121),
    Mutation(discovery_is_used_after_a_lost_create, ".", first=122),
    Mutation(abort_drops_the_state, f"I25|{DUPLICATES}", "dedup", first=6829),
    Mutation(reprocess_uses_the_current_deduplication_state, "other ids|missing or duplicated", "dedup"),
    Mutation(reprocess_ignores_ids_after_its_root, DUPLICATES, "dedup"),
    Mutation(
        adoption_does_not_check_the_deduplication_state,
        "deduplication state is missing|magic bytes",
        "dedup",
        first=133,
    ),
    Mutation(each_attempt_reads_its_own_clock, "duplicate id|as a duplicate|other ids", "dedup"),
    Mutation(layers_expire_with_their_oldest_id, "duplicate id|as a duplicate|other ids", "dedup", first=413),
)
