"""Aborts an open version, for example one that no attempt can stage."""

from __future__ import annotations

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    LogDamagedError,
    SourceChangedError,
    StageError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.versions.commit import abort_outcome, close
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord, Plan
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.verbs import VERSION


def abort(log: CommitLog, record: PipelineRecord, version: int, *, reason: str) -> Outcome:
    """
    Close the open version as an abort (W22). No rows of the version become visible. If the version is a batch, the next run plans its range again.

    Return the stored outcome. It is a *commit* if an attempt committed the version first.
    """
    VERSION.checked(version)
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
    return close(log, head, abort_outcome(log, head, reason=reason, initial_state=record.initial_state))[1]


def advise_abort(error: Exception, plan: Plan) -> None:
    """
    Add to the advice of an error of an attempt how to abort the open version, unless the error concerns other versions or the process.

    Otherwise a version that no run can stage would block the pipeline: each run must close it before it plans another one (W9).
    """
    is_of_plan = (
        isinstance(error, LogDamagedError) and error.fields.get("invariant") == "R6"
    )  # the source cannot read the pins
    is_of_attempt = isinstance(error, (DataError, InvalidError, SourceChangedError, StageError))
    if isinstance(error, StreamsemError) and (is_of_plan or is_of_attempt) and "abort" not in error.do:
        after = (
            "the rows of the replaced version stay"
            if isinstance(plan.work, Reprocess)
            else "the next run plans its records again"
        )
        error.do = f"{error.do} To abort version {plan.version}: `streamsem abort PIPELINE.toml {plan.version} --reason TEXT`; {after}."
