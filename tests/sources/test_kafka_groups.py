"""The consumer group of a batch: kept while what executors fetched ahead is still true."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_streamsem.sources.kafka_records import _group

OPTIONS = {"kafka.bootstrap.servers": "h:9092", "kafka.sasl.jaas.config": "a-secret"}


def pin(**changes: Any) -> list[Any]:
    of = {"topic": "t", "topic_id": "id", "number": 0, "start": 0, "end": 10, "epoch": 3}
    return list((of | changes).values())


def test_next_range_of_the_same_history_is_read_by_the_same_group() -> None:
    first = _group(OPTIONS, [pin(), pin(number=1)])
    assert first == _group(OPTIONS, [pin(number=1, start=10, end=20), pin(start=10, end=20)])
    assert "a-secret" not in str(first)


@pytest.mark.parametrize("changed", [{"epoch": 4}, {"topic_id": "made again"}, {"number": 7}, {"topic": "u"}], ids=str)
def test_another_history_is_read_by_another_group(changed: dict[str, Any]) -> None:
    """Records that were fetched ahead of a log that was then cut short, or of a topic that was made again, are not those of the log."""
    assert _group(OPTIONS, [pin()]) != _group(OPTIONS, [pin(**changed)])


def test_other_settings_are_another_group() -> None:
    """Spark refuses a consumer whose settings differ from those of its group."""
    assert _group(OPTIONS, [pin()]) != _group({**OPTIONS, "kafka.isolation.level": "read_committed"}, [pin()])


def test_broker_that_tells_no_epoch_or_no_topic_id_is_read_anew_each_time() -> None:
    assert _group(OPTIONS, [pin(epoch=-1)]) == {}
    assert _group(OPTIONS, [pin(topic_id="")]) == {}
    assert _group(OPTIONS, [pin(), pin(number=1, epoch=-1)]) == {}
