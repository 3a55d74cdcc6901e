"""
Segments: summaries of outcomes, from which a reader computes the state of the log without reading every outcome (W23, R5, I9).

A segment of level 1 summarizes 100 versions with their files. A segment of level k > 1 contains the totals of 100 segments of the level below and the sha256
of each. It contains no file lists, so its size does not grow with the data. Equal inputs give equal bytes, so several writers may create one segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.codec import encode
from airflow_provider_streamsem.protocol.entries import SEGMENT_WIDTH, Hidden, Outcome, Segment
from airflow_provider_streamsem.protocol.view import add_counts, hidden_sinks, net_counts, not_visible, visible


def level_1(index: int, outcomes: Sequence[Outcome], last: str) -> Segment:
    """
    Build the level-1 segment of the outcomes of versions ``[100·index, 100·(index+1))``, in order.

    :param last: sha256 of the bytes of the newest of these outcomes
    :raises ValueError: ``outcomes`` are not exactly these versions
    """
    if [o.version for o in outcomes] != list(range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH)):
        raise ValueError(f"segment {index} summarizes exactly its own {SEGMENT_WIDTH} versions")
    counts: dict[str, int] = {}
    next_offsets: offsets.Offsets = {}
    for outcome in outcomes:
        next_offsets = offsets.advance(next_offsets, outcome.next)
        counts = add_counts(counts, net_counts(outcome))
    commits = sum(o.committed for o in outcomes)
    hidden, hidden_in = not_visible(outcomes), hidden_sinks(outcomes)
    return Segment(
        level=1,
        index=index,
        last=last,
        next=next_offsets,
        commits=commits,
        aborts=SEGMENT_WIDTH - commits,
        counts=counts,
        files=tuple(
            file
            for o in outcomes
            if o.version not in hidden
            for file in visible(o)
            if file.sink not in hidden_in[o.version]
        ),
        hidden=_hidden(index * SEGMENT_WIDTH, outcomes),
        rewrites=tuple(rewrite for o in outcomes for rewrite in o.rewrites),
    )


def _hidden(first: int, outcomes: Sequence[Outcome]) -> Hidden:
    """Return what the outcomes hide of the versions before ``first``."""
    hidden = [o.hidden for o in outcomes]
    after = min((each.after for each in hidden if each.after is not None), default=first)
    return Hidden(
        commits=tuple(sorted({commit for each in hidden for commit in each.commits if commit < first})),
        after=after if after < first - 1 else None,
        sinks=tuple(sorted({sink for each in hidden for sink in each.sinks})),
    )


def parent(level: int, index: int, children: Sequence[Segment]) -> Segment:
    """
    Build a segment of ``level`` from 100 segments of ``level - 1``, in order.

    :raises ValueError: ``children`` are not exactly the segments below this one
    """
    if [(c.level, c.index) for c in children] != [
        (level - 1, i) for i in range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH)
    ]:
        raise ValueError(f"segment {level}/{index} summarizes exactly its own {SEGMENT_WIDTH} children")
    counts: dict[str, int] = {}
    next_offsets: offsets.Offsets = {}
    for child in children:
        next_offsets = offsets.advance(next_offsets, child.next)
        counts = add_counts(counts, child.counts)
    return Segment(
        level=level,
        index=index,
        last=children[-1].last,
        next=next_offsets,
        counts=counts,
        commits=sum(c.commits for c in children),
        aborts=sum(c.aborts for c in children),
        children=tuple(encode(c).sha256 for c in children),
    )


def due(version: int) -> list[tuple[int, int]]:
    """Return ``(level, index)`` of every segment that becomes full when ``version`` is closed, lowest level first."""
    full, level, width = [], 1, SEGMENT_WIDTH
    while (version + 1) % width == 0:
        full.append((level, (version + 1) // width - 1))
        level, width = level + 1, width * SEGMENT_WIDTH
    return full


def behind(version: int) -> int | None:
    """
    Return the level-1 segment to check when ``version`` is closed, or ``None``.

    Writers check a segment 50 versions after its last version, because the writer that closed that version may have died before it created the segment.
    """
    return (
        version // SEGMENT_WIDTH - 1
        if version % SEGMENT_WIDTH == SEGMENT_WIDTH // 2 and version > SEGMENT_WIDTH
        else None
    )
