"""Records the events of one try of a task. Airflow requests lineage and links from this record after the try has ended."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from importlib.util import find_spec

from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.report import broken_rules
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.telemetry import (
    Adopted,
    Event,
    Output,
    PhaseEnded,
    PhaseStarted,
    Planned,
    SparkStarted,
    VersionClosed,
)

KEPT = 100
"""The maximum number of batches whose details an account keeps. Of other batches it keeps only sums, because a drain may have thousands of batches."""


class Account:
    """
    A listener that records the events of one try of a task.

    :param pipeline: the pipeline that the try runs
    :attr result: the result of the run, set by the caller of the run; ``None`` if the run failed
    :attr run_key: key of the run
    :attr inputs: ``(namespace, name)`` of the datasets that the try read, if the OpenLineage provider is installed
    :attr batches: version → event of its plan, or of its outcome once it is closed; only the newest :data:`KEPT`
    :attr adopted: versions for which the run adopted an attempt of another process
    :attr outputs: sink → output that this try made visible, without versions that another process committed
    :attr broken: name of the count of a rule → number of records and rows that break it, of the versions in ``outputs``
    :attr schemas: sink → schema as Spark JSON
    :attr spark: the Spark application; ``None`` if the try started none
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.result: RunResult | None = None
        self.run_key = ""
        self.inputs: list[tuple[str, str]] = []
        self.batches: dict[int, Planned | VersionClosed] = {}
        self.adopted: set[int] = set()
        self.outputs: dict[str, Output] = {}
        self.broken: Counter[str] = Counter()
        self.schemas: dict[str, str] = {}
        self.spark: SparkStarted | None = None

    def __call__(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, PhaseStarted) and event.phase == "run":
            self.run_key = self.run_key or str(event.facts["run_key"])
        elif isinstance(event, PhaseEnded) and event.phase == "run":
            self._resolve_inputs()
        elif isinstance(event, (Planned, VersionClosed)):
            self._keep(event)
        elif isinstance(event, Adopted):
            self.adopted.add(event.version)
        elif isinstance(event, SparkStarted):
            self.spark = event

    def _keep(self, event: Planned | VersionClosed) -> None:
        self.batches.pop(event.version, None)
        self.batches[event.version] = event
        if len(self.batches) > KEPT:
            del self.batches[next(iter(self.batches))]
        if isinstance(event, VersionClosed):
            self.schemas = dict(event.schemas)
            if event.mine and event.has_rows:
                self.broken.update({name: event.counts[name] for name in broken_rules(event.counts)})
                self.outputs |= {name: _sum(self.outputs.get(name), new) for name, new in event.outputs.items()}

    def _resolve_inputs(self) -> None:
        """Resolve the inputs now, because the OpenLineage provider later runs in a process that cannot look up connections."""
        if find_spec("airflow.providers.openlineage") is None:
            return
        ranges: Ranges = {name: pair for batch in self.batches.values() for name, pair in batch.ranges.items()}
        with suppress(StreamsemError):  # a missing connection has already failed the run
            self.inputs = self.pipeline.lineage(ranges)


def _sum(before: Output | None, new: Output) -> Output:
    if before is None:
        return new
    return Output(rows=before.rows + new.rows, bytes=before.bytes + new.bytes, files=before.files + new.files)
