"""
Combines several sources of a pipeline into one. The transform receives a mapping of source names to DataFrames.

Each partition has the name of its source as a prefix, as in ``orders/orders-0``. So ranges, gaps, offsets and targets of all sources are in one plan and one
outcome. A source without new records has no range in a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import Expiry, LoadedTogether, Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.delivery import weaker
from airflow_provider_streamsem.errors import DataError, LogDamagedError, StreamsemError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class SourcePins:
    """The pins of one source, at least one."""

    source: str
    pins: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SeveralEnd(SourceEnd):
    """The end of all sources. ``ends`` maps source name → the end that its own planner has found."""

    ends: Mapping[str, SourceEnd]


@dataclass(frozen=True)
class SeveralSources(Source):
    """The sources of a pipeline that has several: name → source, in the order in which messages list them."""

    sources: Mapping[str, Source]

    @property
    def parts(self) -> Mapping[str, Source]:
        return self.sources

    @property
    def delivery(self) -> str:
        """The weakest guarantee of the sources."""
        return reduce(weaker, (source.delivery for source in self.parts.values()))

    @property
    def conditions(self) -> str:
        return ", ".join(dict.fromkeys(source.conditions for source in self.parts.values() if source.conditions))

    @property
    def unit(self) -> str:
        """The unit of all sources, or ``items`` if they differ."""
        units = {unit for source in self.parts.values() for unit in (source.unit, source.range_unit)}
        return units.pop() if len(units) == 1 else "items"

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits that all sources support. Each limit applies to each source by itself."""
        first, *others = (source.limits for source in self.parts.values())
        return tuple(name for name in first if all(name in other for other in others))

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f"{name}: {reason}" for name, source in self.parts.items() for reason in source.reasons)

    @property
    def spark_packages(self) -> tuple[str, ...]:
        packages = [package for source in self.parts.values() for package in source.spark_packages]
        on_s3 = [source for source in self.parts.values() if (source.location or "").startswith("s3://")]
        return tuple(dict.fromkeys([*packages, *(["s3a"] if on_s3 else [])]))

    def warnings(self) -> list[str]:
        return [text for source in self.parts.values() for text in source.warnings()]

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [name for key, source in self.parts.items() for name in source.lineage(_of_source(ranges, key))]

    def immutable_config(self) -> Json:
        return {name: source.immutable_config() for name, source in self.parts.items()}

    def initial_offsets(self) -> Offsets:
        return _prefixed({name: source.initial_offsets() for name, source in self.parts.items()})

    def extends(self, before: Json) -> Offsets | None:
        """``before`` is name → immutable fields of each of the other sources. The result is ``None`` also if a source is missing."""
        if not isinstance(before, Mapping) or not before.keys() <= self.parts.keys():
            return None
        added: dict[str, Offsets] = {}
        for name, source in self.parts.items():
            if before.get(name) == source.immutable_config():
                continue
            with _naming(name):
                offsets = source.initial_offsets() if name not in before else source.extends(before[name])
            if offsets is None:
                return None
            added[name] = offsets
        return _prefixed(added)

    @property
    def reads_intervals(self) -> bool:
        return all(source.reads_intervals for source in self.parts.values())

    def offsets_for_time_in(self, log: CommitLog, at_ms: int) -> Offsets:
        found: dict[str, Offsets] = {}
        for name, source in self.parts.items():
            with _naming(name):
                found[name] = source.offsets_for_time_in(log.under(f"{name}{_SEPARATOR}"), at_ms)
        return _prefixed(found)

    def open(self, log: CommitLog, hint: Json) -> SeveralPlanner:
        """Open each source with its own key prefix in the log."""
        planners = {
            name: source.open(log.under(f"{name}{_SEPARATOR}"), _hint_of(hint, name))
            for name, source in self.parts.items()
        }
        return SeveralPlanner(planners)

    def peek(self, log: CommitLog, hint: Json) -> SeveralPlanner:
        planners = {
            name: source.peek(log.under(f"{name}{_SEPARATOR}"), _hint_of(hint, name))
            for name, source in self.parts.items()
        }
        return SeveralPlanner(planners)

    def read_pins(self, pins: Json) -> Sequence[SourcePins]:
        if not isinstance(pins, Sequence) or not all(isinstance(item, Mapping) for item in pins):
            raise LogDamagedError(
                "the pins of a plan with several sources are not a list of {source, pins}", invariant="R6"
            )
        names = [item.get("source") for item in pins]
        if len(set(names)) < len(names) or any(name not in self.parts for name in names):
            raise LogDamagedError(
                "the pins of a plan name a source twice, or one that the pipeline does not have",
                invariant="R6",
                sources=names,
            )
        return [
            SourcePins(name, tuple(self.parts[name].read_pins(item.get("pins"))))
            for name, item in zip(names, pins, strict=True)
        ]

    def next_hint(self, hint: Json, pins: Sequence[SourcePins], counts: Mapping[str, int]) -> Json:
        """Return the hint of each source. A source that the plan does not read keeps its hint."""
        planned = {item.source: item.pins for item in pins}
        return {
            name: source.next_hint(
                _hint_of(hint, name), planned[name], {**counts, "read": counts.get(f"read.{name}", 0)}
            )
            if name in planned
            else _hint_of(hint, name)
            for name, source in self.parts.items()
        }

    def explain_failure(self, messages: Sequence[str], ranges: Ranges) -> DataError | None:
        parts = self.parts.items()
        explained = (source.explain_failure(messages, _of_source(ranges, name)) for name, source in parts)
        return next((error for error in explained if error is not None), None)

    def check_pins(self, pins: Sequence[SourcePins], *, was_read: bool) -> None:
        for item in pins:
            with _naming(item.source):
                self.parts[item.source].check_pins(item.pins, was_read=was_read)

    def load(self, spark: SparkSession, pins: Sequence[SourcePins]) -> LoadedTogether:
        """Load each source. A source that the plan does not read has no records."""
        planned = {item.source: item.pins for item in pins}
        loaded: dict[str, Any] = {}
        for name, source in self.parts.items():
            with _naming(name):
                loaded[name] = source.load(spark, planned.get(name, ()))
        return LoadedTogether(loaded)

    @property
    def on_reprocess(self) -> str | None:
        """The strictest rule of the sources whose records may be replaced: ``refuse``, then ``reprocess``, then ``ignore``."""
        rules = {source.on_reprocess for source in self.parts.values()}
        return next((rule for rule in ("refuse", "reprocess", "ignore") if rule in rules), None)

    def is_outdated(self, ranges: Ranges, gaps: Gaps, pins: Sequence[SourcePins]) -> bool:
        planned = {item.source: item.pins for item in pins}
        for name, source in self.parts.items():
            source_ranges = _of_source(ranges, name)
            if source_ranges:
                with _naming(name):
                    if source.is_outdated(source_ranges, _of_source(gaps, name), planned.get(name, ())):
                        return True
        return False

    def repin(self, ranges: Ranges, gaps: Gaps, pins: Sequence[SourcePins]) -> Sequence[SourcePins]:
        """Return the newest pins of each source whose records may be replaced, and the same pins of the others."""
        planned = {item.source: item.pins for item in pins}
        for name, source in self.parts.items():
            source_ranges = _of_source(ranges, name)
            if source_ranges:
                with _naming(name):
                    planned[name] = tuple(source.repin(source_ranges, _of_source(gaps, name), planned.get(name, ())))
        return [SourcePins(name, newest) for name, newest in planned.items() if newest]

    def count(self, ranges: Ranges) -> int:
        return sum(source.count(_of_source(ranges, name)) for name, source in self.parts.items())

    @property
    def has_retention(self) -> bool:
        return any(source.has_retention for source in self.parts.values())

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        expiries = [
            source.expiry(_of_source(start, name), within_ms=within_ms, now_ms=now_ms)
            for name, source in self.parts.items()
        ]
        spares = [expiry.spare for expiry in expiries if expiry.spare is not None]
        return Expiry(
            lost=sum(expiry.lost for expiry in expiries),
            at_risk=sum(expiry.at_risk for expiry in expiries),
            spare=min(spares, default=None),
        )


class SeveralPlanner(Planner):
    """The planners of several sources."""

    def __init__(self, planners: Mapping[str, Planner]) -> None:
        self._planners = planners

    def poll(self, hint: Json) -> SeveralEnd:
        ends: dict[str, SourceEnd] = {}
        for name, planner in self._planners.items():
            with _naming(name):
                ends[name] = planner.poll(_hint_of(hint, name))
        return SeveralEnd(_prefixed({name: end.offsets for name, end in ends.items()}), ends)

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Slice each source by itself. A source without new records is not part of the slice."""
        slices: dict[str, SourceSlice] = {}
        hints = {name: _hint_of(hint, name) for name in self._planners}
        for name, planner in self._planners.items():
            source_end = end.ends[name] if isinstance(end, SeveralEnd) else SourceEnd(_of_source(end.offsets, name))
            with _naming(name):
                part = planner.slice(
                    _of_source(start, name), source_end, limits, hints[name], on_data_loss=on_data_loss
                )
            if part is not None:
                slices[name], hints[name] = part, part.hint
        if not slices:
            return None
        return SourceSlice(
            ranges=_prefixed({name: part.ranges for name, part in slices.items()}),
            gaps=_prefixed({name: part.gaps for name, part in slices.items()}),
            pins=[SourcePins(name, tuple(part.pins)) for name, part in slices.items() if part.pins],
            hint=hints,
            rows=sum(part.rows for part in slices.values()),
            corrected=_prefixed({name: part.corrected for name, part in slices.items()}),
        )

    def lag(self, start: Offsets, hint: Json) -> int:
        return sum(
            planner.lag(_of_source(start, name), _hint_of(hint, name)) for name, planner in self._planners.items()
        )

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(planner.unread_before(_of_source(start, name), at_ms) for name, planner in self._planners.items())

    def minimum_clock(self, start: Offsets) -> int | None:
        clocks = [planner.minimum_clock(_of_source(start, name)) for name, planner in self._planners.items()]
        return min((clock for clock in clocks if clock is not None), default=None)


def _prefixed(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{name}{_SEPARATOR}{partition}": value for name, part in parts.items() for partition, value in part.items()
    }


def _of_source(whole: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}{_SEPARATOR}"
    return {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}


def _hint_of(hint: Json, name: str) -> Json:
    return hint.get(name) if isinstance(hint, Mapping) else None


@contextmanager
def _naming(source: str) -> Iterator[None]:
    try:
        yield
    except StreamsemError as error:
        error.fields = {"source": source, **error.fields}
        raise
