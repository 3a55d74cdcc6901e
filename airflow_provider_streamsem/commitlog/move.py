"""
Moves a log to another location (PROTOCOL.md, 10): ``streamsem move-log``.

A move is safe while pipelines run. After a crash at any request, an operator repeats it. Safety depends on the order of the steps:

1. Claim the new location.
2. End the old log with one create.
3. Copy the objects that can no longer change.
4. Declare the new log complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import ConflictError, InvalidError, LogDamagedError, LogMovedError
from airflow_provider_streamsem.protocol import keys, procedures
from airflow_provider_streamsem.protocol.entries import Moved, PipelineRecord, Plan
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.stores.contract import normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLog:
    """
    Result of a move.

    :param version: the newest version that was moved; -1 if there was none
    :param copied: number of objects that this process copied
    """

    pipeline: str
    moved_from: str
    moved_to: str
    version: int
    copied: int


def move_log(old: CommitLog, new: CommitLog, *, already_moved: bool = False) -> MovedLog:
    """
    Move a pipeline's log.

    The datasets stay at their locations. The objects of the old log stay readable. The old log rejects every run with an error that names the new log.

    :param already_moved: an operator has moved all objects by other means, and none is left at the old location. Only record the move in the new log
    :raises InvalidError: there is no log to move, the two locations overlap, the old log is unfinished, or ``already_moved`` contradicts the old location. A
        log is unfinished if it has an open version or an unpublished commit
    :raises ConflictError: the new location holds another log or other bytes under a key of this log, or the old log was moved elsewhere
    """
    source, target = normalised(old.store.url), normalised(new.store.url)
    if f"{source}/".startswith(f"{target}/") or f"{target}/".startswith(f"{source}/"):
        raise InvalidError(
            "the old and the new location of a log must not contain each other", moved_from=source, moved_to=target
        )
    record = old.read_pipeline()
    if record is None:
        return _recorded(old, new, source, target, already_moved=already_moved)
    if already_moved:
        what = "the old location still holds the log, so it was not moved by hand"
        raise InvalidError(what, moved_from=source, moved_to=target)
    _refuse_unfinished(old, target)
    _claim_location(new, record, source)
    last = _end(old, record, target)
    copied = 0
    if new.moved(source) is None:
        sources = f"{keys.SOURCES}{_id(new)}/"
        moved = Moved(moved_from=source, pipeline_uuid=record.pipeline_uuid, sources=sources, nonce=_id(new))
        copied = _copy(old, new, moved, last)
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=last, copied=copied)


def _recorded(old: CommitLog, new: CommitLog, source: str, target: str, *, already_moved: bool) -> MovedLog:
    """Record a move that an operator made by other means. The record makes the dataset marks valid for the new log."""
    record = new.read_pipeline()
    if record is None:
        raise InvalidError("there is no log at either location", moved_from=source, moved_to=target)
    if not already_moved or old.list_keys(keys.LOG, 1):
        what = "the old location has no pipeline.json; use --already-moved only if all objects were moved by hand and none is left there"
        raise InvalidError(what, moved_from=source, moved_to=target)
    _declare(new, Moved(moved_from=source, pipeline_uuid=record.pipeline_uuid, sources=new.sources, nonce=_id(new)))
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=new.find_head().closed, copied=0)


def _refuse_unfinished(old: CommitLog, target: str) -> None:
    """Reject the move before anything is written if the head is open or has pending publishes. A run at the old location must close it."""
    try:
        head = old.confirm_head(old.find_head())
        if isinstance(head, OpenHead) or head.has_pending_publishes:
            # Read again: another run may have closed the version between two of these reads.
            head = old.confirm_head(old.find_head())
    except LogMovedError as error:
        if error.fields["moved_to"] != target:
            raise
        return
    if isinstance(head, OpenHead) or head.has_pending_publishes:
        what = "the log cannot be moved while it has an open version or an unpublished commit: run the pipeline at the old location first"
        open_version = head.plan.version if isinstance(head, OpenHead) else None
        raise InvalidError(
            what, log=old.store.url, open=open_version, unpublished=head.closed if head.has_pending_publishes else None
        )


def _claim_location(new: CommitLog, record: PipelineRecord, source: str) -> None:
    """
    Create ``pipeline.json`` at the new location (M2).

    From then on no other pipeline can be created there, and runs reject the log until it is complete.
    """
    stored = new.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
    if stored is None:
        doctor.require_safe(new)
        claim = replace(record, moved_from=source, nonce=_id(new))
        new.perform(procedures.create_entry(keys.PIPELINE, claim))
        stored = new.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
    if stored is None or (stored[0].pipeline_uuid, stored[0].moved_from) != (record.pipeline_uuid, source):
        raise ConflictError(
            "the new location already holds a log that is not the result of this move; nothing was moved",
            moved_from=source,
            pipeline=record.name,
            pipeline_uuid=record.pipeline_uuid,
            moved_to=new.store.url,
            found=None if stored is None else stored[0].name,
            found_uuid=None if stored is None else stored[0].pipeline_uuid,
        )


def _end(old: CommitLog, record: PipelineRecord, target: str) -> int:
    """End the old log with a plan of kind ``move`` (M3). Returns the newest version before that plan."""
    while True:
        _refuse_unfinished(old, target)
        try:
            head = old.confirm_head(old.find_head())
        except LogMovedError as error:  # This move has ended the old log.
            return int(str(error.fields["version"])) - 1
        if isinstance(head, OpenHead) or head.has_pending_publishes:
            continue
        plan = Plan(
            version=head.closed + 1,
            kind="move",
            previous=head.outcome_sha,
            ranges={},
            moved_to=target,
            run_key="move",
            j=0,
            run_start={},
            planned_at_ms=old.clock.now_ms(),
            spec=record.spec if head.outcome is None else head.outcome.spec,
            transform="",
            nonce=_id(old),
        )
        old.perform(procedures.create_entry(keys.plan(plan.version), plan))


def _copy(old: CommitLog, new: CommitLog, moved: Moved, last: int) -> int:
    """
    Copy all objects, then declare the new log complete. Returns the number of objects that this process created.

    Zombies may still create discoveries at the old location, and a slow mover may copy them late. Each process therefore copies the discoveries below its own
    prefix. The record that declares the log complete names the only valid prefix.
    """
    done: set[str] = set()
    copied = 0
    listed: set[str] | None = None
    versions = {key(version) for version in range(last + 1) for key in (keys.plan, keys.outcome)}
    # Repeat until two listings are equal. A listing may contain an object that was created during it, and lack an object that was created before that one.
    while (found := {*old.list_keys("")}) != listed:
        listed = found
        for key in sorted((listed | versions) - done):
            done.add(key)
            location = _location(key, old.sources, moved.sources, last)
            data = old.read(key) if location else None
            if data is None and key in versions:
                raise LogDamagedError("a version lacks its plan or its outcome", invariant="I2", key=key)
            if not location or data is None:  # Vacuum has deleted the object since the listing.
                continue
            creation = new.create(location, data)
            copied += creation.first
            if not creation.mine:
                if new.moved(moved.moved_from) is not None:
                    return copied  # Another process completed the move, and the new log may have grown.
                what = "an object at the new location differs from the log's object with the same key; the old log has ended and is unchanged"
                raise ConflictError(what, moved_from=moved.moved_from, moved_to=new.store.url, key=location)
    _declare(new, moved)
    return copied


def _location(key: str, old_sources: str, new_sources: str, last: int) -> str:
    """
    Return the key of an object's copy, or ``""`` if the object is not copied.

    The mover does not copy ``pipeline.json``, the plan that ends the old log, probes of its store, directory markers, and discoveries below other prefixes.
    """
    if key == keys.PIPELINE or key == keys.plan(last + 1) or key.startswith("doctor/") or key.endswith("/"):
        return ""
    if not key.startswith(keys.SOURCES):
        return key
    return new_sources + key.removeprefix(old_sources) if key.startswith(old_sources) else ""


def _declare(new: CommitLog, moved: Moved) -> None:
    new.perform(procedures.create_entry(keys.moved(moved.moved_from), moved))


def _id(log: CommitLog) -> str:
    return log.clock.new_id()
