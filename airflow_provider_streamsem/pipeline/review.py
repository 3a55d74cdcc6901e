"""Stages a reprocessing run for review, and commits it on request (PROTOCOL.md, 4.6, W39)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_streamsem.arguments import integer
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.location import with_log_location
from airflow_provider_streamsem.pipeline.opening import open_pipeline
from airflow_provider_streamsem.pipeline.plan_reprocess import (
    abort_reprocessing,
    current_commit,
    plan_reprocess,
    refuse_sinks,
)
from airflow_provider_streamsem.pipeline.result import RunResult
from airflow_provider_streamsem.pipeline.run import Run
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.protocol.entries import Plan, StagedManifest
from airflow_provider_streamsem.protocol.procedures import Ready
from airflow_provider_streamsem.protocol.view import OpenHead

_STAGE = "stage a version with `streamsem reprocess PIPELINE.toml N --stage-only`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    A reprocessing run that is staged and not committed.

    :param version: the held version
    :param attempt_id: the attempt that a commit makes visible
    :param replaces: the commit whose rows it would replace
    :param counts: the row counts of the attempt, by name
    """

    version: int
    attempt_id: str
    replaces: int
    counts: Mapping[str, int]


@with_log_location
def stage_reprocessing(
    pipeline: Pipeline,
    version: int,
    *,
    current_lookups: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> Held:
    """
    Reprocess a committed version as :func:`reprocess` does, but do not make its rows visible.

    The version is held: it stays open until :func:`commit_held` commits it, or it is aborted. Until then no run can plan a version. Every run fails with a
    :class:`HeldVersionError`, which is retryable. A repeated call returns the first result.

    :param version: as for :func:`reprocess`
    :param current_lookups: as for :func:`reprocess`
    :param engine: default: Spark in this process
    :param log: default: the log at ``pipeline.log``
    :raises StreamsemError: as :func:`reprocess`. If the error is not retryable and no attempt has been staged, the version is aborted
    """
    integer("version", version, least=0)
    refuse_sinks(pipeline)
    opened = open_pipeline(pipeline, log or open_commit_log(pipeline.log))
    opened = replace(opened, head=opened.log.confirm_head(opened.head))
    run_key = f"reprocess:{version}:{current_commit(opened, opened.head, version)}"
    run = Run(opened, run_key, engine, announces=False, reprocesses=version)
    try:
        plan, manifest = run.stage_held(partial(plan_reprocess, opened, version, run_key, current_lookups, held=True))
    except StreamsemError as error:
        if not error.retryable:
            abort_reprocessing(opened, run_key, error)
        raise
    if not isinstance(opened.log.read_head(plan.version), OpenHead):
        summary = "another process has committed or aborted the held version in the meantime; nothing is staged"
        raise InvalidError(summary, version=plan.version).advising("stage the version again.")
    assert plan.replaces is not None  # the plan of a reprocessing run
    return Held(
        version=plan.version,
        attempt_id=manifest.attempt_id,
        replaces=plan.replaces.version,
        counts=manifest.counts,
    )


@with_log_location
def commit_held(
    pipeline: Pipeline, version: int, *, attempt_id: str | None = None, log: CommitLog | None = None
) -> RunResult:
    """
    Commit a held version: the rows of its attempt replace those of the reprocessed version, in all sinks. Starts no Spark.

    A repeated call returns the first result.

    :param version: the held version
    :param attempt_id: the attempt that was reviewed. Default: the only one
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the version is not held, it was aborted, it has no such attempt, or files of the attempt are missing
    """
    integer("version", version, least=0)
    opened = open_pipeline(pipeline, log or open_commit_log(pipeline.log))
    opened = replace(opened, head=opened.log.confirm_head(opened.head))
    planned = opened.log.plan(version)
    plan = None if planned is None else planned[0]
    if plan is None or not plan.held or plan.replaces is None:
        raise InvalidError("the version is not held; nothing was committed", given=version).advising(_STAGE)
    manifest = staged_attempt(opened.log, version, attempt_id) if isinstance(opened.head, OpenHead) else None

    def refuse_new_plan(ready: Ready) -> Plan | None:
        raise InvalidError("the held version was aborted; nothing was committed", given=version).advising(
            "stage the version again."
        )

    run = Run(opened, plan.run_key, announces=False, reprocesses=plan.replaces.version, reviewed_attempt=manifest)
    return run.complete(refuse_new_plan)


def staged_attempt(log: CommitLog, version: int, attempt_id: str | None = None) -> StagedManifest:
    """
    Return the attempt of the held version.

    :param attempt_id: which attempt, if concurrent processes have staged several
    :raises InvalidError: the version is not held; or it has no such attempt, or several and none is given
    """
    head = log.newest_head()
    if not isinstance(head, OpenHead) or head.plan.version != version or not head.plan.held:
        open_version = head.plan.version if isinstance(head, OpenHead) else None
        raise InvalidError("the version is not held", given=version, open=open_version).advising(_STAGE)
    found = {manifest.attempt_id: manifest for manifest in log.find_staged(head)}
    if attempt_id is not None and attempt_id not in found:
        raise InvalidError(
            "the held version has no such attempt; nothing was committed", given=attempt_id, staged=sorted(found)
        )
    if not found:
        summary = "no attempt of the held version has been staged; nothing was committed"
        raise InvalidError(summary, version=version).advising(
            "repeat `streamsem reprocess PIPELINE.toml N --stage-only`."
        )
    if attempt_id is None and len(found) > 1:
        summary = "concurrent processes have staged several attempts of the held version; nothing was committed"
        raise InvalidError(summary, version=version, staged=sorted(found)).advising(
            "name the attempt that you have reviewed: `--attempt ID` of `streamsem diff` and `streamsem commit`."
        )
    return found[attempt_id or next(iter(found))]
