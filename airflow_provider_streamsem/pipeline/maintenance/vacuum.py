"""Vacuum: deletes the output of losing attempts, and files that no kept version needs (PROTOCOL.md, 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files.layers import layers_dataset
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.errors import LogDamagedError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance import retention
from airflow_provider_streamsem.pipeline.maintenance.old_layers import unneeded_layers
from airflow_provider_streamsem.pipeline.spec.binding import (
    bind_existing,
    check_immutable_config,
    claim_datasets,
    existing_record,
)
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.attempts import attempt_of_key
from airflow_provider_streamsem.pipeline.versions.closing_times import first_closed_after
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.pipeline.versions.publish import publishing_sink, refuse_conflicts
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord, SegmentRewrite
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.erase import Erase
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.state.layers import STATE, files_of_layers
from airflow_provider_streamsem.state.settings import FIELD as OPERATORS
from airflow_provider_streamsem.state.settings import operator_state
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.verbs import KEEP_DAYS, KEEP_VERSIONS

logger = telemetry.log_of(__name__)

_INSPECTED_EACH = 100
"""Vacuum records its progress each time that it has inspected this many versions, and when it fails. The next vacuum continues there."""
_LATE_MS = 86_400_000
"""
Every vacuum inspects the versions that were closed less than this many milliseconds ago, because an attempt of such a version may still write files. Older
versions are inspected once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """
    The objects that vacuum deleted, and the versions that it let expire. In a dry run, those that it would.

    :param attempts: ``(sink, version, attempt_id)`` of each attempt whose files are deleted. For files of the deduplication state, the sink is ``state``
    :param keys: keys of the deleted objects of the log, relative to the log's root
    :param bytes: total size in bytes of the files and objects
    :param expired: number of versions that expire: the newest ones below ``oldest_readable``
    :param oldest_readable: the oldest version that can be read after the vacuum; ``None`` if no version has expired
    """

    attempts: tuple[tuple[str, int, str], ...]
    keys: tuple[str, ...]
    bytes: int
    expired: int = 0
    oldest_readable: int | None = None


@with_log_location
def vacuum(
    pipeline: Pipeline,
    *,
    dry_run: bool = False,
    all_versions: bool = False,
    keep_versions: int | None = None,
    keep_days: int = KEEP_DAYS.default,
    log: CommitLog | None = None,
) -> Vacuumed:
    """
    Delete the output of losing attempts of closed versions: files, then quarantined records, then manifests (V1 to V3).

    Also delete the rows that were staged for sinks outside the log, once the receipts exist (V4), the operators' state that only versions before the newest
    ``state.keep_versions`` need (V7), and quarantined records that were erased (V10).

    With ``keep_versions``, also let older versions expire, and delete the data files that no reader of a kept version needs (V8): those of commits that a
    reprocessing run replaced or a rollback removed, of commits whose rows a :func:`compaction <compact>` has stored again, and of compactions that no longer
    apply. Only files sinks have such files. Also delete the files of the deduplication state that only older versions need (V9). An expired version cannot be
    read or rolled back to. It cannot be reprocessed if its rows are only in the files of a compaction, or with deduplication across batches. If there is no
    such file, nothing expires.

    Vacuum is safe while writers run. Once a version's outcome exists, no other attempt of the version can win. An attempt that still runs may write more
    files, which the next vacuum deletes. By default, vacuum skips the versions that an earlier vacuum inspected more than a day after they were closed (V6).

    :param pipeline: the user's own pipeline. Vacuum deletes only in its datasets and its log, never in a location that a stored object names (V5)
    :param dry_run: delete nothing, and return what vacuum would delete
    :param all_versions: inspect all versions. This finds the files of an attempt that ran for more than a day after its version was closed
    :param keep_versions: how many of the newest versions are kept, 1 or more. Default: all
    :param keep_days: with ``keep_versions``: versions that were the newest one at some time in the last ``keep_days`` days are kept, too. The value must be
        longer than the longest reader, export, or delay of a pipeline that reads this one
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the location holds no log, or an argument is not valid
    :raises ConflictError: the log belongs to another pipeline or was moved, or a dataset belongs to another log. Nothing was deleted
    :raises MarkerConflictError: a sink has a version that the log does not have. Nothing was deleted
    :raises MarkerLostError: a sink was restored from an older copy. Nothing was deleted
    :raises OpenVersionError: a version is open or not published yet, so no version has expired. Files of losing attempts, staged rows and operators' state were
        deleted. Run vacuum again
    :raises HeldVersionError: the open version is held; otherwise as for ``OpenVersionError``
    """
    keep_versions, keep_days = KEEP_VERSIONS.checked(keep_versions), KEEP_DAYS.checked(keep_days)
    log = log or commit_log_at(pipeline.log)
    record = existing_record(pipeline, log)
    head = log.find_head()  # raises LogMovedError if the log was moved
    if head.closed < 0:  # no attempt can have lost, and the datasets may have no ownership marker yet
        return Vacuumed(attempts=(), keys=(), bytes=0)
    _check_pipeline(pipeline, log, record, head)
    locations = [_SinkLocation(pipeline, name) for name in sorted(pipeline.sinks)]
    deletion = _Deletion(log, dry_run=dry_run)
    inspected_from = _delete_losing(pipeline, record, head, locations, deletion, all_versions=all_versions)
    for stat in _unneeded_state(pipeline, log, record, head.closed):
        deletion.object(stat)
    for stat in _erased_quarantine(log, head):
        deletion.object(stat)
    if not dry_run:
        _record_inspected(log, _first_late(log, inspected_from, _end(head)))
    wanted = retention.compute_oldest_readable(log, head, keep_versions=keep_versions, keep_days=keep_days)
    oldest = _delete_expired(pipeline, head, locations, wanted, deletion, all_versions=all_versions)
    return deletion.result(head.oldest_readable, oldest)


def _delete_losing(
    pipeline: Pipeline,
    record: PipelineRecord,
    head: Head,
    locations: list[_SinkLocation],
    deletion: _Deletion,
    *,
    all_versions: bool,
) -> int:
    """Delete what losing attempts left in the versions that vacuum inspects (V6). Return the first of these versions."""
    log, end = deletion.log, _end(head)
    inspected = _vacuumed_up_to(log)
    # If the log was restored from an older copy, the recorded progress may be above its head.
    begin = 0 if all_versions or inspected > head.closed + 1 else inspected
    inherited = {attempt_of_key(file.key)[1] for file in files_of_layers(record.initial_state)}
    reached = begin
    try:
        for version in range(begin, head.closed + 1):
            _delete_losing_of(pipeline, version, locations, inherited, deletion)
            reached = version + 1
            if not deletion.is_dry_run and reached % _INSPECTED_EACH == 0:
                _record_inspected(log, _first_late(log, begin, min(reached, end)))
    except StreamsemError:
        if reached > begin and not deletion.is_dry_run:
            with suppress(StreamsemError):
                _record_inspected(log, _first_late(log, begin, min(reached, end)))
        raise
    return begin


def _end(head: Head) -> int:
    """Return the version after the newest one that needs no later inspection. Rows of pending publishes are deleted after the publish (V4)."""
    return head.closed if head.has_pending_publishes else head.closed + 1


def _first_late(log: CommitLog, begin: int, end: int) -> int:
    """Return the first version in ``[begin, end)`` of which an attempt may still write files; ``end`` if there is none."""
    return first_closed_after(log, log.clock.now_ms() - _LATE_MS, begin, end)


def _delete_losing_of(
    pipeline: Pipeline, version: int, locations: list[_SinkLocation], inherited: set[str], deletion: _Deletion
) -> None:
    """Delete files, then quarantined records, then manifests (V3); and published rows (V4). A fork uses the state of the ``inherited`` attempts."""
    log = deletion.log
    lost = _LostAttempts(log, version)
    for location in locations:
        for attempt_id in location.deletable(version, lost):
            deletion.attempt(location.name, location.sink, version, attempt_id)
    if pipeline.keeps_layers:
        layers = layers_dataset(log.store.url)
        for _, attempt_id in sorted(log.retrying.repeat(partial(layers.attempts, version))):
            if lost(attempt_id) and attempt_id not in inherited:
                deletion.attempt(STATE, layers, version, attempt_id)
    for prefix in (keys.quarantined(version), keys.attempts(version)):
        for stat in log.retrying.list(prefix):
            if lost(attempt_of_key(stat.key)[1]):
                deletion.object(stat)


def _delete_expired(
    pipeline: Pipeline,
    head: Head,
    locations: list[_SinkLocation],
    wanted: int,
    deletion: _Deletion,
    *,
    all_versions: bool,
) -> int:
    """
    Delete data files (V8) and layers of ids (V9). First raise the oldest readable version, if there are files to delete below a kept version.

    The staged rows of sinks outside the log are deleted by V4.

    :param wanted: the oldest version to keep; 0 or less: all that are readable now
    """
    log, newest = deletion.log, head.outcome
    assert newest is not None  # a version is closed
    oldest = newest.oldest_readable
    if wanted <= 0 and oldest == 0:
        return 0
    begin = 0 if all_versions else log.newest_note(keys.EXPIRED, head.closed)
    sinks = {location.name: location.sink for location in locations if not location.sink.is_outside_log}
    if wanted > oldest and _expired_attempts(pipeline, log, newest, sinks, begin, wanted):
        oldest = wanted
        if not deletion.is_dry_run:
            # A rewrite may have been committed since the head was read, so judge by the outcome of the expiry.
            newest = retention.expire(bind_existing(pipeline, log), wanted)
            oldest = newest.oldest_readable
    for name, sink, version, attempt_id in _expired_attempts(pipeline, log, newest, sinks, begin, oldest):
        deletion.attempt(name, sink, version, attempt_id)
    inspected = max(wanted, oldest)
    if inspected > begin and not deletion.is_dry_run:
        log.write_note(keys.EXPIRED, inspected)
    return oldest


def _expired_attempts(
    pipeline: Pipeline, log: CommitLog, newest: Outcome, sinks: Mapping[str, Sink], begin: int, oldest: int
) -> list[tuple[str, Sink, int, str]]:
    """Return, each once, the attempts with files that no reader of version ``oldest`` or a later one needs, and no run."""
    rewrites = retention.new_rewrites(log, newest, begin, oldest)
    for rewrite in rewrites:
        _check_files(rewrite, sinks)
    found: dict[tuple[str, int], tuple[str, Sink, int, str]] = {}
    for outcome, only in retention.unneeded_attempts(log, newest, begin, oldest, rewrites):
        for name, sink in sinks.items() if only is None else [(only, sinks[only])] if only in sinks else ():
            attempt, key = (outcome.version, outcome.attempt_id), (name, outcome.version)
            if not outcome.attempt_id or key in found:
                continue
            if attempt in log.retrying.repeat(partial(sink.attempts, outcome.version)):
                found[key] = name, sink, outcome.version, outcome.attempt_id
    if not pipeline.keeps_layers:
        return [*found.values()]
    layers = layers_dataset(log.store.url)
    record = log.existing_pipeline()
    unneeded = unneeded_layers(log, newest, begin, oldest, record.initial_state)
    stored = (each for each in unneeded if each in log.retrying.repeat(partial(layers.attempts, each[0])))
    return [*found.values(), *((STATE, layers, *each) for each in stored)]


def _check_files(rewrite: SegmentRewrite, sinks: Mapping[str, Sink]) -> None:
    """Check the files of a rewrite, before vacuum deletes the other files with the same rows."""
    sink = sinks.get(rewrite.sink)
    if sink is not None and not sink.is_complete(rewrite.output):
        summary = (
            "files of a compaction are missing or were changed; the files of the compacted commits were not deleted"
        )
        facts = {"version": rewrite.version, "location": sink.location}
        raise LogDamagedError(summary, invariant="I6", **facts).advising(
            "run `streamsem verify LOG`, and restore the files that it names; then run vacuum again."
        )


def _check_pipeline(pipeline: Pipeline, log: CommitLog, record: PipelineRecord, head: Head) -> None:
    """Check that the log owns the datasets of the pipeline, has its immutable fields (W35), and has every version that a sink has."""
    assert head.binding_spec is not None  # a version is closed
    check_immutable_config(pipeline, log, head.binding_spec, version=head.closed)
    claim_datasets(pipeline, log, record, new=False)
    refuse_conflicts(pipeline, log, record.pipeline_uuid)


class _Deletion:
    """Deletes attempts and objects, and records them. In a dry run, it only records them."""

    def __init__(self, log: CommitLog, *, dry_run: bool) -> None:
        self.log, self.is_dry_run = log, dry_run
        self.attempts: list[tuple[str, int, str]] = []
        self.keys: list[str] = []
        self.bytes = 0

    def result(self, before: int, after: int) -> Vacuumed:
        return Vacuumed(
            attempts=tuple(self.attempts),
            keys=tuple(self.keys),
            bytes=self.bytes,
            expired=after - before,
            oldest_readable=after or None,
        )

    def attempt(self, name: str, sink: Sink, version: int, attempt_id: str) -> None:
        if (name, version, attempt_id) in self.attempts:  # in a dry run, the files of a losing attempt are found again
            return
        self.attempts.append((name, version, attempt_id))
        discard = partial(sink.discard, version, attempt_id, dry_run=self.is_dry_run)
        self.bytes += self.log.retrying.repeat(discard)

    def object(self, stat: ObjectStat) -> None:
        """Delete an object of the log. An object that this package has not written stays, wherever it is."""
        if not keys.is_log_object(stat.key):
            return
        self.keys.append(stat.key)
        self.bytes += stat.bytes
        if not self.is_dry_run:
            self.log.retrying.delete(stat.key)


def _unneeded_state(pipeline: Pipeline, log: CommitLog, record: PipelineRecord, closed: int) -> Iterator[ObjectStat]:
    """Yield the files of the operators' state that no run needs to reprocess one of the newest ``keep_versions`` versions, or to plan the next (V7)."""
    if pipeline.state is None:
        return
    first = oldest_kept(log, closed, pipeline.state.keep_versions)
    if first is None and record.fork is not None:
        state = record.initial_state
    else:
        outcome = log.outcome(first or 0)
        state = None if outcome is None else outcome.state
    oldest = operator_state(state)
    # Without stateful operators, each attempt uses a new root directory. A later state with operators then has another root, so no file can be judged by this
    # one.
    if oldest is None or not oldest.operators:
        return
    files = list(state_files.unneeded(log.retrying, oldest))
    # After an alter that dropped the state, later states have other roots. Read the alters after the listing: an attempt writes below a new root only after
    # the outcome of the alter exists, so every listed file of a later state is found here.
    if not _is_state_dropped_after(log, first or 0):
        yield from files


def _erased_quarantine(log: CommitLog, head: Head) -> Iterator[ObjectStat]:
    """Yield the objects with quarantined records whose place others have taken, because an erasure has erased some of the records (V10)."""
    left = log.erased_quarantine(head.outcome)
    if not left:
        return
    needed = {key for quarantine in left.values() for key in quarantine.keys}
    for version in {*left, *(version for version, _ in log.commits_of(Erase, head.outcome))}:
        outcome = log.outcome(version)
        own = set() if outcome is None or version in left else {*outcome.quarantine.keys}
        for stat in log.retrying.list(keys.quarantined(version)):
            if stat.key not in needed | own:
                yield stat


def _is_state_dropped_after(log: CommitLog, version: int) -> bool:
    alters = log.commits_of(Alter, log.newest_head().outcome, after=version)
    return any(OPERATORS in alter.state for _, alter in alters)


class _SinkLocation:
    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self.name, self.sink = name, pipeline.sinks[name]
        # A sink that copies the rows from the staged files needs these files only until the receipts exist.
        self._copies_rows = self.sink.is_outside_log and not publishing_sink(pipeline, name).keeps_staged
        self._is_table = self.sink.is_outside_log and not self._copies_rows
        self._in_use = (
            cache(publishing_sink(pipeline, name).attempts_in_use) if self._is_table else set[tuple[int, str]]
        )

    def deletable(self, version: int, lost: _LostAttempts) -> Iterator[str]:
        for _, attempt_id in sorted(lost.log.retrying.repeat(partial(self.sink.attempts, version))):
            if lost(attempt_id) and (version, attempt_id) in self._in_use():
                message = "sink %s: attempt %s of version %d lost according to the log, but the table references its files. Vacuum keeps these files"
                logger.warning(message, self.name, attempt_id, version)
            elif lost(attempt_id) or self._is_unneeded(lost.log, version, attempt_id):
                yield attempt_id

    def _is_unneeded(self, log: CommitLog, version: int, attempt_id: str) -> bool:
        """Return whether nothing needs the staged files of the committed attempt."""
        if self._copies_rows:
            return self._is_published(log, version)
        # The staged files would have become files of the table.
        return self._is_table and self._is_skipped(log, version) and (version, attempt_id) not in self._in_use()

    def _is_published(self, log: CommitLog, version: int) -> bool:
        """Return whether the rows of a version were published to this sink. Its dataset may also have files of another sink, from before an alter."""
        receipts = log.receipts(version)
        return receipts is not None and self.name in receipts.sinks

    def _is_skipped(self, log: CommitLog, version: int) -> bool:
        """Return whether publishing a version to this sink was skipped."""
        receipts = log.receipts(version)
        return receipts is not None and self.name in receipts.sinks and receipts.sinks[self.name].result == "skipped"


def _vacuumed_up_to(log: CommitLog) -> int:
    """Vacuum has inspected all versions below the result; 0: none. It is a hint, and never determines what vacuum deletes (V6)."""
    return max((_version_of(key) for key in log.list_keys(keys.VACUUMED, 1)), default=0)


def _record_inspected(log: CommitLog, below: int) -> None:
    """Record that vacuum has inspected all versions below ``below``, and delete all other such records."""
    if below != _vacuumed_up_to(log):
        log.create(keys.vacuumed(below), canonical({"below": below}))
    for key in log.list_keys(keys.VACUUMED):
        if _version_of(key) != below and keys.is_log_object(key):
            log.retrying.delete(key)


def _version_of(key: str) -> int:
    return keys.parse_newest_first(key) or 0


class _LostAttempts:
    """An attempt has lost if the version was aborted, or another attempt was committed (I11). The outcome is read at most once."""

    def __init__(self, log: CommitLog, version: int) -> None:
        self.log = log
        self._outcome = cache(lambda: log.outcome(version))

    def __call__(self, attempt_id: str) -> bool:
        outcome = self._outcome()
        return bool(attempt_id) and outcome is not None and outcome.attempt_id != attempt_id
