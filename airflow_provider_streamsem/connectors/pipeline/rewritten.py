"""Finds upstream batches that must be read together: a compaction has stored their rows in shared files, and their versions have expired (PROTOCOL.md, W44)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.pipeline.pins import UpstreamPin, VersionPin
from airflow_provider_streamsem.connectors.pipeline.upstream import UpstreamLog
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.protocol.entries import DataFile
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.view import is_bound


@dataclass(frozen=True, slots=True)
class RewrittenBatches:
    """
    The batches of one rewrite. A plan reads all of them or none.

    :param commits: the commits that it has rewritten, in ascending order
    :param batches: the batches whose rows these commits held, in ascending order
    :param files: the files with the rows of all these batches
    """

    version: int
    commits: tuple[int, ...]
    batches: tuple[int, ...]
    files: tuple[DataFile, ...]

    @property
    def pin(self) -> VersionPin:
        """At the first of all batches."""
        return VersionPin(self.batches[0], self.version, self.files)


def rewritten_batches(upstream: UpstreamLog, first: int, end: int) -> list[RewrittenBatches]:
    """Find the rewrites, as of version ``end`` (exclusive), with rows of batches at or above ``first`` that must be read together."""
    if end <= 0:
        return []
    newest = upstream.outcome(end - 1, end=end)
    oldest = newest.oldest_readable
    if Rewrite.kind not in newest.newest or first >= oldest:
        return []
    found = []
    for rewrite in upstream.log.view(version=end - 1).rewrites:
        if rewrite.sink == upstream.sink and is_bound(rewrite, oldest):
            batches = tuple(sorted(upstream.log.find_root(commit) for commit in rewrite.commits))
            files = tuple(file for file in rewrite.output.files if file.rows)
            if batches[-1] >= first:
                found.append(RewrittenBatches(rewrite.version, rewrite.commits, batches, files))
    return found


def span(upstream: UpstreamLog, pin: VersionPin) -> tuple[int, int]:
    """Return the first and the last batch, both inclusive, of which the files of a pin have rows."""
    is_batch = pin.commit == pin.version
    rewrites = () if is_batch else upstream.outcome(pin.commit, end=pin.commit + 1).rewrites
    batches = [upstream.log.find_root(commit) for rewrite in rewrites for commit in rewrite.commits]
    return min(batches, default=pin.version), max(batches, default=pin.version)


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """
    The rows of the batches of an earlier plan, as of a version (``end``, exclusive).

    :param commits: batch → the commit that holds its rows, for each batch that the plan read
    :param rewrites: the rewrites with rows of these batches that must be read together
    :param divided: those of them that also have rows of other batches
    :param former: the batches whose rows are in a former dataset
    """

    upstream: UpstreamLog
    end: int
    commits: dict[int, int]
    rewrites: tuple[RewrittenBatches, ...]
    divided: tuple[RewrittenBatches, ...]
    former: list[int]

    def with_rows(self) -> dict[int, int]:
        """Batch → commit, for the batches with rows."""
        commits = self.commits.items()
        return {at: each for at, each in commits if self.upstream.files(self.upstream.outcome(each, end=self.end))}

    def pinned(self, pins: Sequence[UpstreamPin]) -> dict[int, int]:
        """Return batch → commit of some pins. A pin of a rewrite has the rows of the commits that were rewritten."""
        found: dict[int, int] = {}
        for version in (version for pin in pins for version in pin.versions):
            rewrites = self.upstream.outcome(version.commit, end=version.commit + 1).rewrites
            if not rewrites:
                found[version.version] = version.commit
            for rewrite in rewrites:
                found |= {self.upstream.log.find_root(commit): commit for commit in rewrite.commits}
        return found


def planned_batches(upstream: UpstreamLog, batches: range, skipped: Collection[int], end: int) -> PlannedBatches:
    """Find the rows of the batches of an earlier plan, which did not read those in ``skipped``, as of ``end`` (exclusive)."""
    found = upstream.row_commits(batches.start, batches.stop, end).commits
    commits = {batch: commit for batch, commit in found.items() if batch not in skipped}
    rewrites = [each for each in rewritten_batches(upstream, batches.start, end) if commits.keys() & {*each.batches}]
    return PlannedBatches(
        upstream,
        end,
        commits,
        tuple(rewrites),
        tuple(each for each in rewrites if not {*each.batches} <= commits.keys()),
        upstream.batches_in_former_dataset(commits, end),
    )


def aligned_stop(rewrites: Iterable[RewrittenBatches], first: int, stop: int) -> int:
    """Return an end that divides no rewrite whose batches all begin at or above ``first``: at most ``stop`` (exclusive), else the next higher one."""
    groups: list[tuple[int, int]] = []  # disjoint spans of batches
    for low, high in sorted((each.batches[0], each.batches[-1]) for each in rewrites):
        if groups and low <= groups[-1][1]:
            groups[-1] = (groups[-1][0], max(groups[-1][1], high))
        else:
            groups.append((low, high))
    for low, high in groups:
        if low < stop <= high:
            return low if low > first else high + 1
    return stop


def pinned(
    upstream: UpstreamLog, rewrites: Sequence[RewrittenBatches], commits: dict[int, int], end: int
) -> list[VersionPin]:
    """Return the pins of batches (batch → its commit) with rows, ascending: one for each rewrite, whose batches are all given, and each other batch."""
    together = {batch for each in rewrites for batch in each.batches}
    alone = {batch: commit for batch, commit in commits.items() if batch not in together}
    pins = [*upstream.pinned(alone, end), *(each.pin for each in rewrites if each.files)]
    return sorted(pins, key=lambda pin: pin.version)


def divided_error(rewrites: Collection[RewrittenBatches], summary: str) -> SourceChangedError:
    """Return the error for batches that a plan would have to read without others of the same rewrite."""
    return SourceChangedError(
        summary,
        compactions=sorted(each.version for each in rewrites),
        first=min(each.batches[0] for each in rewrites),
        last=max(each.batches[-1] for each in rewrites),
    ).advising(
        'give this pipeline a new log and new datasets, and read the upstream from its beginning. Or set on_data_loss="record_gap": the unread versions become '
        "a gap. Raise keep_versions and keep_days of the upstream's vacuum above the longest delay of this pipeline."
    )
