"""From a decided commit to its receipts: sinks outside the log, one after the other (PROTOCOL.md, 4.7). Anyone may do it, any number of times."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text, words
from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.opening import Opened, open_pipeline
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engines.schema import fields
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, MarkerConflictError
from airflow_provider_streamsem.protocol.entries import (
    Claim,
    Committable,
    Effects,
    Marker,
    Outcome,
    Receipt,
    Receipts,
)
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sinks.contract import Batch, PublishingSink

logger = telemetry.log_of(__name__)


class LoggedEffects:
    """The effects of one sink for one version, as the log has them (:class:`airflow_provider_streamsem.sinks.contract.EffectLedger`)."""

    def __init__(self, log: CommitLog, version: int, sink: str, *, may_close: bool) -> None:
        self._log, self._version, self._sink = log, version, sink
        self._nonce = log.clock.new_id()  # minted at every entry to publishing (P4)
        self.clock = log.clock
        self.may_close = may_close

    def claim(self, part: int, round: int) -> bool:
        """Whether this very entry, and no other ever, may perform the effects of one round of a part."""
        wanted = Claim(version=self._version, sink=self._sink, part=part, round=round, nonce=self._nonce)
        return self._log.claim(wanted)

    def known(self, part: int, round: int) -> Effects | None:
        """What became of one round of a part, where an entry recorded it."""
        return self._log.effects(self._version, self._sink, part, round)

    def record(
        self, part: int, round: int, *, done: int, refused: int = 0, unknown: int = 0, skipped: int = 0, left: int = 0
    ) -> Effects:
        """Record what became of one round of a part; returns what is stored."""
        effects = Effects(
            version=self._version,
            sink=self._sink,
            part=part,
            done=done,
            refused=refused,
            unknown=unknown,
            skipped=skipped,
            left=left,
            round=round,
            nonce=self._nonce,
        )
        return self._log.put_effects(effects)


def publish(opened: Opened, head: Head, *, is_own: bool) -> Head:
    """
    Bring the head's commit to its receipts.

    :param is_own: whether the commit is of the run that publishes: only then may claims that others made be closed (P5)
    :returns: the head that owes nothing
    :raises UnavailableError: a sink gave no clear answer, or the effects are claimed by an entry of another run; the batch stays decided
    :raises PublishError: a sink refuses the batch; it stays decided, and later runs wait for it
    """
    return _roll_forward(opened, head, may_close=is_own)


def _roll_forward(
    opened: Opened, head: Head, *, may_close: bool, given_up: tuple[str, ...] = (), reason: str = ""
) -> Head:
    """
    :param given_up: the sinks that a user gives the commit up for
    """
    log, outcome = opened.log, head.outcome
    assert outcome is not None
    version, began_ms = outcome.version, log.clock.now_ms()
    answers: dict[str, Receipt] = {}
    markers = dict(outcome.markers)
    with telemetry.phase("publish", version=version):
        for name in outcome.publish:
            sink = publishing(opened.pipeline, name)
            effects = LoggedEffects(log, version, name, may_close=may_close and (not given_up or name in given_up))
            batch = batch_of(opened, outcome, head.outcome_sha, name)
            receipt = (sink.skip if name in given_up else sink.publish)(batch, effects)
            if receipt is None and (stored := log.receipts(version)) is not None:
                return head.published(stored)
            if receipt is None and name not in given_up:
                found = sink.marker(batch.pipeline_uuid, name)
                truth = "the sink's marker is above this version, which has no receipts"
                raise batch.conflict(truth, marker=None if found is None else found.version)
            receipt = receipt or Receipt(result="skipped", rows=0)  # nobody can apply a version below the marker
            logger.info("version %d: sink %s: %s, %d rows", version, name, receipt.result, receipt.rows)
            answers[name] = receipt
            if sink.delivery == "exactly_once" and not batch.is_nothing:
                markers[name] = Marker(version=version, outcome=head.outcome_sha)
        now_ms = log.clock.now_ms()
        receipts = Receipts(
            version=version,
            outcome=head.outcome_sha,
            sinks=answers,
            markers=markers,
            published_at_ms=now_ms,
            duration_ms=max(0, now_ms - began_ms),
            reason=reason,
            nonce=log.clock.new_id(),
        )
        published, stored = log.put_receipts(head, receipts)
        telemetry.tell(telemetry.Published.by, stored)
    return published


def batch_of(opened: Opened, outcome: Outcome, outcome_sha: str, name: str) -> Batch:
    """What one sink has to publish of a commit; of a redo, with what stands there of its chain (P3)."""
    root, stands = _chain(opened.log, outcome, name)
    return Batch(
        pipeline_uuid=opened.record.pipeline_uuid,
        sink=name,
        version=outcome.version,
        outcome=outcome_sha,
        committable=outcome.sinks[name],
        schema=_plain(outcome.schemas.get(name, "")),
        root=root,
        replaced=stands,
        expected_marker=outcome.markers.get(name),
    )


def standing(log: CommitLog, version: int, name: str) -> Committable | None:
    """What is in one sink of a committed version now, which a redo of it would replace; ``None`` where all of its chain was skipped."""
    outcome = _outcome(log, version)
    return _applied(log, outcome, name) or _chain(log, outcome, name)[1]


def _chain(log: CommitLog, outcome: Outcome, name: str) -> tuple[int, Committable | None]:
    """The version at the root of a redo's chain, and what is in one sink of the commits that the redo replaces."""
    stands = None
    while outcome.replaces is not None:
        outcome = _outcome(log, outcome.replaces.version)
        stands = stands or _applied(log, outcome, name)
    return outcome.version, stands


def _outcome(log: CommitLog, version: int) -> Outcome:
    found = log.outcome(version)
    if found is None:
        raise LogDamagedError("a redo replaces a version without outcome", invariant="I20", version=version)
    return found[0]


def _applied(log: CommitLog, outcome: Outcome, name: str) -> Committable | None:
    """The rows of a commit in one sink, where they were applied."""
    receipts = log.receipts(outcome.version)
    receipt = None if receipts is None else receipts.sinks.get(name)
    return outcome.sinks.get(name) if receipt is not None and receipt.result == "applied" else None


def _plain(schema: str) -> str:
    if schema:
        fields(schema)
    return schema


def publishing(pipeline: Pipeline, name: str) -> PublishingSink:
    """A sink by its name that publishes."""
    sink = pipeline.sinks.get(name)
    if sink is None or not sink.publishes:
        accepted = sorted(name for name, sink in pipeline.sinks.items() if sink.publishes)
        raise InvalidError("the pipeline has no such sink outside the log", given=name, accepted=accepted)
    return sink  # type: ignore[return-value]


def refuse_conflicts(pipeline: Pipeline, log: CommitLog, pipeline_uuid: str) -> None:
    """
    Look whether the log has the commits that the sinks' markers name.

    :raises MarkerConflictError: it does not: it was restored from an older copy, or has two copies
    :raises MarkerLostError: a sink says that it was restored
    """
    for name in pipeline.publishes:
        found = publishing(pipeline, name).marker(pipeline_uuid, name)
        stored = None if found is None else log.outcome(found.version)
        if found is not None and (stored is None or not found.is_of(found.version, stored[1])):
            what = "the sink's marker is of a commit that this log does not have; nothing was deleted"
            raise MarkerConflictError(what, sink=name, marker=found.version, pipeline_uuid=pipeline_uuid)


@on_its_log
def skip(
    pipeline: Pipeline, version: int, *, sink: str | Sequence[str], reason: str, log: CommitLog | None = None
) -> Receipts:
    """
    Give up publishing one version to a sink, which refuses it for ever, or whose effects are claimed by an entry that is gone (P7).

    No rows of the version are there by this; the sink's marker passes it, so that a publisher that wakes late cannot apply it. Other sinks of the version are
    published as always.

    :param sink: the name of a sink, or of several
    :returns: the receipts that are stored: *applied* where a publisher was faster, which is then what happened
    :raises InvalidError: the version is not the newest, is not a commit, or has its receipts
    """
    text("reason", reason)
    opened = open_pipeline(pipeline, log or open_commit_log(pipeline.log))
    given_up = (sink,) if isinstance(sink, str) else words("sink", sink)
    for name in given_up:
        publishing(pipeline, name)
    head = opened.log.confirm_head(opened.head)
    if not head.owes or head.closed != version:
        raise InvalidError(
            "only a commit that waits for its receipts can be skipped",
            given=version,
            waiting=head.closed if head.owes else None,
        )
    _roll_forward(opened, head, may_close=True, given_up=given_up, reason=reason)
    stored = opened.log.receipts(version)
    assert stored is not None
    return stored
