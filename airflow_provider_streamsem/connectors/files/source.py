"""
The files source: reads the files that arrive below a path, in JSON lines, CSV, Parquet, ORC or text, on local disk or under an S3 prefix.

The planner lists the path to discover new files. The cost of a listing is linear in the number of listed files; ``start_after`` and a narrower path reduce
it. The reads and writes of the *log* depend only on the files that changed since the previous listing, not on all files ever discovered. As in Hadoop and
Spark, a path component that starts with ``_`` or ``.``, or a name that ends in ``._COPYING_``, marks an unfinished file. The source skips such files until
they are renamed. If a streaming query wrote the files, the source reads only those that the query has committed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.data_files.pins import FilePin, read_pins
from airflow_provider_streamsem.connectors.files import (
    notifications,
    partitions,
    spark_sink_log,
    tables,
    truncation,
)
from airflow_provider_streamsem.connectors.files.ledger import Ledger
from airflow_provider_streamsem.connectors.files.reader_options import ENCODING, ENCODINGS, OPTIONS
from airflow_provider_streamsem.connectors.source import Loaded, Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import (
    OR_RECORD_GAP,
    DataError,
    InvalidError,
    RecordsMissingError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import FoundFile, Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import (
    ObjectStat,
    Store,
    UnknownResultError,
    check_location,
    lineage_name,
    normalised,
    open_store,
    split_url,
)
from airflow_provider_streamsem.stores.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.sqs.client import SqsQueue


logger = logging.getLogger(__name__)

PARTITION = "files"
FORMATS = ("csv", "json", "orc", "parquet", "text")
NEEDS_SCHEMA = ("csv", "json")
MISSING_COLUMNS = ("refuse", "null")
ASSUMED_BYTES_PER_ROW = 100
READ_REASONS = (
    "each file has one permanent ordinal; the plan pins its size and its ETag or modification time, which are checked after every read",
    "a record that cannot be parsed goes to the quarantine of the same commit",
)
_ONE_BY_ONE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource(Source):
    """
    Reads the files below a path. Each file is read once, as a whole.

    The offset of a file is its ordinal. Ordinals are assigned in the order of discovery. Files that are discovered in one listing are ordered by modification
    time, then by path. A file is identified by path, size and ETag (S3), or by path, size and modification time (disk). So an overwritten file is a new file.
    If a file changes after it was planned, the batch fails.

    :param path: the root of the files: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param format: ``json`` (one object per line), ``csv``, ``parquet``, ``orc`` or ``text`` (one column ``value string``)
    :param schema: columns as Spark DDL, such as ``"id long, at timestamp"``; required for ``json`` and ``csv``, refused for ``text``, optional otherwise
    :param options: options of Spark's reader, such as ``{"header": "true"}``. Only the options in :data:`OPTIONS` are accepted, because they lose no record
    :param glob: pattern of the file names to discover, such as ``*.csv``. It is compared with the name only, not with the directories
    :param start_after: listings exclude paths up to and including this one (relative to ``path``). May contain ``strftime`` fields, which are replaced with
        the UTC time ``lookback_days`` before the listing. A file that arrives under an excluded path is never read
    :param lookback_days: days to subtract from the time of the listing, 0 or more; only for a ``start_after`` with fields
    :param hive_partitions: whether directories named ``column=value`` add columns to the records, as in Spark. A column has the type in ``schema``, else the
        type inferred from the first batch that had the column. ``False``: such directories are ordinary directories
    :param notifications: an :class:`SqsQueue` that receives the notifications of the bucket about created objects, or its arguments as a mapping. A poll then
        receives these messages in place of a listing. The queue must belong to this pipeline alone
    :param relist_s: with ``notifications``: a poll lists the path if the last complete listing is at least this many seconds old. It finds the files of lost
        notifications
    :param settle_s: a file is discovered when it has not changed for this many seconds, by the store's clock. 0: at once. A file that is being written is then
        read once it is complete, if its writer never pauses for so long
    :param positions: whether to add the columns ``file_path string`` and ``file_order string``. ``file_order`` increases with the ordinal of the file and the
        position of the record in it. Compare it only within one batch
    :param missing_columns: how to handle a column of the schema that no Parquet or ORC file of a batch has, or that is null in every JSON or CSV record of a
        batch. ``"refuse"``: the batch fails. ``"null"``: the column is null. ``None``: ``"refuse"`` for Parquet and ORC, and a warning for JSON and CSV
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    unit: ClassVar[str] = "files"
    limits: ClassVar[tuple[str, ...]] = ("max_files", "max_bytes", "max_rows", "min_rows")
    reasons: ClassVar[tuple[str, ...]] = (
        *READ_REASONS,
        "a file is identified by path, size and ETag (S3) or modification time (disk): a file that is overwritten, extended or touched later is read again as "
        "a whole, and a change that keeps all three is not detected. settle_s delays a file until its writer has finished",
    )
    path: str
    format: str
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    glob: str = "*"
    start_after: str = ""
    lookback_days: int = 0
    hive_partitions: bool = True
    missing_columns: str | None = None
    notifications: Mapping[str, Any] | SqsQueue | None = None
    relist_s: int = 3600
    settle_s: int = 0
    positions: bool = False

    def __post_init__(self) -> None:
        where = "source files:"
        check_location(f"{where} path", self.path)
        arguments.choice(f"{where} format", self.format, FORMATS)
        if self.schema is not None:
            arguments.text(f"{where} schema", self.schema, accepted='Spark DDL, such as "id long, at timestamp"')
        if self.schema is None and self.format in NEEDS_SCHEMA:
            raise InvalidError(
                f"{where} schema is required for this format, because an inferred schema could change from batch to batch",
                format=self.format,
            )
        if self.schema is not None and self.format == "text":
            raise InvalidError(
                f"{where} schema is not accepted for this format: its one column is `value string`", format=self.format
            )
        object.__setattr__(self, "options", arguments.options(f"{where} options", self.options))
        accepted = {name.lower() for name in OPTIONS[self.format]}
        refused = sorted(name for name in self.options if name.lower() not in accepted)
        if refused:
            summary = f"{where} options contains names that this format does not accept, or that would change which records are counted"
            raise InvalidError(summary, given=refused, format=self.format, accepted=sorted(OPTIONS[self.format]))
        arguments.choice(f"{where} options encoding", self.encoding, ENCODINGS)
        arguments.text(f"{where} glob", self.glob, pattern=r"[^/]+", accepted="a pattern of file names, without '/'")
        if not isinstance(self.start_after, str):
            raise InvalidError(f"{where} start_after must be text", given=type(self.start_after).__name__)
        arguments.integer(f"{where} lookback_days", self.lookback_days, least=0)
        if self.lookback_days and "%" not in self.start_after:
            raise InvalidError(
                f"{where} lookback_days needs a start_after with fields, such as 'date=%Y-%m-%d'",
                given=self.start_after,
            )
        arguments.flag(f"{where} hive_partitions", self.hive_partitions)
        if self.missing_columns is not None:
            arguments.choice(f"{where} missing_columns", self.missing_columns, MISSING_COLUMNS)
        arguments.integer(f"{where} relist_s", self.relist_s, least=1)
        arguments.integer(f"{where} settle_s", self.settle_s, least=0)
        arguments.flag(f"{where} positions", self.positions)
        least_days = 1 + self.settle_s // 86_400
        if self.settle_s and "%" in self.start_after and self.lookback_days < least_days:
            raise InvalidError(
                f"{where} settle_s with a start_after of today would exclude files that settle after midnight; lookback_days is too small",
                given=self.lookback_days,
                accepted=f"{least_days} or more",
            )
        if self.notifications is not None:
            if not self.path.startswith("s3://"):
                raise InvalidError(
                    f"{where} notifications need a path on S3", given=self.path, accepted="s3://bucket/prefix"
                )
            queue = notifications.queue_of(f"{where} notifications", self.notifications)
            object.__setattr__(self, "notifications", notifications.to_json(queue))

    @property
    def encoding(self) -> str:
        """The character encoding of text, JSON and CSV files, one of :data:`ENCODINGS`."""
        encoding = next((text for name, text in self.options.items() if name.lower() == ENCODING), ENCODINGS[0])
        return next((known for known in ENCODINGS if known.lower() == encoding.lower()), encoding)

    @property
    def conditions(self) -> str:
        """The condition that the source cannot check: that files do not change after they were discovered."""
        return "unchanged files"

    @property
    def location(self) -> str:
        return self.path

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [lineage_name(self.path)]

    def immutable_config(self) -> Json:
        return {"type": "files", "path": normalised(self.path), "format": self.format}

    def initial_offsets(self) -> Offsets:
        return {PARTITION: 0}

    @property
    def reads_intervals(self) -> bool:
        return True

    def offsets_for_time_in(self, log: CommitLog, at_ms: int) -> Offsets:
        """Find the time by modification times. Files without an ordinal get later ones, so they are at or above the result."""
        ledger = Ledger(log)
        newest = ledger.newest()
        end = 0 if newest is None else newest.end
        younger = (at for at, file in enumerate(ledger.files(0, end)) if file.mtime_ns >= at_ms * 1_000_000)
        return {PARTITION: next(younger, end)}

    def open(self, log: CommitLog, hint: Json) -> FilesPlanner:
        return FilesPlanner(self, log, hint)

    def read_pins(self, pins: Json) -> tuple[FilePin, ...]:
        return read_pins(pins, location=self.path, is_read=_is_data)

    def next_hint(self, hint: Json, pins: Sequence[FilePin], counts: Mapping[str, int]) -> Json:
        """Return the hint of the plan with the bytes per row of this batch and the types of its partition columns."""
        size, rows = sum(pin.bytes for pin in pins), counts.get("read", 0)
        per_row = max(1, size // rows) if rows else _bytes_per_row(hint)
        types = {**partitions.recorded_types(hint), **partitions.pinned_types(pins)}
        return _hint(types, newest=_number(hint, "newest", -1), bytes_per_row=per_row)

    def unsettled(self, now_ms: int) -> list[FoundFile]:
        """List the files that the source discovers once they have settled (``settle_s``)."""
        stats = [stat for stat in self._listed(now_ms) if self._is_discovered(stat.key)] if self.settle_s else []
        return [_found_file(stat) for stat in stats if not self._is_settled(stat, now_ms)]

    def listing(self, now_ms: int) -> list[FoundFile]:
        """
        List all files that the source discovers, in their current state.

        :param now_ms: current time in milliseconds UTC, for ``start_after``, and for ``settle_s`` if the store does not report its clock
        :raises UnavailableError: the directory is missing, or the store did not report the result of a request. Nothing was written
        :raises DataError: a file name is not UTF-8. Nothing was written
        """
        listed = self._listed(now_ms)
        self._warn_of_unreadable([stat.key for stat in listed])
        stats = self._committed([stat for stat in listed if self._is_discovered(stat.key)], now_ms)
        for stat in stats:
            if any("\ud800" <= character <= "\udfff" for character in stat.key):
                summary = "a file name is not UTF-8, so the log cannot record it; nothing was written"
                raise DataError(summary, location=self.path, file=ascii(stat.key)).advising(
                    "rename the file, and run again."
                )
        return [_found_file(stat) for stat in stats if self._is_settled(stat, now_ms)]

    def found(self, paths: Collection[str], now_ms: int) -> tuple[list[FoundFile], set[str]]:
        """
        Return those of some paths at which a listing would discover a file, in its current state, and the paths of files that have not settled. Requests each
        file.

        :param now_ms: as in :meth:`listing`
        """
        self._warn_of_unreadable(paths)
        after = self._start_after(now_ms)
        requested = self._stats([path for path in sorted(paths) if path > after and self._is_discovered(path)])
        stats = [stat for stat in requested if stat is not None]
        settled = [stat for stat in stats if self._is_settled(stat, now_ms)]
        return [_found_file(stat) for stat in settled], {stat.key for stat in stats} - {stat.key for stat in settled}

    def _is_settled(self, stat: ObjectStat, now_ms: int) -> bool:
        age_ns = now_ms * 1_000_000 - stat.mtime_ns if stat.age_ns is None else stat.age_ns
        return self.settle_s == 0 or age_ns >= self.settle_s * 1_000_000_000

    def _warn_of_unreadable(self, keys: Collection[str]) -> None:
        """Hadoop cannot name these objects: it merges successive slashes."""
        merged = {key: re.sub("/+", "/", key.removeprefix("/")) for key in keys if "//" in key or key.startswith("/")}
        unreadable = sorted(key for key, name in merged.items() if self._is_discovered(name))
        if unreadable:
            logger.warning(
                "%d objects are never read, because their names have an empty segment; rename them: %s; the first is %s",
                len(unreadable),
                self.path,
                ascii(unreadable[0]),
            )

    def _committed(self, stats: list[ObjectStat], now_ms: int) -> list[ObjectStat]:
        """Warns of files that the query has committed and that are missing. They may have been deleted after they were read."""
        store = self._store()
        try:
            keys = [stat.key for stat in store.list(spark_sink_log.PREFIX)]
            committed = spark_sink_log.committed(store, keys, self.path)
        except UnknownResultError as error:
            summary = "the source's location did not report the result of a request; nothing was written"
            raise UnavailableError(summary, location=self.path) from error
        if committed is None:
            return stats
        if self.notifications is not None:
            summary = "a streaming query has written these files, and notifications do not say which of them it has committed; nothing was written"
            raise InvalidError(summary, location=self.path).advising("leave out `notifications`.")
        after = self._start_after(now_ms)
        missing = sorted(committed.difference(stat.key for stat in stats))
        missing = [key for key in missing if key > after and self._is_discovered(key)]
        if missing:
            logger.warning(
                "%d files that a streaming query has committed are missing, so they are not read: %s; the first is %s",
                len(missing),
                self.path,
                ascii(missing[0]),
            )
        return [stat for stat in stats if stat.key in committed]

    def _listed(self, now_ms: int) -> list[ObjectStat]:
        """Every object below the path that sorts after ``start_after``, including objects that the source does not discover."""
        self.require_location()
        try:
            return [*self._store().list("", start_after=self._start_after(now_ms))]
        except UnknownResultError as error:
            summary = "the source's location did not report the result of a listing; nothing was written"
            raise UnavailableError(summary, location=self.path) from error

    def _start_after(self, now_ms: int) -> str:
        if "%" not in self.start_after:
            return self.start_after
        day = datetime.fromtimestamp(now_ms / 1000, tz=timezone.utc) - timedelta(days=self.lookback_days)
        return day.strftime(self.start_after)

    def refuse_tables(self, now_ms: int) -> None:
        """
        Refuse a path that is inside a table or dataset, and a path below which a file to read is inside a table or dataset.

        :raises InvalidError: names the table or dataset. Nothing was written
        """
        tables.refuse_table(self.path)
        keys = [stat.key for stat in self._listed(now_ms)]
        tables.refuse_tables_below(self.path, keys, [key for key in keys if self._is_discovered(key)])

    def _store(self) -> Store:
        """On local disk, a symbolic link to a file is read as that file."""
        store = open_store(self.path)
        if isinstance(store, LocalStore):
            store.follows_links = True
        return store

    def stat(self, path: str) -> ObjectStat | None:
        """
        Return the current state of one file; ``None`` if it is missing.

        :param path: relative to the source's path
        :raises UnavailableError: the store did not report the result of a request
        """
        try:
            return self._store().stat(path)
        except UnknownResultError as error:
            summary = "the source's location did not report the result of a request; nothing became visible"
            raise UnavailableError(summary, location=self.path, file=path) from error

    def refuse_empty_location(self) -> None:
        """
        Refuse an empty path. Called before a file is reported as missing, because an empty directory may be an unmounted file system.

        :raises UnavailableError: the path is empty or missing
        """
        self.require_location()
        if next(self._store().list("", limit=1), None) is None:
            summary = "unread files are missing, and the source's location is empty; nothing became visible"
            raise UnavailableError(summary, location=self.path).advising(
                "check that the location is mounted, and run again. If it was emptied on purpose, put any file into it before that."
            )

    def require_location(self) -> None:
        """
        Check that the path of a local source is a directory.

        :raises UnavailableError: the directory is missing or not mounted
        """
        scheme, location = split_url(self.path)
        if scheme == "file" and not os.path.isdir(location):
            summary = "the source's directory is missing, or is not mounted; nothing became visible"
            raise UnavailableError(summary, location=self.path).advising(
                "mount or create the directory, or correct the source's path; then run again."
            )

    def _is_discovered(self, key: str) -> bool:
        """A file that has an ordinal is read even if ``glob`` changes later, because its ordinal is part of the offsets."""
        return _is_data(key) and fnmatchcase(key.rpartition("/")[2], self.glob)

    def check_pins(self, pins: Sequence[FilePin], *, was_read: bool) -> None:
        """Check the size and identity of each file. Raises ``DataError`` if Spark would silently lose records of one (:mod:`truncation`)."""
        for pin, stat in zip(pins, self._stats([pin.path for pin in pins]), strict=True):
            where = {"location": self.path, "file": pin.path}
            if stat is None:
                self.refuse_empty_location()
                raise RecordsMissingError("a planned file is missing", **where)
            if (stat.bytes, _identity(stat)) != (pin.bytes, pin.identity):
                summary = "a planned file was changed after it was planned"
                raise RecordsMissingError(summary, **where)
            flaw = truncation.flaw(self.format, pin.path, pin.bytes)
            if flaw:
                raise DataError(f"{flaw}", **where, format=self.format).advising(truncation.DO)

    def _stats(self, paths: Sequence[str]) -> Iterable[ObjectStat | None]:
        """Sends the requests for many files concurrently, because each takes some milliseconds."""
        if len(paths) <= _ONE_BY_ONE:
            return map(self.stat, paths)
        return in_threads(self.stat, paths)

    @property
    def reason_records_are_needed(self) -> str:
        if self.hive_partitions:
            return "its directories may define columns: set hive_partitions=False"
        return "its files define the columns: give it a schema" if self.schema is None and self.format != "text" else ""

    def load(self, spark: SparkSession, pins: Sequence[FilePin]) -> Loaded:
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[FilePin]) -> Loaded:
        """Load the pinned files on Spark. Sort the records by the ordinals of the files, and within a file by their position."""
        return self._load(spark, pins, in_order=True)

    def _load(self, spark: SparkSession, pins: Sequence[FilePin], *, in_order: bool) -> Loaded:
        from airflow_provider_streamsem.connectors.files.records import FileRecords, no_records

        return FileRecords(spark, self, pins, in_order=in_order) if pins else no_records(spark, self)


def _is_data(key: str) -> bool:
    hidden = any(part[:1] in ("_", ".", "") for part in key.split("/"))
    return "\0" not in key and not hidden and not key.endswith("._COPYING_")


def _identity(stat: ObjectStat) -> str:
    return f"etag:{stat.etag}" if stat.etag else f"mtime:{stat.mtime_ns}"


def _found_file(stat: ObjectStat) -> FoundFile:
    return FoundFile(path=stat.key, bytes=stat.bytes, identity=_identity(stat), mtime_ns=stat.mtime_ns)


@dataclass(frozen=True, slots=True)
class ListedEnd(SourceEnd):
    """``listed``: path → size and identity. ``slice`` requests only files that this listing lacks."""

    listed: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def _listed_end(end: int, listed: Sequence[FoundFile]) -> ListedEnd:
    return ListedEnd({PARTITION: end}, {file.path: (file.bytes, file.identity) for file in listed})


class FilesPlanner(Planner):
    """A :class:`FilesSource` that is bound to a log, for one process. It caches the discoveries that it has read."""

    def __init__(self, source: FilesSource, log: CommitLog, hint: Json) -> None:
        self._source = source
        self._clock = log.clock
        self._ledger = Ledger(log, newest_hint=_number(hint, "newest", -1))

    def poll(self, hint: Json) -> ListedEnd:
        """A new pipeline must not read files inside a table or dataset (``InvalidError``)."""
        if hint is None:
            self._source.refuse_tables(self._clock.now_ms())
        if self._source.notifications is None or self._is_listing_due():
            return self.discover()
        return self._discover_notified()

    def _is_listing_due(self) -> bool:
        newest = self._ledger.newest()
        listed_at_ms = None if newest is None else newest.listed_at_ms
        return listed_at_ms is None or self._clock.now_ms() - listed_at_ms >= self._source.relist_s * 1000

    def discover(self) -> ListedEnd:
        """List the path and assign ordinals to new files."""
        end = None
        while end is None:
            now_ms = self._clock.now_ms()
            listed = self._source.listing(now_ms)
            end = self._ledger.add(listed, listed_at_ms=None if self._source.notifications is None else now_ms)
        return _listed_end(end, listed)

    def _discover_notified(self) -> ListedEnd:
        """A message is acknowledged when its files have ordinals. That of an unsettled file is received again after the visibility timeout."""
        queue = notifications.queue_of("notifications", self._source.notifications)
        bucket, _, prefix = split_url(self._source.path)[1].partition("/")
        with queue.connect() as receiver:
            notified = notifications.receive(receiver, bucket, prefix)
            end = None
            while end is None:
                listed, unsettled = self._source.found(notified.paths, self._clock.now_ms())
                end = self._ledger.add(listed, is_partial=True)
            receiver.acknowledge(notified.handles_without(unsettled))
        return _listed_end(end, listed)

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Missing and changed files can become gaps, and files that :mod:`truncation` refuses. With ``"fail"``, refused files raise ``DataError``."""
        first, last = position(start, PARTITION), position(end.offsets, PARTITION)
        if limits.max_files is not None:
            last = min(last, first + limits.max_files)
        if first >= last:
            return None
        per_row, recorded = _bytes_per_row(hint), partitions.recorded_types(hint)
        byte_limits = [limits.max_bytes] if limits.max_bytes is not None else []
        byte_limits += [limits.max_rows * per_row] if limits.max_rows is not None else []
        files = dict(enumerate(_within(self._ledger.files(first, last), min(byte_limits, default=None)), first))
        listed = end.listed if isinstance(end, ListedEnd) else {}
        gaps = self._unreadable([*files.values()], first, listed, on_data_loss)
        readable = {at: file for at, file in files.items() if at not in gaps}
        paths = (file.path for file in readable.values())
        types = partitions.types_of(paths, recorded) if self._source.hive_partitions else {}
        newest = self._ledger.newest()
        return SourceSlice(
            ranges={PARTITION: (first, first + len(files))},
            gaps={PARTITION: tuple((at, at + 1) for at in gaps)} if gaps else {},
            pins=[
                FilePin(file.path, file.bytes, file.identity, types, at if self._source.positions else -1)
                for at, file in readable.items()
            ],
            hint=_hint(recorded, newest=-1 if newest is None else newest.i, bytes_per_row=per_row),
            # Rounded up: a file that is not empty has at least one row.
            rows=-(-sum(file.bytes for file in readable.values()) // per_row),
        )

    def _unreadable(
        self, files: Sequence[FoundFile], first: int, listed: Mapping[str, tuple[int, str]], on_data_loss: str
    ) -> list[int]:
        location = self._source.path
        flaws = truncation.flaws(self._source.format, first, files)
        for at, flaw in flaws.items():
            if on_data_loss == "fail":
                summary = f"{flaw}; nothing was written"
                raise DataError(summary, location=location, file=files[at - first].path, files=len(flaws)).advising(
                    truncation.DO
                )
            logger.warning("recording a file as a gap: %s: %s", files[at - first].path, flaw)
        missing = [at for at, file in enumerate(files, first) if at not in flaws and not self._exists(file, listed)]
        if missing:
            self._source.refuse_empty_location()
            path = files[missing[0] - first].path
            if on_data_loss == "fail":
                summary = "an unread file was changed or deleted; nothing was written"
                raise SourceChangedError(summary, location=location, file=path, files=len(missing)).advising(
                    OR_RECORD_GAP
                )
            logger.warning(
                "recording %d files as gaps: they were changed or deleted; the first is %s", len(missing), path
            )
        return sorted([*missing, *flaws])

    def _exists(self, file: FoundFile, listed: Mapping[str, tuple[int, str]]) -> bool:
        """The latest listing shows most files. A file that it lacks may be outside the listed paths, so a request for the file is sent."""
        if listed.get(file.path) == (file.bytes, file.identity):
            return True
        stat = self._source.stat(file.path)
        return stat is not None and (stat.bytes, _identity(stat)) == (file.bytes, file.identity)

    def lag(self, start: Offsets, hint: Json) -> int:
        """Discovered files at or after ``start``, and listed files without an ordinal."""
        newest = self._ledger.newest()
        discovered = 0 if newest is None else newest.end
        return discovered - position(start, PARTITION) + len(self._unseen())

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(file.mtime_ns < at_ms * 1_000_000 for file in self._unread(start))

    def minimum_clock(self, start: Offsets) -> int | None:
        """The oldest modification time of the files that :meth:`lag` counts, and of those that have not settled."""
        oldest = min((file.mtime_ns for file in self._unread(start)), default=None)
        return None if oldest is None else oldest // 1_000_000

    def _unread(self, start: Offsets) -> list[FoundFile]:
        """Return the files that have arrived and were not read, also those that have not settled."""
        newest = self._ledger.newest()
        first = position(start, PARTITION)
        discovered: Iterable[FoundFile] = () if newest is None else self._ledger.files(first, newest.end)
        return [*discovered, *self._unseen(), *self._source.unsettled(self._clock.now_ms())]

    def discovered(self) -> bool:
        return self._ledger.newest() is not None

    def _unseen(self) -> Sequence[FoundFile]:
        return self._ledger.unseen(self._source.listing(self._clock.now_ms()))


def _number(hint: Json, name: str, default: int) -> int:
    value = hint.get(name) if isinstance(hint, Mapping) else None
    return value if type(value) is int else default


def _bytes_per_row(hint: Json) -> int:
    return max(1, _number(hint, "bytes_per_row", ASSUMED_BYTES_PER_ROW))


def _hint(types: Mapping[str, str], *, newest: int, bytes_per_row: int) -> Json:
    return {**partitions.hint(types), "newest": newest, "bytes_per_row": bytes_per_row}


def _within(files: Iterable[FoundFile], most_bytes: int | None) -> list[FoundFile]:
    selected: list[FoundFile] = []
    total = 0
    for file in files:
        total += file.bytes
        if most_bytes is not None and total > most_bytes and selected:
            break
        selected.append(file)
    return selected
