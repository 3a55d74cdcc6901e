"""Partitions by event time: which hours, days or months a version wrote, and up to which time they are complete (argument ``partitions`` of a pipeline)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.entries import CompleteTime

WATERMARK, SOURCE_TIME = "watermark", "source time"
FORMATS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""Grain → the form of the key of a partition."""
NULL = "null"
"""The key of rows without an event time. They are in no partition, and never complete."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTHS = {"hour": 13, "day": 10, "month": 7}
"""Grain → the length of a key, which is the beginning of an ISO 8601 time."""
_MOST = 1_000
"""The maximum number of partitions without rows that a result names."""


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """
    The partitions of the rows of a sink by event time, and the rule by which they are complete.

    A partition is an hour, a day or a month. It is *complete* if the pipeline expects no more rows of it. Exactly one of ``complete`` and ``after`` must be
    given:

    * ``complete="watermark"``: the watermark of the pipeline's state has passed the end of the partition. Requires ``state``.
    * ``complete="source time"``: every record that arrived in the source before the end of the partition was read. A record that arrives after the end of its
      hour, although its event time is in it, is late.
    * ``after``: the newest event time that was read is at least this time after the end of the partition. Event times after the time of the plan are ignored.

    Rows that a later version adds to a complete partition are *late*. They are written as all rows are, counted as ``late_partition_rows``, and logged.

    :param by: the column with the event time, of type timestamp, timestamp_ntz or date. The last two are times in ``timezone``
    :param grain: ``hour``, ``day`` or ``month``
    :param complete: ``watermark`` or ``source time``
    :param after: a time in seconds, or a ``timedelta``, 0 or more
    :param sink: the sink whose rows are counted. Required if the pipeline has several
    :param timezone: name of the time zone in which days and months begin. Hours begin in UTC
    :raises InvalidError: an argument is not valid
    """

    by: str
    grain: str = "day"
    complete: str | None = None
    after: int | timedelta | None = None
    sink: str | None = None
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        where = "partitions:"
        arguments.text(f"{where} by", self.by)
        arguments.choice(f"{where} grain", self.grain, FORMATS)
        arguments.exactly_one(where, complete=self.complete, after=self.after)
        if self.complete is not None:
            arguments.choice(f"{where} complete", self.complete, (WATERMARK, SOURCE_TIME))
        if self.after is not None:
            object.__setattr__(self, "after", arguments.seconds(f"{where} after", self.after, least=0))
        if self.sink is not None:
            arguments.text(f"{where} sink", self.sink)
        try:
            ZoneInfo(arguments.text(f"{where} timezone", self.timezone))
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise InvalidError(f"{where} timezone is not the name of a time zone", given=self.timezone) from error
        if self.grain == "hour" and self.timezone != "UTC":
            raise InvalidError(f"{where} hours begin in UTC, because an hour of a time zone may occur twice", given=self.timezone)  # fmt: skip

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    def key(self, at_ms: int) -> str:
        """
        Return the key of the partition with a time in milliseconds since the epoch.

        It is :data:`NULL` for a time before year 1, and for one in the last partition of year 9999, which has no end that Python could represent.
        """
        try:
            local = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._zone)
            self.at_ms(self._next(self._floor(local.replace(tzinfo=None))))
        except (OverflowError, ValueError):
            return NULL
        return local.isoformat()[: _LENGTHS[self.grain]]

    def is_key(self, key: str) -> bool:
        """Return whether a key is one of this grain, and not :data:`NULL`. Versions that were committed before the grain was changed have others."""
        return key != NULL and len(key) == _LENGTHS[self.grain]

    def wall_ms(self, at_ms: int) -> int:
        """Return the time that a clock in ``timezone`` shows, as if it were one in UTC, in milliseconds since the epoch."""
        local = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._zone)
        return (local.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

    def at_ms(self, local: datetime) -> int:
        """Return a time without a zone, which is one in ``timezone``, in milliseconds since the epoch. Of a time that occurs twice, the first."""
        return int((local.replace(tzinfo=self._zone) - _EPOCH) / timedelta(milliseconds=1))

    def bounds(self, key: str) -> tuple[int, int]:
        """
        Return the start (inclusive) and the end (exclusive) of a partition, in milliseconds since the epoch.

        :param key: the key of the partition, or its start as ISO 8601 text
        :raises InvalidError: the text does not name a partition of this grain
        """
        start = self._start(key)
        return self.at_ms(start), self.at_ms(self._next(start))

    def _start(self, key: str) -> datetime:
        for form in (FORMATS[self.grain], "%Y-%m-%dT%H:%M:%S"):
            with suppress(ValueError):
                start = datetime.strptime(key, form)  # noqa: DTZ007  a time in `timezone`
                if start == self._floor(start) and start.isoformat().startswith(key):  # strptime also accepts one digit
                    return start
        example = datetime(2026, 1, 31, 5, tzinfo=UTC).strftime(FORMATS[self.grain])
        raise InvalidError(
            "this is not the start of a partition", given=key, accepted=f"a {self.grain} such as {example}"
        )

    def _floor(self, at: datetime) -> datetime:
        at = at.replace(minute=0, second=0, microsecond=0)
        if self.grain != "hour":
            at = at.replace(hour=0)
        return at.replace(day=1) if self.grain == "month" else at

    def _next(self, start: datetime) -> datetime:
        if self.grain == "month":
            return (start.replace(day=1) + timedelta(days=32)).replace(day=1)
        return start + (timedelta(hours=1) if self.grain == "hour" else timedelta(days=1))

    def event_key(self, key: str) -> str:
        """Return the key of a partition in the form that the temporal partition mappers of Airflow read by default, such as ``2026-01-31T05:00:00``."""
        return self._start(key).isoformat()

    def completed(self, complete: CompleteTime, *, before_ms: int | None, written: Iterable[str]) -> list[str]:
        """
        Return the keys of the partitions that became complete, in ascending order.

        :param complete: until when partitions are complete now
        :param before_ms: until when they were complete before; ``None`` if there was no version before
        :param written: partitions with rows. If more than 1,000 partitions became complete, only those with rows are returned, because one wrong event time
            can complete all hours of a century
        """
        since_ms = complete.since_ms if before_ms is None else max(before_ms, complete.since_ms)
        if complete.until_ms is None or complete.until_ms <= since_ms:
            return []
        found: list[str] = []
        start = self._start(self.key(since_ms))
        while (end := self._next(start)) and self.at_ms(end) <= complete.until_ms:
            if len(found) == _MOST:
                known = {key for key in written if self.is_key(key)}
                return sorted(key for key in known if since_ms < self.bounds(key)[1] <= complete.until_ms)
            found.append(start.isoformat()[: _LENGTHS[self.grain]])
            start = end
        return found

    def complete_time(
        self, before: CompleteTime | None, written: Iterable[str], until_ms: int | None
    ) -> CompleteTime | None:
        """
        Return until when partitions are complete after a batch. ``until_ms`` never decreases, and ``since_ms`` never increases.

        :param before: the value before the batch
        :param written: the partitions that the batch wrote
        :param until_ms: until when they are complete by the rule of the pipeline; ``None`` if it is not known
        """
        bounds = [self.bounds(key) for key in written if key != NULL]
        since = [start for start, end in bounds if before is None or not before.has(end)]
        if before is None and not since:
            return None
        since += [] if before is None else [before.since_ms]
        until = [] if before is None or before.until_ms is None else [before.until_ms]
        until += [] if until_ms is None else [until_ms]
        return CompleteTime(since_ms=min(since), until_ms=max(until, default=None))

    def late_rows(self, before: CompleteTime | None, written: Mapping[str, int]) -> dict[str, int]:
        """Return partition → rows, for the partitions that were complete before the rows were written."""
        if before is None:
            return {}
        return {key: rows for key, rows in written.items() if self.is_key(key) and before.has(self.bounds(key)[1])}


def partitions(where: str, value: object) -> Partitions | None:
    """Return the argument ``partitions``: a :class:`Partitions`, or a table of its arguments in TOML. ``where`` begins the message of an error."""
    if value is None or isinstance(value, Partitions):
        return value
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} partitions must be Partitions(...)", given=type(value).__name__)
    names = [each.name for each in fields(Partitions)]
    arguments.known_keys(f"{where} partitions", value, names)
    if "by" not in value:
        raise InvalidError(f"{where} partitions lacks required arguments", missing=["by"])
    return Partitions(**value)
