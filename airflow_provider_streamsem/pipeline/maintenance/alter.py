"""Changes the immutable fields of a pipeline: its sinks, its source, its deduplication or its state (PROTOCOL.md, 4.10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text, text_list
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.ownership import claim_dataset
from airflow_provider_streamsem.errors import ConflictError, HeldVersionError, InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline, config_digest, find_record
from airflow_provider_streamsem.pipeline.spec.changes import changed_fields
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.commit import commit, plan_of, settle_and_publish
from airflow_provider_streamsem.pipeline.versions.publish import publishing_sink
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead
from airflow_provider_streamsem.state.settings import FIELD as OPERATORS

logger = telemetry.log_of(__name__)

_TRIES = 10
"""Maximum number of attempts to commit an alter."""
_SHOWN = 12
"""How many characters of a config are shown and required."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    One difference between the spec in the log and the given one.

    :param field: path of the field, such as ``sinks.lake`` or ``limits.max_rows``
    :param kind: ``added``, ``removed``, ``replaced``, ``moved``, ``extended`` or ``changed``. A field that is only ``changed`` needs no alter
    :param effect: what the change means for the rows and for readers, in one sentence
    """

    field: str
    kind: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """
    The result of an alter, or of its dry run.

    :param log: URL of the log
    :param version: the version of the alter; ``None`` for a dry run, and if no immutable field differs, so that nothing was written
    :param config: the config id of the log before the alter, for ``alter_from``
    :param changes: all differences between the specs
    :param guarantee: sink → its guarantee before and after, as labels; ``None`` if the pipeline does not have the sink
    :param aborted: the open version that the alter aborted, or in a dry run would abort; ``None`` if there is none. The next run reads the records of a batch
    """

    log: str
    version: int | None
    config: str
    changes: tuple[Change, ...]
    guarantee: Mapping[str, tuple[str | None, str | None]]
    aborted: int | None = None


@with_log_location
def alter(
    pipeline: Pipeline,
    *,
    alter_from: str | None = None,
    moved: Sequence[str] = (),
    dry_run: bool = False,
    log: CommitLog | None = None,
) -> Alteration:
    """
    Continue the log of a pipeline with a spec whose immutable fields differ.

    The alter is a version itself. Runs with the former spec fail from then on, and runs with the given spec continue from the same offsets. Any field that is
    not immutable may change without an alter.

    * A sink that is added gets the rows of all later versions. Reprocessing adds the rows of earlier versions, if all sinks can replace rows.
    * A sink that is removed keeps its rows, but they are no longer visible through the log. The same holds for the former dataset or table of a sink whose
      location is changed, unless the sink is in ``moved``.
    * A source may be changed so that it reads more, such as another Kafka topic. It continues after the committed offsets.
    * Deduplication or state that is added or changed starts empty. The rows of open windows are never written.

    An open version is closed first: a batch or a reprocessing run as an abort, and the next run reads the records of the batch; a rollback or another alter as
    a commit. A pending publish is completed. If the process dies, the next run, or a repeated call, completes the alter. A call that finds the given immutable
    fields in the log writes nothing.

    :param pipeline: the new spec, with the same name and log
    :param alter_from: the config id of the fields that the spec replaces: 12 or more characters that identify the immutable fields in the log and the newest
        alter. A dry run and the error of a run name it. It is valid for one alter. Default: any
    :param moved: files sinks whose dataset was copied to the new path, with all files. Their rows stay visible
    :param dry_run: return the changes, and write nothing. Does not check the datasets, the tables, their markers and pending publishes
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the log has no version; the source cannot continue after the offsets; or a sink is not in the state that the change requires. Nothing
        was altered
    :raises ConflictError: the log has other fields than ``alter_from``; another log owns a dataset; a publish is pending for a sink that is removed; or every
        attempt lost to a version of another process. The immutable fields in the log are unchanged
    :raises UnavailableError: a sink did not report a result. A repeated call continues
    """
    if alter_from is not None and len(text("alter_from", alter_from)) < _SHOWN:
        raise InvalidError(f"`alter_from` must have at least {_SHOWN} characters", given=alter_from)
    for name in text_list("moved", moved) if moved else ():
        if name not in pipeline.sinks:
            raise InvalidError(
                "`moved` names a sink that the spec does not have", given=name, accepted=sorted(pipeline.sinks)
            )
    log = log or commit_log_at(pipeline.log)
    record = find_record(pipeline, log)
    head = log.newest_head() if record is not None else ClosedHead()
    if record is None or head.spec is None:
        raise InvalidError(
            "the log has no version, so no field is immutable yet; nothing was altered", log=pipeline.log
        ).advising("run the pipeline with the new spec.")
    bound = BoundPipeline(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)
    return _alter(bound, alter_from, frozenset(moved), dry_run=dry_run)


_ABORT_REASON = "the pipeline is altered"


def _alter(bound: BoundPipeline, alter_from: str | None, moved: frozenset[str], *, dry_run: bool) -> Alteration:
    log, head, aborted = bound.log, bound.head, None
    for _ in range(_TRIES):
        if isinstance(head, OpenHead) and isinstance(head.plan.work, Alter) and not dry_run:
            head, _ = settle_and_publish(bound, head, "alter")
        assert head.spec is not None  # the log has a version
        before = stored_spec(log.read_spec(head.spec))
        fields = before["immutable_config"]
        newest_alter = None if head.outcome is None else head.outcome.newest.get(Alter.kind)
        now = bound.pipeline.immutable_config()
        if fields != now:
            _check_moved_names(fields, now, moved)
        changes = diff(fields, now, moved)
        altered = _altered(bound, head, fields, changes)
        result = Alteration(
            log=log.store.url,
            version=None,
            config=config_digest(fields, newest_alter)[:_SHOWN],
            changes=_described(bound, before, altered, changes),
            guarantee=_guarantees(before, bound.pipeline),
            aborted=aborted,
        )
        if fields == now:
            return result
        if fields.get("intervals") != now.get("intervals"):
            raise InvalidError(
                "a log has intervals from its first version on, or none; the immutable fields in the log are unchanged",
                log=log.store.url,
            ).advising("give the pipeline another name, log and datasets.")
        if alter_from is not None and not config_digest(fields, newest_alter).startswith(alter_from):
            raise ConflictError(
                "`alter_from` does not match the log: the pipeline was altered since, or `alter_from` is wrong; the immutable fields in the log are unchanged",
                log=log.store.url,
                alter_from=alter_from,
                config=result.config,
                fields=changed_fields(fields, now),
            ).advising(
                "if this is an old task, deploy the newest spec. If this spec is the newest, set alter_from to `config`."
            )
        if dry_run:
            return replace(result, aborted=_aborted_by_alter(head))
        if isinstance(head, OpenHead) or head.has_pending_publishes:
            head, outcome = settle_and_publish(bound, head, "alter", abort_reason=_ABORT_REASON)
            if outcome is not None and outcome.reason == _ABORT_REASON:  # not the abort of a run
                aborted = outcome.version
            continue
        head, version = _commit(bound, head, changes, altered)
        if version is not None:
            logger.info(
                "version %d altered the pipeline: %s", version, ", ".join(change.field for change in result.changes)
            )
            return replace(result, version=version)
    raise ConflictError(
        "every attempt to commit the alter lost to a version of another process; the immutable fields in the log are unchanged",
        log=log.store.url,
        attempts=_TRIES,
    ).advising("pause the DAG of this pipeline, then alter it again.")


def _commit(
    bound: BoundPipeline, head: ClosedHead, changes: Sequence[Change], altered: Alter
) -> tuple[Head, int | None]:
    """Return the newest head, and the version of the alter; ``None`` if another process has created a version first."""
    log = bound.log
    for name, sink in bound.pipeline.sinks.items():
        is_new = name in _sinks(changes, "added", "replaced")
        claim_dataset(name, sink, log, bound.record, url=bound.pipeline.log, new=is_new)
    try:
        _check_sinks(bound, head, changes)
    except ConflictError:
        newest = log.newest_head()
        if newest.closed == head.closed:
            raise
        return newest, None  # the files are those of a version of another process, which has altered the pipeline first
    log.put_spec(bound.pipeline.spec_bytes())
    run_key = f"alter:{bound.spec[:_SHOWN]}:{head.closed + 1}"
    transform = bound.pipeline.transform_name
    plan = plan_of(log, head, altered, run_key=run_key, spec=bound.spec, transform=transform)
    newest, outcome = commit(log, head, plan)
    return newest, outcome.version if outcome is not None and outcome.committed else None


def _aborted_by_alter(head: Head) -> int | None:
    """Return the open batch or reprocessing run, which the alter aborts."""
    if isinstance(head, OpenHead) and head.plan.work.is_held:
        raise HeldVersionError("the open version is held; nothing was altered", version=head.plan.version)
    return head.plan.version if isinstance(head, OpenHead) and head.plan.work.has_rows else None


_EFFECTS = {
    ("sinks", "added"): "it gets the rows of later versions only",
    ("sinks", "removed"): "its rows stay where they are, but readers of the log no longer see them",
    ("sinks", "moved"): "readers of the log find all rows at the new location, at every version",
    (
        "sinks",
        "replaced",
    ): "another dataset or table ({fields}); the former rows stay there, but readers of the log no longer see them",
    ("dedup", "added"): "later versions do not know the ids of earlier ones",
    ("dedup", "removed"): "the ids of earlier versions are dropped",
    ("dedup", "replaced"): "the ids of earlier versions are dropped, so a record that repeats one is written",
    ("state", "added"): "later versions start with an empty state",
    ("state", "removed"): "the state is dropped; rows of open windows are never written",
    ("state", "replaced"): "later versions start with an empty state; rows of open windows are never written",
}


def diff(before: Json, now: Json, moved: Collection[str] = ()) -> list[Change]:
    """Return the changes of the deduplication, the state and the sinks between two sets of immutable fields. For ``moved``, see :func:`alter`."""
    changes = []
    pairs = {field: (before.get(field), now.get(field)) for field in ("dedup", "state")}
    names = sorted({*before["sinks"], *now["sinks"]})
    pairs |= {f"sinks.{name}": (before["sinks"].get(name), now["sinks"].get(name)) for name in names}
    for field, (old, new) in pairs.items():
        if old != new:
            section, _, name = field.partition(".")
            changed = "moved" if name in moved else "replaced"
            kind = "added" if old is None else "removed" if new is None else changed
            fields = ", ".join(changed_fields(old, new)) if kind == "replaced" else ""
            changes.append(Change(field, kind, _EFFECTS[section, kind].format(fields=fields)))
    return changes


def _sinks(changes: Iterable[Change], *kinds: str) -> list[str]:
    """Return the sinks with changes of some kinds."""
    return [
        change.field.removeprefix("sinks.")
        for change in changes
        if change.field.startswith("sinks.") and change.kind in kinds
    ]


def _altered(bound: BoundPipeline, head: Head, before: Json, changes: Iterable[Change]) -> Alter:
    """Return the changes as the plan records them. ``before`` are the immutable fields in the log."""
    state = (None if head.outcome is None else head.outcome.state) or {}
    changed = {change.field for change in changes}
    dropped = [stored for field, stored in (("dedup", "dedup"), ("state", OPERATORS)) if field in changed]
    return Alter(
        offsets=_new_offsets(bound, head, before["source"]),
        state=tuple(sorted(stored for stored in dropped if stored in state)),
        removed=tuple(sorted(_sinks(changes, "removed", "replaced"))),
    )


def _check_moved_names(before: Json, now: Json, moved: Collection[str]) -> None:
    old, new = before["sinks"], now["sinks"]
    if unmoved := sorted(name for name in moved if old.get(name) in (None, new[name])):
        raise InvalidError(
            "`moved` names sinks that the log does not have or whose location is unchanged; nothing was altered",
            given=unmoved,
        ).advising("remove them from `moved`.")
    if others := sorted(
        name
        for name in moved
        if new[name]["type"] != "files" or old[name] != {**new[name], "path": old[name].get("path")}
    ):
        raise InvalidError(
            "`moved` names sinks of which more than the path differs, or that are no files sinks; nothing was altered",
            given=others,
        ).advising(
            "change only their path, or remove them from `moved`: readers of the log then no longer see their former rows."
        )


def _new_offsets(bound: BoundPipeline, head: Head, before: Json) -> Offsets:
    """Return the offsets at which the partitions start that a changed source adds. ``before`` are the immutable fields of the source in the log."""
    source, log = bound.pipeline.source, bound.log
    if before == source.immutable_config():
        return {}
    offsets = source.extends(before)
    if offsets is None:
        raise InvalidError(
            "the source reads other records than that of the log, so it cannot continue after the committed offsets; nothing was altered",
            stored=before,
            given=source.immutable_config(),
        ).advising("start a new pipeline with a new log, or run: streamsem fork NEW.toml LOG --from TIME.")
    if log.list_keys(log.source_prefix(before), 1):
        raise InvalidError(
            "the log stores the discovered files or messages of a source for this set of sources; nothing was altered",
            stored=before,
        ).advising(
            "give the new topic or source its own pipeline, or start a new pipeline with a new log. This concerns files sources and queues."
        )
    return {name: offset for name, offset in offsets.items() if name not in head.next}


def _described(bound: BoundPipeline, before: Json, altered: Alter, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return all changes for users: also that of the source, and those of fields that are not immutable. ``before`` is the spec in the log."""
    pipeline = bound.pipeline
    all_changes = []
    if before["immutable_config"]["source"] != pipeline.source.immutable_config():
        names = ", ".join(f"{name} from offset {offset}" for name, offset in sorted(altered.offsets.items()))
        effect = f"later versions also read {names or 'partitions that do not exist yet'}"
        all_changes.append(Change("source", "extended", effect))
    # Reprocessing adds the rows of earlier versions to a new sink, if all sinks can replace rows.
    past = "" if pipeline.sinks_that_cannot_remove_rows else "; reprocess earlier versions to add theirs"
    all_changes += [
        replace(change, effect=change.effect + past)
        if change.kind == "added" and change.field.startswith("sinks.")
        else change
        for change in changes
    ]
    described = ("guarantee", *(change.field for change in all_changes))
    others = [
        path
        for path in changed_fields(before, pipeline.to_json())
        if not any(path == field or path.startswith(f"{field}.") for field in described)
    ]
    effect = "the next run uses it; no alter is needed"
    return (*all_changes, *(Change(path, "changed", effect) for path in others))


def _check_sinks(bound: BoundPipeline, head: ClosedHead, changes: Iterable[Change]) -> None:
    """Check that new datasets and tables have no rows of this pipeline, and that moved datasets have all files."""
    pipeline, added = bound.pipeline, _sinks(changes, "added", "replaced")
    for name in added:
        sink = pipeline.sinks[name]
        if sink.attempts():
            summary = "the dataset of a new sink has files of an earlier sink of this pipeline; the immutable fields in the log are unchanged"
            raise ConflictError(summary, sink=name, location=sink.location).advising("give the sink another location.")
    for name in added:
        outside = name in pipeline.sinks_outside_log
        marker = publishing_sink(pipeline, name).marker(bound.record.pipeline_uuid, name) if outside else None
        if marker is not None:
            summary = "the target of a new sink has a marker of this pipeline under the name of the sink; the immutable fields in the log are unchanged"
            raise ConflictError(summary, sink=name, marker=marker.version).advising(
                "give the sink another name. Markers of databases and of Kafka are stored by the name of the sink."
            )
    for name in _sinks(changes, "moved"):
        _check_moved_files(bound, head, name)


def _check_moved_files(bound: BoundPipeline, head: ClosedHead, name: str) -> None:
    sink = bound.pipeline.sinks[name]
    # Readers of the newest version need the files of rewrites, and readers of some versions only (`since`) those of the commits.
    views = [bound.log.view(version=head.closed, with_rewrites=each) for each in (True, False)]
    files = tuple({file.file.key: file.file for view in views for file in view.sink(name)}.values())
    if not sink.is_complete(Committable(format=sink.format, rows=sum(file.rows for file in files), files=files)):
        raise InvalidError(
            "files of the dataset are missing at the new path, or differ; the immutable fields in the log are unchanged",
            sink=name,
            location=sink.location,
        ).advising("copy all files, `_streamsem.json` included, then alter the pipeline again.")


def _guarantees(before: Mapping[str, Json], pipeline: Pipeline) -> dict[str, tuple[str | None, str | None]]:
    recorded = before.get("guarantee")
    stored = recorded.get("sinks", {}) if isinstance(recorded, Mapping) else {}
    now = guarantee(pipeline).sinks
    return {name: (stored.get(name), now.get(name)) for name in sorted({*stored, *now})}
