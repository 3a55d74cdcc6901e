"""
The whole order of a run, on one page: look, plan, run, decide, publish (PROTOCOL.md, 4).

A run may die at any line and be started again, twice at once too: every step either reads what is durable or creates one object that others can go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_provider_streamsem import registry, telemetry
from airflow_provider_streamsem.arguments import flag, text
from airflow_provider_streamsem.batch import changes, report
from airflow_provider_streamsem.batch.guarantee import guarantee
from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.maintenance import aborting
from airflow_provider_streamsem.batch.opening import Opened, claim_datasets, open_pipeline, settle_spec
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.plan import plan_batch
from airflow_provider_streamsem.batch.publish import publish
from airflow_provider_streamsem.batch.result import RunResult, answer, empty
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engines import dedup, schema
from airflow_provider_streamsem.engines.contract import Engine, Job, Produced, nothing_produced
from airflow_provider_streamsem.errors import DataError, RecordsGoneError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan, StagedManifest
from airflow_provider_streamsem.protocol.procedures import Answered, Open, Owing, Position, Ready, settled
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sources.contract import Compacting, Planner, Source

logger = telemetry.log_of(__name__)


@on_its_log
def run_batch(
    pipeline: Pipeline,
    *,
    run_key: str,
    drain: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
    announces: bool = True,
) -> RunResult:
    """
    Run one batch of a pipeline, or with ``drain`` batches until the end that the source had when the run was planned.

    The same ``run_key`` again gives the committed result without any work, or goes on where the run stopped. A run that found nothing new planned nothing, so
    the same key may find something later.

    :param pipeline: the spec
    :param run_key: names the run; the same for its retries and clears
    :param drain: several batches, towards a target that is frozen in the first plan
    :param engine: default: Spark in this process; no session is started before a batch is staged
    :param log: default: the log at ``pipeline.log``
    :param announces: ``False``: this result announces no versions of other runs, because another process returns the run's result, or because
        nobody repeats the run under its key if it dies
    :returns: what is stored of the run (I12)
    :raises StreamsemError: see :mod:`airflow_provider_streamsem.errors`; its class says whether a retry can help
    """
    text("run_key", run_key)
    flag("drain", drain)
    with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
        logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
        run = Run(open_pipeline(pipeline, log or open_commit_log(pipeline.log)), run_key, engine, announces=announces)
        return run.to_answer(partial(plan_batch, run.opened, run.planner, run_key=run_key, drain=drain))


@on_its_log
def plan_run(
    pipeline: Pipeline, *, run_key: str, drain: bool = False, log: CommitLog | None = None
) -> RunResult | None:
    """
    Take the first step of :func:`run_batch` only: for a driver elsewhere, which then goes on under the same ``run_key``.

    :returns: the run's answer, where it has one already or found nothing new; ``None`` where a version must be closed or published
    """
    text("run_key", run_key)
    flag("drain", drain)
    with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
        run = Run(open_pipeline(pipeline, log or open_commit_log(pipeline.log)), run_key)
        return run.to_open(partial(plan_batch, run.opened, run.planner, run_key=run_key, drain=drain))


class Run:
    """One run on an opened pipeline: what plans its versions is given, all else is the same for every kind of run."""

    def __init__(self, opened: Opened, run_key: str, engine: Engine | None = None, *, announces: bool = True) -> None:
        self.opened = opened
        self.run_key = run_key
        self.announces = announces
        self.planner: Planner = opened.pipeline.source.open(
            opened.log.of_source(opened.pipeline.source.guarded()), opened.head.outcome
        )
        self.engine: Engine = engine or registry.lookup("engines", "spark")()

    def to_answer(self, planned: Callable[[Ready], Plan | None]) -> RunResult:
        """Look, plan, run, decide and publish until the run has its answer."""
        clock = self.opened.log.clock
        began_ms = clock.now_ms()
        result, resumed = self._answered(planned)
        logger.info("%s", report.ended(result, resumed=resumed, ms=clock.now_ms() - began_ms))
        return result

    def _answered(self, planned: Callable[[Ready], Plan | None]) -> tuple[RunResult, bool]:
        """The answer, and whether the run was complete when this process began."""
        position: Position = self.opened.log.locate(self.run_key, self.opened.head)
        resumed = isinstance(position, Answered)
        while not isinstance(position, Answered):
            fresh = False
            if isinstance(position, Ready):
                self.opened.pipeline.load_transform()  # what cannot be imported is found before anything is written
                step = self._plan(position, planned)
                if step is None:
                    return empty(self.opened, position.head, self.run_key, announces=self.announces), False
                position, fresh = step
            if isinstance(position, Open):
                position = self.close(position.head, fresh=fresh)
            elif isinstance(position, Owing):
                found = self.opened.log.plan(position.head.closed)
                is_own = found is not None and found[0].run_key == self.run_key
                head = publish(self.opened, position.head, is_own=is_own)
                position = self.opened.log.locate(self.run_key, head)
        return answer(self.opened, position, self.run_key, resumed=resumed, announces=self.announces), resumed

    def to_open(self, planned: Callable[[Ready], Plan | None]) -> RunResult | None:
        """Look and plan, until the run has its answer, or a version must be closed or published."""
        position: Position = self.opened.log.locate(self.run_key, self.opened.head)
        while isinstance(position, Ready):
            step = self._plan(position, planned)
            if step is None:
                return empty(self.opened, position.head, self.run_key)
            position, _ = step
        return answer(self.opened, position, self.run_key, resumed=True) if isinstance(position, Answered) else None

    def _plan(self, ready: Ready, planned: Callable[[Ready], Plan | None]) -> tuple[Position, bool] | None:
        """Plan the next version; where the run then stands, and whether this process made the plan. ``None``: there is nothing to plan."""
        with telemetry.phase("plan", version=ready.head.closed + 1):
            plan = planned(ready)
            if plan is None:
                return None
            log, pipeline = self.opened.log, self.opened.pipeline
            if plan.version == 0:
                claim_datasets(pipeline, log, self.opened.record, new=True)
            head, fresh = log.put_plan(ready.head, plan)
            if head.plan == plan:
                logger.info("%s", report.planned(plan))
                changes.report(log, ready.head, plan, pipeline.to_json())
        if head.plan != plan:
            if plan.version == 0:  # the log is bound to the winner's spec
                winner = log.plan(0)
                assert winner is not None
                settle_spec(pipeline, log, winner[0].spec, version=0)
            return self.opened.log.locate(self.run_key, head), False  # lost the create: look again (W12)
        return Open(head=head), fresh

    def close(self, head: Head, *, fresh: bool) -> Position:
        """Bring the open version to its outcome, and that to the receipts it owes, whoever planned it; returns where this run then stands."""
        assert head.plan is not None
        plan, log = head.plan, self.opened.log
        began_ms = log.clock.now_ms()
        telemetry.tell(telemetry.Planned.by, plan)
        if not fresh:
            logger.info("%s", report.resumed(plan, self.run_key))
        if plan.spec != self.opened.spec:
            changes.warn_of_open_version(log, plan, self.opened.pipeline.to_json(), run_key=self.run_key)
        offered = self._offer(head, plan, fresh=fresh)
        if isinstance(offered, Head):
            return log.locate(self.run_key, offered)
        with telemetry.phase("decide", version=plan.version, attempt_id=offered.attempt_id or ""):
            decided = log.decide(head, offered)
            assert decided.outcome is not None
            logger.info("%s", report.closed(decided.outcome, log.clock.now_ms() - began_ms))
            telemetry.tell(telemetry.Decided.by, plan, offered, decided.outcome)
        outcome = decided.outcome
        if decided.owes:
            decided = publish(self.opened, decided, is_own=plan.run_key == self.run_key)
        log.write_segments(plan.version, [(outcome, decided.outcome_sha)])
        if plan.run_key != self.run_key:
            return log.locate(self.run_key, decided)
        return settled(decided, plan, outcome)

    def _offer(self, head: Head, plan: Plan, *, fresh: bool) -> Outcome | Head:
        """What this process offers as the version's outcome; or the head, where others have closed the version meanwhile."""
        staged = None if fresh else self._adopt(head)
        try:
            staged = staged or self._stage(head, fresh=fresh)
        except UnavailableError:
            raise
        except Exception as error:
            # Where others closed the version meanwhile, vacuum may have removed what this attempt wrote: it has lost, it has not failed (W21).
            found = self.opened.log.read_head(plan.version)
            if found is not None and found.plan is None:
                return found
            if not isinstance(error, SourceChangedError):
                raise
            staged = self._adopt(head)  # another attempt may have been in time
            if staged is None:
                if not self._gives_up(head, plan, error, fresh=fresh):
                    raise
                return self._aborting(head, plan, error)
        return self._outcome(head, plan, staged)

    def _gives_up(self, head: Head, plan: Plan, error: SourceChangedError, *, fresh: bool) -> bool:
        """
        Whether the version is to be closed as an abort (W22): another run's redo whose records are gone, since no offset depends on it; and a batch of which
        records are gone, where ``on_data_loss`` says that they are to be a gap of a new plan.

        Not so a plan that this process cut a moment ago, right after an abort: there the source contradicts itself, and version would follow version for ever.
        """
        if plan.kind == "redo":
            return plan.run_key != self.run_key
        again = fresh and head.outcome is not None and not head.outcome.committed
        return isinstance(error, RecordsGoneError) and self.opened.pipeline.on_data_loss == "record_gap" and not again

    def _aborting(self, head: Head, plan: Plan, error: SourceChangedError) -> Outcome:
        """The abort, with what this plan knew of the source: of what is deleted there, only that says how far it went."""
        reason = f"{error.truth} {error.fields}"
        logger.warning("version %d: closing it as an abort: %s", plan.version, reason)
        return aborting(self.opened.log, head, reason=reason, planner=self.planner)

    def _adopt(self, head: Head) -> StagedManifest | None:
        """An attempt that somebody finished and nobody decided, if all of it is there (W17)."""
        sinks = self.opened.pipeline.sinks
        for manifest in self.opened.log.find_staged(head):
            if (
                set(manifest.sinks) == set(sinks)
                and all(sinks[name].is_complete(c) for name, c in manifest.sinks.items())
                and dedup.is_complete(self.opened.pipeline.log, manifest.state)
            ):
                logger.info("version %d: adopting the staged attempt %s", manifest.version, manifest.attempt_id)
                telemetry.tell(telemetry.Adopted, version=manifest.version, attempt_id=manifest.attempt_id)
                return manifest
        return None

    def _stage(self, head: Head, *, fresh: bool) -> StagedManifest:
        """A fresh attempt."""
        assert head.plan is not None
        attempt_id = self.opened.log.clock.new_id()
        logger.info("version %d: staging", head.plan.version)
        with telemetry.phase("stage", version=head.plan.version, attempt_id=attempt_id):
            if not fresh:  # else the planner looked a moment ago
                self.opened.pipeline.source.check_pins(head.plan.pins, was_read=False)
            manifest = self._attempt(head, head.plan, attempt_id)
            telemetry.tell(telemetry.Staged.by, manifest)
        return manifest

    def _attempt(self, head: Head, plan: Plan, attempt_id: str) -> StagedManifest:
        """Stage every sink, reconcile, and only then write the manifest (W18)."""
        log, pipeline = self.opened.log, self.opened.pipeline
        started_ms = log.clock.now_ms()
        recorded = {} if head.outcome is None else head.outcome.schemas
        remembered = self._remembered(head, plan)
        try:
            produced = self._produce(plan, attempt_id, recorded, *remembered)
        except DataError:
            pipeline.source.check_pins(plan.pins, was_read=False)  # what cannot be read may be gone
            raise
        pipeline.source.check_pins(plan.pins, was_read=True)
        _check_as_many(pipeline.source, plan, produced.counts)
        invariants.check_i14_staged(produced.counts, produced.sinks, handed=produced.handed, rows=pipeline.rows)
        schemas = schema.evolve(recorded, produced.schemas)
        manifest = StagedManifest(
            version=plan.version,
            attempt_id=attempt_id,
            plan=head.plan_sha,
            spec=self.opened.spec,
            transform=pipeline.transform_name,
            sinks=produced.sinks,
            schemas=schemas,
            quarantine=produced.quarantine,
            counts=produced.counts,
            source=self._hint(head, plan, produced.counts),
            publish=pipeline.publishes,
            state=produced.state if plan.kind == "batch" else None if head.outcome is None else head.outcome.state,
            staged_ms=log.clock.now_ms() - started_ms,
            nonce=log.clock.new_id(),
        )
        log.put_staged(manifest)
        return manifest

    def _hint(self, head: Head, plan: Plan, counts: Mapping[str, int]) -> Json:
        if plan.kind == "redo":  # the source stands where it stood (W26)
            return None if head.outcome is None else head.outcome.source
        self.planner.follow(head.outcome)
        return self.planner.hint(plan, counts)

    def _remembered(self, head: Head, plan: Plan) -> tuple[Json, int]:
        """What was remembered before the batch, and when that was asked; of a redo, before the first commit of its chain, and when that was planned."""
        if plan.replaces is None:
            return (None if head.outcome is None else head.outcome.state), plan.planned_at_ms
        root = self.opened.log.find_root(plan.replaces.version)
        before = None if root == 0 else self.opened.log.outcome(root - 1)
        first = self.opened.log.plan(root)
        return (None if before is None else before[0].state), (first[0] if first else plan).planned_at_ms

    def _produce(
        self, plan: Plan, attempt_id: str, recorded: Mapping[str, str], state: Json, seen_at_ms: int
    ) -> Produced:
        pipeline = self.opened.pipeline
        if not plan.pins:  # every offset of the plan is a gap: there is nothing to read
            return nothing_produced(pipeline.sinks, state)
        job = Job(
            source=pipeline.source,
            sinks=pipeline.sinks,
            transform=pipeline.load_transform(),
            transform_name=pipeline.transform_name,
            where=pipeline.where,
            max_quarantined=pipeline.limits.max_quarantined,
            schemas=recorded,
            plan=plan,
            attempt_id=attempt_id,
            dedup=pipeline.dedup,
            state=state,
            seen_at_ms=seen_at_ms,
        )
        return self.engine.stage(job, self.opened.log)

    def _outcome(self, head: Head, plan: Plan, staged: StagedManifest) -> Outcome:
        clock = self.opened.log.clock
        decided_at_ms = clock.now_ms()
        return Outcome(
            version=plan.version,
            result="commit",
            plan=staged.plan,
            attempt_id=staged.attempt_id,
            sinks=staged.sinks,
            schemas=staged.schemas,
            quarantine=staged.quarantine,
            gaps=plan.gaps,
            counts=staged.counts if not plan.gaps else {**staged.counts, "gaps": offsets.gap_length(plan.gaps)},
            replaces=plan.replaces,
            next=invariants.next_after(plan, before=head.next, committed=True),
            source=staged.source,
            publish=staged.publish,
            markers=head.markers,
            state=staged.state,
            spec=staged.spec,
            transform=staged.transform,
            decided_at_ms=decided_at_ms,
            duration_ms=max(0, decided_at_ms - plan.planned_at_ms),
            nonce=clock.new_id(),
        )


def _check_as_many(source: Source, plan: Plan, counts: Mapping[str, int]) -> None:
    """A redo from what compaction has left would take away the rows of all that it removed."""
    before = 0 if plan.replaces is None else plan.replaces.counts.get("read", 0)
    found = counts.get("read", 0)
    if isinstance(source, Compacting) and found < before:
        what = "the source no longer holds all that the version read, or is read at another isolation level; nothing changed"
        raise SourceChangedError(what, version=plan.replaces and plan.replaces.version, read=before, found=found)
