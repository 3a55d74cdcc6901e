"""Drops a fork: deletes its log and its datasets."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import claim_datasets, existing_record
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import PipelineRecord
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.dataset import open_dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """
    What :func:`drop` deleted, or would delete in a dry run.

    :param forked_from: URL of the original's log, which stays
    :param attempts: number of attempts whose files are deleted from the datasets
    :param objects: number of objects that are deleted from the log
    :param bytes: total size in bytes of the files and objects
    """

    log: str
    forked_from: str
    attempts: int
    objects: int
    bytes: int


@with_log_location
def drop(pipeline: Pipeline, *, dry_run: bool = False, log: CommitLog | None = None) -> Dropped:
    """
    Delete the log and the datasets of a fork. The original pipeline is not affected. Objects that the fork has not written are never deleted: if there are any
    at these locations, nothing is deleted.

    No run may use the fork during this call, nor later. The order is: files of the datasets, objects of the log, the newest outcome, spilled fields, ownership
    markers, ``pipeline.json`` and its own spilled fields. So a call that ends early can be repeated: ``pipeline.json`` still shows that the log is that of a
    fork, as long as the log has a version, the markers show that the datasets are its own, and an entry is deleted before its spilled fields. If a call ends
    after it has deleted ``pipeline.json``, objects below ``spill/`` may remain, which no entry names.

    :param pipeline: the fork. All its sinks must be files sinks
    :param dry_run: delete nothing, and return what would be deleted
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: there is no log, it is not that of a fork, or a sink publishes outside the log. Nothing was deleted
    :raises ConflictError: a version is open, the log belongs to another pipeline, or a dataset to another log; or another object is stored at one of the
        locations. Nothing was deleted. Or a run has written to the log during the call
    """
    log = log or commit_log_at(pipeline.log)
    forked_from, head = _checked(pipeline, log, dry_run=dry_run)
    attempts = [(sink, attempt) for sink in pipeline.sinks.values() for attempt in sorted(sink.attempts())]
    size = sum(sink.discard(*attempt, dry_run=dry_run) for sink, attempt in attempts)
    newest = keys.outcome(head.closed) if head.closed >= 0 else ""
    last = _spills_of_record(log)
    stats = sorted(_objects(log), key=lambda stat: (keys.is_spill(stat.key), stat.key == newest, stat.key))
    if not dry_run:
        _delete(log, [stat for stat in stats if stat.key not in last], keep=last)
        for sink in pipeline.sinks.values():
            open_dataset(sink.location).delete(keys.DATASET_MARKER)
        for key in (keys.PIPELINE, *last):
            log.retrying.delete(key)
    return Dropped(
        log=log.store.url,
        forked_from=forked_from,
        attempts=len(attempts),
        objects=len(stats) + 1,
        bytes=size + sum(stat.bytes for stat in stats),
    )


def _checked(pipeline: Pipeline, log: CommitLog, *, dry_run: bool) -> tuple[str, ClosedHead]:
    """Return the URL of the original's log, and the head of the fork's log."""
    record = existing_record(pipeline, log)
    if record.fork is None:
        summary = "only a fork can be dropped, and this is not the log of a fork; nothing was deleted"
        raise InvalidError(summary, log=pipeline.log, pipeline=record.name)
    published = sorted(name for name, sink in pipeline.sinks.items() if sink.is_outside_log)
    if published:
        summary = (
            "the fork has sinks that publish outside the log, which are not deleted automatically; nothing was deleted"
        )
        raise InvalidError(summary, pipeline=record.name, sinks=published).advising(
            "delete their tables or topics, their staged files and the log by hand."
        )
    head = log.find_head()  # raises LogMovedError if the log was moved
    if isinstance(head, OpenHead):
        raise ConflictError(
            "a version of the fork is open, so a run may be active; nothing was deleted", version=head.plan.version
        ).advising("stop the runs, close the version with `streamsem abort`, and drop the fork again.")
    _refuse_foreign_objects(pipeline, log)
    if not (dry_run and head.outcome is None):
        # Verify the ownership markers. For a log without versions, this creates a missing marker, which is deleted below. An earlier call may have deleted the
        # versions and the markers.
        claim_datasets(pipeline, log, record, new=head.outcome is None)
    return record.fork.log, head


def _refuse_foreign_objects(pipeline: Pipeline, log: CommitLog) -> None:
    """A directory marker of S3A has no content, and counts as an object that this package has written."""
    stats = [(log.store.url, stat) for stat in log.retrying.list("") if not keys.is_log_object(stat.key)]
    for sink in pipeline.sinks.values():
        stats += [(sink.location, stat) for stat in open_dataset(sink.location).list("") if not _is_data(stat.key)]
    foreign = [f"{location}/{stat.key}" for location, stat in stats if stat.bytes or not stat.key.endswith("/")]
    if foreign:
        raise ConflictError(
            "the location of the log or of a dataset has objects that the fork has not written; nothing was deleted",
            objects=len(foreign),
            first=foreign[:5],
        ).advising("move these objects to another location, then drop the fork again.")


def _is_data(key: str) -> bool:
    attempt = keys.attempt_of_data(key)
    return key == keys.DATASET_MARKER or (attempt is not None and keys.is_attempt_id(attempt[1]))


def _objects(log: CommitLog) -> list[ObjectStat]:
    """Return all objects of the log except ``pipeline.json``."""
    return [stat for stat in log.retrying.list("") if stat.key != keys.PIPELINE]


def _spills_of_record(log: CommitLog) -> list[str]:
    data = log.read(keys.PIPELINE)
    body = {} if data is None else codec.parse(PipelineRecord, keys.PIPELINE, data)
    return [keys.spill(digest) for digest in codec.spilled(PipelineRecord, body).values()]


def _delete(log: CommitLog, stats: list[ObjectStat], *, keep: list[str]) -> None:
    """``keep`` are the keys of objects that the caller deletes later. The log must have no others afterwards."""
    for stat in stats:
        log.retrying.delete(stat.key)
    left = [stat.key for stat in _objects(log) if stat.key not in keep]
    if left:
        summary = "a run has written to the log while it was dropped, so it was not deleted completely"
        raise ConflictError(summary, log=log.store.url, keys=left[:5]).advising(
            "stop the runs of the fork, and drop it again."
        )
