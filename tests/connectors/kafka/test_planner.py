"""How the Kafka planner divides ranges, with an in-memory cluster: retention, new leaders, deleted topics and stale hints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_streamsem import KafkaSource, Limits
from airflow_provider_streamsem.connectors.kafka.cluster import End, Partition
from airflow_provider_streamsem.connectors.kafka.pins import RangePin
from airflow_provider_streamsem.connectors.kafka.source import KafkaPlanner
from airflow_provider_streamsem.connectors.source import SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.protocol.codec import plain

pytestmark = pytest.mark.usefixtures("short_waits")


class Cluster:
    """
    A cluster in memory. It maps a partition to (low, end, epoch of the leader).

    ``truncated`` has the partitions that were truncated. Brokers know the partitions in ``late`` only at the third request.
    """

    def __init__(self, **partitions: tuple[int, int, int]) -> None:
        self.table = {Partition("a", int(name[1:]), "A"): values for name, values in partitions.items()}
        self.truncated: set[str] = set()
        self.epoch_requests: list[str] = []
        self.metadata_requests = 0
        self.late: dict[Partition, tuple[int, int, int]] = {}

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        self.metadata_requests += 1
        if self.metadata_requests > 2:
            self.table |= self.late
        return sorted(p for p in self.table if p.topic in set(topics))

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, End]:
        return {p: End(self.table[p][1], self.table[p][2]) for p in partitions}

    def lows(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.table[p][0] for p in partitions}

    def was_truncated(self, partition: Partition, offset: int, epoch: int) -> bool:
        self.epoch_requests.append(partition.name)
        return partition.name in self.truncated


def slice_of(
    cluster: Cluster,
    start: dict[str, int],
    end: dict[str, int] | None = None,
    *,
    hint: Any = None,
    gap: bool = False,
    most: int | None = None,
) -> SourceSlice | None:
    planner = KafkaPlanner(KafkaSource(topics=["a"], bootstrap_servers="h:1"))
    planner.__dict__["_cluster"] = cluster
    target = planner.poll(hint) if end is None else SourceEnd(end)
    limits = Limits(max_rows=most)
    return planner.slice(start, target, limits, hint, on_data_loss="record_gap" if gap else "fail")


def required(planned: SourceSlice | None) -> SourceSlice:
    assert planned is not None
    return planned


def test_new_leader_after_retention_is_reported_as_retention_and_not_as_truncation() -> None:
    cluster, hint = Cluster(p0=(500, 900, 4)), {"ends": {"a-0@A": [100, 3]}}
    with pytest.raises(SourceChangedError, match=r"lost=.*\(100, 500\)"):
        slice_of(cluster, {"a-0@A": 100}, hint=hint)
    assert required(slice_of(cluster, {"a-0@A": 100}, hint=hint, gap=True)).gaps == {"a-0@A": ((100, 500),)}
    assert cluster.epoch_requests == []


def test_new_leader_is_checked_once_and_then_recorded_in_the_hint() -> None:
    cluster = Cluster(p0=(0, 150, 4), p1=(0, 50, 4))
    planned = required(
        slice_of(cluster, {"a-0@A": 100, "a-1@A": 50}, hint={"ends": {"a-0@A": [100, 3], "a-1@A": [50, 3]}})
    )
    assert planned.ranges == {"a-0@A": (100, 150)}
    assert cluster.epoch_requests == ["a-0@A", "a-1@A"]
    assert planned.hint == {"ends": {"a-0@A": [150, 4], "a-1@A": [50, 4]}}
    cluster.epoch_requests.clear()
    assert slice_of(cluster, {"a-0@A": 150, "a-1@A": 50}, hint=planned.hint) is None
    assert cluster.epoch_requests == []


def test_truncated_partition_stops_the_run_and_is_reported_by_name() -> None:
    cluster = Cluster(p0=(0, 150, 4))
    cluster.truncated.add("a-0@A")
    with pytest.raises(SourceChangedError, match="truncated"):
        slice_of(cluster, {"a-0@A": 100}, hint={"ends": {"a-0@A": [100, 3]}})
    with pytest.raises(SourceChangedError, match="truncated"):
        slice_of(Cluster(p0=(0, 90, 3)), {"a-0@A": 100})


def test_hint_of_a_drain_records_its_target_so_that_a_deleted_topic_is_a_gap_up_to_it() -> None:
    cluster = Cluster(p0=(0, 100, 4))
    planned = required(slice_of(cluster, {"a-0@A": 0}, {"a-0@A": 100}, most=10))
    assert planned.ranges == {"a-0@A": (0, 10)}
    assert planned.hint == {"ends": {"a-0@A": [100, 4]}}


def test_hint_of_a_plan_does_not_restore_an_older_leader() -> None:
    cluster, hint = Cluster(p0=(0, 200, 7)), {"ends": {"a-0@A": [100, 3], "a-1@A": [5, 2]}}
    planned = required(slice_of(cluster, {"a-0@A": 100, "a-1@A": 5}, hint=hint))
    assert planned.hint == {"ends": {"a-0@A": [200, 7], "a-1@A": [5, 2]}}


def test_end_of_a_missing_partition_beyond_its_last_known_end_has_no_leader_epoch() -> None:
    """Records of a later leader may follow the last known end. Checked with the older epoch, they would look truncated when the partition returns."""
    cluster, hint = Cluster(p0=(0, 100, 4)), {"ends": {"a-1@A": [30, 2]}}
    planned = required(slice_of(cluster, {"a-0@A": 0, "a-1@A": 5}, {"a-0@A": 100, "a-1@A": 40}, hint=hint, gap=True))
    assert planned.gaps == {"a-1@A": ((5, 40),)}
    assert planned.hint == {"ends": {"a-0@A": [100, 4], "a-1@A": [40, -1]}}
    returned = Cluster(p0=(0, 100, 4), p1=(0, 60, 7))
    assert required(slice_of(returned, {"a-0@A": 100, "a-1@A": 40}, hint=planned.hint)).ranges == {"a-1@A": (40, 60)}
    assert returned.epoch_requests == []


def test_outcome_has_the_hint_of_its_plan_whichever_process_commits_it() -> None:
    planned = required(slice_of(Cluster(p0=(0, 200, 7)), {"a-0@A": 100}))
    source = KafkaSource(topics=["a"], bootstrap_servers="h:1")
    assert source.next_hint(planned.hint, planned.pins, {"read": 90}) == planned.hint
    assert source.read_pins(plain(planned.pins)) == tuple(planned.pins)


def test_pins_beyond_the_end_of_a_partition_are_refused_without_an_epoch_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, source = Cluster(p0=(0, 90, 4)), KafkaSource(topics=["a"], bootstrap_servers="h:1")
    monkeypatch.setattr(KafkaSource, "cluster", lambda self: cluster)
    with pytest.raises(SourceChangedError, match="truncated"):
        source.check_pins([RangePin("a", "A", 0, 0, 100, 3)], was_read=True)
    assert cluster.epoch_requests == []


def test_missing_offsets_do_not_count_against_the_limit() -> None:
    planned = required(slice_of(Cluster(p0=(1_000, 2_000, 0)), {"a-0@A": 0}, gap=True, most=10))
    assert (planned.ranges, planned.gaps) == ({"a-0@A": (0, 1_010)}, {"a-0@A": ((0, 1_000),)})
    assert planned.pins == [RangePin("a", "A", 0, 1_000, 1_010, 0)]


def test_missing_partition_is_lost_up_to_its_last_known_end() -> None:
    cluster = Cluster(p0=(0, 5, 0))
    hint, start = {"ends": {"a-0@OLD": [30, 0]}}, {"a-0@OLD": 10, "a-0@A": 0}
    with pytest.raises(SourceChangedError, match=r"\(10, 30\)"):
        slice_of(cluster, start, hint=hint)
    planned = required(slice_of(cluster, start, hint=hint, gap=True))
    assert (planned.ranges, planned.gaps) == ({"a-0@A": (0, 5), "a-0@OLD": (10, 30)}, {"a-0@OLD": ((10, 30),)})
    assert planned.pins == [RangePin("a", "A", 0, 0, 5, 0)]


@pytest.mark.parametrize("known", [{}, {"p1": (0, 30, 0)}])
def test_partition_that_a_broker_does_not_know_yet_is_not_a_gap(known: dict[str, Any]) -> None:
    """Either the whole topic is unknown, or a partition that was added."""
    cluster = Cluster(**known)
    cluster.late[Partition("a", 0, "A")] = (0, 30, 0)
    planned = required(slice_of(cluster, {"a-0@A": 10, "a-1@A": 30}, {"a-0@A": 30, "a-1@A": 30}, gap=True))
    assert (planned.ranges, planned.gaps) == ({"a-0@A": (10, 30)}, {})
    cluster = Cluster(**known)
    with pytest.raises(SourceChangedError, match=r"\(10, 30\)"):
        slice_of(cluster, {"a-0@A": 10, "a-1@A": 30}, {"a-0@A": 30, "a-1@A": 30})


def test_missing_partition_that_was_fully_read_is_not_a_loss() -> None:
    hint = {"ends": {"a-0@OLD": [30, 0]}}
    assert slice_of(Cluster(p0=(0, 5, 0)), {"a-0@OLD": 30, "a-0@A": 5}, hint=hint) is None


@pytest.mark.parametrize("gap", [False, True])
def test_target_beyond_the_end_of_a_partition_is_never_recorded_as_a_gap(gap: bool) -> None:
    cluster = Cluster(p0=(0, 15, 0))
    for most in (None, 3):
        with pytest.raises(SourceChangedError, match="ends before the end offset of the run"):
            slice_of(cluster, {"a-0@A": 10}, {"a-0@A": 30}, gap=gap, most=most)
    assert required(slice_of(cluster, {"a-0@A": 10}, gap=gap)).ranges == {"a-0@A": (10, 15)}


@pytest.mark.parametrize(("committed", "now"), [("", "A"), ("A", "")])
@pytest.mark.parametrize("gap", [False, True])
def test_topic_is_not_read_again_when_the_cluster_starts_or_stops_reporting_topic_ids(
    committed: str, now: str, gap: bool
) -> None:
    cluster = Cluster()
    cluster.table[Partition("a", 0, now)] = (0, 15, 0)
    with pytest.raises(SourceChangedError, match="recreated"):
        slice_of(cluster, {Partition("a", 0, committed).name: 10}, gap=gap)


def test_remainder_of_rounding_is_distributed() -> None:
    cluster = Cluster(p0=(0, 1_000, 0), p1=(0, 1_000, 0), p2=(0, 1_000, 0))
    assert required(slice_of(cluster, {}, most=100)).rows == 100
