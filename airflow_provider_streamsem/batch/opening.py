"""Opening a pipeline on its log: identity, safety of the store, guarded fields, claims on the datasets."""

from __future__ import annotations

import json
from dataclasses import dataclass

from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.protocol.entries import PUBLISH, PipelineRecord
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.stores.contract import open_store


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

    :raises UnsafeStoreError: a new log on a store that does not keep create-if-absent
    :raises ConflictError: the log is of another pipeline or of a spec with other guarded fields; a dataset belongs to another log
    """
    if open_store(pipeline.log).url != log.store.url:
        raise InvalidError("the log that was given is not the pipeline's", pipeline=pipeline.log, given=log.store.url)
    spec = pipeline.spec_bytes()
    record = log.read_pipeline() or _create(pipeline, log, spec)
    if record.name != pipeline.name:
        raise ConflictError(
            "the log belongs to a pipeline of another name", log=pipeline.log, stored=record.name, given=pipeline.name
        )
    head = log.find_head(record.genesis)
    digest = _settle_spec(pipeline, log, spec, record.spec if head.outcome is None else head.outcome.spec)
    for sink in pipeline.sinks.values():
        sink.claim(record.pipeline_uuid, pipeline.log, new=head.outcome is None)
    return Opened(pipeline=pipeline, log=log, record=record, head=head, spec=digest)


def _create(pipeline: Pipeline, log: CommitLog, spec: bytes) -> PipelineRecord:
    try:
        for sink in pipeline.sinks.values():
            sink.refuse_orphan(pipeline.log)
    except ConflictError:
        # Another process may have created log and mark since we looked for the log.
        meanwhile = log.read_pipeline()
        if meanwhile is None:
            raise
        return meanwhile
    doctor.require_safe(log)
    record = PipelineRecord(
        pipeline_uuid=log.clock.new_id(),
        name=pipeline.name,
        genesis=pipeline.source.genesis(),
        spec=log.put_spec(spec),
        writer_features=(PUBLISH,) if pipeline.publishes else (),
        nonce=log.clock.new_id(),
    )
    return log.create_pipeline(record)


def _settle_spec(pipeline: Pipeline, log: CommitLog, spec: bytes, stored: str) -> str:
    """The sha256 of this spec, stored where it is new; guarded fields must equal those of the newest outcome's spec."""
    digest = pipeline.spec_sha256
    if digest == stored:
        return digest
    before, now = json.loads(log.read_spec(stored))["guarded"], json.loads(spec)["guarded"]
    if before != now:
        raise ConflictError(
            "the spec's guarded fields differ from those in the log", log=pipeline.log, stored=before, given=now
        )
    return log.put_spec(spec)
