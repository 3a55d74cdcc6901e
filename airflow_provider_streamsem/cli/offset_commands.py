"""The commands that exchange offsets with other programs: ``import-offsets`` and ``export-offsets``."""

from __future__ import annotations

import argparse
import json

from airflow_provider_streamsem.arguments import exactly_one
from airflow_provider_streamsem.cli.output import CommandResult
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import read_head
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.view import OpenHead
from airflow_provider_streamsem.stores.contract import open_store


def import_offsets(args: argparse.Namespace) -> CommandResult:
    """Show the offsets of a query or of a consumer group as ``starting`` of the source (``streamsem import-offsets``)."""
    from airflow_provider_streamsem.connectors.kafka import checkpoint, consumer_group

    source = _source(args)
    batch = None
    if args.group is not None:
        offsets = consumer_group.read_offsets(source, args.group)
    else:
        batch, offsets = checkpoint.read_offsets(open_store(args.checkpoint), is_read=source.reads)
    pairs = ", ".join(f"{json.dumps(name)} = {offset}" for name, offset in sorted(offsets.items()))
    return CommandResult(document={"starting": offsets, "batch": batch}, lines=[f"starting = {{ {pairs} }}"])


def export_offsets(args: argparse.Namespace) -> CommandResult:
    """Write the next offsets of a pipeline to a new checkpoint or to a consumer group (``streamsem export-offsets``)."""
    from airflow_provider_streamsem.connectors.kafka import checkpoint, consumer_group

    source, pipeline = _source(args), args.pipeline
    log = commit_log_at(pipeline.log)
    head = log.confirm_head(read_head(pipeline, log))
    if isinstance(head, OpenHead) or head.has_pending_publishes or head.closed < 0:
        raise ConflictError(
            "the newest version of the pipeline is not committed and published yet, so its next offsets are not known; nothing was written",
            log=pipeline.log,
            newest_closed=head.closed,
        ).advising("run the pipeline until it is complete, stop its DAG, then repeat this command.")
    if args.group is not None:
        consumer_group.write_offsets(source, args.group, head.next)
    else:
        checkpoint.write_offsets(open_store(args.checkpoint), head.next, now_ms=SYSTEM_CLOCK.now_ms())
    offsets = dict(head.next)
    lines = [f"the offsets after version {head.closed} are written"]
    lines += [f"  {partition} {offset}" for partition, offset in sorted(offsets.items())]
    return CommandResult(document={"version": head.closed, "offsets": offsets}, lines=lines)


def _source(args: argparse.Namespace) -> KafkaSource:
    pipeline: Pipeline = args.pipeline
    exactly_one("", **{"--checkpoint": args.checkpoint, "--group": args.group})
    if not isinstance(pipeline.source, KafkaSource):
        raise InvalidError("only a pipeline with one Kafka source exchanges offsets", pipeline=pipeline.name)
    return pipeline.source
