"""
Lists the visible files of a log, for any engine that reads files.

The outcomes in the log name the files. Readers never list a data directory, because it also contains files of attempts that were discarded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from airflow_provider_streamsem import registry
from airflow_provider_streamsem.arguments import integer
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files.stored import former_sinks, stored_sinks
from airflow_provider_streamsem.connectors.ownership import claim_dataset
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.codec import lines
from airflow_provider_streamsem.protocol.entries import (
    FailedGate,
    Outcome,
    PipelineRecord,
    Plan,
    Quarantine,
    Receipts,
    SegmentFile,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import LogView, OpenHead, not_visible
from airflow_provider_streamsem.stores.contract import split_url


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFile:
    """
    A visible file.

    :param version: the version whose commit made the file visible
    :param sink: name of the sink
    :param path: absolute path, or a URL if the dataset's location is a URL
    :param format: file format, for example ``parquet``
    :param bytes: size of the file
    :param rows: number of rows
    :param partition: partition column → value as text, ``None`` for null. The file contains the partition columns too
    :param checksum: the checksum that the outcome records
    """

    version: int
    sink: str
    path: str
    format: str
    bytes: int
    rows: int
    partition: Mapping[str, str | None]
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """
    The difference between the visible files of two versions.

    :param version: the later version
    :param added: files that are visible at the later version only
    :param removed: files that are visible at the earlier version only, because a reprocessing run replaced them, a rollback removed them, or a rewrite has
        their rows. In the last case, ``added`` has the files of the rewrite, with the same rows
    """

    version: int
    added: tuple[CommittedFile, ...]
    removed: tuple[CommittedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """
    The stored entries of a version.

    :param outcome: ``None`` while the version is open
    :param receipts: ``None`` if the version publishes to no sink outside the log, or if its publishes are still pending
    :param failed_gates: the conditions of gates that the rows do not satisfy; of an open version, those of an attempt that gates hold
    """

    version: int
    plan: Plan
    outcome: Outcome | None
    receipts: Receipts | None = None
    failed_gates: tuple[FailedGate, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether the version is open until a user commits or aborts it."""
        return self.outcome is None and (self.plan.work.is_held or any(each.holds for each in self.failed_gates))


@dataclass(slots=True)
class CommittedLog:
    """
    Lists the visible files, the versions and the quarantined records of a log. The files of a given version never change (I7).

    :param log: the commit log
    :param record: the log's ``pipeline.json``
    :param pipeline: the user's pipeline, whose sinks the reader uses; ``None``: the reader uses the files sinks of the stored spec
    """

    log: CommitLog
    record: PipelineRecord
    pipeline: Pipeline | None = None
    _sinks: dict[str, Mapping[str, Sink | str]] = field(default_factory=dict)
    _owned: set[str] = field(default_factory=set)

    @property
    def head(self) -> int:
        """The newest closed version; -1 if there is none."""
        return self.log.closed_head()

    @property
    def sinks(self) -> Mapping[str, Sink | str]:
        """
        The sinks by name.

        Without a pipeline, a sink whose type is not ``files`` is represented by the name of its type. The reader creates no other sink from a stored spec,
        because that could open connections or load code.

        :raises LogDamagedError: the stored spec is not valid
        """
        return self._sinks_of(None) if self.pipeline is None else self.pipeline.sinks

    def _sinks_of(self, spec: str | None) -> Mapping[str, Sink | str]:
        """Return the sinks of a stored spec; ``None``: of the newest spec, when this method was first called."""
        if (spec or "") not in self._sinks:
            digest = spec or self.log.find_head().spec or self.record.spec
            self._sinks[spec or ""] = stored_sinks(stored_spec(self.log.read_spec(digest)))
        return self._sinks[spec or ""]

    def sinks_at(self, version: int) -> Mapping[str, Sink | str]:
        """
        Return the sinks whose rows are visible at a version, by name: those of the newest spec, and sinks that a later alter has removed.

        If a later alter has replaced the dataset of a sink, the sink has its former location.
        """
        newest = self.log.find_head().outcome
        present = self.sinks if newest is None or self.pipeline is not None else self._sinks_of(newest.spec)
        if newest is None or version < 0:
            return present
        sinks = {**present, **former_sinks(self.log, version, newest)}
        return {name: sink for name, sink in sinks.items() if sink is not None}

    def dataset(self, name: str, *, version: int | None = None) -> Sink:
        """
        Return the sink of a dataset, that is, a sink whose rows become visible through the log.

        The method first checks that the dataset's ownership marker names this log. So a changed stored spec cannot make readers read another location.

        :param version: as of this version; default: the newest closed one
        :raises InvalidError: there is no such sink, it publishes outside the log, or another package provides its type and no pipeline was given
        :raises ConflictError: the dataset belongs to another log
        :raises LogDamagedError: the dataset has no ownership marker
        """
        sinks = self.sinks if version is None else self.sinks_at(version)
        if name not in sinks:
            raise InvalidError("the pipeline has no such sink", given=name, accepted=sorted(sinks))
        return self._checked(name, sinks[name])

    def _checked(self, name: str, sink: Sink | str) -> Sink:
        if isinstance(sink, str) and not registry.is_built_in("sinks", sink):
            summary = "another package provides the type of this sink, so reading it requires the pipeline"
            accepted = "PIPELINE.toml, or open_log(…, pipeline=)"
            raise InvalidError(summary, sink=name, type=sink, accepted=accepted).advising("pass the pipeline.")
        if isinstance(sink, str) or sink.is_outside_log:
            summary = "this sink publishes its rows outside the log, so the log has no files of it"
            kind = sink if isinstance(sink, str) else registry.name_of("sinks", sink)
            raise InvalidError(summary, sink=name, type=kind).advising("read its table, topic or endpoint directly.")
        if sink.location not in self._owned:
            claim_dataset(name, sink, self.log, self.record, url=self.log.store.url, new=False)
            self._owned.add(sink.location)
        return sink

    def view(self, *, version: int | None = None, since: int | None = None, with_rewrites: bool = True) -> LogView:
        """
        Return the visible files of the versions above ``since``, and the totals over all versions, both as of ``version``.

        :param version: as of this version, inclusive; default: the newest closed one
        :param since: exclusive; default: -1, which means all versions
        :param with_rewrites: whether to return the files of the rewrites that apply (R8) in place of the original files; if not, still those of bound rewrites
        :raises InvalidError: a version is not closed, or ``since`` is between commits whose rows are only in the same files
        """
        for name, value in (("version", version), ("since", since)):
            if value is not None:
                integer(name, value, least=-1, most=N - 1)
        since = -1 if since is None else since
        return self.log.view(version=version, since=since, with_rewrites=with_rewrites)

    def files(
        self,
        *,
        version: int | None = None,
        since: int | None = None,
        sink: str | None = None,
        with_rewrites: bool = True,
    ) -> list[CommittedFile]:
        """
        Return the visible files in ascending order of versions.

        :param version: as of this version, inclusive; default: the newest closed one
        :param since: only files that became visible in versions *above* this one. For files that a reprocessing run replaced, see :meth:`changes`
        :param sink: only files of this sink; default: of all sinks whose rows become visible through the log
        :param with_rewrites: whether to return the files of the rewrites that apply (R8) in place of the original files. With ``since``, a rewrite
            applies only if all commits that it rewrote are above ``since``
        :raises InvalidError: a version is not closed, or vacuum may have deleted its files; there is no such sink, or it publishes outside the log
        :raises ConflictError: a dataset belongs to another log
        :raises LogDamagedError: an entry of the log or a dataset's ownership marker is missing or damaged
        """
        view = self.view(version=version, since=since, with_rewrites=with_rewrites)
        if version is not None:
            self._refuse_expired(version)
        return self._committed_files(view, sink)

    def changes(self, *, since: int, version: int | None = None, sink: str | None = None) -> Changes:
        """
        Return the changes that update a copy of the dataset from the version ``since`` to ``version``: files to add and files to remove.

        :param since: the version of the copy; -1 for an empty copy
        :param version: the target version, inclusive; default: the newest closed one
        :param sink: only files of this sink; default: of all sinks whose rows become visible through the log
        :raises InvalidError: as for :meth:`files`. Files of ``since`` may have been deleted
        :raises ConflictError: a dataset belongs to another log
        :raises LogDamagedError: an entry of the log or a dataset's ownership marker is missing or damaged
        """
        now = self.view(version=version)
        if version is not None:
            self._refuse_expired(version)
        before = self.view(version=since)
        is_old, is_new = ({(f.version, f.sink) for f in view.files} for view in (before, now))
        return Changes(
            version=now.version,
            added=tuple(f for f in self._committed_files(now, sink) if (f.version, f.sink) not in is_old),
            removed=tuple(f for f in self._committed_files(before, sink) if (f.version, f.sink) not in is_new),
        )

    def _refuse_expired(self, version: int) -> None:
        """Vacuum may have deleted the files of an expired version (V8)."""
        newest = self.log.find_head().outcome
        oldest = 0 if newest is None else newest.oldest_readable or 0
        if -1 < version < oldest:
            summary = "the version has expired, so its files may have been deleted; nothing was read"
            raise InvalidError(summary, given=version, oldest_readable=oldest).advising(
                "read the oldest readable version or a newer one."
            )

    def _committed_files(self, view: LogView, sink: str | None) -> list[CommittedFile]:
        sinks = self.sinks_at(view.version)
        if sink is not None:
            self.dataset(sink, version=view.version)
        visible = [f for f in view.files if sink in (None, f.sink) and not _is_published(sinks.get(f.sink))]
        names = {f.sink for f in visible}
        if unknown := sorted(names - {*sinks}):
            raise LogDamagedError("an outcome names sinks that the spec does not have", invariant="I8", sinks=unknown)
        datasets = {name: self._checked(name, sinks[name]) for name in names}
        return [_committed(f, datasets[f.sink]) for f in visible]

    def attempt_files(self, manifest: StagedManifest, sink: str) -> list[CommittedFile]:
        """
        Return the files that an attempt of the open version staged for a sink. They are not visible.

        :raises InvalidError: there is no such sink; or it publishes outside the log, and this object has no pipeline
        """
        own = None if self.pipeline is None else self.pipeline.sinks.get(sink)
        dataset = own if own is not None and own.is_outside_log else self.dataset(sink)
        staged = manifest.sinks.get(sink)
        files = () if staged is None else staged.files
        return [_committed(SegmentFile(version=manifest.version, sink=sink, file=file), dataset) for file in files]

    def schema(self, sink: str, *, version: int | None = None) -> str | None:
        """
        Return the columns of a sink as Spark schema JSON, or ``None`` if the log has recorded no schema for the sink.

        :param version: as of this version; default: the newest closed one
        """
        stored = self.log.outcome(self.head if version is None else version) if self.head >= 0 else None
        return None if stored is None else stored.schemas.get(sink)

    def quarantined(self, *, version: int | None = None, since: int | None = None) -> Iterator[dict[str, Any]]:
        """
        Yield the quarantined records in ascending order of versions: records that the source could not parse, and late rows with
        ``State(late="quarantine")``.

        Each record has ``raw``, ``encoding``, ``error``, its position in the source (files: ``path``; Kafka: ``topic``, ``partition``, ``offset``) and the
        ``version`` that quarantined it. ``encoding`` is that of ``raw``: ``utf-8``, or ``base64`` if the bytes are not valid UTF-8. A late row has no
        position. It has ``watermark_ms``: the watermark that it is not after, in milliseconds since the epoch. Its ``raw`` is a JSON object with the columns
        that the stateful operator reads. For a version that was reprocessed, only the records of the newest reprocessing run are yielded, with its version.

        :param version: as of this version, inclusive; default: the newest closed one
        :param since: only versions *above* this one. The method reads the outcome of each of these versions
        :raises InvalidError: a version is not closed
        :raises LogDamagedError: an object with quarantined records is missing
        """
        at = self.view(version=version, since=since).version
        stored = [self.log.outcome(number) for number in range(0 if since is None else since + 1, at + 1)]
        outcomes = [outcome for outcome in stored if outcome is not None]
        hidden, erased = not_visible(outcomes), self._erased_quarantine()
        for outcome in outcomes:
            quarantine = erased.get(outcome.version, outcome.quarantine)
            records = () if outcome.version in hidden else self._records(quarantine)
            yield from ({**record, "version": outcome.version} for record in records)

    def quarantined_of(self, outcome: Outcome) -> Iterator[dict[str, Any]]:
        """
        Yield the quarantined records of one version, as :meth:`quarantined` does, but without the field ``version``.

        :raises LogDamagedError: an object with quarantined records is missing
        """
        return self._records(self._erased_quarantine().get(outcome.version, outcome.quarantine))

    def _erased_quarantine(self) -> Mapping[int, Quarantine]:
        return self.log.erased_quarantine(self.log.find_head().outcome)

    def _records(self, quarantine: Quarantine) -> Iterator[dict[str, Any]]:
        for key in quarantine.keys:
            data = self.log.read(key)
            if data is None:
                raise LogDamagedError("quarantined records are missing", invariant="I6", key=key)
            yield from lines(key, data)

    def rolled_back(self, newest: Outcome | None) -> list[range]:
        """
        Return the closed versions whose rows a rollback has removed, as ranges in ascending order.

        :param newest: the outcome of the newest closed version; ``None`` if there is none
        """
        kept = [] if newest is None else self.log.remaining_versions(newest)
        return [range(before.stop, after.start) for before, after in pairwise(kept)]

    def versions(self, *, newest_first: bool = True, limit: int | None = None) -> Iterator[Version]:
        """
        Yield the versions with their stored entries, including an open version.

        :param limit: maximum number of versions; default: all
        """
        head = self.log.find_head()
        newest = head.plan.version if isinstance(head, OpenHead) else head.closed
        numbers = range(newest, -1, -1) if newest_first else range(newest + 1)
        for number in list(numbers)[:limit]:
            if (version := self.version(number)) is not None:
                yield version

    def version(self, number: int) -> Version | None:
        """Return a version with its stored entries; ``None`` if it does not exist."""
        plan, outcome = self.log.plan(number), self.log.outcome(number)
        if plan is None:
            return None
        receipts = self.log.receipts(number) if outcome is not None and outcome.requires_receipts else None
        failed = self._failed_gates(number) if outcome is None else outcome.failed_gates
        return Version(version=number, plan=plan, outcome=outcome, receipts=receipts, failed_gates=failed)

    def _failed_gates(self, number: int) -> tuple[FailedGate, ...]:
        head = self.log.newest_head()
        if not isinstance(head, OpenHead) or head.plan.version != number:
            return ()
        attempts = self.log.find_staged(head)
        return attempts[0].failed_gates if attempts and all(attempt.is_held for attempt in attempts) else ()


def _committed(file: SegmentFile, dataset: Sink) -> CommittedFile:
    return CommittedFile(
        version=file.version,
        sink=file.sink,
        path=_joined(dataset.location, file.file.key),
        format=dataset.format,
        bytes=file.file.bytes,
        rows=file.file.rows,
        partition=file.file.partition,
        checksum=file.file.checksum,
    )


def _is_published(sink: Sink | str | None) -> bool:
    return registry.is_built_in("sinks", sink) if isinstance(sink, str) else sink is not None and sink.is_outside_log


def _joined(location: str, key: str) -> str:
    scheme, rest = split_url(location)
    return os.path.join(rest, key) if scheme == "file" else f"{location.rstrip('/')}/{key}"


def open_log(log: str | CommitLog, *, pipeline: Pipeline | None = None) -> CommittedLog:
    """
    Open a log for reading.

    :param log: URL of the log, or an open commit log
    :param pipeline: the user's pipeline, whose sinks the reader then uses. Required for sink types that other packages provide
    :raises InvalidError: there is no log at this location
    """
    opened = log if isinstance(log, CommitLog) else commit_log_at(log)
    return CommittedLog(opened, opened.existing_pipeline(), pipeline)


def sink_of(opened: CommittedLog, sink: str | None, *, version: int | None = None) -> str:
    """
    Return the name of the sink to read: the given one, or the only one.

    :param version: as of this version; default: the newest closed one
    :raises InvalidError: the pipeline has several sinks, and none is given
    """
    if sink is not None:
        return sink
    sinks = opened.sinks if version is None else opened.sinks_at(version)
    if len(sinks) > 1:
        raise InvalidError("the pipeline has several sinks, and none was named", accepted=sorted(sinks)).advising(
            "name one of the accepted sinks."
        )
    return next(iter(sinks))
