"""Erases rows from everything that a pipeline stores (PROTOCOL.md, 4.13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_provider_streamsem import registry, telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import PublishingSink, TableErasure
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError, OpenVersionError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.compact import commits_of_files, erased_rows
from airflow_provider_streamsem.pipeline.maintenance.idle import idle_head, refuse_pending_removal
from airflow_provider_streamsem.pipeline.maintenance.remaining_copies import found_in_log, remaining_copies
from airflow_provider_streamsem.pipeline.maintenance.retention import expire
from airflow_provider_streamsem.pipeline.maintenance.selected_rows import Counts, SelectedRows, Selector
from airflow_provider_streamsem.pipeline.maintenance.staged_version import Attempt, commit_staged
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, bind_existing, existing_record, read_head
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import (
    DataFile,
    Json,
    Outcome,
    PipelineRecord,
    Quarantine,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.erase import Erase, ErasedFiles, ErasedRecords
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.verbs import DRY_RUN, MAX_BYTES, ONLY_QUARANTINED, TARGET_FILE_BYTES

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

    A repetition counts only what it has erased itself.

    :param versions: the versions of the log that have erased rows, quarantined records or tombstones
    :param sinks: the sinks with rows that were erased
    :param quarantined: number of quarantined records that were erased
    :param quarantined_in: the versions that had quarantined these records
    :param tombstones: number of tombstones that were erased
    :param without_columns: the sinks whose rows or table lack a column of the predicate, and those without a table yet
    :param refused: the sinks from which nothing was erased, each with its error. Correct the cause, and erase again
    :param remaining: where the rows may still be, and what deletes them there, one sentence each
    """

    versions: tuple[int, ...] = ()
    sinks: tuple[ErasedFromSink, ...] = ()
    quarantined: int = 0
    quarantined_in: tuple[int, ...] = ()
    tombstones: int = 0
    without_columns: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()

    @property
    def refused_error(self) -> InvalidError | None:
        """The error for the sinks from which nothing was erased; ``None`` if there is none."""
        if not self.refused:
            return None
        summary = "sinks refused the erasure. What the other sinks and the log had of the rows was erased"
        return InvalidError(summary, refused=list(self.refused)).advising(
            "do what each error says, then erase again: the erasure finds what remains."
        )


@with_log_location
def erase(
    pipeline: Pipeline,
    *,
    where: str,
    only_quarantined: bool = False,
    dry_run: bool = False,
    target_file_bytes: int = TARGET_FILE_BYTES.default,
    max_bytes: int = MAX_BYTES.default,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> Erased:
    """
    Erase the rows that a predicate selects, for example those of a person, from everything that the pipeline stores: visible and old files, staged files,
    quarantined records, tombstones, and the tables of sinks.

    The predicate selects rows by values of columns: ``user_id = 42``, ``name = 'O''Brien'``, ``id IN (1, 2)``, joined by ``AND``. No type is converted.

    * Files sinks: a version of the log of kind ``erase`` writes the other rows of the affected commits to new files, or several versions do. All versions
      before it expire: no reader, rollback or reprocessing run finds the rows again. Then vacuum deletes the old files. If only old files have selected rows,
      an expiry is committed in place of an erasure.
    * Quarantined records have no columns. A record is erased if its text contains a value of each condition as a whole word.
    * Delta, Iceberg and SQL tables: the rows are deleted in one commit for each table. Earlier versions of the table keep them; see ``remaining``.
    * Tombstones of sinks with ``changes`` are erased if their key has the columns. A late change of such a key then counts as new.

    The erasure can be repeated at any time. If it fails, or its process dies, a repetition erases what remains. Rows that the source delivers afterwards are
    new rows, so stop them first. This package stores the predicate nowhere.

    :param where: the predicate
    :param only_quarantined: erase only quarantined records, which need not have the columns: no rows and no tombstones
    :param dry_run: write nothing, and return what would be erased. Whether a version is open is not checked
    :param target_file_bytes: the size in bytes of new files of files sinks, 65,536 or more
    :param max_bytes: the maximum size in bytes of the files of a files sink that one version rewrites, unless a single commit has more
    :param engine: default: Spark in this process. The engine starts a session only if the pipeline has a files sink
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the predicate is not valid or fits no sink, or there is no log. Nothing was erased. A table that does not permit the erasure raises no
        error if others do: see ``refused`` of the result
    :raises ConflictError: the log has other immutable fields than the pipeline
    :raises OpenVersionError: a version is open or not published yet, or another writer created the next version. What was erased before stays erased
    :raises HeldVersionError: the open version is held
    :raises DataError: files cannot be read, or the rows of new files differ from those to keep. These files are not visible
    :raises UnavailableError: other writers changed a table, or a store or catalog did not report the result of a request
    :raises StreamsemError: as :func:`vacuum <airflow_provider_streamsem.pipeline.maintenance.vacuum.vacuum>` does, after the rows were erased
    """
    predicate, dry_run = Predicate.parse(where), DRY_RUN.checked(dry_run)
    sizes = _Sizes(TARGET_FILE_BYTES.checked(target_file_bytes), MAX_BYTES.checked(max_bytes))
    log = log or commit_log_at(pipeline.log)
    record = existing_record(pipeline, log)
    engine = engine or registry.load("engines", "spark")()
    only_quarantined = ONLY_QUARANTINED.checked(only_quarantined)
    erasure = _Erasure(pipeline, log, record, predicate, sizes, engine, only_quarantined=only_quarantined)
    if record.fork is not None and log.find_head().outcome is None:
        raise InvalidError(
            "the fork has no version yet, and its state is that of the original; nothing was erased"
        ).advising("run the fork once, then erase again. Or drop it with `streamsem drop`.")
    if dry_run:
        return erasure.preview(read_head(pipeline, log).outcome)
    return erasure.run(bind_existing(pipeline, log))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """``target`` are the bytes of a new file, and ``most`` those of the files that one version rewrites."""

    target: int
    most: int


class _Erasure:
    """One erasure. The tables that refuse it do not stop it: their errors are part of its result."""

    def __init__(
        self,
        pipeline: Pipeline,
        log: CommitLog,
        record: PipelineRecord,
        predicate: Predicate,
        sizes: _Sizes,
        engine: Engine,
        *,
        only_quarantined: bool,
    ) -> None:
        self._pipeline, self._log, self._record, self._predicate = pipeline, log, record, predicate
        self._sizes, self._engine = sizes, engine
        self._selector = Selector(pipeline, log, predicate, engine, only_quarantined=only_quarantined)
        self._only_quarantined = only_quarantined
        self._without_columns: set[str] = set()
        self._refused: dict[str, InvalidError] = {}

    def preview(self, outcome: Outcome | None) -> Erased:
        tables = self._tables(dry_run=True)
        found = [] if outcome is None else [self._selector.select(outcome)]
        if outcome is not None and found[0].is_nothing and not self._only_quarantined:
            found.append(SelectedRows(files=self._selector.select_old_files(outcome, found[0].view)))
        self._check_sinks(tables)
        return self._result(found, tables, versions=(), remaining=self._remaining(outcome))

    def run(self, bound: BoundPipeline) -> Erased:
        tables = self._tables(dry_run=True)
        done: list[SelectedRows] = []
        versions: list[int] = []
        while True:
            head = idle_head(bound, "erasure", closes_staged=True)
            if head.outcome is None:
                break
            selected = self._select(head)
            self._check_sinks(tables)
            if selected.is_nothing:
                break
            committed = self._first_group(selected)
            versions.append(self._commit(bound, head, committed).version)
            done.append(committed)
        is_searched = head.outcome is not None and not versions and not self._only_quarantined
        if is_searched and (old := self._select_old_files(head)):
            versions.append(self._expire(bound, head))
            done.append(SelectedRows(files=old))
        tables = self._tables(dry_run=False)
        vacuum(self._pipeline, all_versions=True, log=self._log)
        remaining = (*self._remaining(self._log.newest_head().outcome), *found_in_log(self._log, self._predicate))
        return self._result(done, tables, versions=tuple(versions), remaining=remaining)

    def _select(self, head: ClosedHead) -> SelectedRows:
        assert head.outcome is not None  # see run
        with self._naming_other_writers(head):
            return self._selector.select(head.outcome)

    def _select_old_files(self, head: ClosedHead) -> Mapping[str, Counts]:
        assert head.outcome is not None  # see run
        with self._naming_other_writers(head):
            return self._selector.select_old_files(head.outcome, self._log.view(version=head.closed))

    @contextmanager
    def _naming_other_writers(self, head: ClosedHead) -> Iterator[None]:
        """Vacuum may delete a file after another writer has committed. The error that the file is missing would be misleading."""
        try:
            yield
        except StreamsemError as error:
            newest = self._log.newest_head()
            if newest.closed == head.closed:
                raise
            summary = "another writer committed a version while the erasure read files; rows that earlier versions of the erasure have erased stay erased"
            raise OpenVersionError(summary, version=newest.closed) from error

    def _expire(self, bound: BoundPipeline, head: ClosedHead) -> int:
        """Let the versions expire whose files have selected rows that no reader of the newest version reads. Return the version of the expiry."""
        return head.closed if head.oldest_readable >= head.closed else expire(bound, head.closed).version

    def _commit(self, bound: BoundPipeline, head: ClosedHead, selected: SelectedRows) -> Outcome:
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
        quarantine = tuple(ErasedRecords(version=at, kept=len(lines)) for at, lines in sorted(selected.kept.items()))
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
                    target_file_bytes=self._sizes.target,
                    erased=self._predicate,
                    erased_rows=now,
                )
                self._selector.expect_nothing_in(sink, sinks[sink].files)
            tombstones = self._other_tombstones(attempt, state, selected) if selected.tombstones else None
            return attempt.staged(sinks, quarantine=self._stored(attempt, selected), state=tombstones)

        return commit_staged(bound, head, work, run_key="erase", stage=stage)

    def _other_tombstones(self, attempt: Attempt, state: Json, selected: SelectedRows) -> Json:
        from airflow_provider_streamsem.tombstones import without_selected

        return without_selected(
            state,
            selected.tombstones,
            self._predicate,
            log=self._log.store.url,
            version=attempt.version,
            attempt_id=attempt.id,
        )

    def _stored(self, attempt: Attempt, selected: SelectedRows) -> Quarantine:
        """Store the quarantined records to keep: one object for each version with any, in ascending order of versions."""
        written: list[str] = []
        rows = 0
        for _, lines in sorted(selected.kept.items()):
            if lines:
                key = keys.quarantine(attempt.version, attempt.id, len(written))
                self._log.create(key, b"".join(line + b"\n" for line in lines))
                written.append(key)
                rows += len(lines)
        return Quarantine(rows=rows, keys=tuple(written))

    def _first_group(self, selected: SelectedRows) -> SelectedRows:
        """Keep only the oldest versions with selected rows in one sink, up to the maximum size. All files of a version are rewritten together."""
        sink, counts = next(((name, found) for name, found in sorted(selected.files.items()) if found), ("", {}))
        by_version: dict[int, list[DataFile]] = defaultdict(list)
        for file in selected.view.sink(sink):
            by_version[file.version].append(file.file)
        group: list[DataFile] = []
        for _, files in sorted(by_version.items()):
            if not any(file.key in counts for file in files):
                continue
            if group and sum(file.bytes for file in [*group, *files]) > self._sizes.most:
                break
            group += files
        chosen = {file.key: counts[file.key] for file in group if file.key in counts}
        return replace(selected, files={sink: chosen} if chosen else {})

    def _tables(self, *, dry_run: bool) -> dict[str, TableErasure]:
        found: dict[str, TableErasure] = {}
        self._refused, self._without_columns = {}, set()
        for name, sink in sorted(self._pipeline.sinks.items()):
            if not isinstance(sink, PublishingSink) or not sink.erases_rows or self._only_quarantined:
                continue
            try:
                erased = sink.erase_rows(self._predicate, dry_run=dry_run, before_commit=self._refuse_removal)
            except InvalidError as error:
                self._refused[name] = error
                continue
            if erased is None:
                self._without_columns.add(name)
            else:
                found[name] = erased
                if not dry_run:
                    logger.info("sink %s: %d rows were erased from the table", name, erased.rows)
        return found

    def _refuse_removal(self) -> None:
        refuse_pending_removal(self._log, "the rows of the table were not erased")

    def _check_sinks(self, tables: Mapping[str, TableErasure]) -> None:
        """Refuse a predicate that fits no sink: with a misspelt column it would still select quarantined records, by their text."""
        refused = {**self._selector.unfit, **self._refused}
        searched = {name for name in self._selector.searched if name not in refused} | {*tables}
        if searched or self._only_quarantined:
            return
        if refused:
            error = refused[min(refused)]
            raise error
        summary = (
            "no sink of the pipeline has the columns of the predicate in rows that can be erased; nothing was erased"
        )
        raise InvalidError(summary, columns=list(self._predicate.columns), sinks=sorted(self._pipeline.sinks)).advising(
            "correct the columns, or delete the rows in these sinks by their own means. To erase quarantined records, set --only-quarantined "
            "(`only_quarantined=True`)."
        )

    def _result(
        self,
        selected: Sequence[SelectedRows],
        tables: Mapping[str, TableErasure],
        *,
        versions: tuple[int, ...],
        remaining: Iterable[str],
    ) -> Erased:
        files: dict[str, dict[str, int]] = defaultdict(dict)
        records: dict[int, int] = {}
        for each in selected:
            records |= each.records
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
        of_tables = (f"sink {name}: {sentence}" for name, found in tables.items() for sentence in found.remaining)
        return Erased(
            versions=versions,
            sinks=tuple(sorted(sinks, key=lambda each: each.sink)),
            quarantined=sum(records.values()),
            quarantined_in=tuple(sorted(records)),
            tombstones=sum(sum(each.tombstones.values()) for each in selected),
            without_columns=tuple(sorted(self._without_columns | self._selector.without_columns)),
            refused=tuple(
                f"sink {name}: {error}" for name, error in sorted({**self._selector.unfit, **self._refused}.items())
            ),
            remaining=(*of_tables, *remaining),
        )

    def _remaining(self, outcome: Outcome | None) -> Iterator[str]:
        return remaining_copies(self._pipeline, self._log, self._record, outcome, self._predicate)
