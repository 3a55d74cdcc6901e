"""An engine without Spark for tests. It reads JSON lines, and writes JSON lines or staged Parquet."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, END, START, TRUNCATE, UPSERT, Changes
from airflow_provider_streamsem.connectors.columns import types as column_types
from airflow_provider_streamsem.connectors.landing.messages import body_of
from airflow_provider_streamsem.connectors.pipeline.source import PipelineSource
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.queue.source import QueueSource
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Contents, Job, Produced, RewriteJob, RewrittenFiles
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json, Quarantine
from airflow_provider_streamsem.spark.schema import folded
from airflow_provider_streamsem.stores.contract import open_store, split_url

SCHEMA = json.dumps({"type": "struct", "fields": []})
_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


class RowsEngine:
    """
    An engine that stages in this process, with Python lists instead of DataFrames.

    It reads files of format ``json``, also those of another pipeline, and writes datasets of format ``json`` on a local disk. For sinks outside the log it
    writes Parquet. For landed messages, the rows are the message bodies. It refuses a pipeline with partitions, other formats or an SQL predicate.

    The event times of partitions are integers: milliseconds since the epoch.

    The transform receives a list of dicts, and returns one list, or a mapping of sink names to lists. A line that is not a JSON object is quarantined.

    For a sink with ``changes``, the transform sets the column :data:`airflow_provider_streamsem.connectors.changes.CHANGE` of each row, because this engine
    evaluates no SQL.

    The columns of a sink outside the log are those of the first row (integers, floats, strings and booleans). Without rows, they are those of earlier batches.

    :param step: called with the name of each step before the step, so that a test can stop the engine there
    :attr staged: number of attempts so far
    """

    def __init__(self, step: Callable[[str], object] | None = None) -> None:
        self._step = step or (lambda name: None)
        self.staged = 0

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Read the planned records, transform them, and write one file for each sink; see :class:`airflow_provider_streamsem.engine.Engine`."""
        self.staged += 1
        _refuse_what_needs_spark(job)
        self._step("read")
        rows, bad = self._read(job)
        parsed = len(rows)
        rows, state = self._deduplicated(job, log, rows)
        self._step("transform")
        result = job.transform(rows)
        if not isinstance(result, Mapping):
            rows_of_each = [*result]
            result = {name: rows_of_each for name in job.sinks}
        out = {name: [*result[name]] for name in job.sinks}
        sinks = {}
        for name, sink in sorted(job.sinks.items()):
            self._step(f"write {name}")
            if sink.changes is not None:
                out[name] = _in_sequence(out[name], sink.changes)
            if sink.is_outside_log:
                _refuse_casts(name, _schema(out[name]), sink.resolve_schema(_schema(out[name])))
            self._write(sink.attempt_location(job.plan.version, job.attempt_id), out[name], sink.format)
            with telemetry.phase("collect"):
                self._step(f"collect {name}")
                sinks[name] = sink.collect(job.plan.version, job.attempt_id)
        schemas = {name: _columns(job, name, out[name]) for name in sinks}
        state = self._with_tombstones(job, log, sinks, schemas, state)
        if len(bad) > job.max_quarantined:
            raise DataError(
                "the number of records that cannot be parsed exceeds limits.max_quarantined",
                found=len(bad),
                allowed=job.max_quarantined,
            )
        counts = {"read": parsed + len(bad), "parsed": parsed, "quarantined": len(bad), "filtered": 0}
        counts |= {} if job.dedup is None else {"duplicates": parsed - len(rows)}
        counts |= {f"written.{name}": committable.rows for name, committable in sinks.items()}
        times = (
            []
            if job.partitions is None
            else [row.get(job.partitions.by) for row in out[job.partitions.sink or next(iter(out))]]
        )
        partitions = Counter("null" if at is None or job.partitions is None else job.partitions.key(at) for at in times)
        self._step("staged")
        return Produced(
            sinks=sinks,
            schemas=schemas,
            quarantine=self._quarantine(job, bad, log),
            counts=counts,
            passed_to_writer={name: len(out[name]) for name in sinks},
            state=state,
            time_partitions=dict(partitions),
            newest_ms=max((at for at in times if at is not None and at <= job.plan.planned_at_ms), default=None),
        )

    def publishing_session(self, sink: Sink, *, later: Sequence[Any] = ()) -> AbstractContextManager[Any]:
        raise InvalidError("this engine has no Spark session; nothing of the batch was published", engine="RowsEngine")

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        """Write the lines of some files again, into one file; see :class:`airflow_provider_streamsem.engine.Engine`."""
        self._step("read")
        before = _lines(job.sink, job.files)
        if job.erased is not None:
            before = [
                line for line, is_selected in zip(before, _selected(before, job.erased), strict=True) if not is_selected
            ]
        self._step("write")
        location = job.sink.attempt_location(job.version, job.attempt_id)
        self._write(location, [json.loads(line) for line in before], job.sink.format)
        self._step("collect")
        output = job.sink.collect(job.version, job.attempt_id)
        self._step("staged")
        return RewrittenFiles(output=output, before=_contents(before), after=_contents(_lines(job.sink, output.files)))

    def count_selected(
        self, sink: Sink, files: Sequence[DataFile], schema: str, predicate: Predicate
    ) -> Mapping[str, int] | None:
        """Count the selected rows of each file. ``schema`` is not used: the rows have the columns if any row of the files has all of them."""
        lines = {file.key: _lines(sink, [file]) for file in files}
        columns = {*predicate.columns}
        if not any(columns <= json.loads(line).keys() for found in lines.values() for line in found):
            return None
        counts = {key: sum(_selected(found, predicate)) for key, found in lines.items()}
        return {key: count for key, count in counts.items() if count}

    def cancel(self) -> None:
        """Do nothing, because no work runs outside the thread that stages."""

    def _read(self, job: Job) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        if isinstance(job.source, PipelineSource):
            files = [
                (open_store(os.path.dirname(path)), os.path.basename(path)) for path in job.source.located(job.pins)
            ]
        else:
            if job.source.location is None:
                raise InvalidError(
                    "the engine without Spark reads only JSON files, pipelines and landed messages; nothing was read",
                    source=type(job.source).__name__,
                ).advising("use SparkEngine in the tests of this source.")
            store = open_store(job.source.location)
            files = [(store, pin.path) for pin in job.pins]
        rows, bad = [], []
        for store, path in files:
            data = store.read(path)
            if data is None:
                raise StageError("a planned file was deleted before it was read", file=path)
            lines = data.decode().splitlines()
            for line in map(body_of, lines) if isinstance(job.source, QueueSource) else lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if isinstance(row, dict):
                    rows.append(row)
                else:
                    bad.append((path, line))
        return rows, bad

    def _deduplicated(self, job: Job, log: CommitLog, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Json]:
        if job.dedup is None:
            return rows, job.base_state
        from airflow_provider_streamsem.deduplication.batch import DedupBatch
        from airflow_provider_streamsem.deduplication.ids import halves
        from airflow_provider_streamsem.deduplication.layers import LayerFiles

        names = job.dedup.keys
        missing = sorted({key for row in rows for key in names if key not in row})
        if missing:
            raise DataError("the records lack key columns of dedup", missing=missing)
        with_id = [row for row in rows if all(row[key] is not None for key in names)]
        without_id = [row for row in rows if any(row[key] is None for key in names)]
        batch = DedupBatch(job.dedup, LayerFiles(log.store.url), job.batch_time_ms, job.base_state, job.chain)
        passes = batch.passing(*halves(b"".join(_id(row, names) for row in with_id)))
        passing = [*(with_id[n] for n in sorted(passes.tolist())), *without_id]
        self._step("write deduplication state")
        return passing, batch.write_state(job.plan.version, job.attempt_id)

    def _with_tombstones(
        self, job: Job, log: CommitLog, staged: Mapping[str, Committable], schemas: Mapping[str, str], state: Json
    ) -> Json:
        if all(sink.changes is None for sink in job.sinks.values()):
            return state
        from airflow_provider_streamsem import tombstones

        self._step("write tombstones")
        return tombstones.state_after(
            state, job.sinks, staged, schemas, log=log.store.url,
            now_ms=job.batch_time_ms, version=job.plan.version, attempt_id=job.attempt_id,
        )  # fmt: skip

    def _write(self, location: str, rows: list[dict[str, Any]], format: str) -> None:
        directory = split_url(location)[1]
        os.makedirs(directory, exist_ok=False)
        if format == "parquet":
            import pyarrow.parquet

            if rows:
                pyarrow.parquet.write_table(
                    pyarrow.Table.from_pylist(rows), os.path.join(directory, "part-00000.parquet")
                )
            return
        with open(os.path.join(directory, "part-00000.json"), "x", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _quarantine(self, job: Job, bad: list[tuple[str, str]], log: CommitLog) -> Quarantine:
        if not bad:
            return Quarantine()
        key = keys.quarantine(job.plan.version, job.attempt_id, 0)
        log.create(
            key, b"".join(canonical({"path": p, "raw": raw, "error": "not a JSON object"}) + b"\n" for p, raw in bad)
        )
        return Quarantine(rows=len(bad), keys=(key,))


def _lines(sink: Sink, files: Sequence[DataFile]) -> list[str]:
    try:
        return [line for url in sink.urls(files) for line in Path(split_url(url)[1]).read_text().splitlines()]
    except FileNotFoundError as error:
        raise StageError("a file of the dataset was deleted before it was read", file=str(error.filename)) from error


def _selected(lines: Sequence[str], predicate: Predicate) -> list[bool]:
    rows = map(json.loads, lines)
    return [all(row.get(term.column) in term.values for term in predicate.terms) for row in rows]


def _contents(lines: Sequence[str]) -> Contents:
    rows = sorted(canonical(json.loads(line)) for line in lines)
    return Contents(rows=len(rows), digest=hashlib.sha256(b"\n".join(rows)).hexdigest())


def _id(row: Mapping[str, Any], names: Sequence[str]) -> bytes:
    unsupported = [name for name in names if isinstance(row[name], (float, list, dict))]
    if unsupported:
        raise DataError(
            "dedup does not accept key columns of these types, because equal values may have different text forms",
            columns=unsupported,
        )
    return hashlib.sha256(canonical([row[name] for name in names])).digest()[:16]


def _columns(job: Job, name: str, rows: list[dict[str, Any]]) -> str:
    if not job.sinks[name].is_outside_log:
        return SCHEMA
    recorded = job.schemas.get(name)
    return folded(name, recorded, _schema(rows)) if rows else recorded or SCHEMA


def _schema(rows: list[dict[str, Any]]) -> str:
    fields = [
        {"name": name, "type": _TYPES[type(value)], "nullable": True, "metadata": {}}
        for name, value in (rows[0] if rows else {}).items()
        if name != CHANGE
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _in_sequence(rows: list[dict[str, Any]], changes: Changes) -> list[dict[str, Any]]:
    unmarked = sum(row.get(CHANGE) not in (UPSERT, DELETE, TRUNCATE) for row in rows)
    if unmarked:
        raise InvalidError(
            "an engine without Spark evaluates no predicates of changes", unmarked=unmarked, column=CHANGE, accepted=[UPSERT, DELETE, TRUNCATE]
        ).advising("set the column in the transform of the test, or use SparkEngine.")  # fmt: skip
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in changes.sequence_by))
    if not changes.keeps_history:
        return ordered
    sequence = changes.sequence_by[0]
    return [{**row, START: row[sequence], END: row[sequence]} for row in ordered]


def _refuse_casts(name: str, schema: str, accepted: str) -> None:
    if column_types.bare(json.loads(accepted)) != column_types.bare(json.loads(schema)):
        summary = "the sink's table has wider types than the rows, and an engine without Spark does not cast; nothing became visible"
        raise InvalidError(summary, sink=name, given=schema, accepted=accepted)


def _refuse_what_needs_spark(job: Job) -> None:
    """The engine would ignore features that it does not implement."""
    sinks = {
        f"format of sink {name}": sink.format
        for name, sink in job.sinks.items()
        if sink.format != "json" and not sink.is_outside_log
    }
    sinks |= {f"partitions of sink {name}": "yes" for name, sink in job.sinks.items() if sink.partitions}
    sinks |= {f"contract of sink {name}": "yes" for name, sink in job.sinks.items() if sink.contract is not None}
    settings: dict[str, object] = {"where": job.where} if job.where is not None else {}
    settings |= {"expect": sorted(job.expect)} if job.expect else {}
    settings |= (
        {"gates": [gate.to_json() for gate in job.gates if gate.reads_rows]}
        if any(gate.reads_rows for gate in job.gates)
        else {}
    )
    sinks |= {f"expect of sink {name}": "yes" for name, sink in job.sinks.items() if sink.expect}
    settings |= {"lookups": sorted(job.lookups)} if job.lookups else {}
    settings |= {} if job.state_settings is None else {"state": job.state_settings.output_mode}
    if settings or sinks:
        raise InvalidError(
            "an engine without Spark cannot run this pipeline", given={**settings, **sinks}, accepted="spark="
        )
