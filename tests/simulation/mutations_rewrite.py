"""Mutations of rewrites, and of what readers and vacuum know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.pipeline import alter, compact, superseded
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

    build = compact._outcome
    patch.setattr(compact._Compaction, "_stage", stage)
    patch.setattr(compact, "_outcome", outcome)
    patch.setattr("airflow_provider_streamsem.protocol.invariants.check_i23", lambda plan, outcome, before: None)


def incomplete_rewrite_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = alter.rewrite_outcome

    def rewrite_outcome(opened: Any, head: Any) -> Outcome:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FilesSink, "is_complete", lambda self, committable: True)
            return real(opened, head)

    for module in ("alter", "compact", "rollback"):
        patch.setattr(f"airflow_provider_streamsem.pipeline.{module}.rewrite_outcome", rewrite_outcome)


def vacuum_deletes_every_rewrite(patch: pytest.MonkeyPatch) -> None:
    def rewrites(log: Any, begin: int, end: int) -> Iterator[Outcome]:
        newest = log.outcome(end)
        yield from log.rewrites(newest[0]) if newest is not None else ()

    patch.setattr(superseded, "superseded_rewrites", rewrites)


def vacuum_deletes_rewrites_before_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback to a version before a rewrite supersedes the rewrite, although it still applies."""
    real = superseded.superseded_commits

    def commits(log: Any, begin: int, end: int) -> Iterator[Outcome]:
        yield from real(log, begin, end)
        for version in range(begin, end + 1):
            found = log.outcome(version)
            back = None if found is None else found[0].rolled_back
            for removed in range(back.to + 1, version) if back is not None else ():
                if log.outcome(removed)[0].rewritten is not None:
                    yield log.outcome(removed)[0]

    patch.setattr(superseded, "superseded_commits", commits)


REWRITE_MUTATIONS = [
    Mutation(rewrite_applies_if_one_commit_is_visible, _WRONG_ROWS, "rewrites"),
    Mutation(rewrite_hides_no_files, _WRONG_ROWS, "rewrites"),
    Mutation(rewrite_leaves_out_a_file, f"{_WRONG_ROWS}|verify", "rewrites"),
    Mutation(incomplete_rewrite_is_committed, f"{_MISSING}|JSON|verify", "rewrites"),
    Mutation(vacuum_deletes_every_rewrite, _MISSING, "rewrites"),
    Mutation(vacuum_deletes_rewrites_before_a_rollback, _MISSING, "rewrites"),
]
