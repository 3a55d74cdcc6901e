"""
The pipeline source: reads the rows that another pipeline, the *upstream*, has committed to a files sink.

An offset is a version of the upstream. The range ``[start, end)`` contains the batches of these versions. The rows of a batch are those of the newest
reprocessing run that has replaced it, as of the newest version that the planner considered. So the rows of a batch are never read together with the rows that
replaced them. Aborted versions and reprocessing runs have no rows of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.commitlog.retrying import RetryPolicy
from airflow_provider_streamsem.connectors.pipeline import rewritten
from airflow_provider_streamsem.connectors.pipeline.pins import UpstreamPin, VersionPin, read_pins
from airflow_provider_streamsem.connectors.pipeline.rewritten import (
    PlannedBatches,
    RewrittenBatches,
    aligned_stop,
    pinned,
    planned_batches,
    rewritten_batches,
)
from airflow_provider_streamsem.connectors.pipeline.upstream import UpstreamLog, naming_upstream, open_upstream
from airflow_provider_streamsem.connectors.source import (
    ParsedRecords,
    Planner,
    Source,
    SourceEnd,
    SourceSlice,
    Upstream,
)
from airflow_provider_streamsem.delivery import LABELS, SATISFIES
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    RecordsMissingError,
    SourceChangedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import DataFile, Json, Outcome
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges, position
from airflow_provider_streamsem.stores.contract import check_location, lineage_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

RULES = ("refuse", "reprocess", "ignore")
MOST_VERSIONS = 1_000
"""Maximum number of versions of the upstream that one batch reads. It bounds the requests and the size of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource(Source):
    """
    Reads the rows that another pipeline has committed to a sink of type ``files``. The columns are those that its log records for the sink.

    The upstream is identified by the uuid in its log. If its log was moved, set ``log`` to the new location. If it was recreated, runs fail.

    :param log: URL of the upstream's log: ``s3://bucket/prefix``, ``file:///path`` or an absolute path
    :param sink: name of the upstream's sink; default: its only sink
    :param on_reprocess: what happens if the upstream reprocesses a version that this pipeline has read. ``refuse``: the run fails, and names the versions to
        reprocess. ``reprocess``: the run reprocesses them before it reads new versions. ``ignore``: this pipeline keeps its rows
    :param starting: the version of the upstream at which a new pipeline starts: ``earliest``, ``latest``, the number of a version, or a timestamp with a time
        zone (inclusive, compared with the time of the commit)
    :param delivery: the guarantee of the upstream on which this pipeline relies: ``exactly_once``, ``effectively_once``, ``at_least_once`` or
        ``at_most_once``. A run fails if the upstream's guarantee is weaker
    :raises InvalidError: an argument is not valid
    """

    unit: ClassVar[str] = "versions"
    limits: ClassVar[tuple[str, ...]] = ("max_files", "max_bytes", "max_rows", "min_rows")
    order: ClassVar[str] = (
        "records of the source are ordered by upstream version. Records of one version have no order, and neither have those of versions that were compacted "
        "together and have expired"
    )
    log: str
    sink: str | None = None
    on_reprocess: str = "refuse"
    starting: str | int = "earliest"
    delivery: str = "exactly_once"

    def __post_init__(self) -> None:
        where = "source pipeline:"
        check_location(f"{where} log", self.log)
        if self.sink is not None:
            arguments.text(f"{where} sink", self.sink)
        arguments.choice(f"{where} on_reprocess", self.on_reprocess, RULES)
        arguments.choice(f"{where} delivery", self.delivery, LABELS)
        if isinstance(self.starting, str) and self.starting not in ("earliest", "latest"):
            try:
                arguments.time_ms(f"{where} starting", self.starting)
            except InvalidError as error:
                accepted = ["earliest", "latest", 120, "2026-01-31T00:00:00Z"]
                raise InvalidError(f"{where} starting is not valid", given=self.starting, accepted=accepted) from error
        elif not isinstance(self.starting, str):
            arguments.integer(f"{where} starting", self.starting, least=0)

    @property
    def conditions(self) -> str:
        """The condition of the guarantee: corrections of the upstream that this pipeline ignores."""
        return "corrections of the upstream ignored" if self.on_reprocess == "ignore" else ""

    @property
    def reasons(self) -> tuple[str, ...]:
        rule = {
            "refuse": "a run fails until the versions that read them are reprocessed",
            "reprocess": "a run first reprocesses the versions that read them",
            "ignore": 'this pipeline keeps the former rows (on_reprocess="reprocess" replaces them)',
        }[self.on_reprocess]
        return (
            f"this pipeline relies on the guarantee that `delivery` names ({self.delivery.replace('_', '-')}), and reads no version with a weaker one",
            "the plan pins the commit that holds the rows of each upstream version, with its files, their sizes and checksums",
            f"if the upstream reprocesses rows that were read, {rule}",
        )

    @property
    def location(self) -> str:
        """The upstream's log. A pipeline cannot read its own log."""
        return self.log

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return asdict(self)

    def immutable_config(self) -> Json:
        """Return the type alone: the offsets contain the uuid of the upstream and the sink, so the log may move."""
        return {"type": "pipeline"}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [lineage_name(self._opened()[0].dataset.location)]

    def upstream(self) -> Upstream:
        opened, spec_sha = self._opened()
        with naming_upstream(self.log):
            recorded = opened.guarantee(spec_sha)
            return Upstream(
                pipeline=opened.record.name,
                log=self.log,
                sink=opened.sink,
                label=recorded.label,
                conditions=recorded.conditions,
            )

    def initial_offsets(self) -> Offsets:
        opened, _ = self._opened()
        with naming_upstream(self.log):
            end = opened.end()
            if isinstance(self.starting, int):
                if self.starting > end:
                    summary = "source pipeline: starting is above the next version of the upstream"
                    raise InvalidError(summary, given=self.starting, next_version=end)
                return {opened.partition: self.starting}
            if self.starting in ("earliest", "latest"):
                return {opened.partition: 0 if self.starting == "earliest" else end}
            return {opened.partition: opened.closed_before(arguments.time_ms("starting", self.starting), end)}

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """Return the first version that was closed at or after ``at_ms`` (milliseconds UTC), or the next version if there is none."""
        opened, _ = self._opened()
        with naming_upstream(self.log):
            return {opened.partition: opened.closed_before(at_ms, opened.end())}

    def open(self, log: CommitLog, hint: Json) -> PipelinePlanner:
        """Bind the source to a log, whose clock and retry policy it uses."""
        return PipelinePlanner(self, log.clock, log.retry_policy)

    def read_pins(self, pins: Json) -> tuple[UpstreamPin, ...]:
        return read_pins(pins, log=self.log, sink=self.sink)

    def next_hint(self, hint: Json, pins: Sequence[UpstreamPin], counts: Mapping[str, int]) -> Json:
        """Return the hint of the plan: the last version of its range, and the sha256 of the outcome of this version."""
        return hint

    def check_pins(self, pins: Sequence[UpstreamPin], *, was_read: bool) -> None:
        """Check the size and checksum of each file, and that the upstream was not recreated."""
        for pin in pins:
            opened = self._of_pin(pin)
            with naming_upstream(self.log):
                for is_changed, (version, file) in zip(
                    opened.have_changed(pin.files), _each(pin.versions), strict=True
                ):
                    if is_changed:
                        opened.check_owner()
                        summary = "a planned file of the upstream is missing or was changed"
                        raise RecordsMissingError(
                            summary, version=version.version, commit=version.commit, file=file.key
                        ).advising(
                            "if the upstream has reprocessed or rolled back the commit, run `streamsem abort PIPELINE.toml N --reason TEXT`: the range is "
                            "planned again, from the current rows. Otherwise restore the file from a copy, or reprocess the version in the upstream and abort. "
                            'Or set on_data_loss="record_gap": the version becomes a gap.'
                        )

    def load(self, spark: SparkSession, pins: Sequence[UpstreamPin]) -> UpstreamRecords:
        """The columns are those that the upstream had recorded at the plan. Raises ``DataError`` if there are no pins and it has recorded none yet."""
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[UpstreamPin]) -> UpstreamRecords:
        """Return the rows of :meth:`load`, distributed by upstream version. The rows of a version have no order."""
        return self._load(spark, pins, in_order=True)

    def _load(self, spark: SparkSession, pins: Sequence[UpstreamPin], *, in_order: bool) -> UpstreamRecords:
        from airflow_provider_streamsem.connectors.data_files import groups
        from airflow_provider_streamsem.connectors.data_files.read import plain_root, read_files

        opened = self._of_pin(pins[0]) if pins else self._opened()[0]
        with naming_upstream(self.log):
            closed = opened.find_outcome(pins[0].as_of if pins else opened.end() - 1)
            if pins and (closed is None or closed[1] != pins[0].outcome):
                raise opened.rewritten_error(pins[0].as_of)
            schema = None if closed is None else closed[0].schemas.get(opened.sink)
            if schema is None:
                summary = "the upstream has committed no rows yet, so its columns are unknown"
                raise DataError(summary, sink=opened.sink).advising("run the upstream, then run again.")
            files = pins[0].files if pins else []
            metadata = groups.block() if in_order and files else []
            paths = [opened.path(file) for file in files]
            frame = read_files(spark, paths, format=opened.dataset.format, schema=schema, metadata=metadata)
            layout: Sequence[int] = ()
            if metadata:
                spans = [(*rewritten.span(opened, pin), pin.files) for pin in pins[0].versions]
                grouped = [
                    groups.GroupedFile(plain_root(opened.path(file)).rstrip("/"), first, last, file.bytes)
                    for first, last, of_version in spans
                    for file in of_version
                ]
                frame, layout = groups.by_file(frame, grouped)
        return UpstreamRecords(frame, rows=sum(file.rows for file in files), log=self.log, groups=layout)

    def is_outdated(self, ranges: Ranges, gaps: Gaps, pins: Sequence[UpstreamPin]) -> bool:
        """Return whether the upstream has reprocessed or rolled back a planned version. A compaction stores the same rows."""
        with naming_upstream(self.log):
            read = self._planned(ranges, gaps)
            return read.pinned(pins) != read.with_rows()

    def repin(self, ranges: Ranges, gaps: Gaps, pins: Sequence[UpstreamPin]) -> Sequence[UpstreamPin]:
        """Return the commits that now hold the rows, with the columns as of now; the same pins if they name these commits and a dataset was replaced since."""
        with naming_upstream(self.log):
            read = self._planned(ranges, gaps)
            is_same = read.pinned(pins) == read.with_rows()
            if is_same and read.former:
                return pins
            if read.divided:
                summary = "upstream versions of this version and of others were compacted together, and have expired, so their rows cannot be read separately"
                raise rewritten.divided_error(read.divided, f"{summary}; nothing was written")
            if read.former:
                # The columns of the former dataset are those of the version before the alter, so old and new commits are not read together.
                raise read.upstream.former_error(read.former)
            versions = pinned(read.upstream, read.rewrites, read.commits, read.end)
            _check_guarantee(read.upstream, self.delivery, _commits(versions, read.rewrites), read.end)
            return _pins(read.upstream, versions, read.end)

    def _planned(self, ranges: Ranges, gaps: Gaps) -> PlannedBatches:
        """As of now."""
        opened, _ = self._opened()
        if opened.partition not in ranges:
            raise opened.recreated_error(ranges)
        first, stop = ranges[opened.partition]
        end = opened.end(confirmed=True)
        if end < stop:
            raise opened.rewritten_error(stop - 1)
        skipped = {v for start, last in gaps.get(opened.partition, ()) for v in range(start, last)}
        return planned_batches(opened, range(first, stop), skipped, end)

    def located(self, pins: Sequence[UpstreamPin]) -> list[str]:
        """Return the absolute path or URL of each planned file, for engines without Spark."""
        return [opened.path(file) for pin in pins for opened in [self._of_pin(pin)] for file in pin.files]

    def _opened(self) -> tuple[UpstreamLog, str]:
        """Open the upstream. Returns it, and the sha256 of the spec of its newest version."""
        with naming_upstream(self.log):
            opened, head = open_upstream(commit_log_at(self.log), self.sink)
            return opened, head.spec or opened.record.spec

    def _of_pin(self, pin: UpstreamPin) -> UpstreamLog:
        opened, _ = self._opened()
        if (opened.record.pipeline_uuid, opened.sink) != (pin.pipeline_uuid, pin.sink):
            with naming_upstream(self.log):
                raise opened.recreated_error([f"{pin.pipeline_uuid}/{pin.sink}"])
        return opened


@dataclass(slots=True)
class UpstreamRecords(ParsedRecords):
    """
    The rows of planned files. The upstream's log stores their number.

    :param groups: the group of the rows of each Spark partition
    """

    rows: int = 0
    log: str = ""
    groups: Sequence[int] = ()

    def check_read(self, read: int) -> None:
        if read != self.rows:
            summary = "the engine read another number of rows than the upstream's log records"
            raise DataError(summary, upstream=self.log, read=read, recorded=self.rows).advising(
                "run `streamsem verify` on the upstream, restore the files that it names, then run again."
            )


@dataclass(frozen=True, slots=True)
class NewestEnd(SourceEnd):
    """The current end of the upstream. The target of a drain is an end of an earlier poll, after which the upstream may have added columns."""


class PipelinePlanner(Planner):
    """A :class:`PipelineSource` that is bound to a log, for one process. It caches the entries of the upstream's log that it has read."""

    def __init__(self, source: PipelineSource, clock: Clock, retry_policy: RetryPolicy) -> None:
        self._source = source
        self._clock = clock
        self._retry_policy = retry_policy
        self._opened: UpstreamLog | None = None

    def _upstream(self) -> UpstreamLog:
        if self._opened is None:
            log = commit_log_at(self._source.log, clock=self._clock, retry_policy=self._retry_policy)
            self._opened, _ = open_upstream(log, self._source.sink)
        return self._opened

    def poll(self, hint: Json) -> SourceEnd:
        """The first version of the upstream that is not closed."""
        with naming_upstream(self._source.log):
            return NewestEnd({self._upstream().partition: self._upstream().end()})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        Select versions: at least one with rows, and at most :data:`MOST_VERSIONS`.

        :raises SourceChangedError: the upstream was recreated or restored from an older copy, or versions must be read together with others (W44)
        :raises UnavailableError: the upstream has expired versions since it was polled
        :raises InvalidError: the guarantee of a version is weaker than ``delivery``
        """
        with naming_upstream(self._source.log):
            upstream = self._upstream()
            first, last = self._unread(start, position(end.offsets, upstream.partition), hint)
            if first >= last:
                return None
            upstream.forget(first - 1)
            is_newest = isinstance(end, NewestEnd)
            as_of = last if is_newest else max(last, upstream.end())
            while (found := self._slice(first, last, as_of, limits, on_data_loss, is_newest)) is None:
                as_of = upstream.end(confirmed=True)
            return found

    def _slice(
        self, first: int, last: int, as_of: int, limits: Limits, on_data_loss: str, is_newest: bool
    ) -> SourceSlice | None:
        """
        Return ``None`` if files are missing, and the upstream has versions since ``as_of`` (exclusive), by which versions may have expired. ``is_newest``:
        ``last`` is the newest end, and not the target of a drain.
        """
        upstream = self._upstream()
        last_listed = min(last, first + MOST_VERSIONS)
        stop = within(first, last_listed, limits, lambda v: _own_files(upstream, upstream.outcome(v, end=last_listed)))
        rewrites = rewritten_batches(upstream, first, as_of)
        lost = [each for each in rewrites if each.batches[0] < first]
        rewrites = [each for each in rewrites if each not in lost]
        stop = aligned_stop(rewrites, first, stop)
        if stop > last:
            raise _target_error(rewrites, last, is_newest=is_newest)
        row_commits = upstream.row_commits(first, stop, as_of)
        if former := upstream.batches_in_former_dataset(row_commits.commits, as_of):
            raise upstream.former_error(former)
        read = [each for each in rewrites if each.batches[-1] < stop]
        unread = {batch for each in lost for batch in each.batches if first <= batch < stop}
        commits = {batch: commit for batch, commit in row_commits.commits.items() if batch not in unread}
        versions = {pin.version: pin for pin in pinned(upstream, read, commits, as_of)}
        limited = within(first, stop, limits, lambda v: versions[v].files if v in versions else ())
        stop = aligned_stop(rewrites, first, limited)
        pins = [pin for version, pin in versions.items() if version < stop]
        _check_guarantee(upstream, self._source.delivery, _commits(pins, read), as_of)
        damaged = _damaged(upstream, pins, on_data_loss)
        if damaged and upstream.end(confirmed=True) > as_of:
            return None
        gaps = _unreadable(upstream, damaged, on_data_loss, read)
        pins = [pin for pin in pins if pin.version not in gaps]
        gaps = sorted({*gaps, *_lost(lost, range(first, stop), on_data_loss)})
        ignored = self._source.on_reprocess == "ignore"
        # The records of versions that were rolled back are read again, so their rows may not stay.
        corrected = sorted({*(() if ignored else row_commits.corrected), *row_commits.rolled_back})
        _, newest = upstream.outcome_and_sha(stop - 1, end=last)
        return SourceSlice(
            ranges={upstream.partition: (first, stop)},
            gaps={upstream.partition: _ranges(gaps)} if gaps else {},
            pins=_pins(upstream, pins, as_of),
            hint={"version": stop - 1, "outcome": newest},
            rows=sum(file.rows for pin in pins for file in pin.files),
            corrected={upstream.partition: _ranges(corrected)} if corrected else {},
        )

    def _unread(self, start: Offsets, last: int, hint: Json) -> tuple[int, int]:
        """
        The hint names the last version that was read, and its sha256. Without a hint, the planner does not detect a log that was restored from an older copy
        and has newer versions since.
        """
        upstream = self._upstream()
        if set(start) - {upstream.partition}:
            raise upstream.recreated_error(start)
        first = position(start, upstream.partition)
        version, sha = (hint.get("version"), hint.get("outcome")) if isinstance(hint, Mapping) else (None, None)
        closed = upstream.find_outcome(version) if type(version) is int and version >= 0 else None
        if sha is not None and (closed is None or closed[1] != sha):
            raise upstream.rewritten_error(version if type(version) is int else first - 1)
        if first > last and upstream.find_outcome(first - 1) is None:
            raise upstream.rewritten_error(first - 1)
        return first, max(first, last)

    def lag(self, start: Offsets, hint: Json) -> int:
        return len(self._unread_versions(start))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(closed_ms < at_ms for closed_ms in self._closed_ms(start))

    def minimum_clock(self, start: Offsets) -> int | None:
        return min(self._closed_ms(start), default=None)

    def _unread_versions(self, start: Offsets) -> range:
        with naming_upstream(self._source.log):
            return range(*self._unread(start, self._upstream().end(), None))

    def _closed_ms(self, start: Offsets) -> list[int]:
        versions = self._unread_versions(start)
        with naming_upstream(self._source.log):
            return [self._upstream().outcome(v, end=versions.stop).decided_at_ms for v in versions]


def within(first: int, stop: int, limits: Limits, files_of: Callable[[int], Sequence[DataFile]]) -> int:
    """Return where a batch that begins with ``first`` ends, exclusive: at most ``stop``, as the limits allow, and with at least one version with files."""
    maxima = (limits.max_files, limits.max_bytes, limits.max_rows)
    total = (0, 0, 0)
    for version in range(first, stop) if any(limit is not None for limit in maxima) else ():
        files = files_of(version)
        added = (len(files), sum(file.bytes for file in files), sum(file.rows for file in files))
        before, total = total, tuple(map(sum, zip(total, added, strict=True)))  # type: ignore[assignment]
        if before[0] and files and any(limit is not None and n > limit for n, limit in zip(total, maxima, strict=True)):
            return version
    return stop


def _own_files(upstream: UpstreamLog, outcome: Outcome) -> Sequence[DataFile]:
    """None for a reprocessing run, whose rows are those of the batch that it replaces."""
    return () if outcome.replaces is not None else upstream.files(outcome)


def _commits(pins: Sequence[VersionPin], rewrites: Sequence[RewrittenBatches]) -> list[int]:
    """A pin of a rewrite has the rows of several commits."""
    rewritten = {each.version: each.commits for each in rewrites}
    return [commit for pin in pins for commit in rewritten.get(pin.commit, (pin.commit,))]


def _lost(rewrites: Sequence[RewrittenBatches], batches: range, on_data_loss: str) -> list[int]:
    """Unread batches whose rows cannot be read without rows that were read before."""
    lost = [batch for each in rewrites for batch in each.batches if batch in batches]
    if lost and on_data_loss == "fail":
        summary = "unread upstream versions were compacted together with versions that were read, and have expired, so their rows cannot be read separately"
        raise rewritten.divided_error(rewrites, f"{summary}; nothing was written")
    return lost


def _check_guarantee(upstream: UpstreamLog, required: str, commits: Sequence[int], end: int) -> None:
    for commit in commits:
        guarantee = upstream.guarantee(upstream.outcome(commit, end=end).spec)
        if required not in SATISFIES[guarantee.label]:
            summary = (
                "the guarantee of an upstream version is weaker than `delivery` of the source; nothing was written"
            )
            raise InvalidError(
                summary, version=commit, found=guarantee.label, conditions=guarantee.conditions, delivery=required
            ).advising(
                "set `delivery` of the source to the guarantee in `found`, or strengthen the upstream (`streamsem explain`) and rebuild it in a new log."
            )


def _target_error(rewrites: Sequence[RewrittenBatches], last: int, *, is_newest: bool) -> StreamsemError:
    """The end ``last`` divides a rewrite. ``is_newest`` says whether a repeated poll finds a later end."""
    if is_newest:
        return UnavailableError("the upstream has expired versions since it was polled; nothing was written", end=last)
    return SourceChangedError(
        "the target of the drain is between upstream versions that can only be read together: they were compacted and have expired; nothing was written",
        target=last,
        compactions=sorted(each.version for each in rewrites if each.batches[0] < last <= each.batches[-1]),
    ).advising("run the pipeline with another run key, as the next DAG run does: it reads these versions together.")


def _damaged(
    upstream: UpstreamLog, versions: Sequence[VersionPin], on_data_loss: str
) -> list[tuple[VersionPin, DataFile]]:
    files = _each(versions)
    # A version that becomes a gap must fail the check before the read, too. That check also finds a changed file of the same size.
    find_changed = upstream.have_changed if on_data_loss == "record_gap" else upstream.are_missing_or_resized
    are_changed = find_changed([file for _, file in files])
    return [(pin, file) for is_changed, (pin, file) in zip(are_changed, files, strict=True) if is_changed]


def _unreadable(
    upstream: UpstreamLog,
    damaged: Sequence[tuple[VersionPin, DataFile]],
    on_data_loss: str,
    rewrites: Sequence[RewrittenBatches],
) -> list[int]:
    if not damaged:
        return []
    upstream.check_owner()  # if the location is not mounted, the ownership marker is missing too
    pin, file = damaged[0]
    if on_data_loss == "fail":
        summary = "a file of an unread upstream version is missing or was changed; nothing was written"
        raise SourceChangedError(
            summary, version=pin.version, commit=pin.commit, file=file.key, files=len(damaged)
        ).advising(
            "restore the file from a copy, or reprocess the version in the upstream; then run again. "
            'Or set on_data_loss="record_gap": the version becomes a gap.'
        )
    together = {each.version: each.batches for each in rewrites}
    gaps = sorted({batch for pin, _ in damaged for batch in together.get(pin.commit, (pin.version,))})
    message = "recording %d upstream versions as gaps: files are missing or were changed; the first is %s of version %d"
    logger.warning(message, len(gaps), file.key, pin.version)
    return gaps


def _each(versions: Sequence[VersionPin]) -> list[tuple[VersionPin, DataFile]]:
    return [(pin, file) for pin in versions for file in pin.files]


def _pins(upstream: UpstreamLog, versions: Sequence[VersionPin], end: int) -> list[UpstreamPin]:
    if not versions:
        return []
    _, sha = upstream.outcome_and_sha(end - 1, end=end)
    files = [replace(pin, files=tuple(_without_details(file) for file in pin.files)) for pin in versions]
    return [UpstreamPin(upstream.record.pipeline_uuid, upstream.sink, end - 1, sha, tuple(files))]


def _without_details(file: DataFile) -> DataFile:
    """Its reader needs no partition values and no statistics."""
    return replace(file, partition={}, stats="")


def _ranges(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((version, version + 1) for version in versions)
