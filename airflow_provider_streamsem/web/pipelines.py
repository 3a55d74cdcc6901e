"""Reads the documents of one pipeline from its log. A process reads the entries of a closed version once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.commitlog.retrying import RetryPolicy
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.changes import changed_fields, dag_id
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import StagedManifest
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite as RewriteVersion
from airflow_provider_streamsem.protocol.procedures import read_entry
from airflow_provider_streamsem.protocol.view import stored_output
from airflow_provider_streamsem.readers.file_changes import file_changes
from airflow_provider_streamsem.readers.files import CommittedLog, Version, open_log
from airflow_provider_streamsem.readers.history import History, VersionCache, VersionSummary, rows_per_minute
from airflow_provider_streamsem.readers.rewrites import files_before
from airflow_provider_streamsem.state.settings import operator_state
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.metered import MeteredStore, charge, is_exceeded, memory_of, working
from airflow_provider_streamsem.telemetry import log_of
from airflow_provider_streamsem.web.documents import (
    ActionsDag,
    Attempt,
    Comparison,
    FileRow,
    PipelineSummary,
    Problem,
    QuarantinedRecord,
    Rewrite,
    Task,
    VersionDetail,
    VersionPage,
    VersionRow,
    alteration_of,
    ranges_of,
    rewrite_of,
    sinks_of,
    state_of,
)

_NEWEST = 30
"""The number of versions in a :class:`PipelineSummary`."""
_FILES = 500
"""The number of files in a :class:`VersionDetail`."""
_ATTEMPTS = 100
"""The number of attempts in a :class:`VersionDetail`."""
_RAW = 2_000
"""The number of characters of a quarantined record."""
_COMPARED = 1_000
"""The maximum distance of two versions that are compared."""
_RANGES = 100
"""The number of ranges of commits in a :class:`Rewrite`."""
_REWRITTEN = 10_000
"""The maximum number of versions that are read to count the files before a rewrite."""
_SEARCHED = 100
"""The number of the newest versions of which a DAG must have planned one."""
_RECORD_BYTES = 65_536
"""The maximum memory for the identity of a log, which a process keeps for each log."""
_EXPIRES_MS = 300_000
_FAILED_MS = 30_000

logger = log_of(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class ServedLog:
    """
    A log that is opened at first use. All requests share it, and so the versions that were read.

    After five minutes it is opened again, because its credentials may have changed, or another log may have replaced it. If it cannot be opened, all requests
    get the same error for half a minute, so that a store that does not respond does not block the server.

    :param location: URL of the log
    :param store_access: returns a context manager within which the log is opened
    :param cache: keeps the versions that were read. Several logs share it
    :attr dag_ids: DAGs of requests that have planned a version of the log
    """

    location: str
    store_access: Callable[[], AbstractContextManager[None]] = nullcontext
    cache: VersionCache = field(default_factory=VersionCache)
    dag_ids: set[str] = field(default_factory=set)
    _history: History | None = None
    _opened_ms: int = 0
    _error: Exception | None = None
    _failed_ms: int = 0

    @property
    def history(self) -> History:
        """
        The versions of the log.

        :raises InvalidError: there is no log at the location
        """
        now_ms = SYSTEM_CLOCK.now_ms()
        if self._error is not None and now_ms - self._failed_ms < _FAILED_MS:
            raise self._error.with_traceback(None)
        if self._history is None or now_ms - self._opened_ms > _EXPIRES_MS:
            try:
                self._open()
            except Exception as error:
                traceback.clear_frames(error.__traceback__)  # their variables hold what was read
                if not is_exceeded():  # the request starts again with more memory
                    self._error, self._failed_ms = error, now_ms
                raise
            self._error, self._opened_ms = None, now_ms
        assert self._history is not None
        return self._history

    def _open(self) -> None:
        with self.store_access():
            # A writer waits for a store that does not respond. A page reports it.
            log = commit_log_at(self.location, retry_policy=RetryPolicy(tries=1))
            with working():
                opened = open_log(replace(log, store=MeteredStore(log.store)))
                opened.record = replace(opened.record, fork=None)
                if memory_of(opened.record) > _RECORD_BYTES:
                    raise InvalidError("pipeline.json of the log is too large for the web view", log=self.location)
        if self._history is not None and self._history.opened.record == opened.record:
            self._history.opened = opened
        else:
            self._history, self.dag_ids = History(opened, self.cache), set()


@dataclass(frozen=True, slots=True)
class LoggedPipeline:
    """
    A pipeline, read from its log.

    :param id: identifies the pipeline in the API
    :param tasks: the tasks of Airflow whose newest runs have named the log. Without tasks, the pipeline is that of a user who has named the log
    :param actions: name of a pipeline → the DAGs that perform actions on it and that the user may read. The log has the name, because a task may name any
    """

    id: str
    log: ServedLog
    tasks: tuple[Task, ...] = ()
    actions: Mapping[str, Sequence[ActionsDag]] = field(default_factory=dict)

    def checked(self) -> LoggedPipeline:
        """
        Return the pipeline, if a DAG of its tasks has planned a version of the log.

        A task may name any log, also that of another team. It cannot write versions into that log.

        :raises InvalidError: no DAG of the tasks has planned one of the newest versions, or the log cannot be read. The error does not tell which
        """
        dag_ids = {task.dag_id for task in self.tasks}
        if not dag_ids:
            return self
        try:
            history = self.history  # another log may have replaced the one of which the DAGs are known
            if not dag_ids & self.log.dag_ids:
                self.log.dag_ids |= dag_ids & {dag_id(row.run_key) for row in history.summaries(limit=_SEARCHED)}
        except Exception:
            logger.warning("the log of pipeline %s cannot be read", self.id, exc_info=True)
        if not dag_ids & self.log.dag_ids:
            raise InvalidError(
                "the API server cannot read the log of this pipeline, or the newest versions of the log are not those of this DAG"
            ).advising("read the log of the API server, and give it access to the log.")
        return self

    @property
    def history(self) -> History:
        """The versions of the log; see :class:`ServedLog`."""
        return self.log.history

    @property
    def _opened(self) -> CommittedLog:
        return self.history.opened

    def summary(self) -> PipelineSummary:
        """Return the newest versions, the guarantee and the oldest readable version of the pipeline."""
        newest = self.history.summaries(limit=_NEWEST)
        # The version before the newest one is closed and published, so it is in memory.
        versions = [self._version(summary.version) for summary in newest[:2]]
        spec = self.history.spec(versions[0].plan.spec) if versions else {}
        outcome = next((version.outcome for version in versions if version.outcome is not None), None)
        guarantee, conditions = _guarantee(spec)
        return PipelineSummary(
            id=self.id,
            name=self._opened.record.name,
            log=self._opened.log.store.url,
            tasks=list(self.tasks),
            actions=list(self.actions.get(self._opened.record.name, ())),
            guarantee=guarantee,
            conditions=conditions,
            newest=[VersionRow.of(summary) for summary in newest],
            oldest_readable=None if outcome is None else outcome.oldest_readable or None,
            rows_per_minute=rows_per_minute(newest),
            now_ms=self._opened.log.clock.now_ms(),
        )

    def unreadable(self, problem: Problem) -> PipelineSummary:
        """Return the document of a pipeline whose log cannot be read."""
        name = self.log.location.rstrip("/").rpartition("/")[2]
        return PipelineSummary(
            id=self.id, name=name, log=self.log.location, tasks=list(self.tasks), actions=[], guarantee={}, conditions="", newest=[],
            oldest_readable=None, rows_per_minute=None, now_ms=0, problem=problem,
        )  # fmt: skip

    def page(self, *, before: int | None, limit: int) -> VersionPage:
        """
        Return the newest versions below ``before``.

        :param before: exclusive; default: all versions
        """
        found = self.history.summaries(before=before, limit=limit)
        has_more = bool(found) and found[-1].version > 0
        return VersionPage(
            versions=[VersionRow.of(summary) for summary in found],
            before=found[-1].version if has_more else None,
            now_ms=self._opened.log.clock.now_ms(),
        )

    def detail(self, number: int, *, shows_records: bool) -> VersionDetail:
        """
        Return one version.

        :param shows_records: whether to return the values of partition columns, which come from records
        :raises InvalidError: the log has no such version
        """
        version = self._version(number)
        summary, outcome, spec = self._summary(number), version.outcome, self.history.spec(version.plan.spec)
        guarantee, conditions = _guarantee(spec)
        return VersionDetail(
            row=VersionRow.of(summary),
            ranges=ranges_of(summary.ranges, summary.gaps),
            attempts=self._attempts(version),
            files=[*islice(_files(version, shows_records=shows_records), _FILES)],
            sinks=sinks_of(summary, version.receipts),
            state=state_of(None if outcome is None else operator_state(outcome.state)),
            lookups=plain(version.plan.lookups),
            transform=version.plan.transform,
            settings=spec,
            guarantee=guarantee,
            conditions=conditions,
            quarantined=0 if outcome is None else outcome.quarantine.rows,
            schemas={} if outcome is None else dict(outcome.schemas),
            removed={} if outcome is None or outcome.hidden.after is None else dict(version.plan.work.removed_counts),
            rewrite=self._rewrite(version),
            alteration=alteration_of(version.plan.work),
        )

    def _rewrite(self, version: Version) -> Rewrite | None:
        """Files are counted from at most 10,000 versions (100 cost a request), and not of an open version, because the page refreshes it."""
        rewritten = version.plan.work
        if not isinstance(rewritten, RewriteVersion):
            return None
        rewritten.check_plan(version.plan, before=None, next={})
        is_counted = version.outcome is not None and version.version - rewritten.commits[0] <= _REWRITTEN
        old = files_before(self.history, version.version, rewritten) if is_counted else None
        return rewrite_of(rewritten, old, most=_RANGES)

    def quarantined(self, number: int, *, limit: int) -> list[QuarantinedRecord]:
        """
        Return the first quarantined records of a version.

        :raises InvalidError: the log has no such version
        """
        outcome = self._version(number).outcome
        records = () if outcome is None else self._opened.quarantined_of(outcome)
        return [_quarantined(record) for record in islice(records, limit)]

    def comparison(self, older: int, newer: int) -> Comparison:
        """
        Compare two closed versions: their entries, and the files that a reader of only one of them reads.

        :param newer: the later version, at most 1,000 versions later
        :raises InvalidError: a version does not exist or is open, or the versions are too far apart
        """
        if not older < newer <= older + _COMPARED:
            accepted = f"an earlier and a later version, at most {_COMPARED} versions apart"
            raise InvalidError("these versions cannot be compared", older=older, newer=newer, accepted=accepted)
        before, after = self._version(older), self._version(newer)
        if before.outcome is None or after.outcome is None:
            raise InvalidError("the version is open, so it cannot be compared", given=newer)
        between = self.history.versions(range(older + 1, newer + 1))
        outcomes = [version.outcome for version in between if version.outcome is not None]
        added, removed = file_changes(self.history, before.outcome, outcomes)
        return Comparison(
            older=VersionRow.of(self._summary(older)),
            newer=VersionRow.of(self._summary(newer)),
            changed=changed_fields(self.history.spec(before.plan.spec), self.history.spec(after.plan.spec)),
            added_files=len(added),
            removed_files=len(removed),
            added_rows=sum(each.file.rows for each in added),
            removed_rows=sum(each.file.rows for each in removed),
        )

    def _version(self, number: int) -> Version:
        return self._existing(number, self.history.version(number))

    def _summary(self, number: int) -> VersionSummary:
        return self._existing(number, self.history.summary(number))

    def _existing(self, number: int, found: T | None) -> T:
        if found is None:
            raise InvalidError("the log has no such version", given=number, newest_closed=self._opened.head)
        return found

    def _attempts(self, version: Version) -> list[Attempt]:
        """Return at most 100 attempts of a version that have a manifest, the committed one first."""
        log = self._opened.log

        def read(key: str) -> Attempt | None:
            with working():
                entry = log.perform(read_entry(StagedManifest, key))
                attempt = None if entry is None else _attempt(version, entry[0])
            charge(0 if attempt is None else memory_of(attempt.rows))
            return attempt

        found = in_threads(read, log.list_keys(keys.attempts(version.version), _ATTEMPTS))
        return sorted((each for each in found if each is not None), key=lambda each: each.result != "committed")


def _attempt(version: Version, manifest: StagedManifest) -> Attempt:
    is_committed = version.outcome is not None and version.outcome.attempt_id == manifest.attempt_id
    return Attempt(
        attempt_id=manifest.attempt_id,
        result="staged" if version.outcome is None else "committed" if is_committed else "discarded",
        staged_ms=manifest.staged_ms,
        rows={name: committable.rows for name, committable in manifest.sinks.items()},
    )


def _files(version: Version, *, shows_records: bool) -> Iterator[FileRow]:
    """Yield the files. The directories of a file may contain values of partition columns, as ``partition`` does."""
    for name, sink in sorted({} if version.outcome is None else stored_output(version.outcome).items()):
        for file in sink.files:
            path = file.key if shows_records or not file.partition else file.key.rpartition("/")[2]
            partition = dict(file.partition) if shows_records else {}
            yield FileRow(sink=name, path=path, bytes=file.bytes, rows=file.rows, partition=partition)


def _guarantee(spec: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return sink → label and the condition of the labels, as a stored spec records them; empty if it records none."""
    recorded = spec.get("guarantee")
    found = recorded if isinstance(recorded, dict) else {}
    return dict(found.get("sinks", {})), str(found.get("conditions", ""))


def _quarantined(record: Mapping[str, Any]) -> QuarantinedRecord:
    fields = {name: value for name, value in record.items() if name not in ("raw", "encoding", "error")}
    texts = {name: str(record.get(name, ""))[:_RAW] for name in ("raw", "encoding", "error")}
    return QuarantinedRecord(position=fields, **texts)
