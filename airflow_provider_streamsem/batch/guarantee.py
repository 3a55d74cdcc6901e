"""The delivery guarantee of a pipeline, computed from what its parts declare; never asserted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    from airflow_provider_streamsem.batch.pipeline import Pipeline
    from airflow_provider_streamsem.engines.dedup import Dedup

KEEPS: Mapping[str, frozenset[str]] = {
    "exactly_once": frozenset({"exactly_once", "effectively_once", "at_least_once", "at_most_once"}),
    "effectively_once": frozenset({"effectively_once", "at_least_once"}),
    "at_least_once": frozenset({"at_least_once"}),
    "at_most_once": frozenset({"at_most_once"}),
    "none": frozenset(),
}
"""label → the labels that it keeps, too. An effectively-once sink does repeat: what is repeated there has no further effect"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """
    What a pipeline keeps through retries, clears, zombies and crashes.

    :param label: ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``: of records that are read, over all sinks; ``none`` where one
        sink may lose and another one repeat
    :param reasons: why, one sentence each; where it could be more, with the knob
    :param sinks: sink → its own label, the source's included
    :param terms: what the label depends on, such as ``dedup 24 h``; ``""`` where it depends on nothing
    """

    label: str
    reasons: tuple[str, ...]
    sinks: Mapping[str, str]
    terms: str = ""

    @property
    def named(self) -> str:
        """The label with its terms, as people read it: ``effectively-once (dedup 24 h)``."""
        return self.label.replace("_", "-") + (f" ({self.terms})" if self.terms else "")

    def __str__(self) -> str:
        return "\n".join([self.named, *(f"  - {reason}" for reason in self.reasons)])


def guarantee(pipeline: Pipeline) -> Guarantee:
    """Compute the guarantee: source × transform × sinks, the weakest part decides."""
    reasons = [
        "offset ranges are fixed in a durable plan before the first row is read, and every attempt reads that plan"
    ]
    reasons += [f"source: {reason}" for reason in pipeline.source.reasons]
    if pipeline.dedup is not None:
        reasons.append(_of_dedup(pipeline.dedup))
    reasons.append(_of_transform(pipeline))
    read = pipeline.source.delivery if pipeline.dedup is None else _weaker(pipeline.source.delivery, "effectively_once")
    labels = {}
    for name, sink in sorted(pipeline.sinks.items()):
        reasons += [f"sink {name}: {reason}" for reason in sink.reasons]
        labels[name] = _read_and_written(read, sink.delivery)
    if len(pipeline.sinks) > 1:
        reasons.append(_of_sinks(pipeline))
    label = "exactly_once"
    for other in labels.values():
        label = _weaker(label, other)
    if label == "none":
        reasons.append("one sink may lose and another may repeat: look at each; two pipelines would each have a label")
    return Guarantee(label=label, reasons=tuple(reasons), sinks=labels, terms=_terms(pipeline))


def warnings(pipeline: Pipeline) -> list[str]:
    """What is unsafe in how source and sinks are reached, one sentence each. A connection that is not there says nothing here: a run refuses it."""
    found: list[str] = []
    for part in (pipeline.source, *pipeline.sinks.values()):
        with suppress(InvalidError):
            found += getattr(part, "warnings", list)()
    return found


def _read_and_written(source: str, sink: str) -> str:
    """What a sink keeps of what it is given. Where repeats are dropped each id is given once, on the terms of that, so a sink that never repeats keeps that."""
    if source == "effectively_once":
        return source if sink == "exactly_once" else sink
    return _weaker(source, sink)


def _weaker(label: str, other: str) -> str:
    """What holds where both hold of a part each."""
    both = KEEPS[label] & KEEPS[other]
    return next((name for name in KEEPS if name in both), "none")


def _terms(pipeline: Pipeline) -> str:
    terms = [pipeline.source.terms, "" if pipeline.dedup is None else pipeline.dedup.terms]
    return ", ".join(filter(None, terms))


def _of_dedup(dedup: Dedup) -> str:
    keys = ", ".join(dedup.keys)
    if not dedup.remembers:
        return f"dedup: of the records of one batch with equal {keys} one passes; across batches nothing is dropped (scope='pipeline' would)"
    return (
        f"dedup: of the records with equal {keys} one passes while its id is remembered ({dedup.terms}); what is remembered is decided with the batch "
        "itself. A repeat that comes later passes"
    )


def _of_transform(pipeline: Pipeline) -> str:
    if pipeline.transform is None:
        return "transform: none, rows pass as they are"
    said = (
        "transform: one attempt's output is decided whole: a random or clock value in it repeats and loses nothing; rows that are shuffled by one need "
        "Spark 4.1, which notices where a repeated part of a job differs"
    )
    if len(pipeline.sinks) == 1:
        return said
    shared = "What sinks share is evaluated once and cached; where an executor is lost, a part is evaluated again, and random values may then differ"
    return f"{said}. {shared} between sinks"


def _of_sinks(pipeline: Pipeline) -> str:
    together = "all sinks of a batch are decided by one object, together or not at all"
    if not pipeline.publishes:
        return together
    return f"{together}; those outside the log follow in order, and nothing new is planned before all of them have answered"


def require(pipeline: Pipeline, least: str) -> None:
    """
    Refuse a pipeline that keeps less than ``least``.

    :raises InvalidError: names the computed guarantee and its reasons
    """
    computed = guarantee(pipeline)
    if least not in KEEPS[computed.label]:
        raise InvalidError(
            "the pipeline keeps less than it requires",
            pipeline=pipeline.name,
            require=least,
            keeps=computed.label,
            reasons=list(computed.reasons),
        )
