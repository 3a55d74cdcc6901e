"""
Opening a pipeline on its log: identity, safety of the store, guarded fields, claims on the datasets.

Until Plan(0) exists nothing binds the log to a spec: a corrected path or topic simply counts. The create of Plan(0) decides which spec the log is bound to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_streamsem import extras
from airflow_provider_streamsem.batch.changes import changed_fields, described
from airflow_provider_streamsem.batch.pipeline import Pipeline, stored_spec
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.errors import ConflictError, DatasetTakenError, InvalidError, LogMovedError
from airflow_provider_streamsem.protocol.entries import PUBLISH, Genesis, PipelineRecord
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.stores.contract import normalised, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A pipeline on its log, checked; ``head`` is what a listing hinted at."""

    pipeline: Pipeline
    log: CommitLog
    record: PipelineRecord
    head: Head
    spec: str


def open_pipeline(pipeline: Pipeline, log: CommitLog) -> Opened:
    """
    Find the pipeline in its log, or create it there.

    :raises InvalidError: a client library is not installed
    :raises UnsafeStoreError: a new log on a store that does not keep create-if-absent
    :raises ConflictError: the log is of another pipeline, or its versions were planned by a spec with other guarded fields; a dataset belongs to another log
    """
    extras.check(pipeline.extras, pipeline=pipeline.name)
    record = find_record(pipeline, log) or _create(pipeline, log)
    _check_name(pipeline, record)
    head = log.find_head()
    newest = head.outcome or head.plan
    if newest is None:
        head = replace(head, genesis=genesis(pipeline, log, fixes=True))
        if pipeline.spec_sha256 != record.spec:
            log.put_spec(pipeline.spec_bytes())
        return Opened(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)
    settle_spec(pipeline, log, newest.spec, version=newest.version)
    claim_datasets(pipeline, log, record, new=head.outcome is None)
    return Opened(pipeline=pipeline, log=log, record=record, head=head, spec=pipeline.spec_sha256)


def find_record(pipeline: Pipeline, log: CommitLog) -> PipelineRecord | None:
    """
    The log's ``pipeline.json``, or ``None`` where there is none.

    :raises InvalidError: ``log`` is not the pipeline's
    :raises ConflictError: the log belongs to a pipeline of another name
    """
    if open_store(pipeline.log).url != log.store.url:
        raise InvalidError("the log that was given is not the pipeline's", pipeline=pipeline.log, given=log.store.url)
    record = log.read_pipeline()
    if record is not None:
        _check_name(pipeline, record)
    return record


def _check_name(pipeline: Pipeline, record: PipelineRecord) -> None:
    if record.name != pipeline.name:
        raise ConflictError(
            "the log belongs to a pipeline of another name",
            log=pipeline.log,
            stored=record.name,
            stored_uuid=record.pipeline_uuid,
            given=pipeline.name,
        )


def read_head(pipeline: Pipeline, log: CommitLog) -> Head:
    """
    The head as a run of the pipeline would find it, for readers: writes nothing.

    :raises ConflictError: the log's versions were planned by a spec with other guarded fields
    """
    extras.check([pipeline.source.extra], pipeline=pipeline.name)
    head = log.find_head()
    newest = head.outcome or head.plan
    if newest is None:
        return replace(head, genesis=genesis(pipeline, log, fixes=False))
    if newest.spec != pipeline.spec_sha256:
        check_guarded(pipeline, log, newest.spec, version=newest.version)
    return head


def genesis(pipeline: Pipeline, log: CommitLog, *, fixes: bool) -> Offsets:
    """
    Where version 0 starts with the pipeline's source, while it is not planned.

    :param fixes: store it where no run has, so that later runs with this source start there too
    """
    stored = log.genesis(pipeline.source_sha256)
    if stored is not None:
        return stored.offsets
    wanted = Genesis(offsets=pipeline.source.genesis(), nonce=log.clock.new_id())
    return log.put_genesis(pipeline.source_sha256, wanted).offsets if fixes else wanted.offsets


def claim_datasets(pipeline: Pipeline, log: CommitLog, record: PipelineRecord, *, new: bool) -> None:
    """
    Mark the pipeline's datasets as its own, or find that they are. A mark that names a place from which the log was moved counts, too.

    :param new: no version is committed yet, so that a dataset without a mark may be taken
    :raises DatasetTakenError: a dataset belongs to another pipeline or log
    """
    for name, sink in pipeline.sinks.items():
        claim_dataset(name, sink, log, record, url=pipeline.log, new=new)


def claim_dataset(name: str, sink: Sink, log: CommitLog, record: PipelineRecord, *, url: str, new: bool) -> None:
    """
    As :func:`claim_datasets`, for one sink.

    :param url: of the log, as marks name it
    """
    try:
        sink.claim(record.pipeline_uuid, url, new=new)
    except DatasetTakenError as error:
        marked_log = str(error.fields["marked_log"])
        is_own = error.fields["marked_uuid"] == record.pipeline_uuid and log.moved(marked_log) is not None
        if not is_own or not _has_left(marked_log, url):
            raise DatasetTakenError(error.truth, pipeline=record.name, sink=name, **error.fields) from error


def _has_left(place: str, url: str) -> bool:
    """
    Whether no log goes on at a place: it was moved, to ``url`` in the end, or nothing is left of it.

    Who may write to this log could have written its record of the move. What lies at the other place is the word of those who may write there.
    """
    seen: set[str] = set()
    while normalised(place) != normalised(url):
        if place in seen:
            return False
        seen.add(place)
        there = open_commit_log(place)
        try:
            if there.read_pipeline() is None:
                return True
            there.confirm_head(there.find_head())
        except LogMovedError as error:
            place = str(error.fields["moved_to"])
        else:
            return False
    return True


def settle_spec(pipeline: Pipeline, log: CommitLog, stored: str, *, version: int) -> None:
    """
    Store the pipeline's spec where it is new. Its guarded fields must equal those of the newest version's.

    :param stored: sha256 of the spec of ``version``
    :raises ConflictError: they differ
    """
    if pipeline.spec_sha256 == stored:
        return
    check_guarded(pipeline, log, stored, version=version)
    log.put_spec(pipeline.spec_bytes())


def check_guarded(pipeline: Pipeline, log: CommitLog, stored: str, *, version: int) -> None:
    """
    Compare the pipeline's guarded fields with those of the spec of ``version``. Writes nothing.

    :raises ConflictError: they differ
    """
    before, now = stored_spec(log.read_spec(stored))["guarded"], pipeline.guarded()
    if before != now:
        plan = log.plan(version)
        raise ConflictError(
            "the spec's guarded fields differ from those in the log, which are fixed since its first version was planned",
            log=pipeline.log,
            pipeline=pipeline.name,
            fields=changed_fields(before, now),
            stored=before,
            given=now,
            version=version,
            planned_by="" if plan is None else described(plan[0].run_key),
        )


def _create(pipeline: Pipeline, log: CommitLog) -> PipelineRecord:
    try:
        for sink in pipeline.sinks.values():
            sink.refuse_orphan(pipeline.log)
    except ConflictError as error:
        # Another process may have created log and mark since we looked for the log.
        meanwhile = log.read_pipeline()
        if meanwhile is None:
            raise type(error)(error.truth, pipeline=pipeline.name, **error.fields) from error
        return meanwhile
    doctor.require_safe(log)
    record = PipelineRecord(
        pipeline_uuid=log.clock.new_id(),
        name=pipeline.name,
        spec=log.put_spec(pipeline.spec_bytes()),
        writer_features=(PUBLISH,),
        nonce=log.clock.new_id(),
    )
    return log.create_pipeline(record)
