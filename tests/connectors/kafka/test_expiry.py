"""How close unread records are to expiry by retention, with an in-memory cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.kafka.cluster import End, Partition
from airflow_provider_streamsem.connectors.kafka.expiry import expiry
from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
from airflow_provider_streamsem.connectors.source import Expiry

HOUR = 3_600_000
NOW = 100 * HOUR


class Cluster:
    """
    A cluster in memory. ``partitions`` maps ``topic-number`` to (low, end), ``kept`` maps a topic to its retention in hours.

    Each partition has one record an hour, and the newest is written now.
    """

    def __init__(self, kept: dict[str, int | None], **partitions: tuple[int, int]) -> None:
        self.kept = kept
        self.table = {Partition(name[0], int(name[1:]), "A"): values for name, values in partitions.items()}

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, End]:
        return {p: End(self.table[p][1], 0) for p in partitions}

    def lows(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.table[p][0] for p in partitions}

    def kept_ms(self, topics: Iterable[str]) -> dict[str, int | None]:
        return {t: None if self.kept[t] is None else self.kept[t] * HOUR for t in topics}

    def offsets_for_time(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        """Return offsets by time. The record at offset o was written (end - 1 - o) hours ago."""
        offsets = {}
        for p in partitions:
            low, end = self.table[p]
            hours_ago = (NOW - at_ms) // HOUR
            offsets[p] = min(max(end - 1 - hours_ago, low), end)
        return offsets


def expiry_of(cluster: Cluster, start: dict[str, int], hours: int | None) -> Expiry:
    within = None if hours is None else hours * HOUR
    return expiry(cluster, list(cluster.table), start, within_ms=within, now_ms=NOW)  # type: ignore[arg-type]


def test_kafka_source_declares_that_its_records_expire() -> None:
    assert KafkaSource(topics=["a"], bootstrap_servers="h:1").has_retention


@pytest.mark.parametrize(
    ("read", "hours", "at_risk"),
    [
        (0, 0, 0),  # the oldest record is 9 hours old, retention is 10 hours
        (0, 1, 0),  # in one hour it is 10 hours old, the end of its retention
        (0, 2, 1),
        (0, 4, 3),
        (2, 4, 1),
        (3, 4, 0),
        (10, 99, 0),  # all records are read
        (0, 99, 10),
        (0, None, 0),
    ],
)
def test_unread_records_that_expire_within_the_window_are_at_risk(read: int, hours: int | None, at_risk: int) -> None:
    cluster = Cluster({"a": 10}, a0=(0, 10))
    assert expiry_of(cluster, {"a-0@A": read}, hours) == Expiry(lost=0, at_risk=at_risk, spare=None)


def test_each_topic_is_checked_against_its_retention_and_one_without_is_safe() -> None:
    cluster = Cluster({"a": 10, "b": 5, "c": None}, a0=(0, 8), b0=(0, 8), b1=(0, 8), c0=(0, 8))
    assert expiry_of(cluster, {}, 0).at_risk == 2 * 2


def test_deleted_records_are_counted_as_lost_and_not_at_risk() -> None:
    cluster = Cluster({"a": 10}, a0=(4, 10), a1=(0, 10))
    assert expiry_of(cluster, {"a-0@A": 1, "a-1@A": 10}, 0) == Expiry(lost=3, at_risk=0, spare=0)


def test_spare_is_the_smallest_distance_to_deleted_records_of_partitions_with_unread_records() -> None:
    cluster = Cluster({"a": None}, a0=(100, 500), a1=(200, 500), a2=(0, 500), a3=(400, 500))
    start = {"a-0@A": 150, "a-1@A": 230, "a-2@A": 0, "a-3@A": 500}
    assert expiry_of(cluster, start, 0) == Expiry(lost=0, at_risk=0, spare=30)


def test_age_of_unread_records_is_read_from_the_cluster() -> None:
    from airflow_provider_streamsem.connectors.kafka.source import KafkaPlanner

    source: Any = KafkaSource(topics=["a"], bootstrap_servers="h:1")
    planner = KafkaPlanner(source)
    cluster = Cluster({}, a0=(0, 10), a1=(0, 10))
    cluster.partitions = lambda topics: list(cluster.table)  # type: ignore[attr-defined]
    planner.__dict__["_cluster"] = cluster
    assert planner.unread_before({"a-0@A": 2, "a-1@A": 9}, NOW - 3 * HOUR) == 4
