"""
Publishes a commit to the sinks outside the log, one sink after the other, and creates the receipts (PROTOCOL.md, 4.7).

Any process may publish a commit, and any number of processes may do so. Each call of :func:`publish` or :func:`skip` is one *publisher*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text, text_list
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.columns.recorded import fields
from airflow_provider_streamsem.connectors.sink import PublishingSink, SinkCommit
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import ConflictError, InvalidError, MarkerConflictError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, bind_existing
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.entries import (
    Committable,
    DataFile,
    Marker,
    Outcome,
    Receipt,
    Receipts,
)
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.state.layers import Tombstones, tombstones_of

logger = telemetry.log_of(__name__)


def publish(
    bound: BoundPipeline, head: ClosedHead, outcome: Outcome, *, is_own: bool, engine: Engine | None = None
) -> ClosedHead:
    """
    Publish the head's commit to all sinks outside the log, and create its receipts. The batch stays committed if this fails.

    :param is_own: whether the publishing run planned the commit. Only then may this publisher close the claims of other publishers (P5)
    :param engine: opens the Spark session in which a sink may merge rows; ``None`` if the caller has no Spark
    :raises UnavailableError: a sink did not report a result, or a publisher of another run has claimed the effects
    :raises PublishError: a sink refuses the batch. No run can plan until the batch is published or skipped
    """
    return _publish_or_skip(bound, head, outcome, may_close=is_own, engine=engine)


def _publish_or_skip(
    bound: BoundPipeline,
    head: ClosedHead,
    outcome: Outcome,
    *,
    may_close: bool,
    engine: Engine | None = None,
    skipped_sinks: tuple[str, ...] = (),
    reason: str = "",
) -> ClosedHead:
    """``skipped_sinks`` are those for which a user skips the commit (P7). The receipts store the ``reason``."""
    log = bound.log
    version, began_ms = outcome.version, log.clock.now_ms()
    _check_sinks(bound, outcome)
    sink_receipts: dict[str, Receipt] = {}
    markers = dict(outcome.markers)
    with telemetry.phase("publish", version=version):
        for name in outcome.publish:
            sink = publishing_sink(bound.pipeline, name)
            is_skipped = name in skipped_sinks
            batch = batch_of(bound, outcome, head.outcome_sha, name)
            batch = replace(
                batch,
                may_close_claims=may_close and (not skipped_sinks or is_skipped),
                spark=None
                if engine is None
                else partial(engine.publishing_session, later=bound.pipeline.spark_packages),
            )
            receipt = sink.skip(batch) if is_skipped else sink.publish(batch)
            if receipt is None and (stored := log.receipts(version)) is not None:
                return head.with_receipts(stored)
            if receipt is None and not is_skipped:
                marker = sink.marker(batch.pipeline_uuid, name)
                summary = "the sink's marker is above this version, but the log has no receipts of this version"
                raise batch.marker_conflict_error(summary, marker=None if marker is None else marker.version)
            receipt = receipt or Receipt(result="skipped", rows=0)  # no publisher can apply a version below the marker
            logger.info("version %d: sink %s: %s, %d rows", version, name, receipt.result, receipt.rows)
            sink_receipts[name] = receipt
            if sink.sets_marker and not batch.is_nothing:
                markers[name] = Marker(version=version, outcome=head.outcome_sha)
        now_ms = log.clock.now_ms()
        receipts = Receipts(
            version=version,
            outcome=head.outcome_sha,
            sinks=sink_receipts,
            markers=markers,
            published_at_ms=now_ms,
            duration_ms=max(0, now_ms - began_ms),
            reason=reason,
            nonce=log.clock.new_id(),
        )
        published, stored = log.put_receipts(head, receipts)
        telemetry.emit(telemetry.Published.from_receipts, stored)
    return published


def _check_sinks(bound: BoundPipeline, outcome: Outcome) -> None:
    """Check that the sinks to publish to are those of the spec with which the version was committed (W35)."""
    if outcome.spec == bound.spec:
        return
    stored = bound.log.config_of(outcome.spec)["sinks"]
    sinks = bound.pipeline.sinks
    others = [n for n in outcome.publish if n not in sinks or sinks[n].immutable_config() != stored.get(n)]
    if others:
        raise ConflictError(
            "the newest commit is not published yet to sinks that the given spec lacks, or replaces by others; nothing was changed",
            version=outcome.version,
            sinks=others,
        ).advising(
            "run the pipeline with the spec of that commit, or skip the version for these sinks with it: "
            f"streamsem skip OLD.toml {outcome.version} --sink NAME --reason TEXT. Then repeat this call."
        )


def batch_of(bound: BoundPipeline, outcome: Outcome, outcome_sha: str, name: str) -> SinkCommit:
    """
    Build the part of a commit that one sink publishes.

    For a reprocessing run, ``replaced`` has the current rows of its chain in this sink (P3). A *chain* is a batch and the reprocessing runs that replaced it,
    one after the other. For a rollback, it has the current rows of every chain that is rolled back, and there are no rows to add (P10).
    """
    log, back_to = bound.log, outcome.hidden.after
    if back_to is None:
        root, current_rows = _chain(log, outcome, name, log.removed_at(name, outcome))
        replaced = {} if current_rows is None else {root: current_rows}
    else:
        newest = log.closed_outcome(outcome.version - 1)
        root, replaced = outcome.version, rows_after(log, back_to, newest, [name])[name]
    return SinkCommit(
        pipeline_uuid=bound.record.pipeline_uuid,
        sink=name,
        version=outcome.version,
        outcome=outcome_sha,
        committable=outcome.sinks[name] if back_to is None else Committable(format="parquet", rows=0),
        schema=_checked_schema((outcome if back_to is None else newest).schemas.get(name, "")),
        root=root,
        replaced=replaced,
        tombstones=_tombstones(tombstones_of(outcome.state).get(name)),
        expected_marker=outcome.markers.get(name),
        log=log,
    )


def _tombstones(stored: Tombstones | None) -> list[DataFile]:
    return [] if stored is None else [file for layer in stored.layers for file in layer.files]


def rows_after(log: CommitLog, to: int, newest: Outcome, names: Sequence[str]) -> dict[str, dict[int, Committable]]:
    """
    Return the rows that a rollback to version ``to`` removes from each sink. Reads each version once.

    :param to: the version to which the rollback returns (exclusive)
    :param newest: the outcome of the last version (inclusive). Only versions in its lineage count
    :returns: sink → root → rows. The root is the first version of a chain, and the rows are those of its newest commit that was applied to the sink. Chains
        without rows are left out. No root is at or before ``to`` (W32)
    """
    found: dict[str, dict[int, Committable]] = {name: {} for name in names}
    roots: dict[int, int] = {}
    for version in chain(*log.remaining_versions(newest)):
        if version <= to:
            continue
        outcome = log.closed_outcome(version)
        replaced = outcome.replaces
        roots[version] = version if replaced is None else roots.get(replaced, replaced)
        applied = _applied_to(log, outcome) if outcome.committed and outcome.publish else ()
        for name in found.keys() & applied & outcome.sinks.keys():
            found[name][roots[version]] = outcome.sinks[name]
    return {name: {root: rows for root, rows in by_root.items() if rows.files} for name, by_root in found.items()}


def current_output(log: CommitLog, version: int, name: str, newest: Outcome) -> Committable | None:
    """
    Return the rows of a committed version's chain that one sink contains now. Reprocessing the version would replace them.

    Returns ``None`` if every commit of the chain was skipped for this sink, or is older than the alter that added the sink.
    """
    outcome, removed_at = log.closed_outcome(version), log.removed_at(name, newest)
    rows = _applied(log, outcome, name) if version > removed_at else None
    return rows or _chain(log, outcome, name, removed_at)[1]


def _chain(log: CommitLog, outcome: Outcome, name: str, removed_at: int) -> tuple[int, Committable | None]:
    """
    Return the first version of the chain, and the rows of the newest earlier commit of the chain that was applied to the sink; ``None`` if none was, or if it
    is older than ``removed_at``, the newest alter that removed the sink (-1: none).
    """
    current_rows = None
    while outcome.replaces is not None:
        outcome = log.closed_outcome(outcome.replaces)
        if outcome.version > removed_at:
            current_rows = current_rows or _applied(log, outcome, name)
    return outcome.version, current_rows


def _applied(log: CommitLog, outcome: Outcome, name: str) -> Committable | None:
    """Return the rows of a commit in one sink; ``None`` if the commit was not applied to the sink according to its receipts."""
    return outcome.sinks.get(name) if name in _applied_to(log, outcome) else None


def _applied_to(log: CommitLog, outcome: Outcome) -> set[str]:
    receipts = log.receipts(outcome.version)
    return (
        set() if receipts is None else {name for name, receipt in receipts.sinks.items() if receipt.result == "applied"}
    )


def _checked_schema(schema: str) -> str:
    """Return recorded schema JSON, after checking that it is valid. The text is ``""`` if no schema is recorded."""
    if schema:
        fields(schema)
    return schema


def publishing_sink(pipeline: Pipeline, name: str) -> PublishingSink:
    """Return the sink with this name, which must publish outside the log."""
    sink = pipeline.sinks.get(name)
    if sink is None or not sink.is_outside_log:
        accepted = sorted(name for name, sink in pipeline.sinks.items() if sink.is_outside_log)
        raise InvalidError(
            "the pipeline has no such sink outside the log; nothing was changed", given=name, accepted=accepted
        )
    return sink  # type: ignore[return-value]


def refuse_conflicts(pipeline: Pipeline, log: CommitLog, pipeline_uuid: str) -> None:
    """Check that the log has every commit that a marker of a sink names. Writes nothing."""
    for name in pipeline.sinks_outside_log:
        marker = publishing_sink(pipeline, name).marker(pipeline_uuid, name)
        stored = None if marker is None else log.outcome_and_sha256(marker.version)
        if marker is not None and (stored is None or not marker.is_of(marker.version, stored[1])):
            summary = "the sink's marker names a commit that this log does not have; nothing was deleted"
            raise MarkerConflictError(summary, sink=name, marker=marker.version, pipeline_uuid=pipeline_uuid)


@with_log_location
def skip(
    pipeline: Pipeline, version: int, *, sink: str | Sequence[str], reason: str, log: CommitLog | None = None
) -> Receipts:
    """
    Skip publishing one version to a sink (P7).

    Use it for a sink that always refuses the version, or if a publisher that no longer runs has claimed the version's effects. The skip writes no rows of the
    version. It sets the sink's marker to the version, so that a late publisher cannot apply the version. The other sinks of the version are published.

    :param version: the newest closed version, which must be a commit with pending publishes
    :param sink: the name of a sink, or a list of names
    :param reason: why the version is skipped; stored in the receipts
    :returns: the stored receipts. For a sink to which a publisher applied the version first, the result is ``applied``
    :raises InvalidError: the version is not the newest closed version, is not a commit, or has receipts; or the pipeline has no such sink
    :raises UnavailableError: a sink did not report a result. The version stays committed, and its receipts are not stored
    :raises PublishError: another sink of the version refuses it. The version stays committed, and its receipts are not stored
    """
    text("reason", reason)
    bound = bind_existing(pipeline, log or commit_log_at(pipeline.log))
    skipped_sinks = (sink,) if isinstance(sink, str) else text_list("sink", sink)
    for name in skipped_sinks:
        publishing_sink(pipeline, name)
    head = bound.log.confirm_head(bound.head)
    if isinstance(head, OpenHead) or head.outcome is None or not head.has_pending_publishes or head.closed != version:
        raise InvalidError(
            "only the newest commit can be skipped, and only while it has pending publishes; nothing was changed",
            given=version,
            pending=head.closed if head.has_pending_publishes else None,
        )
    if others := sorted({*skipped_sinks} - {*head.outcome.publish}):
        raise InvalidError(
            "the version has nothing to publish to these sinks; nothing was skipped",
            given=others,
            pending=list(head.outcome.publish),
        )
    _publish_or_skip(bound, head, head.outcome, may_close=True, skipped_sinks=skipped_sinks, reason=reason)
    stored = bound.log.receipts(version)
    assert stored is not None
    return stored
