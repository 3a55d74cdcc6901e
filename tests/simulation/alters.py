"""A simulated pipeline whose sinks are altered while runs, reprocessing runs, rollbacks, compactions and vacuum go on."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from airflow_provider_streamsem import FilesSink, Limits, Pipeline
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.rollback import ROLLBACK_KINDS, WithRollbacks
from tests.simulation.scheduler import Process
from tests.simulation.simulated_pipeline import PipelineFixture

OUTDATED = (
    "immutable fields differ",
    "was altered after the version",
    "lost to a version of another process",
    "has expired",
    "no version, so no field is immutable",
)
"""Parts of the errors of processes that another alter has made impossible."""


class AltersPipeline(WithRollbacks):
    """A pipeline into files, whose alters add a second sink and remove it again. A few processes have the other spec than the log."""

    name = "alters"
    kinds = (*PipelineFixture.kinds, *ROLLBACK_KINDS[:5], *("alter",) * 6, "compact", "compact", "vacuum")
    processes = (10, 18)
    vacuum_arguments: ClassVar[dict[str, Any]] = {"keep_versions": 3, "keep_days": 0}

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"limits": Limits(max_files=1), **changes})

    @cached_property
    def specs(self) -> tuple[tuple[Pipeline, Pipeline], tuple[Pipeline, Pipeline]]:
        """The specs without the second sink and with it, each with two limits."""
        plain = self.pipeline()
        sinks = {name: FilesSink(path=str(self.root / name), format="json") for name in ("out", "extra")}
        return (plain, plain.replace(limits=Limits(max_files=2))), (
            plain.replace(sinks=sinks),
            plain.replace(sinks=sinks, limits=Limits(max_files=2)),
        )

    def current(self, log: RawLog) -> tuple[Pipeline, Pipeline]:
        """The specs that fit the log."""
        return self.specs[has_extra(log, len(log.plans))]

    def other(self, log: RawLog) -> Pipeline:
        """The spec of an alter."""
        return self.specs[not has_extra(log, len(log.plans))][0]

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        is_outdated = isinstance(error, (ConflictError, InvalidError)) and any(
            part in error.summary for part in OUTDATED
        )
        is_used = isinstance(error, ConflictError) and "has files of an earlier sink" in error.summary
        if is_outdated or (is_used and any(has_extra(log, version) for version in range(len(log.plans)))):
            self.scheduler.count["refused: the pipeline was altered"] += 1
            return True
        return super().allows_failure(process, error, log)

    def check_end(self, log: RawLog) -> None:
        """Check that every version has the sinks of the log at that time (W35), and that the second sink has the rows since it was added."""
        super().check_end(log)
        for version in log.committed:
            found = {*log.outcomes[version]["sinks"]}
            if log.kind(version) in ("batch", "reprocess"):
                expected = {"out", "extra"} if has_extra(log, version) else {"out"}
                require(found == expected, "a version has the sinks of another spec", version, found, expected)
        head = len(log.outcomes) - 1
        if has_extra(log, head + 1):
            added = max(version for version in log.committed if log.kind(version) == "alter")
            # Vacuum may have deleted the files of expired versions whose rows are in a rewrite.
            first = max(added + 1, log.outcomes[head].get("newest", {}).get("expire", 0))
            since = [version for version in log.visible_commits(head) if version >= first]
            written = checks.ids(self.root / "out", [key for version in since for key in log.files(version)])
            copied = checks.ids(self.root / "extra", [key for v in since for key in log.files(v, "extra")])
            require(written == copied, "the second sink lacks rows, or has others", written, copied)


def has_extra(log: RawLog, before: int) -> bool:
    """Whether a version has the second sink: the alters before it, also an open one, add and remove it in turn."""
    alters = [version for version in log.plans if version < before and log.kind(version) == "alter"]
    return sum(version in log.committed or version not in log.outcomes for version in alters) % 2 == 1
