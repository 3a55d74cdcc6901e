"""Tests of partitions by event time in the log: what versions wrote, what is complete, and what is late, also after aborts, rollbacks and reprocessing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Partitions, reprocess, rollback
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.run.selection import Selection, parse_partitions, preview_reprocess, select
from airflow_provider_streamsem.protocol.entries import CompleteTime
from airflow_provider_streamsem.readers.conditions import PartitionComplete
from airflow_provider_streamsem.readers.partitions import partition_states
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.external_systems import TableSink
from tests.pipeline_fixture import PipelineFixture
from tests.timed_fixture import BASE, DAYS, TimedFixture


@pytest.fixture
def fixture(tmp_path: Path) -> TimedFixture:
    """Versions 0 and 1: the first day is complete, the second is not. The clock of the tests is far after all event times."""
    fixture = TimedFixture(tmp_path)
    fixture.batch("r0", 1, 2, None)
    fixture.batch("r1", 23, 25.5)
    return fixture


def test_partition_is_complete_when_the_newest_event_time_is_late_enough_after_its_end(fixture: TimedFixture) -> None:
    assert fixture.states() == {DAYS[0]: (3, 0, True), DAYS[1]: (1, 0, False), "null": (1, 0, False)}
    assert [each.complete_partitions for each in fixture.returned] == [(), ("2022-01-08T00:00:00",)]
    assert (fixture.is_complete(DAYS[0]), fixture.is_complete(DAYS[1])) == (True, False)
    result = fixture.batch("r2", 24 * 3 + 0.9)
    assert result.complete_partitions == ("2022-01-09T00:00:00",), (
        "an hour after the end of the third day is not reached"
    )
    result = fixture.batch("r3", 24 * 3 + 1)
    assert result.complete_partitions == ("2022-01-10T00:00:00",), "a day without rows is complete, too"
    assert fixture.run("r3").complete_partitions == result.complete_partitions, "a retry returns the same result"


def test_late_rows_are_written_counted_and_named(fixture: TimedFixture, caplog: pytest.LogCaptureFixture) -> None:
    result = fixture.batch("r2", 3, 26, None)
    assert result.counts["late_partition_rows"] == 1
    assert "version 2 has late rows of 1 complete partitions: 2022-01-08 (1)" in caplog.text
    assert fixture.states()[DAYS[0]] == (4, 1, True)
    assert fixture.verdict().violations == []


def test_abort_and_other_kinds_of_versions_keep_what_is_complete(fixture: TimedFixture) -> None:
    before = fixture.log().closed_outcome(1).complete
    fixture.arrives(50)
    fixture.dies("r2")
    log = fixture.log()
    record = log.read_pipeline()
    assert record is not None
    aborted = abort(log, record, 2, reason="a test")
    assert (aborted.complete, aborted.time_partitions) == (before, {})
    fixture.run("r3")
    assert fixture.states()[DAYS[2]] == (1, 0, False)
    assert fixture.verdict().violations == []


def test_rollback_returns_to_what_was_complete_and_the_partition_is_announced_again(fixture: TimedFixture) -> None:
    rollback(fixture.pipeline(), 0, log=fixture.log())
    assert fixture.states() == {DAYS[0]: (2, 0, False), "null": (1, 0, False)}
    assert not fixture.is_complete(DAYS[0])
    result = fixture.run("r2")
    assert result.complete_partitions == ("2022-01-08T00:00:00",)
    assert fixture.verdict().violations == []


def test_reprocessing_replaces_the_rows_of_partitions_and_completes_none(fixture: TimedFixture) -> None:
    def moved(rows: Any) -> Any:
        return [{**row, "at": row["at"] and row["at"] + 86_400_000} for row in rows]

    before = fixture.log().closed_outcome(1).complete
    result = reprocess(fixture.pipeline(transform=moved), 0, log=fixture.log(), engine=RowsEngine())
    outcome = fixture.log().closed_outcome(2)
    assert (outcome.complete, outcome.time_partitions) == (before, {DAYS[1]: 2, "null": 1})
    assert result.complete_partitions == ()
    assert fixture.states() == {DAYS[0]: (1, 0, True), DAYS[1]: (3, 0, False), "null": (1, 0, False)}
    assert fixture.verdict().violations == []


def test_batches_are_selected_by_the_partitions_of_their_visible_rows(fixture: TimedFixture) -> None:
    fixture.batch("r2", 30, 55)

    def selected(text: str) -> list[int]:
        log = fixture.log()
        return select(log, log.newest_head(), Selection(partitions=parse_partitions(text)))

    assert selected("2022-01-08") == [0, 1]
    assert selected("2022-01-09") == [1, 2]
    assert selected("2022-01-10..2022-01-31") == [2]
    assert selected("2022-01") == [0, 1, 2]
    assert selected("2022-02..2023") == []
    with pytest.raises(InvalidError, match=r"KEY or FIRST\.\.LAST"):
        parse_partitions("last week")


def test_drain_returns_all_partitions_that_its_batches_complete(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    for hours in ((1,), (26,), (50,), (74,), (98,)):
        fixture.arrives(*hours)
    result = fixture.run("drain", drain=True)
    assert result.complete_partitions == tuple(f"{day}T00:00:00" for day in DAYS)


def test_source_time_completes_partitions_up_to_the_first_unread_record(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    fixture.partitions = Partitions(by="at", grain="day", complete="source time")
    for hours in ((1,), (2,), (26,)):
        fixture.arrives(*hours)
    for number in range(3):
        at_s = BASE // 1000 + (3600, 90_000, 100_000)[number]
        os.utime(tmp_path / "in" / f"{number:05d}.json", (at_s, at_s))
    first = fixture.run("a")
    assert first.complete_partitions == ("2022-01-08T00:00:00",), "the unread file arrived on the next day"
    fixture.run("b")
    complete = fixture.log().closed_outcome(1).complete
    assert complete is not None
    assert complete.until_ms > BASE + 2 * 86_400_000, "nothing is unread"


def test_event_time_in_the_future_completes_nothing_after_the_time_of_the_plan(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    first = fixture.batch("a", 10_000_000)
    assert (first.complete_partitions, fixture.batch("b", 1, 10_000_000).complete_partitions) == ((), ())
    complete = fixture.log().closed_outcome(1).complete
    assert complete == CompleteTime(since_ms=BASE, until_ms=BASE)
    assert fixture.batch("c", 25.5).complete_partitions == ("2022-01-08T00:00:00",)


def test_partition_before_that_of_the_first_batch_is_not_late_while_the_delay_has_not_passed(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    fixture.batch("a", 24.5)
    assert fixture.batch("b", 23).counts["late_partition_rows"] == 0
    assert fixture.batch("c", 25.5).complete_partitions == ("2022-01-08T00:00:00",)
    assert fixture.batch("d", 22).counts["late_partition_rows"] == 1
    assert fixture.states()[DAYS[0]] == (2, 1, True)
    assert fixture.verdict().violations == []


def test_event_time_at_the_end_of_year_9999_is_in_no_partition(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    fixture.batch("a", 1, (253_402_300_799_000 - BASE) / 3_600_000)
    assert fixture.states() == {DAYS[0]: (1, 0, False), "null": (1, 0, False)}
    fixture.batch("b", 2)


class _WithoutReceipts(CountingStore):
    """The process dies before it creates receipts."""

    def create(self, key: str, data: bytes) -> bool:
        if key.endswith(".d.json"):
            raise Crash
        return super().create(key, data)


def test_partition_of_a_table_is_complete_when_its_rows_are_published(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    spec = fixture.pipeline(sinks={"out": TableSink(path=str(tmp_path / "out"), database=str(tmp_path / "outside.db"))})
    fixture.arrives(1)
    fixture.run("a", pipeline=spec)
    fixture.arrives(26)
    with suppress(Crash):
        fixture.run("b", pipeline=spec, store=_WithoutReceipts(fixture.store))
    sensor = PartitionComplete(pipeline=spec, partition=DAYS[0])
    assert not sensor.check().met
    fixture.run("c", pipeline=spec)
    assert sensor.check().met


def test_cleared_run_that_reprocesses_returns_the_partitions_that_it_completed(fixture: TimedFixture) -> None:
    again = reprocess_run(fixture.pipeline(), request="clear-1", run_key="r1", log=fixture.log(), engine=RowsEngine())
    assert again.complete_partitions == fixture.returned[1].complete_partitions == ("2022-01-08T00:00:00",)


def test_result_that_completes_very_many_partitions_names_all_that_have_rows(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    fixture.partitions = Partitions(by="at", grain="hour", after=0)
    first = fixture.batch("a", 1, 2)
    second = fixture.batch("b", 2_500)
    assert (*first.complete_partitions, *second.complete_partitions) == ("2022-01-08T01:00:00", "2022-01-08T02:00:00")


def test_changed_grain_leaves_out_the_versions_before_it(fixture: TimedFixture) -> None:
    fixture.partitions = Partitions(by="at", grain="hour", after=0)
    fixture.batch("r2", 30)
    assert fixture.states() == {"2022-01-09T06": (1, 0, False), "null": (1, 0, False)}


def test_command_shows_partitions(fixture: TimedFixture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", fixture.store.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["key"], each["is_complete"], each["complete_in"]) for each in document["partitions"]] == [
        (DAYS[0], True, 1), (DAYS[1], False, None), ("null", False, None),
    ]  # fmt: skip
    assert main(["partitions", fixture.store.url, "--since", "2022-01-09", "--until", "2022-01", "--incomplete"]) == 0
    out = capsys.readouterr().out
    assert DAYS[1] in out
    assert DAYS[0] not in out


def test_pipeline_without_partitions_or_with_another_sink_is_refused(fixture: TimedFixture, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="names a sink that the pipeline does not have"):
        fixture.pipeline(partitions=Partitions(by="at", after=0, sink="other"))
    with pytest.raises(InvalidError, match="requires `state`"):
        fixture.pipeline(partitions=Partitions(by="at", complete="watermark"))
    other = PipelineFixture(tmp_path / "other")
    other.arrive(1)
    other.run("a")
    with pytest.raises(InvalidError, match="has no `partitions`"):
        partition_states(other.opened())
    with pytest.raises(InvalidError, match="has neither `partitions` nor `intervals`"):
        PartitionComplete(pipeline=other.pipeline(), partition="2022-01-08").check()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)])
def test_partitions_are_announced_once_after_a_fault_at_any_request(tmp_path: Path, fault: Fault) -> None:
    def of(returned: Sequence[Any]) -> list[str]:
        by_run = {each.run_key: each.complete_partitions for each in returned}
        return sorted(key for keys in by_run.values() for key in keys)

    at, is_done = 0, False
    while not is_done:
        fixture = TimedFixture(tmp_path / str(at))
        fixture.batch("r0", 1)
        fixture.arrives(26)
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            fixture.run("r1", store=store)
        is_done, at = not store.reached, at + 1
        fixture.run("r1")
        fixture.batch("r2", 60)
        assert of(fixture.returned) == ["2022-01-08T00:00:00", "2022-01-09T00:00:00"]
        assert fixture.states() == {DAYS[0]: (1, 0, True), DAYS[1]: (1, 0, True), DAYS[2]: (1, 0, False)}
        assert fixture.verdict().violations == []


def test_dry_run_names_the_versions_that_record_no_partitions(tmp_path: Path) -> None:
    fixture = TimedFixture(tmp_path)
    fixture.arrives(1)
    fixture.run("a", pipeline=fixture.pipeline(partitions=None))
    fixture.batch("b", 2)
    selection = Selection(partitions=parse_partitions(DAYS[0]))
    radius = preview_reprocess(fixture.pipeline(), selection, log=fixture.log())
    assert (radius.versions, radius.partitions, radius.unknown) == ((1,), {DAYS[0]: (1,)}, (0,))
