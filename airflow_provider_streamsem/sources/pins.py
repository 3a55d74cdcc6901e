"""
What a plan pinned, held against what its source reads (R6).

A plan comes from the log. Whoever may write there must not have a run read other files or topics, with the rights of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json

_RANGE = [str, str, int, int, int, int]


def pinned_files(pins: Json, *, place: str, is_read: Callable[[str], bool]) -> list[tuple[str, int, str]]:
    """
    Path, size and identity of each pinned file.

    :param is_read: whether a path, relative to the source's ``place``, is that of a file which the source reads
    :raises LogDamagedError: the pins are of another form, or name another file
    """
    if not isinstance(pins, list) or not all(
        isinstance(pin, list) and [type(part) for part in pin[:3]] == [str, int, str] and is_read(pin[0])
        for pin in pins
    ):
        raise LogDamagedError(
            "a plan pins what is no file of the source; nothing was read", invariant="R6", place=place
        )
    return [(path, size, identity) for path, size, identity, *_ in pins]


def pinned_ranges(pins: Json, *, is_read: Callable[[str], bool]) -> list[tuple[str, str, int, int, int, int]]:
    """
    Topic, its id, partition, start, end and leader's epoch of each pinned range.

    :param is_read: whether the source reads a topic
    :raises LogDamagedError: the pins are of another form, or name another topic
    """
    if not isinstance(pins, list) or not all(
        isinstance(pin, list) and [type(part) for part in pin] == _RANGE for pin in pins
    ):
        raise LogDamagedError("a plan pins what is no range of a topic; nothing was read", invariant="R6")
    refuse_other_topics((pin[0] for pin in pins), is_read=is_read)
    return [(topic, topic_id, number, start, end, epoch) for topic, topic_id, number, start, end, epoch in pins]


def refuse_other_topics(topics: Iterable[str], *, is_read: Callable[[str], bool]) -> None:
    """
    Before a cluster is asked: which topics are read, the pipeline says, never the log.

    :raises LogDamagedError: the log names another topic
    """
    others = sorted({topic for topic in topics if not is_read(topic)})
    if others:
        what = "the log names topics that the pipeline does not read; nothing was read"
        raise LogDamagedError(what, invariant="R6", topics=others)
