"""Simulated pipelines that operators roll back while runs, reprocessing runs and vacuum go on."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem import Limits, Pipeline, State
from airflow_provider_streamsem.errors import ConflictError, InvalidError, OpenVersionError
from tests.simulation.checks import RawLog
from tests.simulation.scheduler import Process
from tests.simulation.simulated_pipeline import PipelineFixture
from tests.simulation.stateful import StatefulPipeline, unchanged
from tests.simulation.tables import TablesPipeline

ROLLBACK_KINDS = ("drain", "drain", "arrival", "rollback", "rollback", "rollback", "rollback")
"""Kinds of processes that the pipelines with rollbacks add to those of their base pipeline"""
OUTDATED_ROLLBACK = (
    "at the same time",
    "has aborted the rollback",
    "the version was rolled back",
    "has reprocessed a version",
    "state after",
    "is open",
    "closed versions only",
    "has expired",
)
OUTDATED_REPROCESS = (
    "the version was rolled back",
    "state before this version",
    "only a committed batch can be reprocessed",
    "has expired",
)
"""Parts of the errors of requests that other processes have made impossible."""


def is_outdated(process: Process, error: Exception | None) -> bool:
    """Whether the request of a user was refused because of what other processes have done."""
    if process.kind == "rollback":
        return isinstance(error, (ConflictError, InvalidError, OpenVersionError)) and any(
            r in error.summary for r in OUTDATED_ROLLBACK
        )
    is_reprocess = process.kind.endswith("reprocess")
    return is_reprocess and isinstance(error, InvalidError) and any(r in error.summary for r in OUTDATED_REPROCESS)


class WithRollbacks(PipelineFixture):
    """A pipeline whose batches have one file each, and whose requests may become outdated. Base class of the fixtures below."""

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"limits": Limits(max_files=1), **changes})

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        if is_outdated(process, error):
            self.scheduler.count["refused: the request was outdated"] += 1
            return True
        return super().allows_failure(process, error, log)


class RollbackPipeline(WithRollbacks):
    """A pipeline from files into files, with rollbacks."""

    name = "rollback"
    kinds = (*PipelineFixture.kinds, *ROLLBACK_KINDS)


class TablesRollbackPipeline(WithRollbacks, TablesPipeline):
    """A pipeline into files and two tables, with rollbacks."""

    name = "tables-rollback"
    kinds = (*TablesPipeline.kinds, *ROLLBACK_KINDS)


class StatefulRollbackPipeline(WithRollbacks, StatefulPipeline):
    """A pipeline with state, with rollbacks. Vacuum keeps the state of a few versions."""

    name = "stateful-rollback"
    kinds = (*StatefulPipeline.kinds, *ROLLBACK_KINDS)

    def pipeline(self, **changes: Any) -> Pipeline:
        state = State(output_mode="update", partitions=1, keep_versions=3)
        given = {"state": state, "transform": unchanged, "rows": "any"}
        return super().pipeline(**{**given, **changes})
