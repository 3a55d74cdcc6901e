"""A simulated pipeline whose files are compacted while runs, reprocessing runs, rollbacks and vacuum go on."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_provider_streamsem.errors import InvalidError
from tests.simulation.checks import RawLog
from tests.simulation.rollback import RollbackPipeline
from tests.simulation.scheduler import Process


class RewritesPipeline(RollbackPipeline):
    """A pipeline from files into files, with rollbacks and compactions. Vacuum deletes files that the newest two versions do not need."""

    name = "rewrites"
    kinds = (*RollbackPipeline.kinds, *("compact",) * 9, "vacuum", "vacuum", "vacuum")
    processes = (12, 20)
    vacuum_from = 6
    vacuum_waits = 600
    follow_a_vacuum = ("single", "compact", "reprocess", "rollback", "reprocess", "vacuum")
    vacuum_arguments: ClassVar[dict[str, Any]] = {"keep_versions": 2, "keep_days": 0}

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        is_expired = isinstance(error, InvalidError) and "the version has expired" in error.summary
        if process.kind == "reader" and is_expired:
            self.scheduler.count["refused: the request was outdated"] += 1
            return True
        return super().allows_failure(process, error, log)
