"""Tests of gates: a batch that does not pass them fails, is held until a user commits or aborts it, or is committed with a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Dedup, Gate, alter, rollback
from airflow_provider_streamsem.errors import (
    DataError,
    HeldByGateError,
    HeldVersionError,
    InvalidError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.review import commit_held
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json
from airflow_provider_streamsem.pipeline.spec.templates import refuse_secrets
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture

HELD = 2


class GatedFixture(PublishingFixture):
    """A pipeline with a gate that holds a batch with quarantined records."""

    gate = Gate(max_quarantined=0, on_failure="hold")

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"gates": [self.gate], **changes})


def prepared(root: Path) -> GatedFixture:
    """Versions 0 and 1 are committed. The next batch has a bad record."""
    fixture = GatedFixture(root)
    for number in range(2):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.arrive(1, bad_lines=1)
    return fixture


@pytest.fixture
def fixture(tmp_path: Path) -> GatedFixture:
    return prepared(tmp_path)


def held(fixture: GatedFixture, run_key: str = "held", **named: Any) -> HeldByGateError:
    with pytest.raises(HeldByGateError, match="does not pass a gate") as caught:
        fixture.run(run_key, **named)
    return caught.value


def committed(fixture: GatedFixture, version: int = HELD, *, store: Store | None = None, **named: Any) -> Any:
    return commit_held(fixture.pipeline(), version, log=fixture.log(store), **named)


def aborted(fixture: GatedFixture, version: int = HELD) -> None:
    log = fixture.log()
    record = log.read_pipeline()
    assert record is not None
    abort(log, record, version, reason="the record is corrected")


def test_held_batch_is_invisible_everywhere_until_a_user_commits_it(fixture: GatedFixture) -> None:
    before = fixture.visible(), fixture.rows("table")
    error = held(fixture)
    assert not error.retryable
    assert error.fields["found"] == ["1 of 4 records are quarantined, and max_quarantined is 0"]
    assert (fixture.visible(), fixture.rows("table")) == before
    assert fixture.verdict().violations == []
    result = committed(fixture)
    assert (result.version, result.counts["quarantined"], result.counts["written.out"]) == (HELD, 1, 3)
    outcome = fixture.log().closed_outcome(HELD)
    assert [failed.holds for failed in outcome.failed_gates] == [True]
    fixture.check()


def test_task_that_is_cleared_after_the_commit_returns_the_result_and_announces_it_once(fixture: GatedFixture) -> None:
    held(fixture)
    committed(fixture)
    result = fixture.run("held")
    assert (result.status, result.version, result.counts["read"]) == ("committed", HELD, 4)
    assert fixture.unannounced() == []
    fixture.check()


def test_next_run_announces_a_held_version_that_was_committed(fixture: GatedFixture) -> None:
    held(fixture)
    committed(fixture)
    fixture.arrive(1)
    result = fixture.run("next")
    assert [version.version for version in result.completed] == [HELD]
    fixture.check()


def test_records_of_an_aborted_batch_are_read_again(fixture: GatedFixture) -> None:
    held(fixture)
    aborted(fixture)
    error = held(fixture, "again")
    assert error.fields["version"] == HELD + 1
    with pytest.raises(InvalidError, match="was aborted; nothing was committed"):
        committed(fixture)
    aborted(fixture, HELD + 1)
    fixture.run("without gates", pipeline=fixture.pipeline(gates=[]))
    fixture.check()


WRITERS: dict[str, Callable[[GatedFixture], object]] = {
    "retry": lambda fixture: fixture.run("held"),
    "other run": lambda fixture: fixture.run("other"),
    "run without gates": lambda fixture: fixture.run("other", pipeline=fixture.pipeline(gates=[])),
    "reprocessing run": lambda fixture: fixture.run("reprocess", reprocessed=0),
    "submitted run": lambda fixture: plan_run(fixture.pipeline(), run_key="held", log=fixture.log()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_run_closes_a_held_batch_or_stages_it_again(fixture: GatedFixture, writer: str) -> None:
    held(fixture)
    before = {stat.key for stat in fixture.store.list("") if not stat.key.startswith("specs/")}
    with pytest.raises(HeldVersionError):
        WRITERS[writer](fixture)
    assert {stat.key for stat in fixture.store.list("") if not stat.key.startswith("specs/")} == before
    committed(fixture)
    fixture.check()


def test_vacuum_keeps_the_files_of_a_held_batch(fixture: GatedFixture) -> None:
    held(fixture)
    vacuum(fixture.pipeline(), log=fixture.log())
    committed(fixture)
    fixture.check()


def test_rollback_is_refused_until_the_held_batch_is_aborted(fixture: GatedFixture) -> None:
    held(fixture)
    with pytest.raises(HeldByGateError, match="no rollback was planned"):
        rollback(fixture.pipeline(), 0, log=fixture.log())
    with pytest.raises(HeldByGateError, match="no alter was planned"):
        alter(fixture.pipeline(dedup=Dedup(keys=["id"], rows=10)), log=fixture.log())
    aborted(fixture)
    rollback(fixture.pipeline(), 0, log=fixture.log())
    fixture.run("rest", drain=True, pipeline=fixture.pipeline(gates=[]))
    fixture.check()


def test_attempt_that_gates_hold_after_a_user_has_committed_another_one_is_no_failure(fixture: GatedFixture) -> None:
    """Both processes stage the version. The user commits the attempt of the second one before the first one has finished."""
    is_first = True

    def first_held_then_committed(step: str) -> None:
        nonlocal is_first
        if step == "staged" and is_first:
            is_first = False
            held(fixture)
            committed(fixture)

    result = fixture.run("held", engine=RowsEngine(first_held_then_committed))
    assert result.version == HELD
    fixture.run("rest", drain=True, pipeline=fixture.pipeline(gates=[]))
    fixture.check()


def test_drain_continues_after_the_held_batch_was_committed(tmp_path: Path) -> None:
    fixture = GatedFixture(tmp_path)
    for bad_lines in (0, 0, 1, 0, 0):
        fixture.arrive(1, bad_lines=bad_lines)
    error = held(fixture, "drain", drain=True)
    assert fixture.visible() == Counter(range(6))
    result = committed(fixture, error.fields["version"])
    assert result.version == error.fields["version"]
    assert committed(fixture, error.fields["version"]) == result
    result = fixture.run("drain", drain=True)
    assert (result.counts["read"], result.batches) == (16, 3)
    assert fixture.unannounced() == []
    fixture.check()


def test_reprocessing_run_is_held_and_replaces_the_rows_after_its_commit(fixture: GatedFixture) -> None:
    fixture.run("first", pipeline=fixture.pipeline(gates=[]))
    error = held(fixture, "again", reprocessed=HELD)
    assert fixture.opened().head == HELD
    committed(fixture, error.fields["version"])
    assert {file.version for file in fixture.opened().files()} == {0, 1, HELD + 1}
    fixture.check()


def test_batch_that_fails_a_gate_stays_open_and_the_next_run_reads_it_again(fixture: GatedFixture) -> None:
    strict = fixture.pipeline(gates=[Gate(sink="table", min_rows=4, on_failure="fail")])
    with pytest.raises(DataError, match="table has 3 rows, and min_rows is 4") as caught:
        fixture.run("a", pipeline=strict)
    assert not caught.value.retryable
    assert fixture.opened().head == 1
    with pytest.raises(InvalidError, match="not held"):
        committed(fixture)
    fixture.run("a", pipeline=fixture.pipeline(gates=[]))
    fixture.check()


def test_warning_is_logged_and_recorded_with_the_version(fixture: GatedFixture, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    fixture.run("a", pipeline=fixture.pipeline(gates=[Gate(sink="out", max_rows=2, on_failure="warn")]))
    assert "version 2 does not pass a gate: out has 3 rows, and max_rows is 2" in caplog.text
    outcome = fixture.log().closed_outcome(HELD)
    assert [(failed.found, failed.holds) for failed in outcome.failed_gates] == [
        ("out has 3 rows, and max_rows is 2", False)
    ]
    fixture.check()


def test_batch_that_no_gate_holds_is_not_committed_on_request(fixture: GatedFixture) -> None:
    fixture.run("a", pipeline=fixture.pipeline(gates=[]))
    with pytest.raises(InvalidError, match="is not held"):
        committed(fixture)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)])
def test_held_batch_is_committed_once_after_a_fault_at_any_request(tmp_path: Path, fault: Fault) -> None:
    at, is_done = 0, False
    while not is_done:
        fixture = prepared(tmp_path / str(at))
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            with suppress(HeldByGateError):
                fixture.run("held", store=store)
            assert fixture.visible() == Counter(range(6))
            committed(fixture, store=store)
        is_done, at = not store.reached, at + 1
        if fixture.opened().head < HELD:
            assert fixture.visible() == Counter(range(6)), "a held batch is visible"
            held(fixture)
        committed(fixture)
        fixture.run("held")
        fixture.check()


@pytest.mark.slow
@pytest.mark.parametrize("other", ["commit", "abort", "run", "run without gates"])
def test_concurrent_writers_never_lose_or_double_a_record_of_a_held_batch(tmp_path: Path, other: str) -> None:
    at, is_done = 0, False
    while not is_done:
        fixture = prepared(tmp_path / str(at))
        others = {
            "commit": partial(committed, fixture),
            "abort": partial(aborted, fixture),
            "run": partial(fixture.run, "concurrent"),
            "run without gates": partial(fixture.run, "concurrent", pipeline=fixture.pipeline(gates=[])),
        }

        def quietly(act: Callable[[], object] = others[other]) -> None:
            with suppress(StreamsemError):
                act()

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(StreamsemError):
            with suppress(HeldByGateError):
                fixture.run("held", store=store)
            committed(fixture, store=store)
        is_done, at = not store.reached, at + 1
        while fixture.visible() != fixture.expected:
            head = fixture.log().newest_head()
            plan = getattr(head, "plan", None)
            attempts = [] if plan is None else [each.attempt_id for each in fixture.log().find_staged(head)]  # type: ignore[arg-type]
            if attempts:
                commit_held(fixture.pipeline(), plan.version, attempt_id=attempts[0], log=fixture.log())
            else:
                with suppress(HeldByGateError):
                    fixture.run("rest")
        fixture.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no condition"),
        ({"max_quarantined": 2}, "max_quarantined must be a number from 0 to 1"),
        ({"max_null": {"user": "half"}}, "max_null of user"),
        ({"max_null": ["user"]}, "must map columns"),
        ({"unique": ["id"]}, "unique"),
        ({"unique": [[]]}, "no column"),
        ({"freshness_s": {"at": 0}}, "freshness_s of at"),
        ({"check": "a function"}, "check"),
        ({"min_rows": -1}, "min_rows"),
        ({"min_rows": 1, "on_failure": "drop"}, "on_failure"),
    ],
)
def test_gate_that_is_not_valid_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Gate(**arguments)


def test_gates_and_rules_survive_json_and_refuse_templates_and_unknown_sinks(fixture: GatedFixture) -> None:
    gates = [Gate(max_null={"id": 0.001}, unique=[["id"]], freshness_s={"at": 60}, sql="SELECT true", on_failure="hold"), {"min_rows": 1}]  # fmt: skip
    pipeline = fixture.pipeline(gates=gates, expect={"a secret token is set": {"predicate": "token <> ''"}})
    assert from_json(pipeline.without_transform()) == pipeline
    assert pipeline.gates[1] == Gate(min_rows=1)
    with pytest.raises(InvalidError, match="names a sink that the pipeline does not have"):
        fixture.pipeline(gates=[Gate(sink="other", min_rows=1)])
    for changes in ({"gates": [Gate(sql="SELECT {{ ds }}")]}, {"expect": {"rule": {"predicate": "x = {{ ds }}"}}}):
        with pytest.raises(InvalidError, match="contains a template"):
            refuse_secrets(fixture.pipeline(**changes))
