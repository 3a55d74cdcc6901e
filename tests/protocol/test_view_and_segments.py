"""Folds are equal from segments and from outcomes, are deterministic, and refuse missing versions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import codec, keys, procedures, segments, view
from airflow_provider_streamsem.protocol.entries import (
    Committable,
    Kind,
    Outcome,
    Segment,
)
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.erase import Erase, ErasedFiles
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.view import ClosedHead, fold, without_pending
from tests.protocol import samples
from tests.protocol.histories import History, stored, with_alters


def history(kinds: list[bool]) -> list[Outcome]:
    """Outcomes of versions 0, 1, …: a commit of one offset for each true, otherwise an abort."""
    outcomes, offset = [], 0
    for version, commit in enumerate(kinds):
        of = samples.plan(version, ranges={"files": (offset, offset + 1)})
        offset += commit
        outcomes.append(samples.outcome(of, result="commit" if commit else "abort", next={"files": offset}))
    return outcomes


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=100, max_size=230), st.integers(-1, 229))
def test_fold_from_segments_equals_fold_from_outcomes(kinds: list[bool], since: int) -> None:
    outcomes = history(kinds)
    full = len(kinds) // 100
    folded = [segments.level_1(i, outcomes[i * 100 : i * 100 + 100], "sha") for i in range(full)]
    from_segments = fold([*folded, *outcomes[full * 100 :]], initial_offsets={"files": 0}, since=since)
    from_outcomes = fold(outcomes, initial_offsets={"files": 0}, since=since)
    for name in ("version", "next", "commits", "aborts", "counts", "files"):
        assert getattr(from_segments, name) == getattr(from_outcomes, name)
    assert from_outcomes.commits == sum(kinds)
    assert [f.version for f in from_outcomes.sink("out")] == [
        v for v, commit in enumerate(kinds) if commit and v > since
    ]
    assert from_outcomes.sink("other") == ()


@pytest.mark.parametrize("seed", range(10))
def test_view_after_reprocessing_runs_and_rollbacks_is_the_same_from_segments_and_from_outcomes(seed: int) -> None:
    found = History(seed, 250)
    folded = [segments.level_1(i, found.outcomes[i * 100 : i * 100 + 100], "sha") for i in range(2)]
    for parts in (found.outcomes, [folded[0], *found.outcomes[100:]], [*folded, *found.outcomes[200:]]):
        view = fold(parts, initial_offsets={"files": 0})
        assert found.read(parts) == sorted(found.views[-1].values())
        assert view.rewrites == fold(found.outcomes, initial_offsets={"files": 0}).rewrites
        assert view.next == {"files": found.offsets[-1]}
        assert view.counts["read"] == 2 * len(found.views[-1])


@pytest.mark.parametrize("seed", range(10))
def test_R8_readers_of_any_versions_read_the_rows_of_each_commit_once(seed: int) -> None:
    found, applied = History(seed, 230), 0
    segment = segments.level_1(0, found.outcomes[:100], "sha")
    for version in range(0, 230, 3):
        commits, parts = sorted(found.views[version].values()), found.outcomes[: version + 1]
        applied += len(fold(parts, initial_offsets={"files": 0}).rewrites)
        for since in (-1, version // 2, version):
            expected = [commit for commit in commits if commit > since]
            assert found.read(parts, since=since) == expected
            assert found.read(parts, since=since, with_rewrites=False) == expected
            if version >= 99:
                assert found.read([segment, *parts[100:]], since=since) == expected
    assert applied > 20, "rewrites that apply are rare"


@pytest.mark.parametrize("after", [-1, 20, 60])
def test_rewrites_of_an_outcome_are_found_newest_first(after: int) -> None:
    found = History(0, 60)
    log = CommitLog(stored(found.outcomes))
    expected = [version for version in sorted(found.rewritten, reverse=True) if version > after]
    assert [at for at, _ in log.commits_of(Rewrite, found.outcomes[-1], after=after)] == expected
    assert len(found.rewritten) == 3


@pytest.mark.parametrize("seed", range(10))
def test_R8_rewrite_that_does_not_apply_never_applies_again(seed: int) -> None:
    found, ended = History(seed, 120), set[int]()
    for version in range(120):
        applied = {each.version for each in fold(found.outcomes[: version + 1], initial_offsets={}).rewrites}
        assert not applied & ended
        ended |= {rewrite for rewrite in found.rewritten if rewrite <= version} - applied


@pytest.mark.parametrize("seed", range(10))
def test_remaining_versions_are_those_that_no_rollback_removed(seed: int) -> None:
    found = History(seed, 40)
    log = CommitLog(stored(found.outcomes))
    kept = log.remaining_versions(found.outcomes[-1])
    assert [version for versions in kept for version in versions] == found.kept[-1]
    head = ClosedHead(outcome=found.outcomes[-1])
    for version in range(40):
        assert (log.find_current(version, head) is not None) == (version in found.kept[-1])


def test_rollback_that_names_no_rollback_is_damage() -> None:
    outcomes = history([True] * 3)
    broken = dataclasses.replace(outcomes[2], newest={"rollback": 1})
    with pytest.raises(LogDamagedError, match="I21"):
        CommitLog(stored(outcomes)).remaining_versions(broken)


def test_I26_rewrite_of_erased_rows_that_has_them_again_is_refused() -> None:
    def rows(version: int, count: int) -> Committable:
        return Committable(format="parquet", rows=count, files=(samples.file(version, rows=count),))

    def later(version: int, work: Kind, **newest: int) -> Outcome:
        fields: dict[str, Any] = {"sinks": {}, "counts": {}, "next": {"files": 4}, "newest": newest}
        return samples.outcome(samples.plan(version), work=work, **fields)

    commits = history([True] * 4)
    found = sum(commits[at].sinks["out"].rows for at in (1, 3))
    files = ErasedFiles(sink="out", commits=(1, 3), rows=found, erased=1, output=rows(4, found - 1))
    erasure = later(4, Erase(files=files), rewrite=4, erase=4, expire=4)
    for erased in (0, 1):
        work = Rewrite(sink="out", commits=(1, 3), rows=found, erased=erased, output=rows(5, found - erased))
        outcomes = [*commits, erasure, later(5, work, rewrite=5, erase=4, expire=4)]
        if erased:
            assert [each.version for each in fold(outcomes, initial_offsets={"files": 0}).rewrites] == [5]
            continue
        with pytest.raises(LogDamagedError, match="I26"):
            fold(outcomes, initial_offsets={"files": 0})


@pytest.mark.parametrize("removed", [{130: ("old",)}, {99: ("old",), 201: ("out",)}, {100: (), 150: ("old", "out")}])
def test_view_after_alters_is_the_same_from_segments_and_from_outcomes(removed: dict[int, tuple[str, ...]]) -> None:
    outcomes = with_alters(removed)
    folded = [segments.level_1(i, outcomes[i * 100 : i * 100 + 100], "sha") for i in range(2)]
    last = {name: max((v for v, names in removed.items() if name in names), default=-1) for name in ("out", "old")}
    expected = {
        (version, name) for version in range(250) if version not in removed for name in last if version > last[name]
    }
    for parts in (outcomes, [folded[0], *outcomes[100:]], [*folded, *outcomes[200:]]):
        view = fold(parts, initial_offsets={"files": 0})
        assert {(file.version, file.sink) for file in view.files} == expected


def test_alters_are_found_newest_first_and_one_that_names_no_alter_is_damage() -> None:
    outcomes = with_alters({20: ("old",), 40: (), 60: ("old", "out")})
    log = CommitLog(stored(outcomes))
    assert [at for at, _ in log.commits_of(Alter, outcomes[-1])] == [60, 40, 20]
    assert [at for at, _ in log.commits_of(Alter, outcomes[59])] == [40, 20]
    assert (log.removed_at("old", outcomes[59]), log.removed_at("out", outcomes[59])) == (20, -1)
    with pytest.raises(LogDamagedError, match="I22"):
        log.commits_of(Alter, dataclasses.replace(outcomes[10], newest={"alter": 5}))


def test_reprocessing_runs_of_earlier_versions_are_found_with_and_without_segments() -> None:
    outcomes = history([True] * 310)
    for at, replaced in ((150, 20), (205, 203), (250, 149)):
        outcomes[at] = dataclasses.replace(
            outcomes[at], work=Reprocess(replaces=replaced, counts=outcomes[replaced].counts)
        )
    store = stored(outcomes)
    log = CommitLog(store)
    assert [log.reprocessing_runs_after(version, 309) for version in (30, 180, 260)] == [[150], [250], []]
    log.write_segments(99, [])
    log.write_segments(199, [])
    log.write_segments(299, [])
    assert [log.reprocessing_runs_after(version, 309) for version in (30, 180, 260)] == [[150], [250], []]
    store.keys.clear()
    assert log.reprocessing_runs_after(99, 309) == [150]
    assert len(store.keys) < 130


def test_fold_with_a_missing_or_duplicate_version_is_refused() -> None:
    outcomes = history([True] * 3)
    for parts in ([outcomes[0], outcomes[2]], [outcomes[0], outcomes[0]], [outcomes[1]]):
        with pytest.raises(LogDamagedError, match="missing or duplicated"):
            fold(parts, initial_offsets={})


def test_I9_segments_are_a_function_of_their_versions() -> None:
    outcomes = history([True] * 100)
    encoded = [codec.encode(segments.level_1(0, list(outcomes), "sha")).data for _ in range(2)]
    assert encoded[0] == encoded[1]
    assert codec.decode(Segment, "k", encoded[0]) == segments.level_1(0, outcomes, "sha")


def test_higher_segments_hold_totals_and_no_files() -> None:
    children = [
        Segment(level=1, index=i, last=f"sha{i}", next={"files": i + 1}, commits=99, aborts=1, counts={"read": 5})
        for i in range(100)
    ]
    parent = segments.parent(2, 0, children)
    assert (parent.commits, parent.aborts, parent.counts, parent.next, parent.last) == (
        9900,
        100,
        {"read": 500},
        {"files": 100},
        "sha99",
    )
    assert parent.files == ()
    assert len(parent.children) == 100


def test_segment_of_other_versions_than_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly"):
        segments.level_1(1, history([True] * 100), "sha")
    with pytest.raises(ValueError, match="exactly"):
        segments.parent(2, 0, [])


def test_segments_are_due_when_their_last_version_closes() -> None:
    assert segments.due(98) == []
    assert segments.due(99) == [(1, 0)]
    assert segments.due(9_999) == [(1, 99), (2, 0)]
    assert segments.due(999_999) == [(1, 9_999), (2, 99), (3, 0)]


def test_head_is_open_from_a_plan_to_its_outcome() -> None:
    plan = samples.plan()
    empty = ClosedHead(initial_offsets={"files": 0})
    opened = empty.with_plan(plan, codec.encode(plan).sha256)
    assert (empty.closed, empty.spec) == (-1, None)
    assert (opened.closed, opened.spec, opened.outcome, opened.hint) == (-1, plan.spec, None, None)
    for outcome in (samples.outcome(plan), samples.outcome(plan, result="abort")):
        closed = opened.with_outcome(outcome, "sha")
        assert (closed.closed, closed.outcome, closed.outcome_sha) == (0, outcome, "sha")


def test_head_without_its_open_version_and_pending_publishes_is_closed() -> None:
    plan = samples.plan()
    empty = ClosedHead(initial_offsets={"files": 0})
    assert without_pending(empty.with_plan(plan, codec.encode(plan).sha256)) == empty
    assert without_pending(ClosedHead(has_pending_publishes=True)) == ClosedHead()


@pytest.mark.slow
def test_R5_missing_segments_are_folded_from_their_versions_and_written() -> None:
    outcomes = history([True] * 10_000)
    store = stored(outcomes)
    log = CommitLog(store)
    log.write_segments(9_999, [])
    assert len([k for m, k in store.keys if m == "create"]) == 101
    assert store.requests["read"] <= 1.02 * 10_000 + 100
    store.keys.clear()
    parts = log.perform(procedures.read_segments_and_outcomes(9_999))
    assert len(store.keys) == 100
    assert fold(parts, initial_offsets={}).commits == 10_000


def test_missing_segments_of_each_level_are_written_from_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (procedures, segments, view):
        monkeypatch.setattr(module, "SEGMENT_WIDTH", 10)
    outcomes = history([True] * 99 + [False])
    log = CommitLog(stored(outcomes))
    log.write_segments(99, [])
    parent = log.perform(procedures.read_or_write_segment(2, 0))
    assert (parent.commits, parent.aborts, len(parent.children)) == (99, 1, 10)
    assert fold(log.perform(procedures.read_segments_and_outcomes(99)), initial_offsets={}).commits == 99


def test_segments_without_a_replacement_are_skipped_when_the_current_commit_is_sought() -> None:
    outcomes = history([True] * 450)
    outcomes[320] = dataclasses.replace(outcomes[320], work=Reprocess(replaces=20, counts=outcomes[20].counts))
    store = stored(outcomes)
    log = CommitLog(store)
    for version in (99, 199, 299, 399):
        log.write_segments(version, [])
    store.keys.clear()
    head = ClosedHead(outcome=outcomes[-1])
    assert [log.find_current(version, head) for version in (20, 150)] == [320, 150]
    assert len(store.keys) < 400


def test_segment_of_outcomes_in_memory_costs_no_reads() -> None:
    outcomes = history([True] * 100)
    store = stored(outcomes)
    CommitLog(store).write_segments(99, [(o, codec.encode(o).sha256) for o in outcomes])
    assert store.requests == {"create": 1}


def test_concurrent_folds_write_the_same_bytes() -> None:
    store = stored(history([True] * 100))
    log = CommitLog(store)
    log.write_segments(99, [])
    log.write_segments(99, [])
    assert log.perform(procedures.read_or_write_segment(1, 0)).commits == 100


def test_I9_segment_with_wrong_content_is_reported_by_the_next_fold() -> None:
    store = stored(history([True] * 100))
    log = CommitLog(store)
    forged = segments.level_1(0, history([False] * 100), "sha")
    log.create(keys.segment(1, 0), codec.encode(forged).data)
    with pytest.raises(LogDamagedError, match="I9"):
        log.write_segments(99, [])


def test_missing_versions_below_the_head_are_reported() -> None:
    store = stored([o for o in history([True] * 100) if o.version != 50])
    for procedure in (
        procedures.write_segments(99),
        procedures.read_segments_and_outcomes(99),
        procedures.read_segments_and_outcomes(98),
    ):
        with pytest.raises(LogDamagedError, match="50"):
            CommitLog(store).perform(procedure)


def test_newest_version_before_a_rolled_back_one_is_found_among_those_that_remain() -> None:
    kept = [range(3), range(5, 8), range(9, 11)]
    assert [view.newest_kept_before(version, kept) for version in (3, 4, 8)] == [2, 2, 7]
    assert not any(view.remains(version, kept) for version in (3, 4, 8))


def rewrite_of(version: int, commits: tuple[int, ...]) -> Outcome:
    output = Committable(format="parquet", rows=2 * len(commits), files=(samples.file(version, rows=2 * len(commits)),))
    work = Rewrite(sink="out", commits=commits, rows=2 * len(commits), output=output)
    return samples.outcome(samples.plan(version), sinks={}, counts={}, work=work)


def test_I24_versions_that_contradict_a_bound_rewrite_are_named() -> None:
    """Vacuum may have deleted the files of the commits of such a rewrite."""
    found = view.VisibleFiles()
    for part in [*history([True] * 4), rewrite_of(4, (0, 1))]:
        assert [*found.faults(part)] == []
        found.add(part)

    def faults(part: Outcome) -> list[str]:
        changed = dataclasses.replace(part, newest={"expire": 2})
        return [summary for invariant, summary in found.faults(changed) if invariant == "I24"]

    next_plan = samples.plan(5)
    counts = {"read": 0}
    to_expired = Rollback(to=1, next={"files": 2}, counts=counts)
    assert faults(samples.outcome(next_plan, sinks={}, counts={}, work=to_expired)) == [
        "a rollback returns to an expired version"
    ]
    replaces = Reprocess(replaces=1, counts=counts)
    assert faults(samples.outcome(next_plan, work=replaces)) == [
        "a reprocessing run replaces a commit of a bound rewrite"
    ]
    assert faults(rewrite_of(5, (1, 2))) == [
        "a rewrite names commits of a bound rewrite, and commits that have not expired",
        "a rewrite names some commits of a bound rewrite, and not all of them",
    ]
    assert faults(rewrite_of(5, (0, 1))) == []
    assert faults(rewrite_of(5, (2, 3))) == []
