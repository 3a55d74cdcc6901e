"""
Cursor columns of a table, and the integers by which the log orders their values.

An integer is its own offset. A time is the number of microseconds since 1970-01-01 UTC. The offset of a pair is the offset of its first column, times
``2**64``, plus the integer in its second column. So offsets are ordered as the values are, and are never negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    import sqlalchemy as sa

PAIR = 2**64
"""Number of values that the second column of a pair can have for one value of the first."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 30, tzinfo=timezone.utc)
"""The greatest supported time. In every time zone it is before the year 10000, which Python cannot represent."""
_US = timedelta(microseconds=1)
_LAST_US = (_LAST - _EPOCH) // _US
_MYSQL = ("mysql", "mariadb")
_MAX_BIGINT = 2**63 - 1
"""The greatest value of a bigint."""


@dataclass(frozen=True, slots=True)
class CursorColumn:
    """
    A column of the cursor.

    :param zoned: whether the database stores its times in UTC, and not as local times
    :param unit: resolution of its times, in microseconds; 1 for integers
    :param nullable: whether the catalog permits nulls
    """

    name: str
    is_time: bool
    zoned: bool
    unit: int
    nullable: bool


@dataclass(frozen=True, slots=True)
class Cursor:
    """
    The cursor of a table: one column, or a pair. ``utc_offset`` is that of the times in columns without a time zone.

    :param table: SQLAlchemy's table, whose columns are those of the cursor, in order
    :param may_hold_text: whether integer columns can also contain other types, as in SQLite, where texts are greater than all integers
    """

    table: sa.Table
    columns: tuple[CursorColumn, ...]
    utc_offset: timedelta
    may_hold_text: bool = False

    @property
    def is_time(self) -> bool:
        """Whether the first column has times."""
        return self.columns[0].is_time

    @property
    def step(self) -> int:
        """Number of offsets that share one value of the first column."""
        return 1 if len(self.columns) == 1 else PAIR

    def offset_of(self, values: Sequence[Any]) -> int:
        offset = 0
        for column, value in zip(self.columns, values, strict=True):
            offset = offset * PAIR + self._number(column, value)
        return offset

    def _number(self, column: CursorColumn, value: Any) -> int:
        if not column.is_time:
            return int(value)
        at: datetime = value
        is_local = at.tzinfo is None and not column.zoned
        return self.instant_us(at - self.utc_offset if is_local else at)

    def values_of(self, offset: int) -> tuple[Any, ...]:
        """In the form that the database's driver accepts."""
        *first, last = (offset,) if len(self.columns) == 1 else divmod(offset, PAIR)
        return tuple(self._value(column, number) for column, number in zip(self.columns, (*first, last), strict=True))

    def _value(self, column: CursorColumn, number: int) -> Any:
        if not column.is_time:
            return number
        at = _EPOCH + min(number, _LAST_US) * _US
        if column.zoned and getattr(self.table.c[0].type, "timezone", False):
            return at
        return (at if column.zoned else at + self.utc_offset).replace(tzinfo=None)

    def instant_us(self, at: datetime) -> int:
        """Microseconds since the epoch. A time without a zone is in UTC."""
        return (at.replace(tzinfo=at.tzinfo or timezone.utc) - _EPOCH) // _US

    def at_instant(self, at_us: int) -> int:
        """The offset of the first row with a time at or after an instant, rounded down to the resolution of the column."""
        unit = self.columns[0].unit
        return max(0, at_us // unit * unit) * self.step

    def from_offset(self, offset: int) -> Any:
        import sqlalchemy as sa

        first_condition = self._compared(offset, at_or_after=True)
        second = [column.is_not(None) & (column >= 0) for column in list(self.table.c)[1:]]
        return sa.and_(
            first_condition,
            *second,
            *[sa.func.typeof(column) == "integer" for column in self.table.c if self.may_hold_text],
        )

    def before_offset(self, offset: int) -> Any:
        return self._compared(offset, at_or_after=False)

    def _compared(self, offset: int, *, at_or_after: bool) -> Any:
        """For a pair, the condition also compares the first column alone, because some databases use an index only for that."""
        import sqlalchemy as sa

        values, columns = self.values_of(offset), list(self.table.c)
        first, value = columns[0], values[0]
        if isinstance(value, int) and value > _MAX_BIGINT:  # the bound after the greatest value of a bigint
            return sa.false() if at_or_after else first <= _MAX_BIGINT
        if len(columns) == 1:
            return first >= value if at_or_after else first < value
        second = columns[1] >= values[1] if at_or_after else columns[1] < values[1]
        if at_or_after:
            return sa.and_(first >= value, sa.or_(first > value, second))
        return sa.and_(first <= value, sa.or_(first < value, second))

    def unreadable(self) -> Any:
        """Condition for rows without an offset: a null, a negative integer, or a time before 1970 or after 9999."""
        import sqlalchemy as sa

        conditions: list[Any] = []
        for column, description in zip(self.table.c, self.columns, strict=True):
            if description.nullable:
                conditions.append(column.is_(None))
            if self.may_hold_text:
                conditions.append(sa.func.typeof(column) != "integer")
            conditions.append(column < self._value(description, 0))
            if description.is_time:
                conditions.append(column >= self._value(description, _LAST_US))
        return sa.or_(*conditions)


def cursor_of(target: Target, names: Sequence[str], utc_offset: timedelta) -> Cursor:
    """Refuses a column whose type cannot be that of a cursor."""
    columns = []
    for at, name in enumerate(names):
        catalog_column = target.columns.get(name)
        if catalog_column is None:
            raise InvalidError(
                "the table has no such cursor column (names are case-sensitive)", table=target.name, cursor=name
            )
        column = _cursor_column(name, catalog_column, target)
        if column is None or (at and column.is_time):
            accepted = (
                "an integer type"
                if at or target.dialect not in ("postgresql", *_MYSQL)
                else "an integer type, timestamp, timestamptz or datetime"
            )
            raise InvalidError(
                "the type of a cursor column is not supported", table=target.name, cursor=name, type=str(catalog_column["type"]), accepted=accepted
            )  # fmt: skip
        columns.append(column)
    return Cursor(target.table(names), tuple(columns), utc_offset, may_hold_text=target.dialect == "sqlite")


def _cursor_column(name: str, catalog_column: Mapping[str, Any], target: Target) -> CursorColumn | None:
    import sqlalchemy as sa

    kind, nullable = catalog_column["type"], not target.never_null(name)
    if isinstance(kind, sa.Integer):
        return CursorColumn(name, is_time=False, zoned=False, unit=1, nullable=nullable)
    if not isinstance(kind, sa.DateTime):
        return None
    if target.dialect == "postgresql":
        digits = getattr(kind, "precision", None)
        return CursorColumn(name, True, bool(kind.timezone), 10 ** (6 - (6 if digits is None else digits)), nullable)
    if target.dialect in _MYSQL:
        return CursorColumn(name, True, isinstance(kind, sa.TIMESTAMP), 10 ** (6 - (getattr(kind, "fsp", None) or 0)), nullable)  # fmt: skip
    return None
