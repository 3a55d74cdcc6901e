"""Finds the head for work that must not disturb runs: a compaction and an expiry (PROTOCOL.md, W40 and W43)."""

from __future__ import annotations

from airflow_provider_streamsem.errors import OpenVersionError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, check_immutable_config
from airflow_provider_streamsem.pipeline.versions.commit import settle
from airflow_provider_streamsem.protocol.view import ClosedHead


def idle_head(bound: BoundPipeline, work: str, *, closes_staged: bool) -> ClosedHead:
    """
    Return the newest head, in which no version is open and no publish is pending.

    An open version is closed as by :func:`settle`, or refused. ``closes_staged``: whether to close an open rewrite too.
    """
    log = bound.log
    head, _ = settle(bound, log.newest_head(), work, closes_staged=closes_staged)
    if head.has_pending_publishes:
        raise OpenVersionError(f"a commit is not published yet, so no {work} was planned", version=head.closed)
    if head.binding_spec is not None:
        check_immutable_config(bound.pipeline, log, head.binding_spec, version=max(head.closed, 0))
    return head
