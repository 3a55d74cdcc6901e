"""The interface of an engine: the input of a staging attempt, its result, and the :class:`Engine` protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.deduplication.state import ChainStates
from airflow_provider_streamsem.expectations import Expect
from airflow_provider_streamsem.gates import Gate
from airflow_provider_streamsem.partitions import Partitions
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json, Outcome, Plan, Quarantine
from airflow_provider_streamsem.state.settings import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    The input of one staging attempt, apart from the commit log.

    :param transform: ``fn(DataFrame) -> DataFrame`` or ``-> {sink name: DataFrame}``; with lookups, ``fn(DataFrame, {lookup name: DataFrame})``
    :param lookups: name → lookup table. The plan has their pins
    :param where: SQL predicate that the engine applies before the transform, or ``None``
    :param expect: name of a rule → the rule, for the records that pass ``where``
    :param max_quarantined: maximum number of records that may be quarantined, inclusive; with more, the attempt fails
    :param schemas: sink → the columns that the log has recorded, as schema JSON in Spark's form
    :param base_state: the deduplication state, and the state of the stateful operators, before the batch; for reprocessing, before the batch at the root of the
        chain
    :param batch_time_ms: the processing time of the batch, at which ids expire and timers fire, in milliseconds UTC. It is ``planned_at_ms`` of the batch; for
        reprocessing, of the batch at the root of the chain
    :param partitions: the partitions by event time whose rows the engine counts
    :param gates: conditions for the staged rows. The engine checks those that read rows
    :param versions: returns the outcomes of the newest committed batches before this one, newest first, at most as many as its argument
    :param chain: for reprocessing with deduplication across batches: the states of the chain and of the log's head
    """

    source: Source
    pins: Sequence[Any]
    sinks: Mapping[str, Sink]
    transform: Callable[..., Any]
    transform_name: str
    where: str | None
    max_quarantined: int
    schemas: Mapping[str, str]
    plan: Plan
    attempt_id: str
    dedup: Dedup | None = None
    base_state: Json = None
    batch_time_ms: int = 0
    chain: ChainStates | None = None
    state_settings: State | None = None
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    expect: Mapping[str, Expect] = field(default_factory=dict)
    partitions: Partitions | None = None
    gates: Sequence[Gate] = ()
    versions: Callable[[int], Sequence[Outcome]] = lambda count: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """
    The result of one staging attempt.

    :param counts: row counts by name: ``read``, ``parsed``, ``quarantined``, ``filtered``, ``written.<sink>``, and with dedup ``duplicates``
    :param passed_to_writer: sink → number of rows that the engine passed to the sink's writer; ``None`` if the engine could not count them
    :param schemas: sink → its columns after the batch, the recorded ones first, as schema JSON in Spark's form. A sink may be missing if it has no rows
    :param state: the field ``state`` of the outcome: the deduplication state and the operators' state after the batch
    :param time_partitions: partition by event time → number of rows
    :param newest_ms: the newest event time of the rows that is not after the time of the plan, in milliseconds since the epoch; ``None`` without one
    :param problems: index of a gate → a sentence for each of its conditions on rows that does not hold
    """

    sinks: Mapping[str, Committable]
    schemas: Mapping[str, str]
    quarantine: Quarantine
    counts: Mapping[str, int]
    passed_to_writer: Mapping[str, int | None]
    state: Json = None
    time_partitions: Mapping[str, int] = field(default_factory=dict)
    newest_ms: int | None = None
    problems: Mapping[int, Sequence[str]] = field(default_factory=dict)


def nothing_produced(sinks: Mapping[str, Sink], state: Json = None) -> Produced:
    """Build the result of an attempt whose plan has no records to read."""
    counts = {"read": 0, "parsed": 0, "quarantined": 0, "filtered": 0, **{f"written.{name}": 0 for name in sinks}}
    empty = {name: Committable(format=sink.format, rows=0) for name, sink in sinks.items()}
    return Produced(sinks=empty, schemas={}, quarantine=Quarantine(), counts=counts, passed_to_writer={}, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob:
    """
    The input of one attempt to rewrite files of a dataset.

    :attr schema: the columns of the sink, as schema JSON in Spark's form
    :attr target_file_bytes: the size of the new files in bytes
    :attr erased: selects the rows that are left out; ``None``: no row is left out
    """

    sink: Sink
    files: Sequence[DataFile]
    schema: str
    version: int
    attempt_id: str
    target_file_bytes: int
    erased: Predicate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The number of the rows of some files, and a digest that is equal for equal rows in any order, and that reveals no value."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """
    The result of one attempt to rewrite files. ``before`` describes the rows of the old files, without those to leave out, and ``after`` the rows of the new
    files, which were read again after they were complete.
    """

    output: Committable
    before: Contents
    after: Contents


class Engine(Protocol):
    """
    Stages an attempt: reads the planned records, evaluates the transform once, and writes the rows of every sink. Rewrites files of a dataset.

    * An engine reads exactly the records that ``job.pins`` identifies. It commits nothing, and writes only to the attempt's own locations.
    * The constructor starts no session. The first call of :meth:`stage` may start one.
    """

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Stage one attempt. Raises ``StageError`` if a retry may succeed, and ``DataError`` if the engine cannot accept the data or the transform's result."""
        ...

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        """Write the rows of some files to new files at the location of the attempt. Raises ``StageError`` if a retry may succeed, else ``DataError``."""
        ...

    def count_selected(
        self, sink: Sink, files: Sequence[DataFile], schema: str, predicate: Predicate
    ) -> Mapping[str, int] | None:
        """
        Return key → number of selected rows, for each file of a dataset that has any; ``None`` if the rows do not have the columns of the predicate.

        :param schema: the columns of the sink, as schema JSON in Spark's form
        :raises InvalidError: the type of a column does not fit the predicate
        """
        ...

    def publishing_session(self, sink: Sink, *, later: Sequence[Any] = ()) -> AbstractContextManager[Any]:
        """
        Open a Spark session in which a sink publishes; see ``spark`` of :class:`airflow_provider_streamsem.connectors.sink.SinkCommit`.

        :param later: the packages (:class:`airflow_provider_streamsem.spark.packages.Package`) for the batches that the same process stages
            afterwards, in the same session
        :raises InvalidError: the engine has no Spark, or its Spark lacks packages or settings that the sink needs
        """
        ...

    def cancel(self) -> None:
        """Cancel the :meth:`stage` or :meth:`rewrite` call of another thread, which then fails. The version stays open."""
        ...
