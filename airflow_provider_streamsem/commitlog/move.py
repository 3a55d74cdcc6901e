"""
Moves a log to another location (PROTOCOL.md, 10): ``streamsem move-log``.

A move is safe while pipelines run. After a crash at any request, an operator runs the same move again. Safety depends on the order of the steps:

1. Claim the new location.
2. End the old log with the create of one object.
3. Copy the objects, which can no longer change.
4. Declare the new log complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import ConflictError, InvalidError, LogDamagedError, LogMovedError
from airflow_provider_streamsem.protocol import keys, procedures
from airflow_provider_streamsem.protocol.entries import Moved, PipelineRecord, Plan
from airflow_provider_streamsem.protocol.kinds.move import Move
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.stores.contract import normalised, overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLog:
    """
    The result of a move.

    :param pipeline: name of the pipeline
    :param moved_from: URL of the old log
    :param moved_to: URL of the new log
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
    Move the log of a pipeline to another location.

    The datasets stay at their locations. The objects of the old log stay readable. A run that uses the old log fails with an error that names the new log.

    :param new: the log at the new location, which must be empty, or the target of the same move
    :param already_moved: only record the move in the new log, because all objects were moved by hand and none is left at the old location
    :raises InvalidError: there is no log to move, the two locations overlap, the old log is unfinished, or ``already_moved`` contradicts the old location. A
        log is unfinished if it has an open version or pending publishes
    :raises ConflictError: the new location holds another log or other bytes under a key of this log, or the old log was moved elsewhere
    """
    source, target = normalised(old.store.url), normalised(new.store.url)
    if overlap(source, target):
        raise InvalidError(
            "the old and the new location of a log must not be equal or contain each other",
            moved_from=source,
            moved_to=target,
        )
    record = old.read_pipeline()
    if record is None:
        return _record_move_by_hand(old, new, source, target, already_moved=already_moved)
    if already_moved:
        summary = "the old location still holds the log, so the log was not moved by hand; nothing was recorded"
        raise InvalidError(summary, moved_from=source, moved_to=target).advising(
            "run the command without --already-moved, which moves the log."
        )
    _refuse_unfinished(old, target)
    _claim_location(new, record, source)
    last = _end_log(old, record, target)
    copied = 0
    if new.moved(source) is None:
        sources = f"{keys.SOURCES}{_new_id(new)}/"
        moved = _moved(record, source, target, sources, _new_id(new))
        copied = _copy(old, new, moved, last)
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=last, copied=copied)


def _record_move_by_hand(old: CommitLog, new: CommitLog, source: str, target: str, *, already_moved: bool) -> MovedLog:
    """Record a move that an operator made by hand. With this record, the ownership markers that name the old log are valid for the new log."""
    record = new.read_pipeline()
    if record is None:
        raise InvalidError("there is no log at either location", moved_from=source, moved_to=target)
    if not already_moved or old.list_keys(keys.LOG, 1):
        summary = "the old location has no pipeline.json, so no log can be moved from it; nothing was moved or recorded"
        raise InvalidError(summary, moved_from=source, moved_to=target).advising(
            "correct the old location. If the log was moved by hand and no object is left there, run the command with --already-moved."
        )
    _declare_complete(new, _moved(record, source, target, new.sources, _new_id(new)))
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=new.find_head().closed, copied=0)


def _moved(record: PipelineRecord, source: str, target: str, sources: str, nonce: str) -> Moved:
    uuid = record.pipeline_uuid
    return Moved(moved_from=source, moved_to=target, pipeline_uuid=uuid, sources=sources, nonce=nonce)


def _refuse_unfinished(old: CommitLog, target: str) -> None:
    """Only a run at the old location can close or publish the head."""
    try:
        head = old.newest_head()
        if isinstance(head, OpenHead) or head.has_pending_publishes:
            # Read the head again, because a run may have closed the version between two requests of the first read.
            head = old.newest_head()
    except LogMovedError as error:
        if error.fields["moved_to"] != target:
            raise
        return
    if isinstance(head, OpenHead) or head.has_pending_publishes:
        raise InvalidError(
            "the log cannot be moved while it has an open version or pending publishes; nothing was moved",
            log=old.store.url,
            open=head.plan.version if isinstance(head, OpenHead) else None,
            pending=head.closed if head.has_pending_publishes else None,
        ).advising("run the pipeline at the old location until it has neither, then move the log.")


def _claim_location(new: CommitLog, record: PipelineRecord, source: str) -> None:
    """After ``pipeline.json`` exists (M2), no other pipeline can create a log there, and runs refuse this log until it is complete."""
    stored = new.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
    if stored is None:
        doctor.require_safe(new)
        claim = replace(record, moved_from=source, nonce=_new_id(new))
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


def _end_log(old: CommitLog, record: PipelineRecord, target: str) -> int:
    """End the old log with a plan of kind ``move`` (M3), and return the newest version before that plan; -1 if there is none."""
    while True:
        _refuse_unfinished(old, target)
        try:
            head = old.newest_head()
        except LogMovedError as error:  # the old log has ended: _refuse_unfinished has checked that this move ended it
            return int(str(error.fields["version"])) - 1
        if isinstance(head, OpenHead) or head.has_pending_publishes:
            continue
        plan = Plan(
            version=head.closed + 1,
            work=Move(moved_to=target),
            previous=head.outcome_sha,
            ranges={},
            run_key="move",
            j=0,
            run_start={},
            planned_at_ms=old.clock.now_ms(),
            spec=record.spec if head.outcome is None else head.outcome.spec,
            transform="",
            nonce=_new_id(old),
        )
        old.perform(procedures.create_entry(keys.plan(plan.version), plan))


def _copy(old: CommitLog, new: CommitLog, moved: Moved, last: int) -> int:
    """
    Copy all objects, then declare the new log complete. Return the number of objects that this process created.

    Zombies may still create discoveries at the old location, and a slow process may copy them late. So each process copies the discoveries below its own
    prefix, and the record that declares the log complete names the only valid prefix.
    """
    done: set[str] = set()
    copied = 0
    listed: set[str] | None = None
    versions = {key(version) for version in range(last + 1) for key in (keys.plan, keys.outcome)}
    # Repeat until two listings are equal, because a listing is not a snapshot: it may contain an object and lack an object that was created earlier.
    while (current := {*old.list_keys("")}) != listed:
        listed = current
        for key in sorted((listed | versions) - done):
            done.add(key)
            copy_key = _copied_key(key, old.sources, moved.sources, last)
            data = old.read(key) if copy_key else None
            if data is None and key in versions:
                raise LogDamagedError("the plan or the outcome of a version is missing", invariant="I2", key=key)
            if data is None:  # Vacuum has deleted the object since the listing, or it is not copied.
                continue
            creation = new.create(copy_key, data)
            copied += creation.first
            if not creation.mine:
                if new.moved(moved.moved_from) is not None:
                    return copied  # Another process has completed the move, and runs may have extended the new log.
                summary = "the new location has another object under a key of the log; the move is not complete, and the objects of the old log are unchanged"
                raise ConflictError(
                    summary, moved_from=moved.moved_from, moved_to=moved.moved_to, key=copy_key
                ).advising("if no log uses the new location, delete the objects below it, then repeat the command.")
    _declare_complete(new, moved)
    return copied


def _copied_key(key: str, old_sources: str, new_sources: str, last: int) -> str:
    """
    Return ``""`` for an object that is not copied: ``pipeline.json``, the plan that ends the old log (after version ``last``), probes of its store, directory
    markers, and discoveries below prefixes other than ``old_sources``.
    """
    if key == keys.PIPELINE or key == keys.plan(last + 1) or key.startswith("doctor/") or key.endswith("/"):
        return ""
    if not key.startswith(keys.SOURCES):
        return key
    return new_sources + key.removeprefix(old_sources) if key.startswith(old_sources) else ""


def _declare_complete(new: CommitLog, moved: Moved) -> None:
    new.perform(procedures.create_entry(keys.moved(moved.moved_from), moved))


def _new_id(log: CommitLog) -> str:
    return log.clock.new_id()
