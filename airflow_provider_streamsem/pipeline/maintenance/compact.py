"""Rewrites the rows of many small files of a dataset into fewer, larger files (PROTOCOL.md, 4.11)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_streamsem import registry, telemetry
from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import (
    InvalidError,
)
from airflow_provider_streamsem.pipeline.maintenance.idle import idle_head, refuse_pending_removal
from airflow_provider_streamsem.pipeline.maintenance.staged_version import Attempt, commit_staged
from airflow_provider_streamsem.pipeline.spec.binding import (
    BoundPipeline,
    bind_existing,
    existing_record,
    read_head,
)
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.entries import (
    DataFile,
    SegmentFile,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.view import ClosedHead, LogView, OpenHead
from airflow_provider_streamsem.verbs import DRY_RUN, MAX_BYTES, TARGET_FILE_BYTES

logger = telemetry.log_of(__name__)
_NOT_COMPACTED = "the table was not compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """
    A committed rewrite, or in a dry run a possible one.

    :param sink: name of the sink
    :param version: the version of the rewrite; ``None`` in a dry run and for a table
    :param commits: number of commits whose rows are rewritten; ``None`` for a table, whose log does not name them
    :param rows: number of their rows
    :param files: number of files that have these rows before the rewrite
    :param bytes: total size of these files in bytes
    :param new_files: number of new files; ``None`` in a dry run
    :param new_bytes: total size of the new files in bytes; ``None`` in a dry run
    :param table_version: the version of the Delta table or the id of the Iceberg snapshot that has the new files; ``None`` in a dry run and for a files sink
    """

    sink: str
    version: int | None
    commits: int | None
    rows: int
    files: int
    bytes: int
    new_files: int | None = None
    new_bytes: int | None = None
    table_version: str | None = None


@with_log_location
def compact(
    pipeline: Pipeline,
    *,
    sink: str | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES.default,
    max_bytes: int = MAX_BYTES.default,
    dry_run: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> list[Compacted]:
    """
    Rewrite the rows of many small files into fewer, larger files. No row changes, appears or disappears.

    Each rewrite is one version of the log. Readers of this version and of later ones read the new files. Readers of earlier versions, and readers that ask for
    the rows since a rewritten commit, still read the files of the commits, which stay in the dataset. If one of these commits is reprocessed or rolled back,
    readers read the files of the other commits again, until the next compaction.

    A commit or an earlier rewrite is selected if the average size of its files is less than half of ``target_file_bytes``. An earlier rewrite is selected only
    together with at least as many bytes of other commits. A rewrite must at least halve the number of files.

    No run waits for a rewrite. A run that finds one open commits it if its attempt is complete, and aborts it otherwise. Compact in the DAG of the pipeline,
    after the batch, or at a time at which no batch runs.

    The table of a Delta or Iceberg sink is compacted only if ``sink`` names it. The commit of the table records the rewrite, and the log gets no version.
    Afterwards, a version whose files were rewritten can no longer be reprocessed or rolled back in this table, because the new files mix the rows of several
    versions. Batches may run at the same time. Let no reprocessing run or rollback start before the compaction has ended.

    :param sink: the sink to compact: a files sink, or a sink whose table can be compacted; default: all files sinks
    :param target_file_bytes: the size in bytes of the new files, 65,536 or more
    :param max_bytes: the maximum size in bytes of the files that one version, or one snapshot of an Iceberg table, rewrites, unless a single commit has more.
        Several versions rewrite more files. A Delta table is rewritten in one entry of its log
    :param dry_run: write nothing, and return which rewrites are possible. Whether a version is open is not checked
    :param engine: default: Spark in this process. The engine starts a session only when it rewrites files
    :param log: default: the log at ``pipeline.log``
    :returns: the rewrites in the order of their versions; empty if there is nothing to rewrite
    :raises InvalidError: there is no log, no such sink, the table cannot be compacted, or an argument is not valid. Nothing was written
    :raises ConflictError: the log has other immutable fields than the pipeline. Rewrites that were committed before remain
    :raises OpenVersionError: a version (for a table: a reprocessing run or a rollback) is open or not published yet, or another writer created the next version
    :raises HeldVersionError: the open version is held
    :raises DataError: files cannot be read, or the rows of the new files differ. Visible rows are unchanged
    :raises UnavailableError: other writers have changed the files of the table, or a store or catalog did not report the result of a request
    """
    target_file_bytes, max_bytes = TARGET_FILE_BYTES.checked(target_file_bytes), MAX_BYTES.checked(max_bytes)
    dry_run = DRY_RUN.checked(dry_run)
    names = _sinks(pipeline, sink)
    log = log or commit_log_at(pipeline.log)
    if dry_run:
        existing_record(pipeline, log)
    sizes = _Sizes(target=target_file_bytes, most=max_bytes)
    if sink is not None and pipeline.sinks[sink].compacts_table:
        return _compact_table(pipeline, log, sink, sizes, dry_run=dry_run)
    if dry_run:
        return _possible(pipeline, log, names, sizes)
    bound = bind_existing(pipeline, log)
    engine = engine or registry.load("engines", "spark")()
    return [done for name in names for done in _Compaction(bound, name, sizes, engine).run()]


def _possible(pipeline: Pipeline, log: CommitLog, names: Sequence[str], sizes: _Sizes) -> list[Compacted]:
    head = read_head(pipeline, log)
    view, oldest = log.view(version=head.closed), head.oldest_readable
    return [
        _rewrite(name, commits_of_files(view, name, chosen), chosen)
        for name in names
        for chosen in sizes.choose(pipeline, name, view, oldest)
    ]


def _sinks(pipeline: Pipeline, sink: str | None) -> list[str]:
    names = [name for name, each in pipeline.sinks.items() if each.can_rewrite and not each.is_outside_log]
    accepted = sorted([*names, *(name for name, each in pipeline.sinks.items() if each.compacts_table)])
    if sink is not None and text("sink", sink) not in pipeline.sinks:
        raise InvalidError("the pipeline has no such sink; nothing was written", given=sink, accepted=accepted)
    if sink is not None and sink not in accepted:
        raise InvalidError(
            "only the files of a files sink, and the table of a Delta or Iceberg sink, can be compacted; nothing was written",
            given=sink,
            accepted=accepted,
        )
    if sink is None and not names and accepted:
        raise InvalidError(
            "the pipeline has no files sink, and a table is compacted only if its sink is named; nothing was written",
            tables=accepted,
        ).advising(
            "name the sink with --sink or `sink`. Afterwards, versions whose files were rewritten cannot be reprocessed or rolled back."
        )
    if not accepted:
        raise InvalidError(
            "the pipeline has no files sink, so there is nothing to compact", sinks=sorted(pipeline.sinks)
        )
    return sorted(names) if sink is None else [sink]


def _compact_table(pipeline: Pipeline, log: CommitLog, name: str, sizes: _Sizes, *, dry_run: bool) -> list[Compacted]:
    """Compact the table of a sink. The log gets no version."""
    if dry_run:
        read_head(pipeline, log)  # checks that the log has the immutable fields of the pipeline
    else:
        bound = bind_existing(pipeline, log)
        refuse_pending_removal(bound.log, _NOT_COMPACTED)
    done = pipeline.sinks[name].compact_table(
        target_file_bytes=sizes.target,
        max_bytes=sizes.most,
        dry_run=dry_run,
        before_commit=lambda: refuse_pending_removal(log, _NOT_COMPACTED),
    )
    rewrites = [
        Compacted(
            sink=name,
            version=None,
            commits=None,
            rows=each.rows,
            files=each.files,
            bytes=each.bytes,
            new_files=each.new_files,
            new_bytes=each.new_bytes,
            table_version=each.table_version,
        )
        for each in done
    ]
    if not dry_run:
        for rewrite in rewrites:
            logger.info("table of sink %s: %d files rewritten into %d", name, rewrite.files, rewrite.new_files)
    return rewrites


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Chooses the files to rewrite. ``target`` are the bytes of a new file, and ``most`` those of all files of one rewrite."""

    target: int
    most: int

    def choose(self, pipeline: Pipeline, name: str, view: LogView, oldest_readable: int) -> list[list[SegmentFile]]:
        """All files of a version belong to the same rewrite. A rewrite has either commits that have all expired, or others (W45)."""
        visible, partition_by = view.sink(name), pipeline.sinks[name].partitions
        last = {each.version: each.commits[-1] for each in view.rewrites if each.sink == name}
        by_version: dict[int, list[SegmentFile]] = defaultdict(list)
        for file in visible:
            by_version[file.version].append(file)
        small = {
            version: files for version, files in by_version.items() if _bytes(files) * 2 < self.target * len(files)
        }
        expired = {version for version in small if last.get(version, version) < oldest_readable}
        candidates: list[list[SegmentFile]] = []
        for versions in (expired, {*small} - expired):
            candidates += self._divided(_without_large_rewrites({at: small[at] for at in versions}, {*last}))
        return [candidate for candidate in candidates if self._is_worthwhile(candidate, partition_by)]

    def _divided(self, small: Mapping[int, list[SegmentFile]]) -> list[list[SegmentFile]]:
        candidates: list[list[SegmentFile]] = []
        chosen: list[SegmentFile] = []
        for _, files in sorted(small.items()):
            if chosen and _bytes(chosen) + _bytes(files) > self.most:
                candidates.append(chosen)
                chosen = []
            chosen += files
        return [*candidates, chosen]

    def _is_worthwhile(self, chosen: Sequence[SegmentFile], partition_by: Sequence[str]) -> bool:
        """Return whether a rewrite at least halves the number of files. There is at least one file for each combination of partition values."""
        by_partition: Counter[tuple[str | None, ...]] = Counter()
        for file in chosen:
            by_partition[tuple(map(file.file.partition.get, partition_by))] += file.file.bytes
        least = sum(max(1, -(-size // self.target)) for size in by_partition.values())
        return len(chosen) >= max(2, 2 * least)


def _without_large_rewrites(small: Mapping[int, list[SegmentFile]], rewrites: Set[int]) -> dict[int, list[SegmentFile]]:
    """A row is rewritten again only when the size of its rewrite doubles, and not in each compaction."""
    found = dict(small)
    total = sum(map(_bytes, small.values()))
    for version in sorted({*small} & rewrites, key=lambda version: _bytes(small[version]), reverse=True):
        size = _bytes(small[version])
        if size <= total - size:
            break
        del found[version]
        total -= size
    return found


def _bytes(files: Sequence[SegmentFile]) -> int:
    return sum(file.file.bytes for file in files)


def commits_of_files(view: LogView, name: str, chosen: Sequence[SegmentFile]) -> tuple[int, ...]:
    """Return the commits whose rows are in some visible files. A file of a rewrite has the rows of several commits."""
    rewritten = {each.version: each.commits for each in view.rewrites if each.sink == name}
    versions = {file.version for file in chosen}
    return tuple(sorted({commit for version in versions for commit in rewritten.get(version, (version,))}))


def erased_rows(view: LogView, name: str, chosen: Sequence[SegmentFile]) -> int:
    """Return the number of rows of the commits of some visible files that earlier versions have erased."""
    versions = {file.version for file in chosen}
    return sum(each.erased for each in view.rewrites if each.sink == name and each.version in versions)


def _rewrite(name: str, commits: Sequence[int], chosen: Sequence[SegmentFile]) -> Compacted:
    return Compacted(
        sink=name,
        version=None,
        commits=len(commits),
        rows=sum(file.file.rows for file in chosen),
        files=len(chosen),
        bytes=_bytes(chosen),
    )


class _Compaction:
    def __init__(self, bound: BoundPipeline, name: str, sizes: _Sizes, engine: Engine) -> None:
        self._bound, self._log, self._name, self._sizes, self._engine = bound, bound.log, name, sizes, engine

    def run(self) -> Iterator[Compacted]:
        """Yield each rewrite after it was committed."""
        done: set[int] = set()  # the commits that this compaction has rewritten, so that it ends
        while True:
            head = idle_head(self._bound, "rewrite", closes_staged=True)
            if head.outcome is None:
                return
            view = self._log.view(version=head.closed)
            possible = self._sizes.choose(self._bound.pipeline, self._name, view, head.oldest_readable)
            with_commits = ((commits_of_files(view, self._name, files), files) for files in possible)
            commits, chosen = next(
                ((commits, files) for commits, files in with_commits if not done & {*commits}), ((), [])
            )
            if not chosen:
                return
            done |= {*commits}
            wanted, erased = _rewrite(self._name, commits, chosen), erased_rows(view, self._name, chosen)
            work = Rewrite(sink=self._name, commits=commits, rows=wanted.rows + erased, erased=erased)
            yield self._commit(head, wanted, work, [file.file for file in chosen])

    def _commit(self, head: ClosedHead, wanted: Compacted, work: Rewrite, files: list[DataFile]) -> Compacted:
        run_key, stage = f"rewrite:{self._name}", partial(self._stage, work=work, files=files)
        outcome = commit_staged(self._bound, head, work, run_key=run_key, stage=stage)
        output = outcome.rewrites[0].output
        new_bytes = sum(file.bytes for file in output.files)
        logger.info(
            "version %d: %d rows of %d commits moved from %d files (%d bytes) into %d (%d bytes); their number and hash are equal",
            outcome.version,
            wanted.rows,
            wanted.commits,
            wanted.files,
            wanted.bytes,
            len(output.files),
            new_bytes,
        )
        return replace(wanted, version=outcome.version, new_files=len(output.files), new_bytes=new_bytes)

    def _stage(self, head: OpenHead, work: Rewrite, files: list[DataFile]) -> StagedManifest:
        attempt = Attempt(self._bound, self._engine, head)
        target = self._sizes.target
        output = attempt.rewritten(self._name, work.commits, files, target_file_bytes=target)
        return attempt.staged({self._name: output})
