"""A rewrite: stores the rows of earlier commits of one sink in new files (compaction)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from airflow_provider_streamsem.protocol.entries import (
    SPARSE,
    Committable,
    Kind,
    Outcome,
    Plan,
    SegmentRewrite,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(Kind):
    """
    The payload of a rewrite.

    :param sink: the sink whose files it rewrites
    :param commits: versions in ascending order
    :param rows: the number of rows that these commits wrote
    :param erased: the number of these rows that earlier versions have erased
    :param output: the new files, with the rows that were not erased; ``None`` in a plan
    """

    kind = "rewrite"
    name = "rewrite"
    label = "rewrite (compaction)"
    color = "cyan.emphasized"
    invariant = "I23"
    stages = True
    is_announced = False
    chains = ("rewrite",)
    sink: str
    commits: tuple[int, ...]
    rows: int
    erased: int = field(default=0, metadata=SPARSE)
    output: Committable | None = field(default=None, metadata=SPARSE)

    def rewrites(self, version: int) -> tuple[SegmentRewrite, ...]:
        return (segment_of(self, version),)

    def is_staged_by(self, manifest: StagedManifest) -> bool:
        """Return whether the attempt has written the rows, and nothing else."""
        return {*manifest.sinks} == {self.sink} and has_its_rows(self.staged(manifest))

    def staged(self, manifest: StagedManifest) -> Rewrite:
        return replace(self, output=manifest.sinks.get(self.sink))

    def is_outcome_of(self, planned: Kind) -> bool:
        return replace(self, output=None) == planned

    def describe(self) -> str:
        return f"rewrite of {len(self.commits)} commits of sink {self.sink}"

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the commits are earlier versions in ascending order, and that the plan has no output (I23)."""
        Kind.check_plan(self, plan, before=before, next=next)
        if not names_earlier_commits(self, plan.version) or self.output is not None:
            summary = (
                "the plan of a rewrite has output, or its `commits` are empty, not in ascending order, or not before it"
            )
            raise self.damaged(summary, plan.version)

    def check_outcome(self, outcome: Outcome) -> None:
        """Check that the commit has new files, and no other output (I23)."""
        Kind.check_outcome(self, outcome)
        if self.output is None:
            raise self.damaged("the outcome of a rewrite has no output", outcome.version)

    def check_commit(self, plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
        """Check that the new files have the planned number of rows, and that the commit changes nothing else (I23)."""
        Kind.check_commit(self, plan, outcome, before=before)
        if not has_its_rows(self):
            raise self.damaged("the files of a rewrite have another number of rows than its plan", plan.version)


class StoredRows(Protocol):
    """Rows of earlier commits of a sink that a version stores in new files."""

    @property
    def sink(self) -> str: ...
    @property
    def commits(self) -> tuple[int, ...]: ...
    @property
    def rows(self) -> int: ...
    @property
    def erased(self) -> int: ...
    @property
    def output(self) -> Committable | None: ...


def segment_of(rewrite: StoredRows, version: int) -> SegmentRewrite:
    """Return what the commit of a rewrite means for readers. Its outcome was checked, so it has output."""
    assert rewrite.output is not None
    return SegmentRewrite(
        version=version,
        sink=rewrite.sink,
        commits=rewrite.commits,
        rows=rewrite.rows,
        output=rewrite.output,
        erased=rewrite.erased,
    )


def names_earlier_commits(rewrite: StoredRows, version: int) -> bool:
    """Return whether a rewrite names versions before its own, each once and in ascending order (I23)."""
    commits = rewrite.commits
    return bool(commits) and [*commits] == sorted({*commits}) and commits[0] >= 0 and commits[-1] < version


def has_its_rows(rewrite: StoredRows) -> bool:
    """Return whether a committed rewrite has files with as many rows as it names, without those that were erased (I23)."""
    output = rewrite.output
    left = rewrite.rows - rewrite.erased
    return output is not None and rewrite.erased >= 0 and left == output.rows == sum(file.rows for file in output.files)
