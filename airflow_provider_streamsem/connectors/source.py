"""
The base classes of sources and their planners, and the values that they exchange with a run. CONTRIBUTING.md describes how to add a connector.

Every member with a default is an ability that a source may lack. A run asks for it by calling the member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges, between, length

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """
    The end of a source at the time of a poll. A source may subclass it to keep the items that the poll listed, so that ``slice`` need not request them again.

    :param offsets: end offset of each partition, exclusive: one past its newest record
    """

    offsets: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSlice:
    """
    The part of a source that one plan reads.

    :param ranges: partition → ``[start, end)``
    :param gaps: partition → ``[start, end)`` inside the ranges whose offsets cannot be read
    :param pins: dataclasses of the source, one for each item to read. They identify exactly the offsets of the ranges that are not in a gap
    :param hint: JSON that the source passes to its next planner, such as the types of partition columns. Without it, some losses are not detected
    :param rows: estimated number of records
    :param corrected: partition → ``[start, end)`` below ``ranges``. The source has replaced the records of these offsets since. Only a source with
        :attr:`Source.on_reprocess` sets it. The run reprocesses the versions that read the former records, or fails
    """

    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    pins: Sequence[Any]
    hint: Json
    rows: int
    corrected: Gaps = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """
    A record that could not be parsed.

    :param location: where the record is in the source, such as ``path`` for files, or ``topic``, ``partition`` and ``offset`` for Kafka
    :param raw: text of the record; base64 if ``location`` has an ``encoding`` of ``base64``
    :param error: why it could not be parsed
    """

    location: Mapping[str, str | int]
    raw: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """
    How many unread items of a source retention has deleted, and how many it will delete soon.

    :param lost: number of unread items that are missing already
    :param at_risk: number of unread items that may expire within the requested time
    :param spare: number of items that the source still holds before the first unread item. It is the minimum over the partitions that have unread items and
        have lost items to retention. ``None`` if there is no such partition
    """

    lost: int
    at_risk: int
    spare: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """
    The pipeline from which a source reads.

    :param pipeline: its name
    :param log: URL of its log
    :param sink: the sink whose rows the source reads
    :param label: the guarantee that its newest version records for this sink, such as ``exactly_once``
    :param conditions: the condition of the label; ``""`` if it is unconditional
    """

    pipeline: str
    log: str
    sink: str
    label: str
    conditions: str


class Loaded:
    """
    The records of a plan as a DataFrame, in which a column marks the records that could not be parsed.

    :attr frame: one row per record. If ``bad`` is not ``None``, rows for which it is true could not be parsed, and their other columns are undefined
    :attr bad: a boolean column over ``frame``; ``None`` if the source parses every record that it reads
    :attr drop: columns of ``frame`` that the transform does not see
    :attr groups: the group of the records of each Spark partition, ascending, if the records are ordered between groups only, such as the versions of a
        table. Empty: all records are of one group. ``None``: every record has an order
    :attr aggregates: facts about the records that the engine computes in the pass that counts them: name → aggregate over the frame, a number or a text
    """

    __slots__ = ()

    frame: DataFrame
    bad: Any = None
    drop: tuple[str, ...] = ()
    groups: Sequence[int] | None = None
    aggregates: Mapping[str, Any] = MappingProxyType({})

    def bad_records(self) -> Iterator[BadRecord]:
        """Yield the records that could not be parsed. Reads the same range a second time, so the engine calls it only if there are such records."""
        return iter(())

    def take_observed(self, values: Mapping[str, Any], records: int) -> None:
        """
        Take the values of :attr:`aggregates`, before the engine reads the bad records. The engine calls this once for each batch.

        :param values: name of each aggregate → value. An aggregate without rows, or with null rows only, may be missing
        :param records: number of parsed records
        :raises DataError: the source refuses such records. Nothing became visible
        """

    def check_read(self, read: int) -> None:
        """
        Compare the number of records that the engine read with the number that the source stores, as Parquet footers do.

        :param read: number of records that the engine read
        :raises DataError: the numbers differ; the error names the item. Nothing became visible
        """


@dataclass(frozen=True, slots=True)
class LoadedTogether:
    """The records of several sources. ``parts`` maps the name of each source to its records."""

    parts: Mapping[str, Loaded]


@dataclass(slots=True)
class ParsedRecords(Loaded):
    """A DataFrame whose records are all parsed, or that has none."""

    frame: DataFrame
    bad: Any = None
    drop: tuple[str, ...] = ()


class Planner(ABC):
    """
    A source bound to a log, for one process. It has no state of a run: hints come from the log. It may cache facts that remain true: what it has read from
    the log, and the highest end offsets that the source has reported.

    The defaults are those of a source that does not know when its records arrived. The parameter ``hint`` of each method is the hint of the
    newest outcome; ``None`` before the first version.
    """

    __slots__ = ()

    @abstractmethod
    def poll(self, hint: Json) -> SourceEnd:
        """
        Find the end of the source. May write discoveries to the log, but never advances an offset.

        :raises UnavailableError: the source did not report the result of a request
        """

    @abstractmethod
    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        Select ranges from ``start`` (inclusive) towards ``end`` within ``limits``.

        :param on_data_loss: ``"fail"``, or ``"record_gap"``. With ``"record_gap"``, offsets that are missing from the source become gaps of the slice
        :returns: the slice; ``None`` if there is nothing to read between ``start`` and ``end``
        :raises SourceChangedError: with ``"fail"``, offsets are missing from the source; or the source contradicts the committed offsets, whatever
            ``on_data_loss`` is. The error names the item. Nothing was written
        :raises UnavailableError: the source did not report the result of a request
        """

    def lag(self, start: Offsets, hint: Json) -> int:
        """Count the items in the source at or above ``start``. Writes nothing. A planner whose :meth:`poll` writes must override it."""
        return length(between(start, self.poll(hint).offsets))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Count the items at or above ``start`` that arrived before ``at_ms`` (milliseconds UTC, exclusive). Writes nothing."""
        return self.lag(start, None) if at_ms > 0 else 0

    def minimum_clock(self, start: Offsets) -> int | None:
        """Return a lower bound, at most 1 s too low, of the times (ms UTC) at which the items at or above ``start`` arrived; ``None`` if there are none."""
        return 0 if self.lag(start, None) else None


class Source(ABC):
    """
    Reads records from an external system.

    * Every range is ``[start, end)``; ``end`` is the next offset to read.
    * For the same ranges and pins, a source returns the same records every time, or raises ``SourceChangedError``.
    * :attr:`delivery` is the strongest guarantee of a pipeline that reads this source. ``exactly_once`` requires that the same ranges always return
      the same records, once each.
    * A source with an argument that is not a JSON value has a method ``to_json()``, which returns the arguments in their TOML form.
    * A source is a frozen dataclass. Its fields are the keys of its table in TOML.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def delivery(self) -> str:
        """How often the source returns each record of the external system: ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``."""

    @property
    def conditions(self) -> str:
        """The condition of :attr:`delivery` as a short label, such as ``dedup 24 h``; ``""`` if it is unconditional."""
        return ""

    @property
    def extra(self) -> str:
        """The extra of this package that installs the source's client library; ``""`` if there is no such extra."""
        return ""

    @property
    @abstractmethod
    def unit(self) -> str:
        """The plural noun for the items that offsets count, as messages show it, such as ``files``."""

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """The fields of :class:`Limits` that the source supports."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """The reasons for :attr:`delivery`, one sentence each."""

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Names of the Spark packages that reading this source requires (:mod:`airflow_provider_streamsem.spark.packages`), such as ``kafka``."""
        return ()

    @property
    def location(self) -> str | None:
        """URL of the location of the records, such as a directory; ``None`` if the source has none. It must not overlap the log or a dataset."""
        return None

    def copies_of_erased(self) -> tuple[str, ...]:
        """Return a sentence for each place in which the source itself stores records that an erasure does not reach, with what deletes them there."""
        return ()

    @abstractmethod
    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """
        Return the ``(namespace, name)`` of each input, in the form of OpenLineage dataset names. May look up Airflow connections. Sends a request
        only if the name is stored elsewhere. Then it may raise :class:`StreamsemError`, and the lineage has no inputs.

        :param ranges: the ranges that were read, if known. A source that selects its inputs by a pattern derives the inputs from the ranges
        """

    @abstractmethod
    def immutable_config(self) -> Json:
        """Return the fields that must not change while the log is in use: the identity of the source."""

    def initial_offsets(self) -> Offsets:
        """
        Return the offsets at which version 0 starts: partition → offset, 0 for partitions that are left out. May send requests to the source.

        :raises StreamsemError: the source cannot be reached, or does not have the offsets at which it is configured to start
        """
        return {}

    @abstractmethod
    def open(self, log: CommitLog, hint: Json) -> Planner:
        """
        Bind the source to a log. Sends no request.

        :param hint: the hint of the newest outcome; ``None`` before the first version
        """

    @abstractmethod
    def read_pins(self, pins: Json) -> Sequence[Any]:
        """
        Decode the pins of a plan to dataclasses of the source, and check that the source is configured to read the items that they name (R6).

        :raises LogDamagedError: the pins have another form, or name an item that the source does not read
        """

    def next_hint(self, hint: Json, pins: Sequence[Any], counts: Mapping[str, int]) -> Json:
        """
        Return the hint of the outcome that commits a plan. Sends no request.

        :param hint: the hint of the plan
        :param pins: the pins of the plan
        :param counts: row counts of the attempt that is committed
        """
        return hint

    @abstractmethod
    def check_pins(self, pins: Sequence[Any], *, was_read: bool) -> None:
        """
        Check that the source still has the items of a plan, unchanged (D5).

        The run calls this method after every read. It also calls it before a read, unless this process has just planned the items.

        :param was_read: whether the engine has read the items. If so, the source skips checks whose failure would have failed the read
        :raises SourceChangedError: the error names the first item that was changed or is missing. Nothing became visible
        """

    @abstractmethod
    def load(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded | LoadedTogether:
        """
        Return the planned records as a DataFrame. This call reads no record. Spark reads the records when an action evaluates the DataFrame.

        :param pins: the pins of a plan. If there are none, the DataFrame has the columns of the source and no rows
        :raises DataError: there are no pins, and the columns of the source depend on its records
        """

    def warnings(self) -> list[str]:
        """Return a sentence for each risk of valid settings, such as a connection without encryption. Sends no request."""
        return []

    # --- how messages and metrics count offsets

    @property
    def range_unit(self) -> str:
        """
        The plural noun for what :meth:`count` counts, such as ``cursor values``. Messages about ranges and gaps show it.

        Messages about unread items show :attr:`unit`.
        """
        return self.unit

    def count(self, ranges: Ranges) -> int:
        """Return the length of ranges in :attr:`range_unit`. A source whose offsets are not consecutive, such as times, overrides it. Sends no request."""
        return length(ranges)

    def count_gaps(self, gaps: Gaps) -> int:
        """Return the total length of gaps, in the unit of :meth:`count`."""
        return sum(self.count({name: piece}) for name, pieces in gaps.items() for piece in pieces)

    # --- times and retention

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """
        Return partition → an offset such that every item of the partition with a time at or after ``at_ms`` is at or above it. Writes nothing.

        It is the first offset with such an item. If there is none yet, it is the end offset. A source that cannot
        distinguish its older items by time may return a lower offset.

        :param at_ms: milliseconds UTC, 0 or more
        :raises InvalidError: the source does not find the offsets of a time, or its items have no times
        :raises UnavailableError: the source did not report the result of a request
        """
        raise InvalidError(
            "this source cannot find the offsets of a time; nothing was written",
            type=type(self).__name__,
        ).advising("fork at a version, or at -1, the initial offsets.")

    def offsets_for_time_in(self, log: CommitLog, at_ms: int) -> Offsets:
        """
        Return what :meth:`offsets_for_time` returns. A source whose offsets are assigned in the log overrides it, and finds them there.

        :param log: the section of the log that belongs to the source (``log.of_source(…)``)
        """
        return self.offsets_for_time(at_ms)

    @property
    def reads_intervals(self) -> bool:
        """
        Whether a plan can read the offsets between any two times, whatever the plans before it have read.

        If so, the source finds the offsets of a time, and the offsets of a later time are not below those of an earlier one.
        """
        return False

    @property
    def lowest_offset(self) -> int:
        """The offset of the first record that a partition ever had. If its oldest record has a higher one, older records were deleted."""
        return 0

    @property
    def has_retention(self) -> bool:
        """Whether the items of the source expire after a retention time. If so, it overrides :meth:`expiry`."""
        return False

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """
        Count the items at or above ``start`` that have expired or may expire soon. Writes nothing. Called only if :attr:`has_retention`.

        :param start: the next offset to read of each partition, inclusive
        :param within_ms: the period for ``at_risk``, in milliseconds from ``now_ms``. With ``None``, no item counts as at risk
        :param now_ms: the current time, in milliseconds UTC
        """
        return Expiry(lost=0, at_risk=0, spare=None)

    # --- sources that change the external system, or that it changes

    @property
    def removes_records(self) -> bool:
        """Whether the planner of :meth:`open` removes records from the external system. If so, the source overrides :meth:`peek`."""
        return False

    def peek(self, log: CommitLog, hint: Json) -> Planner:
        """Return a planner for dry runs. It plans as the planner of :meth:`open` does, but removes no records. This call sends no request."""
        return self.open(log, hint)

    @property
    def compacts(self) -> bool:
        """Whether the external system may remove records, as log compaction does. Reprocessing fails if it reads fewer records than the version has read."""
        return False

    @property
    def on_reprocess(self) -> str | None:
        """
        How a run reacts to a slice with ``corrected`` records whose former values were read by earlier versions. ``None``: the source never replaces records.

        ``refuse``: the run fails before it plans. ``reprocess``: the run reprocesses these versions before it plans. ``ignore``: replaced records are not
        reported in ``corrected``, and their rows are kept. Only records that the source will deliver again, after a rollback, are reported. For these the run
        fails before it plans.
        """
        return None

    def is_outdated(self, ranges: Ranges, gaps: Gaps, pins: Sequence[Any]) -> bool:
        """
        Return whether the source has replaced or removed records that a plan has read.

        :param ranges: the ranges of the plan
        :param gaps: the gaps of the plan
        :param pins: the pins of the plan
        :raises UnavailableError: the source did not report the result of a request
        """
        return False

    def repin(self, ranges: Ranges, gaps: Gaps, pins: Sequence[Any]) -> Sequence[Any]:
        """
        Return pins of the newest records of the ranges of a plan. Equal pins identify the same records. Different pins may do so too.

        Pins identify the former records. A reprocessing run takes new pins for the same ranges, and so reads the newest records (W25).

        :param ranges: the ranges of the plan
        :param gaps: the gaps of the plan, which the new pins leave out too
        :param pins: the pins of the plan
        :raises UnavailableError: the source did not report the result of a request
        """
        return pins

    # --- order

    @property
    def order(self) -> str:
        """Which records have an order, as a reason of the guarantee of a pipeline with a sink for which the order matters; ``""`` if all records have one."""
        return ""

    def load_in_order(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded | LoadedTogether:
        """Return the records of :meth:`load`, sorted by their offsets. A source whose :meth:`load` returns another order overrides it, and sorts."""
        return self.load(spark, pins)

    # --- other pipelines and other sources

    @property
    def parts(self) -> Mapping[str, Source]:
        """Name → source, if this is a combination of several sources; else this source with the name ``""``."""
        return {"": self}

    @property
    def reason_records_are_needed(self) -> str:
        """Why the columns are not known without records, with the setting that makes them known; ``""`` if they are. Several sources need them all."""
        return ""

    def upstream(self) -> Upstream | None:
        """
        Read the name and the guarantee of the pipeline whose rows this source reads; ``None`` if it reads no pipeline. Sends requests.

        :raises StreamsemError: the other pipeline has no version yet, or its log cannot be read
        """
        return None

    def extends(self, before: Json) -> Offsets | None:
        """
        Return the initial offsets of the partitions that this source adds to another source, after whose offsets it can continue. May send requests.

        :param before: the immutable fields of the other source
        :returns: partition → offset, inclusive; ``None`` if this source does not read every partition of the other one under the same name
        :raises StreamsemError: the source cannot be reached
        """
        return None

    # --- errors of a failed attempt

    def explain_failure(self, messages: Sequence[str], ranges: Ranges) -> DataError | None:
        """
        Return the error for a failed attempt whose exception in Spark does not explain the failure; ``None`` if the source does not recognize it.

        :param messages: the messages of the exception and of its causes in the JVM
        """
        return None
