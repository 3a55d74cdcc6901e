"""Says where rows may still be after an erasure, and what deletes them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord
from airflow_provider_streamsem.protocol.kinds.alter import Alter


def remaining_copies(
    pipeline: Pipeline, log: CommitLog, record: PipelineRecord, outcome: Outcome | None, predicate: Predicate
) -> Iterator[str]:
    """Yield one sentence for each place that an erasure does not reach."""
    yield "the source: delete the records there. Otherwise a reprocessing run or a fork reads them again"
    for source in pipeline.source.parts.values():
        yield from source.copies_of_erased()
    for name, sink in sorted(pipeline.sinks.items()):
        yield from (f"sink {name}: {sentence}" for sentence in sink.copies_of_erased())
        named = sorted({*predicate.columns} & {*sink.partitions})
        if named:
            yield f"sink {name}: the log contains the values of the partition columns {', '.join(named)} in the names of deleted files. They cannot be removed"
    if pipeline.dedup is not None and pipeline.dedup.keeps_state:
        yield "the deduplication: it has hashes of the keys, without which repeated records would be written again. Layers of hashes expire as `dedup` says"
    if pipeline.state is not None:
        yield "the state of stateful operators: drop it with `streamsem alter` and another `state`, or wait until it expires"
    removed = sorted({name for _, alter in log.commits_of(Alter, outcome) for name in alter.removed})
    if removed:
        yield f"the former datasets and tables of sinks that an alter has removed ({', '.join(removed)}): delete them"
    if record.moved_from:
        yield f"the former location of the log, {record.moved_from}: delete it"
    yield "the event logs and the history server of Spark, and the statement logs of databases: they may contain the predicate. Delete them, or let them expire"
    yield "forks of the pipeline, and pipelines that read it: run `streamsem erase` for each of them"
    yield "backups, exports and other copies outside of the pipeline"


def found_in_log(log: CommitLog, predicate: Predicate) -> Iterator[str]:
    """Search the JSON objects of the log for the values. Short values are not searched, because they occur by chance."""
    found: Counter[str] = Counter()
    for key in log.list_keys(""):
        if key.endswith((".json", ".jsonl")):
            text = (log.read(key) or b"").decode("utf-8", "replace")
            found[key.split("/")[0]] += predicate.names_value_in(text)
    found = +found
    if found:
        objects = ", ".join(f"{count} below {directory}" for directory, count in sorted(found.items()))
        yield f"objects of the log contain a value, for example in the name of a source file ({objects}). They cannot be removed"
