"""Stages a reprocessing run for review, and commits it on request (PROTOCOL.md, 4.6, W39)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.plan import Corrections
from airflow_provider_streamsem.pipeline.run.plan_reprocess import (
    abort_reprocessing,
    current_commit,
    plan_reprocess,
    refuse_sinks,
)
from airflow_provider_streamsem.pipeline.run.run import Planning, Run
from airflow_provider_streamsem.pipeline.spec.binding import bind_existing
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.publish import publish
from airflow_provider_streamsem.pipeline.versions.result import RunResult, run_result
from airflow_provider_streamsem.protocol.entries import Plan, StagedManifest
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.procedures import OpenVersion, PendingPublish, Position, RunComplete
from airflow_provider_streamsem.protocol.view import OpenHead, without_pending
from airflow_provider_streamsem.verbs import VERSION

logger = telemetry.log_of(__name__)

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


def _stage_held(run: Run, replaced: int, plan_next: Planning) -> tuple[Plan, StagedManifest]:
    """
    Stage an attempt of a held version, and leave the version open (W39). Return its plan and the manifest.

    First close a batch that another run left open, and publish what is pending, as every run does. If the version is held already, return its attempt.
    """
    position: Position = run.bound.log.locate(run.run_key, run.bound.head)
    while not isinstance(position, RunComplete):
        run.check_immutable_config(position)
        if isinstance(position, OpenVersion):
            plan = position.head.plan
            reprocess = plan.work if isinstance(plan.work, Reprocess) else None
            if reprocess is not None and reprocess.held and reprocess.replaces == replaced:
                return plan, _adopt_or_stage(run, position.head)
            if reprocess is not None and not reprocess.held:
                raise InvalidError(
                    "a reprocessing run is open, and closing it would make its rows visible without a review; nothing was staged",
                    version=plan.version,
                ).advising(
                    f"run the pipeline to complete it, or `streamsem abort PIPELINE.toml {plan.version} --reason TEXT`; then stage again."
                )
            position = run.close_version(position.head)
        elif isinstance(position, PendingPublish):
            head = publish(run.bound, position.head, position.outcome, is_own=False)
            position = run.bound.log.locate(run.run_key, head)
        else:
            run.bound.pipeline.load_transform()
            step = run.plan(position, plan_next)
            assert not isinstance(step, (Corrections, NoneType))  # a reprocessing run always plans
            position = step
    raise InvalidError("another process has closed the held version in the meantime; nothing is staged")


def _adopt_or_stage(run: Run, head: OpenHead) -> StagedManifest:
    staged = None if head.is_new else run.adopt(head)
    if staged is None:
        return run.stage(head)
    how_to_stage_again = f"to stage it again, run `streamsem abort PIPELINE.toml {staged.version} --reason TEXT` first."
    if staged.spec != run.bound.spec:
        summary = "the version is held already, with an attempt that was staged with another spec; nothing was staged"
        raise InvalidError(summary, version=staged.version).advising(how_to_stage_again)
    logger.warning("version %d is held already, so this call staged nothing; %s", staged.version, how_to_stage_again)
    return staged


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
    :raises StreamsemError: as :func:`reprocess`. If no attempt has been staged, the version is aborted
    """
    VERSION.checked(version)
    refuse_sinks(pipeline)
    bound = bind_existing(pipeline, log or commit_log_at(pipeline.log))
    bound = replace(bound, head=bound.log.confirm_head(bound.head))
    current = current_commit(bound, bound.head, version)
    # Each request has its own key, so that a version that was aborted is never taken for the one that is committed later.
    run_key = f"reprocess:{version}:{current}:held:{bound.log.clock.new_id()}"
    run = Run(bound, run_key, engine, announces=False, reprocesses=version)
    try:
        planning = partial(plan_reprocess, bound, version, run_key, current_lookups, held=True)
        plan, manifest = _stage_held(run, current, planning)
    except Exception:
        # Otherwise the version would block every run, with nothing to review.
        abort_reprocessing(bound, run_key, "the held version cannot be staged")
        raise
    if not isinstance(bound.log.read_head(plan.version), OpenHead):
        summary = "another process has committed or aborted the held version in the meantime; nothing is staged"
        raise InvalidError(summary, version=plan.version).advising("stage the version again.")
    return Held(
        version=plan.version,
        attempt_id=manifest.attempt_id,
        replaces=current,
        counts=manifest.counts,
    )


@with_log_location
def commit_held(
    pipeline: Pipeline, version: int, *, attempt_id: str | None = None, log: CommitLog | None = None
) -> RunResult:
    """
    Commit a held version: the rows of its attempt become visible, in all sinks. Those of a reprocessing run replace the rows of the version it reprocesses.
    Starts no Spark.

    A repeated call returns the first result.

    :param version: the held version: a reprocessing run that was staged for review, or a version with an attempt that gates hold
    :param attempt_id: the attempt that was reviewed. Default: the only one
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the version is not held, it was aborted, it has no such attempt, or files of the attempt are missing
    """
    VERSION.checked(version)
    bound = bind_existing(pipeline, log or commit_log_at(pipeline.log))
    bound = replace(bound, head=bound.log.confirm_head(bound.head))
    plan = bound.log.plan(version)
    if plan is None or not plan.work.has_rows:
        raise _not_held_error(version)
    head = bound.head
    is_open = isinstance(head, OpenHead) and head.plan.version == version
    manifest = staged_attempt(bound.log, version, attempt_id) if is_open else None
    run = Run(bound, plan.run_key, announces=False, reviewed_attempt=manifest)
    run.close_or_publish(version)
    closed, outcome = bound.log.closed_version(version)
    if not outcome.committed:
        raise _aborted_error()
    if not (plan.work.is_held or any(failed.holds for failed in outcome.failed_gates)):
        raise _not_held_error(version)
    wanted = attempt_id if manifest is None else manifest.attempt_id
    if wanted not in (None, outcome.attempt_id):
        raise InvalidError(
            "another attempt of the held version is committed already", given=wanted, committed=outcome.attempt_id
        ).advising("compare the rows of the version with what you have reviewed; reprocess it again if they are wrong.")
    complete = RunComplete(head=without_pending(bound.log.newest_head()), plan=closed, outcome=outcome)
    return run_result(bound, complete, plan.run_key, resumed=manifest is None, announces=False)


def _not_held_error(version: int) -> InvalidError:
    return InvalidError("the version is not held; nothing was committed", given=version).advising(_STAGE)


def _aborted_error() -> InvalidError:
    return InvalidError("the held version was aborted; nothing was committed").advising("stage the version again.")


def staged_attempt(log: CommitLog, version: int, attempt_id: str | None = None) -> StagedManifest:
    """Return the attempt of the held version. ``attempt_id`` says which one, if concurrent processes have staged several."""
    head = log.newest_head()
    if not isinstance(head, OpenHead) or head.plan.version != version:
        open_version = head.plan.version if isinstance(head, OpenHead) else None
        raise InvalidError("the version is not held", given=version, open=open_version).advising(_STAGE)
    is_held = head.plan.work.is_held
    found = {each.attempt_id: each for each in log.find_staged(head) if is_held or each.is_held}
    if not found and not is_held:
        raise InvalidError("the version is not held", given=version).advising(_STAGE)
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
