"""Mutations of rewrites, and of what readers and vacuum know of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.pipeline.maintenance import compact, retention, rollback
from airflow_provider_streamsem.pipeline.run import plan_reprocess, run
from airflow_provider_streamsem.pipeline.versions import commit as versions
from airflow_provider_streamsem.protocol import view
from airflow_provider_streamsem.protocol.entries import Outcome, SegmentRewrite
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from tests.simulation.mutations import Mutation

_WRONG_ROWS = "an id twice|ids are missing or duplicated|differ|reads differently"
_MISSING = "a visible file is missing"
_BOUND = "commit of a bound rewrite|commits of a bound rewrite|to an expired version"
"""Readers refuse such a version, mostly before a file is missing (I24)."""


def rewrite_applies_if_one_commit_is_visible(patch: pytest.MonkeyPatch) -> None:
    def with_rewrites(self: view.VisibleFiles, rewrites: Sequence[SegmentRewrite]) -> Any:
        known = [tuple(commit for commit in rewrite.commits if commit in self.files) for rewrite in rewrites]
        return real(self, [replace(rewrite, commits=found) for rewrite, found in zip(rewrites, known, strict=True)])

    real = view.VisibleFiles.with_rewrites
    patch.setattr(view.VisibleFiles, "with_rewrites", with_rewrites)
    patch.setattr(
        view.VisibleFiles, "_are_visible", lambda self, rewrite: any(self.files.get(each) for each in rewrite.commits)
    )


def rewrite_hides_no_files(patch: pytest.MonkeyPatch) -> None:
    def with_rewrites(self: view.VisibleFiles, rewrites: Sequence[SegmentRewrite]) -> Any:
        return (*real(self, []), *(file for file in real(self, rewrites) if file not in real(self, [])))

    real = view.VisibleFiles.with_rewrites
    patch.setattr(view.VisibleFiles, "with_rewrites", with_rewrites)


def rewrite_leaves_out_a_file(patch: pytest.MonkeyPatch) -> None:
    """The attempt reads one file less than the plan names, and the comparison of the rows does not notice it."""
    real = compact._Compaction._stage

    def stage(self: Any, head: Any, work: Rewrite, files: list[Any]) -> Any:
        missing = files[0].rows if len(files) > 2 else 0
        return real(self, head, work, files[1:] if missing else files)

    def staged(self: Rewrite, manifest: Any) -> Rewrite:
        output = manifest.sinks[self.sink]
        return replace(self, output=output, rows=output.rows)

    patch.setattr(compact._Compaction, "_stage", stage)
    patch.setattr(Rewrite, "staged", staged)
    patch.setattr(Rewrite, "is_outcome_of", lambda self, planned: True)


def incomplete_rewrite_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = versions.outcome_without_records

    def outcome_without_records(opened: Any, head: Any) -> Outcome | None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FilesSink, "is_complete", lambda self, committable: True)
            return real(opened, head)

    for module in (versions, run):
        patch.setattr(module, "outcome_without_records", outcome_without_records)


def vacuum_deletes_every_rewrite(patch: pytest.MonkeyPatch) -> None:
    def rewrites(log: Any, newest: Outcome, begin: int, end: int) -> Iterator[tuple[Outcome, None]]:
        yield from ((log.outcome(at), None) for at, _ in log.commits_of(Rewrite, newest) if at <= end)

    patch.setattr(retention, "_superseded_rewrites", rewrites)


def vacuum_deletes_rewrites_before_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback to a version before a rewrite supersedes the rewrite, although it still applies."""
    real = retention._superseded_commits

    def commits(log: Any, begin: int, end: int) -> Iterator[Outcome]:
        yield from real(log, begin, end)
        for version in range(begin, end + 1):
            found = log.outcome(version)
            back_to = None if found is None else found.hidden.after
            for removed in range(back_to + 1, version) if back_to is not None else ():
                if log.outcome(removed).rewrites:
                    yield log.outcome(removed)

    patch.setattr(retention, "_superseded_commits", commits)


def expired_commits_are_reprocessed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan_reprocess, "_refuse_bound", lambda opened, current, newest: None)


def rollback_returns_to_expired_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollback, "_refuse_expired", lambda head, to: None)


def compaction_mixes_expired_and_other_commits(patch: pytest.MonkeyPatch) -> None:
    """If a rewrite is bound, the compaction rewrites its files together with all other visible files (W45)."""
    real = compact._Sizes.choose

    def choose(self: Any, pipeline: Any, name: str, seen: view.LogView, oldest: int) -> Any:
        if any(view.is_bound(each, oldest) for each in seen.rewrites):
            return [[*seen.sink(name)]]
        return real(self, pipeline, name, seen, oldest)

    patch.setattr(compact._Sizes, "choose", choose)


def vacuum_deletes_before_the_expiry(patch: pytest.MonkeyPatch) -> None:
    """Vacuum deletes the files without a version of the log that lets the others expire."""
    patch.setattr(retention, "expire", lambda opened, oldest: replace(opened.head.outcome, newest={"expire": oldest}))


REWRITE_MUTATIONS = [
    Mutation(rewrite_applies_if_one_commit_is_visible, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
    Mutation(rewrite_hides_no_files, _WRONG_ROWS, "rewrites"),
    Mutation(rewrite_leaves_out_a_file, f"{_WRONG_ROWS}|verify", "rewrites"),
    Mutation(incomplete_rewrite_is_committed, f"{_MISSING}|JSON|verify", "rewrites"),
    Mutation(vacuum_deletes_every_rewrite, _MISSING, "rewrites"),
    Mutation(vacuum_deletes_rewrites_before_a_rollback, _MISSING, "rewrites"),
    Mutation(expired_commits_are_reprocessed, f"{_MISSING}|{_WRONG_ROWS}|{_BOUND}", "rewrites"),
    Mutation(rollback_returns_to_expired_versions, f"{_MISSING}|{_WRONG_ROWS}|{_BOUND}", "rewrites"),
    Mutation(compaction_mixes_expired_and_other_commits, f"{_MISSING}|{_WRONG_ROWS}|{_BOUND}", "rewrites"),
    Mutation(vacuum_deletes_before_the_expiry, f"{_MISSING}|{_WRONG_ROWS}", "rewrites"),
]
