"""Interfaces that sources and sinks implement, and the values that they exchange with a run. CONTRIBUTING.md describes how to add a connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Effects, Json, Marker, Receipt
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = "Nothing was created or applied in the sink; the version stays committed"


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
    :param corrected: partition → ``[start, end)`` below ``ranges``. The source has replaced the records of these offsets since. Only a source that is
        :class:`upstreams.Repinning` sets it. The run reprocesses the versions that read the former records, or fails
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


@runtime_checkable
class Expiring(Protocol):
    """Additional interface of a :class:`Source` whose items expire after a retention time."""

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """
        Count the items at or above ``start`` that have expired or may expire soon. Writes nothing.

        :param start: the next offset to read of each partition, inclusive
        :param within_ms: the period for ``at_risk``, in milliseconds from ``now_ms``. With ``None``, no item counts as at risk
        :param now_ms: the current time, in milliseconds UTC
        """
        ...


@runtime_checkable
class Consuming(Protocol):
    """Additional interface of a :class:`Source` whose planner removes records from the external system."""

    def peek(self, log: CommitLog, hint: Json) -> Planner:
        """Return a planner for dry runs. It plans as the planner of :meth:`Source.open` does, but removes no records. This call sends no request."""
        ...


@runtime_checkable
class NeedsRecords(Protocol):
    """Additional interface of a :class:`Source` whose columns may depend on its records, so that it cannot be one of several sources."""

    @property
    def reason_records_are_needed(self) -> str:
        """Why the columns are not known without records, with the setting that makes them known; ``""`` if they are known."""
        ...


@runtime_checkable
class Compacting(Protocol):
    """Additional interface of a :class:`Source` that log compaction may change. Reprocessing fails if it reads fewer records than the version has read."""

    compacts: ClassVar[bool]


@runtime_checkable
class ReplacesRows(Protocol):
    """A sink that finds the rows of a version in its table by a column. Sinks with equal :attr:`replaced_rows` would replace each other's rows."""

    @property
    def replaced_rows(self) -> str | None:
        """Identifies the rows that the sink may replace, by connection, table and column; ``None`` if it replaces none."""
        ...


@runtime_checkable
class MergesByKey(Protocol):
    """A sink that can replace the rows of earlier versions by key."""

    @property
    def mode(self) -> str:
        """``"upsert"`` if a row replaces an earlier row with the same key, else ``"append"``."""
        ...


@runtime_checkable
class Warns(Protocol):
    """Additional interface of a source or sink whose settings can be valid and still risky, such as a connection without encryption."""

    def warnings(self) -> list[str]:
        """Return a sentence for each risk. Sends no request. Raises ``InvalidError`` if the connection does not exist."""
        ...


class Loaded(Protocol):
    """
    The records of a plan as a DataFrame, in which a column marks the records that could not be parsed.

    :attr frame: one row per record. If ``bad`` is not ``None``, rows for which it is true could not be parsed, and their other columns are undefined
    :attr bad: a boolean column over ``frame``; ``None`` if the source parses every record that it reads
    :attr drop: columns of ``frame`` that the transform does not see
    """

    frame: DataFrame
    bad: Any
    drop: tuple[str, ...]

    def bad_records(self) -> Iterator[BadRecord]:
        """Yield the records that could not be parsed. Reads the same range a second time, so the engine calls it only if there are such records."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedTogether:
    """The records of several sources. ``parts`` maps the name of each source to its records."""

    parts: Mapping[str, Loaded]


@dataclass(slots=True)
class ParsedRecords:
    """A DataFrame whose records are all parsed, or that has none. Implements :class:`Loaded`."""

    frame: DataFrame
    bad: Any = None
    drop: tuple[str, ...] = ()

    def bad_records(self) -> Iterator[BadRecord]:
        """Yield nothing."""
        return iter(())


@runtime_checkable
class Counted(Protocol):
    """Additional interface of a :class:`Loaded` whose source stores its number of records, as Parquet footers do."""

    def check_read(self, read: int) -> None:
        """
        Compare the number of records that the engine read with the number that the source stores.

        :param read: number of records that the engine read
        :raises DataError: the numbers differ; the error names the item. Nothing became visible
        """
        ...


class Planner(Protocol):
    """
    A source bound to a log, for one process. It has no state of a run: hints come from the log. It may cache facts that remain true: what it has read from
    the log, and the highest end offsets that the source has reported.

    The parameter ``hint`` of each method is the hint of the newest outcome; ``None`` before the first version.
    """

    def poll(self, hint: Json) -> SourceEnd:
        """
        Find the end of the source. May write discoveries to the log, but never advances an offset.

        :raises UnavailableError: the source did not report the result of a request
        """
        ...

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
        ...

    def lag(self, start: Offsets, hint: Json) -> int:
        """Count the items in the source at or above ``start``. Writes nothing."""
        ...

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Count the items at or above ``start`` that arrived before ``at_ms`` (milliseconds UTC, exclusive). Writes nothing."""
        ...

    def minimum_clock(self, start: Offsets) -> int | None:
        """Return a lower bound, at most 1 s too low, of the times (ms UTC) at which the items at or above ``start`` arrived; ``None`` if there are none."""
        ...


class Source(Protocol):
    """
    Reads records from an external system.

    * Every range is ``[start, end)``; ``end`` is the next offset to read.
    * For the same ranges and pins, a source returns the same records every time, or raises ``SourceChangedError``.
    * :attr:`delivery` is the strongest guarantee of a pipeline that reads this source. ``exactly_once`` requires that the same ranges always return
      the same records, once each.
    * A source with an argument that is not a JSON value has a method ``to_json()``, which returns the arguments in their TOML form.
    """

    @property
    def delivery(self) -> str:
        """How often the source returns each record of the external system: ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``."""
        ...

    @property
    def conditions(self) -> str:
        """The condition of :attr:`delivery` as a short label, such as ``dedup 24 h``; ``""`` if it is unconditional."""
        ...

    @property
    def extra(self) -> str:
        """The extra of this package that installs the source's client library; ``""`` if there is no such extra."""
        ...

    @property
    def unit(self) -> str:
        """The plural noun for the items that offsets count, as messages show it, such as ``files``."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """The fields of :class:`Limits` that the source supports."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for :attr:`delivery`, one sentence each."""
        ...

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Names of the Spark packages that reading this source requires (:mod:`airflow_provider_streamsem.spark.packages`): ``kafka``, ``avro``."""
        ...

    @property
    def location(self) -> str | None:
        """URL of the location of the records, such as a directory; ``None`` if the source has none. It must not overlap the log or a dataset."""
        ...

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """
        Return the ``(namespace, name)`` of each input, in the form of OpenLineage dataset names. May look up Airflow connections. Sends a request
        only if the name is stored elsewhere. Then it may raise :class:`StreamsemError`, and the lineage has no inputs.

        :param ranges: the ranges that were read, if known. A source that selects its inputs by a pattern derives the inputs from the ranges
        """
        ...

    def immutable_config(self) -> Json:
        """Return the fields that must not change while the log is in use: the identity of the source."""
        ...

    def initial_offsets(self) -> Offsets:
        """
        Return the offsets at which version 0 starts. May send requests to the source.

        :raises StreamsemError: the source cannot be reached, or does not have the offsets at which it is configured to start
        """
        ...

    def open(self, log: CommitLog, hint: Json) -> Planner:
        """
        Bind the source to a log. Sends no request.

        :param hint: the hint of the newest outcome; ``None`` before the first version
        """
        ...

    def read_pins(self, pins: Json) -> Sequence[Any]:
        """
        Decode the pins of a plan to dataclasses of the source, and check that the source is configured to read the items that they name (R6).

        :raises LogDamagedError: the pins have another form, or name an item that the source does not read
        """
        ...

    def next_hint(self, hint: Json, pins: Sequence[Any], counts: Mapping[str, int]) -> Json:
        """
        Return the hint of the outcome that commits a plan. Sends no request.

        :param hint: the hint of the plan
        :param pins: the pins of the plan
        :param counts: row counts of the attempt that is committed
        """
        ...

    def check_pins(self, pins: Sequence[Any], *, was_read: bool) -> None:
        """
        Check that the source still has the items of a plan, unchanged (D5).

        The run calls this method after every read. It also calls it before a read, unless this process has just planned the items.

        :param was_read: whether the engine has read the items. If so, the source skips checks whose failure would have failed the read
        :raises SourceChangedError: the error names the first item that was changed or is missing. Nothing became visible
        """
        ...

    def load(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded | LoadedTogether:
        """
        Return the planned records as a DataFrame. This call reads no record. Spark reads the records when an action evaluates the DataFrame.

        :param pins: the pins of a plan. If there are none, the DataFrame has the columns of the source and no rows
        :raises DataError: there are no pins, and the columns of the source depend on its records
        """
        ...


class Sink(Protocol):
    """
    Stages the rows of a batch as files, and determines how they become visible.

    There are two kinds of sinks. The rows of a sink *in the log* become visible with the outcome, because readers find the files through the log. A sink
    *outside the log* (:class:`PublishingSink`) publishes the rows to another system, such as a table or a topic, after the commit.

    * :meth:`stage` writes under paths that contain the attempt id, so that no two attempts share a key (I8). No reader reads these files before the
      outcome exists.
    * The engine calls :meth:`collect` after :meth:`stage`. The files must contain exactly the rows that the engine passed to the writer.
    * A file never changes after it was collected.
    """

    @property
    def extra(self) -> str:
        """The extra of this package that installs the sink's client library; ``""`` if there is no such extra."""
        ...

    is_outside_log: ClassVar[bool]
    """Whether the rows become visible outside the log, after the commit. If so, the sink is a :class:`PublishingSink`."""

    @property
    def delivery(self) -> str:
        """
        How often the sink applies each row, through retries, zombies and crashes: ``exactly_once``, ``effectively_once``, ``at_least_once`` or
        ``at_most_once``.
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
        """Return the fields that must not change while the log is in use."""
        ...

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """
        Write the ownership marker, which names this pipeline as the owner of the dataset, or verify the existing marker.

        :param pipeline_uuid: uuid of the pipeline
        :param log: URL of the pipeline's log
        :param new: whether the log has no version yet. Only then may the pipeline claim a dataset without an ownership marker
        :raises ConflictError: the dataset belongs to another log, or has files without a marker. Nothing was written
        :raises LogDamagedError: ``new`` is false, and the ownership marker is missing
        """
        ...

    def refuse_existing_output(self, log: str) -> None:
        """
        Refuse a dataset that contains output of an earlier log. Called before a new log is created.

        :param log: URL of the new log
        :raises ConflictError: the dataset has an ownership marker or files. Nothing was written
        """
        ...

    def attempt_location(self, version: int, attempt_id: str) -> str:
        """Return the directory or prefix of one attempt, in the form that the engine's writer accepts."""
        ...

    def resolve_schema(self, schema: str) -> str:
        """
        Check that the sink can store the columns, and return the types in which the engine stages them. Called before anything is staged.

        :param schema: schema JSON in Spark's form. A column whose type is not known yet is ``void``
        :returns: the same columns, each with its type or the wider type of the sink's table. The engine casts to these types, and drops columns that
            are still ``void``
        :raises DataError: the sink or its table cannot store a column. Nothing became visible
        """
        ...

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write a DataFrame into the location of the attempt. Returns when all files are written.

        :returns: the argument ``accepted`` of :meth:`collect`: names, relative to the location, of the files of successful Spark tasks. ``None`` if
            the location contains no other files
        """
        ...

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Return the staged files. The sink counts the rows of each file by its footer, or by reading the file if its format has no footer.

        :param accepted: the return value of :meth:`stage`; ``None``: all files in the location of the attempt
        :raises StageError: an accepted file is missing. Nothing became visible
        :raises DataError: the sink could not publish a value. Nothing became visible
        """
        ...

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of every attempt with files in the dataset, incomplete files included; with ``version``, only of that version."""
        ...

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """
        Delete the files of one attempt, and return their total size in bytes. With ``dry_run``, delete nothing and return the size.

        Only vacuum and the drop of a fork (K6) call this method. Vacuum does so for attempts that lost, and for staged files whose rows were published (V4).
        """
        ...

    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        """Return the current size in bytes and checksum of a file; ``None`` if the file is missing."""
        ...

    def count(self, key: str, format: str) -> int:
        """
        Return the number of rows of a file, counted in the file; 0 if the file is missing.

        :raises DataError: the file is not a complete file of its format
        """
        ...

    def is_complete(self, committable: Committable) -> bool:
        """Return whether every file exists with the recorded size and checksum (W17)."""
        ...


@dataclass(frozen=True, slots=True)
class SinkMarker:
    """
    The newest version that a transactional sink has applied or skipped, as the sink stores it.

    A transactional sink is a sink outside the log that sets this marker in one transaction with the rows.

    :param state: ``applied`` or ``skipped``
    :param outcome: sha256 of the outcome that set the marker, or its first digits; ``""`` if a user set the marker by hand
    """

    version: int
    state: str
    outcome: str

    def is_of(self, version: int, outcome: str) -> bool:
        """Return whether the commit with this version and outcome has set the marker."""
        return self.version == version and outcome.startswith(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit:
    """
    The part of a commit that one sink publishes.

    :param pipeline_uuid: uuid of the pipeline; together with ``sink`` the key of the sink's marker
    :param sink: name of the sink in the pipeline
    :param version: version of the commit
    :param outcome: sha256 of the bytes of the version's outcome; the marker stores it
    :param committable: the staged files to publish
    :param schema: the columns that the log records for the sink, as schema JSON in Spark's form; ``""`` if no batch has had rows yet
    :param root: the version that a sink stores with the rows of the commit: the first version of a reprocessing run's chain, or the commit's own version
    :param replaced: root → the rows that the commit removes from the sink: those of a reprocessing run's chain, or those of the rolled-back versions
    :param expected_marker: the newest earlier commit that set the sink's marker, according to its receipts; ``None`` if there is none
    """

    pipeline_uuid: str
    sink: str
    version: int
    outcome: str
    committable: Committable
    schema: str
    root: int
    replaced: Mapping[int, Committable] = field(default_factory=dict)
    expected_marker: Marker | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether the commit neither adds nor replaces rows in this sink. If so, the sink sets no marker."""
        return not self.committable.files and not self.replaced_files

    @property
    def staged_schema(self) -> str:
        """The columns of the staged files; ``""`` if there are none, so that a table with other columns accepts the commit."""
        return self.schema if self.committable.files else ""

    @property
    def replaced_files(self) -> list[DataFile]:
        """The files with the rows that the commit removes from the sink."""
        return [file for rows in self.replaced.values() for file in rows.files]

    def is_settled(self, marker: SinkMarker | None) -> bool:
        """Return whether the sink's marker shows that this commit was applied or skipped."""
        return marker is not None and marker.is_of(self.version, self.outcome)

    def check_marker(self, marker: SinkMarker | None, what: str, **where: object) -> None:
        """
        Refuse to publish into a sink whose marker is not the one that the newest receipts name.

        :param marker: the sink's marker, not above this version; ``None`` if the marker, or the object that stores it, is missing
        :param what: the state of the sink if the marker is missing, as the summary of the error
        :param where: fields of the error that identify the table or topic
        :raises MarkerLostError: the marker is missing or older than expected, so the sink has lost versions
        :raises MarkerConflictError: the marker is newer than expected or another outcome set it, so the log has lost versions
        """
        expected = self.expected_marker
        if expected is None and marker is None:
            return
        if marker is None:
            raise self.marker_lost_error(what, marker=None, **where)
        if expected is not None and marker.version < expected.version:
            older = "the sink's marker is older than its newest receipts: an older copy of the sink was restored"
            raise self.marker_lost_error(older, marker=marker.version, **where)
        if expected is None or not marker.is_of(expected.version, expected.outcome):
            raise self.marker_conflict_error(
                "the sink's marker names a commit that this log does not have", marker=marker.version, **where
            )

    def marker_lost_error(self, summary: str, **where: object) -> MarkerLostError:
        """Return the error for a sink that lacks versions for which the log has receipts."""
        return MarkerLostError(f"{summary}. {_NOTHING}", **self._facts(), **where)

    def marker_conflict_error(self, summary: str, **where: object) -> MarkerConflictError:
        """Return the error for a sink that has a version that this log does not have."""
        return MarkerConflictError(f"{summary}. {_NOTHING}", **self._facts(), **where)

    def _facts(self) -> dict[str, object]:
        marked = None if self.expected_marker is None else self.expected_marker.version
        facts = {"sink": self.sink, "version": self.version, "expected_marker": marked}
        return {**facts, "pipeline_uuid": self.pipeline_uuid}


class EffectLedger(Protocol):
    """
    The claims and results of a version's effects on one sink, as one publisher reads and records them. An *effect* is a call that cannot be undone.

    A chunk is a consecutive set of records in the order of the staged files. Chunks are the same for every publisher. A publisher performs a chunk in
    one round, or in several rounds if calls were interrupted. Each round begins with the first record that the previous round has not performed.

    :param clock: the clock by which the publisher waits
    :param may_close: whether this publisher may record as *unknown* the rounds that other publishers have claimed. True for a retry of the run that
        committed the version, and for a skip
    """

    clock: Clock
    may_close: bool

    def claim(self, chunk: int, round: int) -> bool:
        """Claim one round of a chunk. Returns whether this publisher holds the claim. Only the publisher that holds it may perform the effects (I17)."""
        ...

    def known(self, chunk: int, round: int) -> Effects | None:
        """Return the recorded result of one round of a chunk; ``None`` if no publisher has recorded it."""
        ...

    def record(
        self, chunk: int, round: int, *, done: int, refused: int = 0, unknown: int = 0, skipped: int = 0, left: int = 0
    ) -> Effects:
        """
        Record the result of one round of a chunk, after its last effect. All counts are records.

        :param done: effects that were acknowledged
        :param refused: effects that will never be performed, because the other system refused them
        :param unknown: effects that may have been performed
        :param skipped: effects that an operator skipped
        :param left: records at the end of the chunk that no call of this round performed
        :returns: the stored result, which may be that of another publisher
        """
        ...


class PublishingSink(Sink, Protocol):
    """
    A sink outside the log: it publishes the rows of a commit to another system, from files that were staged before the commit.

    * Staging must refuse every batch that :meth:`publish` is certain to refuse. After the commit, a batch can only be published or skipped by an operator.
    * Any process may call :meth:`publish`: repeatedly, concurrently with another process, and late.
    * A transactional sink sets its marker ``(pipeline uuid, sink) → (version, applied, outcome)`` in **one** transaction with the rows. It does so
      only if the marker is still the one that it read (P2). Before that, and before it creates a table or topic, it calls :meth:`SinkCommit.is_settled`
      and :meth:`SinkCommit.check_marker`.
    * Only :meth:`Sink.claim` of a new log and :meth:`skip` create the storage of the markers. If it is missing, :meth:`publish` raises
      ``MarkerLostError``, because an empty storage would mean that no version was published.
    """

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published files. If not, vacuum deletes them after the receipts exist."""
        ...

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of the attempts whose files the sink's table references. Vacuum keeps these files even if the attempt lost."""
        ...

    @property
    def can_remove_rows(self) -> bool:
        """Whether :meth:`publish` can remove rows of earlier versions. If not, reprocessing runs and rollbacks are refused before anything is written."""
        ...

    def check_removable(self, files: Sequence[DataFile]) -> None:
        """
        Check that rows can be removed from the table in its current state. Called before a reprocessing run or a rollback is planned.

        :param files: the published files with these rows
        :raises InvalidError: the rows cannot be removed. Nothing was written
        """
        ...

    def publish(self, batch: SinkCommit, effects: EffectLedger) -> Receipt | None:
        """
        Apply a batch, unless it was applied or skipped already.

        :returns: the receipt. ``None`` if the marker is above this version: the caller then reads the version's receipts (P2, P9)
        :raises UnavailableError: the sink did not report the result of a request. Whether the batch was applied is unknown; the next call reads the marker
        :raises PublishError: the sink refuses the batch. A transactional sink has no rows of it
        :raises MarkerLostError: the sink's marker is missing, or older than the newest receipts
        :raises MarkerConflictError: the sink's marker names a commit that the log does not have
        """
        ...

    def skip(self, batch: SinkCommit, effects: EffectLedger) -> Receipt | None:
        """
        Set the marker to this version without adding or removing rows. Returns as :meth:`publish` does, but does not check the existing marker.
        Creates a missing table or topic if the marker is stored in one. With a skip, a user accepts the loss of versions in the sink or in the log.
        """
        ...

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Return the sink's marker for a pipeline; ``None`` if there is none, or if the sink keeps no markers."""
        ...
