"""Reads what the page shows of one pipeline from its log. Entries that cannot change are read once in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.changes import changed_fields
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import lines, plain
from airflow_provider_streamsem.protocol.entries import StagedManifest
from airflow_provider_streamsem.protocol.procedures import read_entry
from airflow_provider_streamsem.readers.files import CommittedLog, Version, open_log
from airflow_provider_streamsem.readers.history import History, VersionSummary
from airflow_provider_streamsem.state import operator_state
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.web.documents import (
    Attempt,
    Comparison,
    FileRow,
    PipelineSummary,
    Problem,
    QuarantinedRecord,
    Task,
    VersionDetail,
    VersionPage,
    ranges_of,
    row_of,
    sinks_of,
    state_of,
)

_NEWEST = 30
"""The number of versions in a :class:`PipelineSummary`."""
_FILES = 500
"""The number of files in a :class:`VersionDetail`."""


@dataclass(slots=True)
class OpenedLog:
    """
    A log that is opened at first use. All requests share it, and so the versions that were read.

    :param location: URL of the log
    :param store_access: returns a context manager within which the log is opened
    """

    location: str
    store_access: Callable[[], AbstractContextManager[None]] = nullcontext
    _history: History | None = field(default=None)

    @property
    def history(self) -> History:
        """
        The versions of the log.

        :raises InvalidError: there is no log at the location
        """
        if self._history is None:
            with self.store_access():
                self._history = History(open_log(self.location))
        return self._history


@dataclass(frozen=True, slots=True)
class LoggedPipeline:
    """
    A pipeline, read from its log.

    :param id: identifies the pipeline in the API
    :param tasks: the tasks of Airflow that run the pipeline
    """

    id: str
    log: OpenedLog
    tasks: tuple[Task, ...] = ()

    @property
    def history(self) -> History:
        """The versions of the log; see :class:`OpenedLog`."""
        return self.log.history

    @property
    def _opened(self) -> CommittedLog:
        return self.history.opened

    def summary(self) -> PipelineSummary:
        """Return the newest versions and the guarantee of the pipeline."""
        newest = self.history.summaries(limit=_NEWEST)
        guarantee, conditions = self._guarantee(newest[0].version) if newest else ({}, "")
        return PipelineSummary(
            id=self.id,
            name=self._opened.record.name,
            log=self._opened.log.store.url,
            tasks=list(self.tasks),
            guarantee=guarantee,
            conditions=conditions,
            newest=[row_of(summary) for summary in newest],
            rows_per_minute=_rows_per_minute(newest),
            now_ms=self._opened.log.clock.now_ms(),
        )

    def unreadable(self, problem: Problem) -> PipelineSummary:
        """Return the document of a pipeline whose log cannot be read."""
        return PipelineSummary(
            id=self.id, name=self.log.location, log=self.log.location, tasks=list(self.tasks), guarantee={}, conditions="", newest=[],
            rows_per_minute=None, now_ms=0, problem=problem,
        )  # fmt: skip

    def page(self, *, before: int | None, limit: int) -> VersionPage:
        """
        Return the newest versions below ``before``.

        :param before: exclusive; default: all versions
        """
        found = self.history.summaries(before=before, limit=limit)
        has_more = bool(found) and found[-1].version > 0
        return VersionPage(
            versions=[row_of(summary) for summary in found],
            before=found[-1].version if has_more else None,
            now_ms=self._opened.log.clock.now_ms(),
        )

    def detail(self, number: int) -> VersionDetail:
        """
        Return one version.

        :raises InvalidError: the log has no such version
        """
        version, summary = self._version(number)
        outcome = version.outcome
        spec = self.history.spec(version.plan.spec)
        guarantee, conditions = self._guarantee(number)
        return VersionDetail(
            row=row_of(summary),
            ranges=ranges_of(summary.ranges, summary.gaps),
            attempts=self._attempts(version),
            files=[*islice(_files(version), _FILES)],
            sinks=sinks_of(summary, version.receipts),
            state=state_of(None if outcome is None else operator_state(outcome.state)),
            lookups=plain(version.plan.lookups),
            transform=version.plan.transform,
            settings=spec,
            guarantee=guarantee,
            conditions=conditions,
            quarantined=0 if outcome is None else outcome.quarantine.rows,
            schemas={} if outcome is None else dict(outcome.schemas),
        )

    def quarantined(self, number: int, *, limit: int) -> list[QuarantinedRecord]:
        """
        Return the first quarantined records of a version.

        :raises InvalidError: the log has no such version
        """
        version, _ = self._version(number)
        object_keys = () if version.outcome is None else version.outcome.quarantine.keys
        records = (record for key in object_keys for record in lines(key, self._opened.log.read(key) or b""))
        return [_quarantined(record) for record in islice(records, limit)]

    def comparison(self, older: int, newer: int) -> Comparison:
        """
        Compare two closed versions.

        :raises InvalidError: a version does not exist or is not closed
        """
        (before, before_summary), (after, after_summary) = self._version(older), self._version(newer)
        view, previous = self._opened.view(version=newer), self._opened.view(version=older)
        visible = {(file.version, file.sink, file.file.key): file.file.rows for file in view.files}
        was_visible = {(file.version, file.sink, file.file.key): file.file.rows for file in previous.files}
        added, removed = visible.keys() - was_visible.keys(), was_visible.keys() - visible.keys()
        return Comparison(
            older=row_of(before_summary),
            newer=row_of(after_summary),
            changed=changed_fields(self.history.spec(before.plan.spec), self.history.spec(after.plan.spec)),
            added_files=len(added),
            removed_files=len(removed),
            added_rows=sum(visible[key] for key in added),
            removed_rows=sum(was_visible[key] for key in removed),
        )

    def _version(self, number: int) -> tuple[Version, VersionSummary]:
        version = self.history.version(number)
        if version is None:
            summary = "the log has no such version"
            raise InvalidError(summary, given=number, newest_closed=self._opened.head)
        return version, self.history.summaries(before=number + 1, limit=1)[0]

    def _guarantee(self, number: int) -> tuple[dict[str, str], str]:
        """Return sink → label and the condition of the labels, as the spec of a version records them."""
        version = self.history.version(number)
        assert version is not None
        recorded = self.history.spec(version.plan.spec).get("guarantee") if version.plan.spec else None
        found = recorded if isinstance(recorded, dict) else {}
        return dict(found.get("sinks", {})), str(found.get("conditions", ""))

    def _attempts(self, version: Version) -> list[Attempt]:
        """Return the attempts of a version that have a manifest, in the order of their times."""
        log = self._opened.log
        found = in_threads(
            lambda key: log.perform(read_entry(StagedManifest, key)), log.list_keys(keys.attempts(version.version))
        )
        manifests = sorted((entry[0] for entry in found if entry is not None), key=lambda each: each.staged_ms)
        return [
            Attempt(
                attempt_id=manifest.attempt_id,
                result=_result_of_attempt(version, manifest.attempt_id),
                staged_ms=manifest.staged_ms,
                rows={name: committable.rows for name, committable in manifest.sinks.items()},
            )
            for manifest in manifests
        ]


def _result_of_attempt(version: Version, attempt_id: str) -> str:
    if version.outcome is None:
        return "staged"
    return "committed" if version.outcome.attempt_id == attempt_id else "discarded"


def _files(version: Version) -> Iterator[FileRow]:
    for name, sink in sorted({} if version.outcome is None else version.outcome.sinks.items()):
        for file in sink.files:
            yield FileRow(sink=name, path=file.key, bytes=file.bytes, rows=file.rows, partition=dict(file.partition))


def _quarantined(record: Mapping[str, Any]) -> QuarantinedRecord:
    fields = {name: value for name, value in record.items() if name not in ("raw", "encoding", "error")}
    texts = {name: str(record.get(name, "")) for name in ("raw", "encoding", "error")}
    return QuarantinedRecord(position=fields, **texts)


def _rows_per_minute(newest: list[VersionSummary]) -> float | None:
    """Return the rows that some versions wrote, for each minute from the first plan to the last outcome; ``None`` if none of them is closed."""
    closed = [summary for summary in newest if summary.decided_at_ms is not None]
    if not closed:
        return None
    rows = sum(count for summary in closed for name, count in summary.counts.items() if name.startswith("written."))
    began, ended = min(each.planned_at_ms for each in closed), max(each.decided_at_ms or 0 for each in closed)
    return round(rows * 60_000 / max(1, ended - began), 1)
