"""
Binds a pipeline to its log: checks that the log belongs to the pipeline, that the store is safe and that the immutable fields are unchanged. Writes the
ownership markers of the datasets of a log that has a version. Those of a new log are written before version 0 is planned.

Until Plan(0) exists, the immutable fields of the log are not fixed, so a user may still correct a path or topic. The create of Plan(0) fixes the immutable
fields of its spec (W13a).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_streamsem import extras
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.ownership import claim_dataset
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.pipeline.spec.changes import changed_fields, describe_run
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.codec import canonical, sha256
from airflow_provider_streamsem.protocol.entries import FORK, PUBLISH, Fork, InitialOffsets, Json, PipelineRecord
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.view import ClosedHead, Head
from airflow_provider_streamsem.stores.contract import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPipeline:
    """
    A pipeline that was checked against its log.

    :param head: the head as a listing shows it. The listing may lag, so newer versions may exist (W8)
    :param spec: sha256 of the pipeline's spec
    """

    pipeline: Pipeline
    log: CommitLog
    record: PipelineRecord
    head: Head
    spec: str

    def state_before(self, version: int) -> Json:
        """Return the state after the version before this one; before version 0, the initial state."""
        return self.log.closed_outcome(version - 1).state if version else self.record.initial_state


def bind(pipeline: Pipeline, log: CommitLog) -> BoundPipeline:
    """
    Open the pipeline's log, or create it if it does not exist.

    :raises InvalidError: a client library is not installed, or ``log`` is not the pipeline's log
    :raises UnsafeStoreError: the log is new, and its store does not support atomic create-if-absent
    :raises ConflictError: the log belongs to another pipeline or was moved; its versions were planned with other immutable fields; or a dataset belongs to
        another log
    """
    extras.check(pipeline.extras, pipeline=pipeline.name)
    record = find_record(pipeline, log)
    if record is None:
        record = create_log(pipeline, log)
        _check_name(pipeline, record)  # another process may have created the log
    return _bind(pipeline, log, record, starts=True)


def bind_existing(pipeline: Pipeline, log: CommitLog) -> BoundPipeline:
    """
    Open the pipeline's log as :func:`bind` does, for a call that plans no version 0. Raises ``InvalidError`` if the log does not exist.

    Does not store the initial offsets: a call that is refused must not determine where the first run starts.
    """
    extras.check(pipeline.extras, pipeline=pipeline.name)
    return _bind(pipeline, log, existing_record(pipeline, log), starts=False)


def _bind(pipeline: Pipeline, log: CommitLog, record: PipelineRecord, *, starts: bool) -> BoundPipeline:
    head = log.find_head()
    if head.binding_spec is None:
        assert isinstance(head, ClosedHead)  # an open version names its spec
        head = _at_start(head, record, initial_offsets(pipeline, log, record, store=starts))
        if (
            pipeline.spec_sha256 != record.spec
        ):  # the listing may lag, so the call may plan a later version with this spec
            log.put_spec(pipeline.spec_bytes())
        return BoundPipeline(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)
    check_and_store_spec(pipeline, log, head.binding_spec, version=max(head.closed, 0))
    claim_datasets(pipeline, log, record, new=head.outcome is None)
    return BoundPipeline(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)


def find_record(pipeline: Pipeline, log: CommitLog) -> PipelineRecord | None:
    """Read the log's ``pipeline.json``; ``None`` if the log does not exist. Raises ``ConflictError`` if the log belongs to a pipeline of another name."""
    if open_store(pipeline.log).url != log.store.url:
        raise InvalidError("the given log is not the pipeline's log", pipeline=pipeline.log, given=log.store.url)
    record = log.read_pipeline()
    if record is not None:
        _check_name(pipeline, record)
    return record


def existing_record(pipeline: Pipeline, log: CommitLog) -> PipelineRecord:
    """Read the log's ``pipeline.json`` as :func:`find_record` does, but refuse a log that does not exist."""
    record = find_record(pipeline, log)
    if record is None:
        record = log.existing_pipeline()
        _check_name(pipeline, record)
    return record


def _check_name(pipeline: Pipeline, record: PipelineRecord) -> None:
    if record.name != pipeline.name:
        raise ConflictError(
            "the log belongs to a pipeline with another name; nothing was written",
            log=pipeline.log,
            stored=record.name,
            stored_uuid=record.pipeline_uuid,
            given=pipeline.name,
        ).advising(
            "keep the name `stored`, if this is the same pipeline: a pipeline cannot be renamed. If it is another pipeline, give it its own `log` and its own "
            "datasets."
        )


def read_head(pipeline: Pipeline, log: CommitLog) -> Head:
    """Return the head that a run of the pipeline would find. For readers: writes nothing."""
    extras.check(pipeline.source_extras, pipeline=pipeline.name)
    head = log.find_head()
    if head.binding_spec is None:
        assert isinstance(head, ClosedHead)  # an open version names its spec
        record = find_record(pipeline, log)
        return _at_start(head, record, initial_offsets(pipeline, log, record, store=False))
    check_immutable_config(pipeline, log, head.binding_spec, version=max(head.closed, 0))
    return head


def _at_start(head: ClosedHead, record: PipelineRecord | None, start: Offsets) -> ClosedHead:
    """Return the head of a log without versions, with the offsets and the source's hint with which version 0 is planned."""
    fork = None if record is None else record.fork
    return replace(head, initial_offsets=start, initial_hint=None if fork is None else fork.hint)


def initial_offsets(pipeline: Pipeline, log: CommitLog, record: PipelineRecord | None, *, store: bool) -> Offsets:
    """
    Return the offsets at which version 0 starts if it is planned with the pipeline's source.

    :param record: the log's ``pipeline.json``, which has the offsets of a fork (K4)
    :param store: whether to store the offsets if no run has stored them, so that later runs with this source start there too
    """
    if record is not None and record.fork is not None:
        check_fork(pipeline, record.fork)
        return record.fork.offsets
    stored = log.initial_offsets(pipeline.source_sha256)
    if stored is not None:
        return stored.offsets
    proposed = InitialOffsets(offsets=pipeline.source.initial_offsets(), nonce=log.clock.new_id())
    return log.put_initial_offsets(pipeline.source_sha256, proposed).offsets if store else proposed.offsets


def claim_datasets(pipeline: Pipeline, log: CommitLog, record: PipelineRecord, *, new: bool) -> None:
    """
    Write the ownership markers of the pipeline's datasets, or verify the existing ones. A marker that names an earlier location of a moved log is valid (M6).

    :param new: whether no version is closed yet. Only then may a dataset without an ownership marker be claimed
    :raises DatasetOwnedError: a dataset belongs to another pipeline or log
    """
    for name, sink in pipeline.sinks.items():
        claim_dataset(name, sink, log, record, url=pipeline.log, new=new)


def check_and_store_spec(pipeline: Pipeline, log: CommitLog, stored: str, *, version: int) -> None:
    """
    Store the pipeline's spec if it differs from the spec of ``version``. The immutable fields of both must be equal.

    :param stored: sha256 of the spec of ``version``
    :param version: the newest closed version, or 0
    """
    check_immutable_config(pipeline, log, stored, version=version)
    if pipeline.spec_sha256 != stored:
        log.put_spec(pipeline.spec_bytes())


def check_immutable_config(pipeline: Pipeline, log: CommitLog, stored: str, *, version: int) -> None:
    """Check that the pipeline's immutable fields equal those of the spec of ``version`` (W35). Writes nothing, and sends no request if the specs are equal."""
    if pipeline.spec_sha256 == stored:
        return
    before, now = log.config_of(stored), pipeline.immutable_config()
    if before != now:
        plan = log.plan(version)
        raise ConflictError(
            "the spec's immutable fields differ from those of the log; nothing was written",
            log=pipeline.log,
            pipeline=pipeline.name,
            fields=changed_fields(before, now),
            stored=before,
            given=now,
            config=config_digest(before, _newest_alter(log, version))[:12],
            version=version,
            planned_by="" if plan is None else describe_run(plan.run_key),
        ).advising(
            "if the change is intended, see what it means with `streamsem alter PIPELINE.toml --dry-run` (a pipeline in a Python file: "
            "`streamsem alter dags/orders.py:ORDERS --dry-run`), then run the command without --dry-run, or set "
            "alter_from of the operator to `config`. Otherwise make the immutable fields equal to those in the log, or give this pipeline its own log and "
            "its own datasets."
        )


def config_digest(immutable_config: Json, newest_alter: int | None) -> str:
    """
    Return the text by which a request to alter a pipeline names the spec that it replaces.

    It is valid for one alter: after the pipeline was altered and altered back, the same fields have another digest.
    """
    return sha256(canonical([immutable_config, newest_alter]))


def _newest_alter(log: CommitLog, version: int) -> int | None:
    outcome = log.outcome(version)
    return None if outcome is None else outcome.newest.get(Alter.kind)


def forked_config(immutable_config: Mapping[str, Json], state: Json) -> dict[str, Json]:
    """Return the immutable fields on which the offsets and the state of a fork depend: without a state, only the source."""
    names = ("source",) if state is None else ("source", "dedup", "state")
    return {name: immutable_config.get(name) for name in names}


def check_fork(pipeline: Pipeline, fork: Fork) -> None:
    """Check that the pipeline has the immutable fields with which its log was forked."""
    if fork.config != sha256(canonical(forked_config(pipeline.immutable_config(), fork.state))):
        summary = "the log was forked with another source, other dedup keys or another output mode; nothing was written"
        raise ConflictError(summary, log=pipeline.log, forked_from=fork.log, version=fork.version).advising(
            "use the source, the dedup keys and the output mode with which the log was forked, or another log."
        )


def create_log(pipeline: Pipeline, log: CommitLog, *, fork: Fork | None = None) -> PipelineRecord:
    """
    Create the pipeline's log, and return the stored record, which may be that of another process.

    :raises UnsafeStoreError: the store does not support atomic create-if-absent
    :raises ConflictError: a dataset of the pipeline was written by a log that is lost
    """
    try:
        for sink in pipeline.sinks.values():
            sink.refuse_existing_output(pipeline.log)
    except ConflictError as error:
        # Another process may have created the log and the ownership marker since this process read that the log is missing.
        concurrent_record = log.read_pipeline()
        if concurrent_record is None:
            raise error.with_fields(pipeline=pipeline.name) from error
        return concurrent_record
    doctor.require_safe(log)
    record = PipelineRecord(
        pipeline_uuid=log.clock.new_id(),
        name=pipeline.name,
        spec=log.put_spec(pipeline.spec_bytes()),
        writer_features=(PUBLISH,) if fork is None else (FORK, PUBLISH),
        fork=fork,
        nonce=log.clock.new_id(),
    )
    return log.create_pipeline(record)
