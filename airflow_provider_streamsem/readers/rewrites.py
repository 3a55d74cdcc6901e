"""The files of rewrites (PROTOCOL.md, 4.11)."""

from __future__ import annotations

from airflow_provider_streamsem.protocol.entries import SegmentFile
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.readers.history import History


def files_before(history: History, version: int, rewrite: Rewrite) -> list[SegmentFile]:
    """
    Return the files that had the rows of a rewrite before it: those of its commits, and those of earlier rewrites that had rows of these commits.

    Reads no version before the oldest of the commits. An earlier rewrite that has rows of one of them has only rows of these commits (W40).
    """
    first, commits = rewrite.commits[0], {*rewrite.commits}
    view = fold(history.parts(range(first, version)), initial_offsets={}, first=first)
    earlier = {each.version for each in view.rewrites if commits.issuperset(each.commits)}
    return [file for file in view.sink(rewrite.sink) if file.version in commits | earlier]
