"""The Kafka source on a real broker with real Spark. Each record that a consumer would read is committed once."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    FilesSink,
    Limits,
    Pipeline,
    RunResult,
    alter,
    open_log,
    reprocess,
    run_batch,
    run_interval,
)
from airflow_provider_streamsem.connectors.kafka.pins import RangePin
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    SourceChangedError,
    StageError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.parts.kafka import Broker
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

HOUR_0_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "100",
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "200",
}


@pytest.fixture
def topics(broker: Broker, spark: SparkSession, tmp_path: Path) -> Topics:
    return Topics(broker, tmp_path)


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last)]


def count_of(first: int, last: int) -> Counter[str]:
    return Counter(numbers(first, last))


def crash_after_plan(topics: Topics, pipeline: object, run_key: str) -> None:
    """Run a batch in a process that dies after it has stored the plan."""

    class Dies(RowsEngine):
        def stage(self, job: object, log: object) -> object:  # type: ignore[override]
            raise Crash

    with pytest.raises(Crash):
        run_batch(pipeline, run_key=run_key, engine=Dies())  # type: ignore[arg-type]


def test_drain_reads_every_record_of_every_partition_once_up_to_its_frozen_end(topics: Topics) -> None:
    topics.create("a", 3)
    for p in range(3):
        topics.put("a", numbers(p * 100, p * 100 + 100), partition=p)
    spec = topics.pipeline("a", limits=Limits(max_rows=90))
    result = topics.run(spec, "first")
    assert (result.counts["read"], result.batches) == (300, 4)
    topics.put("a", numbers(300, 350))
    assert topics.run(spec, "first").counts["read"] == 300
    assert lag(spec).lag == 50
    assert topics.run(spec, "second").counts["read"] == 50
    topics.check(count_of(0, 350))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_topics_that_an_alter_adds_are_read_from_the_start_of_its_time(topics: Topics, starting: str) -> None:
    """An added topic starts at the time of the alter, and the former topic continues, with the partitions that it has got since."""
    for topic in ("a", "b", "c"):
        topics.create(topic, 1)
        topics.put(topic, numbers(0, 10))
    one = topics.pipeline("a")
    topics.run(one, "first")
    topics.grow("a", 2)
    topics.put("a", numbers(10, 20), partition=1)
    two = topics.pipeline("a", "b", source={"starting": starting})
    with pytest.raises(ConflictError, match="streamsem alter"):
        topics.run(two, "second")
    assert alter(two).version == 1
    topics.put("b", numbers(20, 30))
    topics.run(two, "second")
    seen = count_of(0, 30) + (count_of(0, 10) if starting == "earliest" else Counter())
    topics.check(seen)
    pattern = topics.pipeline(source={"topics": [], "topic_pattern": f"{topics.prefix}.*", "starting": starting})
    assert alter(pattern).version == 3
    topics.put("c", numbers(30, 40))
    topics.run(pattern, "third")
    topics.check(seen + count_of(30, 40) + (count_of(0, 10) if starting == "earliest" else Counter()))
    for spec in (one, topics.pipeline("b", source={"starting": starting})):
        with pytest.raises(InvalidError, match="cannot continue after the committed offsets"):
            alter(spec)


def test_kafka_columns_match_the_record(topics: Topics) -> None:
    topics.create("a", 1, retention_ms="-1")
    topics.put("a", ["v"], key=b"k", headers={"h": b"x"}, timestamp=1_700_000_000_123)
    topics.run(topics.pipeline("a"), "r")
    row = topics.rows('topic, partition, "offset", epoch_ms(timestamp), headers, decode(key)')[0]
    assert row == (topics.name("a"), 0, 0, 1_700_000_000_123, [{"key": "h", "value": b"x"}], "k")


def test_open_committed_and_aborted_transactions_are_read_as_by_a_consumer(topics: Topics) -> None:
    topics.create("a", 1)
    topics.transaction("a", numbers(0, 10)).commit_transaction(30)
    topics.transaction("a", numbers(900, 950)).abort_transaction(30)
    topics.put("a", numbers(10, 15))
    topics.wait_for_transactions("a")
    still_open = topics.transaction("a", numbers(20, 25))
    topics.put("a", numbers(15, 20))  # behind the open transaction, so beyond the last stable offset
    spec = topics.pipeline("a")
    first = topics.run(spec, "r1")
    assert first.counts["read"] == 15
    assert topics.run(spec, "r2").status == "empty"
    still_open.commit_transaction(30)
    topics.wait_for_transactions("a")
    assert topics.run(spec, "r3").counts["read"] == 10
    topics.check(count_of(0, 25))
    assert topics.read("a") == topics.values()


def test_uncommitted_records_are_read_only_with_read_uncommitted(topics: Topics) -> None:
    topics.create("a", 1)
    still_open = topics.transaction("a", numbers(0, 5))
    assert topics.run(topics.pipeline("a", source={"isolation": "read_uncommitted"}), "r").counts["read"] == 5
    still_open.abort_transaction(30)


def test_range_of_only_aborted_records_commits_no_row_and_advances(topics: Topics) -> None:
    topics.create("a", 1)
    topics.transaction("a", numbers(0, 30)).abort_transaction(30)
    topics.wait_for_transactions("a")
    spec = topics.pipeline("a")
    assert (topics.run(spec, "r1").status, topics.values()) == ("committed", Counter())
    topics.put("a", ["x"])
    topics.run(spec, "r2")
    topics.check(Counter("x"))


def test_compacted_offsets_are_not_reported_as_lost(topics: Topics) -> None:
    topics.create("a", 1, **COMPACTED)
    for n in range(200):
        topics.put("a", [f"v{n}"], key=str(n % 5).encode())
        if n % 50 == 49:
            time.sleep(0.3)
    topics.until(lambda: sum(topics.read("a").values()) < 200, 60)
    time.sleep(2)
    spec = topics.pipeline("a")
    result = topics.run(spec, "r")
    assert result.ranges[next(iter(result.ranges))] == (0, 200)
    assert result.counts["read"] == sum(topics.values().values()) < 200
    assert topics.read("a") - topics.values() == Counter(), "a record of the topic was not read"


def test_reprocessing_a_version_whose_records_were_compacted_or_expired_changes_nothing(topics: Topics) -> None:
    topics.create("a", 1)
    topics.create("b", 1)
    spec = topics.pipeline("a", "b")
    for n in range(20):
        topics.put("a", [f"v{n}"], key=str(n % 5).encode())
    topics.put("b", ["x"])
    topics.run(spec, "r")
    before = topics.values()
    assert sum(before.values()) == 21
    spec = spec.replace(transform=lambda frame: frame.withColumn("new", F.lit(1)))
    reprocessed = reprocess(spec, 0)
    assert topics.values() == before
    topics.alter("a", **COMPACTED)
    time.sleep(0.3)
    topics.put("a", ["last"], key=b"0")
    topics.until(lambda: sum(topics.read("a").values()) < 10, 60)
    with pytest.raises(SourceChangedError, match="fewer records than the replaced version read"):
        reprocess(spec, 0)
    topics.delete_below("b", 0, 1)
    with pytest.raises(SourceChangedError, match="no longer has the planned offsets"):
        reprocess(spec, 0)
    topics.check(before)
    assert open_log(spec.log).view().version > reprocessed.version


def test_added_partitions_are_read_from_their_beginning(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", numbers(0, 10))
    spec = topics.pipeline("a", source={"starting": "latest"})
    assert topics.run(spec, "r1").status == "empty"
    topics.grow("a", 3)
    topics.put("a", numbers(10, 20), partition=2)
    topics.put("a", numbers(20, 25), partition=0)
    topics.run(spec, "r2")
    topics.check(count_of(10, 25))


@pytest.mark.parametrize("option", ["maxRecordsPerPartition", "minPartitions"])
def test_large_partition_is_read_by_several_tasks_over_the_planned_range(topics: Topics, option: str) -> None:
    topics.create("a", 1)
    topics.put("a", [str(n) for n in range(1_000)])
    value = {"maxRecordsPerPartition": "100", "minPartitions": "10"}[option]
    of_tasks = lambda frame: frame.withColumn("task", F.spark_partition_id())  # noqa: E731
    topics.run(topics.pipeline("a", source={"options": {option: value}}, transform=of_tasks), "r")
    assert topics.rows('count(*), count(DISTINCT task), count(DISTINCT "offset")') == [(1_000, 10, 1_000)]
    plan = open_log(str(topics.location / "log")).log.plan(0)
    assert plan is not None
    assert [*plan.ranges.values()] == [(0, 1_000)]


def test_recreated_topic_is_not_mistaken_for_the_old_one(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", numbers(0, 10))
    spec = topics.pipeline("a")
    topics.run(spec, "r1")
    topics.delete("a")
    with pytest.raises(SourceChangedError, match="do not exist"):
        topics.run(spec, "r2")
    topics.create("a", 1)
    topics.put("a", numbers(100, 130))
    with pytest.raises(SourceChangedError, match="recreated"):
        topics.run(spec, "r2")
    topics.run(spec.replace(on_data_loss="record_gap"), "r2")
    topics.check(count_of(0, 10) + count_of(100, 130))


@pytest.mark.parametrize("is_recreated", [pytest.param(False, marks=pytest.mark.prove), True])
def test_topic_deleted_during_a_drain_is_a_gap_up_to_the_target(topics: Topics, is_recreated: bool) -> None:
    topics.create("a", 1)
    topics.create("b", 1)
    topics.put("a", numbers(0, 10))
    topics.put("b", numbers(10, 20))
    pattern = {"topics": [], "topic_pattern": rf"{topics.prefix}\..*"}
    spec = topics.pipeline(source=pattern, limits=Limits(max_rows=6))
    deleted: list[str] = []

    def delete_topic(frame: DataFrame) -> DataFrame:
        if not deleted:
            deleted.append("a")
            topics.delete("a")
        return frame

    with pytest.raises((SourceChangedError, StageError)):  # either Spark or the check after the read detects it first
        topics.run(spec.replace(transform=delete_topic), "r")
    if is_recreated:
        topics.create("a", 1)
        topics.put("a", numbers(50, 55))
    result = topics.run(spec.replace(on_data_loss="record_gap"), "r")
    assert result.counts["gaps"] == 10
    topics.check(count_of(10, 20))
    topics.run(spec.replace(on_data_loss="record_gap"), "rest")
    topics.check(count_of(10, 20) + (count_of(50, 55) if is_recreated else Counter()))


def test_recreated_planned_topic_discards_the_attempt(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", numbers(0, 10))
    spec = topics.pipeline("a")
    crash_after_plan(topics, spec, "r")
    topics.delete("a")
    topics.create("a", 1)
    topics.put("a", numbers(50, 70))
    with pytest.raises(SourceChangedError, match="deleted"):
        topics.run(spec, "r", drain=False)
    assert topics.values() == Counter()
    result = topics.run(spec.replace(on_data_loss="record_gap"), "r", drain=False)
    assert (result.counts["gaps"], result.counts["read"]) == (10, 20)
    topics.check(count_of(50, 70))


def test_topic_recreated_while_spark_reads_discards_the_attempt(topics: Topics) -> None:
    """The new topic has as many records at the same offsets. Spark does not detect the change. The check after the read does."""
    topics.create("a", 1)
    topics.put("a", numbers(0, 10))
    spec = topics.pipeline("a")

    def recreate_topic(frame: DataFrame) -> DataFrame:
        topics.delete("a")
        topics.create("a", 1)
        topics.put("a", numbers(50, 60))
        return frame

    with pytest.raises(SourceChangedError, match="deleted and recreated; nothing became visible"):
        topics.run(spec.replace(transform=recreate_topic), "r")
    assert topics.values() == Counter()


def test_retry_reads_the_planned_range_though_more_records_arrived(topics: Topics) -> None:
    topics.create("a", 2)
    topics.put("a", numbers(0, 50), partition=0)
    spec = topics.pipeline("a")
    crash_after_plan(topics, spec, "r")
    topics.put("a", numbers(50, 80), partition=0)
    topics.put("a", numbers(80, 90), partition=1)
    assert topics.run(spec, "r", drain=False).counts["read"] == 50
    topics.check(count_of(0, 50))
    topics.run(spec, "r2")
    topics.check(count_of(0, 90))


def test_retention_of_unplanned_records_fails_the_run_or_is_recorded_as_a_gap(topics: Topics) -> None:
    topics.create("a", 2)
    topics.put("a", numbers(0, 50), partition=0)
    topics.put("a", numbers(50, 60), partition=1)
    spec = topics.pipeline("a")
    topics.run(spec, "r1")
    topics.put("a", numbers(100, 150), partition=0)
    topics.delete_below("a", 0, 70)
    with pytest.raises(SourceChangedError, match=r"lost=.*\(50, 70\)"):
        topics.run(spec, "r2")
    result = topics.run(spec.replace(on_data_loss="record_gap"), "r2")
    assert (result.counts["gaps"], result.counts["read"]) == (20, 30)
    topics.check(count_of(0, 60) + count_of(120, 150))


def test_retention_of_a_planned_range_is_named_or_becomes_a_gap_of_a_new_plan(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", numbers(0, 50))
    spec = topics.pipeline("a")
    crash_after_plan(topics, spec, "r")
    topics.delete_below("a", 0, 30)
    with pytest.raises(SourceChangedError, match="first=30"):
        topics.run(spec, "r", drain=False)
    assert topics.run(spec.replace(on_data_loss="record_gap"), "r", drain=False).counts["gaps"] == 30
    topics.check(count_of(30, 50))


def test_executors_fail_on_missing_offsets_instead_of_reading_others(topics: Topics, spark: SparkSession) -> None:
    """If records expire between the checks before and after the read, Spark itself must fail."""
    topics.create("a", 1)
    topics.put("a", numbers(0, 50))
    source = topics.pipeline("a").source
    (partition,) = source.initial_offsets()
    topic_id = partition.partition("@")[2]
    topics.delete_below("a", 0, 30)
    loaded = source.load(spark, [RangePin(topics.name("a"), topic_id, 0, 0, 50, 0)])
    with pytest.raises(Exception, match=r"Could not read records in offset \[0, 50\)"):
        loaded.frame.count()


def test_v2_kafka_source_setting_is_limited_to_the_source(topics: Topics, spark: SparkSession) -> None:
    """See ADR 0014."""
    key = "spark.sql.sources.useV1SourceList"
    before = spark.conf.get(key)
    assert {"kafka", "parquet"} <= {*str(before).split(",")}
    topics.create("a", 1)
    topics.put("a", numbers(0, 3))
    source = topics.pipeline("a").source
    (partition,) = source.initial_offsets()
    loaded = source.load(spark, [RangePin(topics.name("a"), partition.partition("@")[2], 0, 0, 3, 0)])
    inner: Any = loaded.frame
    leaf = inner._jdf.queryExecution().analyzed().collectLeaves().head()
    assert leaf.getClass().getSimpleName() == "DataSourceV2Relation"
    assert spark.conf.get(key) == before
    assert loaded.frame.count() == 3


def test_several_topics_and_a_pattern_with_a_topic_that_appears_later(topics: Topics) -> None:
    for n, topic in enumerate(("x.a", "x.b", "y")):
        topics.create(topic, 1)
        topics.put(topic, numbers(n * 10, n * 10 + 10))
    by_pattern = topics.pipeline(source={"topics": [], "topic_pattern": rf"{topics.prefix}\.x\..*"})
    topics.run(by_pattern, "r1")
    topics.create("x.c", 1)
    topics.put("x.c", numbers(50, 60))
    topics.run(by_pattern, "r2")
    topics.check(count_of(0, 20) + count_of(50, 60))
    both = Topics(topics.broker, topics.location / "both", topics.prefix)
    both.run(both.pipeline("x.a", "y"), "r")
    both.check(count_of(0, 10) + count_of(20, 30))


def test_record_with_a_timestamp_that_spark_cannot_read_is_named_and_can_be_skipped(topics: Topics) -> None:
    topics.create("a", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    topics.put("a", ["good"])
    topics.put("a", ["far"], timestamp=1_700_000_000_000_000_000)
    topics.put("a", ["next"])
    pipeline = topics.pipeline("a")
    with pytest.raises(DataError, match="a timestamp after the year 294246") as caught:
        topics.run(pipeline, "first")
    assert "transform" not in str(caught.value)
    topics.delete_below("a", 0, 2)
    topics.run(pipeline.replace(on_data_loss="record_gap"), "first")
    topics.check(Counter(["next"]))


def test_each_starting_position_reads_from_its_offset_on(topics: Topics) -> None:
    topics.create("a", 1, retention_ms="-1")
    topics.put("a", numbers(0, 10), timestamp=1_000_000)
    topics.put("a", numbers(10, 20), timestamp=2_000_000)
    at = datetime.fromtimestamp(1_500, tz=timezone.utc).isoformat()
    for n, (starting, first) in enumerate(
        (("earliest", 0), ("latest", 20), (at, 10), ({f"{topics.name('a')}-0": 7}, 7))
    ):
        own_topics = Topics(topics.broker, topics.location / str(n), topics.prefix)
        spec = own_topics.pipeline("a", source={"starting": starting})
        (offset,) = spec.source.initial_offsets().values()
        assert offset == first
        own_topics.run(spec, "r")
        own_topics.check(count_of(first, 20))
    (found,) = topics.pipeline("a").source.offsets_for_time(1_000_001).values()  # type: ignore[attr-defined]
    assert found == 10
    (found,) = topics.pipeline("a").source.offsets_for_time(9_000_000).values()  # type: ignore[attr-defined]
    assert found == 20
    for wrong in ({f"{topics.name('a')}-0": 21}, {f"{topics.name('a')}-5": 0}):
        with pytest.raises(InvalidError, match="starting"):
            topics.pipeline("a", source={"starting": wrong}).source.initial_offsets()
    topics.put("a", numbers(20, 25))
    newest = Topics(topics.broker, topics.location / "1", topics.prefix)
    newest.run(newest.pipeline("a", source={"starting": "latest"}), "r2")
    newest.check(count_of(20, 25))


def test_few_rows_wait_until_max_delay_is_over(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", numbers(0, 5))
    spec = topics.pipeline("a", limits=Limits(min_rows=20, max_delay_s=600))
    topics.run(spec, "r1")  # no version is committed yet, so no row has to wait
    topics.put("a", numbers(5, 10))
    assert topics.run(spec, "r2").status == "empty"
    short_delay = spec.replace(limits=Limits(min_rows=20, max_delay_s=1))
    time.sleep(1.1)
    assert topics.run(short_delay, "r3").counts["read"] == 5
    topics.put("a", numbers(10, 40))
    assert topics.run(spec, "r4").counts["read"] == 30
    topics.check(count_of(0, 40))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker that the test may stop."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


def commit_ten_records(own_broker: Broker, tmp_path: Path) -> tuple[Topics, Pipeline]:
    """Create a topic of one partition with ten records, and a pipeline that has committed them."""
    topics = Topics(own_broker, tmp_path)
    topics.create("a", 1)
    topics.put("a", numbers(0, 10))
    spec = topics.pipeline("a")
    topics.run(spec, "r1")
    return topics, spec


def restart(topics: Topics) -> None:
    """Start the broker, and wait until the topic has a leader."""
    topics.broker.start()
    topics.until(lambda: topics.admin.list_topics(timeout=30).topics[topics.name("a")].partitions[0].leader == 1)


def tail_loss(topics: Topics) -> Callable[[], None]:
    """Return a function that kills the broker, truncates the partition to its current length, and restarts the broker."""
    log = topics.broker.data / f"{topics.name('a')}-0" / "00000000000000000000.log"
    size = log.stat().st_size

    def lose() -> None:
        topics.broker.kill()
        os.truncate(log, size)
        restart(topics)

    return lose


def test_stopped_broker_fails_the_run_and_no_record_is_lost_after_its_restart(
    own_broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_streamsem.connectors.kafka.cluster.TIMEOUT_S", 3.0)
    topics, spec = commit_ten_records(own_broker, tmp_path)
    topics.put("a", numbers(10, 20))
    own_broker.kill()
    with pytest.raises(UnavailableError, match="this request wrote no records"):
        topics.run(spec, "r2")
    restart(topics)
    topics.run(spec, "r2")
    topics.check(count_of(0, 20))


def test_truncated_partition_that_has_grown_again_is_detected(
    own_broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    """In an unclean leader election, the tail is lost, and a new leader writes other records at the same offsets."""
    topics, spec = commit_ten_records(own_broker, tmp_path)
    lose_the_tail = tail_loss(topics)
    topics.put("a", numbers(10, 20))
    topics.run(spec, "r2")
    assert topics.values() == count_of(0, 20)
    lose_the_tail()
    with pytest.raises(SourceChangedError, match="truncated"):
        topics.run(spec, "r3")
    topics.put("a", numbers(100, 150))
    with pytest.raises(SourceChangedError, match="truncated"):
        topics.run(spec, "r3")


@pytest.mark.prove
@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_partition_truncated_below_a_planned_range_is_detected_though_it_has_grown_again(
    own_broker: Broker, spark: SparkSession, tmp_path: Path, on_data_loss: str
) -> None:
    topics, spec = commit_ten_records(own_broker, tmp_path)
    lose_the_tail = tail_loss(topics)
    topics.put("a", numbers(10, 20))
    crash_after_plan(topics, spec, "r2")
    lose_the_tail()
    topics.put("a", numbers(100, 150))
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="truncated below the planned end"):
            topics.run(spec.replace(on_data_loss=on_data_loss), "r2", drain=False)
    assert topics.values() == count_of(0, 10)


@pytest.mark.prove
def test_partition_truncated_and_grown_again_while_spark_reads_discards_the_attempt(
    own_broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    topics, spec = commit_ten_records(own_broker, tmp_path)
    lose_the_tail = tail_loss(topics)
    topics.put("a", numbers(10, 20))

    def truncate_and_write(frame: DataFrame) -> DataFrame:
        lose_the_tail()
        topics.put("a", numbers(100, 150))
        return frame

    with pytest.raises(SourceChangedError, match="truncated below the planned end"):
        topics.run(spec.replace(transform=truncate_and_write), "r2", drain=False)
    assert topics.values() == count_of(0, 10)


@pytest.mark.prove
def test_leader_change_without_truncation_is_accepted(own_broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    topics, spec = commit_ten_records(own_broker, tmp_path)
    own_broker.stop()
    restart(topics)
    topics.put("a", numbers(10, 20))
    topics.run(spec, "r2")
    topics.check(count_of(0, 20))


def test_intervals_by_the_timestamps_of_records_read_late_ones_once_and_refuse_deleted_ones(topics: Topics) -> None:
    topics.create("a", 2, retention_ms="-1")

    def put(first: int, hour: int, partition: int) -> None:
        topics.put("a", numbers(first, first + 5), partition=partition, timestamp=HOUR_0_MS + hour * 3_600_000)

    def read(hour: int, spec: Pipeline, request: str = "r") -> RunResult:
        start_ms = HOUR_0_MS + hour * 3_600_000
        return run_interval(spec, TimeInterval(start_ms, start_ms + 3_600_000), request=request)

    put(0, 0, 0)
    put(5, 1, 0)
    put(10, 1, 1)
    put(15, 2, 1)
    spec = topics.pipeline("a", intervals=True)
    assert read(2, spec).counts["read"] == 5
    put(20, 0, 0)  # late: it is in the interval that is read next in its partition
    put(25, 3, 0)
    assert [read(hour, spec).counts["read"] for hour in (0, 1, 3)] == [5, 10, 10]
    topics.check(count_of(0, 30))
    assert read(1, spec, "again").counts["read"] == 10
    topics.check(count_of(0, 30))
    topics.delete_below("a", 0, 7)
    with pytest.raises(SourceChangedError):
        read(1, spec, "lost")
    topics.check(count_of(0, 30))
    other = topics.pipeline(
        "a",
        intervals=True,
        name="other",
        log=f"{spec.log}-other",
        sinks={"out": FilesSink(path=f"{topics.location}/other")},
    )
    with pytest.raises(SourceChangedError, match="may have deleted records of the interval"):
        read(1, other)
    gap = other.replace(on_data_loss="record_gap")
    assert read(1, gap).counts["read"] == 13, "the offsets between two times contain the late records"
