"""Reads the documents of one pipeline from its log. A process reads the entries of a closed version once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import open_commit_log
from airflow_provider_streamsem.commitlog.retrying import RetryPolicy
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.changes import changed_fields, dag_id
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import StagedManifest
from airflow_provider_streamsem.protocol.invariants import check_i23_plan
from airflow_provider_streamsem.protocol.procedures import read_entry
from airflow_provider_streamsem.protocol.view import stored_output
from airflow_provider_streamsem.readers.file_changes import file_changes
from airflow_provider_streamsem.readers.files import CommittedLog, Version, open_log
from airflow_provider_streamsem.readers.history import History, rows_per_minute
from airflow_provider_streamsem.readers.rewrites import files_before
from airflow_provider_streamsem.state import operator_state
from airflow_provider_streamsem.stores.concurrency import in_threads
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
_EXPIRES_MS = 300_000
_FAILED_MS = 30_000

logger = log_of(__name__)


@dataclass(slots=True)
class OpenedLog:
    """
    A log that is opened at first use. All requests share it, and so the versions that were read.

    After five minutes it is opened again, because its credentials may have changed, or another log may have replaced it. If it cannot be opened, all requests
    get the same error for half a minute, so that a store that does not respond does not block the server.

    :param location: URL of the log
    :param store_access: returns a context manager within which the log is opened
    :attr dag_ids: DAGs that have planned a version of the log
    """

    location: str
    store_access: Callable[[], AbstractContextManager[None]] = nullcontext
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
                self._error, self._failed_ms = error, now_ms
                raise
            self._error, self._opened_ms = None, now_ms
        assert self._history is not None
        return self._history

    def _open(self) -> None:
        with self.store_access():
            # A writer waits for a store that does not respond. A page reports it.
            opened = open_log(open_commit_log(self.location, retry_policy=RetryPolicy(tries=1)))
        if self._history is not None and self._history.opened.record == opened.record:
            self._history.opened = opened
        else:
            self._history, self.dag_ids = History(opened), set()


@dataclass(frozen=True, slots=True)
class LoggedPipeline:
    """
    A pipeline, read from its log.

    :param id: identifies the pipeline in the API
    :param tasks: the tasks of Airflow whose newest runs have named the log. Without tasks, the pipeline is that of a user who has named the log
    :param actions: name of a pipeline → the DAGs that perform actions on it and that the user may read. The log has the name, because a task may name any
    """

    id: str
    log: OpenedLog
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
                self.log.dag_ids |= {dag_id(row.run_key) for row in history.summaries(limit=_SEARCHED)} - {""}
        except Exception:
            logger.warning("the log of pipeline %s cannot be read", self.id, exc_info=True)
        if not dag_ids & self.log.dag_ids:
            raise InvalidError(
                "the API server cannot read the log of this pipeline, or the newest versions of the log are not those of this DAG"
            ).advising("read the log of the API server, and give it access to the log.")
        return self

    @property
    def history(self) -> History:
        """The versions of the log; see :class:`OpenedLog`."""
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
            newest=[VersionRow.model_validate(summary) for summary in newest],
            oldest_readable=None if outcome is None else outcome.oldest_readable,
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
            versions=[VersionRow.model_validate(summary) for summary in found],
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
        summary, outcome, spec = self.history.summary(version), version.outcome, self.history.spec(version.plan.spec)
        guarantee, conditions = _guarantee(spec)
        return VersionDetail(
            row=VersionRow.model_validate(summary),
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
            removed={} if outcome is None or outcome.rolled_back is None else dict(outcome.rolled_back.counts),
            rewrite=self._rewrite(version),
            alteration=alteration_of(version.plan.altered),
        )

    def _rewrite(self, version: Version) -> Rewrite | None:
        """
        Return the document of a rewrite. The files before are counted from at most 10,000 versions, because 100 of them cost a request.

        While the version is open, they are not counted, because the page refreshes it.
        """
        rewritten = version.plan.rewritten
        if rewritten is None:
            return None
        check_i23_plan(version.plan)
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

        :param older: the earlier version
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
            older=VersionRow.model_validate(self.history.summary(before)),
            newer=VersionRow.model_validate(self.history.summary(after)),
            changed=changed_fields(self.history.spec(before.plan.spec), self.history.spec(after.plan.spec)),
            added_files=len(added),
            removed_files=len(removed),
            added_rows=sum(each.file.rows for each in added),
            removed_rows=sum(each.file.rows for each in removed),
        )

    def _version(self, number: int) -> Version:
        version = self.history.version(number)
        if version is None:
            summary = "the log has no such version"
            raise InvalidError(summary, given=number, newest_closed=self._opened.head)
        return version

    def _attempts(self, version: Version) -> list[Attempt]:
        """Return at most 100 attempts of a version that have a manifest, the committed one first."""
        log = self._opened.log
        listed = log.list_keys(keys.attempts(version.version))[:_ATTEMPTS]
        found = in_threads(lambda key: log.perform(read_entry(StagedManifest, key)), listed)
        manifests = [entry[0] for entry in found if entry is not None]
        manifests.sort(key=lambda manifest: _result_of_attempt(version, manifest.attempt_id) != "committed")
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
