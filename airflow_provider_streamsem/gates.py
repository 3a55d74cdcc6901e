"""Gates: conditions for the staged rows of a batch, before anything of it becomes visible (argument ``gates`` of a pipeline)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.entries import Json

FAIL, HOLD, WARN = "fail", "hold", "warn"
_FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """
    Conditions that the staged rows of a batch must satisfy. All conditions that are given are checked after staging and before the commit.

    ``on_failure``:

    * ``fail``: the attempt fails, and nothing becomes visible. A retry reads the same records, so the task fails without retries.
    * ``hold``: the version is held. Its rows stay staged, the task fails without retries, and no run can plan a version until a user commits the version with
      ``streamsem commit`` or aborts it with ``streamsem abort``. The next run reads the records of an aborted version again.
    * ``warn``: the failure is logged and recorded with the version.

    The conditions ``min_rows`` and ``max_quarantined`` need no read. The others read the staged files, once for each sink.

    :param sink: the sink whose rows are checked. Default: every sink
    :param min_rows: minimum number of rows, inclusive
    :param max_rows: maximum number of rows, inclusive
    :param max_quarantined: maximum part of the records that is quarantined, from 0 to 1, inclusive. With ``sink``: the maximum part of the sink's rows that its
        expectations quarantine
    :param max_null: column → maximum part of its values that is null, from 0 to 1, inclusive
    :param unique: sets of columns. No two rows of the batch may have equal values in all columns of a set. A row with a null in one of them is not compared
    :param freshness_s: column of type timestamp or date → maximum age of its newest value in seconds, inclusive, when the batch was planned. A batch without
        a value passes
    :param sql: a query that returns one row with one boolean column, which must be true. The view ``rows`` has the staged rows of the sink. The view
        ``versions`` has one row for each of the newest committed batches before this one: ``version``, ``committed_at``, ``read``, ``quarantined``,
        ``filtered``, ``rows`` and ``bytes``, the last two of the sink
    :param versions: maximum number of rows of the view ``versions``, 1 or more
    :param check: the name ``package.module:function`` of ``fn(DataFrame) -> Iterable[str]``, which returns a sentence for each problem of the staged rows. Its
        sentences are stored in the log, so they must not contain values of rows. Or the name of an ``ExpectationSuite`` of Great Expectations (extra ``gx``)
    :param on_failure: ``fail``, ``hold`` or ``warn``
    :raises InvalidError: an argument is not valid, or no condition is given
    """

    sink: str | None = None
    min_rows: int | None = None
    max_rows: int | None = None
    max_quarantined: float | str | None = None
    max_null: Mapping[str, float | str] = field(default_factory=dict)
    unique: Sequence[Sequence[str]] = ()
    freshness_s: Mapping[str, int] = field(default_factory=dict)
    sql: str | None = None
    versions: int = 10
    check: str | None = None
    on_failure: str = FAIL

    def __post_init__(self) -> None:
        for name in ("min_rows", "max_rows"):
            if getattr(self, name) is not None:
                arguments.integer(f"gate: {name}", getattr(self, name), least=0)
        if self.max_quarantined is not None:
            object.__setattr__(self, "max_quarantined", _part("gate: max_quarantined", self.max_quarantined))
        for name in ("max_null", "freshness_s"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(column, str) and column for column in value):
                raise InvalidError(f"gate: {name} must map columns to numbers", given=type(value).__name__)
        parts = {column: _part(f"gate: max_null of {column}", value) for column, value in self.max_null.items()}
        ages = {column: arguments.seconds(f"gate: freshness_s of {column}", age) for column, age in self.freshness_s.items()}  # fmt: skip
        object.__setattr__(self, "max_null", parts)
        object.__setattr__(self, "freshness_s", ages)
        if isinstance(self.unique, str) or not isinstance(self.unique, Sequence):
            raise InvalidError("gate: unique must be a list of lists of columns", given=type(self.unique).__name__)
        sets = tuple(arguments.text_list("gate: unique", columns) for columns in self.unique)
        object.__setattr__(self, "unique", sets)
        if not all(sets):
            raise InvalidError("gate: a set of unique has no column")
        if self.sql is not None:
            arguments.text("gate: sql", self.sql)
        arguments.integer("gate: versions", self.versions, least=1, most=1_000)
        if self.check is not None:
            arguments.text("gate: check", self.check, pattern=_FUNCTION, accepted="package.module:function")
        arguments.choice("gate: on_failure", self.on_failure, (FAIL, HOLD, WARN))
        if not self.reads_rows and (self.min_rows, self.max_rows, self.max_quarantined) == (None, None, None):
            raise InvalidError("a gate has no condition")

    @property
    def reads_rows(self) -> bool:
        """Whether a condition reads the staged rows."""
        return bool(self.max_null or self.unique or self.freshness_s or self.sql or self.check)

    def to_json(self) -> Json:
        """Return the arguments that are set."""
        defaults = {each.name: each.default for each in dataclasses.fields(self)}
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        given = {name: value for name, value in values.items() if value not in (defaults[name], {}, ())}
        return given | ({"unique": [list(columns) for columns in self.unique]} if self.unique else {})

    def applies_to(self, sink: str) -> bool:
        """Return whether the gate checks the rows of a sink."""
        return self.sink in (None, sink)

    def problems(self, counts: Mapping[str, int], sinks: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for each condition on the row counts of an attempt that does not hold."""
        for sink in sinks:
            rows = counts.get(f"written.{sink}", 0)
            if self.min_rows is not None and rows < self.min_rows:
                yield f"{sink} has {rows} rows, and min_rows is {self.min_rows}"
            if self.max_rows is not None and rows > self.max_rows:
                yield f"{sink} has {rows} rows, and max_rows is {self.max_rows}"
        if self.max_quarantined is not None:
            quarantined, read, what = counts.get("quarantined", 0), counts.get("read", 0), "records"
            if self.sink is not None:
                removed = [counts.get(f"{name}_rows.{self.sink}", 0) for name in ("quarantined", "dropped")]
                quarantined, read = removed[0], sum(removed) + counts.get(f"written.{self.sink}", 0)
                what = f"rows of {self.sink}"
            if exceeds(quarantined, read, self.max_quarantined):
                yield f"{quarantined} of {read} {what} are quarantined, and max_quarantined is {self.max_quarantined}"


def gates(where: str, value: object) -> tuple[Gate, ...]:
    """Return the argument ``gates``: a list of :class:`Gate`, or of tables of its arguments in TOML. ``where`` begins the message of an error."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise InvalidError(f"{where} gates must be a list of Gate(...)", given=type(value).__name__)
    return tuple(_gate(f"{where} gates", each) for each in value)


def _gate(where: str, value: object) -> Gate:
    if isinstance(value, Gate):
        return value
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} must contain Gate(...)", given=type(value).__name__)
    arguments.known_keys(where, value, [each.name for each in dataclasses.fields(Gate)])
    return Gate(**value)


def exceeds(part: int, whole: int, limit: float | str) -> bool:
    """Return whether a part of some records is more than the part ``limit`` of them. Of no records, no part is."""
    return part > Fraction(str(limit)) * whole


def _part(name: str, value: Any) -> str:
    """Return a number from 0 to 1 as text, because the log has no floats."""
    try:
        number = None if isinstance(value, bool) else Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        number = None
    if number is None or not 0 <= number <= 1:
        raise InvalidError(f"{name} must be a number from 0 to 1", given=str(value)[:40])
    return str(value)
