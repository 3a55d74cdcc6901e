"""Finds the head for work that must not disturb runs: a compaction and an expiry (PROTOCOL.md, W40 and W43)."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_streamsem.errors import HeldVersionError, OpenVersionError
from airflow_provider_streamsem.pipeline.opening import OpenPipeline, check_immutable_config
from airflow_provider_streamsem.pipeline.outcomes import outcome_without_records
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead


def idle_head(opened: OpenPipeline, work: str, *, closes: Collection[str]) -> ClosedHead:
    """
    Return the newest head, in which no version is open and no publish is pending.

    :param work: the kind of work, for errors
    :param closes: the kinds of open versions that this function closes: ``rewrite`` or ``expire``
    :raises OpenVersionError: another version is open, or its publishes are pending
    :raises HeldVersionError: the open version is held
    :raises ConflictError: the pipeline was altered since, so its immutable fields differ (W35)
    """
    log = opened.log
    head: Head = log.newest_head()
    if isinstance(head, OpenHead) and head.plan.kind in closes:
        proposed = outcome_without_records(opened, head)
        assert proposed is not None  # a rewrite and an expiry read no records
        head, outcome = log.decide(head, proposed)
        log.write_segments(outcome.version, [(outcome, head.outcome_sha)])
    if isinstance(head, OpenHead) and head.plan.held:
        raise HeldVersionError(f"the open version is held; no {work} was planned", version=head.plan.version)
    if isinstance(head, OpenHead):
        raise OpenVersionError(f"a version is open, so no {work} was planned", version=head.plan.version)
    if head.has_pending_publishes:
        raise OpenVersionError(f"a commit is not published yet, so no {work} was planned", version=head.closed)
    if head.binding_spec is not None:
        check_immutable_config(opened.pipeline, log, head.binding_spec, version=max(head.closed, 0))
    return head
