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

from airflow_provider_streamsem.batch.maintenance import abort, vacuum
from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.publish import batch_of, skip
from airflow_provider_streamsem.batch.run import plan_run
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, PublishError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Receipt, Receipts
from airflow_provider_streamsem.protocol.procedures import Owing
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.outside import PublishingWorld, TableSink

_NAMES = count()


@pytest.fixture
def world(tmp_path: Path) -> PublishingWorld:
    made = PublishingWorld(tmp_path, store=open_memory_store(f"publish-{next(_NAMES)}"))
    made.arrive(4)
    return made


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """One of the tables refuses every batch."""

    def refuse(step: str) -> None:
        if step == f"before publish {name}":
            raise PublishError("the table refuses the batch", sink=name)

    with TableSink.stepped(refuse):
        yield


def refused(world: PublishingWorld) -> None:
    with refusing("table"), pytest.raises(PublishError, match="streamsem skip"):
        world.run("first")


def test_refused_batch_stays_decided_and_is_published_when_the_sink_is_mended(world: PublishingWorld) -> None:
    refused(world)
    assert world.opened().head == 0
    assert (sum(world.rows("audit").values()), sum(world.rows("table").values())) == (6, 0)
    engine = RowsEngine()
    result = world.run("first", engine=engine)
    assert (result.version, result.status, engine.staged) == (0, "committed", 0)
    assert world.rows("table") == world.rows("audit") == world.visible()
    world.run("rest", drain=True)
    world.check()


def test_nothing_is_planned_before_the_receipts_are_there(world: PublishingWorld) -> None:
    refused(world)
    with refusing("table"):
        for run_key in ("first", "second"):
            with pytest.raises(PublishError):
                world.run(run_key)
    assert world.opened().log.plan(1) is None
    assert plan_run(world.pipeline(), run_key="second", log=world.log()) is None
    assert waiting(world.pipeline()).is_due
    world.run("second")
    assert world.opened().log.receipts(0) is not None
    assert sum(world.rows("table").values()) == 12
    world.check()


def test_a_commit_that_waits_for_receipts_cannot_be_aborted(world: PublishingWorld) -> None:
    refused(world)
    opened = world.opened()
    with pytest.raises(InvalidError, match="waits_for_receipts=True"):
        abort(opened.log, opened.record, 0, reason="poison")


def test_skipped_version_is_in_no_table_that_skipped_it_and_the_next_one_is(world: PublishingWorld) -> None:
    refused(world)
    receipts = skip(world.pipeline(), 0, sink="table", reason="poison", log=world.log())
    assert {name: receipt.result for name, receipt in receipts.sinks.items()} == {
        "audit": "applied",
        "table": "skipped",
    }
    assert receipts.reason == "poison"
    world.run("second")
    assert world.rows("audit") == world.expected
    assert world.rows("table") == Counter(range(6, 12))
    assert world.verdict().findings == []


def test_publisher_that_wakes_after_a_skip_applies_nothing(world: PublishingWorld) -> None:
    refused(world)
    opened = open_pipeline(world.pipeline(), world.log())
    assert opened.head.outcome is not None
    late = batch_of(opened, opened.head.outcome, opened.head.outcome_sha, "table")
    skip(world.pipeline(), 0, sink="table", reason="poison", log=world.log())
    sink = world.pipeline().sinks["table"]
    assert isinstance(sink, TableSink)
    answered = sink.publish(late, None)  # type: ignore[arg-type]
    assert answered is not None
    assert answered.result == "skipped"
    world.run("second")
    assert sink.publish(late, None) is None  # type: ignore[arg-type]
    assert world.rows("table") == Counter(range(6, 12))


@pytest.mark.parametrize("version", [0, 2])
def test_only_the_commit_that_waits_can_be_skipped(world: PublishingWorld, version: int) -> None:
    world.run("first")
    with pytest.raises(InvalidError, match="only a commit that waits"):
        skip(world.pipeline(), version, sink="table", reason="no", log=world.log())
    with pytest.raises(InvalidError, match="no such sink outside the log"):
        skip(world.pipeline(), version, sink="out", reason="no", log=world.log())


def test_redo_of_a_skipped_redo_replaces_what_stands_in_the_table(world: PublishingWorld) -> None:
    """The version that the second redo names was skipped there, while the rows of the first stand (the model's mutant redo_replaces_named_rows)."""
    world.run("first")
    with refusing("table"), pytest.raises(PublishError):
        world.run("redo", redone=0)
    skip(world.pipeline(), 1, sink="table", reason="poison", log=world.log())
    assert world.rows("table") == Counter(range(6))
    world.run("again", redone=0)
    assert world.rows("table") == world.rows("audit") == Counter(range(6))
    world.run("rest", drain=True)
    world.check()


def test_redo_is_refused_before_its_plan_where_a_sink_cannot_replace_rows(
    world: PublishingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("first")
    monkeypatch.setattr(TableSink, "redoes", False)
    with pytest.raises(InvalidError, match="cannot replace what they have published"):
        world.run("redo", redone=0)
    assert world.opened().log.plan(1) is None


def test_clear_with_redo_makes_rows_anew_though_another_run_has_left_its_version_open(world: PublishingWorld) -> None:
    from airflow_provider_streamsem.batch.redo import redo_run

    world.run("old")
    world.dies("other")
    result = redo_run(world.pipeline(), run_key="old", request="clear", engine=RowsEngine(), log=world.log())
    redone = world.opened().log.plan(result.version)
    assert redone is not None
    assert (redone[0].kind, redone[0].replaces and redone[0].replaces.version) == ("redo", 0)
    world.run("rest", drain=True)
    world.check()


def test_redo_whose_process_died_is_due(world: PublishingWorld) -> None:
    world.run("all", drain=True)
    assert not waiting(world.pipeline()).is_due
    world.dies("redo", redone=0)
    assert waiting(world.pipeline()).is_due


def test_verify_finds_nothing_where_an_empty_batch_was_redone(world: PublishingWorld) -> None:
    nothing = world.pipeline(transform=lambda rows: [])
    world.run("first", pipeline=nothing)
    world.run("redo", redone=0, pipeline=nothing)
    assert world.verdict().findings == []


def test_a_batch_without_rows_keeps_the_columns_of_earlier_batches(world: PublishingWorld) -> None:
    world.run("first")
    world.run("second", pipeline=world.pipeline(transform=lambda rows: []))
    outcomes = [world.log().outcome(version) for version in (0, 1)]
    columns = [found[0].schemas["table"] for found in outcomes if found is not None]
    assert [found[0].sinks["table"].rows for found in outcomes if found is not None] == [6, 0]
    assert columns[0] == columns[1]
    assert '"id"' in columns[0]


def test_vacuum_deletes_staged_rows_after_the_receipts_and_not_before(world: PublishingWorld) -> None:
    world.run("first")
    with refusing("table"), pytest.raises(PublishError):
        world.run("second")
    done = vacuum(world.pipeline(), log=world.log())
    assert [(sink, version) for sink, version, _ in done.attempts] == [("audit", 0), ("table", 0)]
    world.run("second")
    done = vacuum(world.pipeline(), log=world.log())
    assert [(sink, version) for sink, version, _ in done.attempts] == [("audit", 1), ("table", 1)]
    world.check()


def test_rows_outside_the_log_are_not_read_by_the_log(world: PublishingWorld) -> None:
    world.run("first")
    assert {file.sink for file in world.opened().files()} == {"out"}
    with pytest.raises(InvalidError, match="read them where they are"):
        world.opened().files(sink="table")


def test_verify_finds_a_marker_that_went_back_one_that_is_ahead_and_receipts_that_are_gone(
    world: PublishingWorld,
) -> None:
    import sqlite3

    world.run("first")
    world.run("second")
    assert world.verdict().findings == []
    for at, invariant in ((0, "I15"), (5, "I18")):
        with sqlite3.connect(world.database) as db:
            db.execute("UPDATE markers SET version = ?, outcome = ''", (at,))
        assert {finding.invariant for finding in world.verdict().findings} == {invariant}
    with sqlite3.connect(world.database) as db:
        db.execute("UPDATE markers SET version = 1")
    world.store.delete(keys.receipts(0))
    assert [(f.invariant, f.version) for f in world.verdict().findings] == [("I2", 0)]


def test_a_log_with_sinks_outside_says_so_to_older_writers(world: PublishingWorld) -> None:
    world.run("first")
    assert world.opened().record.writer_features == ("publish",)


def test_no_plan_follows_a_commit_whose_receipts_are_not_there(world: PublishingWorld) -> None:
    refused(world)
    log = world.log()
    head, stored = log.find_head(), log.plan(0)
    assert stored is not None
    assert head.owes
    with pytest.raises(LogDamagedError, match="I2"):
        log.put_plan(head, replace(stored[0], version=1, previous=head.outcome_sha, genesis=None))
    assert log.plan(1) is None


def test_run_whose_own_commit_owes_is_found_from_a_head_that_is_older(world: PublishingWorld) -> None:
    refused(world)
    found = world.log().locate("first", Head(genesis={"files": 0}))
    assert isinstance(found, Owing)
    assert found.head.closed == 0


@pytest.mark.parametrize("change", [{"version": 7}, {"outcome": "0" * 64}, {"sinks": {}}], ids=str)
def test_receipts_that_are_not_of_the_commit_are_not_written(world: PublishingWorld, change: dict[str, Any]) -> None:
    refused(world)
    log = world.log()
    head = log.find_head()
    applied = {name: Receipt(result="applied", rows=6) for name in ("audit", "table")}
    receipts = Receipts(version=0, outcome=head.outcome_sha, sinks=applied, published_at_ms=0, nonce="n")
    with pytest.raises(LogDamagedError, match="I18"):
        log.put_receipts(head, replace(receipts, **change))
    assert log.receipts(0) is None


def test_chain_of_a_version_that_is_not_there_is_damage(world: PublishingWorld) -> None:
    world.run("first")
    world.run("redo", redone=0)
    assert [world.log().find_root(version) for version in (0, 1)] == [0, 0]
    with pytest.raises(LogDamagedError, match="I20"):
        world.log().find_root(9)
