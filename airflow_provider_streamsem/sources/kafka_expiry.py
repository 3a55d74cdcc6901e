"""
How near retention is to what was not yet read of Kafka topics.

Kafka removes whole segments, and some time after they are due, so what is told here is the earliest: a record may stay longer, never shorter. What
``retention.bytes`` will remove depends on what is written next, and is seen only in how near the first offset has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_streamsem.protocol.offsets import Offsets, position
from airflow_provider_streamsem.sources.contract import Expiry
from airflow_provider_streamsem.sources.kafka_cluster import KafkaCluster, Partition


def expiry(
    cluster: KafkaCluster, partitions: Iterable[Partition], start: Offsets, *, within_ms: int | None, now_ms: int
) -> Expiry:
    """See :class:`airflow_provider_streamsem.sources.contract.Expiring`."""
    asked = list(partitions)
    ends, lows = cluster.ends(asked), cluster.lows(asked)
    unread = [p for p in asked if ends[p].offset > position(start, p.name)]
    first = {p: max(position(start, p.name), lows[p]) for p in unread}
    return Expiry(
        lost=sum(first[p] - position(start, p.name) for p in unread),
        at_risk=0 if within_ms is None else _due_before(cluster, first, now_ms + within_ms),
        spare=min((first[p] - lows[p] for p in unread if lows[p] > 0), default=None),
    )


def _due_before(cluster: KafkaCluster, first: Mapping[Partition, int], at_ms: int) -> int:
    """How many offsets from ``first`` on may be removed before a time."""
    kept_ms = cluster.kept_ms({p.topic for p in first})
    due = 0
    for kept in {ms for ms in kept_ms.values() if ms is not None and ms < at_ms}:
        of_these = [p for p in first if kept_ms[p.topic] == kept]
        young = cluster.offsets_for_time(of_these, at_ms - kept)
        due += sum(max(0, young[p] - first[p]) for p in of_these)
    return due
