"""The delivery guarantee of a pipeline, computed from what its parts declare; never asserted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    from airflow_provider_streamsem.batch.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """
    What a pipeline keeps through retries, clears, zombies and crashes.

    :param label: ``exactly_once``, ``at_least_once`` or ``at_most_once``: of records that are read, over all sinks
    :param reasons: why, one sentence each
    """

    label: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.label, *(f"  - {reason}" for reason in self.reasons)])


def guarantee(pipeline: Pipeline) -> Guarantee:
    """Compute the guarantee: source × sinks, the weakest part decides."""
    reasons = [
        "offset ranges are fixed in a durable plan before the first row is read, and every attempt reads that plan"
    ]
    reasons += [f"source: {reason}" for reason in pipeline.source.reasons]
    weakest = "exactly_once" if pipeline.source.replayable else "at_most_once"
    if not pipeline.source.replayable:
        reasons.append("source: it cannot be read again, so what a failed attempt read is lost")
    for name, sink in sorted(pipeline.sinks.items()):
        reasons += [f"sink {name}: {reason}" for reason in sink.reasons]
        if sink.delivery != "exactly_once" and weakest == "exactly_once":
            weakest = sink.delivery
        elif sink.delivery not in ("exactly_once", weakest):
            raise InvalidError(
                "a pipeline cannot be at-most-once and at-least-once at a time",
                pipeline=pipeline.name,
                sink=name,
                given=sink.delivery,
            )
    if len(pipeline.sinks) > 1:
        reasons.append("all sinks of a batch become visible by one object, together or not at all")
    return Guarantee(label=weakest, reasons=tuple(reasons))


def require(pipeline: Pipeline, least: str) -> None:
    """
    Refuse a pipeline that keeps less than ``least``.

    :raises InvalidError: names the computed guarantee and its reasons
    """
    computed = guarantee(pipeline)
    if computed.label not in ("exactly_once", least):
        raise InvalidError(
            "the pipeline keeps less than it requires",
            pipeline=pipeline.name,
            require=least,
            keeps=computed.label,
            reasons=list(computed.reasons),
        )
