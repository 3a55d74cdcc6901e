"""Each invariant refuses an entry that breaks it, both before a write and after a read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import DataError, LogDamagedError, LogMovedError, StageError
from airflow_provider_streamsem.protocol import announcements, invariants, keys, procedures
from airflow_provider_streamsem.protocol.codec import encode, lines
from airflow_provider_streamsem.protocol.entries import (
    Claim,
    Committable,
    CompleteTime,
    Effects,
    Hidden,
    Kind,
    Marker,
    Outcome,
    Plan,
    Quarantine,
    Receipt,
    Receipts,
    RunPointer,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.kinds.erase import Erase, ErasedFiles, ErasedRecords
from airflow_provider_streamsem.protocol.kinds.expire import Expire
from airflow_provider_streamsem.protocol.kinds.move import Move
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.machine import Created, Exists, Found, Listed, Missing
from airflow_provider_streamsem.protocol.view import ClosedHead
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.protocol import samples
from tests.protocol.procedures import drive

EMPTY = ClosedHead(initial_offsets={"files": 0})
PLAN = samples.plan()
OPEN = EMPTY.with_plan(PLAN, encode(PLAN).sha256)
CLOSED = OPEN.with_outcome(samples.outcome(PLAN), "sha")


def raises_damage(invariant: str) -> object:
    return pytest.raises(LogDamagedError, match=f"invariant='{invariant}'")


def test_I1_different_bytes_of_a_deterministic_object_are_refused() -> None:
    with raises_damage("I1"):  # type: ignore[attr-defined]
        invariants.check_i1("k", b"stored", b"expected")
    invariants.check_i1("k", b"same", b"same")


def test_I2_outcome_without_its_plan_is_refused() -> None:
    with raises_damage("I2"):  # type: ignore[attr-defined]
        OPEN.with_outcome(samples.outcome(samples.plan(1)), "sha")


def test_I3_entry_with_a_wrong_hash_of_its_predecessor_is_refused() -> None:
    with raises_damage("I3"):  # type: ignore[attr-defined]
        EMPTY.with_plan(samples.plan(previous="other"), "sha")
    with raises_damage("I3"):  # type: ignore[attr-defined]
        OPEN.with_outcome(samples.outcome(PLAN, plan="other"), "sha")


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 3},
        {"ranges": {"files": (1, 2)}},
        {"ranges": {"files": (0, 0)}},
        {"ranges": {"other": (5, 6)}},
        {"watermark_ms": 5},
    ],
)
def test_I4_plan_that_does_not_start_at_the_end_of_the_last_is_refused(changes: dict[str, object]) -> None:
    with raises_damage("I4"):  # type: ignore[attr-defined]
        EMPTY.with_plan(samples.plan(**changes), "sha")


@pytest.mark.parametrize(
    "changes",
    [
        {"next": {"files": 2}},
        {"next": {"files": 0}},
        {"result": "abort", "next": {"files": 1}},
        {"next": {"files": 1, "other": 7}},
        {"next": {}},
    ],
)
def test_I4_outcome_with_another_next_than_its_plan_is_refused(changes: dict[str, object]) -> None:
    with raises_damage("I4"):  # type: ignore[attr-defined]
        OPEN.with_outcome(samples.outcome(PLAN, **changes), "sha")


def test_I5_ranges_that_leave_a_gap_or_overlap_or_overlaps_are_refused() -> None:
    for ranges in ([(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 1)], [(0, 4)]):
        with raises_damage("I5"):  # type: ignore[attr-defined]
            invariants.check_i5([{"files": r} for r in ranges], initial_offsets={"files": 0}, next={"files": 3})
    invariants.check_i5([{"files": (0, 1)}, {"files": (1, 3)}], initial_offsets={"files": 0}, next={"files": 3})


@pytest.mark.parametrize("gaps", [((0, 0),), ((1, 1),), ((0, 2),), ((0, 1), (0, 1)), ((2, 3),)])
def test_I5_gaps_that_overlap_or_are_outside_their_range_are_refused(gaps: tuple[tuple[int, int], ...]) -> None:
    plan = samples.plan(gaps={"files": gaps})
    opened = EMPTY.with_plan(plan, encode(plan).sha256)
    with raises_damage("I5"):  # type: ignore[attr-defined]
        opened.with_outcome(samples.outcome(plan, gaps={"files": gaps}), "sha")


def test_I5_commit_must_have_the_gaps_of_its_plan_and_an_abort_none() -> None:
    plan = samples.plan(gaps={"files": ((0, 1),)})
    opened = EMPTY.with_plan(plan, encode(plan).sha256)
    assert opened.with_outcome(samples.outcome(plan, gaps=plan.gaps), "sha").closed == 0
    assert opened.with_outcome(samples.outcome(plan, result="abort"), "sha").closed == 0
    for outcome in (samples.outcome(plan), samples.outcome(plan, result="abort", gaps=plan.gaps)):
        with raises_damage("I5"):  # type: ignore[attr-defined]
            opened.with_outcome(outcome, "sha")


def test_I6_missing_or_changed_files_are_reported() -> None:
    file = samples.file()
    invariants.check_i6(file, version=0, found_bytes=10, found_checksum="footer:x")
    for size, checksum in ((None, None), (9, None), (10, "footer:y")):
        with raises_damage("I6"):  # type: ignore[attr-defined]
            invariants.check_i6(file, version=0, found_bytes=size, found_checksum=checksum)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": {"read": 3, "parsed": 2, "quarantined": 0, "written.out": 2}},
        {"counts": {"read": 2, "parsed": 2, "quarantined": 0, "written.out": 3}},
        {"counts": {"read": 2, "parsed": 2, "quarantined": 0}},
        {"sinks": {"out": Committable(format="parquet", rows=3, files=(samples.file(),))}},
    ],
)
def test_I14_counts_that_do_not_add_up_are_refused(changes: dict[str, object]) -> None:
    with raises_damage("I14"):  # type: ignore[attr-defined]
        OPEN.with_outcome(samples.outcome(PLAN, **changes), "sha")


def test_I14_attempt_with_counts_that_do_not_reconcile_is_discarded() -> None:
    sinks = {"out": Committable(format="parquet", rows=2)}
    counts = {"parsed": 3, "filtered": 1}
    invariants.check_i14_staged(counts, sinks, passed_to_writer={"out": 2}, rows="filter")
    invariants.check_i14_staged({"parsed": 9, "filtered": 0}, sinks, passed_to_writer={"out": 2}, rows="any")
    no_rows = {"out": Committable(format="parquet", rows=0)}
    invariants.check_i14_staged({"parsed": 9, "filtered": 0}, no_rows, passed_to_writer={"out": None}, rows="any")
    for passed_to_writer in (3, 0, None):
        with pytest.raises(StageError, match="do not equal the rows in its files"):
            invariants.check_i14_staged(counts, sinks, passed_to_writer={"out": passed_to_writer}, rows="any")
    with pytest.raises(DataError, match="filter"):
        invariants.check_i14_staged({"parsed": 3, "filtered": 0}, sinks, passed_to_writer={"out": 2}, rows="filter")


def test_I16_pointer_to_another_version_is_refused() -> None:
    with raises_damage("I16"):  # type: ignore[attr-defined]
        invariants.check_i16(RunPointer(run_key="run-0", j=0, version=9), PLAN)


def test_I19_plan_beyond_the_target_or_after_a_single_batch_is_refused() -> None:
    invariants.check_i19(samples.plan(target={"files": 1}))
    with raises_damage("I19"):  # type: ignore[attr-defined]
        invariants.check_i19(samples.plan(target={"files": 0}))
    with raises_damage("I19"):  # type: ignore[attr-defined]
        invariants.check_i19(samples.plan(run_counts={"read": 1}))


def found(entry: object) -> Found:
    return Found(encode(entry).data)  # type: ignore[arg-type]


def test_listed_version_without_readable_entries_is_damage() -> None:
    with pytest.raises(LogDamagedError, match="neither plan nor outcome"):
        drive(procedures.find_head(), Listed(("log/99999999/999999999999-0.p.json",)), Missing(), Missing())


def test_open_version_whose_predecessor_is_open_is_damage() -> None:
    second = samples.plan(1, previous="x")
    with raises_damage("I2"):  # type: ignore[attr-defined]
        drive(procedures.read_head(1), Missing(), found(second), Missing())


def test_pointer_to_a_version_that_does_not_exist_is_damage() -> None:
    pointer = found(RunPointer(run_key="r", j=0, version=5))
    below = found(RunPointer(run_key="r", j=0, version=0))
    for head, events in (
        (EMPTY, [pointer, Listed(()), Missing(), Missing(), Missing()]),
        (CLOSED, [below, Listed(()), Missing(), Missing()]),
    ):
        with raises_damage("I16"):  # type: ignore[attr-defined]
            drive(procedures.locate("r", head), *events)


def test_W11_pointer_above_a_stale_head_is_followed_by_computed_keys() -> None:
    pointer = found(RunPointer(run_key="run-0", j=0, version=0))
    position = drive(procedures.locate("run-0", EMPTY), pointer, Listed(()), Missing(), Missing(), found(PLAN))
    assert isinstance(position, procedures.OpenVersion)
    outcome = samples.outcome(PLAN)
    position = drive(procedures.locate("run-0", EMPTY), pointer, Listed(("x",)), Missing(), found(outcome), found(PLAN))
    assert isinstance(position, procedures.RunComplete)
    assert position.outcome == outcome


def test_closed_version_below_the_head_without_outcome_is_damage() -> None:
    later = samples.plan(1, run_key="r")
    head = ClosedHead(initial_offsets={}, outcome=samples.outcome(samples.plan(2)), outcome_sha="s")
    with raises_damage("I2"):  # type: ignore[attr-defined]
        drive(
            procedures.locate("r", head),
            found(RunPointer(run_key="r", j=0, version=1)),
            Listed(()),
            Missing(),
            found(later),
            Missing(),
        )


def test_W12_writer_that_lost_the_plan_returns_the_head_of_the_winner() -> None:
    mine, theirs = samples.plan(nonce="mine"), samples.plan(nonce="theirs")
    outcome = samples.outcome(theirs)
    planned = drive(procedures.put_plan(EMPTY, mine), Exists(), found(theirs), found(outcome))
    assert (planned.own, planned.head.outcome) == (None, outcome)  # type: ignore[attr-defined]
    with raises_damage("I1"):  # type: ignore[attr-defined]
        drive(procedures.put_plan(EMPTY, mine), Exists(), found(theirs), Missing(), Missing())


def test_W17_manifests_of_another_plan_are_ignored() -> None:
    keys = ("attempts/0/a.json", "attempts/0/b.json", "attempts/0/c.json")
    good, other = samples.manifest(PLAN), samples.manifest(PLAN, plan="other")
    assert drive(procedures.find_staged(OPEN), Listed(keys), found(good), found(other), Missing()) == [good]


def test_W20_pointer_of_another_writer_is_checked_before_the_outcome_is_sent() -> None:
    outcome = samples.outcome(PLAN)
    with raises_damage("I16"):  # type: ignore[attr-defined]
        drive(procedures.decide(OPEN, outcome), Exists(), found(RunPointer(run_key="run-0", j=0, version=7)))
    theirs = samples.outcome(PLAN, nonce="theirs")
    equal = RunPointer(run_key="run-0", j=0, version=0)
    head, stored = drive(procedures.decide(OPEN, outcome), Exists(), found(equal), Exists(), found(theirs))  # type: ignore[misc]
    assert isinstance(head, ClosedHead)
    assert head.outcome == stored == theirs


def test_W4_spilled_fields_are_created_before_the_entry_and_read_with_it() -> None:
    big = samples.plan(pins=["x" * 100] * 1000)
    ((spill, part),) = encode(big).spills.items()
    requests = drive(procedures.create_entry("k", big), Created())
    assert [r.key for r in requests] == [spill, "k"]  # type: ignore[union-attr, attr-defined]
    assert drive(procedures.read_entry(Plan, "k"), found(big), Found(part)) == (big, encode(big).sha256)
    with pytest.raises(LogDamagedError, match="spilled"):
        drive(procedures.read_entry(Plan, "k"), found(big), Missing())
    with raises_damage("I1"):  # type: ignore[attr-defined]
        drive(procedures.create_entry("k", big), Exists(), Found(b"other"))
    assert drive(procedures.read_entry(StagedManifest, "k"), Missing()) is None


REPLACES = Reprocess(replaces=0, counts=samples.outcome(PLAN).counts)
REPROCESS = samples.plan(1, work=REPLACES, ranges=PLAN.ranges, previous="sha")


@pytest.mark.parametrize("replaced", [-1, 1, 2])
def test_I20_reprocess_that_replaces_no_earlier_version_is_refused(replaced: int) -> None:
    assert CLOSED.with_plan(REPROCESS, "sha").next == CLOSED.next
    work = dataclasses.replace(REPLACES, replaces=replaced)
    with raises_damage("I20"):  # type: ignore[attr-defined]
        CLOSED.with_plan(dataclasses.replace(REPROCESS, work=work), "sha")
    with raises_damage("I20"):  # type: ignore[attr-defined]
        samples.outcome(REPROCESS, work=work)


@dataclasses.dataclass(kw_only=True)
class EarlierVersions:
    """The versions before one, as a verification has read them."""

    kept: dict[int, Outcome]
    visible: frozenset[int] = frozenset()
    plans: dict[int, Plan] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    published: frozenset[str] = frozenset()

    def plan(self, version: int) -> Plan | None:
        return self.plans.get(version)

    def counts_after(self, version: int) -> dict[str, int]:
        return self.counts

    def published_after(self, version: int) -> frozenset[str]:
        return self.published


COMMIT = samples.outcome(PLAN)
BEFORE_REPROCESS = EarlierVersions(kept={0: COMMIT}, visible=frozenset({0}), plans={0: PLAN})


def test_I20_commit_with_other_ranges_gaps_or_counts_than_the_visible_commit_that_it_replaces_is_refused() -> None:
    commit = samples.outcome(REPROCESS)
    REPLACES.check_earlier(REPROCESS, commit, BEFORE_REPROCESS)
    for work, change in (
        (REPLACES, {"visible": frozenset({1})}),
        (REPLACES, {"plans": {0: samples.plan(ranges={"files": (0, 2)})}}),
        (REPLACES, {"plans": {0: samples.plan(gaps={"files": ((0, 1),)})}}),
        (dataclasses.replace(REPLACES, counts={}), {}),
    ):
        earlier = dataclasses.replace(BEFORE_REPROCESS, **change)  # type: ignore[arg-type]
        with raises_damage("I20"):  # type: ignore[attr-defined]
            work.check_earlier(REPROCESS, commit, earlier)
        for outcome in (None, samples.outcome(REPROCESS, result="abort")):
            work.check_earlier(REPROCESS, outcome, earlier)
    REPLACES.check_earlier(REPROCESS, commit, dataclasses.replace(BEFORE_REPROCESS, plans={}))


def test_I20_commit_must_replace_the_version_of_its_plan_and_an_abort_none() -> None:
    opened = CLOSED.with_plan(REPROCESS, encode(REPROCESS).sha256)
    unchanged = {"files": 1}
    assert opened.with_outcome(samples.outcome(REPROCESS, next=unchanged), "sha").next == unchanged
    assert opened.with_outcome(samples.outcome(REPROCESS, result="abort", next=unchanged), "sha").next == unchanged
    for work in (Batch(), dataclasses.replace(REPLACES, counts={})):
        with raises_damage("I20"):  # type: ignore[attr-defined]
            opened.with_outcome(samples.outcome(REPROCESS, next=unchanged, work=work), "sha")
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(samples.outcome(REPROCESS, next={"files": 2}), "sha")


@pytest.mark.parametrize("newest", [{"rollback": 1}, {"alter": -1}, {"rewrite": 10**12}])
def test_outcome_that_names_a_later_version_as_the_newest_commit_of_a_kind_is_refused(newest: dict[str, int]) -> None:
    with pytest.raises(LogDamagedError, match="later version"):
        samples.outcome(PLAN, newest=newest)


def test_I4_initial_offsets_of_a_later_plan_are_ignored() -> None:
    with raises_damage("I4"):  # type: ignore[attr-defined]
        CLOSED.with_plan(samples.plan(1, previous="sha", initial_offsets={"p9": 100}, ranges={"p9": (100, 200)}), "sha")


def test_I2_commit_without_a_payload_and_abort_with_one_are_refused() -> None:
    for changes in ({"work": None}, {"result": "abort", "work": Batch()}):
        with raises_damage("I2"):  # type: ignore[attr-defined]
            samples.outcome(PLAN, **changes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HidesACommit(Kind):
    """A kind without rows that hides the rows of one commit."""

    kind, name, invariant = "hide", "hide", "I99"

    @property
    def hidden(self) -> Hidden:
        return Hidden(commits=(0,))


def test_kind_without_rows_cannot_replace_the_rows_of_a_commit() -> None:
    with pytest.raises(LogDamagedError, match="has no rows"):
        samples.outcome(PLAN, work=HidesACommit(), sinks={}, counts={})


AT_3 = ClosedHead(outcome=samples.outcome(samples.plan(3), next={"a": 4, "b": 1}), outcome_sha="sha")
BACK = Rollback(to=1, next={"a": 2, "b": 0}, counts={"read": 4})
ROLLBACK = samples.plan(4, work=BACK, ranges={}, previous="sha")
OUTPUT = Committable(format="json", rows=0)
RESTORED = samples.outcome(samples.plan(1), next={"a": 2}, state={"dedup": 1})


def rolled_back(**changes: Any) -> Outcome:
    empty = {"attempt_id": None, "sinks": {}, "counts": {}}
    given = {"next": BACK.next, "newest": {"rollback": 4}, "state": RESTORED.state}
    return samples.outcome(ROLLBACK, **{**empty, **given, **changes})


def test_I21_rollback_without_an_earlier_position_or_with_ranges_is_refused() -> None:
    assert AT_3.with_plan(ROLLBACK, "sha").next == AT_3.next
    for changes in (
        {"ranges": {"a": (4, 5)}},
        {"work": dataclasses.replace(BACK, to=4)},
        {"work": dataclasses.replace(BACK, next={"a": 2})},
        {"work": dataclasses.replace(BACK, next={"a": 5, "b": 0})},
    ):
        with raises_damage("I21"):  # type: ignore[attr-defined]
            AT_3.with_plan(dataclasses.replace(ROLLBACK, **changes), "sha")


def test_I21_outcome_must_have_the_position_of_its_plan_and_name_the_newest_rollback() -> None:
    opened = AT_3.with_plan(ROLLBACK, encode(ROLLBACK).sha256)
    assert opened.with_outcome(rolled_back(), "sha").next == BACK.next
    abort = {"result": "abort", "work": None, "newest": {}, "next": AT_3.next, "state": None}
    assert opened.with_outcome(rolled_back(**abort), "sha").next == AT_3.next
    other = dataclasses.replace(BACK, to=2)
    for changes in ({"work": other}, {"newest": {}}, {"newest": {"rollback": 3}}, {**abort, "newest": {"rollback": 4}}):
        with raises_damage("I21"):  # type: ignore[attr-defined]
            opened.with_outcome(rolled_back(**changes), "sha")
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(rolled_back(next=AT_3.next), "sha")
    with raises_damage("I21"):  # type: ignore[attr-defined]
        rolled_back(work=dataclasses.replace(BACK, to=4))
    later = samples.plan(5, previous="sha", ranges={"a": (2, 3)})
    head = ClosedHead(outcome=rolled_back(), outcome_sha="sha").with_plan(later, encode(later).sha256)
    commit = samples.outcome(later, next={"a": 3, "b": 0}, newest={"rollback": 4})
    assert head.with_outcome(commit, "sha").next == {"a": 3, "b": 0}
    with raises_damage("I21"):  # type: ignore[attr-defined]
        head.with_outcome(dataclasses.replace(commit, newest={}), "sha")


@pytest.mark.parametrize(
    "change", [{"publish": ("table",)}, {"publish": ()}, {"publish": ("audit",), "sinks": {"out": OUTPUT}}]
)
def test_I21_rollback_has_no_output_and_publishes_to_the_sinks_of_its_plan(change: dict[str, Any]) -> None:
    back = dataclasses.replace(BACK, publish=("audit",))
    assert rolled_back(work=back, publish=("audit",)).requires_receipts
    with raises_damage("I21"):  # type: ignore[attr-defined]
        rolled_back(work=back, **change)


def test_I21_rollback_must_have_the_offsets_state_columns_counts_and_sinks_of_the_version_to_which_it_returns() -> None:
    earlier = EarlierVersions(kept={1: RESTORED}, counts={"read": 4})
    for outcome in (rolled_back(), None, rolled_back(result="abort", work=None, state=None)):
        BACK.check_earlier(ROLLBACK, outcome, earlier)
    for outcome, change in (
        (rolled_back(state=None), {}),
        (rolled_back(schemas={}), {}),
        (rolled_back(watermark_ms=1), {}),
        (None, {"kept": {1: dataclasses.replace(RESTORED, next={"a": 3})}}),
        (None, {"kept": {0: RESTORED}}),
        (None, {"counts": {}}),
        (None, {"published": frozenset({"table"})}),
    ):
        with raises_damage("I21"):  # type: ignore[attr-defined]
            BACK.check_earlier(ROLLBACK, outcome, dataclasses.replace(earlier, **change))  # type: ignore[arg-type]


BEFORE = samples.outcome(
    samples.plan(3),
    next={"a": 4, "b": 1},
    state={"dedup": 1, "spark": 2},
    schemas={"out": "{}", "old": "[]"},
    markers={"old": Marker(version=1, outcome="x"), "table": Marker(version=2, outcome="y")},
)
AT_ALTER = ClosedHead(outcome=BEFORE, outcome_sha="sha", markers=BEFORE.markers)
CHANGES = Alter(offsets={"c": 7}, state=("spark",), removed=("old",))
ALTER = samples.plan(4, work=CHANGES, ranges={}, previous="sha", spec="new")


def altered(**changes: Any) -> Outcome:
    given = {
        "attempt_id": None,
        "sinks": {},
        "counts": {},
        "next": {"a": 4, "b": 1, "c": 7},
        "newest": {"alter": 4},
        "state": {"dedup": 1},
        "schemas": {"out": "{}"},
        "markers": {"table": Marker(version=2, outcome="y")},
        "spec": "new",
    }
    return samples.outcome(ALTER, **{**given, **changes})


def test_I22_alter_without_changes_with_ranges_or_with_an_offset_of_a_known_partition_is_refused() -> None:
    assert AT_ALTER.with_plan(ALTER, "sha").next == BEFORE.next
    for changes in (
        {"ranges": {"a": (4, 5)}},
        {"work": Alter(offsets={"b": 1})},
    ):
        with raises_damage("I22"):  # type: ignore[attr-defined]
            AT_ALTER.with_plan(dataclasses.replace(ALTER, **changes), "sha")
    with raises_damage("I22"):  # type: ignore[attr-defined]
        ClosedHead().with_plan(dataclasses.replace(ALTER, version=0, previous=""), "sha")


def test_alter_starts_new_partitions_and_hides_the_rows_of_removed_sinks() -> None:
    assert (CHANGES.new_partitions, altered().hidden) == ({"c": 7}, Hidden(sinks=("old",)))


def test_I22_outcome_of_an_alter_follows_from_its_plan_and_the_outcome_before() -> None:
    opened = AT_ALTER.with_plan(ALTER, encode(ALTER).sha256)
    assert opened.with_outcome(altered(), "sha").next == {"a": 4, "b": 1, "c": 7}
    unchanged = {name: getattr(BEFORE, name) for name in ("next", "state", "schemas", "markers", "spec")}
    abort = {"result": "abort", "work": None, "newest": {}, **unchanged}
    assert opened.with_outcome(altered(**abort), "sha").next == BEFORE.next
    for changes in (
        {"work": Alter()},
        {"newest": {}},
        {**abort, "newest": {"alter": 4}},
        {"spec": "s"},
        {"state": BEFORE.state},
        {"schemas": BEFORE.schemas},
    ):
        with raises_damage("I22"):  # type: ignore[attr-defined]
            opened.with_outcome(altered(**changes), "sha")
    with raises_damage("I15"):  # type: ignore[attr-defined]
        opened.with_outcome(altered(markers=BEFORE.markers), "sha")
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(altered(next=BEFORE.next), "sha")
    with raises_damage("I22"):  # type: ignore[attr-defined]
        altered(publish=("table",), sinks={"table": OUTPUT})


def test_I22_versions_after_an_alter_name_it() -> None:
    later = samples.plan(5, previous="sha", ranges={"a": (4, 5)})
    head = ClosedHead(outcome=altered(), outcome_sha="sha", markers=altered().markers)
    opened = head.with_plan(later, encode(later).sha256)
    commit = samples.outcome(later, next={"a": 5, "b": 1, "c": 7}, newest={"alter": 4}, markers=head.markers)
    assert opened.with_outcome(commit, "sha").closed == 5
    with raises_damage("I22"):  # type: ignore[attr-defined]
        opened.with_outcome(dataclasses.replace(commit, newest={}), "sha")


REWRITTEN = Rewrite(sink="out", commits=(1, 3), rows=4)
REWRITE = samples.plan(4, work=REWRITTEN, ranges={}, previous="sha")
NEW_FILES = Committable(format="parquet", rows=4, files=(samples.file(4, rows=4),))


def rewritten(**changes: Any) -> Outcome:
    given = {
        "sinks": {},
        "counts": {},
        "next": BEFORE.next,
        "work": dataclasses.replace(REWRITTEN, output=NEW_FILES),
        "newest": {"rewrite": 4},
        "state": BEFORE.state,
        "schemas": BEFORE.schemas,
        "markers": BEFORE.markers,
    }
    return samples.outcome(REWRITE, **{**given, **changes})


def test_I23_rewrite_without_commits_with_ranges_or_of_later_commits_is_refused() -> None:
    assert AT_ALTER.with_plan(REWRITE, "sha").next == BEFORE.next
    for changes in (
        {"ranges": {"a": (4, 5)}},
        {"work": dataclasses.replace(REWRITTEN, commits=())},
        {"work": dataclasses.replace(REWRITTEN, commits=(3, 1))},
        {"work": dataclasses.replace(REWRITTEN, commits=(1, 1))},
        {"work": dataclasses.replace(REWRITTEN, commits=(1, 4))},
        {"work": dataclasses.replace(REWRITTEN, commits=(-1, 3))},
        {"work": dataclasses.replace(REWRITTEN, output=NEW_FILES)},
    ):
        with raises_damage("I23"):  # type: ignore[attr-defined]
            AT_ALTER.with_plan(dataclasses.replace(REWRITE, **changes), "sha")


def test_I23_outcome_of_a_rewrite_has_the_planned_rows_and_changes_nothing_else() -> None:
    opened = AT_ALTER.with_plan(REWRITE, encode(REWRITE).sha256)
    closed = opened.with_outcome(rewritten(), "sha")
    assert (closed.next, closed.markers) == (BEFORE.next, BEFORE.markers)
    abort = {"result": "abort", "work": None, "newest": {}}
    assert opened.with_outcome(rewritten(**abort), "sha").next == BEFORE.next
    fewer = Committable(format="parquet", rows=3, files=(samples.file(4, rows=3),))
    unequal = Committable(format="parquet", rows=4, files=(samples.file(4, rows=3),))
    for changes in (
        {"newest": {}},
        {**abort, "newest": {"rewrite": 4}},
        {"work": REWRITTEN},
        {"work": dataclasses.replace(REWRITTEN, output=fewer)},
        {"work": dataclasses.replace(REWRITTEN, output=unequal)},
        {"work": dataclasses.replace(REWRITTEN, commits=(1, 2), output=NEW_FILES)},
        {"state": None},
        {"schemas": {}},
    ):
        with raises_damage("I23"):  # type: ignore[attr-defined]
            opened.with_outcome(rewritten(**changes), "sha")
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(rewritten(next={"a": 5, "b": 1}), "sha")
    with raises_damage("I23"):  # type: ignore[attr-defined]
        rewritten(sinks={"out": OUTPUT})


def test_rewrite_is_staged_by_an_attempt_that_has_written_its_rows_and_nothing_else() -> None:
    staged = samples.manifest(samples.plan(4), sinks={"out": NEW_FILES})
    assert REWRITTEN.is_staged_by(staged)
    assert Batch().is_staged_by(staged)
    for sinks in ({}, {"other": NEW_FILES}, {"out": NEW_FILES, "other": OUTPUT}, {"out": OUTPUT}):
        assert not REWRITTEN.is_staged_by(dataclasses.replace(staged, sinks=sinks))


def test_I23_versions_after_a_rewrite_name_it() -> None:
    later = samples.plan(5, previous="sha", ranges={"a": (4, 5)})
    head = ClosedHead(outcome=rewritten(), outcome_sha="sha", markers=BEFORE.markers)
    opened = head.with_plan(later, encode(later).sha256)
    commit = samples.outcome(later, next={"a": 5, "b": 1}, newest={"rewrite": 4}, markers=head.markers)
    assert opened.with_outcome(commit, "sha").closed == 5
    with raises_damage("I23"):  # type: ignore[attr-defined]
        opened.with_outcome(dataclasses.replace(commit, newest={}), "sha")
    broken = dataclasses.replace(commit, newest={"rewrite": 3})
    with pytest.raises(LogDamagedError, match="I23"):
        CommitLog(stored_outcome(BEFORE)).commits_of(Rewrite, broken)


EXPIRY = samples.plan(4, work=Expire(oldest=2), ranges={}, previous="sha")


def expired(**changes: Any) -> Outcome:
    given = {
        "attempt_id": None,
        "sinks": {},
        "counts": {},
        "next": BEFORE.next,
        "newest": {"expire": 2},
        "state": BEFORE.state,
        "schemas": BEFORE.schemas,
        "markers": BEFORE.markers,
    }
    return samples.outcome(EXPIRY, **{**given, **changes})


def test_I24_expiry_with_ranges_or_of_the_wrong_versions_is_refused() -> None:
    assert AT_ALTER.with_plan(EXPIRY, "sha").next == BEFORE.next
    for changes in (
        {"ranges": {"a": (4, 5)}},
        {"work": Expire(oldest=0)},
        {"work": Expire(oldest=4)},
    ):
        with raises_damage("I24"):  # type: ignore[attr-defined]
            AT_ALTER.with_plan(dataclasses.replace(EXPIRY, **changes), "sha")
    earlier = dataclasses.replace(BEFORE, newest={"expire": 2})
    head = dataclasses.replace(AT_ALTER, outcome=earlier)
    later = dataclasses.replace(EXPIRY, work=Expire(oldest=3))
    assert head.with_plan(later, "sha").plan == later
    with raises_damage("I24"):  # type: ignore[attr-defined]
        head.with_plan(EXPIRY, "sha")


def test_I24_outcome_of_an_expiry_changes_only_the_oldest_readable_version() -> None:
    opened = AT_ALTER.with_plan(EXPIRY, encode(EXPIRY).sha256)
    closed = opened.with_outcome(expired(), "sha")
    assert (closed.next, closed.markers) == (BEFORE.next, BEFORE.markers)
    abort = {"result": "abort", "work": None, "newest": {}}
    assert opened.with_outcome(expired(**abort), "sha").next == BEFORE.next
    for changes in (
        {"newest": {}},
        {"newest": {"expire": 3}},
        {"work": Expire(oldest=3), "newest": {"expire": 3}},
        {**abort, "newest": {"expire": 2}},
        {"state": None},
        {"schemas": {}},
    ):
        with raises_damage("I24"):  # type: ignore[attr-defined]
            opened.with_outcome(expired(**changes), "sha")
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(expired(next={"a": 5, "b": 1}), "sha")
    for changes in ({"sinks": {"out": OUTPUT}}, {"newest": {"expire": 4}}, {"newest": {"expire": 0}}):
        with raises_damage("I24"):  # type: ignore[attr-defined]
            expired(**changes)


ERASED_FILES = ErasedFiles(sink="out", commits=(1, 3), rows=4, erased=1)
LEFT = Committable(format="parquet", rows=3, files=(samples.file(4, rows=3),))
RECORDS = (ErasedRecords(version=1, kept=0), ErasedRecords(version=3, kept=2))
STORED = Quarantine(rows=2, keys=(keys.quarantine(4, "a" * 32, 0),))
ERASED = Erase(files=ERASED_FILES, quarantine=RECORDS, tombstones={"out": 2})
ERASURE = samples.plan(4, work=ERASED, ranges={}, previous="sha")
DONE = Erase(
    files=dataclasses.replace(ERASED_FILES, output=LEFT),
    quarantine=(
        dataclasses.replace(RECORDS[0], stored=Quarantine()),
        dataclasses.replace(RECORDS[1], stored=STORED),
    ),
    tombstones={"out": 2},
    state={"out": {}},
)
ERASED_STATE = {**(BEFORE.state or {}), "tombstones": {"out": {}}}


def erased(**changes: Any) -> Outcome:
    given = {
        "sinks": {},
        "counts": {},
        "next": BEFORE.next,
        "work": DONE,
        "newest": {"rewrite": 4, "erase": 4, "expire": 4},
        "state": ERASED_STATE,
        "schemas": BEFORE.schemas,
        "markers": BEFORE.markers,
    }
    return samples.outcome(ERASURE, **{**given, **changes})


def test_I26_erasure_of_nothing_or_of_later_versions_is_refused() -> None:
    assert AT_ALTER.with_plan(ERASURE, "sha").next == BEFORE.next
    for work in (
        Erase(),
        Erase(files=dataclasses.replace(ERASED_FILES, commits=(1, 4))),
        Erase(files=dataclasses.replace(ERASED_FILES, erased=0)),
        Erase(files=dataclasses.replace(ERASED_FILES, erased=5)),
        Erase(files=dataclasses.replace(ERASED_FILES, output=LEFT)),
        Erase(quarantine=RECORDS[::-1]),
        Erase(quarantine=(RECORDS[0], RECORDS[0])),
        Erase(quarantine=(ErasedRecords(version=4, kept=1),)),
        Erase(quarantine=(ErasedRecords(version=1, kept=-1),)),
        Erase(quarantine=(DONE.quarantine[0],)),
        Erase(tombstones={"out": 0}),
        Erase(tombstones={"out": 1}, state={}),
    ):
        with raises_damage("I26"):  # type: ignore[attr-defined]
            AT_ALTER.with_plan(dataclasses.replace(ERASURE, work=work), "sha")
    with raises_damage("I26"):  # type: ignore[attr-defined]
        AT_ALTER.with_plan(dataclasses.replace(ERASURE, ranges={"a": (4, 5)}), "sha")


def test_I26_outcome_of_an_erasure_has_what_is_left_and_lets_all_earlier_versions_expire() -> None:
    opened = AT_ALTER.with_plan(ERASURE, encode(ERASURE).sha256)
    closed = opened.with_outcome(erased(), "sha")
    assert (closed.next, closed.markers, closed.oldest_readable) == (BEFORE.next, BEFORE.markers, 4)
    abort = {"result": "abort", "work": None, "newest": {}, "state": BEFORE.state}
    assert opened.with_outcome(erased(**abort), "sha").oldest_readable == 0
    more = Committable(format="parquet", rows=4, files=(samples.file(4, rows=4),))
    for changes in (
        {"newest": {"erase": 4, "expire": 4, "rewrite": 3}},
        {"newest": {"erase": 3, "rewrite": 4, "expire": 3}},
        {"newest": {"erase": 4, "rewrite": 4}},
        {"work": dataclasses.replace(DONE, files=dataclasses.replace(ERASED_FILES, output=more))},
        {"work": dataclasses.replace(DONE, files=None)},
        {"work": dataclasses.replace(DONE, quarantine=(DONE.quarantine[0], DONE.quarantine[0]))},
        {
            "work": dataclasses.replace(
                DONE, quarantine=(DONE.quarantine[0], dataclasses.replace(RECORDS[1], stored=Quarantine()))
            )
        },
        {"state": BEFORE.state},
        {"schemas": {}},
    ):
        with pytest.raises(LogDamagedError, match=r"I2[346]"):
            opened.with_outcome(erased(**changes), "sha")
    for changes in (
        {"work": ERASED},
        {"work": dataclasses.replace(DONE, quarantine=RECORDS)},
        {"sinks": {"out": OUTPUT}},
        {"newest": {"expire": 5}},
    ):
        with pytest.raises(LogDamagedError, match=r"I2[146]"):
            erased(**changes)


def test_erasure_is_staged_by_an_attempt_that_has_written_what_is_left_and_nothing_else() -> None:
    staged = samples.manifest(samples.plan(4), sinks={"out": LEFT}, quarantine=STORED, state={"out": {}})
    assert ERASED.is_staged_by(staged)
    assert ERASED.staged(staged) == DONE
    assert "rows of 2 commits of sink out, quarantined records of 2 versions, 2 tombstones" in ERASED.describe()
    for changes in (
        {"sinks": {}},
        {"sinks": {"out": LEFT, "other": OUTPUT}},
        {"sinks": {"out": NEW_FILES}},
        {"quarantine": Quarantine()},
        {"quarantine": Quarantine(rows=2)},
        {"quarantine": dataclasses.replace(STORED, rows=3)},
    ):
        assert not ERASED.is_staged_by(dataclasses.replace(staged, **changes))
    only_tombstones = Erase(tombstones={"out": 2})
    left = samples.manifest(samples.plan(4), sinks={}, quarantine=Quarantine(), state=None)
    assert only_tombstones.is_staged_by(left)
    assert only_tombstones.rewrites(4) == ()
    assert only_tombstones.state_after({"tombstones": {"out": {}}}) is None
    assert Erase(quarantine=RECORDS).state_after({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("is_batch", [True, False])
def test_I25_abort_keeps_what_was_before_it(is_batch: bool) -> None:
    before = dataclasses.replace(BEFORE, hint="before", watermark_ms=5)
    head = ClosedHead(outcome=before, outcome_sha="sha", markers=before.markers)
    work = {} if is_batch else {"work": Reprocess(replaces=1, counts={})}
    plan = samples.plan(4, previous="sha", ranges={"a": (4, 5)} if is_batch else {"a": (1, 2)}, hint="planned", **work)
    opened = head.with_plan(plan, encode(plan).sha256)
    kept = {
        name: getattr(before, name)
        for name in ("state", "schemas", "spec", "transform", "watermark_ms", "newest", "next", "markers")
    }
    kept |= {"hint": "planned" if is_batch else "before"}
    assert opened.with_outcome(samples.outcome(plan, result="abort", **kept), "sha").next == before.next
    for changes in (
        {"state": {"other": 1}},
        {"schemas": {"out": "[]"}},
        {"spec": "another"},
        {"transform": "another:f"},
        {"watermark_ms": 6},
        {"hint": "another"},
        {"sinks": {"out": OUTPUT}},
        {"counts": {"read": 1}},
    ):
        with raises_damage("I25"):  # type: ignore[attr-defined]
            opened.with_outcome(samples.outcome(plan, result="abort", **{**kept, **changes}), "sha")


def test_I24_versions_after_an_expiry_name_the_oldest_readable_version() -> None:
    later = samples.plan(5, previous="sha", ranges={"a": (4, 5)})
    head = ClosedHead(outcome=expired(), outcome_sha="sha", markers=BEFORE.markers)
    opened = head.with_plan(later, encode(later).sha256)
    commit = samples.outcome(later, next={"a": 5, "b": 1}, newest={"expire": 2}, markers=head.markers)
    assert opened.with_outcome(commit, "sha").closed == 5
    for wrong in ({}, {"expire": 3}):
        with raises_damage("I24"):  # type: ignore[attr-defined]
            opened.with_outcome(dataclasses.replace(commit, newest=wrong), "sha")


def stored_outcome(outcome: Outcome) -> MemoryStore:
    """Return a store with one outcome."""
    store = MemoryStore("memory://one-outcome")
    store.create(keys.outcome(outcome.version), encode(outcome).data)
    return store


def test_state_without_a_remaining_field_is_none() -> None:
    dropped = Alter(state=("dedup", "spark"))
    assert dropped.state_after({"dedup": 1, "spark": 2}) is None
    assert dropped.state_after(None) is None


def test_open_alter_binds_the_next_writers_to_its_spec_and_readers_to_the_one_before() -> None:
    opened = AT_ALTER.with_plan(ALTER, "sha")
    assert (opened.spec, opened.binding_spec) == ("s", "new")
    assert (AT_ALTER.spec, AT_ALTER.binding_spec) == ("s", "s")
    assert ClosedHead().binding_spec is None


def test_I4_outcome_without_the_partitions_that_its_plan_does_not_read_is_refused() -> None:
    head = ClosedHead(initial_offsets={"a": 3, "b": 5})
    plan = samples.plan(ranges={"a": (3, 4)})
    opened = head.with_plan(plan, encode(plan).sha256)
    assert opened.with_outcome(samples.outcome(plan, next={"a": 4, "b": 5}), "sha").next == {"a": 4, "b": 5}
    with raises_damage("I4"):  # type: ignore[attr-defined]
        opened.with_outcome(samples.outcome(plan, next={"a": 4}), "sha")


def test_I18_receipts_before_the_first_outcome_are_damage() -> None:
    receipts = Receipts(version=0, outcome="sha", sinks={}, markers={}, published_at_ms=0, nonce="n")
    with raises_damage("I18"):  # type: ignore[attr-defined]
        EMPTY.with_receipts(receipts)


def test_I15_outcome_with_other_markers_than_the_receipts_before_it_is_refused() -> None:
    with raises_damage("I15"):  # type: ignore[attr-defined]
        invariants.check_i15(samples.outcome(PLAN), before={"out": Marker(version=3, outcome="sha")})


def test_I27_outcome_after_which_less_is_complete_is_refused_unless_it_returns_to_an_earlier_version() -> None:
    before = samples.outcome(PLAN, complete=CompleteTime(since_ms=5, until_ms=8))
    for complete in (
        None,
        CompleteTime(since_ms=5),
        CompleteTime(since_ms=5, until_ms=7),
        CompleteTime(since_ms=6, until_ms=9),
    ):
        outcome = samples.outcome(PLAN, complete=complete)
        with raises_damage("I27"):  # type: ignore[attr-defined]
            invariants.check_i27(outcome, before)
        rollback = dataclasses.replace(outcome, version=1, work=Rollback(to=0, next={}, counts={}), sinks={}, counts={})
        invariants.check_i27(rollback, before)
    for complete in (CompleteTime(since_ms=5, until_ms=8), CompleteTime(since_ms=4, until_ms=9)):
        invariants.check_i27(samples.outcome(PLAN, complete=complete), before)
        invariants.check_i27(
            samples.outcome(PLAN, complete=complete), samples.outcome(PLAN, complete=CompleteTime(since_ms=5))
        )
    invariants.check_i27(before, None)


def test_I16_missing_pointer_below_a_newer_one_is_damage() -> None:
    with raises_damage("I16"):  # type: ignore[attr-defined]
        drive(announcements.others_between("run-0", (0, 0), (2, 9)), Missing())


def test_P4_claim_of_another_publisher_is_not_acquired() -> None:
    mine, theirs = (Claim(version=0, sink="out", chunk=0, nonce=nonce) for nonce in ("mine", "theirs"))
    assert drive(procedures.claim(mine), Created()) is True
    assert drive(procedures.claim(mine), Exists(), found(theirs)) is False


def test_effects_recorded_first_by_another_publisher_are_returned() -> None:
    mine, theirs = (
        Effects(version=0, sink="out", chunk=0, done=done, nonce=nonce) for done, nonce in ((1, "mine"), (2, "theirs"))
    )
    assert drive(procedures.put_effects(mine), Created()) == mine
    assert drive(procedures.put_effects(mine), Exists(), found(theirs)) == theirs


# --- commits that are published outside the log

PUBLISHED_LATER = samples.outcome(PLAN, publish=("out",))
PENDING = OPEN.with_outcome(PUBLISHED_LATER, "sha")


def receipts(**changes: Any) -> Receipts:
    values: dict[str, Any] = {
        "version": 0, "outcome": "sha", "sinks": {"out": Receipt(result="applied", rows=2)}, "markers": {"out": Marker(version=0, outcome="sha")},
        "published_at_ms": 3, "nonce": "r",
    }  # fmt: skip
    return Receipts(**{**values, **changes})


def test_I2_plan_after_a_commit_with_pending_publishes_is_refused() -> None:
    assert PENDING.has_pending_publishes
    with raises_damage("I2"):  # type: ignore[attr-defined]
        PENDING.with_plan(samples.plan(1, previous="sha"), "plan")
    published = PENDING.with_receipts(receipts())
    assert not published.has_pending_publishes
    assert not published.with_plan(samples.plan(1, previous="sha"), "plan").has_pending_publishes


@pytest.mark.parametrize("changes", [{"version": 1}, {"outcome": "other"}, {"sinks": {}}])
def test_I18_receipts_of_another_commit_or_other_sinks_are_refused(changes: dict[str, Any]) -> None:
    with raises_damage("I18"):  # type: ignore[attr-defined]
        PENDING.with_receipts(receipts(**changes))


def test_I18_receipts_of_a_commit_without_sinks_outside_the_log_are_refused() -> None:
    with raises_damage("I18"):  # type: ignore[attr-defined]
        CLOSED.with_receipts(receipts())


@pytest.mark.parametrize(
    "markers", [{"out": Marker(version=7, outcome="sha")}, {"other": Marker(version=0, outcome="sha")}]
)
def test_I15_receipts_with_a_marker_of_neither_their_outcome_nor_their_commit_are_refused(
    markers: dict[str, Marker],
) -> None:
    with raises_damage("I15"):  # type: ignore[attr-defined]
        PENDING.with_receipts(receipts(markers=markers))


def test_P1_pointer_to_a_commit_with_pending_publishes_leads_to_publishing() -> None:
    pointer = found(RunPointer(run_key="run-0", j=0, version=0))
    position = drive(
        procedures.locate("run-0", EMPTY), pointer, Listed(()), Missing(), found(PUBLISHED_LATER), Missing()
    )
    assert isinstance(position, procedures.PendingPublish)
    assert position.outcome == PUBLISHED_LATER


def test_I20_chain_with_a_missing_outcome_is_damage() -> None:
    with raises_damage("I20"):  # type: ignore[attr-defined]
        drive(procedures.find_root(3), Missing())


def test_error_for_a_moved_log_names_the_new_location() -> None:
    with pytest.raises(LogMovedError, match="moved_to='s3://new'"):
        CLOSED.with_plan(samples.plan(1, previous="sha", work=Move(moved_to="s3://new")), "plan")


def test_line_of_quarantined_records_that_is_not_an_object_is_damage() -> None:
    with raises_damage("I1"):  # type: ignore[attr-defined]
        lines("k", b'{"a": 1}\n[]\n')
