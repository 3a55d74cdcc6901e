"""Claims and rounds: who may make a call, what a receipt counts as unknown, and when the staged rows are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.http.effects import EffectLedger
from airflow_provider_streamsem.errors import (
    LogDamagedError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.versions.publish import batch_of, skip
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.http.endpoints import Recorder, serving
from tests.connectors.http.pushing_fixture import (
    claims,
    new_fixture,
    pushing,
    rate_limited,
    receipt,
    run_at,
)
from tests.pipeline_fixture import die


def test_late_publisher_makes_no_calls(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline, drain=True)
    opened, seen = bind(pipeline, fixture.log()), recorder.ids()
    vacuum(pipeline, log=opened.log)
    assert not [*(fixture.root / "staged").rglob("*.parquet")], "vacuum deleted the staged rows"
    stored = opened.log.outcome_and_sha256(0)
    assert stored is not None
    sink = pipeline.sinks["push"]
    for _ in range(3):
        assert sink.publish(batch_of(opened, *stored, "push")) == receipt(fixture)  # type: ignore[attr-defined]
    assert recorder.ids() == seen == fixture.expected


def test_staged_rows_of_a_version_published_days_later_are_vacuumed_after_publishing(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 403
    with pytest.raises(PublishError):
        fixture.run("a", pipeline=pipeline)
    days_later = ManualClock(1_700_000_000_000 + 3 * 86_400_000)
    assert vacuum(pipeline, log=CommitLog(fixture.store, days_later)).attempts == ()
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    assert len(vacuum(pipeline, log=CommitLog(fixture.store, days_later)).attempts) == 1
    assert not [*(fixture.root / "staged").rglob("*.parquet")]


def test_released_round_that_a_live_publisher_claimed_is_not_closed_as_unknown(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The run that committed waits. Another run continues with the rest.

    It has not recorded its result when the first run continues.
    """
    fixture = new_fixture(tmp_path)
    recorder.reply_to = rate_limited(recorder)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=6)

    class WakingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if seconds > 5:
                with monkeypatch.context() as stuck:
                    stuck.setattr(EffectLedger, "record", lambda *args, **named: die())
                    with pytest.raises(Crash):
                        fixture.run("b", pipeline=pipeline)

    with pytest.raises(UnavailableError, match="another publisher has claimed"):
        run_at(fixture, WakingClock(), pipeline)
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["unknown"]) == ("unknown", 3, 3)


@pytest.mark.parametrize("changed", [{"left": 9}, {"left": 0}, {"done": -3, "left": 5}])
def test_effects_that_contradict_the_records_of_their_round_are_reported_as_log_damage(
    changed: dict[str, int], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: (429, {"Retry-After": "999"}) if call.ids == [1] else 200
    with monkeypatch.context() as forged:
        real = EffectLedger.record
        forged.setattr(EffectLedger, "record", lambda self, *at, **named: real(self, *at, **{**named, **changed}))
        with pytest.raises((LogDamagedError, UnavailableError)):
            fixture.run("a", pipeline=pipeline)
    with pytest.raises(LogDamagedError, match="do not add up to its number of records"):
        fixture.run("a", pipeline=pipeline)


def test_unreachable_endpoint_costs_no_claim_and_no_record(tmp_path: Path) -> None:
    fixture, recorder = new_fixture(tmp_path), Recorder()
    with serving(recorder):
        pass
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    with pytest.raises(UnavailableError, match="no call was made"):
        fixture.run("a", pipeline=pipeline)
    assert claims(fixture) == []
    with serving(recorder):
        fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    assert receipt(fixture).result == "applied"


@pytest.mark.parametrize(("reply", "error"), [(500, UnavailableError), (302, PublishError)])
def test_endpoint_that_always_fails_costs_at_most_one_chunk_per_retry(
    reply: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    recorder.reply_to = lambda call: reply
    with pytest.raises(error, match="are not claimed"):
        fixture.run("a", pipeline=pipeline)
    assert len(claims(fixture)) == 1
    assert len(recorder.received) == 2
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    actual = receipt(fixture)
    assert (actual.rows, actual.detail["unknown"], actual.detail["refused"]) == (4, 2, 0)
    assert max(recorder.ids().values()) == 1


@pytest.mark.parametrize(("reply", "error"), [(500, UnavailableError), (302, PublishError)])
def test_run_fails_if_the_only_chunk_of_a_batch_had_no_clear_reply(
    reply: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=100)
    recorder.reply_to = lambda call: reply
    with pytest.raises(error):
        fixture.run("a", pipeline=pipeline)
    fixture.run("a", pipeline=pipeline)
    assert (receipt(fixture).result, receipt(fixture).detail["unknown"]) == ("unknown", 6)


def test_skipped_batch_records_the_known_results_of_each_chunk(tmp_path: Path, recorder: Recorder) -> None:
    for choice, expected in (
        ("at_most_once", {"chunks": 3, "refused": 0, "unknown": 0, "skipped": 6}),
        ("at_least_once", {"chunks": 3, "refused": 0, "unknown": 6, "skipped": 0}),
    ):
        fixture = new_fixture(tmp_path / choice)
        pipeline = pushing(fixture, recorder, delivery=choice)
        recorder.reply_to = lambda call: 403
        with pytest.raises(PublishError):
            fixture.run("a", pipeline=pipeline)
        skip(pipeline, 0, sink="push", reason="the endpoint was removed", log=fixture.log())
        recorder.reply_to = lambda call: 200
        fixture.run("b", pipeline=pipeline)
        assert recorder.calls == []
        actual = receipt(fixture)
        assert (actual.rows, actual.detail) == (0, expected)
        assert actual.result == ("skipped" if choice == "at_most_once" else "unknown")


def test_claim_of_a_deleted_run_is_closed_as_unknown_by_streamsem_skip(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")

    with monkeypatch.context() as dying:
        dying.setattr(EffectLedger, "record", lambda *args, **named: die())
        with pytest.raises(Crash):
            fixture.run("a", pipeline=pipeline)
    with pytest.raises(UnavailableError, match="another publisher has claimed"):
        fixture.run("b", pipeline=pipeline)
    skip(pipeline, 0, sink="push", reason="its task was deleted", log=fixture.log())
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["unknown"], actual.detail["skipped"]) == ("unknown", 0, 2, 4)
