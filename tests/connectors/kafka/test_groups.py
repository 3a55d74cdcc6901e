"""The consumer group of a batch: it is reused while the records that executors fetched ahead are valid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.kafka.pins import RangePin
from airflow_provider_streamsem.connectors.kafka.records import _group

OPTIONS = {"kafka.bootstrap.servers": "h:9092", "kafka.sasl.jaas.config": "a-secret"}


def pin(**changes: Any) -> RangePin:
    return replace(RangePin("t", "id", 0, 0, 10, 3), **changes)


def test_next_range_of_the_same_partitions_uses_the_same_group() -> None:
    first = _group(OPTIONS, [pin(), pin(partition=1)])
    assert first == _group(OPTIONS, [pin(partition=1, start=10, end=20), pin(start=10, end=20)])
    assert "a-secret" not in str(first)


@pytest.mark.parametrize(
    "changed", [{"epoch": 4}, {"topic_id": "recreated"}, {"partition": 7}, {"topic": "u"}], ids=str
)
def test_changed_epoch_topic_or_partition_uses_another_group(changed: dict[str, Any]) -> None:
    """Records that were fetched before a truncation, or before a topic was recreated, are not in the partition's log now."""
    assert _group(OPTIONS, [pin()]) != _group(OPTIONS, [pin(**changed)])


def test_changed_settings_use_another_group() -> None:
    """Spark refuses a consumer whose settings differ from those of its group."""
    assert _group(OPTIONS, [pin()]) != _group({**OPTIONS, "kafka.isolation.level": "read_committed"}, [pin()])


def test_batch_without_epoch_or_topic_id_uses_no_fixed_group() -> None:
    assert _group(OPTIONS, [pin(epoch=-1)]) == {}
    assert _group(OPTIONS, [pin(topic_id="")]) == {}
    assert _group(OPTIONS, [pin(), pin(partition=1, epoch=-1)]) == {}
