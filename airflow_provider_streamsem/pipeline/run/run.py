"""
Runs a batch or a drain of a pipeline: recover, plan, stage, commit, publish (PROTOCOL.md, 4).

The process may die at any line. The run may be started again, also by several processes concurrently. Every step either reads durable state, or creates one
object from which any process can continue the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from airflow_provider_streamsem import gates, registry, telemetry
from airflow_provider_streamsem.arguments import flag, text
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files import layers
from airflow_provider_streamsem.connectors.source import Planner
from airflow_provider_streamsem.engine import Engine, Job, Produced, nothing_produced
from airflow_provider_streamsem.errors import (
    DataError,
    HeldByGateError,
    HeldVersionError,
    InvalidError,
    LookupChangedError,
    RecordsMissingError,
    SourceChangedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.partitions import SOURCE_TIME, WATERMARK
from airflow_provider_streamsem.pipeline.maintenance.abort import advise_abort
from airflow_provider_streamsem.pipeline.maintenance.alter import alter
from airflow_provider_streamsem.pipeline.run.corrections import repinned
from airflow_provider_streamsem.pipeline.run.plan import Corrections, plan_batch
from airflow_provider_streamsem.pipeline.run.plan_interval import replanned_pins
from airflow_provider_streamsem.pipeline.run.plan_reprocess import (
    abort_reprocessing,
    check_record_count,
    plan_reprocess,
    refuse_sinks,
)
from airflow_provider_streamsem.pipeline.run.states import BatchStates, states_of
from airflow_provider_streamsem.pipeline.spec import changes
from airflow_provider_streamsem.pipeline.spec.binding import (
    BoundPipeline,
    bind,
    check_and_store_spec,
    check_immutable_config,
    claim_datasets,
)
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.lookups import check_lookups
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.commit import (
    abort_outcome,
    close,
    commit_outcome,
    has_all_files,
    outcome_without_records,
)
from airflow_provider_streamsem.pipeline.versions.publish import publish
from airflow_provider_streamsem.pipeline.versions.result import RunResult, empty_result, run_result
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import CompleteTime, FailedGate, Json, Outcome, Plan, StagedManifest
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.procedures import (
    OpenVersion,
    PendingPublish,
    Position,
    Ready,
    RunComplete,
    position_after,
)
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.state.settings import applied_watermark

logger = telemetry.log_of(__name__)

_LISTED = 20
"""The number of partitions that a message names."""
Planning: TypeAlias = Callable[[Ready], Plan | Corrections | None]
"""Builds the next plan of a run, or names versions to reprocess first; ``None`` if there is nothing to plan."""


@with_log_location
def run_batch(
    pipeline: Pipeline,
    *,
    run_key: str,
    drain: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
    announces: bool = True,
    alter_from: str | None = None,
) -> RunResult:
    """
    Run one batch of a pipeline. With ``drain``, run batches up to the end offsets that the source has when the run's first plan is created.

    A call with the ``run_key`` of a complete run returns its result and reads no records. A call with the ``run_key`` of an interrupted run continues that
    run. A run that finds nothing new plans nothing, so a later call with the same key may find records.

    :param pipeline: the spec
    :param run_key: identifies the run; the same for its retries and clears
    :param drain: run batches until the run reaches the target that its first plan records
    :param engine: default: Spark in this process. The engine starts a session only when it stages a batch
    :param log: default: the log at ``pipeline.log``
    :param announces: whether the result lists commits of other runs that no result has listed yet (PROTOCOL.md, 4.8). ``False`` if another process returns
        the run's result, or if no process repeats the run under its key
    :param alter_from: alter the log first if its immutable fields have this config; see :func:`airflow_provider_streamsem.pipeline.maintenance.alter.alter`
    :returns: the result. It is a function of the log, so every process returns the same result (I12)
    :raises StreamsemError: see :mod:`airflow_provider_streamsem.errors`. The class attribute ``retryable`` says whether a retry may succeed
    """
    text("run_key", run_key)
    flag("drain", drain)
    _refuse_intervals(pipeline)
    with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
        logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
        log = log or commit_log_at(pipeline.log)
        alter_before_run(pipeline, log, alter_from)
        run = Run(bind(pipeline, log), run_key, engine, announces=announces)
        return run.complete(partial(plan_batch, run.bound, run.planner, run_key=run_key, drain=drain))


@with_log_location
def plan_run(
    pipeline: Pipeline,
    *,
    run_key: str,
    drain: bool = False,
    log: CommitLog | None = None,
    alter_from: str | None = None,
) -> RunResult | None:
    """
    Plan the next version of a run as :func:`run_batch` does, and stage nothing. A driver in another process then continues the run under ``run_key``.

    :returns: the run's result if the run is complete or finds nothing new; ``None`` if a driver must close or publish a version
    """
    text("run_key", run_key)
    flag("drain", drain)
    _refuse_intervals(pipeline)
    with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
        log = log or commit_log_at(pipeline.log)
        alter_before_run(pipeline, log, alter_from)
        run = Run(bind(pipeline, log), run_key)
        return run.plan_only(partial(plan_batch, run.bound, run.planner, run_key=run_key, drain=drain))


def _refuse_intervals(pipeline: Pipeline) -> None:
    if pipeline.intervals:
        raise InvalidError(
            "a run of this pipeline requires an interval; nothing was written", pipeline=pipeline.name
        ).advising(
            'set interval="data_interval" of the operator, or give the command `streamsem run` the option --interval START/END.'
        )


def alter_before_run(pipeline: Pipeline, log: CommitLog, alter_from: str | None) -> None:
    """Alter the log if the spec's immutable fields differ from those of the log, and replace those with the config ``alter_from``."""
    if alter_from is not None and log.find_head().binding_spec not in (None, pipeline.spec_sha256):
        alter(pipeline, alter_from=alter_from, log=log)


class Run:
    """
    One run of a pipeline, in one process. Performs all steps except the planning, for which the caller passes a function.

    :param announces: as in :func:`run_batch`
    :param reprocesses: the version that the run reprocesses; ``None`` if it reads new records
    :param reviewed_attempt: the attempt of a held version that the run commits; ``None`` if it commits no held version
    """

    def __init__(
        self,
        bound: BoundPipeline,
        run_key: str,
        engine: Engine | None = None,
        *,
        announces: bool = True,
        reprocesses: int | None = None,
        reviewed_attempt: StagedManifest | None = None,
    ) -> None:
        self.bound = bound
        self.run_key = run_key
        self.announces = announces
        self.reprocesses = reprocesses
        self.reviewed_attempt = reviewed_attempt
        self._checked: set[str] = set()
        self.planner: Planner = bound.pipeline.source.open(
            bound.log.of_source(bound.pipeline.source.immutable_config()), bound.head.hint
        )
        self.engine: Engine = engine or registry.load("engines", "spark")()

    def complete(self, plan_next: Planning) -> RunResult:
        """Recover, plan, stage, commit and publish until the run completes. ``plan_next`` returns ``None`` if there is nothing to plan."""
        clock = self.bound.log.clock
        began_ms = clock.now_ms()
        result, resumed = self._complete(plan_next)
        logger.info("%s", report.ended(result, resumed=resumed, ms=clock.now_ms() - began_ms))
        return result

    def _complete(self, plan_next: Planning) -> tuple[RunResult, bool]:
        """Complete the run. Returns its result, and whether it was complete when this process began."""
        position: Position = self.bound.log.locate(self.run_key, self.bound.head)
        resumed = isinstance(position, RunComplete)
        while not isinstance(position, RunComplete):
            self.check_immutable_config(position)
            if isinstance(position, Ready):
                self.bound.pipeline.load_transform()  # fail on an import error before anything is written
                step = self.plan(position, plan_next)
                if step is None:
                    return empty_result(self.bound, position.head, self.run_key, announces=self.announces), False
                if isinstance(step, Corrections):
                    position = self._correct(step, position.head)
                    continue
                position = step
                self.check_immutable_config(position)
            if isinstance(position, OpenVersion):
                position = self.close_version(position.head)
            elif isinstance(position, PendingPublish):
                position = self.bound.log.locate(self.run_key, self._publish(position.head, position.outcome))
        self._check_request(position.plan)
        return run_result(self.bound, position, self.run_key, resumed=resumed, announces=self.announces), resumed

    def _publish(self, head: ClosedHead, outcome: Outcome) -> ClosedHead:
        plan = self.bound.log.plan(head.closed)
        is_own = plan is not None and plan.run_key == self.run_key
        return publish(self.bound, head, outcome, is_own=is_own, engine=self.engine)

    def close_or_publish(self, version: int) -> None:
        """Close a version if it is open, or publish it if it is the newest commit and that is pending. Plans nothing."""
        head = self.bound.head
        if isinstance(head, OpenHead) and head.plan.version == version:
            self.check_immutable_config(OpenVersion(head=head))
            self.close_version(head)
        elif isinstance(head, ClosedHead) and head.closed == version and head.has_pending_publishes:
            assert head.outcome is not None  # a commit
            self._publish(head, head.outcome)

    def check_immutable_config(self, position: Position) -> None:
        """Refuse other immutable fields: another process may have altered them since the pipeline was bound (W35). Any process may close an open alter."""
        head = position.head
        is_altering = isinstance(head, OpenHead) and head.plan.work.changes_fields
        stored = None if is_altering or isinstance(position, PendingPublish) else head.binding_spec
        if stored is not None and stored not in self._checked:
            check_immutable_config(self.bound.pipeline, self.bound.log, stored, version=max(head.closed, 0))
            self._checked.add(stored)

    def _check_request(self, plan: Plan) -> None:
        """The run key may belong to a run of another kind, or of another version."""
        log, requested = self.bound.log, self.reprocesses
        if isinstance(plan.work, Reprocess) and requested is not None:
            exists = log.outcome(requested) is not None
            is_same = exists and log.find_root(plan.work.replaces) == log.find_root(requested)
        else:
            is_same = plan.work.reads_new_records and requested is None
        if not is_same:
            raise InvalidError(
                "the run key belongs to another run of this pipeline; this call wrote nothing",
                run_key=self.run_key,
                version=plan.version,
                kind=plan.work.kind,
            ).advising("use another run key.")

    def plan_only(self, plan_next: Planning) -> RunResult | None:
        """Recover and plan until the run is complete. Return ``None`` if a version must be closed, published or reprocessed."""
        position: Position = self.bound.log.locate(self.run_key, self.bound.head)
        while isinstance(position, Ready):
            self.check_immutable_config(position)
            step = self.plan(position, plan_next)
            if step is None:
                return empty_result(self.bound, position.head, self.run_key)
            if isinstance(step, Corrections):
                return None
            position = step
        if isinstance(position, OpenVersion):
            _refuse_held(position.head)
            if not position.head.is_new:
                self.adopt(position.head)  # refuses a version that gates hold
        if not isinstance(position, RunComplete):
            return None
        return run_result(self.bound, position, self.run_key, resumed=True)

    def plan(self, ready: Ready, plan_next: Planning) -> Position | Corrections | None:
        """
        Plan the next version, and return the new position; :class:`Corrections` if versions must be reprocessed first; ``None`` if there is nothing to plan.
        """
        with telemetry.phase("plan", version=ready.head.closed + 1):
            plan = plan_next(ready)
            if plan is None or isinstance(plan, Corrections):
                return plan
            log, pipeline = self.bound.log, self.bound.pipeline
            if plan.version == 0:
                claim_datasets(pipeline, log, self.bound.record, new=True)
            planned = log.put_plan(ready.head, plan)
            if planned.own is not None:
                logger.info("%s", report.planned(plan))
                changes.log_spec_change(log, ready.head, plan, pipeline.to_json())
        if planned.own is not None:
            return OpenVersion(head=planned.own)
        if plan.version == 0:  # Plan(0) of the other run has fixed the immutable fields
            assert planned.head.spec is not None  # version 0 is planned
            check_and_store_spec(pipeline, log, planned.head.spec, version=0)
        return log.locate(self.run_key, planned.head)  # lost the create: re-read the log (W12)

    def _correct(self, corrections: Corrections, head: ClosedHead) -> Position:
        """The run key names the version and the commit that is replaced, so a retry, or another process, continues the same reprocessing run."""
        refuse_sinks(self.bound.pipeline)
        for version in corrections.versions:
            bound = replace(self.bound, head=self.bound.log.confirm_head(head))
            current = bound.log.find_current(version, bound.head)
            if current is None:  # rolled back since then, so no outdated row is visible
                continue
            run_key = f"reprocess:{version}:{current}"
            logger.info("version %d is reprocessed: the source has replaced records that it read", version)
            run_reprocessing(bound, version, run_key, self.engine, announces=False)
        return self.bound.log.locate(self.run_key, self.bound.log.confirm_head(head))

    def close_version(self, head: OpenHead) -> Position:
        """Commit or abort the open version, even if another run planned it, and publish the commit. Returns the new position of this run."""
        plan, log, began_ms = head.plan, self.bound.log, self.bound.log.clock.now_ms()
        telemetry.emit(telemetry.Planned.from_plan, plan)
        if not head.is_new:
            logger.info("%s", report.resumed(plan, self.run_key))
        if plan.spec != self.bound.spec and plan.work.has_rows:
            changes.warn_of_open_version(log, plan, self.bound.pipeline.to_json(), run_key=self.run_key)
        proposed = self._propose(head, plan)
        if isinstance(proposed, ClosedHead):
            return log.locate(self.run_key, proposed)
        closed, outcome = close(log, head, proposed, began_ms=began_ms)
        if closed.has_pending_publishes:
            is_own = plan.run_key == self.run_key
            closed = publish(self.bound, closed, outcome, is_own=is_own, engine=self.engine)
        if plan.run_key != self.run_key:
            return log.locate(self.run_key, closed)
        return position_after(closed, plan, outcome)

    def _propose(self, head: OpenHead, plan: Plan) -> Outcome | ClosedHead:
        reviewed = self.reviewed_attempt
        if reviewed is not None and reviewed.version == plan.version:
            return self._outcome_of_held(head, plan, reviewed)
        _refuse_held(head)
        return outcome_without_records(self.bound, head) or self._adopt_or_stage(head, plan)

    def _outcome_of_held(self, head: OpenHead, plan: Plan, reviewed: StagedManifest) -> Outcome:
        """Build the outcome from the attempt that was reviewed (W39, W49)."""
        if not self._is_complete(reviewed):
            raise InvalidError(
                "files of the staged attempt are missing or were changed, so the reviewed rows cannot be committed",
                version=plan.version,
                attempt=reviewed.attempt_id,
            ).advising(
                f"run `streamsem abort PIPELINE.toml {plan.version} --reason TEXT`, then stage the version again; a batch is staged by the next run."
            )
        return self._outcome(head, plan, reviewed)

    def _adopt_or_stage(self, head: OpenHead, plan: Plan) -> Outcome | ClosedHead:
        """Return the closed head if another process has closed the version in the meantime."""
        staged = None if head.is_new else self.adopt(head)
        try:
            staged = staged or self._stage_unheld(head)
        except UnavailableError:
            raise
        except Exception as error:
            # If another process has closed the version, vacuum may have deleted files of this attempt and caused the error. The attempt has lost, and the run
            # has not failed (W21). A user may have closed it while gates held this attempt.
            current_head = self.bound.log.read_head(plan.version)
            if isinstance(current_head, ClosedHead):
                return current_head
            if isinstance(error, HeldVersionError):
                raise
            reason = self._reason_to_abort(head, plan, error)
            # Another attempt may have staged the records before they changed.
            staged = None if reason is None and not isinstance(error, SourceChangedError) else self.adopt(head)
            if staged is None and reason is not None:
                return self._abort_outcome(head, plan, reason)
            if staged is None:
                if not head.is_new:
                    advise_abort(error, plan)
                raise
        return self._outcome(head, plan, staged)

    def _reason_to_abort(self, head: OpenHead, plan: Plan, error: Exception) -> StreamsemError | None:
        """
        Return the error if the version is closed as an abort because of it (W22), else ``None``.

        The version of another run's reprocessing run is aborted, so that it does not block this run. No offset is lost. A batch is aborted in two cases: its
        records are missing and ``on_data_loss`` is ``record_gap``, so that the next plan records them as a gap; or rows of a lookup have changed, so that the
        next plan pins the current ones. A batch that this process planned directly after an abort is not aborted. A second abort in a row means that the
        source contradicts itself, or that a lookup changes all the time, so the run fails instead.
        """
        if not isinstance(error, StreamsemError) or error.retryable:
            return None
        if isinstance(plan.work, Reprocess):
            return error if plan.run_key != self.run_key else None
        follows_abort = head.is_new and head.outcome is not None and not head.outcome.committed
        is_gap = isinstance(error, RecordsMissingError) and self.bound.pipeline.on_data_loss == "record_gap"
        return error if (is_gap or isinstance(error, LookupChangedError)) and not follows_abort else None

    def _abort_outcome(self, head: OpenHead, plan: Plan, error: StreamsemError) -> Outcome:
        reason = f"{error.summary} {error.fields}"
        logger.warning("version %d is closed as an abort: %s", plan.version, reason)
        return abort_outcome(self.bound.log, head, reason=reason, initial_state=self.bound.record.initial_state)

    def adopt(self, head: OpenHead) -> StagedManifest | None:
        """
        Return a complete attempt of the version; ``None`` if there is none. An attempt is complete if it has staged all sinks of this pipeline, and every file
        has the recorded size and checksum (W17).

        :raises HeldByGateError: there are complete attempts, and gates hold all of them (W49). A version that its plan holds may have such an attempt
        """
        held: StagedManifest | None = None
        for manifest in self.bound.log.find_staged(head):
            if not self._is_complete(manifest):
                continue
            if manifest.is_held and not head.plan.work.is_held:
                held = manifest
                continue
            logger.info("version %d: adopting the staged attempt %s", manifest.version, manifest.attempt_id)
            telemetry.emit(telemetry.Adopted, version=manifest.version, attempt_id=manifest.attempt_id)
            return manifest
        if held is not None:
            raise _held_by_gates(held)
        return None

    def _is_complete(self, manifest: StagedManifest) -> bool:
        return (
            {*manifest.sinks} == {*self.bound.pipeline.sinks}
            and has_all_files(self.bound.pipeline, manifest)
            and layers.is_complete(self.bound.pipeline.log, manifest.state)
            and state_files.is_complete(self.bound.log.store, manifest.state)
        )

    def _stage_unheld(self, head: OpenHead) -> StagedManifest:
        staged = self.stage(head)
        if staged.is_held:
            raise _held_by_gates(staged)
        return staged

    def stage(self, head: OpenHead) -> StagedManifest:
        """Stage a new attempt. The manifest is stored after all files: files without one have no effect (W18). :meth:`adopt` still checks the files."""
        attempt_id = self.bound.log.clock.new_id()
        logger.info("version %d: staging", head.plan.version)
        with telemetry.phase("stage", version=head.plan.version, attempt_id=attempt_id):
            if not head.is_new:  # the planner has not just inspected the pinned items
                source = self.bound.pipeline.source
                source.check_pins(source.read_pins(head.plan.pins), was_read=False)
                check_lookups(self.bound.pipeline, head.plan)
            manifest = self._attempt(head, head.plan, attempt_id)
            telemetry.emit(telemetry.Staged.from_manifest, manifest)
        return manifest

    def _attempt(self, head: OpenHead, plan: Plan, attempt_id: str) -> StagedManifest:
        """Stage every sink, check the counts, and then store the manifest (W18)."""
        log, pipeline = self.bound.log, self.bound.pipeline
        started_ms = log.clock.now_ms()
        states = states_of(self.bound, head)
        states.check_base()
        job = self._job(head, attempt_id, states)
        produced = self._produce(job)
        failed = self._failed_gates(produced, plan.version)
        state = states.after(produced)
        complete = self._complete_time(head, produced, state)
        manifest = StagedManifest(
            version=plan.version,
            attempt_id=attempt_id,
            plan=head.plan_sha,
            spec=self.bound.spec,
            transform=pipeline.transform_name,
            sinks=produced.sinks,
            schemas={**job.schemas, **produced.schemas},
            quarantine=produced.quarantine,
            counts={**produced.counts, **self._late_partition_rows(head, produced)},
            publish=pipeline.sinks_outside_log,
            state=state,
            failed_gates=failed,
            time_partitions=produced.time_partitions,
            complete=complete,
            staged_ms=log.clock.now_ms() - started_ms,
            nonce=log.clock.new_id(),
        )
        log.put_staged(manifest)
        return manifest

    def _job(self, head: OpenHead, attempt_id: str, states: BatchStates) -> Job:
        pipeline, plan = self.bound.pipeline, head.plan
        return Job(
            source=pipeline.source,
            pins=pipeline.source.read_pins(plan.pins),
            sinks=pipeline.sinks,
            transform=pipeline.load_transform(),
            transform_name=pipeline.transform_name,
            where=pipeline.where,
            max_quarantined=pipeline.limits.max_quarantined,
            schemas={} if head.outcome is None else head.outcome.schemas,
            plan=plan,
            attempt_id=attempt_id,
            dedup=pipeline.dedup,
            base_state=states.base,
            batch_time_ms=states.batch_time_ms,
            chain=states.chain,
            state_settings=pipeline.state,
            lookups=pipeline.lookups,
            expect=pipeline.expect,
            partitions=pipeline.partitions,
            gates=pipeline.gates,
            versions=partial(self._earlier_batches, head),
        )

    def _complete_time(self, head: OpenHead, produced: Produced, state: Json) -> CompleteTime | None:
        """Return until when partitions are complete after the version. Only a batch changes it."""
        partitions, plan = self.bound.pipeline.partitions, head.plan
        before = None if head.outcome is None else head.outcome.complete
        if partitions is None or not plan.work.reads_new_records:
            return before
        if partitions.complete == WATERMARK:
            until_ms = applied_watermark(state)
        elif partitions.complete == SOURCE_TIME:
            until_ms = plan.source_time_ms
        else:
            newest = produced.newest_ms
            assert isinstance(partitions.after, int)  # in seconds
            until_ms = None if newest is None else newest - partitions.after * 1000
        return partitions.complete_time(before, produced.time_partitions, until_ms)

    def _late_partition_rows(self, head: OpenHead, produced: Produced) -> dict[str, int]:
        """Return the count of rows of partitions that were complete before the version, and log the partitions."""
        partitions, before = self.bound.pipeline.partitions, None if head.outcome is None else head.outcome.complete
        if partitions is None or not head.plan.work.reads_new_records:
            return {}
        late = partitions.late_rows(before, produced.time_partitions)
        if late:
            named = ", ".join(f"{key} ({rows})" for key, rows in sorted(late.items())[:_LISTED])
            logger.warning(
                "version %d has late rows of %d complete partitions: %s", head.plan.version, len(late), named
            )
        return {"late_partition_rows": sum(late.values())}

    def _earlier_batches(self, head: OpenHead, count: int) -> list[Outcome]:
        """Return the outcomes of the newest committed batches before the one that the version commits, newest first, without those that were rolled back."""
        log, work = self.bound.log, head.plan.work
        before = log.find_root(work.replaces) if isinstance(work, Reprocess) else head.plan.version
        kept = [] if head.outcome is None else log.remaining_versions(head.outcome)
        versions = (version for each in reversed(kept) for version in reversed(each) if version < before)
        outcomes = (log.closed_outcome(version) for version in versions)
        return [*islice((each for each in outcomes if each.work is not None and each.work.reads_new_records), count)]

    def _failed_gates(self, produced: Produced, version: int) -> tuple[FailedGate, ...]:
        """Return the conditions of gates that the staged rows do not satisfy. If one of them has the action ``fail``, the attempt fails."""
        failed: list[FailedGate] = []
        refused: list[str] = []
        for at, gate in enumerate(self.bound.pipeline.gates):
            sinks = [name for name in produced.sinks if gate.applies_to(name)]
            problems = [*gate.problems(produced.counts, sinks), *produced.problems.get(at, ())]
            if gate.on_failure == gates.FAIL:
                refused += problems
            else:
                failed += [FailedGate(found=each, holds=gate.on_failure == gates.HOLD) for each in problems]
        for each in failed:
            logger.warning("version %d does not pass a gate: %s", version, each.found)
        if refused:
            raise DataError("the batch does not pass a gate", version=version, found=refused).advising(
                "correct the data, the transform or the gate, then run again: the same range is read again. To see the rows first, set on_failure='hold'."
            )
        return tuple(failed)

    def _produce(self, job: Job) -> Produced:
        """Stage the rows. Then check that the source still has the pinned items, and that the row counts of read and written rows agree."""
        source = job.source
        try:
            # A plan has no pins in three cases: every offset is a gap; a no-data batch; a reprocessing run whose source has removed the records. The engine
            # must run in the last two: to close windows, and to remove the ids of these records (W27).
            has_work = job.pins or job.plan.watermark_ms is not None or job.chain is not None
            produced = (
                self.engine.stage(job, self.bound.log) if has_work else nothing_produced(job.sinks, job.base_state)
            )
        except DataError:
            source.check_pins(job.pins, was_read=False)  # an item may have been changed or deleted
            check_lookups(self.bound.pipeline, job.plan)
            raise
        source.check_pins(job.pins, was_read=True)
        check_lookups(self.bound.pipeline, job.plan)
        check_record_count(self.bound.pipeline.source.parts, job.plan, produced.counts)
        invariants.check_i14_staged(
            produced.counts, produced.sinks, passed_to_writer=produced.passed_to_writer, rows=self.bound.pipeline.rows
        )
        return produced

    def _outcome(self, head: OpenHead, plan: Plan, staged: StagedManifest) -> Outcome:
        source, outcome = self.bound.pipeline.source, commit_outcome(self.bound.log, head, staged)
        if plan.gaps:
            outcome = replace(outcome, counts={**staged.counts, "gaps": source.count_gaps(plan.gaps)})
        if not plan.work.reads_new_records:  # reprocessing does not move the source (W26)
            return outcome
        return replace(outcome, hint=source.next_hint(plan.hint, source.read_pins(plan.pins), staged.counts))


def _refuse_held(head: OpenHead) -> None:
    """Refuse to close a version that its plan holds (W39)."""
    if head.plan.work.is_held:
        summary = "the open version is held; this run planned no version"
        raise HeldVersionError(summary, version=head.plan.version)


def _held_by_gates(attempt: StagedManifest) -> HeldByGateError:
    found = [failed.found for failed in attempt.failed_gates if failed.holds]
    return HeldByGateError(
        "the batch does not pass a gate, so its version is held; nothing became visible",
        version=attempt.version,
        attempt=attempt.attempt_id,
        found=found,
    )


def _replanned(planner: Planner, bound: BoundPipeline, replaced: Plan) -> Json:
    """A gap has no records that could be read again."""
    return (
        repinned(bound, replaced) if replaced.gaps or not replaced.ranges else replanned_pins(bound, planner, replaced)
    )


def run_reprocessing(
    bound: BoundPipeline,
    version: int,
    run_key: str,
    engine: Engine | None,
    *,
    announces: bool,
    current_lookups: bool = False,
    reads_again: bool = False,
) -> RunResult:
    """
    Reprocess a committed version. ``reads_again``: from the records that the source has now in the ranges of the version.

    If an attempt fails, the version is aborted, so that it blocks no other run (W22). A retry plans it again.

    If the store did not report a result, the version stays open: an attempt may be complete, and the retry commits it. The head must be confirmed (W24).
    """
    try:
        run = Run(bound, run_key, engine, announces=announces, reprocesses=version)
        repin = partial(_replanned, run.planner) if reads_again else repinned
        return run.complete(partial(plan_reprocess, bound, version, run_key, current_lookups, repin=repin))
    except UnavailableError:
        raise
    except Exception as error:
        abort_reprocessing(bound, run_key, f"the reprocessing run was not staged: {type(error).__name__}")
        raise
