"""Erases rows from everything that a pipeline stores (PROTOCOL.md, 4.13)."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_streamsem import registry, telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import PublishingSink, TableErasure
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError, OpenVersionError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.compact import commits_of_files, erased_rows
from airflow_provider_streamsem.pipeline.maintenance.idle import idle_head
from airflow_provider_streamsem.pipeline.maintenance.staged_version import Attempt, commit_staged
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, bind_existing, existing_record, read_head
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import (
    DataFile,
    Outcome,
    Quarantine,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.erase import Erase, ErasedFiles, ErasedRecords
from airflow_provider_streamsem.protocol.view import ClosedHead, LogView, OpenHead
from airflow_provider_streamsem.verbs import DRY_RUN, MAX_BYTES, TARGET_FILE_BYTES

logger = telemetry.log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedFromSink:
    """
    The rows of one sink that an erasure has erased, or in a dry run would erase.

    :param sink: name of the sink
    :param rows: number of the rows
    :param files: number of files that contained them; 0 for a database
    :param table_version: the version of the Delta table, or the id of the Iceberg snapshot, without the rows; ``None`` in a dry run and for any other sink
    """

    sink: str
    rows: int
    files: int
    table_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """
    The result of an erasure, or of its dry run.

    :param versions: the versions of the log that have erased rows, quarantined records or tombstones
    :param sinks: the sinks with rows that were erased
    :param quarantined: number of quarantined records that were erased
    :param tombstones: number of tombstones that were erased
    :param not_selected: the sinks whose rows do not have the columns of the predicate
    :param left: where the rows may still be, and what deletes them there, one sentence each
    """

    versions: tuple[int, ...] = ()
    sinks: tuple[ErasedFromSink, ...] = ()
    quarantined: int = 0
    tombstones: int = 0
    not_selected: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@with_log_location
def erase(
    pipeline: Pipeline,
    *,
    where: str,
    dry_run: bool = False,
    target_file_bytes: int = TARGET_FILE_BYTES.default,
    max_bytes: int = MAX_BYTES.default,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> Erased:
    """
    Erase the rows of a person, for example, from everything that the pipeline stores: files, tables, staged rows, quarantined records and tombstones.

    The predicate selects rows by values of columns: ``user_id = 42``, ``name = 'O''Brien'``, ``id IN (1, 2)``, joined by ``AND``. No type is converted.

    * For files sinks, each version of the log of kind ``erase`` writes the other rows of some commits to new files. All versions before it expire: no
      reader, rollback or reprocessing run finds the rows again. Then vacuum deletes the old files.
    * Quarantined records have no columns. A record is erased if its text contains a value of each condition as a whole word.
    * From Delta, Iceberg and SQL tables, the rows are deleted in one commit for each table. Earlier versions of a table keep them; see ``left``.
    * Tombstones of sinks with ``changes`` are erased if their key has the columns. A late change of such a key then counts as new.

    The erasure can be repeated at any time. If it fails, or its process dies, a repetition erases what is left. Rows that the source delivers afterwards
    are new rows, so stop them first. The predicate is stored nowhere.

    :param where: the predicate
    :param dry_run: write nothing, and return what would be erased
    :param target_file_bytes: the size in bytes of new files of files sinks, 65,536 or more
    :param max_bytes: the maximum size in bytes of the files that one version rewrites, unless a single commit has more
    :param engine: default: Spark in this process. The engine starts a session only if the pipeline has a files sink
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the predicate is not valid or fits no sink, there is no log, or a table does not permit the deletion. Nothing was erased
    :raises ConflictError: the log has other immutable fields than the pipeline
    :raises OpenVersionError: a version is open or not published yet, or another writer created the next version
    :raises HeldVersionError: the open version is held
    :raises DataError: files cannot be read, or the rows of new files differ from those to keep. They are not visible
    :raises UnavailableError: other writers changed a table, or a store or catalog did not report the result of a request
    """
    predicate, dry_run = Predicate.parse(where), DRY_RUN.checked(dry_run)
    target_file_bytes, max_bytes = TARGET_FILE_BYTES.checked(target_file_bytes), MAX_BYTES.checked(max_bytes)
    log = log or commit_log_at(pipeline.log)
    existing_record(pipeline, log)
    engine = engine or registry.load("engines", "spark")()
    erasure = _Erasure(pipeline, log, predicate, engine, target_file_bytes, max_bytes)
    if dry_run:
        outcome = read_head(pipeline, log).outcome
        return erasure.preview(outcome)
    bound = bind_existing(pipeline, log)
    return erasure.run(bound)


@dataclass(frozen=True, slots=True)
class _Selected:
    """What the predicate selects in the log of a pipeline. ``files`` are those with selected rows, by sink: key → number of these rows."""

    view: LogView
    files: Mapping[str, Mapping[str, int]]
    quarantine: Mapping[int, Sequence[bytes]]
    """Version → its quarantined records that are left."""
    records: int
    tombstones: Mapping[str, int]

    @property
    def is_nothing(self) -> bool:
        return not (any(self.files.values()) or self.quarantine or self.tombstones)


class _Erasure:
    def __init__(
        self,
        pipeline: Pipeline,
        log: CommitLog,
        predicate: Predicate,
        engine: Engine,
        target_file_bytes: int,
        max_bytes: int,
    ) -> None:
        self._pipeline, self._log, self._predicate, self._engine = pipeline, log, predicate, engine
        self._target_file_bytes, self._max_bytes = target_file_bytes, max_bytes
        self._counted: dict[tuple[str, str], int] = {}
        self._not_selected: set[str] = set()

    def preview(self, outcome: Outcome | None) -> Erased:
        tables = self._tables(dry_run=True)
        selected = self._select(outcome)
        self._check_columns()
        return self._result([selected], tables, versions=(), left=self._left(outcome))

    def run(self, bound: BoundPipeline) -> Erased:
        self._tables(dry_run=True)  # refuses a table before anything is erased
        done: list[_Selected] = []
        versions: list[int] = []
        while True:
            head = idle_head(bound, "erasure", closes_staged=True)
            selected = self._select_at(head)
            self._check_columns()
            if selected.is_nothing:
                break
            committed = self._first_group(selected)
            versions.append(self._commit(bound, head, committed).version)
            done.append(committed)
        tables = self._tables(dry_run=False)
        vacuum(self._pipeline, log=self._log)
        left = (*self._left(self._log.newest_head().outcome), *self._still_in_log())
        return self._result(done, tables, versions=tuple(versions), left=left)

    def _select_at(self, head: ClosedHead) -> _Selected:
        try:
            return self._select(head.outcome)
        except StreamsemError as error:
            newest = self._log.newest_head()
            if newest.closed == head.closed:
                raise
            summary = "another writer committed a version, and the files that the erasure reads may have been deleted; erase again"
            raise OpenVersionError(summary, version=newest.closed) from error

    def _commit(self, bound: BoundPipeline, head: ClosedHead, selected: _Selected) -> Outcome:
        """Commit one version: a group of files, and with it all quarantined records and tombstones."""
        sink, counts = next(iter(selected.files.items()), ("", {}))
        versions = {file.version for file in selected.view.sink(sink) if file.file.key in counts}
        files = [file for file in selected.view.sink(sink) if file.version in versions]
        now = sum(counts.values())
        erased: ErasedFiles | None = None
        if files:
            before = erased_rows(selected.view, sink, files)
            erased = ErasedFiles(
                sink=sink,
                commits=commits_of_files(selected.view, sink, files),
                rows=sum(file.file.rows for file in files) + before,
                erased=before + now,
            )
        quarantine = tuple(
            ErasedRecords(version=version, left=len(lines)) for version, lines in sorted(selected.quarantine.items())
        )
        work = Erase(files=erased, quarantine=quarantine, tombstones=dict(selected.tombstones))
        state = None if head.outcome is None else head.outcome.state

        def stage(opened: OpenHead) -> StagedManifest:
            attempt = Attempt(bound, self._engine, opened)
            sinks = {}
            if erased is not None:
                sinks[sink] = attempt.rewritten(
                    sink,
                    erased.commits,
                    [file.file for file in files],
                    target_file_bytes=self._target_file_bytes,
                    erased=self._predicate,
                    erased_rows=now,
                )
                self._counted |= {(sink, file.key): 0 for file in sinks[sink].files}
            tombstones = None
            if selected.tombstones:
                from airflow_provider_streamsem.tombstones import without_selected

                tombstones = without_selected(
                    state,
                    selected.tombstones,
                    self._predicate,
                    log=self._log.store.url,
                    version=attempt.version,
                    attempt_id=attempt.id,
                )
            return attempt.staged(sinks, quarantine=self._stored(attempt, selected), state=tombstones)

        return commit_staged(bound, head, work, run_key="erase", stage=stage)

    def _stored(self, attempt: Attempt, selected: _Selected) -> Quarantine:
        """Store the quarantined records that are left: one object for each version with any, in ascending order of versions."""
        written: list[str] = []
        rows = 0
        for _, lines in sorted(selected.quarantine.items()):
            if lines:
                key = keys.quarantine(attempt.version, attempt.id, len(written))
                self._log.create(key, b"".join(line + b"\n" for line in lines))
                written.append(key)
                rows += len(lines)
        return Quarantine(rows=rows, keys=tuple(written))

    def _first_group(self, selected: _Selected) -> _Selected:
        """Leave only the oldest versions with selected rows in one sink, up to the maximum size. All files of a version are rewritten together."""
        sink, counts = next(((name, found) for name, found in sorted(selected.files.items()) if found), ("", {}))
        by_version: dict[int, list[DataFile]] = defaultdict(list)
        for file in selected.view.sink(sink):
            by_version[file.version].append(file.file)
        group: list[DataFile] = []
        for _, files in sorted(by_version.items()):
            if not any(file.key in counts for file in files):
                continue
            if group and sum(file.bytes for file in [*group, *files]) > self._max_bytes:
                break
            group += files
        chosen = {file.key: counts[file.key] for file in group if file.key in counts}
        return replace(selected, files={sink: chosen} if chosen else {})

    def _select(self, outcome: Outcome | None) -> _Selected:
        if outcome is None:
            return _Selected(LogView(), {}, {}, 0, {})
        view = self._log.view(version=outcome.version)
        files = {
            name: self._selected_files(name, view, outcome)
            for name, sink in self._pipeline.sinks.items()
            if not sink.is_outside_log
        }
        quarantine, records = self._selected_records(outcome)
        tombstones: Mapping[str, int] = {}
        if self._pipeline.keeps_layers:
            from airflow_provider_streamsem.tombstones import count_selected

            tombstones = count_selected(outcome.state, self._predicate, log=self._log.store.url)
        return _Selected(view, files, quarantine, records, tombstones)

    def _selected_files(self, name: str, view: LogView, outcome: Outcome) -> dict[str, int]:
        """Each file is read once, because files never change."""
        files = [file.file for file in view.sink(name) if file.file.rows]
        unknown = [file for file in files if (name, file.key) not in self._counted]
        schema = outcome.schemas.get(name)
        counts: Mapping[str, int] | None = {}
        if unknown and schema is not None:
            counts = self._engine.count_selected(self._pipeline.sinks[name], unknown, schema, self._predicate)
        if counts is None:
            self._not_selected.add(name)
        else:
            self._counted |= {(name, file.key): counts.get(file.key, 0) for file in unknown}
        return {file.key: count for file in files if (count := self._counted.get((name, file.key), 0))}

    def _selected_records(self, outcome: Outcome) -> tuple[dict[int, list[bytes]], int]:
        """Return version → the records that are left, for each version with selected quarantined records, and the number of the selected records."""
        replaced = self._log.erased_quarantine(outcome)
        listed = {key.split("/")[1] for key in self._log.list_keys(keys.QUARANTINE)}
        versions = {version for text in listed if (version := keys.position(text)) is not None} | {*replaced}
        left: dict[int, list[bytes]] = {}
        selected = 0
        for version in sorted(version for version in versions if version <= outcome.version):
            of_version = self._log.outcome(version)
            quarantine = replaced.get(version) or (Quarantine() if of_version is None else of_version.quarantine)
            lines = [line for key in quarantine.keys for line in (self._log.read(key) or b"").splitlines()]
            kept = [line for line in lines if not self._predicate.is_in_text(_text(line))]
            if len(kept) < len(lines):
                left[version] = kept
                selected += len(lines) - len(kept)
        return left, selected

    def _publishing_sinks(self) -> Iterator[tuple[str, PublishingSink]]:
        for name, sink in sorted(self._pipeline.sinks.items()):
            if isinstance(sink, PublishingSink):
                yield name, sink

    def _tables(self, *, dry_run: bool) -> dict[str, TableErasure]:
        found = {}
        for name, sink in self._publishing_sinks():
            erased = sink.erase_rows(self._predicate, dry_run=dry_run) if sink.erases_rows else None
            if erased is None:
                self._not_selected.add(name)
            else:
                found[name] = erased
                if not dry_run:
                    logger.info("sink %s: %d rows erased from the table", name, erased.rows)
        return found

    def _check_columns(self) -> None:
        if self._not_selected == {*self._pipeline.sinks}:
            summary = "no sink of the pipeline has the columns of the predicate; nothing was erased"
            raise InvalidError(summary, columns=list(self._predicate.columns), sinks=sorted(self._not_selected))

    def _result(
        self,
        selected: Sequence[_Selected],
        tables: Mapping[str, TableErasure],
        *,
        versions: tuple[int, ...],
        left: tuple[str, ...],
    ) -> Erased:
        files: dict[str, dict[str, int]] = defaultdict(dict)
        for each in selected:
            for name, counts in each.files.items():
                files[name] |= counts
        sinks = [
            ErasedFromSink(sink=name, rows=sum(counts.values()), files=len(counts))
            for name, counts in files.items()
            if counts
        ]
        sinks += [
            ErasedFromSink(sink=name, rows=found.rows, files=found.files, table_version=found.table_version)
            for name, found in tables.items()
            if found.rows
        ]
        return Erased(
            versions=versions,
            sinks=tuple(sorted(sinks, key=lambda each: each.sink)),
            quarantined=sum(each.records for each in selected),
            tombstones=sum(sum(each.tombstones.values()) for each in selected),
            not_selected=tuple(sorted(self._not_selected)),
            left=left,
        )

    def _left(self, outcome: Outcome | None) -> tuple[str, ...]:
        """Say where the rows may still be."""
        pipeline = self._pipeline
        left = ["the source: delete the records there, or a reprocessing run reads them again"]
        for name, sink in sorted(pipeline.sinks.items()):
            left += [f"sink {name}: {sentence}" for sentence in sink.copies_of_erased()]
            named = sorted({*self._predicate.columns} & {*sink.partitions})
            if named and not sink.is_outside_log:
                left.append(
                    f"sink {name}: the log names the partitions of deleted files, with the values of {', '.join(named)}"
                )
        if pipeline.state is not None:
            left.append(
                "the state of stateful operators: remove the values with `streamsem alter` and a changed `state`, or wait until their state expires"
            )
        removed = sorted({name for _, alter in self._log.commits_of(Alter, outcome) for name in alter.removed})
        if removed:
            left.append(
                f"the former datasets and tables of sinks that an alter removed ({', '.join(removed)}): delete them"
            )
        left.append(
            "forks of the pipeline, and pipelines that read it: run `streamsem erase` for each of them; copies and backups that others have made"
        )
        return tuple(left)

    def _still_in_log(self) -> Iterator[str]:
        """Search the entries of the log for the values, as bytes. Short values are not sought, because they occur by chance."""
        found: Counter[str] = Counter()
        for key in self._log.list_keys(""):
            if not key.endswith((".json", ".jsonl")):
                continue
            text = (self._log.read(key) or b"").decode("utf-8", "replace")
            if self._predicate.names_value_in(text):
                found[key.split("/")[0]] += 1
        if found:
            objects = ", ".join(f"{count} of {directory}" for directory, count in sorted(found.items()))
            yield f"objects of the log that contain a value, for example as part of the name of a source file: {objects}"


def _text(line: bytes) -> str:
    """Return the texts of a quarantined record, without its JSON escapes."""
    record = json.loads(line)
    raw = record.get("raw") or ""
    if record.get("encoding") == "base64":
        raw = base64.b64decode(raw).decode("utf-8", "replace")
    return "\n".join([raw, *(value for name, value in record.items() if name != "raw" and isinstance(value, str))])
