"""
Runs the transform of one attempt as one micro-batch of Structured Streaming. The input is the planned records and the state of the previous outcome.

Spark's ``IncrementalExecution`` plans a micro-batch. This module passes it the records of the batch as a streaming relation. The base state, the watermark and
the batch id come from the log instead of a checkpoint directory. Spark's RocksDB state store with checkpoint format 2 writes each state under a unique id, and
loads the state with the ids of the base. An attempt has a new run id, so it does not use a state store that another attempt has loaded, unless
:mod:`airflow_provider_streamsem.spark.loaded_state` allows it.

This module imports pyspark, and uses non-public classes of Spark 4.1 and newer.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError
from airflow_provider_streamsem.spark import loaded_state
from airflow_provider_streamsem.spark.late_rows import (
    MERGES_SESSIONS,
    check_late_rows_can_be_found,
    combines_rows,
    late_rows,
)
from airflow_provider_streamsem.spark.state_metadata import StateMetadata
from airflow_provider_streamsem.state.settings import (
    Operator,
    OperatorState,
    State,
    check_same_definition,
    check_same_operators,
    check_spark_version,
    chosen_watermark_ms,
    different_operators_error,
)

_STREAMING = "org.apache.spark.sql.execution.streaming"
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # adaptive execution could change the number of state partitions
    "spark.sql.cbo.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Each batch uploads a snapshot, which shares files with earlier ones. With change logs, a new process would have to replay all of them.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    # No-data batches are planned while the state has rows.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
    # Format 3 needs the entry of Spark's offset log for the batch.
    "spark.sql.streaming.join.stateFormatVersion": "2",
    # Spark refuses a changed schema of the state.
    "spark.sql.streaming.stateStore.stateSchemaCheck": "true",
    # Prevents Spark from deleting old state files. It selects them by batch id, and a batch may have several attempts.
    "spark.sql.streaming.minBatchesToRetain": "2000000000",
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
}

_OPERATOR_NAME = re.compile(r"OperatorName: (\w+)")
"""Matches the operators in Spark's error about operators that do not match those of the state."""


@dataclass(slots=True)
class MicroBatch:
    """
    One micro-batch of one attempt.

    Create a new instance for each attempt, and call :meth:`streaming`, :meth:`result`, :meth:`after` and :meth:`close` in this order.

    :param session: the clone of the session in which the attempt runs
    :param location: path of the directory of the state files, for Spark
    :param base: the state before the batch; ``None`` for the first batch
    :param attempt_id: the name of the root directory of a new state
    :param now_ms: processing time of the batch, which is when it was planned, in milliseconds since the epoch
    :param watermark_ms: the watermark of a no-data batch; ``None``: the watermark of the base
    :param definition: the definition of a ready-made transform, as in :class:`OperatorState`
    """

    session: SparkSession
    state: State
    location: str
    base: OperatorState | None
    attempt_id: str
    transform: Callable[..., Any]
    now_ms: int
    watermark_ms: int | None = None
    definition: str = ""
    _columns: dict[str, str] = field(default_factory=dict)
    _logical: Any = None
    _planned: Any = None
    _stores: loaded_state.Stores | None = None
    _after: OperatorState | None = None
    _partitions: int = 0
    _settings: dict[str, str] = field(default_factory=dict)
    _metadata: dict[int, str] = field(default_factory=dict)

    def streaming(self, records: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Return the records of each source as a streaming DataFrame. Refuses a base that does not fit."""
        check_spark_version(self.base, self.session.version)
        check_same_definition(self.base, self.definition)
        self._configure()
        self._columns = {name: frame.schema.json() for name, frame in records.items()}
        return {name: self._stream(frame) for name, frame in records.items()}

    def _stream(self, records: DataFrame) -> DataFrame:
        return self._rows(jvm.execution_of(records), is_streaming=True)

    def result(self, streaming: DataFrame) -> DataFrame:
        """Plan the micro-batch. The caller must read the rows of the result exactly once, because each read writes the state."""
        from pyspark.errors import AnalysisException, SparkRuntimeException

        logical = jvm.execution_of(streaming).analyzed()
        if not logical.isStreaming():
            raise InvalidError(
                "the transform of a pipeline with state must return a streaming DataFrame, derived from one that it receives; nothing became visible",
                accepted="df.groupBy(...).count(), for example; no collect(), createDataFrame() or cache()",
            )
        if self.state.late == "quarantine":
            merges_sessions = self.session.conf.get(MERGES_SESSIONS, "false") == "true"
            check_late_rows_can_be_found(logical, merges_sessions=merges_sessions)
        metadata = self._prepare_metadata(logical)
        loaded = self.base and loaded_state.take(self.session, self.location, self.base, self.transform)
        self._stores = loaded or loaded_state.Stores(_new_run_id())
        try:
            self._check_supported(logical)
            execution = self._execution(logical)
            execution.executedPlan()
        except AnalysisException as error:
            summary = "Structured Streaming does not support this transform in this output mode"
            raise DataError(summary, output_mode=self.state.output_mode, reason=_first_line(str(error))) from None
        except SparkRuntimeException as error:
            if error.getCondition() != "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA":
                raise
            names = _OPERATOR_NAME.findall((error.getMessageParameters() or {}).get("OpsInCurBatchSeq", ""))
            assert self.base is not None
            refused = different_operators_error([operator.name for operator in self.base.operators], names)
            raise refused from None
        self._logical, self._planned = logical, execution
        if metadata is not None:
            self._metadata = metadata.of_batch(self._with_metadata())
        return self._rows(execution)

    def _rows(self, execution: Any, *, is_streaming: bool = False) -> DataFrame:
        rows, schema = execution.toRdd(), execution.analyzed().schema()
        return DataFrame(self._jsession.internalCreateDataFrame(rows, schema, is_streaming), self.session)

    def after(self) -> tuple[OperatorState, int]:
        """
        Return the state after the batch, and the number of late rows that Spark dropped. Call this method after the rows of the result were written.

        Raises ``StageError`` if Spark repeated a task, so that it is unknown which state belongs to the rows.
        """
        writer, watermark = map(self._class_of, ("StateStoreWriter", "EventTimeWatermarkExec"))
        operators: dict[int, Operator] = {}
        watermarks: list[int | None] = []
        records_at_ms: list[int] = []
        before = [] if self.base is None else list(zip(self.base.watermarks, self.base.records_at_ms, strict=True))
        late = 0
        for node in _nodes(self._planned.executedPlan()):
            if writer.isInstance(node):
                number = node.stateInfo().get().operatorId()
                progress = json.loads(node.getProgress().json())
                operators[number] = Operator(
                    name=node.shortName(),
                    rows=progress["numRowsTotal"],
                    bytes=progress["customMetrics"].get("rocksdbSstFileSize", 0),
                    ids=self._ids(node, number),
                    metadata=self._metadata.get(number, ""),
                )
                late += progress["numRowsDroppedByWatermark"]
            elif watermark.isInstance(node):
                previous, at_ms = before[len(watermarks)] if len(watermarks) < len(before) else (None, self.now_ms)
                stats = node.eventTimeStats().value()
                watermarks.append(previous if stats.count() == 0 else max(stats.max() - node.delayMs(), previous or 0))
                records_at_ms.append(at_ms if stats.count() == 0 else self.now_ms)
        idle_after_s = self.state.idle_after_s
        chosen = chosen_watermark_ms(
            watermarks,
            records_at_ms,
            idle_since_ms=None if idle_after_s is None else self.now_ms - idle_after_s * 1000,
            largest=self._settings.get("spark.sql.streaming.multipleWatermarkPolicy") == "max",
        )
        watermark_ms = self._watermark_ms
        after = OperatorState(
            root=self._root,
            batches=self._number + 1,
            partitions=self._partitions,
            columns=self._columns,
            settings=self._settings,
            operators=tuple(operators[id] for id in sorted(operators)),
            watermark_ms=watermark_ms,
            next_watermark_ms=max(chosen, watermark_ms),
            watermarks=tuple(watermarks),
            records_at_ms=tuple(records_at_ms),
            spark_version=self.session.version,
            definition=self.definition or ("" if self.base is None else self.base.definition),
        )
        check_same_operators(self.base, after)
        self._after = after
        return after, late

    def late_rows(self, late: int, most: int) -> list[str]:
        """Return the rows that Spark dropped as late, as JSON. Call this method after :meth:`after`."""
        if not late:
            return []
        watermark_ms = self.late_watermark_ms
        frames = late_rows(self._logical, lambda plan: self._rows(self._execution(plan, has_state=False)), watermark_ms)
        rows = [row["raw"] for frame in frames for row in frame.limit(most).collect()][:most]
        # Spark counts groups instead of rows if an operator combines rows before the check.
        if len(rows) < min(late, most) or (len(rows) > late and not combines_rows(self._logical)):
            raise DataError(
                "the late rows of this transform were not found, so they cannot be quarantined",
                dropped=late,
                found=len(rows),
                watermark_ms=watermark_ms,
            ).advising('set state.late="drop".')
        return rows

    def close(self) -> None:
        """Leave the state that the attempt wrote loaded in Spark. If it wrote none, unload the state stores that it used."""
        if self._stores is None:
            return
        if self._after is not None and self._after.operators:
            loaded_state.keep(self.session, self._stores, self.location, self._after, self.transform)
        else:
            loaded_state.unload(self.session, self._stores.run_id)

    @property
    def late_watermark_ms(self) -> int:
        """The watermark by which the batch drops late rows, in milliseconds since the epoch; 0 if there is none."""
        return 0 if self.base is None else self.base.watermark_ms

    @property
    def _root(self) -> str:
        return self.attempt_id if self.base is None else self.base.root

    @property
    def _watermark_ms(self) -> int:
        before = 0 if self.base is None else self.base.next_watermark_ms
        return max(before, self.watermark_ms or 0)

    @property
    def _number(self) -> int:
        """Spark's id of the batch."""
        return 0 if self.base is None else self.base.batches

    @property
    def _jsession(self) -> Any:
        return jvm.session_of(self.session)

    def _jvm(self, name: str) -> Any:
        return jvm.class_of(self.session, name)

    def _class_of(self, name: str) -> Any:
        loader = self._jvm("java.lang.Thread").currentThread().getContextClassLoader()
        return loader.loadClass(f"{_STREAMING}.operators.stateful.{name}")

    def _configure(self) -> None:
        session_partitions = int(self.session.conf.get("spark.sql.shuffle.partitions") or 200)
        self._partitions = self.state.partitions or session_partitions if self.base is None else self.base.partitions
        if self.base is not None and self.state.partitions not in (None, self.base.partitions):
            raise InvalidError(
                "the number of state partitions cannot be changed; nothing became visible",
                recorded=self.base.partitions,
                given=self.state.partitions,
            ).advising("set state.partitions to the recorded number, or remove it.")
        if self.base is not None:
            # As after the restart of a query, the settings that determine the format of the state are those of its first batch.
            base, conf = self._base_metadata(self.base), self._jsession.sessionState().conf()
            self._jvm(f"{_STREAMING}.checkpointing.OffsetSeqMetadata").setSessionConf(base, conf)
        partitions = str(self._partitions)
        settings = {
            **SETTINGS,
            "spark.sql.shuffle.partitions": partitions,
            "spark.sql.streaming.internal.stateStore.partitions": partitions,
        }
        for name, value in settings.items():
            self.session.conf.set(name, value)

    def _check_supported(self, logical: Any) -> None:
        """Let Spark raise its error if Structured Streaming does not support the plan in the output mode."""
        checker = self._jvm("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
        checker.checkForStreaming(logical, self._mode)

    @property
    def _mode(self) -> Any:
        modes = self._jvm("org.apache.spark.sql.streaming.OutputMode")
        return {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[self.state.output_mode]()

    def _execution(self, logical: Any, *, has_state: bool = True) -> Any:
        """Without state, a plan is planned as a first batch, because Spark compares the operators of later batches with those of the state."""
        conf = self._jsession.conf()
        metadata = self._jvm(f"{_STREAMING}.checkpointing.OffsetSeqMetadata")
        now = metadata.apply(self._watermark_ms, self.now_ms, conf)
        self._settings = json.loads(now.json())["conf"]
        before = self._base_metadata(self.base) if has_state and self.base is not None else None
        stores = self._stores if has_state else None
        run_id = self._jvm("java.util.UUID").fromString(_new_run_id() if stores is None else stores.run_id)
        empty = self._jvm("scala.collection.mutable.HashMap")
        execution = self._jvm(f"{_STREAMING}.runtime.IncrementalExecution")
        arguments = [
            self._jsession, logical, self._mode, f"{self.location}/{self._root}/state", run_id, run_id, self._number if has_state else 0,
            self._jvm("scala.Option").apply(before), now,
            self._jvm(f"{_STREAMING}.runtime.WatermarkPropagator").apply(self._jsession.sessionState().conf()),
            True, self._base_ids(), empty(), self._jvm("org.apache.spark.sql.execution.CommandExecutionMode").ALL(), False,
        ]  # fmt: skip
        if self.session.version.startswith("4.3."):
            arguments.append(False)  # not in real-time mode
        return execution(*arguments)

    def _base_metadata(self, base: OperatorState) -> Any:
        """Return the entry of Spark's offset log for the previous batch."""
        entry = {"batchWatermarkMs": base.watermark_ms, "batchTimestampMs": 0, "conf": dict(base.settings)}
        return self._jvm(f"{_STREAMING}.checkpointing.OffsetSeqMetadata").apply(json.dumps(entry))

    def _base_ids(self) -> Any:
        """Return the ids of the base as Scala's map: operator id → ids of each partition."""
        by_operator = self._jvm("scala.collection.mutable.HashMap")()
        text = self._jvm("java.lang.String")
        for number, operator in enumerate(() if self.base is None else self.base.operators):
            ids = jvm.gateway_of(self.session).new_array(text, len(operator.ids), len(operator.ids[0]))
            for partition, stores in enumerate(operator.ids):
                for store, id in enumerate(stores):
                    ids[partition][store] = id
            by_operator.put(number, ids)
        return by_operator

    def _ids(self, node: Any, number: int) -> tuple[tuple[str, ...], ...]:
        """The ids are in the order of the partitions. A task may run more than once, not report, or not use the ids of the base."""
        # Spark's getStateStoreCheckpointInfo keeps one report for each partition, so it does not show that a task ran twice.
        reports = node.checkpointInfoAccumulator().value()
        infos = [reports.get(index) for index in range(reports.size())]
        ids = {info.partitionId(): _texts(info.stateStoreCkptId()) for info in infos}
        # An operator without keys (a global aggregation, a limit) has all rows in one partition.
        is_single = node.outputPartitioning().getClass().getSimpleName() == "SinglePartition$"
        partitions = 1 if is_single else self._partitions
        is_complete = len(infos) == len(ids) and sorted(ids) == list(range(partitions))
        is_next = all(info.batchVersion() == self._number + 1 for info in infos)
        base = () if self.base is None or number >= len(self.base.operators) else self.base.operators[number].ids
        builds_on_base = all(_texts(info.baseStateStoreCkptId()) == base[info.partitionId()] for info in infos if base)
        if not (is_complete and is_next and builds_on_base):
            raise StageError(
                "the tasks of a stateful operator did not report exactly one state for each partition",
                operator=node.shortName(),
                partitions=partitions,
                reported=len(infos),
            ).advising("run again. If it fails again, look for executors that were lost and tasks that Spark repeated.")
        return tuple(ids[partition] for partition in range(partitions))

    def _prepare_metadata(self, logical: Any) -> StateMetadata | None:
        """Planning ``transformWithState`` reads metadata, and an empty file with the name that Spark's offset log would have for this batch."""
        if not any("TransformWithState" in node.nodeName() for node in _nodes(logical)):
            return None
        path = self._jvm("org.apache.hadoop.fs.Path")(f"{self.location}/{self._root}/offsets/{self._number}")
        path.getFileSystem(self._jsession.sessionState().newHadoopConf()).create(path, True).close()
        metadata = StateMetadata(self.session, f"{self.location}/{self._root}", self._number)
        if self.base is not None:
            metadata.restore(self.base)
        return metadata

    def _with_metadata(self) -> dict[int, str]:
        """Return operator → name, for the operators of the plan whose values metadata describes."""
        writer = self._class_of("StateStoreWriter")
        nodes = [node for node in _nodes(self._planned.executedPlan()) if writer.isInstance(node)]
        names = {node.stateInfo().get().operatorId(): node.shortName() for node in nodes}
        return {number: name for number, name in names.items() if name.startswith("transformWithState")}


def _new_run_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251  this id is not stored in the log


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a query plan, parents before children."""
    stack = [plan]
    while stack:
        node = stack.pop()
        yield node
        stack += jvm.elements(node.children())


def _texts(option: Any) -> tuple[str, ...]:
    """Return the elements of a Scala ``Option`` of an array; empty for ``None``."""
    if option.isEmpty():
        return ()
    array = option.get()
    return tuple(array[index] for index in range(len(array)))


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
