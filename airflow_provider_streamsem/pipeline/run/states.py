"""The state with which an attempt begins, and the state that it leaves: the ids of the deduplication, and the operators' state."""

from __future__ import annotations

from airflow_provider_streamsem.deduplication.state import ChainStates
from airflow_provider_streamsem.engine import Produced
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.state import files as state_files


class BatchStates:
    """
    The states of an attempt of a batch: it begins with the state of the log's head, and leaves the state after its records.

    :ivar base: the state with which the attempt begins
    :ivar batch_time_ms: the time of the batch in milliseconds UTC; for reprocessing, that of the batch at the root of the chain
    :ivar chain: for reprocessing with deduplication across batches: the states of the chain's commits and of the log's head (W27)
    """

    chain: ChainStates | None = None

    def __init__(self, bound: BoundPipeline, head: OpenHead) -> None:
        self._log, self._settings = bound.log, bound.pipeline.state
        self._plan = head.plan
        self._current: Json = bound.record.initial_state if head.outcome is None else head.outcome.state
        self.base = self._current
        self.batch_time_ms = head.plan.planned_at_ms

    def check_base(self) -> None:
        """Check that the files of the base state can be loaded."""
        state_files.check_base(self._log.store, self.base, self._plan.version)

    def after(self, produced: Produced) -> Json:
        """Return the state of the commit."""
        return state_files.with_digests(self._log.store, produced.state)


class ReprocessingStates(BatchStates):
    """
    The states of an attempt of a reprocessing run: it begins with the state before the batch at the root of the chain.

    Without operators' state, it changes the deduplication state of the log's head. With operators' state, it changes neither, because both must cover the same
    records and the operators' state cannot be changed (W26, W27, W28).
    """

    def __init__(self, bound: BoundPipeline, head: OpenHead, work: Reprocess) -> None:
        super().__init__(bound, head)
        self._replaces = work.replaces
        root = self._log.find_root(work.replaces)
        self.base = bound.state_before(root)
        self.batch_time_ms = self._log.closed_version(root)[0].planned_at_ms
        dedup = bound.pipeline.dedup
        if dedup is not None and dedup.keeps_state:
            self.chain = self._chain(bound)

    def check_base(self) -> None:
        """Check that the files of the base state can be loaded. If vacuum has deleted them, no retry can restore them."""
        if not state_files.is_loadable(self._log.store, self.base):
            raise SourceChangedError(
                "files of the state before the version are missing or were changed, for example because vacuum deleted them",
                version=self._replaces,
            ).advising("restore the files below `state` in the log, or fork the pipeline before this version.")

    def after(self, produced: Produced) -> Json:
        """Return the changed deduplication state, or the state of the log's head."""
        return produced.state if self.chain is not None and self._settings is None else self._current

    def _chain(self, bound: BoundPipeline) -> ChainStates:
        commits: list[tuple[Json, Json]] = []
        version: int | None = self._replaces
        while version is not None:
            outcome = self._log.closed_outcome(version)
            commits.append((bound.state_before(version), outcome.state))
            version = outcome.replaces
        planned_ms = self._plan.planned_at_ms
        return ChainStates(current=self._current, commits=tuple(reversed(commits)), planned_ms=planned_ms)


def states_of(bound: BoundPipeline, head: OpenHead) -> BatchStates:
    """Return the states of an attempt of the open version."""
    work = head.plan.work
    return ReprocessingStates(bound, head, work) if isinstance(work, Reprocess) else BatchStates(bound, head)
