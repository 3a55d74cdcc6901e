"""
A Delta table that is made of the very files that Spark staged: publishing writes one entry of the table's log, and no data (extra ``delta``). Rows that
are merged by key are the exception (:mod:`airflow_provider_streamsem.sinks.delta_merge`).

The table's own transaction number is the marker: one entry holds the files and ``(pipeline uuid/sink) → version`` (Delta protocol, *Transaction
Identifiers*), and of two writers of one entry one wins. What a failed commit says is never believed: the table is opened anew and asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    MarkerLostError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json, Receipt
from airflow_provider_streamsem.sinks import delta_merge, keyed_rows
from airflow_provider_streamsem.sinks.bounds import delta_stats
from airflow_provider_streamsem.sinks.column_names import more_than_once
from airflow_provider_streamsem.sinks.column_types import VOID, bare, widened
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger, SinkMarker
from airflow_provider_streamsem.sinks.delta_requirements import Requirements, is_append_only, unwritable
from airflow_provider_streamsem.sinks.delta_table import OWN_ENTRY, HeldTable, create, is_transient, take
from airflow_provider_streamsem.sinks.table import TableSink, attempts_named
from airflow_provider_streamsem.stores.contract import normalised

_PRIMITIVES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
_DIGITS = 15
_TRIES = 12
_LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class DeltaSink(TableSink):
    """
    Rows of a Delta table. Any reader of Delta reads it; others may append to it, compact it and delete from it.

    The table is made with the first batch that has rows, or one that is there is taken if its columns and partitions fit. Columns that the transform adds are
    added to the table; its types never change, and narrower rows are cast to them. A redo replaces the files of the version that it redoes.

    :param path: the table: an absolute path, ``file:///path`` or ``s3://bucket/prefix``; files are staged below its ``data/``
    :param partition_by: the table's partition columns
    :param mode: ``append``: rows are added. ``upsert``: a row takes the place of that of its keys (MERGE); of one batch the last one in the order of the
        staged files stays. The publisher reads the batch into memory, and redoes are refused
    :param keys: of ``upsert``: columns that tell rows apart; none may be null
    """

    extra: ClassVar[str] = "delta"
    once: ClassVar[str] = (
        "each version is one entry of the table's log, which holds {holds} and the pipeline's transaction number; no second one of that number is made"
    )
    null_texts: ClassVar[Sequence[str]] = delta_merge.NULL_TEXTS
    path: str
    partition_by: Sequence[str] = ()
    mode: str = "append"
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.take_arguments("sink delta:")
        accepted = "a path without backslashes and %XX, which delta-rs and Spark read in different ways"
        arguments.text("sink delta: path", self.path, pattern=r"(?:[^%\\]|%(?![0-9A-Fa-f]{2}))*", accepted=accepted)

    def guarded(self) -> Json:
        """The table, its partition columns, and that rows are merged: of an appending sink, the staged files are the table's."""
        place = {"path": normalised(self.path), "partition_by": list(self.partition_by)}
        return {"type": "delta", **place, **self.guarded_mode}

    def accept(self, schema: str) -> str:
        """The columns must be of types that Delta has, and fit the table where it is there already; then they are staged as the table's types."""
        fields = _fields(schema)
        lacking = sorted(set(self.partition_by) - {field["name"] for field in fields})
        if fields and lacking:
            raise DataError("the rows lack partition columns; nothing became visible", missing=lacking)
        held = take(self.path, refusal=DataError)
        if held is not None:
            table = held.table
            self._check_partitions(table)
            if problems := self._problems(table):
                what = "the Delta table requires more of its writers than this sink does; nothing became visible"
                raise DataError(what, table=self.path, requires=problems)
            Requirements.of(table).check_columns([field["name"] for field in fields])
            fields = self._as_in(table, fields)
            held.keep()
        keyed_rows.check_keys(fields, self.keys)
        if self.merges:
            delta_merge.check_columns(fields, self.partition_by)
        return _with_types(schema, fields)

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Those of the files that the table names."""
        held = take(self.path)
        return set() if held is None else attempts_named(held.table.get_add_actions()["path"].to_pylist())

    def check_redo(self, replaced: Committable | None) -> None:
        """The table must let rows go, and still have the files that the redo replaces."""
        if replaced is None or not replaced.files:
            return
        held = take(self.path, refusal=InvalidError)
        if held is None:
            return
        if is_append_only(held.table):
            what = "the Delta table takes only appends (delta.appendOnly=true), so no version of it can be reprocessed; nothing was written"
            raise InvalidError(what, table=self.path)
        if missing := _missing(held.table, replaced.files):
            what = "others rewrote or deleted files of this version in the Delta table, so it cannot be reprocessed; nothing was written"
            raise InvalidError(what, table=self.path, files=missing)
        held.keep()

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        As every staged sink; refuses values that the table does not take.

        An empty text is refused as a partition value, for which Delta has no form: some readers give null.
        """
        found = TableSink.collect(self, version, attempt_id, accepted)
        empty = sorted({name for file in found.files for name, value in file.partition.items() if value == ""})
        if empty:
            raise DataError(
                "an empty text cannot be a partition value of a Delta table: readers differ on whether it is null; nothing became visible",
                table=self.path,
                columns=empty,
            )
        held = take(self.path, refusal=DataError)
        if held is not None:
            Requirements.of(held.table).check_values(self.path, found)
            held.keep()
        return found

    def stats(self, parquet: Any) -> str:
        """Delta's own statistics; delta-rs makes those of files that it writes, and fails on a whole table whose partition it cannot read."""
        if self.merges:
            keyed_rows.check_times(parquet)
            return ""
        keyed_rows.check_times(parquet, self.partition_by)
        return delta_stats(parquet, without=frozenset(self.partition_by))

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One entry of the table's log, with the files (or merged rows), the marker, and the removal of what a redo replaces."""
        return self._until_marked(batch, skipped=False)

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One entry with the marker alone."""
        return self._until_marked(batch, skipped=True)

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """The table's transaction number. RESTORE leaves it as it was, and takes out the rows: that is an error."""
        held = take(self.path)
        app = f"{pipeline_uuid}/{sink}"
        found = None if held is None else _marker(held, app)
        if held is None or found is None:
            return None
        restored = held.restored_since(app)
        if restored is not None:
            raise MarkerLostError(_restored(found.version, restored), table=self.path, sink=sink)
        return found

    def _until_marked(self, batch: Batch, *, skipped: bool) -> Receipt | None:
        """Commit until that is answered well, or the table says that the version is marked. Of all answers only that it landed is believed."""
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        app = f"{batch.pipeline_uuid}/{batch.sink}"
        cause: Exception | None = None
        refused_at: int | None = None
        for attempt in range(_TRIES):
            if cause is not None:
                SYSTEM_CLOCK.sleep(min(0.02 * 2**attempt, _LONGEST_WAIT_S))
            held = take(self.path, refusal=PublishError)
            found = None if held is None else _marker(held, app)
            if found is not None and found.version > batch.version:
                return None
            if held is not None and found is not None and batch.is_settled(found):
                if not skipped:
                    self._check_not_restored(batch, held, found)
                return _receipt(batch, found.state, held.table.version())
            if not skipped:
                self._check_marker(batch, held, found)
            held = held or create(self.path, _fields(batch.schema), self.partition_by)
            if refused_at == held.table.version():
                what = "the Delta table refuses the batch; nothing of it is in the table"
                raise PublishError(
                    what, table=self.path, version=batch.version, problem=type(cause).__name__
                ) from cause
            entry = held.table.version() + 1  # without retries of its own it commits this one, or none
            try:
                if self._commit(held.table, batch, app, skipped=skipped):
                    held.committed(_marks(batch, app, skipped=skipped), app, entry)
                    held.keep()
                    return _receipt(batch, "skipped" if skipped else "applied", entry)
            except PublishError:
                raise
            except Exception as error:  # whatever it says, it may have landed
                cause = error
                # Another writer's entry explains a failure, and so does the store. What fails in the table as it was read fails again.
                refused_at = None if is_transient(error) else held.table.version()
        raise UnavailableError(
            "the Delta table gave no clear answer; whether the batch is in it is unknown",
            table=self.path,
            version=batch.version,
            tries=_TRIES,
        ) from cause

    def _check_marker(self, batch: Batch, held: HeldTable | None, found: SinkMarker | None) -> None:
        what = "has no transaction number of this pipeline: it was deleted and created again, or replaced"
        what = "is missing: it was deleted or renamed" if held is None else what
        truth = f"the Delta table, which has rows of this pipeline by its receipts, {what}"
        batch.check_marker(found, truth, table=self.path)
        if held is not None and found is not None:
            self._check_not_restored(batch, held, found)

    def _check_not_restored(self, batch: Batch, held: HeldTable, found: SinkMarker) -> None:
        """A restored table keeps its transaction numbers, but not the rows that they stand for."""
        restored = held.restored_since(f"{batch.pipeline_uuid}/{batch.sink}")
        if restored is not None:
            raise batch.lost(_restored(found.version, restored), table=self.path)

    def _commit(self, table: Any, batch: Batch, app: str, *, skipped: bool) -> bool:
        """Whether the entry was written; where the table lacks columns, only those are."""
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import Transaction

        marks = [Transaction(name, number) for name, number in _marks(batch, app, skipped=skipped).items()]
        actions: list[Any] = []
        if not skipped:
            if not self._ready(table, batch):
                return False
            self.check_staged(batch)
            actions = [] if self.merges else self._changes(table, batch)
        own = {OWN_ENTRY: app}
        properties = CommitProperties(app_transactions=marks, max_commit_retries=0, custom_metadata=own)
        if self.merges and batch.committable.rows and not skipped:
            return delta_merge.merge(table, self.place, batch, self.keys, properties)
        schema = Schema.from_json(table.schema().to_json())
        table.create_write_transaction(actions, "append", schema, list(self.partition_by), commit_properties=properties)
        return True

    def _ready(self, table: Any, batch: Batch) -> bool:
        """Whether the table, which others may have changed since the batch was accepted, has its columns: else it gets them, in an entry of their own."""
        from deltalake import CommitProperties
        from deltalake.schema import Field

        if problems := self._problems(table):
            raise PublishError(
                "the Delta table was changed and now requires more of its writers than this sink does; nothing of the batch is in it",
                table=self.path,
                version=batch.version,
                requires=problems,
            )
        try:
            self._check_partitions(table)
            Requirements.of(table).check_values(self.path, batch.committable)
            new = self._lacking(table, batch)
        except (ConflictError, DataError) as error:
            raise PublishError(
                "the Delta table was changed after the batch was staged and does not take its rows; nothing of the batch is in it",
                version=batch.version,
                problem=error.truth,
                **{"table": self.path, **error.fields},
            ) from error
        if new:
            table.alter.add_columns(
                [Field.from_json(json.dumps(field)) for field in new],
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        return not new

    def _changes(self, table: Any, batch: Batch) -> list[Any]:
        """The files that come to the table, and those that a redo takes out of it."""
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = SYSTEM_CLOCK.now_ms()
        come = [
            AddAction(file.key, file.bytes, dict(file.partition), now_ms, True, file.stats)
            for file in batch.committable.files
        ]
        gone = [
            RemoveAction(file.key, True, now_ms, size=file.bytes, partition_values=dict(file.partition))
            for file in self._standing(table, batch)
        ]
        return [*come, *gone]

    def _standing(self, table: Any, batch: Batch) -> Sequence[DataFile]:
        """The files that a redo takes out of the table: they must be there as they were put there, or rows would stay."""
        files = () if batch.replaced is None else batch.replaced.files
        if files and is_append_only(table):
            what = "the Delta table takes only appends (delta.appendOnly=true), and the reprocessed rows must replace others; nothing of the batch is in it"
            raise PublishError(what, table=self.path, version=batch.version)
        if missing := _missing(table, files):
            raise PublishError(
                "files that a redo replaces were rewritten or deleted in the Delta table by others; the redo would double their rows",
                table=self.path,
                version=batch.version,
                files=missing,
            )
        return files

    def _as_in(self, table: Any, fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """
        The columns with the types that the table has.

        :raises DataError: a type of the table does not hold the values of a column, or spells its name otherwise
        """
        there = {field["name"].lower(): field for field in _columns(table)}
        fitted = []
        for field in fields:
            known = there.get(field["name"].lower())
            if known is not None and known["name"] != field["name"]:
                what = "a column is of another type or spelling in the Delta table; nothing became visible"
                raise DataError(what, table=self.path, column=field["name"], found=known["name"])
            kind = field["type"] if known is None else self._held(known, field["type"])
            fitted.append({**field, "type": kind})
        return fitted

    def _held(self, known: dict[str, Any], given: Any) -> Any:
        try:
            return widened(_nullable(known["type"]), given, known["name"], grows=_never, lacks=not self.merges)
        except DataError as error:
            raise DataError(
                "a column is of another type or spelling in the Delta table; nothing became visible",
                table=self.path,
                column=error.fields.get("column", known["name"]),
                given=error.fields.get("found", given),
                found=error.fields.get("recorded", known["type"]),
            ) from error

    def _lacking(self, table: Any, batch: Batch) -> list[dict[str, Any]]:
        """
        The columns, and fields of structs, that the table lacks.

        :raises DataError: the staged files have another type than the table
        """
        fields = _fields(batch.schema)
        there = {field["name"]: field for field in _columns(table)}
        for field, fitted in zip(fields, self._as_in(table, fields), strict=True):
            # Both ways: the files are written, and no reader casts them.
            self._held(field, fitted["type"])
        return [new for field in fields if (new := _added(there.get(field["name"]), field)) is not None]

    def _problems(self, table: Any) -> list[str]:
        """What keeps the table from being written."""
        return [*unwritable(table), *(delta_merge.unmergeable(table) if self.merges else [])]

    def _check_partitions(self, table: Any) -> None:
        found = list(table.metadata().partition_columns)
        if found != list(self.partition_by):
            raise ConflictError(
                "the Delta table has other partition columns than the sink",
                table=self.path,
                partition_by=list(self.partition_by),
                found=found,
            )


def _restored(marker: int, entry: int) -> str:
    return f"the Delta table was restored, by entry {entry} of its log, to a state from before version {marker} of this pipeline was published"


def _marks(batch: Batch, app: str, *, skipped: bool) -> dict[str, int]:
    """
    The transaction numbers that an entry sets: application → number.

    They stay in checkpoints, unlike the entry's commit information. A number has 63 bits: the outcome is known by the first 15 digits of its sha256.
    """
    marks = {app: batch.version, f"{app}#outcome": int(batch.outcome[:_DIGITS], 16)}
    return {**marks, f"{app}#skipped": batch.version} if skipped else marks


def _marker(held: HeldTable, app: str) -> SinkMarker | None:
    """What the table's transaction numbers say."""
    version, outcome, skipped = (held.transaction(name) for name in (app, f"{app}#outcome", f"{app}#skipped"))
    if version is None:
        return None
    state = "skipped" if skipped == version else "applied"
    return SinkMarker(version, state, "" if outcome is None else f"{outcome:0{_DIGITS}x}")


def _receipt(batch: Batch, word: str, at: int) -> Receipt:
    if word == "skipped":
        return Receipt(result="skipped", rows=0, detail={"table_version": at})
    return Receipt(result="applied", rows=batch.committable.rows, detail={"table_version": at})


def _fields(schema: str) -> list[dict[str, Any]]:
    """
    The columns as Delta has them: Spark's JSON is Delta's, but that every column of ours may be null.

    :raises DataError: a type that Delta does not have
    """
    fields: list[dict[str, Any]] = [_nullable(field) for field in json.loads(schema)["fields"]]
    odd = [field["name"] for field in fields if not _is_known(field["type"])]
    if odd:
        raise DataError("columns are of types that Delta does not have; nothing became visible", columns=odd)
    twice = more_than_once(field["name"] for field in fields)
    if twice:
        raise DataError("columns differ only in upper and lower case; nothing became visible", columns=twice)
    return fields


def _is_known(kind: Any) -> bool:
    """Whether a type is one of the Delta protocol (*Schema Serialization Format*)."""
    if isinstance(kind, dict):
        parts = [field["type"] for field in kind.get("fields", [])]
        parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
        return kind["type"] in ("struct", "array", "map") and all(_is_known(part) for part in parts)
    return kind in _PRIMITIVES or kind == VOID or kind.startswith("decimal(")


def _nullable(kind: Any) -> Any:
    """A field or type with every part nullable: a table with fields that may not be null needs a feature that readers lack."""
    if isinstance(kind, list):
        return [_nullable(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    marks = {"nullable", "containsNull", "valueContainsNull"}
    return {
        name: True if name in marks else ({} if name == "metadata" else _nullable(item)) for name, item in kind.items()
    }


def _columns(table: Any) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def _never(column: str, recorded: str, wider: str) -> bool:
    """Delta changes the type of a column only where the feature typeWidening is on, which this sink does not write."""
    return False


def _with_types(schema: str, fields: Sequence[dict[str, Any]]) -> str:
    """A schema with the types of these columns; the very same text where they are its own."""
    given = json.loads(schema)
    types = [field["type"] for field in fields]
    if all(bare(field["type"]) == bare(kind) for field, kind in zip(given["fields"], types, strict=True)):
        return schema
    typed = [{**field, "type": kind} for field, kind in zip(given["fields"], types, strict=True)]
    return json.dumps({**given, "fields": typed}, separators=(",", ":"))


def _added(there: dict[str, Any] | None, field: dict[str, Any]) -> dict[str, Any] | None:
    """A column reduced to what the table lacks of it, a field of a struct for example; ``None`` where it lacks nothing."""
    if there is None:
        return field
    kind = _added_type(there["type"], field["type"])
    return None if kind is None else {**there, "type": kind}


def _added_type(there: Any, kind: Any) -> Any:
    if not isinstance(kind, dict):
        return None
    if kind["type"] == "struct":
        known = {field["name"]: field for field in there["fields"]}
        added = [part for field in kind["fields"] if (part := _added(known.get(field["name"]), field)) is not None]
        return {**there, "fields": added} if added else None
    parts = {name: _added_type(there[name], kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind}  # fmt: skip
    added_parts = {name: part for name, part in parts.items() if part is not None}
    return {**there, **added_parts} if added_parts else None


def _missing(table: Any, files: Sequence[DataFile]) -> list[str]:
    """Files that a table no longer names."""
    there = set(table.file_uris()) if files else set()
    return [file.key for file in files if not any(uri.endswith(f"/{file.key}") for uri in there)]
