"""Reads of a range by an executor, with a stream in memory: a complete range, or an error that names the missing messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_streamsem.connectors.nats.access import Access
from airflow_provider_streamsem.connectors.nats.pins import SequencePin
from airflow_provider_streamsem.connectors.nats.reading import Reading
from airflow_provider_streamsem.errors import RecordsMissingError, SourceChangedError, UnavailableError
from tests.connectors.nats.streams import CREATED, MemoryStream


def reading(start: int, end: int, *, subject: str | None = None, tasks: int = 1) -> Reading:
    pin = SequencePin("ORDERS", CREATED, start, end, "")
    return Reading(access=Access(servers=("h:1",)), domain=None, subject=subject, pins=(pin,), tasks=tasks)


def read(*arguments: Any, **named: Any) -> list[int]:
    planned = reading(*arguments, **named)
    ids = iter([pa.RecordBatch.from_arrays([pa.array([*range(len(planned.parts))])], names=["id"])])
    return [n for batch in planned.batches(ids) for n in batch.column("sequence").to_pylist()]


def test_range_is_read_without_its_holes_and_without_later_messages(orders: MemoryStream) -> None:
    orders.put(20)
    for n in (3, 4, 12, 13, 14, 15):
        del orders.messages[n]
    assert read(2, 14) == [2, 5, 6, 7, 8, 9, 10, 11]
    assert read(12, 16) == []
    del orders.messages[20]
    assert read(18, 21) == [18, 19]


def test_filter_reads_only_matching_messages(orders: MemoryStream) -> None:
    for n in range(10):
        orders.put(1, f"a.{n % 2}")
    assert read(1, 11, subject="a.0") == [1, 3, 5, 7, 9]
    assert read(1, 11, subject="b") == []


def test_split_range_is_read_once(orders: MemoryStream) -> None:
    orders.put(25)
    assert len(reading(1, 25_001, tasks=2).parts) == 2
    assert len(reading(1, 25_001, tasks=10).parts) == 2
    bounds = [(part.start, part.end) for part in reading(7, 100_000, tasks=7).parts]
    assert bounds[0][0] == 7
    assert bounds[-1][1] == 100_000
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


@pytest.mark.parametrize("subject", [None, "a"])
def test_replica_that_lags_behind_the_leader_is_awaited_and_then_fails_the_read(
    orders: MemoryStream, subject: str | None
) -> None:
    orders.put(10)
    orders.lags = 6
    with pytest.raises(UnavailableError, match="replica of the stream lacks"):
        read(1, 11, subject=subject)
    orders.before_pull = lambda: setattr(orders, "lags", orders.lags + 1)
    orders.lags = 3
    assert read(1, 11, subject=subject) == [*range(1, 11)]


def test_replica_without_the_first_messages_fails_the_read(orders: MemoryStream) -> None:
    orders.put(10)
    pull = orders.pull

    def without_first(*arguments: Any, **named: Any) -> Any:
        orders._at = max(orders._at, 4)
        return pull(*arguments, **named)

    orders.pull = without_first  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="sequence=1"):
        read(1, 11)


def test_lost_delivery_fails_the_read(orders: MemoryStream) -> None:
    orders.put(10)
    pull = orders.pull

    def lossy(*arguments: Any, **named: Any) -> Any:
        return [message for message in pull(*arguments, **named) if message.sequence != 5]

    orders.pull = lossy  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="lost a delivery"):
        read(1, 11)


def at_pull(orders: MemoryStream, number: int, act: Any) -> None:
    """Call an action before the pull with this number, from 1."""

    def pulls() -> Iterator[None]:
        for n in range(1, 1000):
            if n == number:
                act()
            yield

    pull_numbers = pulls()
    orders.before_pull = lambda: next(pull_numbers)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [2, 5, 9])
def test_retention_during_the_read_fails_it_unless_all_deleted_messages_were_read(
    orders: MemoryStream, number: int, first: int
) -> None:
    orders.put(12)
    at_pull(orders, number, lambda: orders.expire(first))
    already = 3 * (number - 1)
    if first <= already + 1:
        assert read(1, 11) == [*range(1, 11)]
    else:
        with pytest.raises((RecordsMissingError, UnavailableError)):
            read(1, 11)


def test_stream_that_changes_before_or_during_the_read_is_refused(orders: MemoryStream) -> None:
    orders.put(10)
    for number in (1, 3):
        orders.created = CREATED
        at_pull(orders, number, lambda: setattr(orders, "created", "2026-02-02T00:00:00Z"))
        with pytest.raises(RecordsMissingError, match="recreated"):
            read(1, 11)
    with pytest.raises(RecordsMissingError, match="recreated"):
        read(1, 11)
    orders.created = CREATED
    orders.before_pull = lambda: None
    orders.lose(8)
    with pytest.raises(SourceChangedError, match="ends below the planned range"):
        read(1, 11)
