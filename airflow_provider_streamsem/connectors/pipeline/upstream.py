"""
Reads the log of an upstream pipeline: its closed versions, the commits that hold the rows of its batches, and the dataset of one sink.

A *batch* is a version that read records. A reprocessing run is a later version that replaces the rows of a batch. So the rows of a batch are in exactly one
commit: the batch itself, or the newest reprocessing run of its chain (PROTOCOL.md, 4.6).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.files.stored import former_sinks, stored_sinks
from airflow_provider_streamsem.connectors.ownership import claim_dataset
from airflow_provider_streamsem.connectors.pipeline.pins import VersionPin
from airflow_provider_streamsem.delivery import SATISFIES
from airflow_provider_streamsem.errors import (
    InvalidError,
    LogDamagedError,
    LogMovedError,
    SourceChangedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol import keys, procedures
from airflow_provider_streamsem.protocol.entries import SEGMENT_WIDTH, DataFile, Outcome, PipelineRecord, Segment
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import Head, remains
from airflow_provider_streamsem.stores.concurrency import THREADS, in_threads
from airflow_provider_streamsem.stores.contract import UnknownResultError, normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

_NONE = "nothing was read or written"


@dataclass(frozen=True, slots=True)
class RecordedGuarantee:
    """The guarantee (such as ``exactly_once``) and its condition, ``""`` if it is unconditional, as a spec in the upstream's log records them."""

    label: str
    conditions: str


@dataclass(frozen=True, slots=True)
class RowCommits:
    """
    The commits that hold the rows of batches, as of a version: batch → commit.

    :param corrected: earlier batches whose rows a reprocessing run has replaced
    :param rolled_back: earlier batches whose rows a rollback has removed. The upstream reads their records again
    """

    commits: Mapping[int, int]
    corrected: tuple[int, ...]
    rolled_back: tuple[int, ...]


@dataclass(slots=True)
class UpstreamLog:
    """
    The log of the upstream, opened for one sink. It caches the outcomes that it has read, which never change (I1).

    :param removed_at: the newest alter that has replaced the dataset, or -1
    """

    log: CommitLog
    record: PipelineRecord
    sink: str
    dataset: FilesSink
    removed_at: int = -1
    _former: dict[int, FilesSink] = field(default_factory=dict)
    _outcomes: dict[int, tuple[Outcome, str]] = field(default_factory=dict)
    _replaced: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    _guarantees: dict[str, RecordedGuarantee] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """The name of the only partition. It contains the uuid, so that another pipeline at the same location is not read."""
        return f"{self.record.pipeline_uuid}/{self.sink}"

    def check_owner(self) -> None:
        """The ownership marker of the dataset must name the upstream (R7)."""
        claim_dataset(self.sink, self.dataset, self.log, self.record, url=self.log.store.url, new=False)

    def recreated_error(self, committed: Iterable[str]) -> SourceChangedError:
        """For committed offsets or pins of another pipeline or sink, whose partitions are given."""
        summary = "this pipeline has read another upstream or another sink: the upstream was recreated, or `log` or `sink` was changed; nothing was written"
        return SourceChangedError(summary, committed=sorted(committed), found=self.partition).advising(
            "restore `log` and `sink`, or give this pipeline a new log and new datasets to read the other upstream from its beginning."
        )

    def rewritten_error(self, version: int) -> SourceChangedError:
        """For a log that no longer has a version that was read, or has another one."""
        summary = "the upstream's log lacks a version that this pipeline has read, or has another one: an older copy of it was restored; nothing was written"
        return SourceChangedError(summary, version=version).advising(
            "restore the newest copy of the upstream's log. If it is lost, give this pipeline a new log and new datasets, and read the upstream from its "
            "beginning."
        )

    def end(self, *, confirmed: bool = False) -> int:
        """The first version that is not closed. With ``confirmed``, reads the keys of later versions, because a listing may lag (W8)."""
        head = self.log.find_head()
        return (self.log.confirm_head(head) if confirmed else head).closed + 1

    def closed_before(self, at_ms: int, end: int) -> int:
        """The first of the versions ``[0, end)`` that was closed at or after ``at_ms``, or ``end``. Assumes that later versions have later times."""
        return bisect_left(range(end), at_ms, key=lambda version: self.outcome(version, end=version + 1).decided_at_ms)

    def path(self, file: DataFile) -> str:
        return f"{normalised(self._dataset_of(file).location)}/{file.key}"

    def _dataset_of(self, file: DataFile) -> FilesSink:
        """The dataset of the sink, or the former one if an alter has replaced it since the file was written."""
        attempt = keys.attempt_of_data(file.key)
        version = self.removed_at if attempt is None else attempt[0]  # every file of an attempt has such a key
        if version > self.removed_at:
            return self.dataset
        if version not in self._former:
            newest = self.log.find_head().outcome
            former = None if newest is None else former_sinks(self.log, version, newest).get(self.sink)
            if not isinstance(former, FilesSink):
                raise self.former_error([version])
            claim_dataset(self.sink, former, self.log, self.record, url=self.log.store.url, new=False)
            self._former[version] = former
        return self._former[version]

    def pinned(self, commits: Mapping[int, int], end: int) -> list[VersionPin]:
        """Return the pins of batches (batch → its commit) with rows, in ascending order."""
        batches = (
            (batch, commit, self.files(self.outcome(commit, end=end))) for batch, commit in sorted(commits.items())
        )
        return [VersionPin(batch, commit, files) for batch, commit, files in batches if files]

    def find_outcome(self, version: int) -> tuple[Outcome, str] | None:
        """The outcome and the sha256 of its bytes; ``None`` if the version is not closed."""
        if version not in self._outcomes:
            outcome = self.log.outcome_and_sha256(version)
            if outcome is None:
                return None
            self._outcomes[version] = outcome
        return self._outcomes[version]

    def outcome(self, version: int, *, end: int) -> Outcome:
        return self.outcome_and_sha(version, end=end)[0]

    def outcome_and_sha(self, version: int, *, end: int) -> tuple[Outcome, str]:
        """Requests the next outcomes too, up to ``end`` (exclusive), because callers read them in order."""
        if version not in self._outcomes:
            ahead = [v for v in range(version, min(version + THREADS, end)) if v not in self._outcomes]
            for at, outcome in zip(ahead, in_threads(self.log.outcome_and_sha256, ahead), strict=True):
                if outcome is None:
                    summary = "a version below a closed one has no outcome"
                    raise LogDamagedError(summary, invariant="I2", version=at)
                self._outcomes[at] = outcome
        return self._outcomes[version]

    def forget(self, before: int) -> None:
        self._outcomes = {version: outcome for version, outcome in self._outcomes.items() if version >= before}

    def files(self, outcome: Outcome) -> tuple[DataFile, ...]:
        """The files with rows that an outcome makes visible in the sink; none for an abort."""
        committable = outcome.sinks.get(self.sink) if outcome.committed else None
        return () if committable is None else tuple(file for file in committable.files if file.rows)

    def row_commits(self, first: int, stop: int, end: int) -> RowCommits:
        """Find the commits of the rows of the batches ``[first, stop)``, and the corrections of batches below ``first``, as of ``end`` (exclusive)."""
        batches: dict[int, int] = {}  # commit → the batch whose rows it holds
        kept = self.log.remaining_versions(self.outcome(end - 1, end=end)) if end else []
        corrected: set[int] = set()
        rolled_back = self._rolled_back(kept, first, end)
        at = first
        while at < end:
            if at >= stop and at % SEGMENT_WIDTH == 0 and at + SEGMENT_WIDTH <= end:
                replaced = self._replaced_in(at // SEGMENT_WIDTH, end // SEGMENT_WIDTH)
                if replaced is not None and not any(v in batches or v < first for v in replaced):
                    at += SEGMENT_WIDTH
                    continue
            outcome = self.outcome(at, end=end)
            if not remains(at, kept):
                pass
            elif outcome.replaces is None:
                if outcome.committed and at < stop:
                    batches[at] = at
            elif outcome.replaces in batches:
                batches[at] = batches.pop(outcome.replaces)
            elif outcome.replaces < first:
                corrected.add(self.log.find_root(outcome.replaces))
            at += 1
        return RowCommits(
            {batch: commit for commit, batch in batches.items()}, tuple(sorted(corrected)), tuple(sorted(rolled_back))
        )

    def batches_in_former_dataset(self, commits: Mapping[int, int], end: int) -> list[int]:
        """The batches (batch → its commit), ascending, whose rows are in the former dataset, because an alter has replaced it since (W36)."""
        removed_at = self.log.removed_at(self.sink, self.outcome(end - 1, end=end)) if commits else -1
        return [
            batch
            for batch, commit in sorted(commits.items())
            if commit <= removed_at and self.files(self.outcome(commit, end=end))
        ]

    def former_error(self, batches: list[int]) -> SourceChangedError:
        return SourceChangedError(
            "an alter of the upstream replaced the dataset of this sink, and the rows of these versions are only in the former dataset; nothing was written",
            sink=self.sink,
            versions=batches,
        ).advising(
            "reprocess these versions upstream: `streamsem reprocess UPSTREAM N`. "
            'If this pipeline has already read some of them, set on_reprocess="ignore", or its next run is refused.'
        )

    def _rolled_back(self, kept: Sequence[range], first: int, end: int) -> set[int]:
        """Return the batches below ``first`` that a rollback at or above ``first`` has removed. ``kept`` is as of ``end``, exclusive."""
        return {
            version
            for before, after in pairwise(kept)
            if after.start >= first
            for version in range(before.stop, min(after.start, first))
            for outcome in [self.outcome(version, end=end)]
            if outcome.committed and outcome.replaces is None
        }

    def _replaced_in(self, index: int, end: int) -> tuple[int, ...] | None:
        """Return ``None`` if there is no such segment. Requests the next segments too, up to ``end``, exclusive."""
        if index not in self._replaced:
            ahead = [i for i in range(index, min(index + THREADS, end)) if i not in self._replaced]
            segments = in_threads(lambda i: self.log.perform(procedures.read_entry(Segment, keys.segment(1, i))), ahead)
            self._replaced |= {
                i: None if segment is None else segment[0].hidden.commits
                for i, segment in zip(ahead, segments, strict=True)
            }
        return self._replaced[index]

    def guarantee(self, spec: str) -> RecordedGuarantee:
        """A spec (by its sha256) of an earlier release records no guarantee, and is refused (``InvalidError``)."""
        if spec not in self._guarantees:
            recorded = stored_spec(self.log.read_spec(spec)).get("guarantee")
            if recorded is None:
                summary = f"an earlier release wrote the upstream's versions and recorded no guarantee; {_NONE}"
                raise InvalidError(summary, spec=spec).advising("rebuild the upstream with this release in a new log.")
            sinks = recorded.get("sinks") if isinstance(recorded, dict) else None
            label = sinks.get(self.sink) if isinstance(sinks, dict) else None
            if not isinstance(label, str) or label not in SATISFIES:
                raise LogDamagedError("a spec in the log records no valid guarantee", invariant="I1", spec=spec)
            self._guarantees[spec] = RecordedGuarantee(label, str(recorded.get("conditions", "")))
        return self._guarantees[spec]

    def are_missing_or_resized(self, files: Sequence[DataFile]) -> list[bool]:
        """Sends one request per file, and reads no content."""

        def is_changed(file: DataFile) -> bool:
            stat = open_dataset(self._dataset_of(file).location).stat(file.key)
            return (
                stat is None or stat.bytes != file.bytes or (stat.etag != "" and f"etag:{stat.etag}" != file.checksum)
            )

        with _reporting_unavailable(self.dataset.location):
            return in_threads(is_changed, files)

    def have_changed(self, files: Sequence[DataFile]) -> list[bool]:
        """On local disk this reads the file, or the footer of a Parquet file."""

        def is_changed(file: DataFile) -> bool:
            dataset = self._dataset_of(file)
            return dataset.file_identity(file.key, dataset.format) != (file.bytes, file.checksum)

        with _reporting_unavailable(self.dataset.location):
            return in_threads(is_changed, files)


def open_upstream(log: CommitLog, sink: str | None) -> tuple[UpstreamLog, Head]:
    """Open the log of an upstream (``sink=None``: its only sink), check that it owns the dataset, and return its head too, as a listing shows it."""
    record = log.read_pipeline()
    head = log.find_head() if record is not None else None
    if record is None or head is None or head.spec is None:
        summary = "the upstream pipeline has no version at this location yet"
        raise UnavailableError(summary, log=log.store.url).advising(
            "run the upstream pipeline once, or correct `log` of the source; then run again."
        )
    sinks = stored_sinks(stored_spec(log.read_spec(head.spec)))
    if sink is None and len(sinks) > 1:
        raise InvalidError(
            "the upstream has several sinks, and `sink` of the source is not set", accepted=sorted(sinks)
        ).advising("set `sink` of the source to the name of one of them, then run again.")
    name = sink or next(iter(sinks))
    if name not in sinks:
        raise InvalidError("the upstream has no such sink", given=name, accepted=sorted(sinks))
    dataset = sinks[name]
    if isinstance(dataset, str):
        summary = "the upstream publishes the rows of this sink outside its log, so the log has no files of it"
        raise InvalidError(summary, sink=name, type=dataset).advising(
            "name a sink of type files, or read the table or topic of the sink with another source."
        )
    removed_at = -1 if head.outcome is None else log.removed_at(name, head.outcome)
    opened = UpstreamLog(log, record, name, dataset, removed_at)
    opened.check_owner()
    return opened, head


@contextmanager
def naming_upstream(url: str) -> Iterator[None]:
    """Name the upstream's log in an error that the block raises."""
    try:
        yield
    except LogMovedError as error:
        summary = f"the upstream's log was moved to another location; {_NONE}"
        raise LogMovedError(summary, **{"upstream": url, **error.fields}).advising(
            "set `log` of the source to the location in `moved_to`, then run again: reading continues where it stopped."
        ) from error
    except StreamsemError as error:
        raise error.with_fields(upstream=url) from error.__cause__


@contextmanager
def _reporting_unavailable(location: str) -> Iterator[None]:
    try:
        yield
    except UnknownResultError as error:
        summary = (
            "the location of the upstream's dataset did not report the result of a request; nothing became visible"
        )
        raise UnavailableError(summary, location=location) from error
