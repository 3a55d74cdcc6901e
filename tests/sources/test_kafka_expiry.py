"""How near retention is, against a cluster that is a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_streamsem.sources.contract import Expiring, Expiry
from airflow_provider_streamsem.sources.kafka import KafkaSource
from airflow_provider_streamsem.sources.kafka_cluster import End, Partition
from airflow_provider_streamsem.sources.kafka_expiry import expiry

HOUR = 3_600_000
NOW = 100 * HOUR


class Cluster:
    """``topic-number`` → (low, end); one record an hour, the newest of each partition now. ``kept`` topic → hours."""

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
        """A record at offset o was written (end - 1 - o) hours ago."""
        found = {}
        for p in partitions:
            low, end = self.table[p]
            hours_ago = (NOW - at_ms) // HOUR
            found[p] = min(max(end - 1 - hours_ago, low), end)
        return found


def near(cluster: Cluster, start: dict[str, int], hours: int | None) -> Expiry:
    within = None if hours is None else hours * HOUR
    return expiry(cluster, list(cluster.table), start, within_ms=within, now_ms=NOW)  # type: ignore[arg-type]


def test_kafka_is_a_source_that_loses_records() -> None:
    assert isinstance(KafkaSource(topics=["a"], bootstrap_servers="h:1"), Expiring)


@pytest.mark.parametrize(
    ("read", "hours", "at_risk"),
    [
        (0, 0, 0),  # the oldest is 9 hours old, and kept for 10
        (0, 1, 0),  # in one hour it is 10 hours old: kept to that very moment
        (0, 2, 1),
        (0, 4, 3),
        (2, 4, 1),
        (3, 4, 0),
        (10, 99, 0),  # all is read
        (0, 99, 10),
        (0, None, 0),
    ],
)
def test_unread_records_that_grow_too_old_in_time_are_at_risk(read: int, hours: int | None, at_risk: int) -> None:
    cluster = Cluster({"a": 10}, a0=(0, 10))
    assert near(cluster, {"a-0@A": read}, hours) == Expiry(lost=0, at_risk=at_risk, spare=None)


def test_each_topic_is_held_against_its_own_retention_and_one_without_is_safe() -> None:
    cluster = Cluster({"a": 10, "b": 5, "c": None}, a0=(0, 8), b0=(0, 8), b1=(0, 8), c0=(0, 8))
    assert near(cluster, {}, 0).at_risk == 2 * 2


def test_records_that_are_gone_are_lost_and_not_at_risk() -> None:
    cluster = Cluster({"a": 10}, a0=(4, 10), a1=(0, 10))
    assert near(cluster, {"a-0@A": 1, "a-1@A": 10}, 0) == Expiry(lost=3, at_risk=0, spare=0)


def test_spare_are_the_fewest_read_records_before_an_unread_one_where_any_was_removed() -> None:
    cluster = Cluster({"a": None}, a0=(100, 500), a1=(200, 500), a2=(0, 500), a3=(400, 500))
    start = {"a-0@A": 150, "a-1@A": 230, "a-2@A": 0, "a-3@A": 500}
    assert near(cluster, start, 0) == Expiry(lost=0, at_risk=0, spare=30)


def test_age_of_unread_records_is_asked_of_the_cluster() -> None:
    from airflow_provider_streamsem.sources.kafka import KafkaPlanner

    source: Any = KafkaSource(topics=["a"], bootstrap_servers="h:1")
    planner = KafkaPlanner(source, None)
    cluster = Cluster({}, a0=(0, 10), a1=(0, 10))
    cluster.partitions = lambda topics: list(cluster.table)  # type: ignore[attr-defined]
    planner.__dict__["_cluster"] = cluster
    assert planner.unread_before({"a-0@A": 2, "a-1@A": 9}, NOW - 3 * HOUR) == 4
