"""The versions of a log, as ``streamsem log`` and the web view show them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.pipeline.changes import changed_fields
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import SEGMENT_WIDTH, Json, Outcome, Receipts, Segment
from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges
from airflow_provider_streamsem.protocol.procedures import read_entry
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import OpenHead, Part, stored_output
from airflow_provider_streamsem.readers.files import CommittedLog, Version
from airflow_provider_streamsem.stores.concurrency import in_threads

_CACHED = 20_000
"""The number of versions and files that a :class:`History` keeps in memory. Each needs up to a kilobyte."""
_EXTRA = 3
"""The number of versions before the last one of a page that are read, to find the spec before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """
    A version without its files, pins and state.

    :param kind: ``batch``, ``reprocess``, ``rollback``, ``alter``, ``rewrite`` or ``expire``
    :param result: ``open``, ``held``, ``commit`` or ``abort``; or ``publishing`` for a commit whose receipts are not stored yet
    :param replaces: the version whose rows a reprocessing run replaces
    :param replaced_by: the reprocessing run that has replaced the rows of the version, if it was read
    :param rolls_back_to: the version to which a rollback returns
    :param is_rolled_back: whether a later rollback has removed the rows of the version
    :param expires: of an expiry: the oldest version that can be read after it. The versions below this one expire
    :param is_expired: whether the version has expired, so that it cannot be read or rolled back to
    :param ranges: partition → start offset (inclusive) and end offset (exclusive)
    :param gaps: partition → ranges of records that the source has lost
    :param files: number of committed files
    :param bytes: their size in bytes
    :param counts: name → number of records, such as ``read`` and ``written.<sink>``; empty while the version is open
    :param rewritten: sink → number of rows that a committed rewrite has stored in new files; empty for every other version
    :param watermark_ms: the watermark after the version, in milliseconds since the epoch
    :param planned_at_ms: when the version was planned, in milliseconds since the epoch
    :param decided_at_ms: when it was closed; ``None`` while it is open
    :param published_at_ms: when its receipts were stored; ``None`` without receipts
    :param duration_ms: milliseconds from the plan to the outcome, including the time between attempts
    :param planning_ms: milliseconds in which the plan was built; 0 for a version of an earlier release
    :param staged_ms: milliseconds in which the committed attempt staged its rows; ``None`` while the version is open
    :param publishing_ms: milliseconds in which the publisher that stored the receipts published the rows; ``None`` without receipts
    :param lag: number of unread items of the source when the version was planned, those of the version included; ``None`` if it is not known
    :param sinks: sink → ``committed``; for a sink outside the log, ``waiting`` or the result in its receipt: ``applied``, ``skipped`` or ``unknown``
    :param reason: why the version was aborted; ``""`` if it was not
    :param changed: the fields of the spec that differ from those of the version before
    """

    version: int
    kind: str
    result: str
    replaces: int | None
    replaced_by: int | None
    rolls_back_to: int | None
    is_rolled_back: bool
    expires: int | None
    is_expired: bool
    ranges: Ranges
    gaps: Gaps
    files: int
    bytes: int
    counts: Mapping[str, int]
    rewritten: Mapping[str, int]
    watermark_ms: int | None
    planned_at_ms: int
    decided_at_ms: int | None
    published_at_ms: int | None
    duration_ms: int | None
    planning_ms: int
    staged_ms: int | None
    publishing_ms: int | None
    lag: int | None
    sinks: Mapping[str, str]
    run_key: str
    reason: str
    changed: tuple[str, ...]

    @property
    def most_rows(self) -> int:
        """The number of rows in the sink with the most rows of the version."""
        return max((rows for name, rows in self.counts.items() if name.startswith("written.")), default=0)

    @property
    def has_gaps(self) -> bool:
        """Whether the source has lost records of the ranges."""
        return bool(self.gaps)

    @property
    def partitions(self) -> int:
        """The number of partitions of the ranges."""
        return len(self.ranges)


@dataclass(slots=True)
class History:
    """
    Reads the versions of a log, and keeps those that can no longer change: closed ones whose receipts are stored, if they require any.

    Several threads may use an instance.
    """

    opened: CommittedLog
    _closed: OrderedDict[int, Version] = field(default_factory=OrderedDict)
    _size: int = 0
    _replaced_by: dict[int, int] = field(default_factory=dict)
    _specs: dict[str, Json] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def summaries(self, *, before: int | None = None, limit: int) -> list[VersionSummary]:
        """
        Return the newest versions below ``before`` in descending order, including an open one.

        :param before: exclusive; default: all versions
        :param limit: maximum number of versions
        :raises LogDamagedError: an entry of the log is missing or damaged
        """
        head = self.opened.log.find_head()
        newest = head.plan.version if isinstance(head, OpenHead) else head.closed
        end = newest + 1 if before is None else min(before, newest + 1)
        versions = self.versions(range(end - 1, max(-1, end - 1 - limit - _EXTRA), -1))
        removed = self.opened.rolled_back(head.outcome)
        return [
            self._summary(version, versions[at + 1 :], head.outcome, removed)
            for at, version in enumerate(versions[:limit])
        ]

    def summary(self, version: Version) -> VersionSummary:
        """Return the summary of one version."""
        earlier = self.versions(range(version.version - 1, max(-1, version.version - 1 - _EXTRA), -1))
        newest = self.opened.log.find_head().outcome
        return self._summary(version, earlier, newest, self.opened.rolled_back(newest))

    def versions(self, numbers: Sequence[int]) -> list[Version]:
        """Return versions with their entries, in the given order. Versions that do not exist are left out."""
        return [version for version in in_threads(self.version, numbers) if version is not None]

    def version(self, number: int) -> Version | None:
        """Return a version with its entries; ``None`` if it does not exist."""
        with self._lock:
            if number in self._closed:
                self._closed.move_to_end(number)
                return self._closed[number]
        version = self.opened.version(number)
        outcome = None if version is None else version.outcome
        if version is not None and outcome is not None and (version.receipts or not outcome.requires_receipts):
            self._keep(version, outcome)
        return version

    def parts(self, versions: range) -> list[Part]:
        """
        Return segments and outcomes that together cover some closed versions, in order (R5). Each 100 versions are one segment if it exists.

        :raises LogDamagedError: a version has no outcome
        """
        indexes = range(-(-versions.start // SEGMENT_WIDTH), versions.stop // SEGMENT_WIDTH)
        if not indexes:
            return [*self._outcomes(versions)]
        segments = in_threads(self._segment, indexes)
        found: list[Part] = [*self._outcomes(range(versions.start, indexes.start * SEGMENT_WIDTH))]
        for index, segment in zip(indexes, segments, strict=True):
            whole = range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH)
            found += [segment] if segment is not None else self._outcomes(whole)
        return [*found, *self._outcomes(range(indexes.stop * SEGMENT_WIDTH, versions.stop))]

    def _segment(self, index: int) -> Segment | None:
        entry = self.opened.log.perform(read_entry(Segment, keys.segment(1, index)))
        return None if entry is None else entry[0]

    def _outcomes(self, versions: range) -> list[Outcome]:
        found = [version.outcome for version in self.versions(versions) if version.outcome is not None]
        if len(found) < len(versions):
            summary = "a version below the head has no outcome"
            raise LogDamagedError(summary, invariant="I2", first=versions.start, last=versions[-1])
        return found

    def _keep(self, version: Version, outcome: Outcome) -> None:
        with self._lock:
            if version.version not in self._closed:
                self._closed[version.version] = version
                self._size += _size(version)
            if outcome.committed and outcome.replaces is not None:
                self._replaced_by[outcome.replaces.version] = version.version
            while self._size > _CACHED and len(self._closed) > 1:
                _, oldest = self._closed.popitem(last=False)
                self._size -= _size(oldest)

    def spec(self, digest: str) -> Json:
        """Return a stored spec as JSON."""
        if digest not in self._specs:
            self._specs[digest] = stored_spec(self.opened.log.read_spec(digest))
        return self._specs[digest]

    def _summary(
        self, version: Version, earlier: Sequence[Version], newest: Outcome | None, removed: set[int]
    ) -> VersionSummary:
        plan, outcome, receipts = version.plan, version.outcome, version.receipts
        output = {} if outcome is None else stored_output(outcome)
        files = [file for sink in output.values() for file in sink.files]
        return VersionSummary(
            version=version.version,
            kind=plan.kind,
            result=_result(version),
            replaces=None if plan.replaces is None else plan.replaces.version,
            replaced_by=self._replaced_by.get(version.version),
            rolls_back_to=None if plan.rolled_back is None else plan.rolled_back.to,
            is_rolled_back=_is_rolled_back(version, removed),
            expires=plan.expires,
            is_expired=newest is not None and version.version < (newest.oldest_readable or 0),
            ranges=plan.ranges,
            gaps=plan.gaps if outcome is None else outcome.gaps,
            files=len(files),
            bytes=sum(file.bytes for file in files),
            counts={} if outcome is None else outcome.counts,
            rewritten={}
            if outcome is None or outcome.rewritten is None
            else {outcome.rewritten.sink: outcome.rewritten.rows},
            watermark_ms=None if outcome is None else outcome.watermark_ms,
            planned_at_ms=plan.planned_at_ms,
            decided_at_ms=None if outcome is None else outcome.decided_at_ms,
            published_at_ms=None if receipts is None else receipts.published_at_ms,
            duration_ms=None if outcome is None else outcome.duration_ms,
            planning_ms=plan.planning_ms,
            staged_ms=None if outcome is None else outcome.staged_ms,
            publishing_ms=None if receipts is None else receipts.duration_ms,
            lag=plan.lag,
            sinks={} if outcome is None else _sinks(outcome, receipts),
            run_key=plan.run_key,
            reason="" if outcome is None else outcome.reason,
            changed=self._changed(version, earlier),
        )

    def _changed(self, version: Version, earlier: Sequence[Version]) -> tuple[str, ...]:
        """
        Return the spec fields in which a version differs from the newest of the earlier versions.

        Rollbacks and expiries are ignored, because they run no transform. So a change is shown at the first batch that uses it.
        """
        ignored = ("rollback", "expire")
        specs = [each.plan.spec for each in (version, *earlier) if each.plan.kind not in ignored][:2]
        if version.plan.kind in ignored or len({*specs}) < 2:
            return ()
        return tuple(changed_fields(self.spec(specs[1]), self.spec(specs[0])))


def _is_rolled_back(version: Version, removed: set[int]) -> bool:
    """
    Return whether a rollback has removed the rows of a version.

    A rewrite adds no rows, and may apply after a rollback to an earlier version. An expiry adds none either, and no rollback undoes it.
    """
    return version.version in removed and version.plan.kind not in ("rewrite", "expire")


def _size(version: Version) -> int:
    """Return the number of the version and its files."""
    return 1 + (
        0 if version.outcome is None else sum(len(sink.files) for sink in stored_output(version.outcome).values())
    )


def _result(version: Version) -> str:
    """Return the result of a version; see :class:`VersionSummary`."""
    if version.outcome is None:
        return "held" if version.plan.held else "open"
    return "publishing" if version.outcome.requires_receipts and version.receipts is None else version.outcome.result


def _sinks(outcome: Outcome, receipts: Receipts | None) -> dict[str, str]:
    """Return sink → state; see :class:`VersionSummary`."""
    initial_states = dict.fromkeys(outcome.publish, "waiting")
    results = {} if receipts is None else {name: receipt.result for name, receipt in receipts.sinks.items()}
    return {name: {**initial_states, **results}.get(name, "committed") for name in [*outcome.sinks, *outcome.publish]}


def rows_per_minute(newest: Sequence[VersionSummary]) -> float | None:
    """
    Return the average number of rows per minute that some versions wrote to their largest sink, from the first plan to the last outcome.

    ``None`` if none of the versions is closed.
    """
    closed = [summary for summary in newest if summary.decided_at_ms is not None and not summary.is_rolled_back]
    if not closed:
        return None
    rows = sum(summary.most_rows for summary in closed)
    began, ended = min(each.planned_at_ms for each in closed), max(each.decided_at_ms or 0 for each in closed)
    return round(rows * 60_000 / max(1, ended - began), 1)
