"""
Stages one attempt on Spark: reads the planned records, separates bad ones, evaluates the transform, writes the files of every sink, and counts all rows.

This module imports pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_provider_streamsem import telemetry, tombstones
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.changes import CHANGE, UNCHANGED, UPSERT
from airflow_provider_streamsem.connectors.columns import types as column_types
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.source import Loaded, LoadedTogether, ParsedRecords, Source
from airflow_provider_streamsem.deduplication.batch import DedupBatch
from airflow_provider_streamsem.deduplication.layers import LayerFiles
from airflow_provider_streamsem.engine import Job, Produced
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.expectations import failed
from airflow_provider_streamsem.gates import Gate
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Committable, Json, Quarantine
from airflow_provider_streamsem.spark import causes, change_data, contracts, partition_counts, schema
from airflow_provider_streamsem.spark.duplicates import Deduplication
from airflow_provider_streamsem.spark.evaluation import Plans, consistent, consistent_alone
from airflow_provider_streamsem.spark.gates import StagedRows
from airflow_provider_streamsem.spark.rules import DROPPED, JUDGED, QUARANTINED, Rules
from airflow_provider_streamsem.spark.sequencing import Sequencing
from airflow_provider_streamsem.state.files import make_durable
from airflow_provider_streamsem.state.settings import LOCATION, State, operator_state, with_operator_state
from airflow_provider_streamsem.stores.contract import hadoop_location

if TYPE_CHECKING:
    from airflow_provider_streamsem.spark.stateful import MicroBatch

logger = telemetry.log_of(__name__)


NARROW_NODES = {"Project", "Filter", "CollectMetrics", "Generate", "SubqueryAlias", "View"}
"""
The nodes of Spark's query plans that read their whole input once, in the same stage.

If a query plan has only such nodes above an observation, the observation counts each row once.
"""
PARSER_NODE = "MapInArrow"
"""
The node of the parsers of sources, which read their whole input once.

The function of a transform may stop reading its input early. So the node is accepted only below every observation.
"""


class Inspection(Protocol):
    """Protocol of the modules :mod:`gateway` (classic PySpark) and :mod:`remote` (Spark Connect)."""

    def observe(self, frame: DataFrame, observation: Observation, *aggregates: Column) -> DataFrame:
        """Attach an observation to a DataFrame. It counts the rows each time that Spark evaluates them. Each aggregate needs an alias."""
        ...

    def observe_last(
        self, frame: DataFrame, observation: Observation, *aggregates: Column, watched: Sequence[Observation]
    ) -> DataFrame:
        """Attach an observation that counts the rows passed to a writer. The write also delivers the counts of ``watched``, which are below it in the plan."""
        ...

    def may_have_run(self, observation: Observation, session: SparkSession) -> bool:
        """Return whether an action may have completed the observation already."""
        ...

    def observed(self, observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, Any] | None:
        """Return name → value for those of ``names`` that the observation has; ``None`` if no action has completed the observation."""
        ...

    def reads_input_once(self, frame: DataFrame) -> bool:
        """Return whether the plan is certain to read its whole input exactly once."""
        ...

    def keeps_order(self, frame: DataFrame, records: DataFrame) -> bool:
        """Return whether the rows of a frame are certain to be in the order of the records from which it was made."""
        ...

    def plans(self, session: SparkSession) -> Plans:
        """Return an object that reads and changes the plans of DataFrames."""
        ...


def _transform_argument(frames: Mapping[str, DataFrame]) -> Any:
    return frames[""] if "" in frames else dict(frames)


def _columns(frame: DataFrame) -> str:
    """Return the columns of a sink's rows as schema JSON. The marks of changes are columns of staged rows only."""
    columns: str = frame.drop(*_MARKS).schema.json()
    return columns


_MARKS = (CHANGE, UNCHANGED)
_RECORDS_PER_OBJECT = 5_000
_COUNTS = ("read", "bad", "filtered")
_PASSES_WHERE = "__streamsem_passes_where"


@dataclass(slots=True)
class _Input:
    """The planned records of one source. ``marked`` has the value of ``where``, and the rules that a record breaks, as columns. The only source has no name."""

    name: str
    loaded: Loaded
    marked: DataFrame
    aggregates: list[Column]
    rules: Rules
    observation: Observation = field(default_factory=Observation)
    counts_once: bool = False


@dataclass(slots=True)
class _SinkRules:
    """The expectations of a sink, and the rows that they judge. ``quarantining`` are these rows if a rule may quarantine some: they were evaluated once."""

    rules: Rules
    columns: list[str]
    quarantining: DataFrame | None = None
    observation: Observation = field(default_factory=Observation)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def removed(self) -> int:
        """The number of rows that are dropped or quarantined."""
        return self.counts.get(DROPPED, 0) + self.counts.get(QUARANTINED, 0)

    def counts_of(self, sink: str) -> dict[str, int]:
        """Return the counts of the outcome."""
        found = {failed(rule, sink): self.counts.get(failed(rule, sink), 0) for rule in self.rules.expect}
        return {
            **found,
            f"dropped_rows.{sink}": self.counts.get(DROPPED, 0),
            f"quarantined_rows.{sink}": self.counts.get(QUARANTINED, 0),
        }


@dataclass(slots=True)
class Staging:
    """Stages one attempt. Create a new instance for each attempt."""

    session: SparkSession
    inspect: Inspection
    job: Job
    log: CommitLog
    _plans: Plans = field(init=False)
    _accepted: dict[str, frozenset[str] | None] = field(default_factory=dict)
    _schemas: dict[str, str] = field(default_factory=dict)
    _discarded: dict[str, int] = field(default_factory=dict)
    _late: int = 0
    _late_rows: list[str] = field(default_factory=list)
    _rules: dict[str, _SinkRules] = field(default_factory=dict)
    _dedup: Deduplication | None = None
    _micro_batch: MicroBatch | None = None
    _sequencing: Sequencing = field(init=False)

    def __post_init__(self) -> None:
        self._sequencing = Sequencing(self.inspect, self.job)
        self._plans = self.inspect.plans(self.session)

    def run(self) -> Produced:
        """
        Write the files of every sink and the quarantined records. Each record is counted once, even if the transform reads it several times or not at all.
        """
        try:
            return self._staged()
        finally:
            if self._micro_batch is not None:
                self._micro_batch.close()
            self._plans.release()

    def _staged(self) -> Produced:
        inputs = self._inputs()
        self._load_state()
        stores = len(self.job.sinks) > 1 or self._dedup is not None or self._micro_batch is not None
        # In a plan that combines several sources, an observation may count a record several times, or not at all.
        good = {item.name: self._good(item, observes=stores or len(inputs) == 1) for item in inputs}
        if stores:
            good = {item.name: self._evaluated(item, good[item.name]) for item in inputs}
        outputs = {
            name: self._fitted(
                name, self._judged(name, self._sequencing.ordered(name, self._marked_changes(name, frame)))
            )
            for name, frame in self._outputs(good).items()
        }
        if not stores and len(inputs) == 1:
            inputs[0].counts_once = self._counts_once(outputs.values(), inputs[0].observation)
        if len(self.job.sinks) == 1 and self._micro_batch is None and (stores or not inputs[0].counts_once):
            outputs = {name: consistent_alone(frame, self._plans) for name, frame in outputs.items()}
        watched = [inputs[0].observation]
        passed_to_writer = {name: self._write(name, outputs[name], watched) for name in self.job.sinks}
        state = self._state_after_batch()
        counts = {item.name: self._counts_of(item) for item in inputs}
        for item in inputs:
            read = counts[item.name]["read"]
            item.loaded.check_read(read)
            item.rules.refuse_failures(counts[item.name], self.job.plan.version)
            item.loaded.take_observed(counts[item.name], read - counts[item.name].get("bad", 0))
        with telemetry.phase("collect"):
            sinks = {
                name: sink.collect(self.job.plan.version, self.job.attempt_id, self._accepted[name])
                for name, sink in self.job.sinks.items()
            }
            for name, staged in sinks.items():
                self._sequencing.check(name, self.job.sinks[name].location, staged)
            state = self._with_tombstones(state, sinks)
        problems = {at: self._problems(gate, sinks) for at, gate in enumerate(self.job.gates) if gate.reads_rows}
        partitions, newest_ms = self._time_partitions(sinks)
        return Produced(
            sinks=sinks,
            schemas=self._schemas,
            quarantine=self._quarantine(inputs, counts),
            counts=self._counts(counts, sinks),
            passed_to_writer=passed_to_writer,
            state=state,
            time_partitions=partitions,
            newest_ms=newest_ms,
            problems=problems,
        )

    def _inputs(self) -> list[_Input]:
        rules = Rules(self.job.expect)
        return [
            _Input(name, loaded, self._marked(loaded, rules), self._aggregates(loaded, rules), rules)
            for name, loaded in self._loaded().items()
        ]

    def _load_state(self) -> None:
        if self.job.state_settings is not None:
            self._micro_batch = self._stateful(self.job.state_settings)
        # A reprocessing run without pins removes ids from the deduplication state (W27).
        if self.job.dedup is not None and (self.job.pins or self.job.chain is not None):
            files = LayerFiles(self.log.store.url)
            now_ms = self.job.batch_time_ms
            batch = DedupBatch(self.job.dedup, files, now_ms, self.job.base_state, self.job.chain)
            self._dedup = Deduplication(batch)

    def _counts_once(self, outputs: Iterable[DataFrame], observation: Observation) -> bool:
        """Return whether the observation counts each record exactly once when the sinks are written."""
        is_used = self.inspect.may_have_run(observation, self.session)  # by an action in the transform
        return not is_used and all(self.inspect.reads_input_once(frame) for frame in outputs)

    def _counts_of(self, item: _Input) -> Mapping[str, Any]:
        """If the observation may have counted a record several times, or not at all, count in a separate pass."""
        names = [*_COUNTS, *item.loaded.aggregates, *item.rules.names]
        counts = self.inspect.observed(item.observation, self.session, names) if item.counts_once else None
        return self._count(item.marked, item.aggregates) if counts is None else counts

    def _counts(self, by_source: Mapping[str, Mapping[str, int]], sinks: Mapping[str, Committable]) -> dict[str, int]:
        def total(name: str) -> int:
            return sum(source_counts.get(name, 0) for source_counts in by_source.values())

        read, quarantined = total("read"), total("bad") + total(QUARANTINED)
        counts = {"read": read, "parsed": read - quarantined, "quarantined": quarantined, "filtered": total("filtered")}
        if self.job.expect:
            counts |= {DROPPED: total(DROPPED)} | {failed(rule): total(failed(rule)) for rule in self.job.expect}
        for name, judged in self._rules.items():
            counts |= judged.counts_of(name)
        counts |= {f"read.{name}": source_counts["read"] for name, source_counts in by_source.items() if name}
        counts |= {f"written.{name}": committable.rows for name, committable in sinks.items()}
        counts |= self._discarded
        counts |= {} if self._dedup is None else self._dedup.counts
        counts |= {} if self._micro_batch is None else {"late": self._late}
        return counts

    def _state_after_batch(self) -> Json:
        # In a reprocessing run, `job.base_state` is an earlier state. A reprocessing run of a transform with state writes no ids (W27).
        state = self.job.base_state if self.job.chain is None else self.job.chain.current
        if self._dedup is not None and (self._micro_batch is None or self.job.chain is None):
            state = self._dedup.batch.write_state(self.job.plan.version, self.job.attempt_id)
        if self._micro_batch is None:
            return state
        after, self._late = self._micro_batch.after()
        make_durable(self.log.store, after)
        if self._late and self._micro_batch.state.late == "fail":
            raise DataError(
                'Spark dropped rows as late, and state.late is "fail"',
                version=self.job.plan.version,
                late=self._late,
                watermark_ms=self._micro_batch.late_watermark_ms,
            ).advising('set late="drop". A longer delay in withWatermark applies only to later batches.')
        if self._micro_batch.state.late == "quarantine":
            self._late_rows = self._micro_batch.late_rows(self._late, self.job.max_quarantined + 1)
        return with_operator_state(state, after)

    def _stateful(self, state: State) -> MicroBatch:
        from airflow_provider_streamsem.spark.stateful import MicroBatch

        before = operator_state(self.job.base_state)
        # A state without operators has no files. Spark could not continue it with operators, and a failed attempt to do so would leave metadata of them.
        base = before if before is not None and before.operators else None
        return MicroBatch(
            session=self.session, state=state, base=base,
            location=f"{hadoop_location(self.log.store.url)}/{LOCATION}",
            attempt_id=self.job.attempt_id, transform=self.job.transform, now_ms=self.job.batch_time_ms, watermark_ms=self.job.plan.watermark_ms,
            definition=getattr(self.job.transform, "definition", ""),
        )  # fmt: skip

    def _problems(self, gate: Gate, sinks: Mapping[str, Committable]) -> list[str]:
        """Check the staged rows of the sinks to which a gate applies."""
        found: list[str] = []
        for name in filter(gate.applies_to, sinks):
            frame, count = self._staged_rows(name, sinks[name]), sinks[name].rows
            if self.job.sinks[name].changes is not None:  # a delete has no values
                frame = self._staged_rows(name, sinks[name], CHANGE).where(F.col(CHANGE) == UPSERT).drop(CHANGE)
                count = frame.count()
            rows = StagedRows(self.session, name, frame, count, self.job.batch_time_ms, self.job.versions)
            found += rows.problems(gate)
        return found

    def _staged_rows(self, name: str, staged: Committable, *marks: str) -> DataFrame:
        """Read the staged rows of a sink, with its columns and some columns of text that the engine has added."""
        urls = self.job.sinks[name].urls(staged.files)
        schema = StructType.fromJson(json.loads(self._schemas[name]))
        for mark in marks:
            schema = schema.add(mark, "string")
        return read_files(self.session, urls, format=staged.format, schema=schema.json())

    def _time_partitions(self, sinks: Mapping[str, Committable]) -> tuple[Mapping[str, int], int | None]:
        """Count the staged rows of a sink by partitions of their event time, and find the newest time."""
        partitions = self.job.partitions
        if partitions is None:
            return {}, None
        name = partitions.sink or next(iter(sinks))
        counts, newest_ms = partition_counts.count(
            self._staged_rows(name, sinks[name]), partitions, name, not_after_ms=self.job.plan.planned_at_ms
        )
        if sum(counts.values()) != sinks[name].rows:
            summary = "the rows of the partitions are not those of the staged files"
            raise StageError(summary, sink=name, partitions=sum(counts.values()), files=sinks[name].rows)
        return counts, newest_ms

    def _loaded(self) -> Mapping[str, Loaded]:
        """
        A no-data batch uses the columns that the state before it has recorded, and the columns that were added to the source since. A source that an alter has
        added since the state has the columns that it has now.
        """
        base = operator_state(self.job.base_state)
        if self.job.pins or base is None:
            return self._parts(self.job.pins)
        return {
            name: self._without_records(source, base.columns.get(name))
            for name, source in self.job.source.parts.items()
        }

    def _without_records(self, source: Source, recorded: str | None) -> Loaded:
        """``recorded`` are the columns that the state has recorded. If it is ``None``, the source has the columns."""
        frame = None
        try:
            loaded = source.load(self.session, ())
            assert not isinstance(loaded, LoadedTogether)  # this is one source
            if recorded is None:
                return loaded
            frame = loaded.frame.drop(*loaded.drop)
        except DataError:  # the columns of the source are those of its records
            if recorded is None:
                raise
        return ParsedRecords(self.session.createDataFrame([], schema.with_new_columns(recorded, frame)))

    def _parts(self, pins: Sequence[Any]) -> Mapping[str, Loaded]:
        loaded = self._sequencing.load(self.session, self.job.source, pins)
        return loaded.parts if isinstance(loaded, LoadedTogether) else {"": loaded}

    def _aggregates(self, loaded: Loaded, rules: Rules) -> list[Column]:
        aggregates = [F.expr("count(1) AS read")]
        if loaded.bad is not None:
            aggregates.append(F.count_if(loaded.bad).alias("bad"))
        aggregates += [column.alias(name) for name, column in loaded.aggregates.items()]
        if self.job.where is not None:
            dropped = ~F.col(_PASSES_WHERE)
            aggregates.append(F.count_if(dropped if loaded.bad is None else ~loaded.bad & dropped).alias("filtered"))
        return [*aggregates, *(rules.aggregates if rules.expect else ())]

    def _marked(self, loaded: Loaded, rules: Rules) -> DataFrame:
        """Add the value of `where`, and the rules that a record breaks, as columns, so that counting and filtering use the same values."""
        marked = loaded.frame if self.job.where is None else self._marked_by_where(loaded, self.job.where)
        if not rules.expect:
            return marked
        judged = [] if loaded.bad is None else [~loaded.bad]  # the values of a bad record are undefined
        judged += [] if self.job.where is None else [F.col(_PASSES_WHERE)]
        marked = rules.marked(marked, reduce(Column.__and__, judged) if judged else None)
        return self._plans.repeatable(marked, rules.text)

    def _marked_by_where(self, loaded: Loaded, where: str) -> DataFrame:
        try:
            passes = F.expr(where)
            if loaded.bad is not None:  # the values of a bad record are undefined, and a cast of them may fail
                passes = F.when(~loaded.bad, passes)
            marked = loaded.frame.withColumn(_PASSES_WHERE, F.coalesce(passes, F.lit(False)))
            marked.schema  # noqa: B018  with Spark Connect, reading the schema analyzes the plan, which raises AnalysisException
        except AnalysisException as error:
            raise DataError(
                "Spark cannot resolve the predicate `where` with the columns of the source",
                where=where,
                condition=error.getCondition(),
                **causes.named(error),
                columns=[name for name in loaded.frame.columns if name not in loaded.drop],
            ).advising(
                "correct `where`, then run again. The version stays open, and the next run reads its ranges with the corrected predicate."
            ) from causes.short(error)
        return self._plans.repeatable(marked, where)

    def _good(self, item: _Input, *, observes: bool) -> DataFrame:
        loaded, good = item.loaded, item.marked
        good = self.inspect.observe(good, item.observation, *item.aggregates) if observes else good
        good = good if loaded.bad is None else good.where(~loaded.bad)
        good = good if self.job.where is None else good.where(F.col(_PASSES_WHERE)).drop(_PASSES_WHERE)
        good = item.rules.passing(good) if item.rules.expect else good
        return good.drop(*loaded.drop) if loaded.drop else good

    def _evaluated(self, item: _Input, good: DataFrame) -> DataFrame:
        """Evaluate the records of a source once, and return those that pass the deduplication, if the pipeline has one."""
        item.counts_once = self._counts_once([good], item.observation)
        store = partial(self._stored, watched=[item.observation])
        if self._dedup is None:
            return store(good)
        return self._sequencing.restored(self._dedup.passing(self._sequencing.numbered(good), store))

    def _outputs(self, good: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """What several sinks read is evaluated once; see :mod:`airflow_provider_streamsem.spark.evaluation`."""
        names = list(self.job.sinks)
        if self._micro_batch is not None:
            result = self._transformed(self._micro_batch.streaming(good))
            if not isinstance(result, DataFrame):
                summary = "the transform of a pipeline with state must return one DataFrame"
                raise DataError(summary, transform=self.job.transform_name, returned=type(result).__name__)
            rows = self._micro_batch.result(result)
            return dict.fromkeys(names, self._plans.stored(rows) if len(names) > 1 else rows)
        result = self._transformed(good)
        if isinstance(result, DataFrame):
            result = dict.fromkeys(names, result)
        if not isinstance(result, Mapping) or not all(isinstance(frame, DataFrame) for frame in result.values()):
            raise DataError(
                "the transform returned neither a DataFrame nor a mapping of sink names to DataFrames",
                transform=self.job.transform_name,
                returned=type(result).__name__,
            ).advising("return a DataFrame, or a dict of sink names and DataFrames, and run again.")
        if set(result) != set(names):
            raise DataError(
                "the transform must return one DataFrame for each sink of the pipeline",
                returned=sorted(result),
                sinks=sorted(names),
            )
        frames = {name: result[name] for name in names}
        return frames if len(names) == 1 else consistent(frames, self._plans, self.job.transform_name)

    def _transformed(self, records: Mapping[str, DataFrame]) -> Any:
        pins = self.job.plan.lookups
        lookups = {name: lookup.load(self.session, pins[name]) for name, lookup in self.job.lookups.items()}
        result = self.job.transform(_transform_argument(records), *([lookups] if lookups else []))
        self._sequencing.compare(records, result)
        return result

    def _marked_changes(self, name: str, frame: DataFrame) -> DataFrame:
        changes = self.job.sinks[name].changes
        return frame if changes is None else change_data.marked(name, frame, changes)

    def _with_tombstones(self, state: Json, staged: Mapping[str, Committable]) -> Json:
        return tombstones.state_after(
            state, self.job.sinks, staged, self._schemas, log=self.log.store.url,
            now_ms=self.job.batch_time_ms, version=self.job.plan.version, attempt_id=self.job.attempt_id,
        )  # fmt: skip

    def _fitted(self, name: str, frame: DataFrame) -> DataFrame:
        """Readers of formats without column names read by position, so new columns come last. Columns without a type are left out."""
        sink = self.job.sinks[name]
        recorded = self._recorded(name, _columns(frame))
        frame = self._as_contracted(name, frame, recorded)
        columns = _columns(frame)
        accepted = sink.resolve_schema(schema.folded(name, recorded, columns, grows=sink.grows))
        self._schemas[name], untyped = column_types.typed(accepted)
        if untyped:
            logger.info(
                "sink %s: this batch leaves out columns that contain only nulls and have no type: %s",
                name,
                ", ".join(untyped),
            )
        target = json.loads(self._schemas[name])
        if column_types.bare(target) == column_types.bare(json.loads(columns)):
            return frame
        fitted = StructType.fromJson(target)
        marks = [field for field in frame.schema.fields if field.name in _MARKS]
        return frame.to(StructType([*fitted.fields, *marks]))

    def _recorded(self, name: str, columns: str) -> str | None:
        """Return the recorded columns of a sink without those that were renamed or dropped in its table, and that the rows lack too."""
        recorded = self.job.schemas.get(name)
        if recorded is None or not schema.remaining(recorded, columns, columns)[1]:
            return recorded
        existing = self.job.sinks[name].existing_columns()
        if existing is None:
            return recorded
        remaining, dropped = schema.remaining(recorded, columns, existing)
        if dropped:
            message = (
                "sink %s: these columns are no longer recorded, because they were renamed or dropped in the table: %s"
            )
            logger.info(message, name, ", ".join(dropped))
        return remaining

    def _as_contracted(self, name: str, frame: DataFrame, recorded: str | None) -> DataFrame:
        sink = self.job.sinks[name]
        if sink.contract is None:
            return frame
        existing = [each for each in (recorded, sink.existing_columns()) if each]
        known = {field["name"]: field["type"] for each in reversed(existing) for field in json.loads(each)["fields"]}
        fitting = contracts.fitting(name, frame, known, sink.contract, _MARKS)
        if fitting is None:
            return frame
        stored = self._plans.stored(frame)  # evaluated once, so that the counts are those of the rows that are written
        counts = stored.agg(*fitting.counts).first()
        assert counts is not None  # an aggregate of all rows
        self._discarded |= {f"discarded_{what}.{name}": counts[what] for what in ("rows", "values") if counts[what]}
        logger.info("sink %s: the contract discards %d rows and %d values", name, counts["rows"], counts["values"])
        return fitting.applied(stored)

    def _judged(self, name: str, frame: DataFrame) -> DataFrame:
        """Count the rows that break a rule of the sink in the pass that writes them, and return the rows that are kept."""
        rules = Rules(self.job.sinks[name].expect, name)
        if not rules.expect:
            return frame
        judged = self._rules[name] = _SinkRules(rules, [c for c in frame.columns if c not in _MARKS])
        marked = self.inspect.observe(rules.marked(frame), judged.observation, *rules.aggregates)
        if rules.has_quarantine:  # the rows are read twice
            marked = judged.quarantining = self._stored(marked, watched=[judged.observation])
        return rules.passing(marked)

    def _stored(self, frame: DataFrame, watched: Sequence[Observation]) -> DataFrame:
        """Evaluate a DataFrame once, and let the evaluation deliver the counts of an observation."""
        return self._plans.stored(
            self.inspect.observe_last(frame, Observation(), F.expr("count(1) AS rows"), watched=watched)
        )

    def _write(self, name: str, frame: DataFrame, watched: Sequence[Observation]) -> int | None:
        """Write the files of one sink, and return the number of rows that Spark passed to its writer; ``None`` if Spark did not count them."""
        passed_to_writer, judged = Observation(), self._rules.get(name)
        watched = watched if judged is None else [*watched, judged.observation]
        rows = self.inspect.observe_last(frame, passed_to_writer, F.expr("count(1) AS rows"), watched=watched)
        self._accepted[name] = self.job.sinks[name].stage(rows, self.job.plan.version, self.job.attempt_id)
        counts = self.inspect.observed(passed_to_writer, self.session, ("rows",))
        written = None if counts is None else counts["rows"]
        if judged is not None:
            self._count_judged(name, judged, written or 0)
        return written

    def _count_judged(self, name: str, judged: _SinkRules, written: int) -> None:
        """Take the counts of the rules of a sink, and check that each row was counted once. Spark may drop the counter of a plan without rows."""
        judged.counts = self.inspect.observed(judged.observation, self.session, judged.rules.names) or {}
        found = judged.counts.get(JUDGED, 0)
        kept = written + self._discarded.get(f"discarded_rows.{name}", 0)
        if found != kept + judged.removed:
            raise StageError(
                "the rows that the expectations of a sink judged are not those that were written or removed",
                invariant="I14",
                sink=name,
                judged=found,
                kept=kept,
                removed=judged.removed,
            )
        judged.rules.refuse_failures(judged.counts, self.job.plan.version)

    def _count(self, marked: DataFrame, aggregates: list[Column]) -> dict[str, Any]:
        """Count the records in a separate pass, because the transform may not have read each record exactly once."""
        row = marked.agg(*aggregates).first()
        return {} if row is None else row.asDict()

    def _quarantine(self, inputs: Sequence[_Input], counts: Mapping[str, Mapping[str, int]]) -> Quarantine:
        """
        Store the quarantined records. ``counts`` are of the first pass.

        An object has at most 5,000 records. If there are bad records, the planned records are read a second time.
        """
        found = {
            "cannot_be_parsed": sum(counts[item.name].get("bad", 0) for item in inputs),
            "break_a_rule": sum(counts[item.name].get(QUARANTINED, 0) for item in inputs)
            + sum(judged.counts.get(QUARANTINED, 0) for judged in self._rules.values()),
            "late": len(self._late_rows),
        }
        rows = sum(found.values())
        if rows > self.job.max_quarantined:
            self._refuse_quarantine(inputs, counts, found)
        stored: list[str] = []
        for item in inputs:
            self._store(self._bad_records(item), counts[item.name].get("bad", 0), stored)
            if item.rules.expect:
                columns = [name for name in item.loaded.frame.columns if name not in item.loaded.drop]
                self._store_broken(item.rules, item.marked, columns, counts[item.name], stored)
        for judged in self._rules.values():
            if judged.quarantining is not None:
                self._store_broken(judged.rules, judged.quarantining, judged.columns, judged.counts, stored)
        if self._micro_batch is not None:
            self._store(self._late_records(self._micro_batch.late_watermark_ms), len(self._late_rows), stored)
        return Quarantine(rows=rows, keys=tuple(stored))

    def _refuse_quarantine(
        self, inputs: Sequence[_Input], counts: Mapping[str, Mapping[str, int]], found: Mapping[str, int]
    ) -> None:
        limit = self.job.max_quarantined
        facts: dict[str, object] = {}
        if found["cannot_be_parsed"]:
            first = next(item for item in inputs if counts[item.name].get("bad", 0))
            location = next(first.loaded.bad_records()).location
            facts = {"first_file": location["path"]} if "path" in location else {}
        late = {} if self._micro_batch is None else {"late": self._late}
        raise DataError(
            "the number of records to quarantine exceeds limits.max_quarantined",
            version=self.job.plan.version,
            **{name: rows for name, rows in (dict(found) | late).items() if rows},
            allowed=limit,
            **facts,
        ).advising(
            "raise limits.max_quarantined and run again: the records are then quarantined, and `streamsem quarantine` shows them. Or correct the schema, the "
            "rule or the transform. Do not edit a planned file, because it would no longer match its pin."
        )

    def _bad_records(self, item: _Input) -> Iterator[dict[str, Any]]:
        source = {"source": item.name} if item.name else {}
        for record in item.loaded.bad_records():
            yield {**source, **record.location, "raw": record.raw, "error": record.error}

    def _late_records(self, watermark_ms: int) -> Iterator[dict[str, Any]]:
        error = "late: the event time, or the end of the window, is not after the watermark"
        for raw in self._late_rows:
            yield {"watermark_ms": watermark_ms, "encoding": "utf-8", "error": error, "raw": raw}

    def _store_broken(
        self, rules: Rules, marked: DataFrame, columns: Sequence[str], counts: Mapping[str, int], stored: list[str]
    ) -> None:
        self._store(rules.quarantined(marked, columns), counts.get(QUARANTINED, 0), stored)

    def _store(self, records: Iterator[dict[str, Any]], expected: int, stored: list[str]) -> None:
        """
        Store records in objects, and add their keys to ``stored``.

        :param records: reads the records a second time, so it is not read if none is expected
        :param expected: the number of records in the first pass, which the second pass must find again
        """
        if not expected:
            return
        lines = (canonical(record) + b"\n" for record in records)
        rows = 0
        while part := [*islice(lines, _RECORDS_PER_OBJECT)]:
            rows += len(part)
            key = keys.quarantine(self.job.plan.version, self.job.attempt_id, len(stored))
            self.log.create(key, b"".join(part))
            stored.append(key)
        if rows != expected:
            raise DataError(
                "two passes over the same records found different numbers of records to quarantine",
                version=self.job.plan.version,
                first=expected,
                second=rows,
            ).advising("run again. If it repeats, run `streamsem doctor-spark`.")
