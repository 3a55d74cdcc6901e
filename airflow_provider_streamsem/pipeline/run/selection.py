"""Selects committed batches by version, by the time of their commit or by offsets, and describes what reprocessing them would replace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from airflow_provider_streamsem.arguments import integer
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.partitions import NULL
from airflow_provider_streamsem.pipeline.run.corrections import repinned
from airflow_provider_streamsem.pipeline.run.plan_reprocess import check_state, refuse_sinks
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, existing_record, read_head
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.closing_times import first_closed_after
from airflow_provider_streamsem.protocol.entries import Outcome, Plan
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.protocol.kinds.interval import Interval, text_of
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.protocol.view import Head, add_counts

_KEY = re.compile(r"\d{4}(-\d{2}(-\d{2}(T\d{2})?)?)?", re.ASCII)
_SPAN = re.compile(r"\s*(\d{1,12})(?:\s*-\s*(\d{1,12}))?\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """
    Which batches to select. A batch must satisfy all conditions that are given.

    :param versions: spans ``(first, last)`` of versions, both inclusive; only batches in one of them
    :param since_ms: only batches that were committed at or after this time
    :param until_ms: only batches that were committed at or before this time
    :param offsets: partition → ``[start, end)``; only batches that have read one of these offsets
    :param partitions: first and last key of partitions by event time, both inclusive; only batches whose visible rows are in one of them. The beginning of a
        key names all partitions that begin with it
    """

    versions: tuple[tuple[int, int], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: Ranges = field(default_factory=dict)
    partitions: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        times = {name: getattr(self, name) for name in ("since_ms", "until_ms")}
        others = (self.offsets, self.versions, self.partitions)
        if all(value is None for value in times.values()) and not any(others):
            accepted = ["versions", *times, "offsets", "partitions"]
            raise InvalidError("a selection needs at least one condition", accepted=accepted)
        for name, value in times.items():
            if value is not None:
                integer(name, value, least=0)
        for first, last in self.versions:
            integer("last version", last, least=integer("first version", first, least=0))
        for partition, (start, end) in self.offsets.items():
            if not 0 <= start < end:
                raise InvalidError(
                    "`offsets` must be ranges [start, end) that are not empty", partition=partition, given=[start, end]
                )


def parse_versions(text: str) -> tuple[tuple[int, int], ...]:
    """Return the spans of versions that a text such as ``3-7, 9`` names, for :class:`Selection`."""
    spans = []
    for part in text.split(","):
        found = _SPAN.fullmatch(part)
        if found is None:
            raise InvalidError("versions must have the form N or N-M, separated by commas", given=text)
        spans.append((int(found[1]), int(found[2] or found[1])))
    return tuple(spans)


def parse_partitions(text: str) -> tuple[str, str]:
    """Return the first and the last key that a text such as ``2026-10-01..2026-10-31`` or ``2026-10`` names, for :class:`Selection`."""
    first, dots, last = text.partition("..")
    bounds = (first, last if dots else first)
    if not all(_KEY.fullmatch(bound) for bound in bounds):
        raise InvalidError(
            "partitions must have the form KEY or FIRST..LAST", given=text, accepted="such as 2026-10-01..2026-10-31"
        )
    return bounds


def parse_offset_range(text: str) -> tuple[str, tuple[int, int]]:
    """Return the partition and the offsets ``[start, end)`` that a text such as ``orders/0=100:200`` names."""
    partition, _, bounds = text.rpartition("=")
    start, _, end = bounds.partition(":")
    if not (partition and start.isdecimal() and end.isdecimal()):
        raise InvalidError("offsets must have the form PARTITION=START:END", given=text)
    return partition, (int(start), int(end))


def parse_offsets(texts: Sequence[str]) -> Ranges:
    """Return partition → offsets, for :class:`Selection`. Each text names the range of another partition, as in :func:`parse_offset_range`."""
    parsed = [parse_offset_range(part) for part in texts]
    if len({partition for partition, _ in parsed}) != len(parsed):
        raise InvalidError("a partition has two offset ranges; give one range of each partition", given=list(texts))
    return dict(parsed)


def check_selection(pipeline: Pipeline, selection: Selection) -> None:
    """Refuse a selection by partitions if the pipeline does not record them."""
    if selection.partitions is not None and pipeline.partitions is None and not pipeline.intervals:
        raise InvalidError(
            "the pipeline has neither `partitions` nor `intervals`, so no version is in a partition; nothing was written",
            pipeline=pipeline.name,
        ).advising("select the versions by their numbers, times or offsets.")


def select(log: CommitLog, head: Head, selection: Selection) -> list[int]:
    """
    Return the committed batches of a selection whose rows are visible, in ascending order. A batch that was reprocessed is one batch.

    Reads the plan and the outcome of each version between the first and the last one that may be selected.
    """
    return [plan.version for plan, _ in _selected(log, head, selection)]


def _selected(log: CommitLog, head: Head, selection: Selection) -> Iterator[tuple[Plan, Outcome]]:
    if head.outcome is None:
        return
    spans = selection.versions or ((0, head.closed),)
    first, stop = min(first for first, _ in spans), min(head.closed, max(last for _, last in spans)) + 1
    if selection.until_ms is not None:
        stop = first_closed_after(log, selection.until_ms, 0, stop)
    if selection.since_ms is not None:
        first = max(first, first_closed_after(log, selection.since_ms - 1, 0, stop))
    kept = chain.from_iterable(log.remaining_versions(head.outcome))
    for version in (version for version in kept if first <= version < stop):
        if not any(lowest <= version <= highest for lowest, highest in spans):
            continue
        plan, outcome = log.closed_version(version)
        if not (plan.work.reads_new_records and outcome.committed and _overlaps(plan.ranges, selection.offsets)):
            continue
        if selection.partitions is None or _selected_partitions(log, head, plan, selection.partitions):
            yield plan, outcome


def _selected_partitions(log: CommitLog, head: Head, plan: Plan, partitions: tuple[str, str]) -> list[str]:
    """Return those of some partitions that have visible rows of a version. An interval is in the partitions in which it starts, in UTC."""
    if isinstance(plan.work, Interval):
        written = [text_of(plan.work.start_ms)]
    else:
        current = log.find_current(plan.version, head)
        assert current is not None  # the version is not rolled back
        written = [key for key in log.closed_outcome(current).time_partitions if key != NULL]
    first, last = partitions
    return sorted(key for key in written if first <= key[: len(first)] and key[: len(last)] <= last)


def _overlaps(ranges: Ranges, wanted: Ranges) -> bool:
    pairs = [(ranges[partition], wanted[partition]) for partition in wanted if partition in ranges]
    return not wanted or any(
        start < end_wanted and start_wanted < end for (start, end), (start_wanted, end_wanted) in pairs
    )


@dataclass(frozen=True, slots=True)
class Replacement:
    """What reprocessing would replace in one sink: the rows that the sink has of the selected batches now, the files with these rows, and their total size."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """
    What reprocessing the selected batches would read and replace.

    :param counts: the sums of their row counts, by name
    :param partitions: partition that was selected → the versions that have visible rows of it. For intervals: their start
    :param unknown: the versions that were not selected because they record no partitions, although a partition was selected
    :param refused: version → why it cannot be reprocessed, such as records that the source has deleted
    :param kept: with state: the number of later batches that are not selected. They are not recomputed, although they build on the state after the first
        selected one. ``None`` without state
    :param downstream: URL of the log of another pipeline → the number of its batches that have read rows of the selected ones
    """

    versions: tuple[int, ...]
    counts: Mapping[str, int]
    sinks: Mapping[str, Replacement]
    partitions: Mapping[str, tuple[int, ...]]
    unknown: tuple[int, ...]
    refused: Mapping[int, str]
    kept: int | None
    downstream: Mapping[str, int]


@with_log_location
def preview_reprocess(
    pipeline: Pipeline, selection: Selection, *, downstream: Sequence[str] = (), log: CommitLog | None = None
) -> BlastRadius:
    """
    Return what reprocessing a selection would read and replace. Writes nothing, and reads no record. Asks the source whether it still has the records.

    :param downstream: logs of pipelines that read this one
    """
    refuse_sinks(pipeline)
    check_selection(pipeline, selection)
    log = log or commit_log_at(pipeline.log)
    record = existing_record(pipeline, log)
    head = log.confirm_head(read_head(pipeline, log))
    bound = BoundPipeline(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)
    versions: list[int] = []
    counts: dict[str, int] = {}
    sinks = dict.fromkeys(pipeline.sinks, Replacement())
    partitions: dict[str, tuple[int, ...]] = {}
    refused: dict[int, str] = {}
    commits: set[int] = set()
    for plan, _ in _selected(log, head, selection):
        current = log.find_current(plan.version, head)
        assert current is not None  # the version is not rolled back
        _, outcome = log.closed_version(current)
        versions.append(plan.version)
        commits |= {plan.version, current}
        counts = add_counts(counts, outcome.counts)
        for name, before in sinks.items():
            files = outcome.sinks[name].files if name in outcome.sinks else ()
            sinks[name] = Replacement(
                before.rows + sum(file.rows for file in files),
                before.files + len(files),
                before.bytes + sum(file.bytes for file in files),
            )
        if selection.partitions is not None:
            for key in _selected_partitions(log, head, plan, selection.partitions):
                partitions[key] = (*partitions.get(key, ()), plan.version)
        try:
            assert head.outcome is not None  # a version is committed
            check_state(bound, current, outcome, head.outcome)
            _check_source(bound, log.closed_version(current)[0])
        except StreamsemError as error:
            refused[plan.version] = str(error)
    has_later = pipeline.state is not None and versions
    later = select(log, head, Selection(versions=((versions[0] + 1, N),))) if has_later else []
    return BlastRadius(
        versions=tuple(versions),
        counts=counts,
        sinks=sinks,
        partitions=dict(sorted(partitions.items())),
        unknown=_without_partitions(log, head, selection),
        refused=refused,
        kept=None if pipeline.state is None else len({*later} - {*versions}),
        downstream={url: _reading(url, record.pipeline_uuid, commits) for url in downstream},
    )


def _without_partitions(log: CommitLog, head: Head, selection: Selection) -> tuple[int, ...]:
    """Return the versions with rows that a selection by partitions cannot select, because they were committed without `partitions`."""
    if selection.partitions is None:
        return ()
    others = _selected(log, head, replace(selection, partitions=None, versions=selection.versions or ((0, N),)))
    return tuple(
        plan.version
        for plan, outcome in others
        if not isinstance(plan.work, Interval)
        and not outcome.time_partitions
        and any(sink.rows for sink in outcome.sinks.values())
    )


def _check_source(bound: BoundPipeline, plan: Plan) -> None:
    """Check that the source still has the records of a plan."""
    source = bound.pipeline.source
    source.check_pins(source.read_pins(repinned(bound, plan)), was_read=False)


def _reading(url: str, pipeline_uuid: str, commits: set[int]) -> int:
    log = commit_log_at(url)
    log.existing_pipeline()
    head = log.newest_head()
    found = 0
    for plan, _ in _selected(log, head, Selection(versions=((0, N),))):
        pins = plan.pins if isinstance(plan.pins, list) else []
        nested = [part for pin in pins if isinstance(pin, dict) for part in (pin, *(pin.get("pins") or ()))]
        read = {
            version["version"]
            for pin in nested
            if isinstance(pin, dict) and pin.get("pipeline_uuid") == pipeline_uuid
            for version in pin.get("versions", ())
        }
        found += bool(read & commits)
    return found
