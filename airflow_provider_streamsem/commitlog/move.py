"""
Moving a log to another place (PROTOCOL.md, 10): ``streamsem move-log``. Safe beside running pipelines, and after a crash at any request by running it again.

The order is the safety argument: take the new place, end the old log by one create, copy what can no longer change, then declare the new log complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import ConflictError, InvalidError, LogDamagedError, LogMovedError
from airflow_provider_streamsem.protocol import keys, procedures
from airflow_provider_streamsem.protocol.entries import Moved, PipelineRecord, Plan
from airflow_provider_streamsem.stores.contract import normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLog:
    """What a move did: the newest version that was moved (-1: none), and how many objects this process copied."""

    pipeline: str
    moved_from: str
    moved_to: str
    version: int
    copied: int


def move_log(old: CommitLog, new: CommitLog, *, already_moved: bool = False) -> MovedLog:
    """
    Move a pipeline's log. The datasets stay where they are; the old log stays readable as objects, and refuses every run, naming the new one.

    :param already_moved: all objects were moved by hand, and nothing is at the old place any more: only record it in the new log
    :raises InvalidError: there is no log to move, the two places overlap, or the old log has an open version or an unpublished commit
    :raises ConflictError: the new place holds another log; the old one was moved elsewhere
    """
    source, target = normalised(old.store.url), normalised(new.store.url)
    if f"{source}/".startswith(f"{target}/") or f"{target}/".startswith(f"{source}/"):
        raise InvalidError("a log cannot be moved into itself or out of itself", moved_from=source, moved_to=target)
    record = old.read_pipeline()
    if record is None:
        return _recorded(old, new, source, target, already_moved=already_moved)
    if already_moved:
        what = "the old place still holds the log, so it was not moved by hand"
        raise InvalidError(what, moved_from=source, moved_to=target)
    _refuse_unfinished(old, target)
    _take_place(new, record, source)
    last = _end(old, record, target)
    copied = 0
    if new.moved(source) is None:
        sources = f"{keys.SOURCES}{_id(new)}/"
        moved = Moved(moved_from=source, pipeline_uuid=record.pipeline_uuid, sources=sources, nonce=_id(new))
        copied = _copy(old, new, moved, last)
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=last, copied=copied)


def _recorded(old: CommitLog, new: CommitLog, source: str, target: str, *, already_moved: bool) -> MovedLog:
    """The log was moved by hand: only the record is missing that makes marks of datasets count."""
    record = new.read_pipeline()
    if record is None:
        raise InvalidError("there is no log at either place", moved_from=source, moved_to=target)
    if not already_moved or old.list_keys(keys.LOG, 1):
        what = "the old place holds no log; if all its objects were moved by hand, say so with --already-moved"
        raise InvalidError(what, moved_from=source, moved_to=target)
    _declare(new, Moved(moved_from=source, pipeline_uuid=record.pipeline_uuid, sources=new.sources, nonce=_id(new)))
    return MovedLog(pipeline=record.name, moved_from=source, moved_to=target, version=new.find_head().closed, copied=0)


def _refuse_unfinished(old: CommitLog, target: str) -> None:
    """Before anything is written: what is open must be closed by a run at the old place."""
    try:
        head = old.confirm_head(old.find_head())
        if head.plan is not None or head.owes:  # read again: it may have been closed between two of these reads
            head = old.confirm_head(old.find_head())
    except LogMovedError as error:
        if error.fields["moved_to"] != target:
            raise
        return
    if head.plan is not None or head.owes:
        what = "a log can be moved when it has no open version and no unpublished commit: run the pipeline at the old place first"
        open_version = None if head.plan is None else head.plan.version
        raise InvalidError(what, log=old.store.url, open=open_version, unpublished=head.closed if head.owes else None)


def _take_place(new: CommitLog, record: PipelineRecord, source: str) -> None:
    """Create ``pipeline.json`` at the new place: from then on no other pipeline can be created there, and no run accepts it until it is complete."""
    stored = new.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
    if stored is None:
        doctor.require_safe(new)
        claim = replace(record, moved_from=source, nonce=_id(new))
        new.perform(procedures.create_entry(keys.PIPELINE, claim))
        stored = new.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
    if stored is None or (stored[0].pipeline_uuid, stored[0].moved_from) != (record.pipeline_uuid, source):
        raise ConflictError(
            "the new place already holds a log that is not the result of this move; nothing was moved",
            moved_from=source,
            pipeline=record.name,
            pipeline_uuid=record.pipeline_uuid,
            moved_to=new.store.url,
            found=None if stored is None else stored[0].name,
            found_uuid=None if stored is None else stored[0].pipeline_uuid,
        )


def _end(old: CommitLog, record: PipelineRecord, target: str) -> int:
    """End the old log by a plan of the kind ``move`` (M3); returns the newest version before it."""
    while True:
        _refuse_unfinished(old, target)
        try:
            head = old.confirm_head(old.find_head())
        except LogMovedError as error:  # by this very move
            return int(str(error.fields["version"])) - 1
        if head.plan is not None or head.owes:
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
    Copy all objects, then declare the new log complete; returns how many objects were copied.

    Zombies may still create discoveries at the old place, and slow movers may copy them late. So each process copies the discoveries below a prefix of its own,
    and the one record that declares the log complete names the prefix that counts.
    """
    done: set[str] = set()
    copied = 0
    listed: set[str] | None = None
    versions = {key(version) for version in range(last + 1) for key in (keys.plan, keys.outcome)}
    # Until two listings agree: an object that was created during one may hide an earlier one, never during both.
    while (found := {*old.list_keys("")}) != listed:
        listed = found
        for key in sorted((listed | versions) - done):
            done.add(key)
            place = _place(key, old.sources, moved.sources, last)
            data = old.read(key) if place else None
            if data is None and key in versions:
                raise LogDamagedError("a version lacks its plan or its outcome", invariant="I2", key=key)
            if not place or data is None:  # vacuum has removed it in the meantime
                continue
            creation = new.create(place, data)
            copied += creation.first
            if not creation.mine:
                if new.moved(moved.moved_from) is not None:
                    return copied  # another process has completed the move, and the log goes on
                what = "the new place holds other bytes under a key of the log; the old log has ended and is unchanged"
                raise ConflictError(what, moved_from=moved.moved_from, moved_to=new.store.url, key=place)
    _declare(new, moved)
    return copied


def _place(key: str, old_sources: str, new_sources: str, last: int) -> str:
    """The key of a copy; ``""`` for what is not copied: the end of the old log, its own record, probes of its store."""
    if key == keys.PIPELINE or key == keys.plan(last + 1) or key.startswith("doctor/") or key.endswith("/"):
        return ""
    if not key.startswith(keys.SOURCES):
        return key
    return new_sources + key.removeprefix(old_sources) if key.startswith(old_sources) else ""


def _declare(new: CommitLog, moved: Moved) -> None:
    new.perform(procedures.create_entry(keys.moved(moved.moved_from), moved))


def _id(log: CommitLog) -> str:
    return log.clock.new_id()
