"""
The rate source: generates records at a fixed rate, without any external system.

The number of a record, the seed and the other arguments determine its values. Spark computes the records of a range. The source stores no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.connectors.source import ParsedRecords, Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = "rate"
_LONG = 2**63 - 1
"""The largest number that a column of type long holds."""


@dataclass(frozen=True, slots=True)
class RatePin:
    """A planned range ``[start, end)`` of records."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource(Source):
    """
    Generates records at a fixed rate, for demonstrations and tests. The same arguments always generate the same records.

    The columns are ``value long`` (the number of the record: 0, 1, 2, …), ``timestamp timestamp`` (when the record arrived), ``key long`` and ``random double``
    (0 to 1, exclusive). An offset is a ``value``.

    :param rows_per_second: number of records per second, 1 to 1,000,000,000, inclusive
    :param start: when record 0 arrived: a timestamp with a time zone
    :param rows: total number of records, 1 or more; ``None``: the source never ends
    :param keys: number of distinct values of ``key``, 1 or more. The values are 0 to ``keys``, exclusive
    :param seed: seed of the hash that computes ``key`` and ``random``
    :param starting: the record at which a new pipeline starts: ``earliest``, ``latest``, or a timestamp with a time zone (inclusive)
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    unit: ClassVar[str] = "records"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    reasons: ClassVar[tuple[str, ...]] = (
        "the number of a record determines its values, and the plan records the range of numbers",
    )
    rows_per_second: int = 1
    start: str = "2026-01-01T00:00:00Z"
    rows: int | None = None
    keys: int = 10
    seed: int = 0
    starting: str = "earliest"

    def __post_init__(self) -> None:
        where = "source rate:"
        arguments.integer(f"{where} rows_per_second", self.rows_per_second, least=1, most=1_000_000_000)
        arguments.integer(f"{where} keys", self.keys, least=1, most=_LONG)
        arguments.integer(f"{where} seed", self.seed, least=0, most=_LONG)
        if self.rows is not None:
            arguments.integer(f"{where} rows", self.rows, least=1, most=_LONG)
        object.__setattr__(self, "start", arguments.timestamp(f"{where} start", self.start))
        if self.starting not in ("earliest", "latest"):
            try:
                object.__setattr__(self, "starting", arguments.timestamp(f"{where} starting", self.starting))
            except InvalidError as error:
                accepted = ["earliest", "latest", "2026-01-31T00:00:00Z"]
                raise InvalidError(f"{where} starting is not valid", given=self.starting, accepted=accepted) from error

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return asdict(self)

    def immutable_config(self) -> Json:
        names = ("rows_per_second", "start", "keys", "seed")
        return {"type": "rate", **{name: getattr(self, name) for name in names}}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """Return no dataset, because the records come from no external system."""
        return []

    def initial_offsets(self) -> Offsets:
        if self.starting == "earliest":
            return {PARTITION: 0}
        at_ms = SYSTEM_CLOCK.now_ms() if self.starting == "latest" else arguments.time_ms("starting", self.starting)
        return self.offsets_for_time(at_ms)

    @property
    def reads_intervals(self) -> bool:
        return True

    def offsets_for_time(self, at_ms: int) -> Offsets:
        return {PARTITION: self.arrived_before(at_ms)}

    def arrived_before(self, at_ms: int) -> int:
        """Return the number of records that arrived before ``at_ms`` (milliseconds UTC, exclusive)."""
        elapsed_ms = at_ms - arguments.time_ms("start", self.start)
        arrived = max(0, -(-elapsed_ms * self.rows_per_second // 1000))
        return arrived if self.rows is None else min(arrived, self.rows)

    def arrived_at_ms(self, record: int) -> int:
        """Return when a record arrived, in milliseconds UTC, rounded down."""
        return arguments.time_ms("start", self.start) + record * 1000 // self.rows_per_second

    def open(self, log: CommitLog, hint: Json) -> RatePlanner:
        """Bind the source to a commit log, whose clock determines how many records have arrived."""
        return RatePlanner(self, log.clock)

    def read_pins(self, pins: Json) -> tuple[RatePin, ...]:
        summary = "the pins of a plan are not ranges of records; nothing was read"
        decoded = decoded_pins(RatePin, pins, summary)
        if any(not 0 <= pin.start < pin.end for pin in decoded):
            raise LogDamagedError(summary, invariant="R6")
        return decoded

    def check_pins(self, pins: Sequence[RatePin], *, was_read: bool) -> None:
        """Do nothing, because generated records never change."""

    def load(self, spark: SparkSession, pins: Sequence[RatePin]) -> ParsedRecords:
        frames = [self._records(spark, pin.start, pin.end) for pin in pins] or [self._records(spark, 0, 0)]
        return ParsedRecords(reduce(lambda frame, other: frame.union(other), frames))

    def _records(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Spark writes no empty file for the frame, as it would for a union with an empty DataFrame."""
        from pyspark.sql import functions as F

        value, rate = F.col("id"), self.rows_per_second
        # Seconds and their remainder are separate, because the number of a record times 1000 may be too large for a long.
        elapsed_ms = F.expr(f"id div {rate} * 1000 + id % {rate} * 1000 div {rate}")
        key = F.pmod(F.xxhash64(value, F.lit(self.seed), F.lit("key")), F.lit(self.keys))
        random = F.pmod(F.xxhash64(value, F.lit(self.seed), F.lit("random")), F.lit(2**53)) / 2**53
        return spark.range(start, end).select(
            value.alias("value"),
            F.timestamp_millis(elapsed_ms + arguments.time_ms("start", self.start)).alias("timestamp"),
            key.alias("key"),
            random.alias("random"),
        )


@dataclass(frozen=True, slots=True)
class RatePlanner(Planner):
    """A :class:`RateSource` that is bound to the clock of a commit log."""

    source: RateSource
    clock: Clock

    def poll(self, hint: Json) -> SourceEnd:
        return SourceEnd({PARTITION: self.source.arrived_before(self.clock.now_ms() + 1)})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        first, last = position(start, PARTITION), position(end.offsets, PARTITION)
        stop = last if limits.max_rows is None else min(last, first + limits.max_rows)
        if stop <= first:
            return None
        return SourceSlice(ranges={PARTITION: (first, stop)}, pins=[RatePin(first, stop)], hint=None, rows=stop - first)

    def lag(self, start: Offsets, hint: Json) -> int:
        return self.unread_before(start, self.clock.now_ms() + 1)

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        until_ms = min(at_ms, self.clock.now_ms() + 1)
        return max(0, self.source.arrived_before(until_ms) - position(start, PARTITION))

    def minimum_clock(self, start: Offsets) -> int | None:
        return self.source.arrived_at_ms(position(start, PARTITION)) if self.lag(start, None) else None
