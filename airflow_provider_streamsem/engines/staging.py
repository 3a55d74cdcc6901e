"""One attempt on Spark: read the plan, tell bad records apart, evaluate the transform once, stage every sink, count everything. Imports pyspark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engines import causes, schema
from airflow_provider_streamsem.engines.contract import Job, Produced
from airflow_provider_streamsem.engines.seen import Seen
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Json, Quarantine
from airflow_provider_streamsem.sinks import column_types
from airflow_provider_streamsem.sinks.files import FilesSink
from airflow_provider_streamsem.sources.contract import Counted, Loaded
from airflow_provider_streamsem.sources.sql import quoted

logger = telemetry.log_of(__name__)


def named(error: AnalysisException) -> dict[str, str]:
    """The column, table or function that an analysis did not find, as a fact of an error."""
    parameters = dict(error.getMessageParameters() or {})
    name = parameters.get("objectName") or parameters.get("routineName")
    return {} if name is None else {"name": name}


NARROW_NODES = {"Project", "Filter", "CollectMetrics", "Generate", "SubqueryAlias", "View"}
"""nodes of Spark's plans that read their whole input once, in the same stage: above them an observation of the input counts each row once"""


class Inspection(Protocol):
    """What :mod:`gateway` and :mod:`remote` both answer."""

    def observe(self, frame: DataFrame, observation: Observation, *asked: Column) -> DataFrame:
        """The same rows, which are counted wherever they are evaluated; a transform may use them several times."""
        ...

    def observe_last(
        self, frame: DataFrame, observation: Observation, *asked: Column, watched: Observation
    ) -> DataFrame:
        """The same rows, counted as they are handed to a writer, which also learns what ``watched`` counted below."""
        ...

    def may_have_run(self, observation: Observation, session: SparkSession) -> bool:
        """Whether some action may have completed an observation already."""
        ...

    def observed(self, observation: Observation, session: SparkSession, names: Sequence[str]) -> dict[str, int] | None:
        """What an observation counted under these names, as far as it was asked for them, or ``None`` where it never ran."""
        ...

    def reads_input_once(self, frame: DataFrame) -> bool:
        """Whether the plan surely reads its whole input exactly once."""
        ...


_RECORDS_PER_PART = 5_000
_COLUMNS_A_COUNT = 100  # a count of many columns is a condition that is nested as deep
_COUNTS = ("read", "bad", "filtered")
_KEPT = "__streamsem_kept"


@dataclass(slots=True)
class Staging:
    """One attempt. Used once."""

    session: SparkSession
    inspect: Inspection
    job: Job
    log: CommitLog
    _kept: list[DataFrame] = field(default_factory=list)
    _accepted: dict[str, frozenset[str] | None] = field(default_factory=dict)
    _schemas: dict[str, str] = field(default_factory=dict)
    _seen: Seen | None = None

    def run(self) -> Produced:
        """Stage every sink; the counts are of what was really read and written."""
        loaded = self.job.source.load(self.session, self.job.plan.pins)
        watched = Observation()
        marked = self._marked(loaded)
        asked = self._asked(loaded, marked)
        records = self.inspect.observe(marked, watched, *asked)
        if self.job.dedup is not None:
            self._seen = Seen(
                session=self.session, dedup=self.job.dedup, place=self.log.store.url, now_ms=self.job.seen_at_ms,
                state=self.job.state, keep=self._keep,
            )  # fmt: skip
        try:
            outputs = {
                name: self._fitted(name, frame) for name, frame in self._outputs(self._good(loaded, records)).items()
            }
            reread = self.inspect.may_have_run(watched, self.session) or not all(
                self.inspect.reads_input_once(frame) for frame in outputs.values()
            )
            handed = {name: self._write(name, outputs[name], watched) for name in self.job.sinks}
            state = self._remember()
        finally:
            for frame in self._kept:
                frame.unpersist()
        counted = None if reread else self.inspect.observed(watched, self.session, _COUNTS)
        if counted is None:
            counted = self._count(marked, asked)
        if isinstance(loaded, Counted):
            loaded.check_read(counted["read"])
        with telemetry.phase("collect"):
            sinks = {
                name: sink.collect(self.job.plan.version, self.job.attempt_id, self._accepted[name])
                for name, sink in self.job.sinks.items()
            }
        bad = counted.get("bad", 0)
        counts = {
            "read": counted["read"],
            "parsed": counted["read"] - bad,
            "quarantined": bad,
            "filtered": counted.get("filtered", 0),
        }
        counts |= {f"written.{name}": committable.rows for name, committable in sinks.items()}
        counts |= {} if self._seen is None else self._seen.counts
        return Produced(
            sinks=sinks,
            schemas=self._schemas,
            quarantine=self._quarantine(loaded, bad),
            counts=counts,
            handed=handed,
            state=state,
        )

    def _remember(self) -> Json:
        """What is remembered after the batch. A redo reads what was let pass before, and changes nothing of it."""
        if self._seen is None or self.job.plan.kind == "redo":
            return self.job.state
        return self._seen.remember(self.job.plan.version, self.job.attempt_id)

    def _asked(self, loaded: Loaded, marked: DataFrame) -> list[Column]:
        """What is counted of the records. Every column is asked for: what is not asked for is not parsed, and then cannot be found bad."""
        asked = [F.expr("count(1) AS read")]
        if loaded.bad is not None:
            columns = [quoted(name) for name in marked.columns]
            asked.append(F.count_if(loaded.bad).alias("bad"))
            asked += [
                F.expr(f"count({', '.join(columns[i : i + _COLUMNS_A_COUNT])}) AS c{i}")
                for i in range(0, len(columns), _COLUMNS_A_COUNT)
            ]
        if self.job.where is not None:
            dropped = ~F.col(_KEPT)
            asked.append(F.count_if(dropped if loaded.bad is None else ~loaded.bad & dropped).alias("filtered"))
        return asked

    def _marked(self, loaded: Loaded) -> DataFrame:
        """The records with the predicate's answer as a column: asked once, so that counting and filtering see the same answer."""
        if self.job.where is None:
            return loaded.frame
        try:
            marked = loaded.frame.withColumn(_KEPT, F.coalesce(F.expr(self.job.where), F.lit(False)))
            marked.schema  # noqa: B018  behind Spark Connect a plan is analysed when its schema is asked for
        except AnalysisException as error:
            raise DataError(
                "the predicate `where` does not fit the source's columns; nothing became visible",
                where=self.job.where,
                condition=error.getCondition(),
                **named(error),
                columns=[name for name in loaded.frame.columns if name not in loaded.drop],
            ) from causes.short(error)
        return marked

    def _good(self, loaded: Loaded, records: DataFrame) -> DataFrame:
        good = records if loaded.bad is None else records.where(~loaded.bad)
        good = good if self.job.where is None else good.where(F.col(_KEPT)).drop(_KEPT)
        good = good.drop(*loaded.drop) if loaded.drop else good
        return good if self._seen is None else self._seen.passing(good)

    def _outputs(self, good: DataFrame) -> dict[str, DataFrame]:
        """The transform's result for each sink; what several sinks share is kept, so that it is evaluated once."""
        names = list(self.job.sinks)
        result = self.job.transform(self._keep(good) if len(names) > 1 else good)
        if isinstance(result, DataFrame):
            shared = self._keep(result) if len(names) > 1 else result
            return dict.fromkeys(names, shared)
        if not isinstance(result, Mapping) or not all(isinstance(frame, DataFrame) for frame in result.values()):
            raise DataError(
                "the transform returned neither a DataFrame nor a mapping of sink names to DataFrames; nothing became visible",
                transform=self.job.transform_name,
                returned=type(result).__name__,
            )
        if set(result) != set(names):
            raise DataError(
                "the transform returned DataFrames for other sinks than the pipeline has; nothing became visible",
                returned=sorted(result),
                sinks=sorted(names),
            )
        once = {id(frame): frame for frame in result.values()}
        if len(once) < len(result):
            once = {key: self._keep(frame) for key, frame in once.items()}
        return {name: once[id(frame)] for name, frame in result.items()}

    def _fitted(self, name: str, frame: DataFrame) -> DataFrame:
        """
        The rows with the columns, order and types that the log has recorded and the sink's table has; new columns follow.

        Formats without names are read back by position, and files of one dataset have the same types. Columns without a type are left out.
        """
        given = frame.schema.json()
        sink = self.job.sinks[name]
        grows = {"grows": sink.grows} if isinstance(sink, FilesSink) else {}
        accepted = sink.accept(schema.folded(name, self.job.schemas.get(name), given, **grows))
        self._schemas[name], untyped = column_types.typed(accepted)
        if untyped:
            logger.info(
                "sink %s: every value of these columns is null and nothing tells their types; the columns are left out of this batch: %s",
                name,
                ", ".join(untyped),
            )
        wanted = json.loads(self._schemas[name])
        if column_types.bare(wanted) == column_types.bare(json.loads(given)):
            return frame
        return frame.to(StructType.fromJson(wanted))

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def _write(self, name: str, frame: DataFrame, watched: Observation) -> int | None:
        """Stage one sink; returns the rows that Spark handed to its writer."""
        handed = Observation()
        rows = self.inspect.observe_last(frame, handed, F.expr("count(1) AS rows"), watched=watched)
        self._accepted[name] = self.job.sinks[name].stage(rows, self.job.plan.version, self.job.attempt_id)
        counted = self.inspect.observed(handed, self.session, ("rows",))
        return None if counted is None else counted["rows"]

    def _count(self, marked: DataFrame, asked: list[Column]) -> dict[str, int]:
        """Count the records in a pass of their own, where the transform may not have read each of them once."""
        row = marked.agg(*asked).first()
        return {} if row is None else row.asDict()

    def _quarantine(self, loaded: Loaded, bad: int) -> Quarantine:
        """Store the bad records beside the log, in parts; a second pass over the same pins, made only where there are any."""
        most = self.job.max_quarantined
        if bad > most:
            place = next(loaded.bad_records()).place
            raise DataError(
                "more records cannot be parsed than limits.max_quarantined allows; nothing became visible",
                version=self.job.plan.version,
                found=bad,
                allowed=most,
                **({"first_file": place["path"]} if "path" in place else {}),
            ).advising(
                "raise limits.max_quarantined and run again: the records are then set aside, and `streamsem quarantine` shows them. Or correct the schema. "
                "Do not edit a file that is planned: it would no longer be the planned one."
            )
        if bad == 0:
            return Quarantine()
        stored: list[str] = []
        part: list[bytes] = []
        rows = 0
        for record in loaded.bad_records():
            rows += 1
            part.append(canonical({**record.place, "raw": record.raw, "error": record.error}) + b"\n")
            if len(part) == _RECORDS_PER_PART:
                stored.append(self._store_part(len(stored), part))
                part = []
        if part:
            stored.append(self._store_part(len(stored), part))
        if rows != bad:
            raise DataError(
                "the records that cannot be parsed changed between two passes over the same files",
                version=self.job.plan.version,
                first=bad,
                second=rows,
            )
        return Quarantine(rows=rows, keys=tuple(stored))

    def _store_part(self, number: int, part: list[bytes]) -> str:
        key = keys.quarantine(self.job.plan.version, self.job.attempt_id, number)
        self.log.create(key, b"".join(part))
        return key
