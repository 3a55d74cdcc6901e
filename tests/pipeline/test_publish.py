"""Publishing a commit to the sinks outside the log, its receipts, and how an operator skips a version."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, PublishError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.versions.publish import batch_of, skip
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Receipt, Receipts
from airflow_provider_streamsem.protocol.procedures import PendingPublish
from airflow_provider_streamsem.protocol.view import ClosedHead
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.external_systems import PublishingFixture, TableSink, refusing, run_with_refused_publish

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    fixture = PublishingFixture(tmp_path, store=open_memory_store(f"publish-{next(_NAMES)}"))
    fixture.arrive(4)
    return fixture


def test_refused_batch_stays_committed_and_is_published_when_the_sink_is_fixed(fixture: PublishingFixture) -> None:
    with refusing("table"), pytest.raises(PublishError, match="streamsem skip"):
        fixture.run("first")
    assert fixture.opened().head == 0
    assert (sum(fixture.rows("audit").values()), sum(fixture.rows("table").values())) == (6, 0)
    engine = RowsEngine()
    result = fixture.run("first", engine=engine)
    assert (result.version, result.status, engine.staged) == (0, "committed", 0)
    assert fixture.rows("table") == fixture.rows("audit") == fixture.visible()
    fixture.run("rest", drain=True)
    fixture.check()


def test_nothing_is_planned_before_the_receipts_exist(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
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


def test_commit_with_pending_publishes_cannot_be_aborted(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    opened = fixture.opened()
    with pytest.raises(InvalidError, match="has_pending_publishes=True"):
        abort(opened.log, opened.record, 0, reason="poison")


def test_sink_gets_no_rows_of_a_skipped_version_and_those_of_the_next(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    receipts = skip(fixture.pipeline(), 0, sink="table", reason="poison", log=fixture.log())
    assert {name: receipt.result for name, receipt in receipts.sinks.items()} == {
        "audit": "applied",
        "table": "skipped",
    }
    assert receipts.reason == "poison"
    fixture.run("second")
    assert fixture.rows("audit") == fixture.expected
    assert fixture.rows("table") == Counter(range(6, 12))
    assert fixture.verdict().violations == []


def test_publisher_that_continues_after_a_skip_applies_nothing(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    opened = bind(fixture.pipeline(), fixture.log())
    assert opened.head.outcome is not None
    late = batch_of(opened, opened.head.outcome, opened.head.outcome_sha, "table")
    skip(fixture.pipeline(), 0, sink="table", reason="poison", log=fixture.log())
    sink = fixture.pipeline().sinks["table"]
    assert isinstance(sink, TableSink)
    receipt_of_late = sink.publish(late)
    assert receipt_of_late is not None
    assert receipt_of_late.result == "skipped"
    fixture.run("second")
    assert sink.publish(late) is None
    assert fixture.rows("table") == Counter(range(6, 12))


@pytest.mark.parametrize("version", [0, 2])
def test_only_the_commit_with_pending_publishes_can_be_skipped(fixture: PublishingFixture, version: int) -> None:
    fixture.run("first")
    with pytest.raises(InvalidError, match="only the newest commit can be skipped"):
        skip(fixture.pipeline(), version, sink="table", reason="no", log=fixture.log())
    with pytest.raises(InvalidError, match="no such sink outside the log"):
        skip(fixture.pipeline(), version, sink="out", reason="no", log=fixture.log())


def test_reprocessing_of_a_skipped_reprocessing_replaces_the_rows_in_the_table(fixture: PublishingFixture) -> None:
    """
    The table skipped the version that the second reprocessing names. It still has the rows of the first batch.

    Covers the model's mutant ``reprocess_replaces_named_rows``.
    """
    fixture.run("first")
    with refusing("table"), pytest.raises(PublishError):
        fixture.run("reprocess", reprocessed=0)
    skip(fixture.pipeline(), 1, sink="table", reason="poison", log=fixture.log())
    assert fixture.rows("table") == Counter(range(6))
    fixture.run("again", reprocessed=0)
    assert fixture.rows("table") == fixture.rows("audit") == Counter(range(6))
    fixture.run("rest", drain=True)
    fixture.check()


def test_reprocessing_is_refused_before_its_plan_if_a_sink_cannot_replace_rows(
    fixture: PublishingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.run("first")
    monkeypatch.setattr(TableSink, "can_remove_rows", False)
    with pytest.raises(InvalidError, match="cannot replace published rows"):
        fixture.run("reprocess", reprocessed=0)
    assert fixture.opened().log.plan(1) is None


def test_cleared_run_is_reprocessed_although_another_run_has_an_open_version(
    fixture: PublishingFixture,
) -> None:
    from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run

    fixture.run("old")
    fixture.dies("other")
    result = reprocess_run(fixture.pipeline(), run_key="old", request="clear", engine=RowsEngine(), log=fixture.log())
    reprocessed = fixture.opened().log.plan(result.version)
    assert reprocessed is not None
    assert (reprocessed.work.kind, reprocessed.work.hidden.commits) == ("reprocess", (0,))
    fixture.run("rest", drain=True)
    fixture.check()


def test_reprocessing_whose_process_died_is_due(fixture: PublishingFixture) -> None:
    fixture.run("all", drain=True)
    assert not waiting(fixture.pipeline()).is_due
    fixture.dies("reprocess", reprocessed=0)
    assert waiting(fixture.pipeline()).is_due


def test_verify_has_no_findings_after_an_empty_batch_was_reprocessed(fixture: PublishingFixture) -> None:
    without_rows = fixture.pipeline(transform=lambda rows: [])
    fixture.run("first", pipeline=without_rows)
    fixture.run("reprocess", reprocessed=0, pipeline=without_rows)
    assert fixture.verdict().violations == []


def test_batch_without_rows_keeps_the_columns_of_earlier_batches(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.run("second", pipeline=fixture.pipeline(transform=lambda rows: []))
    outcomes = [fixture.log().outcome(version) for version in (0, 1)]
    columns = [found.schemas["table"] for found in outcomes if found is not None]
    assert [found.sinks["table"].rows for found in outcomes if found is not None] == [6, 0]
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


def test_rows_of_sinks_outside_the_log_are_not_visible_in_the_log(fixture: PublishingFixture) -> None:
    fixture.run("first")
    assert {file.sink for file in fixture.opened().files()} == {"out"}
    with pytest.raises(InvalidError, match="publishes its rows outside the log"):
        fixture.opened().files(sink="table")


def test_verify_reports_a_marker_that_is_behind_or_ahead_and_missing_receipts(
    fixture: PublishingFixture,
) -> None:
    import sqlite3

    fixture.run("first")
    fixture.run("second")
    assert fixture.verdict().violations == []
    for at, invariant in ((0, "I15"), (5, "I18")):
        with sqlite3.connect(fixture.database) as db:
            db.execute("UPDATE markers SET version = ?, outcome = ''", (at,))
        assert {finding.invariant for finding in fixture.verdict().violations} == {invariant}
    with sqlite3.connect(fixture.database) as db:
        db.execute("UPDATE markers SET version = 1")
    fixture.store.delete(keys.receipts(0))
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I2", 0)]


def test_log_with_sinks_outside_the_log_requires_the_writer_feature_publish(fixture: PublishingFixture) -> None:
    fixture.run("first")
    assert fixture.opened().record.writer_features == ("publish",)


def test_plan_after_a_commit_without_receipts_is_refused(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    log = fixture.log()
    head, stored = log.find_head(), log.plan(0)
    assert stored is not None
    assert head.has_pending_publishes
    with pytest.raises(LogDamagedError, match="I2"):
        log.put_plan(head, replace(stored, version=1, previous=head.outcome_sha, initial_offsets=None))
    assert log.plan(1) is None


def test_pending_publish_of_a_run_is_found_from_a_stale_head(fixture: PublishingFixture) -> None:
    run_with_refused_publish(fixture)
    position = fixture.log().locate("first", ClosedHead(initial_offsets={"files": 0}))
    assert isinstance(position, PendingPublish)
    assert position.head.closed == 0


@pytest.mark.parametrize("change", [{"version": 7}, {"outcome": "0" * 64}, {"sinks": {}}], ids=str)
def test_receipts_of_another_commit_are_not_written(fixture: PublishingFixture, change: dict[str, Any]) -> None:
    run_with_refused_publish(fixture)
    log = fixture.log()
    head = log.find_head()
    applied = {name: Receipt(result="applied", rows=6) for name in ("audit", "table")}
    receipts = Receipts(version=0, outcome=head.outcome_sha, sinks=applied, published_at_ms=0, nonce="n")
    with pytest.raises(LogDamagedError, match="I18"):
        log.put_receipts(head, replace(receipts, **change))
    assert log.receipts(0) is None


def test_chain_of_a_missing_version_is_damage(fixture: PublishingFixture) -> None:
    fixture.run("first")
    fixture.run("reprocess", reprocessed=0)
    assert [fixture.log().find_root(version) for version in (0, 1)] == [0, 0]
    with pytest.raises(LogDamagedError, match="I20"):
        fixture.log().find_root(9)
