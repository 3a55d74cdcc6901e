"""
The JDBC source: reads the rows of a database table in the order of a cursor column (extra ``jdbc``).

The planner finds the end of the source (:mod:`settled`), and cuts a range of the cursor into parts. It pins the number of rows of each part. On Postgres it
also pins a digest of the row versions. Executors read the parts through SQLAlchemy into Arrow (:mod:`executor_read`). The source detects rows that change or
are deleted between plan and commit. It does not detect rows that are deleted before they are planned.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.column_types import read_columns
from airflow_provider_streamsem.connectors.sql.pins import JdbcPin, read_pins
from airflow_provider_streamsem.connectors.sql.table import SourceTable, opened
from airflow_provider_streamsem.errors import DataError, InvalidError, RecordsMissingError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, length, position

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.source import ParsedRecords

logger = logging.getLogger(__name__)

TABLE = r"[^.\x00]+(\.[^.\x00]+)?"
_UTC_OFFSET = r"[+-](0\d|1[0-4]):[0-5]\d"
_CHANGES = ("refuse", "follow")
_NULL_CURSOR = ("refuse", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcSource(Source):
    """
    Reads the rows of a database table in the order of a cursor: a column, or a pair of columns, whose values grow with each new row.

    An offset is a value of the cursor: an integer, or for a time the microseconds since 1970-01-01 UTC. The columns are those of the table.

    :param conn_id: Airflow connection of type ``postgres``, ``mysql``, ``sqlite``, or ``generic`` with the extra ``sqlalchemy_scheme``
    :param table: ``table`` or ``schema.table``; without a schema, the default schema of the connection. Names are quoted, so they are case-sensitive
    :param cursor: an integer column, a column with times, or a pair of such a column and an integer column. Equal values are never split over batches, so a
        pair permits smaller batches
    :param columns: the columns to read; empty: all columns
    :param as_text: columns that the database casts to text, with the type ``string``. For values that no type of Spark holds, such as a zero date, ``infinity``
        or ``NaN`` in a decimal
    :param lag: required except for Postgres: the longest time in seconds from obtaining a cursor value to its commit, 0 or more. For an integer cursor it is a
        number of values. Rows that are committed later are lost
    :param changes: whether a row may change after its insertion. ``refuse``: a batch fails if a planned row was deleted before the commit, and on Postgres
        also if it was changed. ``follow``: the cursor grows with each update (``updated_at``), and a changed row is read again as a new record
    :param null_cursor: rows whose cursor is null, negative, before 1970 or after 9999 cannot be ordered. ``refuse``: they fail the run. ``skip``: they are not
        read until their cursor is set
    :param starting: where a new pipeline starts: ``earliest``, ``latest``, a value of an integer cursor, or a timestamp with a time zone (inclusive)
    :param utc_offset: UTC offset of the times in a cursor column without a time zone, as ``+hh:mm``. A zone with daylight saving time is not accepted, because
        its times go back once a year
    :param wait_s: Postgres: maximum time in seconds that a poll waits for open transactions, 0 or more
    :param rows_per_task: maximum number of rows that a Spark task reads, 1 or more. Only rows with equal cursors exceed it
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    extra: ClassVar[str] = "jdbc"
    unit: ClassVar[str] = "rows"
    range_unit: ClassVar[str] = "cursor values"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    compacts: ClassVar[bool] = True
    order: ClassVar[str] = (
        "records of the source are ordered by the cursor. Records with equal cursors are applied in any order: if they have equal keys, the sink keeps or "
        "sends any of them last"
    )
    conn_id: str
    table: str
    cursor: str | Sequence[str]
    columns: Sequence[str] = ()
    as_text: Sequence[str] = ()
    lag: int | None = None
    changes: str = "refuse"
    null_cursor: str = "refuse"
    starting: str | int = "earliest"
    utc_offset: str = "+00:00"
    wait_s: int = 30
    rows_per_task: int = 100_000

    def __post_init__(self) -> None:
        where = "source jdbc:"
        arguments.text(f"{where} conn_id", self.conn_id)
        arguments.text(f"{where} table", self.table, pattern=TABLE, accepted="table or schema.table")
        cursor = (self.cursor,) if isinstance(self.cursor, str) else self.cursor
        object.__setattr__(self, "cursor", arguments.text_list(f"{where} cursor", cursor))
        if len(self.cursor) not in (1, 2):
            raise InvalidError(f"{where} cursor must be one column or a pair of columns", given=list(self.cursor))
        object.__setattr__(self, "columns", arguments.text_list(f"{where} columns", self.columns))
        object.__setattr__(self, "as_text", arguments.text_list(f"{where} as_text", self.as_text))
        for name, value, least in (("wait_s", self.wait_s, 0), ("rows_per_task", self.rows_per_task, 1)):
            arguments.integer(f"{where} {name}", value, least=least)
        if self.lag is not None:
            arguments.integer(f"{where} lag", self.lag, least=0)
        arguments.choice(f"{where} changes", self.changes, _CHANGES)
        arguments.choice(f"{where} null_cursor", self.null_cursor, _NULL_CURSOR)
        arguments.text(f"{where} utc_offset", self.utc_offset, pattern=_UTC_OFFSET, accepted="+hh:mm or -hh:mm")
        if type(self.starting) is int:
            arguments.integer(f"{where} starting", self.starting, least=0)
        elif self.starting not in ("earliest", "latest"):
            try:
                arguments.time_ms(f"{where} starting", self.starting)
            except InvalidError as error:
                accepted = ["earliest", "latest", 42, "2026-01-31T00:00:00Z"]
                raise InvalidError(f"{where} starting is not valid", given=self.starting, accepted=accepted) from error

    @property
    def conditions(self) -> str:
        """The conditions that the source cannot check: the order in which writers obtain cursor values, ``lag``, and that rows do not change."""
        conditions = ["ascending cursor" if self.lag is None else f"lag {self.lag}"]
        if self.changes == "follow":
            conditions.append("newest state of a row")
        elif self.lag is not None:
            conditions.append("unchanged rows")
        return ", ".join(conditions)

    @property
    def reasons(self) -> tuple[str, ...]:
        reasons = ["the plan records ranges of the cursor, and every attempt reads exactly these ranges"]
        if self.lag is None:
            reasons.append(
                "a range ends before every cursor value that an open transaction of Postgres may still commit, if the cursor ascends: the transaction that "
                "writes a row obtains its value from one generator that never goes back, a sequence or the server's clock; other rows may be lost"
            )
        else:
            reasons.append(
                f"a row that is committed more than lag={self.lag} (seconds; for an integer cursor: values) after it obtained its cursor value is lost; "
                "Postgres needs no lag"
            )
        if self.changes == "follow":
            reasons.append(
                "a row that changes is read again with its new cursor value; if it changes twice before it is read, only the newer state is read"
            )
        else:
            pinned = "the plan pins the number of rows of each range; a deleted row fails the batch"
            digest = "the plan pins the number of rows of each range and a digest of their versions; a deleted or changed row fails the batch"
            reasons.append(digest if self.lag is None else pinned)
        reasons.append("rows that were deleted before their plan, or inserted with an older cursor value, are not read")
        return tuple(reasons)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {
            **asdict(self),
            "cursor": list(self.cursor),
            "columns": list(self.columns),
            "as_text": list(self.as_text),
        }

    def immutable_config(self) -> Json:
        return {
            "type": "jdbc",
            "conn_id": self.conn_id,
            "table": self.table,
            "cursor": list(self.cursor),
            "utc_offset": self.utc_offset,
        }

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [database.lineage_name(self.conn_id, self.table)]

    def opened(self) -> AbstractContextManager[SourceTable]:
        """
        Connect to the database and read the description of the table.

        :raises InvalidError: the connection or the cursor is not valid
        :raises SourceChangedError: the database has no such table
        :raises UnavailableError: the database cannot be reached
        """
        sign = -1 if self.utc_offset.startswith("-") else 1
        hours, minutes = map(int, re.findall(r"\d\d", self.utc_offset))
        utc_offset = sign * timedelta(hours=hours, minutes=minutes)
        return opened(self.conn_id, self.table, self.cursor, utc_offset=utc_offset)

    def count(self, ranges: Ranges) -> int:
        """Return the number of values of the cursor in the ranges, because it is not known how many of them have a row."""
        return length(ranges)

    def initial_offsets(self) -> Offsets:
        """``latest`` is the end of the source: rows of open transactions are read. Raises ``UnavailableError`` if these do not end within ``wait_s``."""
        if self.starting == "earliest":
            return {self.table: 0}
        if self.starting == "latest":
            with self.opened() as table:
                end = self.settled(table, SYSTEM_CLOCK)
            if end is None:
                summary = "transactions are open, so the end of the table is not known; nothing was written"
                raise table.unavailable(summary).advising("run again, set a longer wait_s, or end the transactions.")
            return {self.table: end}
        with self.opened() as table:
            if not isinstance(self.starting, int):
                return {self.table: self._offset_of_time(table, arguments.time_ms("starting", self.starting))}
            if table.cursor.is_time:
                raise InvalidError("source jdbc: starting must be a timestamp, because the cursor has times", given=self.starting)  # fmt: skip
            return {self.table: self.starting * table.cursor.step}

    @property
    def reads_intervals(self) -> bool:
        return True

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """If no visible row is at or above the time, return the offset after the newest visible row. An integer cursor has no times (``InvalidError``)."""
        with self.opened() as table:
            at = self._offset_of_time(table, at_ms)
            with table.snapshot():
                return {self.table: table.end_before(at)} if table.first_offset(at) is None else {self.table: at}

    def _offset_of_time(self, table: SourceTable, at_ms: int) -> int:
        if not table.cursor.is_time:
            summary = "source jdbc: an integer cursor has no times, so no offset corresponds to a time"
            raise InvalidError(summary, table=self.table, cursor=list(self.cursor))
        return table.cursor.at_instant(at_ms * 1000)

    def settled(self, table: SourceTable, clock: Clock) -> int | None:
        """Return the end of the source; ``None`` if open transactions did not end within ``wait_s``."""
        return table.settled_end(lag=self.lag, wait_s=self.wait_s, clock=clock)

    def open(self, log: CommitLog, hint: Json) -> JdbcPlanner:
        """Bind the source to a commit log, whose clock limits the time of a wait."""
        return JdbcPlanner(self, log.clock)

    def read_pins(self, pins: Json) -> tuple[JdbcPin, ...]:
        return read_pins(pins)

    def check_pins(self, pins: Sequence[JdbcPin], *, was_read: bool) -> None:
        """
        Check that the ranges have the pinned number of rows, and on Postgres the pinned digest. A digest value never recurs. So an equal digest before and
        after a read shows that the read found the planned rows.

        With ``changes="follow"`` rows may have moved to greater cursor values. Then only additional rows are an error.
        """
        if not pins:
            return
        with self.opened() as table, table.snapshot():
            for pin in pins:
                self._check_pin(pin, table)

    def _check_pin(self, pin: JdbcPin, table: SourceTable) -> None:
        rows, digest = table.count_and_digest(pin.start, pin.end, with_digest=bool(pin.digest))
        if rows == pin.rows and digest == pin.digest:
            return
        fields = {"table": self.table, "range": (pin.start, pin.end), "planned": pin.rows, "found": rows}
        gap_advice = 'Or set on_data_loss="record_gap" and run again: the version is closed as an abort, and its range is planned with its current rows.'
        if rows > pin.rows:
            summary = "a planned range of the table has more rows than planned: a transaction committed late"
            advice = f"set a longer lag, and check how the cursor values are generated. {gap_advice}"
        elif self.changes == "follow":
            return
        else:
            summary = "rows of a planned range were changed or deleted after they were planned"
            advice = f'if rows of this table may change, set changes="follow" and use a cursor that each update increases. {gap_advice}'
        raise RecordsMissingError(summary, **fields).advising(advice)

    def load(self, spark: SparkSession, pins: Sequence[JdbcPin]) -> ParsedRecords:
        """Reads the table's description. Raises ``DataError`` if a column cannot be read as a type of Spark."""
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[JdbcPin]) -> ParsedRecords:
        """Return the rows of :meth:`load`. The database sorts the rows of each range by the cursor."""
        return self._load(spark, pins, in_order=True)

    def _load(self, spark: SparkSession, pins: Sequence[JdbcPin], *, in_order: bool) -> ParsedRecords:
        from airflow_provider_streamsem.connectors.sql import records

        with self.opened() as table:
            columns = read_columns(table.target, self.columns, self.as_text)
            is_counted = self.changes == "refuse"
            return records.load(spark, table, self.conn_id, columns, pins, is_counted=is_counted, in_order=in_order)


class JdbcPlanner(Planner):
    """A :class:`JdbcSource` that is bound to the clock of a commit log."""

    def __init__(self, source: JdbcSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._has_warned = False

    def poll(self, hint: Json) -> SourceEnd:
        """The offset after the newest row that no open transaction can precede. While such transactions do not end, it may be 0."""
        source = self._source
        with source.opened() as table:
            self._warn_of_missing_index(table)
            bound = source.settled(table, self._clock)
            with table.snapshot():
                if source.null_cursor == "refuse" and table.has_unreadable():
                    raise DataError(
                        "rows of the table have no cursor (null, negative, before 1970 or after 9999), so they cannot be read; nothing was written",
                        table=source.table,
                        cursor=list(source.cursor),
                    ).advising('set the cursor of these rows; or set null_cursor="skip" to read them once it is set.')
                return SourceEnd({source.table: 0 if bound is None else table.end_before(bound)})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        Select at most ``limits.max_rows`` rows, or the rows of one cursor value. If all were deleted since the poll, the slice has a range without pins, so
        that a drain reaches its target.
        """
        name = self._source.table
        first, last = position(start, name), position(end.offsets, name)
        if first >= last:
            return None
        with self._source.opened() as table, table.snapshot():
            stop = last if limits.max_rows is None else table.fitting(first, last, limits.max_rows)
            pins = []
            at = first
            while at < stop:
                until = table.fitting(at, stop, self._source.rows_per_task)
                rows, digest = table.count_and_digest(at, until, with_digest=self._source.changes == "refuse")
                pins += [JdbcPin(at, until, rows, digest)] if rows else []
                at = until
        rows = sum(pin.rows for pin in pins)
        return SourceSlice(ranges={name: (first, stop)}, pins=pins, hint=None, rows=rows)

    def lag(self, start: Offsets, hint: Json) -> int:
        with self._source.opened() as table, table.snapshot():
            return table.rows(position(start, self._source.table), None)

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """With an integer cursor, which has no times, all rows count."""
        first = position(start, self._source.table)
        with self._source.opened() as table, table.snapshot():
            if not table.cursor.is_time:
                return table.rows(first, None) if at_ms > 0 else 0
            return table.rows(first, max(first, table.cursor.at_instant(at_ms * 1000)))

    def minimum_clock(self, start: Offsets) -> int | None:
        """Round the time down. With an integer cursor, which has no times, the result is 0 while rows are unread."""
        with self._source.opened() as table, table.snapshot():
            first = table.first_offset(position(start, self._source.table))
            if first is None:
                return None
            return first // table.cursor.step // 1000 if table.cursor.is_time else 0

    def _warn_of_missing_index(self, table: SourceTable) -> None:
        if self._has_warned or table.has_index():
            return
        self._has_warned = True
        message = "source jdbc: no index of table %s begins with %s, so each poll, plan, task and check reads the whole table; create such an index"
        logger.warning(message, self._source.table, ", ".join(self._source.cursor))
