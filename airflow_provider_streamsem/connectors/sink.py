"""
The base classes of sinks, and the values that they exchange with a run. CONTRIBUTING.md describes how to add a connector.

Every member with a default is an ability that a sink may lack. A run asks for it by calling the member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.contract import Contract
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.errors import MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.expectations import Expect
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json, Marker, Receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = "nothing was created or applied in the sink, and the version stays committed"
SENT_IN_ORDER = (
    "the rows of a batch are sent in the order of the staged files. It is the order of the source if the transform only selects, filters or adds columns. "
    "After a repartition, a join or another shuffle, they are sent in any order{unless}, and an older row of a key may be sent after a newer one"
)
"""The reason of sinks that send every row. ``{unless}`` is replaced by what defines another order."""


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
    :param tombstones: for a sink with ``changes``: the files with the tombstones after the batch. Keys are relative to the directory of layers of the log
    :param expected_marker: the newest earlier commit that set the sink's marker, according to its receipts; ``None`` if there is none
    :param log: the log of the commit. A sink stores the results of calls there that cannot be undone
    :param spark: opens a Spark session, in which the sink may read and write files; ``None`` if the caller has no Spark. The context manager raises
        ``InvalidError`` if Spark lacks packages that the sink needs, ``UnavailableError`` if a retry may succeed, and ``PublishError`` if Spark refuses rows
    :param may_close_claims: whether this publisher may record as *unknown* the calls that other publishers have claimed. True for a retry of the run that
        committed the version, and for a skip
    """

    pipeline_uuid: str
    sink: str
    version: int
    outcome: str
    committable: Committable
    schema: str
    root: int
    replaced: Mapping[int, Committable] = field(default_factory=dict)
    tombstones: Sequence[DataFile] = ()
    expected_marker: Marker | None = None
    log: CommitLog | None = field(default=None, compare=False, repr=False)
    spark: Callable[[Sink], AbstractContextManager[SparkSession]] | None = field(
        default=None, compare=False, repr=False
    )
    may_close_claims: bool = False

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
        return MarkerLostError(f"{summary}; {_NOTHING}", **self._facts(), **where)

    def marker_conflict_error(self, summary: str, **where: object) -> MarkerConflictError:
        """Return the error for a sink that has a version that this log does not have."""
        return MarkerConflictError(f"{summary}; {_NOTHING}", **self._facts(), **where)

    def _facts(self) -> dict[str, object]:
        marked = None if self.expected_marker is None else self.expected_marker.version
        facts = {"sink": self.sink, "version": self.version, "expected_marker": marked}
        return {**facts, "pipeline_uuid": self.pipeline_uuid}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRewrite:
    """
    One commit of a table that has rewritten small files, or in a dry run would rewrite them.

    :param rows: number of rows in these files
    :param files: number of the small files
    :param bytes: total size of the small files in bytes
    :param new_files: number of new files; ``None`` in a dry run
    :param new_bytes: total size of the new files in bytes; ``None`` in a dry run
    :param table_version: the version or snapshot of the table that the commit created, as in the receipts of the sink; ``None`` in a dry run
    """

    rows: int
    files: int
    bytes: int
    new_files: int | None = None
    new_bytes: int | None = None
    table_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErasure:
    """
    The rows that an erasure has deleted from a table, or in a dry run would delete.

    :param rows: their number
    :param files: number of the files of the table that were written again, or removed; 0 for a database
    :param table_version: the version or snapshot of the table without the rows; ``None`` in a dry run, for a database, and if there was no such row
    :param remaining: where the table keeps the rows, and what deletes them there, one sentence each
    """

    rows: int
    files: int = 0
    table_version: str | None = None
    remaining: tuple[str, ...] = ()


class Sink(ABC):
    """
    Stages the rows of a batch as files, and determines how they become visible.

    There are two kinds of sinks. The rows of a sink *in the log* become visible with the outcome, because readers find the files through the log. A sink
    *outside the log* (:class:`PublishingSink`) publishes the rows to another system, such as a table or a topic, after the commit.

    * :meth:`stage` writes under paths that contain the attempt id, so that no two attempts share a key (I8). No reader reads these files before the
      outcome exists.
    * The engine calls :meth:`collect` after :meth:`stage`. The files must contain exactly the rows that the engine passed to the writer.
    * A file never changes after it was collected.
    * A sink is a frozen dataclass. Its fields are the keys of its table in TOML.
    """

    __slots__ = ()

    is_outside_log: ClassVar[bool] = False
    """Whether the rows become visible outside the log, after the commit. If so, the sink is a :class:`PublishingSink`."""

    @property
    def extra(self) -> str:
        """The extra of this package that installs the sink's client library; ``""`` if there is no such extra."""
        return ""

    @property
    @abstractmethod
    def delivery(self) -> str:
        """
        How often the sink applies each row, through retries, zombies and crashes: ``exactly_once``, ``effectively_once``, ``at_least_once`` or
        ``at_most_once``.
        """

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the guarantee, one sentence each. If it is weaker than ``exactly_once``, they include the setting that strengthens it."""

    @property
    @abstractmethod
    def format(self) -> str:
        """The name of the file format in Spark's reader."""

    @property
    @abstractmethod
    def location(self) -> str:
        """URL of the dataset."""

    @abstractmethod
    def immutable_config(self) -> Json:
        """Return the fields that must not change while the log is in use."""

    @abstractmethod
    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """
        Write the ownership marker, which names this pipeline as the owner of the dataset, or verify the existing marker.

        :param pipeline_uuid: uuid of the pipeline
        :param log: URL of the pipeline's log
        :param new: whether the log has no version yet. Only then may the pipeline claim a dataset without an ownership marker
        :raises ConflictError: the dataset belongs to another log, or has files without a marker. Nothing was written
        :raises LogDamagedError: ``new`` is false, and the ownership marker is missing
        """

    @abstractmethod
    def refuse_existing_output(self, log: str) -> None:
        """
        Refuse a dataset that contains output of an earlier log. Called before a new log is created.

        :param log: URL of the new log
        :raises ConflictError: the dataset has an ownership marker or files. Nothing was written
        """

    @abstractmethod
    def attempt_location(self, version: int, attempt_id: str) -> str:
        """Return the directory or prefix of one attempt, in the form that the engine's writer accepts."""

    @abstractmethod
    def resolve_schema(self, schema: str) -> str:
        """
        Check that the sink can store the columns, and return the types in which the engine stages them. Called before anything is staged.

        :param schema: schema JSON in Spark's form. A column whose type is not known yet is ``void``
        :returns: the same columns, each with its type or the wider type of the sink's table. The engine casts to these types, and drops columns that
            are still ``void``
        :raises DataError: the sink or its table cannot store a column. Nothing became visible
        """

    @abstractmethod
    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write a DataFrame into the location of the attempt. Returns when all files are written.

        :returns: the argument ``accepted`` of :meth:`collect`: names, relative to the location, of the files of successful Spark tasks. ``None`` if
            the location contains no other files
        """

    @abstractmethod
    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Return the staged files. The sink counts the rows of each file by its footer, or by reading the file if its format has no footer.

        :param accepted: the return value of :meth:`stage`; ``None``: all files in the location of the attempt
        :raises StageError: an accepted file is missing. Nothing became visible
        :raises DataError: the sink could not publish a value. Nothing became visible
        """

    @abstractmethod
    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of every attempt with files in the dataset, incomplete files included; with ``version``, only of that version."""

    @abstractmethod
    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """
        Delete the files of one attempt, and return their total size in bytes. With ``dry_run``, delete nothing and return the size.

        Only vacuum and the drop of a fork (K6) call this method. Vacuum does so for attempts that lost, and for staged files whose rows were published (V4).
        """

    @abstractmethod
    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        """Return the current size in bytes and checksum of a file; ``None`` if the file is missing."""

    @abstractmethod
    def count(self, key: str, format: str) -> int:
        """
        Return the number of rows of a file, counted in the file; 0 if the file is missing.

        :raises DataError: the file is not a complete file of its format
        """

    @abstractmethod
    def is_complete(self, committable: Committable) -> bool:
        """Return whether every file exists with the recorded size and checksum (W17)."""

    def warnings(self) -> list[str]:
        """
        Return a sentence for each risk of valid settings, such as a connection without encryption. Sends no request.

        :raises InvalidError: the connection does not exist
        """
        return []

    @property
    def conditions(self) -> str:
        """The condition of the delivery guarantee as a short label; ``""`` if there is none."""
        return "" if self.changes is None else self.changes.conditions

    @property
    def merges(self) -> bool:
        """Whether a row replaces the row of an earlier version with the same key (mode ``upsert``)."""
        return False

    @property
    def replaced_rows(self) -> str | None:
        """
        Identifies the rows that the sink may replace, by connection, table and column; ``None`` if it replaces none.

        Sinks with equal values would replace each other's rows.
        """
        return None

    # --- order: the sink applies the rows in the order of the staged files

    @property
    def is_sequenced(self) -> bool:
        """Whether the order of the rows of a batch matters. The engine stages them in the order of the source, or in that of :attr:`sequence_by`."""
        return self.merges

    @property
    def last_of(self) -> Sequence[str]:
        """The columns of which the sink keeps only the last row with equal values; empty if it keeps every row."""
        return ()

    @property
    def changes(self) -> Changes | None:
        """How the rows of a batch change rows of the table; ``None`` if they are rows of the table."""
        return None

    # --- rules

    @property
    def expect(self) -> Mapping[str, Expect]:
        """Name of a rule → the rule, for the rows that the transform returns."""
        return {}

    # --- columns

    @property
    def contract(self) -> Contract | None:
        """Which changes of the columns a batch may make; ``None``: those that the format supports."""
        return None

    def existing_columns(self) -> str | None:
        """Return the columns of the table as schema JSON in Spark's form; ``None`` if there is no table, or if only the log knows its columns."""
        return None

    @property
    def sequence_by(self) -> Sequence[str]:
        """The columns by which the rows of a batch are ordered, ascending. Empty: the order of the source."""
        return ()

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Names of the Spark packages that every batch requires (:mod:`airflow_provider_streamsem.spark.packages`)."""
        return ()

    @property
    def publishing_packages(self) -> tuple[str, ...]:
        """Names of the Spark packages that publishing with Spark requires."""
        return self.spark_packages

    def grows(self, column: str, recorded: str, wider: str) -> bool:
        """Return whether a column of the dataset can get a wider type."""
        return True

    @property
    def partitions(self) -> Sequence[str]:
        """The columns by whose values the rows are distributed over files: each file has one combination of values. Default: none."""
        return ()

    # --- erasure

    def copies_of_erased(self) -> tuple[str, ...]:
        """Return a sentence for each place in which an erasure leaves rows of the sink, with what deletes them there."""
        return ()

    # --- compaction: small files are rewritten, by versions of the log or by commits of a table

    @property
    def can_rewrite(self) -> bool:
        """Whether a version of the log can rewrite small files of the sink (PROTOCOL.md, 4.11), which :meth:`stage_rewritten` writes."""
        return False

    def stage_rewritten(
        self, frame: DataFrame, version: int, attempt_id: str, *, files: Sequence[DataFile], target_file_bytes: int
    ) -> frozenset[str] | None:
        """
        Write the rows of files again, as :meth:`stage` does. Called only if :attr:`can_rewrite`.

        :param frame: the rows of ``files``
        :param target_file_bytes: the size of the new files in bytes
        """
        raise NotImplementedError

    def urls(self, files: Sequence[DataFile]) -> list[str]:
        """Return the paths or URLs of files of the dataset."""
        return [f"{self.location.rstrip('/')}/{file.key}" for file in files]

    @property
    def compacts_table(self) -> bool:
        """Whether :meth:`compact_table` can rewrite small files of the sink's table."""
        return False

    def compact_table(
        self, *, target_file_bytes: int, max_bytes: int, dry_run: bool, before_commit: Callable[[], None]
    ) -> list[TableRewrite]:
        """
        Rewrite small files of the table into fewer, larger ones. Called only if :attr:`compacts_table`.

        Any process may call it while other processes publish. The commit of the table changes no row, and readers of the changes of the table find no new rows
        in it. It sets no marker. The files that it removes from the table are not deleted, so older versions of the table remain readable.

        :param target_file_bytes: the size of the new files in bytes
        :param max_bytes: the maximum size in bytes of the files that one commit rewrites, if the table's library can divide the work
        :param dry_run: write nothing, and return what would be rewritten
        :param before_commit: called before each commit of the table, as late as the table's library allows. If it raises, nothing more is committed
        :returns: one value for each commit of the table; empty if there is nothing to rewrite
        :raises InvalidError: the table has requirements or files that the library cannot rewrite unchanged. Nothing was written
        :raises UnavailableError: other writers changed the same files, or the store or catalog did not report the result of a request. No row was changed
        :raises DataError: files cannot be read, or the rows of new files differ from those of the old files. No row was changed
        """
        raise NotImplementedError


class PublishingSink(Sink):
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

    __slots__ = ()

    is_outside_log: ClassVar[bool] = True

    @property
    def sets_marker(self) -> bool:
        """Whether the sink is transactional: it sets its marker in one transaction with the rows. Default: whether its guarantee is exactly-once."""
        return self.delivery == "exactly_once"

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published files. If not, vacuum deletes them after the receipts exist."""
        return False

    @property
    def erases_rows(self) -> bool:
        """Whether :meth:`erase_rows` can delete rows."""
        return False

    def erase_rows(
        self, predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]
    ) -> TableErasure | None:
        """
        Delete the selected rows from the table. Called only if :attr:`erases_rows`. Sets no marker: a call that is repeated deletes what is left.

        :param dry_run: write nothing, and return what would be deleted
        :param before_commit: called before each commit of the table, as late as the table's library allows. If it raises, nothing more is committed
        :returns: ``None`` if there is no table, or if it does not have the columns of the predicate
        :raises InvalidError: the rows cannot be selected, or cannot be deleted from this table. Nothing was deleted
        :raises UnavailableError: other writers changed the same rows, or the table did not report the result of a request. A retry deletes what is left
        :raises DataError: files cannot be read, or the rows of new files differ from those to keep. No row was changed
        """
        raise NotImplementedError

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of the attempts whose files the sink's table references. Vacuum keeps these files even if the attempt lost."""
        return set()

    @property
    @abstractmethod
    def can_remove_rows(self) -> bool:
        """Whether :meth:`publish` can remove rows of earlier versions. If not, reprocessing runs and rollbacks are refused before anything is written."""

    def check_removable(self, files: Sequence[DataFile]) -> None:
        """
        Check that rows can be removed from the table in its current state. Called before a reprocessing run or a rollback is planned.

        :param files: the published files with these rows
        :raises InvalidError: the rows cannot be removed. Nothing was written
        """

    @abstractmethod
    def publish(self, batch: SinkCommit) -> Receipt | None:
        """
        Apply a batch, unless it was applied or skipped already.

        :returns: the receipt. ``None`` if the marker is above this version: the caller then reads the version's receipts (P2, P9)
        :raises UnavailableError: the sink did not report the result of a request. Whether the batch was applied is unknown; the next call reads the marker
        :raises PublishError: the sink refuses the batch. A transactional sink has no rows of it
        :raises MarkerLostError: the sink's marker is missing, or older than the newest receipts
        :raises MarkerConflictError: the sink's marker names a commit that the log does not have
        """

    @abstractmethod
    def skip(self, batch: SinkCommit) -> Receipt | None:
        """
        Set the marker to this version without adding or removing rows. Returns as :meth:`publish` does, but does not check the existing marker.
        Creates a missing table or topic if the marker is stored in one. With a skip, a user accepts the loss of versions in the sink or in the log.
        """

    @abstractmethod
    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Return the sink's marker for a pipeline; ``None`` if there is none, or if the sink keeps no markers."""
