"""
Creates the log of a fork: a pipeline that starts at a version of another pipeline, at its offsets and with its state, or at a point in time of its source.

A fork replays the source from there with other code, into its own datasets. The original pipeline continues, and shares nothing with the fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_streamsem import extras, telemetry
from airflow_provider_streamsem.arguments import integer
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files import layers
from airflow_provider_streamsem.connectors.staged_parquet.current_tombstones import current_tombstones
from airflow_provider_streamsem.deduplication import state as dedup_state
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import check_fork, create_log, forked_config
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.closing_times import newest_closed_until, remaining_versions
from airflow_provider_streamsem.protocol.codec import canonical, sha256
from airflow_provider_streamsem.protocol.entries import Fork, Json, PipelineRecord
from airflow_provider_streamsem.protocol.offsets import Offsets, advance
from airflow_provider_streamsem.protocol.view import newest_kept_before, remains
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.state.layers import STATE, files_of_layers, tombstones_of
from airflow_provider_streamsem.state.settings import OperatorState, operator_state
from airflow_provider_streamsem.stores.contract import normalised, overlap

logger = telemetry.log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """
    The result of :func:`fork`.

    :param log: URL of the fork's log
    :param forked_from: URL of the log of the original pipeline
    :param version: the version after which the fork starts; -1: at the initial offsets, or at a time of the source
    :param from_ms: the time of the source at which the fork starts, in milliseconds since the epoch; ``None``: it starts after ``version``
    :param offsets: partition → the first offset that the fork reads
    :param copied: number of objects that this call copied
    :param is_new: whether this call created the log. ``False``: the fork existed already
    """

    log: str
    forked_from: str
    version: int
    from_ms: int | None
    offsets: Offsets
    copied: int
    is_new: bool


@with_log_location
def fork(
    pipeline: Pipeline,
    original: str | CommitLog,
    *,
    version: int | None = None,
    until_ms: int | None = None,
    from_ms: int | None = None,
    log: CommitLog | None = None,
) -> Forked:
    """
    Create the log of a pipeline that continues another pipeline after a version, or replays its source from a time.

    The first batch of the fork starts at the offsets after the version, with the deduplication state and the operators' state of the version. The function
    copies this state, and the discoveries of a files source, to the fork's log. It creates ``pipeline.json`` last, so a call that ends early leaves no log, and
    can be repeated.

    With ``from_ms``, the first batch starts without state at the offsets that the source has for this time. The fork reads every record that the source still
    has and whose time is at or after ``from_ms``.

    :param pipeline: the fork. Its log and datasets must be new. Its source must be that of the original. If the version has state, its dedup keys and its
        output mode must be those of the original, too
    :param original: URL of the log of the original pipeline, or the open log
    :param version: a closed version that was not rolled back; -1: start at the initial offsets, without state; default: the newest closed version
    :param until_ms: instead of a version: the newest version that was closed at or before this time, in milliseconds since the epoch, and was not rolled back
    :param from_ms: instead of a version: start without state at the first records of this time, in milliseconds since the epoch. Of each partition, this is the
        earliest offset whose record has this time or a later one, or the end offset if there is no such record yet
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: there is no such log or version, the version was rolled back, the source removes records when it reads, or the
        source cannot find the offsets of a time
    :raises ConflictError: the fork's source, dedup keys or output mode differ, or its log exists
    :raises DataError: files of the state were deleted, for example by vacuum
    :raises UnavailableError: the source did not report the result of a request. Nothing was written
    """
    _check_start(version, until_ms, from_ms)
    old = commit_log_at(original) if isinstance(original, str) else original
    new = log or commit_log_at(pipeline.log)
    extras.check(pipeline.extras, pipeline=pipeline.name)
    _check_locations(old, new)
    record, existing = old.read_pipeline(), new.read_pipeline()
    requested = version if until_ms is None or record is None else newest_closed_until(old, until_ms)
    if existing is not None:
        return _existing_fork(existing, record, requested, from_ms, pipeline)
    record = record or old.existing_pipeline()
    at = -1 if from_ms is not None else _version(old, requested)
    position = _fork_position(old, record, pipeline, at, from_ms)
    now_ms = new.clock.now_ms()
    _warn_of_expired_ids(pipeline, position.state, now_ms)
    _warn_of_unused_tombstones(pipeline, position.state, now_ms)
    _check_datasets(pipeline)
    copied = sum(_copy(old, new, key, copy) for key, copy in _objects(old, new, pipeline, position))
    _check_state(old, new, position)
    created = create_log(pipeline, new, fork=position)
    if created.fork is None or created.fork != position:
        return _existing_fork(created, record, requested, from_ms, pipeline)
    return _result(position, new.store.url, copied=copied, is_new=True)


def _check_start(version: int | None, until_ms: int | None, from_ms: int | None) -> None:
    given = {"version": version, "until_ms": until_ms, "from_ms": from_ms}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) > 1:
        raise InvalidError("at most one of a version, a closing time and a time of the source may be given", **named)
    if from_ms is not None:
        integer("from_ms", from_ms, least=0)


def _check_locations(old: CommitLog, new: CommitLog) -> None:
    """Vacuum and moves of a log handle every object below its location."""
    if overlap(normalised(old.store.url), normalised(new.store.url)):
        summary = (
            "the log of the fork and that of the original must not be equal or contain each other; nothing was written"
        )
        raise InvalidError(summary, original=old.store.url, fork=new.store.url).advising("give the fork another log.")


def _warn_of_expired_ids(pipeline: Pipeline, state: Json, now_ms: int) -> None:
    if dedup_state.has_only_expired_ids(pipeline.dedup, state, now_ms):
        message = "every id in the deduplication state has expired by dedup.ttl_s, so the fork passes records that the original dropped as duplicates"
        logger.warning(message)


def _warn_of_unused_tombstones(pipeline: Pipeline, state: Json, now_ms: int) -> None:
    for name, stored in tombstones_of(state).items():
        sink = pipeline.sinks.get(name)
        changes = None if sink is None else sink.changes
        used = () if changes is None else current_tombstones(name, stored, changes, (), now_ms).layers
        if len(used) < len(stored.layers):
            logger.warning(
                "sink %s: the fork does not use all tombstones of the version: its sink has another name or other columns, or tombstones have expired by "
                "changes.tombstone_ttl_s. So a late change may insert a row that the original deleted",
                name,
            )


def _version(old: CommitLog, version: int | None) -> int:
    closed = old.find_head().closed
    at = closed if version is None else version
    if not -1 <= at <= closed:
        summary = "only a closed version can be forked; nothing was written"
        raise InvalidError(summary, log=old.store.url, given=version, newest_closed=closed).advising(
            "give a version from 0 to the newest closed one, or -1 to start at the initial offsets."
        )
    kept = remaining_versions(old, closed)
    if at >= 0 and not remains(at, kept):
        summary = (
            "the version was rolled back, so its records are not those of the pipeline's history; nothing was written"
        )
        raise InvalidError(
            summary, log=old.store.url, given=version, newest_kept_before=newest_kept_before(at, kept)
        ).advising("give a version that was not rolled back, such as `newest_kept_before`.")
    return at


def _fork_position(
    old: CommitLog, record: PipelineRecord, pipeline: Pipeline, version: int, from_ms: int | None
) -> Fork:
    """``from_ms`` is the time of the source at which the fork starts. If it is ``None``, the fork starts after ``version``."""
    if pipeline.intervals:
        summary = "a pipeline with intervals cannot be forked, because its intervals can be read in any order; nothing was written"
        raise InvalidError(summary, pipeline=pipeline.name).advising(
            "give a new pipeline its own log and datasets, and run the intervals that it needs."
        )
    consuming = sorted(name for name, source in pipeline.source.parts.items() if source.removes_records)
    if consuming:
        summary = "the source removes records when it reads them, so a fork cannot read them again; nothing was written"
        raise InvalidError(summary, pipeline=pipeline.name, sources=consuming)
    first = old.plan(0)
    if first is None:
        raise InvalidError("the log has no version, so nothing can be forked; nothing was written", log=old.store.url)
    outcome = old.outcome(version) if version >= 0 else None
    state = None if from_ms is not None else record.initial_state if outcome is None else outcome.state
    spec = outcome.spec if outcome is not None else first.spec if from_ms is None else old.find_head().spec
    before = forked_config(old.config_of(spec or first.spec), state)
    config = forked_config(pipeline.immutable_config(), state)
    _check_config(before, config, pipeline)
    operators = operator_state(state)
    _check_partitions(operators, pipeline)
    offsets: Offsets = first.initial_offsets or {}
    hint = None if record.fork is None else record.fork.hint
    if from_ms is not None:
        section = old.of_source(pipeline.source.immutable_config())
        offsets, hint = pipeline.source.offsets_for_time_in(section, from_ms), None
    elif outcome is not None:
        offsets, hint = advance(offsets, outcome.next), outcome.hint
    return Fork(
        log=old.store.url,
        pipeline_uuid=record.pipeline_uuid,
        version=version,
        config=sha256(canonical(config)),
        offsets=offsets,
        state=state,
        hint=hint,
        from_ms=from_ms,
    )


def _check_datasets(pipeline: Pipeline) -> None:
    for name, sink in pipeline.sinks.items():
        try:
            sink.refuse_existing_output(pipeline.log)
        except ConflictError as error:
            summary = "a dataset of the fork belongs to another log already; nothing was written"
            raise ConflictError(summary, **{"location": sink.location, **error.fields, "sink": name}).advising(
                "give the sink of the fork another path or table."
            ) from error


def _check_config(before: Mapping[str, Json], now: Mapping[str, Json], pipeline: Pipeline) -> None:
    for name in now:
        if before[name] != now[name]:
            raise ConflictError(
                f"the fork's {name} differs from that of the original pipeline, so it cannot continue from its offsets and state; nothing was written",
                pipeline=pipeline.name,
                original=before[name],
                fork=now[name],
            ).advising("use the original's source, dedup keys and output mode, or start a new pipeline.")


def _check_partitions(operators: OperatorState | None, pipeline: Pipeline) -> None:
    partitions = None if pipeline.state is None else pipeline.state.partitions
    if operators is not None and partitions not in (None, operators.partitions):
        raise ConflictError(
            "the fork's number of state partitions differs from that of the version; nothing was written",
            original=operators.partitions,
            fork=partitions,
        ).advising("remove state.partitions, or fork at version -1, which starts without state.")


def _objects(old: CommitLog, new: CommitLog, pipeline: Pipeline, position: Fork) -> Iterator[tuple[str, str]]:
    """Yield pairs of old and new key. Pages and nodes of the tree of known files come before the discoveries that name them."""
    config = pipeline.source.immutable_config()
    before, after = old.source_prefix(config), new.source_prefix(config)
    # In descending order of keys, so that the oldest discovery is copied first. A copy that was interrupted then has no gap.
    for key in sorted(old.list_keys(before), reverse=True):
        yield key, after + key.removeprefix(before)
    for file in files_of_layers(position.state):
        yield f"{STATE}/{file.key}", f"{STATE}/{file.key}"
    operators = operator_state(position.state)
    if operators is not None:
        for key in state_files.needed(old.store, operators):
            yield key, key


def _copy(old: CommitLog, new: CommitLog, key: str, copy: str) -> bool:
    """Copy an object if it exists, and return whether this call created the copy. Vacuum may delete objects of the original at any time."""
    data = old.read(key)
    if data is None:
        return False
    creation = new.create(copy, data)
    if not creation.mine:
        summary = "the new location has another object under a key of the fork; the log was not created"
        raise ConflictError(summary, log=new.store.url, key=copy).advising("use a location that is empty.")
    return creation.first


def _check_state(old: CommitLog, new: CommitLog, position: Fork) -> None:
    has_operators = state_files.is_loadable(new.store, position.state)
    if has_operators and layers.is_complete(new.store.url, position.state):
        return
    summary = "files of the state after this version are missing or were changed, for example because vacuum deleted them; the log was not created"
    raise DataError(summary, log=old.store.url, version=position.version).advising("fork at a newer version, or at -1.")


def _existing_fork(
    record: PipelineRecord,
    original: PipelineRecord | None,
    version: int | None,
    from_ms: int | None,
    pipeline: Pipeline,
) -> Forked:
    """``original`` is ``None`` if its log was deleted since. ``version`` and ``from_ms`` are the arguments of the caller."""
    existing = record.fork
    if existing is None:
        summary = "the fork's log exists already, and is not the log of a fork; nothing was written"
        raise ConflictError(summary, log=pipeline.log, pipeline=record.name).advising("give the fork another log.")
    check_fork(pipeline, existing)
    is_same = original is None or existing.pipeline_uuid == original.pipeline_uuid
    if not is_same or version not in (None, existing.version) or from_ms != existing.from_ms:
        raise ConflictError(
            "the fork's log exists already, and was forked from another log, version or time; nothing was written",
            log=pipeline.log,
            forked_from=existing.log,
            forked_at=existing.version,
            from_ms=existing.from_ms,
            given=version if from_ms is None else from_ms,
        ).advising("give the fork another log. If no run has used this one, you may delete it and fork again.")
    return _result(existing, pipeline.log, copied=0, is_new=False)


def _result(position: Fork, log: str, *, copied: int, is_new: bool) -> Forked:
    return Forked(
        log=log,
        forked_from=position.log,
        version=position.version,
        from_ms=position.from_ms,
        offsets=position.offsets,
        copied=copied,
        is_new=is_new,
    )
