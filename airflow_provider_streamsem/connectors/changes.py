"""Change data: rows that say how the rows of a table change (argument ``changes`` of the sinks for tables)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

CHANGE = "__streamsem_change"
"""The column of the staged rows with :data:`UPSERT`, :data:`DELETE` or :data:`TRUNCATE`. It is not a column of the table."""
UPSERT, DELETE, TRUNCATE = "u", "d", "t"
UNCHANGED = "__streamsem_unchanged"
"""
The column of the staged rows, if :attr:`Changes.is_partial`: the names of the columns that an upsert does not change; null if it sets all of them. It is not a
column of the table.
"""
START, END = "__START_AT", "__END_AT"
"""The columns of a table with history (SCD type 2): the sequences at which a version of a row begins (inclusive) and ends (exclusive)."""
_STAGED: dict[str, Any] = {
    CHANGE: "string",
    UNCHANGED: {"type": "array", "elementType": "string", "containsNull": True},
}
_WEEK_S = 604_800
_UNKNOWN = ("fail", "null")
_COLUMN_LISTS = ("column_list", "except_column_list")
_TRACK_LISTS = ("track_history_column_list", "track_history_except_column_list")


def with_marks(schema: str, columns: Collection[str]) -> str:
    """Return schema JSON in Spark's form with those columns added that only staged rows have. ``columns``: those of the staged files."""
    parsed = json.loads(schema)
    kinds = {name: kind for name, kind in _STAGED.items() if name == CHANGE or name in columns}
    added = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({**parsed, "fields": [*parsed["fields"], *added]})


@dataclass(frozen=True, kw_only=True)
class Changes:
    """
    Applies change data to a table: each row of a batch is an upsert, a delete or a truncate. *Older* and *newer* compare sequences.

    Of the changes of a row, the one with the greatest sequence is applied, in any order of arrival. The table has the columns of ``keys`` and ``sequence_by``,
    because later changes are compared with them. For each delete and each truncate, the log keeps a *tombstone*: the key and the sequence. An older change
    that arrives later does not insert the row again.

    With ``stored_as_scd_type=2``, the table has a row for each *row version*, a state of a row of the source between two changes, and two more columns:
    ``__START_AT`` is the sequence at which the row version begins, and ``__END_AT`` the sequence at which it ends (exclusive); null if it is current.

    :param keys: columns that identify a row. Their values must not be null
    :param sequence_by: a column, or a list of columns, that order the changes of a row, ascending: integers, decimals, dates or timestamps. DeltaSink and
        IcebergSink also accept strings, compared by their UTF-8 bytes. Their values must not be null, and should differ for all changes of a row. Of two
        changes with equal keys and sequence, that of the later batch is applied, and within a batch the last one in the order of the source. A batch in which
        such changes differ is refused if their order is unknown
    :param apply_as_deletes: SQL predicate on the columns that the transform returns. If it is true, the change deletes the table's row with the same keys
    :param apply_as_truncates: SQL predicate. If it is true, the change is a truncate: it deletes every older row of the table. Its key is ignored. If both
        predicates are true, the change is a truncate. SCD type 1 only
    :param column_list: the columns of the table. It must list ``keys`` and ``sequence_by``. Default: all columns
    :param except_column_list: instead of ``column_list``: the columns that the table does not have, such as the kind of the change
    :param ignore_null_updates: whether a column that is null in an upsert keeps its value in the table. A new row gets null
    :param unchanged_columns: a column of type ``array<string>`` that names the columns whose values an upsert does not change, such as
        ``debezium_unchanged``. They keep their values in the table. The table does not get this column
    :param unknown_values: what happens if an upsert names unchanged columns, but the table and the batch have no row with the key: ``fail``: the batch is not
        published. ``null``: they are null
    :param stored_as_scd_type: 1: the table has the newest state of each row. 2: it has each state. For 2, ``sequence_by`` must be one column
    :param track_history_column_list: for SCD type 2: the columns whose changes begin a new row version. A change of other columns only changes the row version
        that it applies to. Default: all columns except ``keys``. This includes that of ``sequence_by``, so each upsert begins a row version
    :param track_history_except_column_list: instead of ``track_history_column_list``: the columns whose changes do not begin a new row version
    :param tombstone_ttl_s: time to live of a tombstone, in seconds, 1 or more. An older change is dropped if its batch is planned at most this long after the
        batch of the delete
    :raises InvalidError: an argument is not valid
    """

    keys: Sequence[str]
    sequence_by: Sequence[str] | str
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    column_list: Sequence[str] | None = None
    except_column_list: Sequence[str] | None = None
    ignore_null_updates: bool = False
    unchanged_columns: str | None = None
    unknown_values: str = "fail"
    stored_as_scd_type: int | str = 1
    track_history_column_list: Sequence[str] | None = None
    track_history_except_column_list: Sequence[str] | None = None
    tombstone_ttl_s: int = _WEEK_S

    def __post_init__(self) -> None:
        sequence = [self.sequence_by] if isinstance(self.sequence_by, str) else self.sequence_by
        object.__setattr__(self, "sequence_by", arguments.text_list("changes.sequence_by", sequence))
        object.__setattr__(self, "keys", arguments.text_list("changes.keys", self.keys))
        if not self.keys or not self.sequence_by:
            raise InvalidError("changes.keys and changes.sequence_by must name at least one column each")
        arguments.flag("changes.ignore_null_updates", self.ignore_null_updates)
        arguments.choice("changes.unknown_values", self.unknown_values, _UNKNOWN)
        for name in ("apply_as_deletes", "apply_as_truncates", "unchanged_columns"):
            if getattr(self, name) is not None:
                arguments.text(f"changes.{name}", getattr(self, name))
        for name in (*_COLUMN_LISTS, *_TRACK_LISTS):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, arguments.text_list(f"changes.{name}", getattr(self, name)))
        for both in (_COLUMN_LISTS, _TRACK_LISTS):
            if all(getattr(self, name) is not None for name in both):
                raise InvalidError(f"changes must not have both {both[0]} and {both[1]}")
        if self.ignore_null_updates and self.unchanged_columns is not None:
            raise InvalidError("changes must not have both ignore_null_updates and unchanged_columns")
        scd_type = arguments.choice("changes.stored_as_scd_type", str(self.stored_as_scd_type), ("1", "2"))
        object.__setattr__(self, "stored_as_scd_type", int(scd_type))
        self._check_history()
        shared = sorted({*self.keys} & {*self.sequence_by})
        if shared:
            raise InvalidError("changes.keys and changes.sequence_by must name different columns", shared=shared)
        lacking = sorted(name for name in self.required if not self.keeps(name))
        if lacking:
            raise InvalidError(
                "the table must keep the columns of changes.keys and changes.sequence_by, with which later changes are compared",
                lacking=lacking,
            )
        arguments.integer("changes.tombstone_ttl_s", self.tombstone_ttl_s, least=1)

    def _check_history(self) -> None:
        if not self.keeps_history:
            given = [name for name in _TRACK_LISTS if getattr(self, name) is not None]
            if given:
                raise InvalidError("changes need stored_as_scd_type=2 to track history", given=given)
            return
        if len(self.sequence_by) != 1:
            summary = "changes with stored_as_scd_type=2 need one column in sequence_by, which is the type of __START_AT and __END_AT"
            raise InvalidError(summary, given=list(self.sequence_by)).advising(
                "return one column from the transform that orders the changes of a row, and name it in sequence_by."
            )
        named = [
            name
            for lists in ("keys", "sequence_by", *_COLUMN_LISTS, *_TRACK_LISTS)
            for name in getattr(self, lists) or ()
        ]
        if reserved := sorted({START, END}.intersection(named)):
            summary = "changes with stored_as_scd_type=2 must not name the columns that the sink adds itself"
            raise InvalidError(summary, given=reserved).advising("remove the columns from the arguments of changes.")
        if self.apply_as_truncates is not None:
            raise InvalidError("changes with stored_as_scd_type=2 must not have apply_as_truncates").advising(
                "remove apply_as_truncates, and leave out truncates with `where` of the pipeline. Versions that a truncate would end stay current."
            )
        tracked = [*(self.track_history_column_list or ()), *(self.track_history_except_column_list or ())]
        unknown = sorted(name for name in tracked if name in self.keys or not self.keeps(name))
        if unknown:
            raise InvalidError(
                "changes must not track history of keys, or of columns that the table does not have", columns=unknown
            )

    @classmethod
    def of(cls, where: str, value: object) -> Changes:
        """Return the argument ``changes`` of a sink, which in TOML is a table."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidError(
                f"{where} changes must be Changes(...), in TOML [sinks.NAME.changes]", given=type(value).__name__
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        arguments.known_keys(f"{where} changes", value, fields)
        missing = [name for name in ("keys", "sequence_by") if name not in value]
        if missing:
            raise InvalidError(f"{where} changes lacks required arguments", missing=missing)
        return cls(**{name: given for name, given in value.items() if given is not None})

    @property
    def required(self) -> list[str]:
        """The columns of ``keys`` and ``sequence_by``."""
        return [*self.keys, *self.sequence_by]

    @property
    def keeps_history(self) -> bool:
        """Whether the table has every version of a row (SCD type 2)."""
        return self.stored_as_scd_type == 2

    @property
    def row_keys(self) -> list[str]:
        """The columns that identify a row of the table."""
        return [*self.keys, START] if self.keeps_history else [*self.keys]

    @property
    def joins_versions(self) -> bool:
        """Whether an upsert may belong to the row version before it. Otherwise each upsert begins one, because the sequence is tracked and differs."""
        return self.keeps_history and not self.tracked(self.sequence_by)

    def tracked(self, columns: Sequence[str]) -> list[str]:
        """Return those columns of a table whose changes begin a new version."""
        if self.track_history_column_list is not None:
            return [name for name in columns if name in self.track_history_column_list]
        others = {*self.keys, START, END, *(self.track_history_except_column_list or ())}
        return [name for name in columns if name not in others]

    def values(self, columns: Sequence[str]) -> list[str]:
        """Return those columns of staged rows that an upsert may leave unchanged."""
        return [name for name in columns if name not in (*self.required, START, END, CHANGE, UNCHANGED)]

    def history_columns(self, staged: Sequence[str]) -> list[str]:
        """
        Return the columns of a table on which its new history depends: those that say which row versions it has, and perhaps the values of staged columns.

        :param staged: the columns of the staged rows
        """
        needs_values = self.joins_versions or UNCHANGED in staged
        return [*self.required, START, END, *(self.values(staged) if needs_values else ())]

    @property
    def immutable(self) -> dict[str, Any]:
        """The arguments that must not change while a table is in use, except ``keys``."""
        tracks = {name: list(given) for name in _TRACK_LISTS if (given := getattr(self, name)) is not None}
        history = {"stored_as_scd_type": 2, **tracks} if self.keeps_history else {}
        return {"sequence_by": list(self.sequence_by), **history}

    @property
    def is_partial(self) -> bool:
        """Whether an upsert may leave columns unchanged."""
        return self.ignore_null_updates or self.unchanged_columns is not None

    @property
    def refuses_unknown(self) -> bool:
        """Whether a batch is not published in which an upsert leaves values of a row unchanged that neither the table nor the batch has."""
        return self.unknown_values == "fail" and not self.ignore_null_updates

    def keeps(self, column: str) -> bool:
        """Return whether the table gets a column."""
        if column == self.unchanged_columns:
            return False
        if self.column_list is not None:
            return column in self.column_list
        return column not in (self.except_column_list or ())

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the time in milliseconds UTC before which tombstones are expired. ``now_ms``: ``planned_at_ms`` of the plan."""
        return now_ms - self.tombstone_ttl_s * 1000

    @property
    def conditions(self) -> str:
        """The condition of the delivery guarantee as a short label, such as ``tombstones 168 h``."""
        return f"tombstones {arguments.duration(self.tombstone_ttl_s)}"

    @property
    def reason(self) -> str:
        """The sentence that says which state of each row the table has."""
        unchanged = (
            ". A column that an upsert leaves unchanged keeps the value of the newest change before it that was in the table or in the batch"
            if self.is_partial
            else ""
        )
        by = ", ".join(self.sequence_by)
        which = f"the one with the greatest {by} is applied, in any order of arrival. An older change does not insert a deleted row again"
        if self.keeps_history:
            which = (
                "each upsert begins a row version, unless it changes no tracked column, and each delete ends one, "
                f"in the order of {by}, in any order of arrival. A delete also ends a row version that arrives later"
            )
        ttl = arguments.duration(self.tombstone_ttl_s)
        return f"of the changes of a row, {which} if its batch is planned at most {ttl} after the batch of the delete{unchanged}"
