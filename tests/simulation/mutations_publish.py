"""Mutations of the publish stage and of its sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.http.calls import Publisher
from airflow_provider_streamsem.connectors.http.effects import EffectLedger
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.pipeline.maintenance import vacuum
from airflow_provider_streamsem.pipeline.run import run
from airflow_provider_streamsem.pipeline.versions import publish
from airflow_provider_streamsem.protocol import procedures
from airflow_provider_streamsem.protocol.entries import Claim, Marker, Outcome, Receipt, Receipts
from airflow_provider_streamsem.protocol.view import ClosedHead
from tests.simulation.mutations import Mutation


def publisher_ignores_the_marker(patch: pytest.MonkeyPatch) -> None:
    real = database.set_marker

    def set_marker(*args: Any) -> bool:
        real(*args)
        return True

    patch.setattr(database, "set_marker", set_marker)


def marker_and_rows_are_two_transactions(patch: pytest.MonkeyPatch) -> None:
    real, set_marker = JdbcSink._commit, database.set_marker

    def commit(self: JdbcSink, connection: Any, markers: Any, batch: SinkCommit, new: Any, found: Any) -> bool:
        name = (batch.pipeline_uuid, batch.sink)
        with connection.begin():
            if not set_marker(connection, markers, name, new, found):
                return False
        database.read_marker(connection, markers, *name)
        return real(self, connection, markers, batch, new, found)

    patch.setattr(JdbcSink, "_commit", commit)
    patch.setattr(database, "set_marker", lambda *args: True)


def skip_does_not_set_the_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JdbcSink, "skip", lambda self, batch: Receipt(result="skipped", rows=0))


def receipts_ignore_the_marker_state(patch: pytest.MonkeyPatch) -> None:
    applied = staticmethod(lambda batch, state, detail=None: Receipt(result="applied", rows=batch.committable.rows))
    patch.setattr(JdbcSink, "receipt", applied)


def reprocess_replaces_no_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JdbcSink, "_delete_replaced", lambda self, connection, target, batch: None)


def reprocess_replaces_only_rows_of_the_replaced_version(patch: pytest.MonkeyPatch) -> None:
    real = publish.batch_of

    def batch_of(opened: Any, outcome: Any, sha: str, name: str) -> SinkCommit:
        batch = real(opened, outcome, sha, name)
        return batch if outcome.replaces is None else replace(batch, root=outcome.replaces)

    patch.setattr(publish, "batch_of", batch_of)


def empty_reprocess_keeps_the_old_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SinkCommit, "is_nothing", property(lambda self: not self.committable.files))


def receipts_are_created_before_publishing(patch: pytest.MonkeyPatch) -> None:
    real = publish._publish_or_skip

    def roll_forward(opened: Any, head: ClosedHead, outcome: Outcome, **kwargs: Any) -> ClosedHead:
        sinks = {name: Receipt(result="applied", rows=outcome.sinks[name].rows) for name in outcome.publish}
        own = Marker(version=outcome.version, outcome=head.outcome_sha)
        markers = {**outcome.markers, **{name: own for name in sinks if outcome.sinks[name].files}}
        receipts = Receipts(
            version=outcome.version, outcome=head.outcome_sha, sinks=sinks, markers=markers, published_at_ms=0, nonce=opened.log.clock.new_id()
        )  # fmt: skip
        opened.log.put_receipts(head, receipts)
        return real(opened, head, outcome, **kwargs)

    patch.setattr(publish, "_publish_or_skip", roll_forward)


def plan_does_not_wait_for_receipts(patch: pytest.MonkeyPatch) -> None:
    real = procedures.read_head

    def read_head(version: int) -> Any:
        head = yield from real(version)
        return replace(head, has_pending_publishes=False) if isinstance(head, ClosedHead) else head

    patch.setattr(procedures, "read_head", read_head)


def last_sink_is_not_published(patch: pytest.MonkeyPatch) -> None:
    real = publish.publishing_sink

    def publishing_sink(pipeline: Any, name: str) -> Any:
        sink = real(pipeline, name)
        if name != pipeline.sinks_outside_log[-1]:
            return sink
        return UnpublishedSink()

    class UnpublishedSink:
        sets_marker = True

        def publish(self, batch: SinkCommit) -> Receipt:
            return Receipt(result="applied", rows=batch.committable.rows)

        skip = publish

    patch.setattr(publish, "publishing_sink", publishing_sink)


def staged_rows_are_deleted_before_the_receipts(patch: pytest.MonkeyPatch) -> None:
    real = vacuum._SinkLocation.deletable

    def deletable(self: Any, version: int, lost: Any) -> Any:
        all_attempts = (attempt for _, attempt in sorted(self.sink.attempts(version)))
        return all_attempts if self._copies_rows else real(self, version, lost)

    patch.setattr(vacuum._SinkLocation, "deletable", deletable)


def claim_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    real = CommitLog.claim

    def claim(self: CommitLog, entry: Any) -> bool:
        real(self, entry)
        return True

    patch.setattr(CommitLog, "claim", claim)


def claim_nonce_is_the_run_key(patch: pytest.MonkeyPatch) -> None:
    def claim(self: EffectLedger, chunk: int, round: int) -> bool:
        batch = self._batch
        plan = self._log.plan(batch.version)
        assert plan is not None
        entry = Claim(version=batch.version, sink=batch.sink, chunk=chunk, round=round, nonce=plan.run_key)
        return self._log.claim(entry)

    patch.setattr(EffectLedger, "claim", claim)


def unknown_effects_are_recorded_as_done(patch: pytest.MonkeyPatch) -> None:
    real = EffectLedger.record

    def record(self: EffectLedger, chunk: int, round: int, *, done: int, unknown: int = 0, **kwargs: int) -> Any:
        return real(self, chunk, round, done=done + unknown, **kwargs)

    patch.setattr(EffectLedger, "record", record)


def effects_are_recorded_before_the_calls(patch: pytest.MonkeyPatch) -> None:
    real = Publisher._performed

    def performed(self: Publisher, endpoint: Any, at: Any) -> Any:
        self._effects.record(at.chunk, at.number, done=at.rows)
        return real(self, endpoint, at)

    patch.setattr(Publisher, "_performed", performed)


def skip_does_not_claim(patch: pytest.MonkeyPatch) -> None:
    def skip_without_claim(self: Publisher, at: Any) -> Any:
        return self._effects.record(at.chunk, at.number, done=0, skipped=at.rows)

    patch.setattr(Publisher, "_skip_or_mark_unknown", skip_without_claim)


def other_runs_close_claims(patch: pytest.MonkeyPatch) -> None:
    real = run.publish
    patch.setattr(run, "publish", lambda *args, is_own, **others: real(*args, is_own=True, **others))


def idempotency_key_changes_with_each_try(patch: pytest.MonkeyPatch) -> None:
    real = HttpSink.key
    tries = iter(range(10**9))
    patch.setattr(HttpSink, "key", lambda self, *args: f"{real(self, *args)}-{next(tries)}")


def at_most_once_call_is_repeated(patch: pytest.MonkeyPatch) -> None:
    real = Publisher._call_result

    def call_result(self: Publisher, endpoint: Any, call: Any) -> Any:
        result = real(self, endpoint, call)
        return real(self, endpoint, call) if result.kind == "unclear" else result

    patch.setattr(Publisher, "_call_result", call_result)


def later_rounds_use_the_first_claim(patch: pytest.MonkeyPatch) -> None:
    real = EffectLedger.claim
    patch.setattr(EffectLedger, "claim", lambda self, chunk, round: round > 0 or real(self, chunk, round))


def deferred_calls_are_recorded_as_done(patch: pytest.MonkeyPatch) -> None:
    real = EffectLedger.record

    def record(self: EffectLedger, chunk: int, round: int, *, done: int, left: int = 0, **kwargs: int) -> Any:
        return real(self, chunk, round, done=done + left, **kwargs)

    patch.setattr(EffectLedger, "record", record)


def own_run_never_closes_claims(patch: pytest.MonkeyPatch) -> None:
    """A retry of the commit's own run waits for the claims of ended publishers, like other runs."""
    original = run.publish

    def publish(*args: Any, is_own: bool, **others: Any) -> Any:
        return original(*args, is_own=False, **others)

    patch.setattr(run, "publish", publish)


PUBLISH_MUTATIONS = (
    Mutation(publisher_ignores_the_marker, "I18", "tables", first=129),
    Mutation(marker_and_rows_are_two_transactions, "I18", "tables"),
    Mutation(skip_does_not_set_the_marker, "I15|I18|marker", "tables", first=145),
    Mutation(receipts_ignore_the_marker_state, "receipts", "tables", first=385),
    Mutation(reprocess_replaces_no_rows, "I18", "tables"),
    Mutation(reprocess_replaces_only_rows_of_the_replaced_version, "I18|failed", "tables", first=321),
    Mutation(empty_reprocess_keeps_the_old_rows, "I18", "tables", first=193),
    Mutation(receipts_are_created_before_publishing, "I15|I18|receipts", "tables"),
    Mutation(plan_does_not_wait_for_receipts, "before the receipts|I2", "tables"),
    Mutation(last_sink_is_not_published, "I15|I18", "tables"),
    Mutation(staged_rows_are_deleted_before_the_receipts, "staged file", "effects", first=123),
    Mutation(claim_is_not_checked, "I17", "effects"),
    Mutation(own_run_never_closes_claims, "did not end", "effects"),
    Mutation(claim_nonce_is_the_run_key, "I17", "effects"),
    Mutation(unknown_effects_are_recorded_as_done, "(receipts|effects) are wrong", "effects"),
    Mutation(effects_are_recorded_before_the_calls, "(receipts|effects) are wrong", "effects"),
    Mutation(skip_does_not_claim, "(receipts|effects) are wrong", "effects", first=251),
    Mutation(other_runs_close_claims, "P5", "effects"),
    Mutation(idempotency_key_changes_with_each_try, "performed twice", "effects"),
    Mutation(at_most_once_call_is_repeated, "I17", "effects"),
    Mutation(later_rounds_use_the_first_claim, "I17", "effects"),
    Mutation(deferred_calls_are_recorded_as_done, "(receipts|effects) are wrong", "effects"),
)
