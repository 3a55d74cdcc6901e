"""
Estimates how soon Kafka's retention deletes unread records.

Kafka deletes whole segments, and some time after they expire. So the estimate is a lower bound: a record may be retained longer, never shorter.
Size-based retention (``retention.bytes``) depends on future writes and cannot be estimated. Instead, ``spare`` reports the distance between the first
retained offset and the first unread offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_streamsem.connectors.kafka.cluster import KafkaCluster, Partition
from airflow_provider_streamsem.connectors.source import Expiry
from airflow_provider_streamsem.protocol.offsets import Offsets, position


def expiry(
    cluster: KafkaCluster, partitions: Iterable[Partition], start: Offsets, *, within_ms: int | None, now_ms: int
) -> Expiry:
    """Count the lost, at-risk and spare offsets of the partitions from ``start``. ``within_ms=None``: no offset is at risk."""
    requested = list(partitions)
    ends, lows = cluster.ends(requested), cluster.lows(requested)
    unread = [p for p in requested if ends[p].offset > position(start, p.name)]
    first = {p: max(position(start, p.name), lows[p]) for p in unread}
    return Expiry(
        lost=sum(first[p] - position(start, p.name) for p in unread),
        at_risk=0 if within_ms is None else _due_before(cluster, first, now_ms + within_ms),
        spare=min((first[p] - lows[p] for p in unread if lows[p] > 0), default=None),
    )


def _due_before(cluster: KafkaCluster, first: Mapping[Partition, int], at_ms: int) -> int:
    """Offsets at or above ``first`` that retention by age may delete before ``at_ms`` (milliseconds UTC)."""
    retention_by_topic = cluster.kept_ms({p.topic for p in first})
    due = 0
    for retention_ms in {ms for ms in retention_by_topic.values() if ms is not None and ms < at_ms}:
        partitions = [p for p in first if retention_by_topic[p.topic] == retention_ms]
        young = cluster.offsets_for_time(partitions, at_ms - retention_ms)
        due += sum(max(0, young[p] - first[p]) for p in partitions)
    return due
