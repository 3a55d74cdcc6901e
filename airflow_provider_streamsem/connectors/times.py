"""Finds the offsets of a time: of each partition, the first offset whose item has at least this time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.contract import Source
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.offsets import Offsets


@runtime_checkable
class FindsTimes(Protocol):
    """Additional interface of a ``Source`` that finds the offsets of a time."""

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """
        Return partition → an offset such that every item of the partition with a time at or after ``at_ms`` is at or above it.

        It is the first offset with such an item. If there is none yet, it is the end offset. A source that cannot
        distinguish its older items by time may return a lower offset.

        :param at_ms: milliseconds UTC, 0 or more
        :raises InvalidError: the items of this source have no times
        :raises UnavailableError: the source did not report the result of a request
        """
        ...


@runtime_checkable
class FindsTimesInLog(Protocol):
    """Additional interface of a ``Source`` whose offsets are assigned in the log. It finds the offsets of a time there."""

    def offsets_for_time_in(self, log: CommitLog, at_ms: int) -> Offsets:
        """
        Return what :meth:`FindsTimes.offsets_for_time` returns. Writes nothing.

        :param log: the section of the log that belongs to the source
        """
        ...


def offsets_for_time(source: Source, log: CommitLog, at_ms: int) -> Offsets:
    """
    Return the offsets of a source for a time; see :meth:`FindsTimes.offsets_for_time`.

    :param log: the section of the log that belongs to the source (``log.of_source(…)``)
    :raises InvalidError: the source does not find the offsets of a time
    """
    if isinstance(source, FindsTimesInLog):
        return source.offsets_for_time_in(log, at_ms)
    if isinstance(source, FindsTimes):
        return source.offsets_for_time(at_ms)
    raise InvalidError(
        "this source cannot find the offsets of a time; nothing was written",
        type=type(source).__name__,
    ).advising("fork at a version, or at -1, the initial offsets.")
