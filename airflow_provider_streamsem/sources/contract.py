"""What a source is. A new source is one file with one class, one line in the registry, one conformance fixture and one page of docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    The most that one batch reads. A single item that is larger than a limit is taken alone: a limit never stops a pipeline.

    :param max_files: files, 1 or more
    :param max_bytes: bytes as they lie in the source, 1 or more
    :param max_rows: rows, estimated from the bytes per row of the last committed batch (before the first: 100 bytes a row)
    :param min_rows: fewer rows than these (estimated as ``max_rows`` is) are left waiting, until ``max_delay_s`` after the last outcome; a drain that has
        begun goes on
    :param max_delay_s: how long fewer than ``min_rows`` wait, seconds; needed with ``min_rows``
    :param max_quarantined: records that cannot be parsed; a batch with more of them fails and nothing moves. 0: the first one fails it
    """

    max_files: int | None = None
    max_bytes: int | None = None
    max_rows: int | None = None
    min_rows: int | None = None
    max_delay_s: int | None = None
    max_quarantined: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_files", "max_bytes", "max_rows", "min_rows", "max_delay_s"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidError(f"limits.{name} must be a whole number of 1 or more, or absent", given=value)
        if (self.min_rows is None) != (self.max_delay_s is None):
            raise InvalidError(
                "limits.min_rows and limits.max_delay_s must be given together",
                min_rows=self.min_rows,
                max_delay_s=self.max_delay_s,
            )
        if self.min_rows is not None and self.max_rows is not None and self.min_rows > self.max_rows:
            raise InvalidError(
                "limits.min_rows must not be above limits.max_rows", min_rows=self.min_rows, max_rows=self.max_rows
            )
        if type(self.max_quarantined) is not int or self.max_quarantined < 0:
            raise InvalidError("limits.max_quarantined must be a whole number of 0 or more", given=self.max_quarantined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Ranges for one plan, the gaps in them that cannot be read, and the pins by which exactly the rest is read again."""

    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    pins: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that could not be parsed. ``place`` says where it lies (files: ``path``), ``raw`` is its text, ``error`` what is wrong with it."""

    place: Mapping[str, str | int]
    raw: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """
    How near a source is to losing items that were not read.

    :param lost: unread items that are gone already
    :param at_risk: unread items that go within the time that was asked about
    :param spare: how many items, all of them read, lie before the first unread one, in the partition where they are fewest; ``None`` where no partition
        with unread items has lost any item yet
    """

    lost: int
    at_risk: int
    spare: int | None


@runtime_checkable
class Expiring(Protocol):
    """What a source has besides :class:`Source` if its items go by themselves after a time."""

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """
        How near the items that are not below ``start`` are to being lost. Writes nothing.

        :param within_ms: the time that is asked about; ``None``: none is, and nothing counts as at risk
        """
        ...


@runtime_checkable
class Taking(Protocol):
    """What a source has besides :class:`Source` if planning takes records away from where they come from."""

    def look(self, log: CommitLog, last: Outcome | None) -> Planner:
        """A planner as :meth:`Source.open` gives, for who only looks: it takes nothing, and plans as if it had. Sends no request."""
        ...


@runtime_checkable
class Compacting(Protocol):
    """What a source has besides :class:`Source` if records vanish from inside a range that still stands: a redo must find as many as its version read."""

    compacts: ClassVar[bool]


class Loaded(Protocol):
    """
    The records of a plan on Spark, split into what was parsed and what was not.

    :attr frame: one row a record; where ``bad`` is not ``None``, rows for which it is true could not be parsed, and their other columns mean nothing
    :attr bad: a boolean column over ``frame``, or ``None`` where every record that is read is parsed
    :attr drop: columns of ``frame`` that the transform does not see
    """

    frame: DataFrame
    bad: Any
    drop: tuple[str, ...]

    def bad_records(self) -> Iterator[BadRecord]:
        """The records that could not be parsed: a second pass over the same range, made only where there are any."""
        ...


@runtime_checkable
class Counted(Protocol):
    """What :class:`Loaded` has besides if the source itself records how many records it holds, as footers of Parquet files do."""

    def check_read(self, read: int) -> None:
        """
        Compare what was read with what the source recorded.

        :param read: records that the engine read
        :raises DataError: they differ; names the item
        """
        ...


class Planner(Protocol):
    """A source bound to a log for one process. It remembers what it read of the log, so that a drain does not ask twice."""

    def follow(self, last: Outcome | None) -> None:
        """The newest outcome that is known: told before every plan and every hint, since other processes move the log too. Sends no request."""
        ...

    def latest_offsets(self) -> Offsets:
        """One past the newest record, per partition, exclusive. May write to the log (discovery); never moves an offset."""
        ...

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """
        Ranges from ``start`` (inclusive) towards ``end`` (exclusive) within ``limits``; ``None`` where there is nothing in between.

        :param on_data_loss: ``"fail"``, or ``"record_gap"``: offsets that are gone from the source become gaps of the cut
        :raises SourceChangedError: with ``"fail"``: names the first that is gone; nothing was written
        """
        ...

    def hint(self, plan: Plan, counts: Mapping[str, int]) -> Json:
        """What the outcome of ``plan`` carries so that the next process asks the log for less. Never trusted for safety."""
        ...

    def rows(self, cut: Cut) -> int:
        """About how many records a cut reads."""
        ...

    def lag(self, start: Offsets) -> int:
        """Items that lie in the source and are not below ``start``. Writes nothing."""
        ...

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Of these items, those that came before a time (milliseconds UTC, exclusive). Writes nothing."""
        ...


class Source(Protocol):
    """
    Where records come from.

    * Every range is ``[start, end)``: ``end`` is the next offset to read.
    * A replayable source gives the same records for the same ranges and pins, every time, or raises ``SourceChangedError``.
    * A pipeline keeps at best what :attr:`delivery` says: ``exactly_once`` where the same ranges give the same records for ever, once each.
    * ``unit`` is what an offset counts, for people; ``limits`` are the names of :class:`Limits` that bound its batches.
    * A source whose arguments are more than plain values has a ``to_json()`` that gives them as TOML has them.
    """

    @property
    def delivery(self) -> str:
        """``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``: how often a record of the outside world is among its records."""
        ...

    @property
    def terms(self) -> str:
        """What :attr:`delivery` depends on, in a few words for the label, such as ``dedup 24 h``; ``""`` where it depends on nothing."""
        ...

    @property
    def extra(self) -> str:
        """The extra of this package that installs its client library; ``""`` where it needs none."""
        ...

    unit: ClassVar[str]
    limits: ClassVar[tuple[str, ...]]
    reasons: ClassVar[tuple[str, ...]]

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Names of packages that Spark needs beside itself to read it (:mod:`airflow_provider_streamsem.engines.packages`): ``kafka``, ``avro``."""
        ...

    @property
    def place(self) -> str | None:
        """URL of where records lie, where that is a place as datasets have one: neither log nor dataset may overlap it."""
        ...

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """
        ``(namespace, name)`` of each thing that is read, as OpenLineage names datasets. May look up connections; sends no request.

        :param ranges: what was read, where that is known: a source by pattern learns from it what it read
        """
        ...

    def guarded(self) -> Json:
        """What may not change under one log: the source's identity."""
        ...

    def genesis(self) -> Offsets:
        """Where the first version starts."""
        ...

    def open(self, log: CommitLog, last: Outcome | None) -> Planner:
        """Bind the source to a log. Sends no request."""
        ...

    def check_pins(self, pins: Json, *, was_read: bool) -> None:
        """
        Compare what lies in the source with what the plan pinned (D5).

        Called before the reading of a plan that was made before this attempt (one that was cut a moment ago has just been looked at), and always after it.

        :param was_read: it is after the reading: what the engine itself would have failed on while reading is no longer asked for
        :raises SourceChangedError: names the first item that changed or vanished
        """
        ...

    def load(self, spark: SparkSession, pins: Json) -> Loaded:
        """The planned records as a DataFrame. Lazy: nothing is read yet."""
        ...
