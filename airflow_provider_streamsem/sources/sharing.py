"""How a batch's limit is shared over partitions, and how pieces of a range are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def joined(pieces: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pieces in order, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for first, last in pieces:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def shared(lags: Mapping[str, int], most: int | None) -> dict[str, int]:
    """
    How much each partition gives to a batch of ``most`` offsets: in proportion to its lag, and at least one, so that none starves.

    So a batch may exceed ``most`` by as many offsets as there are partitions that lag.
    """
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(lags)
    taken = {name: max(1, lag * most // total) if lag else 0 for name, lag in lags.items()}
    left = most - sum(taken.values())
    for name in sorted(lags, key=lambda name: (-lags[name], name)):  # rounding down left a few
        more = min(max(left, 0), lags[name] - taken[name], 1)
        taken[name], left = taken[name] + more, left - more
    return taken
