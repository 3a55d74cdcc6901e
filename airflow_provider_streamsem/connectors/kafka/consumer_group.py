"""Reads and writes the committed offsets of a Kafka consumer group."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.connectors.kafka.client import TIMEOUT_S, admin_client, call, settings_of
from airflow_provider_streamsem.connectors.kafka.cluster import Partition
from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.protocol.offsets import Offsets


def read_offsets(source: KafkaSource, group: str) -> dict[str, int]:
    """
    Return ``<topic>-<partition>`` → the first offset that the group has not read.

    Refuses a group with members, which may commit other offsets (``ConflictError``), and partitions without a committed offset, at which its consumers would
    use `auto.offset.reset` (``InvalidError``).
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    partitions = source.partitions(source.cluster())
    requested = [TopicPartition(p.topic, p.number) for p in partitions]
    settings = settings_of(source.conn_id, source.bootstrap_servers)
    admin = admin_client(settings)
    described = call(lambda: admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S), settings=settings)
    if call(described[group].result, settings=settings).members:
        raise ConflictError("the consumer group has members; nothing was read", group=group).advising(
            "stop the consumers of the group, then repeat this command."
        )
    groups = [ConsumerGroupTopicPartitions(group, requested)]
    futures = call(lambda: admin.list_consumer_group_offsets(groups, request_timeout=TIMEOUT_S), settings=settings)
    found = call(futures[group].result, settings=settings)
    offsets = {f"{tp.topic}-{tp.partition}": tp.offset for tp in found.topic_partitions if tp.offset >= 0}
    missing = sorted({f"{p.topic}-{p.number}" for p in partitions} - offsets.keys())
    if missing:
        raise InvalidError(
            "the consumer group has no committed offset for some partitions; nothing was read",
            group=group,
            partitions=missing,
        ).advising("let the group commit offsets of these partitions, or write `starting` by hand.")
    return offsets


def write_offsets(source: KafkaSource, group: str, offsets: Offsets) -> None:
    """
    Commit the first offset to read of each partition. A consumer of this group then starts there.

    Refuses a group with members, which may commit other offsets, and recreated topics (``ConflictError``). After ``UnavailableError``, repeat the call.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    cluster = source.cluster()
    partitions = source.partitions(cluster)
    # A pipeline reads a new partition from its earliest offset.
    unread = [p for p in partitions if p.name not in offsets]
    committed = [*_existing(offsets, {p.name: p for p in partitions}), *cluster.lows(unread).items()]
    settings = settings_of(source.conn_id, source.bootstrap_servers)
    admin = admin_client(settings)
    request = [ConsumerGroupTopicPartitions(group, [TopicPartition(p.topic, p.number, at) for p, at in committed])]
    futures = call(lambda: admin.alter_consumer_group_offsets(request, request_timeout=TIMEOUT_S), settings=settings)
    result = call(futures[group].result, settings=settings)
    refused = {f"{tp.topic}-{tp.partition}": tp.error.name() for tp in result.topic_partitions if tp.error is not None}
    if refused:
        raise ConflictError(
            "Kafka did not accept the offsets of some partitions. The offsets of the others may be committed",
            group=group,
            errors=refused,
        ).advising("stop the consumers of the group, check the ACLs of the group, then repeat this command.")


def _existing(offsets: Offsets, existing: dict[str, Partition]) -> Sequence[tuple[Partition, int]]:
    missing = sorted(offsets.keys() - existing.keys())
    if missing:
        raise ConflictError(
            "topics of the log do not exist, or were deleted and recreated; nothing was written", partitions=missing
        ).advising("run the pipeline first: it reports what was lost.")
    return [(existing[name], offset) for name, offset in sorted(offsets.items())]
