"""
The publish loop, with a sink in memory whose commits fail by a script.

Each batch is in the sink at most once, and every error describes the actual state. The tests of Delta, Iceberg, databases and Kafka show the same on real systems.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.staged_parquet.transactions import Failure, TransactionalSink
from airflow_provider_streamsem.errors import (
    MarkerLostError,
    PublishError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json, Marker, Receipt

FILE = DataFile(key="data/3/a/x.parquet", bytes=1, rows=7, checksum="sha256:00")
BATCH = SinkCommit(
    pipeline_uuid="u", sink="s", version=3, outcome="ours", committable=Committable(format="parquet", rows=7, files=(FILE,)), schema="", root=3
)  # fmt: skip
OLDER = SinkMarker(2, "applied", "before")
NEWER = SinkMarker(4, "applied", "after")
TABLE_REFUSES = PublishError("the table was altered; the batch is not in it")


class MemorySink(TransactionalSink["MemorySink"]):
    """A sink with a marker and a list of committed versions. Each try executes one step of the script."""

    tries: ClassVar[int] = 4
    location: ClassVar[str] = "/staged"
    reasons: ClassVar[tuple[str, ...]] = ()
    can_remove_rows: ClassVar[bool] = False

    def __init__(self, *script: str, marker: SinkMarker | None = OLDER, reopens: bool = True) -> None:
        self.script = [*script]
        self.stored_marker = marker
        self.rows: list[int] = []
        self.reads = 0
        self.table_version = 0
        type(self).reopens = reopens

    def immutable_config(self) -> Json:
        return {}

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        return self.stored_marker

    @contextmanager
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> Iterator[MemorySink]:
        step = self.script[0] if self.script else ""
        if step.startswith("opening "):
            self.script.pop(0)
            raise {"opening is refused": StoreRefusedError("denied"), "opening is unavailable": UnavailableError("no reply"), "opening fails": OSError("reset")}[step]  # fmt: skip
        yield self

    def marker_in(self, handle: MemorySink, batch: SinkCommit) -> SinkMarker | None:
        self.reads += 1
        return self.stored_marker

    def check_sink(self, handle: MemorySink, batch: SinkCommit, marker: SinkMarker | None) -> None:
        if not batch.is_settled(marker):
            batch.check_marker(marker, "the marker is missing")

    def commit(self, handle: MemorySink, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        step = self.script.pop(0) if self.script else "applied"
        if step in ("applied", "applied, and the reply is lost"):
            assert self.stored_marker == marker, "the commit is conditional on the marker"
            self._apply(batch)
        if step in ("another publisher applies it", "another publisher applies it, and the table is altered"):
            self._apply(batch)
        if step == "a newer version is published":
            self.stored_marker = NEWER
        if step.endswith("altered"):
            raise TABLE_REFUSES
        if step.startswith("refused"):
            self.table_version += step == "refused, and the table changes"
            raise ValueError("a row does not fit")
        if step in ("applied, and the reply is lost", "no reply"):
            raise OSError("reset")
        return step == "applied"

    def _apply(self, batch: SinkCommit) -> None:
        self.stored_marker = SinkMarker(batch.version, "applied", batch.outcome)
        self.rows.append(batch.version)

    def table_state(self, handle: MemorySink) -> object:
        return self.table_version

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, ValueError)

    def refused_error(self, batch: SinkCommit, cause: Exception) -> StreamsemError:
        return PublishError("a row does not fit; the batch is not in the table")

    def unknown_result_error(self, batch: SinkCommit, cause: Exception | None) -> StreamsemError:
        return UnavailableError("whether the batch is in the table is unknown")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "airflow_provider_streamsem.connectors.staged_parquet.transactions.SYSTEM_CLOCK.sleep", lambda seconds: None
    )


def publish(sink: MemorySink, *, expected: SinkMarker | None = OLDER) -> Receipt | None:
    marker = None if expected is None else Marker(version=expected.version, outcome=expected.outcome)
    return sink.publish(replace(BATCH, expected_marker=marker))


@pytest.mark.parametrize(
    "script",
    [
        ["applied"],
        ["applied, and the reply is lost"],
        ["no reply", "no reply", "applied, and the reply is lost"],
        ["no reply", "no reply", "no reply", "applied, and the reply is lost"],
        ["another publisher applies it"],
        ["another publisher applies it, and the table is altered"],
        ["refused, and the table changes", "applied"],
        ["opening fails", "applied"],
        ["applied, and the reply is lost", "opening fails"],
    ],
    ids=" then ".join,
)
def test_batch_is_applied_once_and_reported_as_applied(script: list[str]) -> None:
    sink = MemorySink(*script)
    assert publish(sink) == Receipt(result="applied", rows=7)
    assert (sink.rows, sink.script) == ([3], [])


def test_publisher_that_comes_after_a_newer_version_reports_nothing() -> None:
    assert publish(MemorySink("a newer version is published")) is None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (["refused", "applied"], "a row does not fit"),
        (["no reply", "refused", "applied"], "a row does not fit"),
        (["the table is altered", "applied"], TABLE_REFUSES.summary),
        (["no reply", "no reply", "no reply", "refused", "applied"], "a row does not fit"),
    ],
    ids=str,
)
def test_refusal_is_raised_after_a_read_that_shows_that_the_batch_is_not_in_the_sink(
    script: list[str], expected: str
) -> None:
    sink = MemorySink(*script)
    with pytest.raises(PublishError, match=expected) as raised:
        publish(sink)
    assert raised.value.__context__ is None, "a cause may hold values of rows"
    assert (sink.rows, sink.script) == ([], ["applied"])


def test_refusal_that_a_later_failure_replaced_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink("refused", *["opening fails"] * 3)
    real = sink.opened

    @contextmanager
    def closing_fails_once(*given: Any, **named: Any) -> Iterator[MemorySink]:
        with real(*given, **named) as handle:
            yield handle
        if sink.reads == 2:
            raise OSError("the connection was reset while it was closed")

    monkeypatch.setattr(sink, "opened", closing_fails_once)
    with pytest.raises(UnavailableError, match="unknown"):
        publish(sink)


@pytest.mark.parametrize("step", ["no reply", "opening fails"])
def test_sink_without_a_clear_reply_is_unavailable_after_the_last_try(step: str) -> None:
    sink = MemorySink(*[step] * 9)
    with pytest.raises(UnavailableError, match="unknown"):
        publish(sink)
    assert sink.rows == []


def test_every_try_that_may_have_committed_is_followed_by_a_read() -> None:
    sink = MemorySink(*["no reply"] * 9)
    with pytest.raises(UnavailableError):
        publish(sink)
    assert sink.reads == MemorySink.tries + 1
    assert len(sink.script) == 9 - MemorySink.tries


def test_sink_that_refuses_to_be_opened_is_not_tried_again() -> None:
    sink = MemorySink("opening is refused", "applied")
    with pytest.raises(StoreRefusedError, match="denied"):
        publish(sink)
    assert sink.script == ["applied"]


def test_sink_whose_client_retries_itself_is_opened_once() -> None:
    sink = MemorySink("opening is unavailable", "applied", reopens=False)
    with pytest.raises(UnavailableError, match="no reply"):
        publish(sink)
    assert sink.script == ["applied"]


def test_sink_that_lost_its_marker_gets_no_commit() -> None:
    sink = MemorySink("applied", marker=None)
    with pytest.raises(MarkerLostError):
        publish(sink)
    assert sink.script == ["applied"]


def test_skip_sets_the_marker_of_a_sink_that_lost_it() -> None:
    sink = MemorySink("applied", marker=None)
    marker = Marker(version=OLDER.version, outcome=OLDER.outcome)
    receipt = sink.skip(replace(BATCH, expected_marker=marker))
    assert receipt == Receipt(result="skipped", rows=0)
