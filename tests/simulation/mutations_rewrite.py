"""Mutations of rewrites, and of what readers and vacuum know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.pipeline import compact, outcomes, plan_reprocess, retention, rollback
from airflow_provider_streamsem.protocol import view
from airflow_provider_streamsem.protocol.entries import Outcome, SegmentRewrite
from tests.simulation.mutations import Mutation

_WRONG_ROWS = "an id twice|ids are missing or duplicated|differ|reads differently"
_MISSING = "a visible file is missing"


def rewrite_applies_if_one_commit_is_visible(patch: pytest.MonkeyPatch) -> None:
    def replace_files(files: dict[int, Any], rewrite: SegmentRewrite) -> None:
        known = [commit for commit in rewrite.rewritten.commits if commit in files]
        real(files, replace(rewrite, rewritten=replace(rewrite.rewritten, commits=tuple(known))))

    def applied(rewrites: Sequence[SegmentRewrite], files: Mapping[int, Any]) -> list[SegmentRewrite]:
        found: list[SegmentRewrite] = []
        later: set[int] = set()
        for rewrite in reversed(rewrites):
            commits = {*rewrite.rewritten.commits}
            if any(files.get(commit) for commit in commits) and not commits & later:
                found.append(rewrite)
            later |= commits
        return found[::-1]

    real = view._replace_files
    patch.setattr(view, "_replace_files", replace_files)
    patch.setattr(view, "_applied", applied)


def rewrite_hides_no_files(patch: pytest.MonkeyPatch) -> None:
    def replace_files(files: dict[int, Any], rewrite: SegmentRewrite) -> None:
        before = {version: [*found] for version, found in files.items()}
        real(files, rewrite)
        files |= {version: found for version, found in before.items() if version != rewrite.version}

    real = view._replace_files
    patch.setattr(view, "_replace_files", replace_files)


def rewrite_leaves_out_a_file(patch: pytest.MonkeyPatch) -> None:
    """The attempt reads one file less than the plan names, and the comparison of the rows does not notice it."""
    real = compact._Compaction._stage

    def stage(self: Any, head: Any, files: list[Any]) -> Any:
        missing = files[0].rows if len(files) > 2 else 0
        return real(self, head, files[1:] if missing else files)

    def outcome(log: Any, head: Any, manifest: Any) -> Outcome:
        found = build(log, head, manifest)
        assert found.rewritten is not None
        assert found.rewritten.output is not None
        return replace(found, rewritten=replace(found.rewritten, rows=found.rewritten.output.rows))

    build = compact.staged_rewrite_outcome
    patch.setattr(compact._Compaction, "_stage", stage)
    patch.setattr(compact, "staged_rewrite_outcome", outcome)
    patch.setattr("airflow_provider_streamsem.protocol.invariants.check_i23", lambda plan, outcome, before: None)


def incomplete_rewrite_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = outcomes.rewrite_outcome

    def rewrite_outcome(opened: Any, head: Any) -> Outcome:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FilesSink, "is_complete", lambda self, committable: True)
            return real(opened, head)

    patch.setattr(outcomes, "rewrite_outcome", rewrite_outcome)


def vacuum_deletes_every_rewrite(patch: pytest.MonkeyPatch) -> None:
    def rewrites(log: Any, newest: Outcome, begin: int, end: int) -> Iterator[tuple[Outcome, None]]:
        yield from ((rewrite, None) for rewrite in log.rewrites(newest) if rewrite.version <= end)

    patch.setattr(retention, "_superseded_rewrites", rewrites)


def vacuum_deletes_rewrites_before_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback to a version before a rewrite supersedes the rewrite, although it still applies."""
    real = retention._superseded_commits

    def commits(log: Any, begin: int, end: int) -> Iterator[Outcome]:
        yield from real(log, begin, end)
        for version in range(begin, end + 1):
            found = log.outcome(version)
            back = None if found is None else found[0].rolled_back
            for removed in range(back.to + 1, version) if back is not None else ():
                if log.outcome(removed)[0].rewritten is not None:
                    yield log.outcome(removed)[0]

    patch.setattr(retention, "_superseded_commits", commits)


def expired_commits_are_reprocessed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan_reprocess, "_refuse_bound", lambda opened, current, newest: None)


def rollback_returns_to_expired_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollback, "_refuse_expired", lambda head, to: None)


def compaction_mixes_expired_and_other_commits(patch: pytest.MonkeyPatch) -> None:
    real = compact._Sizes.choose
    patch.setattr(
        compact._Sizes, "choose", lambda self, pipeline, name, seen, oldest: real(self, pipeline, name, seen, 0)
    )


def vacuum_deletes_before_the_expiry(patch: pytest.MonkeyPatch) -> None:
    """Vacuum deletes the files without a version of the log that lets the others expire."""
    patch.setattr(retention, "expire", lambda opened, oldest: replace(opened.head.outcome, oldest_readable=oldest))


REWRITE_MUTATIONS = [
    Mutation(rewrite_applies_if_one_commit_is_visible, _WRONG_ROWS, "rewrites"),
    Mutation(rewrite_hides_no_files, _WRONG_ROWS, "rewrites"),
    Mutation(rewrite_leaves_out_a_file, f"{_WRONG_ROWS}|verify", "rewrites"),
    Mutation(incomplete_rewrite_is_committed, f"{_MISSING}|JSON|verify", "rewrites"),
    Mutation(vacuum_deletes_every_rewrite, _MISSING, "rewrites"),
    Mutation(vacuum_deletes_rewrites_before_a_rollback, _MISSING, "rewrites"),
    Mutation(expired_commits_are_reprocessed, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
    Mutation(rollback_returns_to_expired_versions, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
    Mutation(compaction_mixes_expired_and_other_commits, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
    Mutation(vacuum_deletes_before_the_expiry, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
]
