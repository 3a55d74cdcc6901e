"""How a Kafka range is cut, against a cluster that is a table: what retention, new leaders, deleted topics and stale hints must and must not do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_streamsem import KafkaSource, Limits
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.protocol.entries import Outcome, Plan
from airflow_provider_streamsem.sources import kafka
from airflow_provider_streamsem.sources.kafka import KafkaPlanner
from airflow_provider_streamsem.sources.kafka_cluster import End, Partition
from tests.protocol import samples


class Cluster:
    """Partition → (low, end, epoch of the leader); ``cut`` are partitions whose log was cut short; of ``late`` the brokers know at the third time only."""

    def __init__(self, **partitions: tuple[int, int, int]) -> None:
        self.table = {Partition("a", int(name[1:]), "A"): values for name, values in partitions.items()}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.looks = 0
        self.late: dict[Partition, tuple[int, int, int]] = {}

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        self.looks += 1
        if self.looks > 2:
            self.table |= self.late
        return sorted(p for p in self.table if p.topic in set(topics))

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, End]:
        return {p: End(self.table[p][1], self.table[p][2]) for p in partitions}

    def lows(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.table[p][0] for p in partitions}

    def was_cut_short(self, partition: Partition, offset: int, epoch: int) -> bool:
        self.asked.append(partition.name)
        return partition.name in self.cut


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_BEFORE_A_GAP_S", (0.0, 0.0))


def outcome(hint: Any) -> Outcome:
    return samples.outcome(samples.plan(), source=hint)


def planner(cluster: Cluster, hint: Any = None) -> KafkaPlanner:
    made = KafkaPlanner(KafkaSource(topics=["a"], bootstrap_servers="h:1"), outcome(hint))
    made.__dict__["_cluster"] = cluster
    return made


def cut(
    made: KafkaPlanner,
    start: dict[str, int],
    end: dict[str, int] | None = None,
    *,
    gap: bool = False,
    most: int | None = None,
) -> Any:
    target = made.latest_offsets() if end is None else end
    return made.cut(start, target, Limits(max_rows=most), on_data_loss="record_gap" if gap else "fail")


def test_new_leader_after_retention_is_retention_and_not_a_log_cut_short() -> None:
    cluster = Cluster(p0=(500, 900, 4))
    made = planner(cluster, {"ends": {"a-0@A": [100, 3]}})
    with pytest.raises(SourceChangedError, match=r"lost=.*\(100, 500\)"):
        cut(made, {"a-0@A": 100})
    assert cut(made, {"a-0@A": 100}, gap=True).gaps == {"a-0@A": ((100, 500),)}
    assert cluster.asked == []


def test_new_leader_is_asked_once_and_then_remembered() -> None:
    cluster = Cluster(p0=(0, 150, 4), p1=(0, 50, 4))
    made = planner(cluster, {"ends": {"a-0@A": [100, 3], "a-1@A": [50, 3]}})
    taken = cut(made, {"a-0@A": 100, "a-1@A": 50})
    assert taken.ranges == {"a-0@A": (100, 150)}
    assert cluster.asked == ["a-0@A", "a-1@A"]
    plan = samples.plan(ranges=taken.ranges, pins=taken.pins)
    hint = made.hint(plan, {})
    assert hint == {"ends": {"a-0@A": [150, 4], "a-1@A": [50, 4]}}
    made.follow(outcome(hint))
    cluster.asked.clear()
    assert cut(made, {"a-0@A": 150, "a-1@A": 50}) is None
    assert cluster.asked == []


def test_log_that_was_cut_short_stops_the_run_and_names_the_partition() -> None:
    cluster = Cluster(p0=(0, 150, 4))
    cluster.cut.add("a-0@A")
    with pytest.raises(SourceChangedError, match="cut short"):
        cut(planner(cluster, {"ends": {"a-0@A": [100, 3]}}), {"a-0@A": 100})
    with pytest.raises(SourceChangedError, match="cut short"):
        cut(planner(Cluster(p0=(0, 90, 3))), {"a-0@A": 100})


def test_hint_of_a_drain_tells_of_its_target_so_that_a_topic_that_vanishes_is_a_gap_up_to_there() -> None:
    made = planner(Cluster(p0=(0, 100, 4)))
    taken = cut(made, {"a-0@A": 0}, {"a-0@A": 100}, most=10)
    plan = samples.plan(ranges=taken.ranges, pins=taken.pins, target={"a-0@A": 100})
    assert planner(Cluster()).hint(plan, {}) == {"ends": {"a-0@A": [100, 4]}}


def test_hint_of_a_process_that_was_overtaken_does_not_bring_back_an_older_leader() -> None:
    cluster = Cluster(p0=(0, 200, 3), p1=(0, 50, 3))
    made = planner(cluster)
    cut(made, {"a-0@A": 0, "a-1@A": 0})  # its plan loses; others commit under a later leader
    made.follow(outcome({"ends": {"a-0@A": [200, 7], "a-1@A": [50, 7]}}))
    theirs: Plan = samples.plan(ranges={"a-0@A": (200, 210)}, pins=[["a", "A", 0, 200, 210, 7]])
    assert made.hint(theirs, {}) == {"ends": {"a-0@A": [210, 7], "a-1@A": [50, 7]}}


def test_hint_of_who_closes_anothers_plan_has_the_leader_of_that_plan_and_not_an_older_one() -> None:
    made = planner(Cluster(p0=(0, 200, 7)), {"ends": {"a-0@A": [100, 3]}})
    theirs: Plan = samples.plan(ranges={"a-0@A": (100, 200)}, pins=[["a", "A", 0, 100, 200, 7]])
    assert made.hint(theirs, {}) == {"ends": {"a-0@A": [200, 7]}}


def test_offsets_that_are_gone_do_not_use_up_the_limit() -> None:
    made = planner(Cluster(p0=(1_000, 2_000, 0)))
    taken = cut(made, {"a-0@A": 0}, gap=True, most=10)
    assert (taken.ranges, taken.gaps) == ({"a-0@A": (0, 1_010)}, {"a-0@A": ((0, 1_000),)})
    assert taken.pins == [["a", "A", 0, 1_000, 1_010, 0]]


def test_partition_that_is_gone_is_lost_up_to_where_it_was_last_seen() -> None:
    cluster = Cluster(p0=(0, 5, 0))
    made = planner(cluster, {"ends": {"a-0@OLD": [30, 0]}})
    start = {"a-0@OLD": 10, "a-0@A": 0}
    with pytest.raises(SourceChangedError, match=r"\(10, 30\)"):
        cut(made, start)
    taken = cut(made, start, gap=True)
    assert (taken.ranges, taken.gaps) == ({"a-0@A": (0, 5), "a-0@OLD": (10, 30)}, {"a-0@OLD": ((10, 30),)})
    assert taken.pins == [["a", "A", 0, 0, 5, 0]]


@pytest.mark.parametrize("known", [{}, {"p1": (0, 30, 0)}])
def test_partition_that_a_broker_does_not_know_yet_is_no_gap(known: dict[str, Any]) -> None:
    """Of a whole topic, or one that was added."""
    cluster = Cluster(**known)
    cluster.late[Partition("a", 0, "A")] = (0, 30, 0)
    taken = cut(planner(cluster), {"a-0@A": 10, "a-1@A": 30}, {"a-0@A": 30, "a-1@A": 30}, gap=True)
    assert (taken.ranges, taken.gaps) == ({"a-0@A": (10, 30)}, {})
    cluster = Cluster(**known)
    with pytest.raises(SourceChangedError, match=r"\(10, 30\)"):
        cut(planner(cluster), {"a-0@A": 10, "a-1@A": 30}, {"a-0@A": 30, "a-1@A": 30})


def test_partition_that_is_gone_and_was_wholly_read_is_no_loss() -> None:
    made = planner(Cluster(p0=(0, 5, 0)), {"ends": {"a-0@OLD": [30, 0]}})
    assert cut(made, {"a-0@OLD": 30, "a-0@A": 5}) is None


@pytest.mark.parametrize("gap", [False, True])
def test_frozen_target_beyond_the_end_is_never_a_gap_that_later_records_would_fall_into(gap: bool) -> None:
    made = planner(Cluster(p0=(0, 15, 0)))
    for most in (None, 3):
        with pytest.raises(SourceChangedError, match="ends below what the run was to read"):
            cut(made, {"a-0@A": 10}, {"a-0@A": 30}, gap=gap, most=most)
    assert cut(made, {"a-0@A": 10}, gap=gap).ranges == {"a-0@A": (10, 15)}


@pytest.mark.parametrize(("committed", "now"), [("", "A"), ("A", "")])
@pytest.mark.parametrize("gap", [False, True])
def test_topic_is_not_read_again_when_the_cluster_begins_or_ceases_to_give_ids(
    committed: str, now: str, gap: bool
) -> None:
    cluster = Cluster()
    cluster.table[Partition("a", 0, now)] = (0, 15, 0)
    with pytest.raises(SourceChangedError, match="made again"):
        cut(planner(cluster), {Partition("a", 0, committed).name: 10}, gap=gap)


def test_what_is_left_by_rounding_is_given_out() -> None:
    made = planner(Cluster(p0=(0, 1_000, 0), p1=(0, 1_000, 0), p2=(0, 1_000, 0)))
    taken = cut(made, {}, most=100)
    assert made.rows(taken) == 100
