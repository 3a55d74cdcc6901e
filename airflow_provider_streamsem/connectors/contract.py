"""
Interfaces of sources and sinks, and the values that sources and sinks exchange with a run.

A new connector consists of a folder with ``source.py`` or ``sink.py``, an entry in the registry, a conformance fixture and a documentation page
(CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.protocol.entries import Committable, Effects, Json, Marker, Receipt
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = "Nothing was created or applied in the sink; the batch stays committed, and its staged rows are kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    Bounds for the size of one batch. A single item that exceeds a limit becomes a batch alone, so a limit never stops a pipeline.

    :param max_files: maximum number of files, 1 or more
    :param max_bytes: maximum size in bytes as stored in the source, 1 or more
    :param max_rows: maximum number of rows, 1 or more. The files source estimates rows from the bytes per row of the last committed batch (100 bytes
        per row before the first). Kafka counts offsets
    :param min_rows: minimum number of rows, 1 or more, estimated as for ``max_rows``. A run leaves fewer rows for a later run until ``max_delay_s``
        after the last outcome. The first batch of a pipeline and later batches of a drain never wait
    :param max_delay_s: how long fewer than ``min_rows`` rows wait, in seconds, 1 or more. Required with ``min_rows``
    :param max_quarantined: maximum number of records that cannot be parsed. A batch with more fails, and no offset advances. With 0, the first such
        record fails the batch
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
                raise InvalidError(f"limits.{name} must be an integer of 1 or more, or absent", given=value)
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
            raise InvalidError("limits.max_quarantined must be an integer of 0 or more", given=self.max_quarantined)


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """
    The end of a source, as one poll saw it. A source may extend it by what the poll listed, so that the slice does not ask again.

    :param offsets: one past the newest record of each partition, exclusive
    """

    offsets: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSlice:
    """
    What one plan reads.

    :param ranges: partition → ``[start, end)``
    :param gaps: offsets inside the ranges that cannot be read
    :param pins: dataclasses of the source, one for each item. With them the source reads exactly the remaining offsets again
    :param hint: what the next planner may know of the source after this plan. It saves requests, and is never trusted for safety
    :param rows: estimated number of records
    """

    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    pins: Sequence[Any]
    hint: Json
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """
    A record that could not be parsed. ``location`` is its position in the source (for files, ``path``), ``raw`` is its text, ``error`` is the parse error.
    """

    location: Mapping[str, str | int]
    raw: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """
    How close a source is to losing unread items to retention.

    :param lost: unread items that are already missing
    :param at_risk: unread items that expire within the requested time
    :param spare: how many items that were read the source still holds before the first unread item. This is the minimum over the partitions that have
        unread items and have already lost items. ``None`` if there is no such partition
    """

    lost: int
    at_risk: int
    spare: int | None


@runtime_checkable
class Expiring(Protocol):
    """Additional interface of a :class:`Source` whose items expire after a retention time."""

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """
        Report how close the items at or above ``start`` are to expiry. Writes nothing.

        :param within_ms: the period for ``at_risk``, in milliseconds from ``now_ms``. With ``None``, no item counts as at risk
        """
        ...


@runtime_checkable
class Consuming(Protocol):
    """Additional interface of a :class:`Source` whose planner removes records from the external system."""

    def peek(self, log: CommitLog, hint: Json) -> Planner:
        """Return a planner for inspection only. It plans as the planner of :meth:`Source.open` does, but removes no records. This call sends no request."""
        ...


@runtime_checkable
class Compacting(Protocol):
    """
    A source that may lose records inside a range, for example by log compaction. Reprocessing a version fails if it reads fewer records than the version did.
    """

    compacts: ClassVar[bool]


@runtime_checkable
class ReplacesRows(Protocol):
    """A sink that finds the rows of a version in its table by a column. Two such sinks of one pipeline would replace each other's rows."""

    @property
    def replaced_rows(self) -> str | None:
        """Identifies the rows that the sink may replace, by connection, table and column; ``None`` if it replaces none."""
        ...


class Loaded(Protocol):
    """
    The records of a plan on Spark, with the records that could not be parsed marked.

    :attr frame: one row per record. If ``bad`` is not ``None``, rows for which it is true could not be parsed, and their other columns are undefined
    :attr bad: a boolean column over ``frame``; ``None`` if the source parses every record that it reads
    :attr drop: columns of ``frame`` that the transform does not see
    """

    frame: DataFrame
    bad: Any
    drop: tuple[str, ...]

    def bad_records(self) -> Iterator[BadRecord]:
        """Return the records that could not be parsed. This reads the same range a second time, so the engine calls it only if there are such records."""
        ...


@runtime_checkable
class Counted(Protocol):
    """Additional interface of a :class:`Loaded` whose source records its own number of records, as Parquet footers do."""

    def check_read(self, read: int) -> None:
        """
        Compare the number of records that the engine read with the number that the source recorded.

        :param read: records that the engine read
        :raises DataError: the numbers differ; names the item
        """
        ...


class Planner(Protocol):
    """
    A source bound to a log, for one process. It holds no state of a run: hints come from the log, and only reads of the log are cached.

    The parameter ``hint`` of each method is the hint of the newest outcome; ``None`` before the first version.
    """

    def poll(self, hint: Json) -> SourceEnd:
        """Find the end of the source. May write to the log (discovery), but never advances an offset."""
        ...

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        Select ranges from ``start`` (inclusive) towards ``end`` within ``limits``.

        :param on_data_loss: ``"fail"``, or ``"record_gap"``. With ``"record_gap"``, offsets that are missing from the source become gaps of the slice
        :returns: the slice; ``None`` if there is nothing to read between ``start`` and ``end``
        :raises SourceChangedError: with ``"fail"``, offsets are missing from the source. The error names the first missing item. Nothing was written
        """
        ...

    def lag(self, start: Offsets, hint: Json) -> int:
        """Count the items in the source at or above ``start``. Writes nothing."""
        ...

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Count the items at or above ``start`` that arrived before ``at_ms`` (milliseconds UTC, exclusive). Writes nothing."""
        ...


class Source(Protocol):
    """
    Reads records from an external system.

    * Every range is ``[start, end)``; ``end`` is the next offset to read.
    * A replayable source returns the same records for the same ranges and pins every time, or raises ``SourceChangedError``.
    * :attr:`delivery` is the strongest guarantee of a pipeline that reads this source. ``exactly_once`` requires that the same ranges always return
      the same records, once each.
    * ``unit`` is the name of what an offset counts, for users. ``limits`` lists the fields of :class:`Limits` that bound its batches.
    * A source whose arguments are not all plain values has a ``to_json()``, which returns the arguments in their TOML form.
    """

    @property
    def delivery(self) -> str:
        """``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``: how often the source returns each record of the external system."""
        ...

    @property
    def terms(self) -> str:
        """The condition of :attr:`delivery` as a short label, such as ``dedup 24 h``; ``""`` if it is unconditional."""
        ...

    @property
    def extra(self) -> str:
        """The extra of this package that installs the client library; ``""`` if the source needs no client library."""
        ...

    unit: ClassVar[str]
    limits: ClassVar[tuple[str, ...]]
    reasons: ClassVar[tuple[str, ...]]

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Names of the Spark packages that reading this source requires (:mod:`airflow_provider_streamsem.spark.packages`): ``kafka``, ``avro``."""
        ...

    @property
    def location(self) -> str | None:
        """URL of the records, if the source has a location as datasets have; else ``None``. It must not overlap the log or a dataset."""
        ...

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """
        Return the ``(namespace, name)`` of each input, in the form of OpenLineage dataset names. May look up Airflow connections; sends no request.

        :param ranges: the ranges that were read, if known. A source that selects its inputs by a pattern derives the inputs from the ranges
        """
        ...

    def immutable_config(self) -> Json:
        """Return the fields that must not change under one log: the identity of the source."""
        ...

    def initial_offsets(self) -> Offsets:
        """Return the offsets at which the first version starts."""
        ...

    def open(self, log: CommitLog, hint: Json) -> Planner:
        """
        Bind the source to a log. Sends no request.

        :param hint: the hint of the newest outcome; ``None`` before the first version
        """
        ...

    def read_pins(self, pins: Json) -> Sequence[Any]:
        """
        Decode the pins of a plan as the source's dataclasses, and check that the source reads what they name (R6).

        :raises LogDamagedError: the pins have another form, or name something else
        """
        ...

    def next_hint(self, hint: Json, pins: Sequence[Any], counts: Mapping[str, int]) -> Json:
        """
        Return the hint of the outcome that commits a plan. Sends no request.

        :param hint: the hint of the plan
        :param counts: of the attempt that is committed
        """
        ...

    def check_pins(self, pins: Sequence[Any], *, was_read: bool) -> None:
        """
        Compare the source with the pins of a plan (D5).

        The run calls this after every read. It also calls this before it reads a plan from before this attempt. It does not check a plan that it has
        just made, because the planner has just inspected the source.

        :param was_read: the plan was read. The source then skips conditions on which the engine itself would have failed during the read
        :raises SourceChangedError: names the first item that changed or is missing
        """
        ...

    def load(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded:
        """Return the planned records as a DataFrame. Lazy: this call reads no record."""
        ...


class Sink(Protocol):
    """
    Makes rows visible.

    * :meth:`stage` writes under paths that contain the attempt id, so that no two attempts share a key (I8). No reader reads these files before the
      outcome exists.
    * The engine calls :meth:`collect` after the last byte. It returns exactly the rows that the engine handed to the writer, counted in the files.
    * A file never changes after it was collected.
    """

    @property
    def extra(self) -> str:
        """The extra of this package that installs the client library; ``""`` if the sink needs no client library."""
        ...

    publishes: ClassVar[bool]
    """whether the rows become visible outside the log, after the commit. The sink is then a :class:`PublishingSink`"""

    @property
    def delivery(self) -> str:
        """
        ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``: the guarantee for each record through retries, zombies and crashes.
        """
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the guarantee, one sentence each. If it is weaker than ``exactly_once``, they include the setting that strengthens it."""
        ...

    @property
    def format(self) -> str:
        """The name of the file format in Spark's reader."""
        ...

    @property
    def location(self) -> str:
        """URL of the dataset."""
        ...

    def immutable_config(self) -> Json:
        """Return the fields that must not change under one log."""
        ...

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """
        Mark the dataset as owned by this pipeline, or verify the existing mark.

        :param new: the log has no version yet, so the pipeline may claim a dataset without a mark
        :raises ConflictError: the dataset belongs to another log, or holds output that no log names
        """
        ...

    def refuse_orphan(self, log: str) -> None:
        """
        Refuse a dataset that holds output of an earlier log. Called if the log does not exist.

        :raises ConflictError: the dataset holds such output
        """
        ...

    def attempt_location(self, version: int, attempt_id: str) -> str:
        """Return the directory or prefix of one attempt, in the form that the engine's writer accepts."""
        ...

    def resolve_schema(self, schema: str) -> str:
        """
        Refuse columns that the sink cannot make visible, and return the types in which the engine stages the others. Called before anything is staged.

        :param schema: schema JSON in Spark's form. A column whose type is not known yet is ``void``
        :returns: the same columns, each with its type or the wider type of the sink's table. The engine casts to these types, and drops columns that
            are still ``void``
        :raises DataError: the columns do not fit the sink
        """
        ...

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write a DataFrame into the location of the attempt. Returns after the last byte.

        :returns: the argument ``accepted`` of :meth:`collect`: names, below the location, of the files that the engine accepted. ``None`` if the
            location cannot hold other files
        """
        ...

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Return the staged files. The sink counts each file by its footer, or by reading it if its format has no footer.

        :param accepted: the return value of :meth:`stage`; ``None``: all files in the location of the attempt
        :raises StageError: an accepted file is missing
        """
        ...

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of every attempt with files in the dataset, incomplete files included; with ``version``, only of that version."""
        ...

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """
        Delete the files of one attempt, and return their size in bytes. With ``dry_run``, only return the size.

        Only vacuum calls this: for attempts that lost, and for staged files that are no longer needed because they were published (V4).
        """
        ...

    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        """Return the current size in bytes and checksum of a file; ``None`` if the file is missing."""
        ...

    def count(self, key: str, format: str) -> int:
        """
        Count the rows of a file again; 0 if the file is missing.

        :raises DataError: it is not a complete file of its format
        """
        ...

    def is_complete(self, committable: Committable) -> bool:
        """Whether every file exists with the recorded size and checksum (W17)."""
        ...


@dataclass(frozen=True, slots=True)
class SinkMarker:
    """
    The newest version that a transactional sink has applied or skipped, as stored in the sink.

    :param state: ``applied`` or ``skipped``
    :param outcome: sha256 of the outcome that set the marker, or its first digits; ``""`` if a user set the marker by hand
    """

    version: int
    state: str
    outcome: str

    def is_of(self, version: int, outcome: str) -> bool:
        """Whether the commit with this version and outcome set the marker."""
        return self.version == version and outcome.startswith(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    The part of a commit that one sink publishes.

    :param pipeline_uuid: with ``sink``, the name of the marker
    :param outcome: sha256 of the bytes of the version's outcome; the marker stores it
    :param committable: the staged files to publish
    :param schema: columns of the staged rows, as schema JSON in Spark's form; ``""`` if no batch has had rows yet
    :param root: the version that a sink stores with its rows: the root of a reprocessing run's chain, or the batch's own version
    :param replaced: for a reprocessing run, the current output of its chain in the sink. ``None`` for a batch, and if all of the chain was skipped
    :param expected_marker: the newest earlier commit whose receipts say that it set the sink's marker; ``None`` if there is none
    """

    pipeline_uuid: str
    sink: str
    version: int
    outcome: str
    committable: Committable
    schema: str
    root: int
    replaced: Committable | None = None
    expected_marker: Marker | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether the commit neither adds nor replaces rows in this sink. Then it needs no marker."""
        return not self.committable.files and (self.replaced is None or not self.replaced.files)

    def is_settled(self, found: SinkMarker | None) -> bool:
        """Whether the sink's marker shows that this commit was applied or skipped."""
        return found is not None and found.is_of(self.version, self.outcome)

    def check_marker(self, found: SinkMarker | None, what: str, **where: object) -> None:
        """
        Refuse to publish into a sink whose marker is not the one that the newest receipts name.

        :param found: the sink's marker, not above this version; ``None`` if the marker, or the object that stores it, is missing
        :param what: the state of the sink, for the error, if the marker is missing
        :param where: fields of the error that identify the table or topic
        :raises MarkerLostError: the marker is missing or older than expected, so the sink has lost versions
        :raises MarkerConflictError: the marker is newer than expected or another outcome set it, so the log has lost versions
        """
        expected = self.expected_marker
        if expected is None and found is None:
            return
        if found is None:
            raise self.lost(what, marker=None, **where)
        if expected is not None and found.version < expected.version:
            older = "the sink's marker is older than its newest receipts: an older copy of the sink was restored"
            raise self.lost(older, marker=found.version, **where)
        if expected is None or not found.is_of(expected.version, expected.outcome):
            raise self.conflict(
                "the sink's marker names a commit that this log does not have", marker=found.version, **where
            )

    def lost(self, summary: str, **where: object) -> MarkerLostError:
        """Return the error for a sink that has lost versions which earlier receipts say it has."""
        return MarkerLostError(f"{summary}. {_NOTHING}", **self._facts(), **where)

    def conflict(self, summary: str, **where: object) -> MarkerConflictError:
        """Return the error for a sink that has a version which this log does not have."""
        return MarkerConflictError(f"{summary}. {_NOTHING}", **self._facts(), **where)

    def _facts(self) -> dict[str, object]:
        expected = self.expected_marker
        return {
            "sink": self.sink,
            "version": self.version,
            "expected_marker": None if expected is None else expected.version,
            "pipeline_uuid": self.pipeline_uuid,
        }


class EffectLedger(Protocol):
    """
    The recorded state of a version's effects on one sink, chunk by chunk.

    A chunk is a run of records in the order of the staged files. It is the same for every publisher. A publisher performs a chunk in one round, or in
    several rounds if calls were interrupted. Each round begins with the first record that the previous round left.

    :param clock: the clock by which the publisher waits
    :param may_close: whether this entry to publishing may record the claims of other entries as *unknown*. True for a retry of the commit's own run,
        and for an operator
    """

    clock: Clock
    may_close: bool

    def claim(self, chunk: int, round: int) -> bool:
        """Whether this entry to publishing, and never another one, may perform the effects of one round of a chunk (I17)."""
        ...

    def known(self, chunk: int, round: int) -> Effects | None:
        """Return the recorded result of one round of a chunk; ``None`` if no entry recorded it."""
        ...

    def record(
        self, chunk: int, round: int, *, done: int, refused: int = 0, unknown: int = 0, skipped: int = 0, left: int = 0
    ) -> Effects:
        """
        Record the result of one round of a chunk, after its last effect.

        :param left: number of records at the end of the chunk that no call of this round performed
        :returns: the stored result, which is that of another entry if it was faster
        """
        ...


class PublishingSink(Sink, Protocol):
    """
    A sink that makes its rows visible outside the log, from files that were staged before the commit.

    * Staging refuses every batch that :meth:`publish` would foreseeably refuse. After the commit, only an operator can skip a batch.
    * Any process may call :meth:`publish`: repeatedly, concurrently with another process, and late.
    * A transactional sink sets its marker ``(pipeline uuid, sink) → (version, applied, outcome)`` in **one** transaction with the rows. It does so
      only if the marker is still the one that it read (P2). Before that, and before it creates a table or topic, it calls :meth:`Batch.is_settled`
      and :meth:`Batch.check_marker`.
    """

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published files. If not, vacuum deletes them after the receipts exist."""
        ...

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of the attempts whose files the sink's table references now. Vacuum never deletes these, whatever the log says."""
        ...

    @property
    def can_reprocess(self) -> bool:
        """Whether :meth:`publish` can replace the rows of a reprocessing run's chain. If not, a reprocessing run is refused before anything is written."""
        ...

    def check_reprocess(self, replaced: Committable | None) -> None:
        """
        Refuse to replace rows that cannot be removed from the table in its current state. Called before a reprocessing run is planned.

        :param replaced: the rows that the reprocessing run would replace; ``None`` if the sink has none of them
        :raises InvalidError: states the reason; nothing was written
        """
        ...

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Apply a batch, or find that it was already applied or skipped.

        :returns: the receipt. ``None`` if the marker is above this version: the caller then reads the version's receipts (P2, P9)
        :raises UnavailableError: the sink gave no clear answer. Call again: the next call reads the marker
        :raises PublishError: the sink refuses the batch, and has no rows of it
        :raises MarkerLostError: the sink's marker is missing, or older than its receipts
        :raises MarkerConflictError: the sink's marker is of a commit that the log does not have
        """
        ...

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Set the marker to a batch without applying its rows. Returns as :meth:`publish` does, but does not check the marker.

        Creates a missing table or topic if the marker needs one. By a skip, a user accepts what the sink or the log has lost.
        """
        ...

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Return the sink's marker for a pipeline; ``None`` if there is none, or if the sink keeps no markers."""
        ...
