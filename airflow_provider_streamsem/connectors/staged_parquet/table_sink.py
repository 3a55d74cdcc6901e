"""Base class of the sinks for table formats. The staged files become files of the table, or their rows are merged into the table by key."""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.connectors.changes import CHANGE, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.contract import FREEZE, Contract
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.connectors.staged_parquet.bounds import stats_of, without_stats
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink
from airflow_provider_streamsem.connectors.staged_parquet.transactions import H, NothingSentError, TransactionalSink
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    PublishError,
    StageError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.expectations import Expect, set_expectations
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.protocol.keys import attempt_of_data
from airflow_provider_streamsem.stores.dataset import open_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_logger = telemetry.log_of(__name__)
_MODES = ("append", "upsert")
_ENGINES = ("auto", "spark", "library")
_LIBRARY_ROWS = 1_000_000
"""Up to this number of rows of a batch, the engine ``auto`` merges without Spark."""
_USE_SPARK = (
    "set engine='spark' of the sink, with which Spark writes the rows. It needs the Spark package of the table format, and versions can then be neither "
    "reprocessed nor rolled back in the table. A log accepts another engine in mode append only with a new sink: see `streamsem alter PIPELINE --dry-run`."
)
"""Advice for a table whose features Spark satisfies."""
RESTORE_TABLE = (
    "if the table was deleted or restored to an older state, restore its newest state and repeat the command. If another writer rewrote the files, "
    "update the rows with your own engine, or fork the pipeline into new tables with `streamsem fork`."
)
"""Advice for a table without the files of this pipeline."""


class TableSink(TransactionalSink[H]):
    """
    Base class of :class:`DeltaSink` and :class:`IcebergSink`, which are dataclasses with these fields, and implement the steps of the publish loop.

    :param path: location of the table (Delta) or of its staged files (Iceberg)
    :param keys: for ``upsert``: the columns that identify a row
    :param sequence_by: for ``upsert``: the columns by which the rows of a batch with equal keys are ordered
    :param engine: for ``upsert``: what merges the rows: ``spark``, the ``library`` of the table format, or ``auto``. For ``append``: with ``spark``, Spark
        writes the rows to the table. Otherwise the staged files become files of the table
    :param changes: how the rows of a batch change rows of the table. It sets ``mode``, ``keys`` and ``sequence_by``
    :param contract: which changes of the table's columns a batch may make
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    """

    __slots__ = ()

    compacts_table: ClassVar[bool] = True
    table_format: ClassVar[str]
    """``Delta`` or ``Iceberg``."""
    once: ClassVar[str]
    """The reason why the table has each version once. ``{holds}`` is replaced by ``its files`` or ``the rows merged by key``."""
    null_texts: ClassVar[Sequence[str]] = ()
    """Texts that a merge would turn into null in a partition column."""
    path: str
    partition_by: Sequence[str]
    mode: str
    keys: Sequence[str]
    sequence_by: Sequence[str]
    engine: str
    changes: Changes | None
    contract: Contract | None
    expect: Mapping[str, Expect]
    spark_package: ClassVar[str]
    """The Spark package that writes rows into tables (:mod:`airflow_provider_streamsem.spark.packages`)."""

    def validate_arguments(self, where: str) -> None:
        """Validate the fields, and convert lists to tuples. ``where`` begins the error message."""
        open_dataset(arguments.text(f"{where} path", self.path))
        keyed_rows.set_changes(where, self)
        set_expectations(where, self)
        if self.contract is not None:
            object.__setattr__(self, "contract", Contract.of(where, self.contract))
        for name in ("partition_by", "keys", "sequence_by"):
            object.__setattr__(self, name, arguments.text_list(f"{where} {name}", getattr(self, name)))
        arguments.choice(f"{where} mode", self.mode, _MODES)
        arguments.choice(f"{where} engine", self.engine, _ENGINES)
        if bool(self.keys) != self.merges:
            raise InvalidError(
                "mode upsert requires keys, and other modes do not accept them", mode=self.mode, keys=list(self.keys)
            )

        keyed_rows.check_sequence(where, self.sequence_by, merges=self.merges)

    @property
    def spark_packages(self) -> tuple[str, ...]:
        return (self.spark_package,) if self.engine == "spark" else ()

    @property
    def publishing_packages(self) -> tuple[str, ...]:
        return (self.spark_package,)

    def written_by_spark(self, batch: SinkCommit, write: Callable[[SparkSession], T]) -> T | None:
        """
        Merge or append the rows of a batch with Spark, and return the result of ``write``; ``None`` if the library must merge them.

        :param write: writes files in a Spark session, and sends nothing to the table
        :raises NothingSentError: Spark failed or is not available, and the engine is ``spark``; or the task was cancelled
        """
        reason = self._why_library(batch)
        if not reason and batch.spark is not None:
            verb = "merged" if self.merges else "appended"
            _logger.info("sink %s: version %d is %s by Spark", batch.sink, batch.version, verb)
            try:
                with batch.spark(self) as session:
                    return write(session)
            except StreamsemError as error:
                if self.engine == "spark" or isinstance(error, StageError):
                    raise NothingSentError(error) from None
                reason = error.summary
        _logger.info("sink %s: version %d is merged by the library: %s", batch.sink, batch.version, reason)
        return None

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """If the log is new, also refuse a table with requirements that the sink does not satisfy, before anything is planned."""
        if new:
            self.check_table()
        StagedSink.claim(self, pipeline_uuid, log, new=new)

    def refuse_missing(self) -> None:
        """Refuse a table that does not exist, if the contract does not let the sink create it."""
        if self.contract is not None and self.contract.tables == FREEZE:
            summary = f"the {self.table_format} table does not exist, and the contract of the sink has tables='freeze'"
            raise DataError(summary, table=self.table_name).advising(
                "create the table, or set tables='evolve'. Then run again."
            )

    def refuse_requirements(self, unsatisfied: Callable[[bool], list[str]]) -> None:
        """
        Refuse a table with requirements that the sink does not satisfy.

        :param unsatisfied: returns their names, if Spark writes the rows (``True``) or not
        """
        by_spark = self.engine == "spark"
        if requires := unsatisfied(by_spark):
            summary = f"the {self.table_format} table has requirements for writers that this sink does not satisfy"
            error = DataError(summary, table=self.table_name, requires=requires)
            raise error if by_spark or unsatisfied(True) else error.advising(_USE_SPARK)

    @abstractmethod
    def check_table(self) -> None:
        """Refuse a table that exists and has requirements that the sink does not satisfy (``DataError``)."""

    @property
    def plain_partitions(self) -> Sequence[str]:
        """The columns of which a partition has one value."""
        return self.partition_by

    def refusing_violations(self, frame: DataFrame, constraints: Mapping[str, str]) -> DataFrame:
        """
        Let the write of the staged rows fail for a row that violates a constraint: name → SQL expression.

        A delete lacks values, and so does an upsert that leaves columns unchanged, on which the merge decides.
        """
        from airflow_provider_streamsem.connectors.data_files import write

        if self.changes is not None:
            lacks = f"{CHANGE} <> '{UPSERT}'" + (f" OR {UNCHANGED} IS NOT NULL" if self.changes.is_partial else "")
            constraints = {name: f"{lacks} OR ({holds})" for name, holds in constraints.items()}
        return write.refusing_violations(frame, constraints)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse columns with names that a write by Spark, or a history, uses itself."""
        reserved = sorted(
            name for name in names if name.lower() == "_metadata" or name.lower().startswith("__streamsem")
        )
        uses_names = self.engine == "spark" or (self.changes is not None and self.changes.keeps_history)
        if uses_names and reserved:
            summary = "columns have names that a write by Spark uses itself"
            raise DataError(summary, columns=reserved).advising("rename the columns in the transform, then run again.")

    def _why_library(self, batch: SinkCommit) -> str:
        """Return the reason to merge without Spark; ``""`` to merge with Spark."""
        if self.engine == "library":
            return "engine='library'"
        if batch.spark is None and self.engine == "spark":
            summary = "the sink writes rows with Spark, and this command has no Spark session; nothing of the batch was published"
            raise NothingSentError(
                InvalidError(summary, sink=batch.sink, version=batch.version).advising(
                    "run the pipeline: the run publishes the version. Then repeat this command."
                )
            )
        if self.engine == "spark":
            return ""
        if batch.spark is None:
            return "this command has no Spark session"
        return f"the batch has at most {_LIBRARY_ROWS} rows" if batch.committable.rows <= _LIBRARY_ROWS else ""

    @property
    def last_of(self) -> Sequence[str]:
        """The columns of which the table keeps the last row: the keys."""
        return self.keys

    @property
    @abstractmethod
    def table_name(self) -> str:
        """The name of the table in errors."""

    def refused_error(self, batch: SinkCommit, cause: Exception) -> StreamsemError:
        summary = f"the {self.table_format} table refuses the batch; nothing of it is in the table"
        error = PublishError(summary, table=self.table_name, version=batch.version, problem=type(cause).__name__)
        error.__cause__ = cause
        return error

    def unknown_result_error(self, batch: SinkCommit, cause: Exception | None) -> StreamsemError:
        summary = f"the {self.table_format} table did not report the result of a request; whether the batch is in it is unknown"
        error = UnavailableError(summary, table=self.table_name, version=batch.version, tries=self.tries)
        error.__cause__ = cause
        return error

    @property
    def merges(self) -> bool:
        """Whether a row replaces the row with the same keys (mode ``upsert``)."""
        return self.mode == "upsert"

    @property
    def rewrites(self) -> bool:
        """Whether publishing writes the rows to files of the table. Otherwise the staged files become files of the table."""
        return self.merges or self.engine == "spark"

    @property
    def can_remove_rows(self) -> bool:
        """Rows that were written again are not known by their files."""
        return not self.rewrites

    @property
    def keeps_staged(self) -> bool:
        return not self.rewrites

    @property
    def erases_rows(self) -> bool:
        """The table of ``engine="spark"`` may have features that the libraries of table formats do not support."""
        return self.engine != "spark"

    def copies_of_erased(self) -> tuple[str, ...]:
        if self.erases_rows:
            return ()
        return (
            f"the {self.table_format} table {self.table_name}: delete the rows with DELETE of Spark, because the sink has engine='spark'",
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        reasons: tuple[str, ...] = (
            self.once.format(
                holds="the rows merged by key" if self.merges else "its rows" if self.rewrites else "its files"
            ),
            "rows passed to the writer = rows in the files = rows in the manifest, or the attempt is discarded",
        )
        if self.engine == "spark":
            reasons += (
                "Spark writes into a private copy of the table, which no other process uses; the table gets the result only if no other writer has committed "
                "since the copy was made",
            )
        return (*reasons, keyed_rows.last_stays(self)) if self.merges else reasons

    @property
    def location(self) -> str:
        return self.path

    @property
    def partitions(self) -> Sequence[str]:
        """The partition columns of the staged files: none if they do not become files of the table."""
        return () if self.rewrites else self.partition_by

    @property
    def immutable_mode(self) -> Json:
        """
        Mode and keys in mode ``upsert``, and with ``changes`` the columns of the sequence and of the history. The engine in mode ``append``.

        They must not change while the log is in use. Vacuum deletes staged files, unless they are files of the table. The values of the keys of a batch are
        checked before its commit only.
        """
        if not self.merges:
            return {"engine": "spark"} if self.rewrites else {}
        changes = {} if self.changes is None else self.changes.immutable
        return {"mode": self.mode, "keys": list(self.keys), **changes}

    def check_staged(self, batch: SinkCommit) -> None:
        """Refuse a batch with missing files, or files of another size, before the table references them: until then, a vacuum of the table may delete them."""
        keys = [file.key for file in batch.committable.files]
        if not keys:
            return
        directory = posixpath.commonpath([posixpath.dirname(key) for key in keys])
        existing = {stat.key: stat.bytes for stat in self.dataset().list(f"{directory}/" if directory else "")}
        damaged = [file.key for file in batch.committable.files if existing.get(file.key) != file.bytes]
        if damaged:
            raise PublishError(
                "staged files were deleted or changed before the table referenced them; nothing of the batch is in the table",
                location=self.location,
                version=batch.version,
                files=damaged,
            ).advising("restore the files and run again, or skip the version with `streamsem skip`.")

    def with_stats(self, staged: Committable) -> Iterator[DataFile]:
        """Yield the staged files with their statistics."""
        stats = stats_of(self.location, staged.files, self.stats)
        return (replace(file, stats=found) for file, found in zip(staged.files, stats, strict=True))

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Also checks the values of key and partition columns if the rows are written again. The statistics stay out of the log."""
        committable = without_stats(self.location, StagedSink.collect(self, version, attempt_id, accepted))
        if self.rewrites:
            keyed_rows.check_values(
                self.location,
                committable,
                self.keys,
                self.plain_partitions,
                null_texts=self.null_texts,
                changes=self.changes,
            )
        return committable


def attempts_named(paths: Iterable[str]) -> set[tuple[int, str]]:
    """
    Return ``(version, attempt_id)`` of the files that the metadata of a table references. Files of other writers are skipped.

    Only the end of each path is parsed, because the same location may be spelled with another scheme, with links or with escaped characters.
    """
    ends = (f"/{path}".rpartition("/data/")[2] for path in paths)
    return {attempt for end in ends if (attempt := attempt_of_data(f"data/{end}")) is not None}
