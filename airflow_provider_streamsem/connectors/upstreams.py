"""Additional interfaces of sources that read another pipeline, or any system that replaces records after they were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges


@runtime_checkable
class Repinning(Protocol):
    """
    Additional interface of a source that may replace records after they were read, as a reprocessing run of another pipeline does.

    Pins identify the former records. A reprocessing run takes new pins for the same ranges, and so reads the newest records (W25).
    """

    @property
    def on_reprocess(self) -> str:
        """
        How a run reacts to a slice with ``corrected`` records whose former values were read by earlier versions.

        ``refuse``: the run fails before it plans. ``reprocess``: the run reprocesses these versions before it plans. ``ignore``: replaced records are not
        reported in ``corrected``, and their rows are kept. Only records that the source will deliver again, after a rollback, are reported. For these the run
        fails before it plans.
        """
        ...

    def is_outdated(self, ranges: Ranges, gaps: Gaps, pins: Sequence[Any]) -> bool:
        """
        Return whether the source has replaced or removed records that a plan has read.

        :param ranges: the ranges of the plan
        :param gaps: the gaps of the plan
        :param pins: the pins of the plan
        :raises UnavailableError: the source did not report the result of a request
        """
        ...

    def repin(self, ranges: Ranges, gaps: Gaps, pins: Sequence[Any]) -> Sequence[Any]:
        """
        Return pins of the newest records of the ranges of a plan. Equal pins identify the same records. Different pins may do so too.

        :param ranges: the ranges of the plan
        :param gaps: the gaps of the plan, which the new pins leave out too
        :param pins: the pins of the plan
        :raises UnavailableError: the source did not report the result of a request
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """
    The pipeline from which a source reads.

    :param pipeline: its name
    :param log: URL of its log
    :param sink: the sink whose rows the source reads
    :param label: the guarantee that its newest version records for this sink, such as ``exactly_once``
    :param conditions: the condition of the label; ``""`` if it is unconditional
    """

    pipeline: str
    log: str
    sink: str
    label: str
    conditions: str


@runtime_checkable
class ReadsPipeline(Protocol):
    """Additional interface of a source that reads the rows of another pipeline."""

    def upstream(self) -> Upstream:
        """
        Read the name and the guarantee of the other pipeline. Sends requests.

        :raises StreamsemError: the other pipeline has no version yet, or its log cannot be read
        """
        ...
