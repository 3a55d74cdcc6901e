"""Checks which log owns a dataset. Writers do so before they write, and readers before they read what a stored spec names (R7)."""

from __future__ import annotations

from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.connectors.contract import Sink
from airflow_provider_streamsem.errors import DatasetOwnedError, LogMovedError
from airflow_provider_streamsem.protocol.entries import PipelineRecord
from airflow_provider_streamsem.stores.contract import normalised


def claim_dataset(name: str, sink: Sink, log: CommitLog, record: PipelineRecord, *, url: str, new: bool) -> None:
    """
    Write the ownership marker of a dataset, or verify the existing marker. A marker that names an earlier location of a moved log is valid (M6).

    :param url: the log's URL, which the ownership marker stores
    :param new: whether no version is closed yet. Only then may a dataset without an ownership marker be claimed
    :raises DatasetOwnedError: the dataset belongs to another pipeline or log
    """
    try:
        sink.claim(record.pipeline_uuid, url, new=new)
    except DatasetOwnedError as error:
        marked_log = str(error.fields["marked_log"])
        is_own = error.fields["marked_uuid"] == record.pipeline_uuid and log.moved(marked_log) is not None
        if not is_own or not _is_unused(marked_log, url):
            raise error.with_fields(pipeline=record.name, sink=name) from error


def _is_unused(location: str, url: str) -> bool:
    """
    Return whether the log at ``location`` is not in use: it was moved to ``url``, in one or several moves, or the location holds no log (M6).

    The record of the move in the log at ``url`` is not sufficient, because a writer of that log could have forged it. So this function reads ``location``,
    which only the writers of that location can change.
    """
    visited: set[str] = set()
    while normalised(location) != normalised(url):
        if location in visited:
            return False
        visited.add(location)
        existing = open_commit_log(location)
        try:
            if existing.read_pipeline() is None:
                return True
            existing.newest_head()
        except LogMovedError as error:
            location = str(error.fields["moved_to"])
        else:
            return False
    return True
