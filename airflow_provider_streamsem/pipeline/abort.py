"""Aborts an open version, for example one that no attempt can stage."""

from __future__ import annotations

from airflow_provider_streamsem.arguments import integer, text
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.outcomes import abort_outcome
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord
from airflow_provider_streamsem.protocol.view import OpenHead


def abort(log: CommitLog, record: PipelineRecord, version: int, *, reason: str) -> Outcome:
    """
    Close the open version as an abort (W22). No rows of the version become visible. If the version is a batch, the next run plans its range again.

    :param version: the open version
    :param reason: why the version is aborted; stored in the outcome
    :returns: the stored outcome. It is a *commit* if an attempt committed the version first
    :raises InvalidError: the version is not open, or an argument is not valid
    """
    integer("version", version, least=0)
    text("reason", reason)
    head = log.newest_head()
    if not isinstance(head, OpenHead) or head.plan.version != version:
        raise InvalidError(
            "only the open version can be aborted",
            given=version,
            open=head.plan.version if isinstance(head, OpenHead) else None,
            newest_closed=head.closed,
            has_pending_publishes=head.has_pending_publishes,
        ).advising(
            "give the version in `open`. If it is None, no version is open; to skip a pending publish, use `streamsem skip`."
        )
    return log.decide(head, abort_outcome(log, head, reason=reason, initial_state=record.initial_state))[1]
