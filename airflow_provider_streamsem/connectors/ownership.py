"""Checks which log owns a dataset. Writers do so before they write, and readers before they read what a stored spec names (R7)."""

from __future__ import annotations

from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.errors import DatasetOwnedError, LogMovedError
from airflow_provider_streamsem.protocol.entries import PipelineRecord
from airflow_provider_streamsem.stores.contract import normalised


def claim_dataset(name: str, sink: Sink, log: CommitLog, record: PipelineRecord, *, url: str, new: bool) -> None:
    """
    Write the ownership marker of a dataset, or verify the existing marker. A marker that names an earlier location of a moved log is valid (M6).

    :param new: whether the sink is new: no version is closed yet, or an alter adds the sink. Only then may a dataset without an ownership marker be claimed
    """
    try:
        sink.claim(record.pipeline_uuid, url, new=new)
    except DatasetOwnedError as error:
        marked_log = str(error.fields["marked_log"])
        is_own = error.fields["marked_uuid"] == record.pipeline_uuid and log.moved(marked_log) is not None
        if not is_own or not _was_moved(marked_log, log, url):
            raise error.with_fields(pipeline=record.name, sink=name) from error


def _was_moved(location: str, log: CommitLog, url: str) -> bool:
    """
    Return whether the log at ``location`` was moved to ``url``, in one or several moves (M6).

    A location that still holds a log is read, because a writer of ``log`` could have forged the record of the move. Only the writers of ``location`` can change
    the log there. For a location whose objects were deleted, ``log`` has the record of the move. A copy of ``log`` has this record too, so the record must lead
    to ``url``.
    """
    visited: set[str] = set()
    while normalised(location) != normalised(url):
        if location in visited:
            return False
        visited.add(location)
        existing = commit_log_at(location)
        try:
            if existing.read_pipeline() is not None:
                existing.newest_head()
                return False
        except LogMovedError as error:
            location = str(error.fields["moved_to"])
        else:
            moved = log.moved(location)
            if moved is None:
                return False
            location = moved.moved_to
    return True
