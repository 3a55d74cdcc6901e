"""Commits a version that reads no records, and for which an attempt writes files: a compaction or an erasure (PROTOCOL.md, W42)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.engine import Engine, RewriteJob
from airflow_provider_streamsem.errors import DataError, OpenVersionError, StreamsemError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.versions.commit import abort_outcome, close, commit_outcome, plan_maintenance
from airflow_provider_streamsem.protocol.entries import (
    Committable,
    DataFile,
    Json,
    Kind,
    Outcome,
    Quarantine,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead

logger = telemetry.log_of(__name__)


def commit_staged(
    bound: BoundPipeline, head: ClosedHead, work: Kind, *, run_key: str, stage: Callable[[OpenHead], StagedManifest]
) -> Outcome:
    """
    Plan the version after a head, stage an attempt of it, and commit the attempt. If it cannot be staged, the version is aborted.

    :param run_key: the prefix of the run key
    :param stage: writes the files of an attempt and stores its manifest
    :raises OpenVersionError: another writer created the version first, or aborted it
    """
    log = bound.log
    plan = plan_maintenance(log, head, work, run_key=run_key)
    stored = log.put_plan(head, plan).own
    if stored is None:
        raise _lost_error(work, plan.version)
    logger.info("version %d: %s", plan.version, work.describe())
    try:
        manifest = stage(stored)
    except Exception as error:
        # If another process has closed the version, vacuum may have deleted files and caused the error (W21). Or the result of storing the manifest was
        # unknown, and that process has committed the attempt.
        current = log.read_head(plan.version)
        outcome = current.outcome if isinstance(current, ClosedHead) else None
        if outcome is None:
            if isinstance(error, StreamsemError):
                _abort(bound, stored, error)
            raise
        if not outcome.committed:
            raise _lost_error(work, plan.version) from error
    else:
        _, outcome = close(log, stored, commit_outcome(log, stored, manifest))
        if not outcome.committed:
            raise _lost_error(work, plan.version)
    return outcome


class Attempt:
    """One attempt to stage an open version that reads no records."""

    def __init__(self, bound: BoundPipeline, engine: Engine, head: OpenHead) -> None:
        self._bound, self._engine, self._head = bound, engine, head
        self.log, self.version = bound.log, head.plan.version
        self.id, self._started_ms = bound.log.clock.new_id(), bound.log.clock.now_ms()

    def rewritten(
        self,
        sink: str,
        commits: Sequence[int],
        files: Sequence[DataFile],
        *,
        target_file_bytes: int,
        erased: Predicate | None = None,
        erased_rows: int = 0,
    ) -> Committable:
        """
        Write the rows of files to new files, and compare the rows of both (W41).

        :param commits: the versions that wrote the rows, in ascending order
        :param erased: selects the rows to leave out
        :param erased_rows: the number of these rows
        :raises DataError: the rows differ. The new files are not visible
        """
        # The columns of the newest of these commits. A later version may have columns that a rollback removes.
        schema = self.log.closed_outcome(commits[-1]).schemas[sink]
        job = RewriteJob(
            sink=self._bound.pipeline.sinks[sink],
            files=files,
            schema=schema,
            version=self.version,
            attempt_id=self.id,
            target_file_bytes=target_file_bytes,
            erased=erased,
        )
        with telemetry.phase("stage", version=self.version, attempt_id=self.id):
            result = self._engine.rewrite(job, self.log)
        rows = sum(file.rows for file in files) - erased_rows
        if result.before != result.after or not result.before.rows == rows == result.output.rows:
            raise DataError(
                "the rows of the new files differ from those of the files that were rewritten; the new files are not visible",
                version=self.version,
                sink=sink,
                rows_in_log=rows,
                rows_read=result.before.rows,
                rows_written=result.after.rows,
            ).advising("run `streamsem verify`. If it finds no violation, run `streamsem doctor-spark`.")
        return result.output

    def staged(
        self, sinks: Mapping[str, Committable], *, quarantine: Quarantine | None = None, state: Json = None
    ) -> StagedManifest:
        """Store the manifest of the attempt (W18)."""
        plan = self._head.plan
        manifest = StagedManifest(
            version=self.version,
            attempt_id=self.id,
            plan=self._head.plan_sha,
            spec=plan.spec,
            transform=plan.transform,
            sinks=sinks,
            schemas={},
            quarantine=quarantine or Quarantine(),
            counts={},
            state=state,
            staged_ms=self.log.clock.now_ms() - self._started_ms,
            nonce=self.log.clock.new_id(),
        )
        self.log.put_staged(manifest)
        return manifest


def _abort(bound: BoundPipeline, head: OpenHead, error: StreamsemError) -> None:
    """Abort a version that could not be staged. If this fails, the next run, or the next maintenance, aborts it."""
    name = head.plan.work.name
    try:
        reason = f"the {name} could not be staged: {type(error).__name__}: {error.summary}"
        initial_state = bound.record.initial_state
        close(bound.log, head, abort_outcome(bound.log, head, reason=reason, initial_state=initial_state))
    except StreamsemError as failure:
        logger.warning("the %s stays open until the next run: %s", name, failure)


def _lost_error(work: Kind, version: int) -> OpenVersionError:
    summary = (
        f"another writer created the next version or aborted the {work.name}, so the {work.name} was not committed"
    )
    return OpenVersionError(summary, version=version).advising(
        "repeat the command when no batch runs. In a DAG, set `retries`. If tasks write the pipeline continuously, give all its tasks one Airflow pool with "
        "one slot."
    )
