"""Computes the delivery guarantee of a pipeline from the declarations of its source, transform, dedup settings and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_streamsem import registry
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.delivery import SATISFIES, weaker
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.state.settings import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """
    The delivery guarantee of a pipeline. It holds through retries, clears, zombies and crashes.

    :param label: ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``, for every record of the source and every sink. ``none`` if one
        sink may lose records and another may repeat them
    :param reasons: the reasons for the label, one sentence each. If a setting would strengthen the guarantee, the reason names it
    :param sinks: sink → the guarantee from the source to this sink, as a label
    :param conditions: the condition of the label, such as ``dedup 24 h``; ``""`` if it is unconditional
    """

    label: str
    reasons: tuple[str, ...]
    sinks: Mapping[str, str]
    conditions: str = ""

    @property
    def named(self) -> str:
        """Return the label with its conditions for display, such as ``effectively-once (dedup 24 h)``."""
        return self.label.replace("_", "-") + (f" ({self.conditions})" if self.conditions else "")

    def __str__(self) -> str:
        return "\n".join([self.named, *(f"  - {reason}" for reason in self.reasons)])


_INTERVALS = (
    "intervals: each record is in at most one interval, and no record between two intervals that follow each other is left out. The first of them that runs "
    "determines the offset at which one ends and the next begins, so a record that arrives in the source after its interval was read is in a later one"
)


class _Pipeline(Protocol):
    """The parts of a ``Pipeline`` that determine its guarantee."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Source: ...
    @property
    def sinks(self) -> Mapping[str, Sink]: ...
    @property
    def transform(self) -> Callable[..., Any] | str | None: ...
    @property
    def where(self) -> str | None: ...
    @property
    def lookups(self) -> Mapping[str, Lookup]: ...
    @property
    def dedup(self) -> Dedup | None: ...
    @property
    def state(self) -> State | None: ...
    @property
    def intervals(self) -> bool: ...
    @property
    def sinks_outside_log(self) -> Any: ...


def guarantee(pipeline: _Pipeline) -> Guarantee:
    """
    Compute the guarantee of a pipeline from its source, dedup settings, transform and sinks. The weakest of them determines the label.

    If two sinks have guarantees of which neither satisfies the other, the label is ``none``.
    """
    reasons = [
        "a durable plan records the offset ranges before the first row is read, and every attempt reads exactly these ranges"
    ]
    if pipeline.intervals:
        reasons.append(_INTERVALS)
    reasons += [f"source: {reason}" for reason in pipeline.source.reasons]
    for name, lookup in sorted(pipeline.lookups.items()):
        reasons += [f"lookup {name}: {reason}" for reason in lookup.reasons]
    if pipeline.where is not None:
        reasons.append(
            "where: each attempt evaluates the predicate once for each record, also if it has clocks or random values; another attempt may get other values"
        )
    if pipeline.dedup is not None:
        reasons += _dedup_reasons(pipeline.dedup, has_state=pipeline.state is not None)
    reasons.append(_transform_reason(pipeline))
    if pipeline.state is not None:
        reasons += [f"state: {reason}" for reason in pipeline.state.reasons]
    source_label = (
        pipeline.source.delivery if pipeline.dedup is None else weaker(pipeline.source.delivery, "effectively_once")
    )
    labels = {}
    for name, sink in sorted(pipeline.sinks.items()):
        reasons += [f"sink {name}: {reason}" for reason in sink.reasons]
        if pipeline.state is not None and pipeline.state.output_mode != "append":
            reasons.append(f"sink {name}: {_mode_reason(pipeline.state.output_mode, sink)}")
        if sink.is_sequenced and pipeline.source.order:
            reasons.append(f"sink {name}: {pipeline.source.order}")
        labels[name] = _path_label(source_label, sink.delivery)
    if len(pipeline.sinks) > 1:
        reasons.append(_sinks_reason(pipeline))
    label = "exactly_once"
    for other in labels.values():
        label = weaker(label, other)
    if label == "none":
        reasons.append(
            "one sink may lose records and another may repeat them: see the label of each sink; separate pipelines would each have one label"
        )
    return Guarantee(label=label, reasons=tuple(reasons), sinks=labels, conditions=_conditions(pipeline))


def warnings(pipeline: _Pipeline) -> list[str]:
    """Return warnings about connections without encryption, one sentence each. Skips a connection that does not exist, because a run refuses it."""
    messages: list[str] = []
    for warnings_of in (pipeline.source.warnings, *(sink.warnings for sink in pipeline.sinks.values())):
        with suppress(InvalidError):
            messages += warnings_of()
    return messages


def _path_label(source: str, sink: str) -> str:
    """
    An effectively-once source returns each record once, within its conditions (such as ``dedup 24 h``). So with an exactly-once sink the path has the source's
    label, and with any other sink it has the sink's label.
    """
    if source == "effectively_once":
        return source if sink == "exactly_once" else sink
    return weaker(source, sink)


def _conditions(pipeline: _Pipeline) -> str:
    conditions = [pipeline.source.conditions]
    conditions += ["within the intervals"] if pipeline.intervals else []
    conditions += [part.conditions for part in (pipeline.dedup, pipeline.state) if part is not None]
    conditions += dict.fromkeys(sink.conditions for _, sink in sorted(pipeline.sinks.items()))
    depends_on_order = any(sink.is_sequenced for sink in pipeline.sinks.values())
    if depends_on_order and pipeline.source.order:
        conditions.append("partly ordered records")
    return ", ".join(filter(None, conditions))


def _dedup_reasons(dedup: Dedup, *, has_state: bool) -> list[str]:
    keys = ", ".join(dedup.keys)
    if not dedup.keeps_state:
        return [
            f"dedup: of the records of one batch with equal {keys}, one passes; repeats in other batches also pass (scope='pipeline' drops them)"
        ]
    reasons = [
        f"dedup: of the records with equal {keys}, one passes while its id is in the deduplication state ({dedup.conditions}), which is committed with the "
        "batch. A later repeat passes"
    ]
    if dedup.ttl_s is not None:
        reasons.append(
            "dedup: the age of an id is the difference of the clocks of the machines that planned the two batches. If a clock is ahead by more than an hour, "
            "ids expire that much earlier. With rows= in place of ttl_s=, no clock matters"
        )
    if has_state:
        reasons.append(
            "dedup: a reprocessing run does not change the state, so a record that only this run lets pass is not in the state, and a later repeat passes"
        )
    return reasons


def _mode_reason(output_mode: str, sink: Sink) -> str:
    """Say which rows a sink gets if the transform returns a row of a key again in a later batch (output mode ``update`` or ``complete``)."""
    if sink.changes is not None and sink.changes.keeps_history:
        return f'output_mode="{output_mode}" returns a key again, and each row of a key is a version in the table'
    if sink.merges:
        return f'output_mode="{output_mode}" returns a key again, and mode="upsert" keeps the newest row of each key'
    kind = registry.name_of("sinks", sink)
    return f'output_mode="{output_mode}" returns a row at each change of its key, so a sink of type {kind} gets a stream of changes'


def _transform_reason(pipeline: _Pipeline) -> str:
    if pipeline.transform is None:
        return "transform: none, rows pass unchanged"
    text = (
        "transform: the output of one attempt is committed as a whole, so random or clock values in it neither lose nor repeat rows. To shuffle rows by "
        "such values, use Spark 4.1 or later, which detects a retried shuffle with different rows"
    )
    if len(pipeline.sinks) == 1:
        return text
    return (
        f"{text}. The records, and each DataFrame from which several sinks get rows, are evaluated once; if an executor that has them is lost, the attempt "
        "fails. An attempt is refused if the DataFrames of two sinks then still select rows by random values, user code or the order of rows"
    )


def _sinks_reason(pipeline: _Pipeline) -> str:
    together = "one object commits the batch for all sinks together"
    if not pipeline.sinks_outside_log:
        return together
    return f"{together}; sinks outside the log then publish in order, and no later version is planned before the receipts exist"


def require(pipeline: _Pipeline, least: str) -> None:
    """Refuse a pipeline whose guarantee is weaker than required."""
    computed = guarantee(pipeline)
    if least not in SATISFIES[computed.label]:
        raise InvalidError(
            "the pipeline's guarantee is weaker than it requires; no run can start",
            pipeline=pipeline.name,
            require=least,
            computed=computed.label,
            reasons=list(computed.reasons),
        ).advising("run `streamsem explain`, then change the pipeline or `require`.")
