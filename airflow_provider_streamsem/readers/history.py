"""The versions of a log, as ``streamsem log`` and the web view show them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.pipeline.spec.changes import changed_fields
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import SEGMENT_WIDTH, Json, Kind, Outcome, Receipts, Segment
from airflow_provider_streamsem.protocol.kinds.registry import KINDS
from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges
from airflow_provider_streamsem.protocol.procedures import read_entry
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import OpenHead, Part, stored_output
from airflow_provider_streamsem.readers.files import CommittedLog, Version
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.metered import charge, memory_of, working

_CACHED_BYTES = 64 << 20
_TEXT = 2_000
"""The number of characters of a reason and of a run key in a :class:`VersionSummary`."""
_REQUEST_BYTES = 4_000
"""The bytes of memory for a request that waits for a thread."""
_EXTRA = 3
"""The number of versions before the last one of a page that are read, to find the spec before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """
    A version as a row of a table: ``streamsem log`` and the web view show it.

    :param kind: the name of the kind in the log, such as ``batch``
    :param description: what the version does, in a few words
    :param result: ``open``, ``held``, ``commit`` or ``abort``; or ``publishing`` for a commit whose receipts are not stored yet
    :param replaces: the version whose rows a reprocessing run replaces
    :param replaced_by: the reprocessing run that has replaced the rows of the version, if it was read
    :param rolls_back_to: the version to which a rollback returns
    :param is_rolled_back: whether a later rollback has removed the rows of the version
    :param is_expired: whether the version has expired, so that it cannot be read or rolled back to
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
    :param failed_gates: the conditions of gates that the rows do not satisfy, a sentence each
    :param reason: why the version was aborted; ``""`` if it was not. At most 2,000 characters
    :param changed: the fields of the spec that differ from those of the version before
    """

    version: int
    kind: str
    description: str
    result: str
    replaces: int | None
    replaced_by: int | None
    rolls_back_to: int | None
    is_rolled_back: bool
    is_expired: bool
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
    failed_gates: tuple[str, ...]
    reason: str
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary(VersionFacts):
    """
    A version without its files, pins and state.

    :param ranges: partition → start offset (inclusive) and end offset (exclusive)
    :param gaps: partition → ranges of records that the source has lost
    """

    ranges: Ranges
    gaps: Gaps

    @property
    def of_kind(self) -> type[Kind]:
        """The class of the kind, which says what all its versions have in common."""
        return KINDS[self.kind]

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


class VersionCache:
    """
    Keeps values that were read from logs, up to a number of bytes. It forgets those first that were used least recently.

    Several threads may use an instance.

    :param most: maximum number of bytes of memory
    """

    def __init__(self, most: int = _CACHED_BYTES) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def get(self, key: Hashable) -> Any:
        """Return a value; ``None`` if it is not kept."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: object) -> None:
        """Keep a value, unless it needs more than a fourth of the memory."""
        size = memory_of(key) + memory_of(value)
        with self._lock:
            if key in self._values or size > self._most // 4:
                return
            self._values[key] = value, size
            self.bytes += size
            while self.bytes > self._most:
                _, (_, size) = self._values.popitem(last=False)
                self.bytes -= size


@dataclass(frozen=True, slots=True)
class _Row:
    """The summary of a version as far as other versions do not change it and the digest of its spec."""

    summary: VersionSummary
    spec: str


@dataclass(slots=True)
class History:
    """
    Reads the versions of a log, and keeps those that can no longer change: closed ones whose receipts are stored, if they require any.

    The versions have no pins, which may be large. Several threads may use an instance.

    :param cache: keeps the versions. Several histories may share it
    """

    opened: CommittedLog
    cache: VersionCache = field(default_factory=VersionCache)
    _id: object = field(default_factory=object)

    def summaries(self, *, before: int | None = None, limit: int) -> list[VersionSummary]:
        """
        Return the newest versions below ``before`` in descending order, including an open one.

        :param before: exclusive; default: all versions
        :raises LogDamagedError: an entry of the log is missing or damaged
        """
        with working():
            head = self.opened.log.find_head()
            newest, outcome = head.plan.version if isinstance(head, OpenHead) else head.closed, head.outcome
            removed, oldest = self.opened.rolled_back(outcome), head.oldest_readable
        end = newest + 1 if before is None else min(before, newest + 1)
        numbers = range(end - 1, max(-1, end - 1 - limit - _EXTRA), -1)
        rows = [row for row in in_threads(self._row, numbers) if row is not None]
        return [self._completed(row, rows[at + 1 :], removed, oldest) for at, row in enumerate(rows[:limit])]

    def summary(self, number: int) -> VersionSummary | None:
        """Return the summary of one version; ``None`` if it does not exist."""
        numbers = range(number, max(-1, number - 1 - _EXTRA), -1)
        row, *earlier = in_threads(self._row, numbers)
        if row is None:
            return None
        with working():
            head = self.opened.log.find_head()
            removed, oldest = self.opened.rolled_back(head.outcome), head.oldest_readable
        return self._completed(row, [each for each in earlier if each is not None], removed, oldest)

    def versions(self, numbers: Sequence[int]) -> list[Version]:
        """Return versions with their entries, in the given order. Versions that do not exist are left out."""
        return [version for version in in_threads(self.version, numbers) if version is not None]

    def version(self, number: int) -> Version | None:
        """Return a version with its entries and without its pins; ``None`` if it does not exist."""
        with working():
            version = self._read(number)
        charge(memory_of(version))
        return version

    def _read(self, number: int) -> Version | None:
        key = (self._id, "version", number)
        version: Version | None = self.cache.get(key)
        if version is None and (found := self.opened.version(number)) is not None:
            version = replace(found, plan=replace(found.plan, pins=None))
            if _is_final(version):
                self.cache.put(key, version)
                for commit in () if version.outcome is None else version.outcome.hidden.commits:
                    self.cache.put((self._id, "replaced", commit), number)
        return version

    def _row(self, number: int) -> _Row | None:
        key = (self._id, "row", number)
        row: _Row | None = self.cache.get(key)
        if row is None:
            with working():
                version = self._read(number)
                row = None if version is None else _Row(_summary(version), version.plan.spec)
                if row is not None and version is not None and _is_final(version):
                    self.cache.put(key, row)
        charge(memory_of(row))
        return row

    def parts(self, versions: range) -> list[Part]:
        """
        Return segments and outcomes that together cover some closed versions, in order (R5). Each 100 versions are one segment if it exists.

        :raises LogDamagedError: a version has no outcome
        """
        indexes = range(-(-versions.start // SEGMENT_WIDTH), versions.stop // SEGMENT_WIDTH)
        charge(_REQUEST_BYTES * len(indexes))
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

    def spec(self, digest: str) -> Json:
        """Return a stored spec as JSON."""
        key = (self._id, "spec", digest)
        spec = self.cache.get(key)
        if spec is None:
            with working():
                spec = stored_spec(self.opened.log.read_spec(digest))
                self.cache.put(key, spec)
        charge(memory_of(spec))
        return spec

    def _completed(
        self, row: _Row, earlier: Sequence[_Row], removed: Sequence[range], oldest_readable: int
    ) -> VersionSummary:
        """``earlier`` are the versions before it, newest first."""
        summary = row.summary
        with working():
            changed = self._changed(row, earlier)
        charge(memory_of(changed))
        return replace(
            summary,
            replaced_by=self.cache.get((self._id, "replaced", summary.version)),
            is_rolled_back=summary.of_kind.is_announced and any(summary.version in versions for versions in removed),
            is_expired=summary.version < oldest_readable,
            changed=changed,
        )

    def _changed(self, row: _Row, earlier: Sequence[_Row]) -> tuple[str, ...]:
        """Versions that were not processed with the spec in their plan are ignored. So a change is shown at the first batch that uses it."""
        specs = [each.spec for each in (row, *earlier) if each.summary.of_kind.uses_spec][:2]
        if not row.summary.of_kind.uses_spec or len({*specs}) < 2:
            return ()
        return tuple(changed_fields(self.spec(specs[1]), self.spec(specs[0])))


def _summary(version: Version) -> VersionSummary:
    """Return the summary of a version as if the log had no other versions."""
    plan, outcome, receipts = version.plan, version.outcome, version.receipts
    output = {} if outcome is None else stored_output(outcome)
    files = [file for sink in output.values() for file in sink.files]
    work = plan.work
    return VersionSummary(
        version=version.version,
        kind=work.kind,
        description=work.describe(),
        result=_result(version),
        replaces=next(iter(work.hidden.commits), None),
        replaced_by=None,
        rolls_back_to=work.hidden.after,
        is_rolled_back=False,
        is_expired=False,
        ranges=plan.ranges,
        gaps=plan.gaps if outcome is None else outcome.gaps,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        counts={} if outcome is None else outcome.counts,
        rewritten={} if outcome is None else {rewrite.sink: rewrite.rows for rewrite in outcome.rewrites},
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
        run_key=_shortened(plan.run_key),
        failed_gates=tuple(_shortened(failed.found) for failed in version.failed_gates),
        reason="" if outcome is None else _shortened(outcome.reason),
        changed=(),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _is_final(version: Version) -> bool:
    outcome = version.outcome
    return outcome is not None and (version.receipts is not None or not outcome.requires_receipts)


def _result(version: Version) -> str:
    if version.outcome is None:
        return "held" if version.is_held else "open"
    return "publishing" if version.outcome.requires_receipts and version.receipts is None else version.outcome.result


def _sinks(outcome: Outcome, receipts: Receipts | None) -> dict[str, str]:
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
