"""
Files that arrive in a place: JSON lines, CSV, Parquet, ORC or text, on local disk or under an S3 prefix.

Finding new files lists the path, which is linear in the files listed (``start_after`` and a narrower path help). What is read and written in the *log*
depends only on the files that changed since the last listing, not on all files ever discovered. Names that start with ``_`` or ``.`` in any part of the path,
and names ending in ``._COPYING_``, are files that their writers have not finished, as in Hadoop and Spark; they are skipped until they are renamed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    RecordsGoneError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import FoundFile, Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position
from airflow_provider_streamsem.sources import partitions, tables, truncation
from airflow_provider_streamsem.sources.contract import Cut, Limits
from airflow_provider_streamsem.sources.ledger import Ledger
from airflow_provider_streamsem.sources.pins import pinned_files
from airflow_provider_streamsem.stores.contract import (
    ObjectStat,
    Store,
    UnknownAnswerError,
    lineage_name,
    normalised,
    open_store,
    split_url,
)
from airflow_provider_streamsem.stores.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.sources.records import FileRecords

logger = logging.getLogger(__name__)

PARTITION = "files"
FORMATS = ("csv", "json", "orc", "parquet", "text")
NEEDS_SCHEMA = ("csv", "json")
MISSING_COLUMNS = ("refuse", "null")
ASSUMED_BYTES_PER_ROW = 100
_TIMES = {"dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale"}
_LAX_JSON = {"allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros", "allowNonNumericNumbers"}
ENCODING = "encoding"
ENCODINGS = ("UTF-8", "ISO-8859-1", "windows-1252")
_CSV = {
    "header",
    "sep",
    "delimiter",
    "quote",
    "escape",
    "nullValue",
    "nanValue",
    "positiveInf",
    "negativeInf",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
}
OPTIONS: dict[str, frozenset[str]] = {
    "csv": frozenset(_CSV | _TIMES | {ENCODING}),
    "json": frozenset(_LAX_JSON | _TIMES | {ENCODING}),
    "parquet": frozenset({"datetimeRebaseMode", "int96RebaseMode"}),
    "orc": frozenset(),
    "text": frozenset({ENCODING}),
}
"""Options of Spark's readers that may change values, but never how many records there are or which of them count as bad"""


_ONE_BY_ONE = 32
_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource:
    """
    Files below a place, each read once, whole.

    Offsets are ordinals: the order in which the log first saw the files, by time of modification and then path. A file is path + size + ETag (S3) or
    path + size + time of modification (disk): a file that is overwritten counts as a new file, and one that changes under a plan fails the batch.

    :param path: where the files lie: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param format: ``json`` (one object a line), ``csv``, ``parquet``, ``orc`` or ``text`` (one column ``value``)
    :param schema: columns as Spark DDL, ``"id long, at timestamp"``; required for ``json`` and ``csv``, refused for ``text``, optional otherwise
    :param options: options of Spark's reader, such as ``{"header": "true"}``: those of :data:`OPTIONS`, which lose no record
    :param glob: which file names count, such as ``*.csv``; the name only, not its directories
    :param start_after: paths at or before this one (relative to ``path``) are never looked at; may hold ``strftime`` fields, filled with the
        UTC time ``lookback_days`` before the listing. A file that arrives behind it is never read
    :param lookback_days: for ``start_after`` with fields
    :param hive_partitions: directories named ``column=value`` add columns to the records, as in Spark: in the type that ``schema`` gives, else in the type
        inferred from the first batch that had the column. ``False``: such directories are ordinary directories
    :param missing_columns: for Parquet and ORC with a schema: ``"refuse"`` a batch in which no file holds a column of the schema, or read it as ``"null"``
    """

    delivery: ClassVar[str] = "exactly_once"
    terms: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    unit: ClassVar[str] = "files"
    spark_packages: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[tuple[str, ...]] = ("max_files", "max_bytes", "max_rows", "min_rows")
    reasons: ClassVar[tuple[str, ...]] = (
        "each file gets one ordinal, for ever; the plan pins its size and ETag or time of modification, checked before and after it is read",
        "a record that cannot be parsed goes to the quarantine of the same commit",
    )
    path: str
    format: str
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    glob: str = "*"
    start_after: str = ""
    lookback_days: int = 0
    hive_partitions: bool = True
    missing_columns: str = "refuse"

    def __post_init__(self) -> None:
        where = "source files:"
        split_url(arguments.text(f"{where} path", self.path))
        arguments.choice(f"{where} format", self.format, FORMATS)
        if self.schema is not None:
            arguments.text(f"{where} schema", self.schema, accepted='Spark DDL, such as "id long, at timestamp"')
        if self.schema is None and self.format in NEEDS_SCHEMA:
            raise InvalidError(
                f"{where} schema is required for this format: a schema guessed from each batch would change with it",
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
            what = f"{where} options holds names that this format does not take, or that would change which records are counted"
            raise InvalidError(what, given=refused, format=self.format, accepted=sorted(OPTIONS[self.format]))
        arguments.choice(f"{where} options encoding", self.encoding, ENCODINGS)
        arguments.text(f"{where} glob", self.glob, pattern=r"[^/]+", accepted="a pattern of file names, without '/'")
        if not isinstance(self.start_after, str):
            raise InvalidError(f"{where} start_after must be text", given=type(self.start_after).__name__)
        arguments.whole(f"{where} lookback_days", self.lookback_days, least=0)
        if self.lookback_days and "%" not in self.start_after:
            raise InvalidError(
                f"{where} lookback_days needs a start_after with fields, such as 'date=%Y-%m-%d'",
                given=self.start_after,
            )
        arguments.flag(f"{where} hive_partitions", self.hive_partitions)
        arguments.choice(f"{where} missing_columns", self.missing_columns, MISSING_COLUMNS)

    @property
    def encoding(self) -> str:
        """The character encoding of text, JSON and CSV files, one of :data:`ENCODINGS`."""
        given = next((text for name, text in self.options.items() if name.lower() == ENCODING), ENCODINGS[0])
        return next((known for known in ENCODINGS if known.lower() == given.lower()), given)

    @property
    def place(self) -> str:
        """Where the files lie."""
        return self.path

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """The place."""
        return [lineage_name(self.path)]

    def guarded(self) -> Json:
        """The place and the format."""
        return {"type": "files", "path": normalised(self.path), "format": self.format}

    def genesis(self) -> Offsets:
        """The first ordinal."""
        return {PARTITION: 0}

    def open(self, log: CommitLog, last: Outcome | None) -> FilesPlanner:
        """Bind to a log."""
        return FilesPlanner(self, log, last)

    def listing(self, now_ms: int) -> list[FoundFile]:
        """
        Every file that counts, as it lies there now.

        :raises UnavailableError: the place gave no answer
        """
        stats = [stat for stat in self._listed(now_ms) if self._counts(stat.key)]
        for stat in stats:
            if any("\ud800" <= character <= "\udfff" for character in stat.key):
                what = "a file's name is not UTF-8 and cannot be written down; rename it. Nothing was written"
                raise DataError(what, place=self.path, file=ascii(stat.key))
        return [_found(stat) for stat in stats]

    def _listed(self, now_ms: int) -> list[ObjectStat]:
        """Every object of the place, those that do not count included, from ``start_after`` on."""
        after = self.start_after
        if "%" in after:
            after = (
                datetime.fromtimestamp(now_ms / 1000, tz=timezone.utc) - timedelta(days=self.lookback_days)
            ).strftime(after)
        self.require_place()
        try:
            return [*self._store().list("", start_after=after)]
        except UnknownAnswerError as error:
            what = "the source's place gave no clear answer to a listing; nothing was written"
            raise UnavailableError(what, place=self.path) from error

    def refuse_tables(self, now_ms: int) -> None:
        """
        The place is none of a table, and the files that count are of none.

        :raises InvalidError: one is
        """
        tables.refuse_table(self.path)
        keys = [stat.key for stat in self._listed(now_ms)]
        tables.refuse_tables_below(self.path, keys, [key for key in keys if self._counts(key)])

    def _store(self) -> Store:
        """The place, where others put files, and links to files."""
        store = open_store(self.path)
        if isinstance(store, LocalStore):
            store.follows_links = True
        return store

    def stat(self, path: str) -> ObjectStat | None:
        """
        One file of the place, or ``None`` where there is none.

        :raises UnavailableError: the place gave no answer
        """
        try:
            return self._store().stat(path)
        except UnknownAnswerError as error:
            what = "the source's place gave no clear answer; nothing became visible"
            raise UnavailableError(what, place=self.path, file=path) from error

    def refuse_empty_place(self) -> None:
        """
        Before a file is called gone: an empty place looks like one that is not mounted.

        :raises UnavailableError: nothing at all lies there
        """
        self.require_place()
        if next(self._store().list("", limit=1), None) is None:
            what = (
                "files that wait to be read are gone and nothing else lies in the source's place: is it mounted? Nothing was "
                "written. If it was emptied on purpose, put any file there"
            )
            raise UnavailableError(what, place=self.path)

    def require_place(self) -> None:
        """
        The place can be looked at.

        :raises UnavailableError: a directory that is not there
        """
        scheme, place = split_url(self.path)
        if scheme == "file" and not os.path.isdir(place):
            what = "the source's directory is not there, or is not mounted; nothing was written"
            raise UnavailableError(what, place=self.path).advising(
                "mount or create the directory, or correct the source's path; then run again."
            )

    def _counts(self, key: str) -> bool:
        parts = key.split("/")
        return (
            "\0" not in key
            and not any(part[:1] in ("_", ".", "") for part in parts)
            and not key.endswith("._COPYING_")
            and fnmatchcase(parts[-1], self.glob)
        )

    def check_pins(self, pins: Json, *, was_read: bool) -> None:
        """Each pinned file is there with the pinned size and identity (D5)."""
        pinned = self.pinned(pins)
        for (path, size, identity), stat in zip(pinned, self._stats([path for path, *_ in pinned]), strict=True):
            if stat is None:
                self.refuse_empty_place()
                raise RecordsGoneError(
                    "a planned file is no longer there; nothing became visible", place=self.path, file=path
                )
            if (stat.bytes, _identity(stat)) != (size, identity):
                raise RecordsGoneError(
                    "a planned file was changed after it was planned; nothing became visible",
                    place=self.path,
                    file=path,
                )
            flaw = truncation.flaw(self.format, path, size)
            if flaw:
                raise DataError(f"{flaw}; nothing became visible", place=self.path, file=path, format=self.format)

    def _stats(self, paths: Sequence[str]) -> Iterable[ObjectStat | None]:
        """Each file as :meth:`stat` gives it; of many files several are asked for at once, since a store answers each after some milliseconds."""
        if len(paths) <= _ONE_BY_ONE:
            return map(self.stat, paths)
        with ThreadPoolExecutor(_THREADS) as pool:
            contexts = [copy_context() for _ in paths]
            return list(pool.map(lambda context, path: context.run(self.stat, path), contexts, paths))

    def load(self, spark: SparkSession, pins: Json) -> FileRecords:
        """The pinned files on Spark."""
        from airflow_provider_streamsem.sources.records import FileRecords

        self.pinned(pins)
        return FileRecords(spark, self, pins)

    def pinned(self, pins: Json) -> list[tuple[str, int, str]]:
        """Path, size and identity of each file that a plan pinned."""
        return pinned_files(pins, place=self.path, is_read=self._counts)


def _identity(stat: ObjectStat) -> str:
    return f"etag:{stat.etag}" if stat.etag else f"mtime:{stat.mtime_ns}"


def _found(stat: ObjectStat) -> FoundFile:
    return FoundFile(path=stat.key, bytes=stat.bytes, identity=_identity(stat), mtime_ns=stat.mtime_ns)


class FilesPlanner:
    """A :class:`FilesSource` bound to a log for one process."""

    def __init__(self, source: FilesSource, log: CommitLog, last: Outcome | None) -> None:
        hint: Mapping[str, Any] = last.source if last is not None and isinstance(last.source, Mapping) else {}
        self._source = source
        self._is_new = last is None
        self._types = partitions.recorded_types(None if last is None else last.source)
        self._clock = log.clock
        self._listed: Mapping[str, tuple[int, str]] = {}
        self._ledger = Ledger(log, newest_hint=_number(hint, "newest", -1))
        self._bytes_per_row = max(1, _number(hint, "bytes_per_row", ASSUMED_BYTES_PER_ROW))

    def follow(self, last: Outcome | None) -> None:
        """What it remembers of discoveries stays true; another process may have recorded types of partition columns."""
        self._types = partitions.recorded_types(None if last is None else last.source)

    def latest_offsets(self) -> Offsets:
        """
        List the place and give ordinals to what is new there.

        :raises InvalidError: the pipeline is new, and the files are those of a table
        """
        self.refuse_tables()
        end = None
        while end is None:
            listed = self._source.listing(self._clock.now_ms())
            end = self._ledger.add(listed)
        self._listed = {file.path: (file.bytes, file.identity) for file in listed}
        return {PARTITION: end}

    def refuse_tables(self) -> None:
        """
        Once, for a pipeline that is new.

        :raises InvalidError: the files are those of a table
        """
        if self._is_new:
            self._source.refuse_tables(self._clock.now_ms())
            self._is_new = False

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """Files in the order of their ordinals, as many as the limits allow, at least one; none that :mod:`truncation` refuses."""
        first, last = position(start, PARTITION), position(end, PARTITION)
        if limits.max_files is not None:
            last = min(last, first + limits.max_files)
        if first >= last:
            return None
        most = [limits.max_bytes] if limits.max_bytes is not None else []
        most += [limits.max_rows * self._bytes_per_row] if limits.max_rows is not None else []
        taken = _within(self._ledger.files(first, last), min(most, default=None))
        flaws = truncation.flaws(self._source.format, first, taken)
        for at, flaw in flaws.items():
            if on_data_loss == "fail":
                what = f'{flaw}; nothing was written. With on_data_loss="record_gap" such files become gaps'
                raise DataError(what, place=self._source.path, file=taken[at - first].path, files=len(flaws))
            logger.warning("recording a file as a gap: %s: %s", taken[at - first].path, flaw)
        gone = [first + n for n, file in enumerate(taken) if first + n not in flaws and not self._is_there(file)]
        self._listed = {}  # a listing is good for one plan
        if gone:
            self._source.refuse_empty_place()
            file = taken[gone[0] - first]
            if on_data_loss == "fail":
                what = "a file that waits to be read was changed or removed; nothing was written"
                raise SourceChangedError(what, place=self._source.path, file=file.path, files=len(gone))
            logger.warning(
                "recording %d files as gaps: they were changed or removed; the first is %s", len(gone), file.path
            )
        gone = sorted([*gone, *flaws])
        read = [f for n, f in enumerate(taken) if first + n not in gone]
        types = partitions.types_of((f.path for f in read), self._types) if self._source.hive_partitions else {}
        pins = [[f.path, f.bytes, f.identity, types] if types else [f.path, f.bytes, f.identity] for f in read]
        gaps = {PARTITION: tuple((at, at + 1) for at in gone)} if gone else {}
        return Cut(ranges={PARTITION: (first, first + len(taken))}, gaps=gaps, pins=pins)

    def _is_there(self, file: FoundFile) -> bool:
        """
        Whether a file lies there as it was discovered.

        The listing that was just made spares most questions; what it does not show may only have left its window, and is asked for.
        """
        if self._listed.get(file.path) == (file.bytes, file.identity):
            return True
        stat = self._source.stat(file.path)
        return stat is not None and (stat.bytes, _identity(stat)) == (file.bytes, file.identity)

    def hint(self, plan: Plan, counts: Mapping[str, int]) -> Json:
        """The number of the newest discovery, the bytes per row of this batch, and the types of partition columns so far."""
        newest = self._ledger.newest()
        size, rows = sum(size for _, size, _ in self._source.pinned(plan.pins)), counts.get("read", 0)
        return {
            **partitions.hint(
                self._types, plan.pins if counts else []
            ),  # an abort read nothing in the types of its plan
            "newest": -1 if newest is None else newest.i,
            "bytes_per_row": max(1, size // rows) if rows else self._bytes_per_row,
        }

    def rows(self, cut: Cut) -> int:
        """Estimated from the bytes, rounded up: a file that is not empty has a row."""
        size: int = sum(pin[1] for pin in cut.pins)
        return -(-size // self._bytes_per_row)

    def lag(self, start: Offsets) -> int:
        """Files that lie there or were discovered, and are not below ``start``."""
        newest = self._ledger.newest()
        discovered = 0 if newest is None else newest.end
        return discovered - position(start, PARTITION) + len(self._unseen())

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """By their time of modification."""
        newest = self._ledger.newest()
        first = position(start, PARTITION)
        discovered: Iterable[FoundFile] = () if newest is None else self._ledger.files(first, newest.end)
        return sum(file.mtime_ns < at_ms * 1_000_000 for file in (*discovered, *self._unseen()))

    def discovered(self) -> bool:
        """Whether the log knows of any file."""
        return self._ledger.newest() is not None

    def _unseen(self) -> Sequence[FoundFile]:
        return self._ledger.unseen(self._source.listing(self._clock.now_ms()))


def _number(hint: Mapping[str, Any], name: str, default: int) -> int:
    value = hint.get(name)
    return value if type(value) is int else default


def _within(files: Iterable[FoundFile], most_bytes: int | None) -> list[FoundFile]:
    taken: list[FoundFile] = []
    total = 0
    for file in files:
        total += file.bytes
        if most_bytes is not None and total > most_bytes and taken:
            break
        taken.append(file)
    return taken
