"""Finds the head for work that must not disturb runs: a compaction, an erasure and an expiry (PROTOCOL.md, W40, W43 and W46)."""

from __future__ import annotations

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import HeldVersionError, OpenVersionError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, check_immutable_config
from airflow_provider_streamsem.pipeline.versions.commit import settle
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead


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


def refuse_pending_removal(log: CommitLog, effect: str) -> None:
    """
    Refuse work that replaces files of a table while a reprocessing run or a rollback has not removed its files yet.

    Such a version has checked before its plan that the table has these files. Without them, its publish fails.

    :param effect: what is true now, as the second part of an error's summary
    """
    head = log.newest_head()
    if isinstance(head, OpenHead):
        plan = head.plan
    elif head.has_pending_publishes:
        plan = log.closed_version(head.closed)[0]
    else:
        return
    if plan.work.is_held and isinstance(head, OpenHead):
        raise HeldVersionError(f"the open version is held; {effect}", version=plan.version)
    if plan.work.hidden.commits or plan.work.hidden.after is not None:
        summary = f"a {plan.work.name} is not published yet, and must remove files from tables; {effect}"
        raise OpenVersionError(summary, version=plan.version)
