"""From a commit to its receipts: who may do it, what waits for it, and how a person gives a version up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, PublishError
from airflow_provider_streamsem.pipeline.maintenance import abort, vacuum
from airflow_provider_streamsem.pipeline.opening import open_pipeline
from airflow_provider_streamsem.pipeline.publish import batch_of, skip
from airflow_provider_streamsem.pipeline.run import plan_run
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Receipt, Receipts
from airflow_provider_streamsem.protocol.procedures import PendingPublish
from airflow_provider_streamsem.protocol.view import ClosedHead
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.external_systems import PublishingFixture, TableSink

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    made = PublishingFixture(tmp_path, store=open_memory_store(f"publish-{next(_NAMES)}"))
    made.arrive(4)
    return made


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """One of the tables refuses every batch."""

    def refuse(step: str) -> None:
        if step == f"before publish {name}":
            raise PublishError("the table refuses the batch", sink=name)

    with TableSink.step_by_step(refuse):
        yield


def refused(fixture: PublishingFixture) -> None:
    with refusing("table"), pytest.raises(PublishError, match="streamsem skip"):
        fixture.run("first")


def test_refused_batch_stays_decided_and_is_published_when_the_sink_is_mended(fixture: PublishingFixture) -> None:
    refused(fixture)
    assert fixture.opened().head == 0
    assert (sum(fixture.rows("audit").values()), sum(fixture.rows("table").values())) == (6, 0)
    engine = RowsEngine()
    result = fixture.run("first", engine=engine)
    assert (result.version, result.status, engine.staged) == (0, "committed", 0)
    assert fixture.rows("table") == fixture.rows("audit") == fixture.visible()
    fixture.run("rest", drain=True)
    fixture.check()


def test_nothing_is_planned_before_the_receipts_are_there(fixture: PublishingFixture) -> None:
    refused(fixture)
    with refusing("table"):
        for run_key in ("first", "second"):
            with pytest.raises(PublishError):
                fixture.run(run_key)
    assert fixture.opened().log.plan(1) is None
    assert plan_run(fixture.pipeline(), run_key="second", log=fixture.log()) is None
    assert waiting(fixture.pipeline()).is_due
    fixture.run("second")
    assert fixture.opened().log.receipts(0) is not None
    assert sum(fixture.rows("table").values()) == 12
    fixture.check()


def test_a_commit_that_waits_for_receipts_cannot_be_aborted(fixture: PublishingFixture) -> None:
    refused(fixture)
    opened = fixture.opened()
    with pytest.raises(InvalidError, match="requires_receipts=True"):
        abort(opened.log, opened.record, 0, reason="poison")


def test_skipped_version_is_in_no_table_that_skipped_it_and_the_next_one_is(fixture: PublishingFixture) -> None:
    refused(fixture)
    receipts = skip(fixture.pipeline(), 0, sink="table", reason="poison", log=fixture.log())
    assert {name: receipt.result for name, receipt in receipts.sinks.items()} == {
        "audit": "applied",
        "table": "skipped",
    }
    assert receipts.reason == "poison"
    fixture.run("second")
    assert fixture.rows("audit") == fixture.expected
    assert fixture.rows("table") == Counter(range(6, 12))
    assert fixture.verdict().findings == []


def test_publisher_that_wakes_after_a_skip_applies_nothing(fixture: PublishingFixture) -> None:
    refused(fixture)
    opened = open_pipeline(fixture.pipeline(), fixture.log())
    assert opened.head.outcome is not None
    late = batch_of(opened, opened.head.outcome, opened.head.outcome_sha, "table")
    skip(fixture.pipeline(), 0, sink="table", reason="poison", log=fixture.log())
    sink = fixture.pipeline().sinks["table"]
    assert isinstance(sink, TableSink)
    answered = sink.publish(late, None)  # type: ignore[arg-type]
    assert answered is not None
    assert answered.result == "skipped"
    fixture.run("second")
    assert sink.publish(late, None) is None  # type: ignore[arg-type]
    assert fixture.rows("table") == Counter(range(6, 12))


@pytest.mark.parametrize("version", [0, 2])
def test_only_the_commit_that_waits_can_be_skipped(fixture: PublishingFixture, version: int) -> None:
    fixture.run("first")
    with pytest.raises(InvalidError, match="only the newest commit can be skipped"):
        skip(fixture.pipeline(), version, sink="table", reason="no", log=fixture.log())
    with pytest.raises(InvalidError, match="no such sink outside the log"):
        skip(fixture.pipeline(), version, sink="out", reason="no", log=fixture.log())


def test_reprocessing_of_a_skipped_reprocessing_replaces_what_stands_in_the_table(fixture: PublishingFixture) -> None:
    """The version that the second reprocess names was skipped there, while the rows of the first stand (the model's mutant reprocess_replaces_named_rows)."""
    fixture.run("first")
    with refusing("table"), pytest.raises(PublishError):
        fixture.run("reprocess", reprocessed=0)
    skip(fixture.pipeline(), 1, sink="table", reason="poison", log=fixture.log())
    assert fixture.rows("table") == Counter(range(6))
    fixture.run("again", reprocessed=0)
    assert fixture.rows("table") == fixture.rows("audit") == Counter(range(6))
    fixture.run("rest", drain=True)
    fixture.check()


def test_reprocessing_is_refused_before_its_plan_where_a_sink_cannot_replace_rows(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.run("first")
    monkeypatch.setattr(TableSink, "can_reprocess", False)
    with pytest.raises(InvalidError, match="cannot replace published rows"):
        fixture.run("reprocess", reprocessed=0)
    assert fixture.opened().log.plan(1) is None


def test_clear_with_reprocessing_makes_rows_anew_though_another_run_has_left_its_version_open(
    fixture: PublishingFixture,
) -> None:
    from airflow_provider_streamsem.pipeline.reprocess import reprocess_run

    fixture.run("old")
    fixture.dies("other")
    result = reprocess_run(fixture.pipeline(), run_key="old", request="clear", engine=RowsEngine(), log=fixture.log())
    reprocessed = fixture.opened().log.plan(result.version)
    assert reprocessed is not None
    assert (reprocessed[0].kind, reprocessed[0].replaces and reprocessed[0].replaces.version) == ("reprocess", 0)
    fixture.run("rest", drain=True)
    fixture.check()


def test_reprocessing_whose_process_died_is_due(fixture: PublishingFixture) -> None:
    fixture.run("all", drain=True)
    assert not waiting(fixture.pipeline()).is_due
    fixture.dies("reprocess", reprocessed=0)
    assert waiting(fixture.pipeline()).is_due


def test_verify_finds_nothing_where_an_empty_batch_was_reprocessed(fixture: PublishingFixture) -> None:
    nothing = fixture.pipeline(transform=lambda rows: [])
    fixture.run("first", pipeline=nothing)
    fixture.run("reprocess", reprocessed=0, pipeline=nothing)
    assert fixture.verdict().findings == []


def test_a_batch_without_rows_keeps_the_columns_of_earlier_batches(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.run("second", pipeline=fixture.pipeline(transform=lambda rows: []))
    outcomes = [fixture.log().outcome(version) for version in (0, 1)]
    columns = [found[0].schemas["table"] for found in outcomes if found is not None]
    assert [found[0].sinks["table"].rows for found in outcomes if found is not None] == [6, 0]
    assert columns[0] == columns[1]
    assert '"id"' in columns[0]


def test_vacuum_deletes_staged_rows_after_the_receipts_and_not_before(fixture: PublishingFixture) -> None:
    fixture.run("first")
    with refusing("table"), pytest.raises(PublishError):
        fixture.run("second")
    done = vacuum(fixture.pipeline(), log=fixture.log())
    assert [(sink, version) for sink, version, _ in done.attempts] == [("audit", 0), ("table", 0)]
    fixture.run("second")
    done = vacuum(fixture.pipeline(), log=fixture.log())
    assert [(sink, version) for sink, version, _ in done.attempts] == [("audit", 1), ("table", 1)]
    fixture.check()


def test_rows_outside_the_log_are_not_read_by_the_log(fixture: PublishingFixture) -> None:
    fixture.run("first")
    assert {file.sink for file in fixture.opened().files()} == {"out"}
    with pytest.raises(InvalidError, match="publishes its rows outside the log"):
        fixture.opened().files(sink="table")


def test_verify_finds_a_marker_that_went_back_one_that_is_ahead_and_receipts_that_are_gone(
    fixture: PublishingFixture,
) -> None:
    import sqlite3

    fixture.run("first")
    fixture.run("second")
    assert fixture.verdict().findings == []
    for at, invariant in ((0, "I15"), (5, "I18")):
        with sqlite3.connect(fixture.database) as db:
            db.execute("UPDATE markers SET version = ?, outcome = ''", (at,))
        assert {finding.invariant for finding in fixture.verdict().findings} == {invariant}
    with sqlite3.connect(fixture.database) as db:
        db.execute("UPDATE markers SET version = 1")
    fixture.store.delete(keys.receipts(0))
    assert [(f.invariant, f.version) for f in fixture.verdict().findings] == [("I2", 0)]


def test_a_log_with_sinks_outside_says_so_to_older_writers(fixture: PublishingFixture) -> None:
    fixture.run("first")
    assert fixture.opened().record.writer_features == ("publish",)


def test_no_plan_follows_a_commit_whose_receipts_are_not_there(fixture: PublishingFixture) -> None:
    refused(fixture)
    log = fixture.log()
    head, stored = log.find_head(), log.plan(0)
    assert stored is not None
    assert head.requires_receipts
    with pytest.raises(LogDamagedError, match="I2"):
        log.put_plan(head, replace(stored[0], version=1, previous=head.outcome_sha, initial_offsets=None))
    assert log.plan(1) is None


def test_run_whose_own_commit_owes_is_found_from_a_head_that_is_older(fixture: PublishingFixture) -> None:
    refused(fixture)
    found = fixture.log().locate("first", ClosedHead(initial_offsets={"files": 0}))
    assert isinstance(found, PendingPublish)
    assert found.head.closed == 0


@pytest.mark.parametrize("change", [{"version": 7}, {"outcome": "0" * 64}, {"sinks": {}}], ids=str)
def test_receipts_that_are_not_of_the_commit_are_not_written(
    fixture: PublishingFixture, change: dict[str, Any]
) -> None:
    refused(fixture)
    log = fixture.log()
    head = log.find_head()
    applied = {name: Receipt(result="applied", rows=6) for name in ("audit", "table")}
    receipts = Receipts(version=0, outcome=head.outcome_sha, sinks=applied, published_at_ms=0, nonce="n")
    with pytest.raises(LogDamagedError, match="I18"):
        log.put_receipts(head, replace(receipts, **change))
    assert log.receipts(0) is None


def test_chain_of_a_version_that_is_not_there_is_damage(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.run("reprocess", reprocessed=0)
    assert [fixture.log().find_root(version) for version in (0, 1)] == [0, 0]
    with pytest.raises(LogDamagedError, match="I20"):
        fixture.log().find_root(9)
