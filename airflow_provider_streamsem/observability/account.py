"""What one try of a task did, kept for what asks after it when it has ended: lineage and links."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec

from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.result import RunResult
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.telemetry import Adopted, Began, Decided, Ended, Event, Output, Planned, SparkFound

KEPT = 100
"""of how many batches the account keeps more than sums: a drain may have thousands"""


class Account:
    """
    A listener.

    :attr result: the run's answer; ``None`` where it failed. Set by whoever started the run
    :attr inputs: ``(namespace, name)`` of what was read, where the lineage provider is installed
    :attr batches: version → its plan, or its decision; the newest :data:`KEPT`
    :attr adopted: versions whose attempt somebody else had staged
    :attr outputs: sink → what this try made visible; nothing where another process decided
    :attr schemas: sink → schema JSON in Spark's form
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.result: RunResult | None = None
        self.run_key = ""
        self.inputs: list[tuple[str, str]] = []
        self.batches: dict[int, Planned | Decided] = {}
        self.adopted: set[int] = set()
        self.outputs: dict[str, Output] = {}
        self.schemas: dict[str, str] = {}
        self.spark: SparkFound | None = None

    def __call__(self, event: Event) -> None:
        """Keep what the event tells."""
        if isinstance(event, Began) and event.phase == "run":
            self.run_key = self.run_key or str(event.facts["run_key"])
        elif isinstance(event, Ended) and event.phase == "run":
            self._name_inputs()
        elif isinstance(event, (Planned, Decided)):
            self._keep(event)
        elif isinstance(event, Adopted):
            self.adopted.add(event.version)
        elif isinstance(event, SparkFound):
            self.spark = event

    def _keep(self, event: Planned | Decided) -> None:
        self.batches.pop(event.version, None)
        self.batches[event.version] = event
        if len(self.batches) > KEPT:
            del self.batches[next(iter(self.batches))]
        if isinstance(event, Decided):
            self.schemas = dict(event.schemas)
            if event.mine:
                self.outputs = {name: _sum(self.outputs.get(name), new) for name, new in event.outputs.items()}

    def _name_inputs(self) -> None:
        """Now, while connections can be looked up: the lineage provider asks in a process of its own, which cannot."""
        if find_spec("airflow.providers.openlineage") is None:
            return
        ranges: Ranges = {name: pair for batch in self.batches.values() for name, pair in batch.ranges.items()}
        with suppress(StreamsemError):  # the connection that is missing has failed the run already
            self.inputs = self.pipeline.source.lineage(ranges)


def _sum(before: Output | None, new: Output) -> Output:
    if before is None:
        return new
    return Output(rows=before.rows + new.rows, bytes=before.bytes + new.bytes, files=before.files + new.files)
