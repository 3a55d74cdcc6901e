"""
Exactly-once micro-batch ETL for Apache Airflow: bounded PySpark batches over offset ranges, an idempotent commit log, retries without duplicates.

Public names are imported lazily, on first access. Importing this package loads neither Airflow nor pyspark nor boto3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from airflow_provider_streamsem.version import __version__

_NAMES = {
    "ActionOperator": "airflow_provider_streamsem.operators.actions",
    "Aggregate": "airflow_provider_streamsem.transforms.aggregate",
    "AmqpQueue": "airflow_provider_streamsem.connectors.amqp.client",
    "Avro": "airflow_provider_streamsem.connectors.parsing.decoders",
    "BatchCommittedSensor": "airflow_provider_streamsem.sensors.committed",
    "Changes": "airflow_provider_streamsem.connectors.changes",
    "Contract": "airflow_provider_streamsem.connectors.contract",
    "CompactOperator": "airflow_provider_streamsem.operators.compact",
    "CompletedVersion": "airflow_provider_streamsem.pipeline.versions.result",
    "Debezium": "airflow_provider_streamsem.connectors.parsing.decoders",
    "Dedup": "airflow_provider_streamsem.deduplication.settings",
    "DeltaSink": "airflow_provider_streamsem.connectors.delta.sink",
    "DeltaSource": "airflow_provider_streamsem.connectors.delta.source",
    "DeltaTable": "airflow_provider_streamsem.connectors.delta.lookup",
    "EraseOperator": "airflow_provider_streamsem.operators.erase",
    "Expect": "airflow_provider_streamsem.expectations",
    "FilesSink": "airflow_provider_streamsem.connectors.files.sink",
    "FilesSource": "airflow_provider_streamsem.connectors.files.source",
    "FilesTable": "airflow_provider_streamsem.connectors.files.lookup",
    "FreshnessSensor": "airflow_provider_streamsem.sensors.freshness",
    "Guarantee": "airflow_provider_streamsem.pipeline.spec.guarantee",
    "Gate": "airflow_provider_streamsem.gates",
    "HttpSink": "airflow_provider_streamsem.connectors.http.sink",
    "IcebergSink": "airflow_provider_streamsem.connectors.iceberg.sink",
    "IcebergSource": "airflow_provider_streamsem.connectors.iceberg.source",
    "IcebergTable": "airflow_provider_streamsem.connectors.iceberg.lookup",
    "JdbcSink": "airflow_provider_streamsem.connectors.sql.sink",
    "JdbcSource": "airflow_provider_streamsem.connectors.sql.source",
    "JdbcTable": "airflow_provider_streamsem.connectors.sql.lookup",
    "Json": "airflow_provider_streamsem.connectors.parsing.decoders",
    "KafkaSink": "airflow_provider_streamsem.connectors.kafka.sink",
    "KafkaSource": "airflow_provider_streamsem.connectors.kafka.source",
    "KinesisSource": "airflow_provider_streamsem.connectors.kinesis.source",
    "Limits": "airflow_provider_streamsem.limits",
    "MicroBatchOperator": "airflow_provider_streamsem.operators.micro_batch",
    "NatsSource": "airflow_provider_streamsem.connectors.nats.source",
    "OffsetRangeTrigger": "airflow_provider_streamsem.triggers.offsets",
    "OffsetsAvailableSensor": "airflow_provider_streamsem.sensors.offsets",
    "PersistentState": "airflow_provider_streamsem.transforms.persistent_state",
    "PartitionCompleteSensor": "airflow_provider_streamsem.sensors.partition",
    "Partitions": "airflow_provider_streamsem.partitions",
    "Pipeline": "airflow_provider_streamsem.pipeline.spec.pipeline",
    "PipelineSource": "airflow_provider_streamsem.connectors.pipeline.source",
    "Protobuf": "airflow_provider_streamsem.connectors.parsing.decoders",
    "PulsarSource": "airflow_provider_streamsem.connectors.pulsar.source",
    "PubSubQueue": "airflow_provider_streamsem.connectors.pubsub.client",
    "PipelineTable": "airflow_provider_streamsem.connectors.pipeline.lookup",
    "QueueSource": "airflow_provider_streamsem.connectors.queue.source",
    "RateSource": "airflow_provider_streamsem.connectors.rate.source",
    "ReplaySource": "airflow_provider_streamsem.connectors.replay.source",
    "ReprocessOperator": "airflow_provider_streamsem.operators.reprocess",
    "RetentionSensor": "airflow_provider_streamsem.sensors.retention",
    "RunResult": "airflow_provider_streamsem.pipeline.versions.result",
    "SparkEngine": "airflow_provider_streamsem.spark.spark_engine",
    "SqsQueue": "airflow_provider_streamsem.connectors.sqs.client",
    "State": "airflow_provider_streamsem.state.settings",
    "StatePerKey": "airflow_provider_streamsem.transforms.persistent_state",
    "StreamsemError": "airflow_provider_streamsem.errors",
    "VacuumOperator": "airflow_provider_streamsem.operators.maintenance",
    "VerifyOperator": "airflow_provider_streamsem.operators.maintenance",
    "Window": "airflow_provider_streamsem.transforms.window",
    "alter": "airflow_provider_streamsem.pipeline.maintenance.alter",
    "compact": "airflow_provider_streamsem.pipeline.maintenance.compact",
    "diff": "airflow_provider_streamsem.readers.diff",
    "drop": "airflow_provider_streamsem.pipeline.maintenance.drop",
    "diff_state": "airflow_provider_streamsem.readers.diff_state",
    "erase": "airflow_provider_streamsem.pipeline.maintenance.erase",
    "fork": "airflow_provider_streamsem.pipeline.maintenance.fork",
    "guarantee": "airflow_provider_streamsem.pipeline.spec.guarantee",
    "actions_dag": "airflow_provider_streamsem.operators.actions",
    "commit_held": "airflow_provider_streamsem.pipeline.run.review",
    "diff_held": "airflow_provider_streamsem.readers.held",
    "stage_reprocessing": "airflow_provider_streamsem.pipeline.run.review",
    "load_pipeline": "airflow_provider_streamsem.pipeline.spec.pipeline",
    "log_uri": "airflow_provider_streamsem.assets",
    "open_log": "airflow_provider_streamsem.readers.files",
    "partition_states": "airflow_provider_streamsem.readers.partitions",
    "read_committed": "airflow_provider_streamsem.readers.spark",
    "read_state": "airflow_provider_streamsem.readers.state",
    "reprocess": "airflow_provider_streamsem.pipeline.run.reprocess",
    "rollback": "airflow_provider_streamsem.pipeline.maintenance.rollback",
    "run_batch": "airflow_provider_streamsem.pipeline.run.run",
    "run_interval": "airflow_provider_streamsem.pipeline.run.interval",
    "verify": "airflow_provider_streamsem.readers.verify",
}

__all__ = [
    "ActionOperator",
    "Aggregate",
    "AmqpQueue",
    "Avro",
    "BatchCommittedSensor",
    "Changes",
    "CompactOperator",
    "CompletedVersion",
    "Contract",
    "Debezium",
    "Dedup",
    "DeltaSink",
    "DeltaSource",
    "DeltaTable",
    "EraseOperator",
    "Expect",
    "FilesSink",
    "FilesSource",
    "FilesTable",
    "FreshnessSensor",
    "Gate",
    "Guarantee",
    "HttpSink",
    "IcebergSink",
    "IcebergSource",
    "IcebergTable",
    "JdbcSink",
    "JdbcSource",
    "JdbcTable",
    "Json",
    "KafkaSink",
    "KafkaSource",
    "KinesisSource",
    "Limits",
    "MicroBatchOperator",
    "NatsSource",
    "OffsetRangeTrigger",
    "OffsetsAvailableSensor",
    "PartitionCompleteSensor",
    "Partitions",
    "PersistentState",
    "Pipeline",
    "PipelineSource",
    "PipelineTable",
    "Protobuf",
    "PubSubQueue",
    "PulsarSource",
    "QueueSource",
    "RateSource",
    "ReplaySource",
    "ReprocessOperator",
    "RetentionSensor",
    "RunResult",
    "SparkEngine",
    "SqsQueue",
    "State",
    "StatePerKey",
    "StreamsemError",
    "VacuumOperator",
    "VerifyOperator",
    "Window",
    "__version__",
    "actions_dag",
    "alter",
    "commit_held",
    "compact",
    "diff",
    "diff_held",
    "diff_state",
    "drop",
    "erase",
    "fork",
    "guarantee",
    "load_pipeline",
    "log_uri",
    "open_log",
    "partition_states",
    "read_committed",
    "read_state",
    "reprocess",
    "rollback",
    "run_batch",
    "run_interval",
    "stage_reprocessing",
    "verify",
]

if TYPE_CHECKING:
    from airflow_provider_streamsem.assets import log_uri
    from airflow_provider_streamsem.connectors.amqp.client import AmqpQueue
    from airflow_provider_streamsem.connectors.changes import Changes
    from airflow_provider_streamsem.connectors.contract import Contract
    from airflow_provider_streamsem.connectors.delta.lookup import DeltaTable
    from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
    from airflow_provider_streamsem.connectors.delta.source import DeltaSource
    from airflow_provider_streamsem.connectors.files.lookup import FilesTable
    from airflow_provider_streamsem.connectors.files.sink import FilesSink
    from airflow_provider_streamsem.connectors.files.source import FilesSource
    from airflow_provider_streamsem.connectors.http.sink import HttpSink
    from airflow_provider_streamsem.connectors.iceberg.lookup import IcebergTable
    from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
    from airflow_provider_streamsem.connectors.iceberg.source import IcebergSource
    from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
    from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
    from airflow_provider_streamsem.connectors.kinesis.source import KinesisSource
    from airflow_provider_streamsem.connectors.nats.source import NatsSource
    from airflow_provider_streamsem.connectors.parsing.decoders import Avro, Debezium, Json, Protobuf
    from airflow_provider_streamsem.connectors.pipeline.lookup import PipelineTable
    from airflow_provider_streamsem.connectors.pipeline.source import PipelineSource
    from airflow_provider_streamsem.connectors.pubsub.client import PubSubQueue
    from airflow_provider_streamsem.connectors.pulsar.source import PulsarSource
    from airflow_provider_streamsem.connectors.queue.source import QueueSource
    from airflow_provider_streamsem.connectors.rate.source import RateSource
    from airflow_provider_streamsem.connectors.replay.source import ReplaySource
    from airflow_provider_streamsem.connectors.sql.lookup import JdbcTable
    from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
    from airflow_provider_streamsem.connectors.sql.source import JdbcSource
    from airflow_provider_streamsem.connectors.sqs.client import SqsQueue
    from airflow_provider_streamsem.deduplication.settings import Dedup
    from airflow_provider_streamsem.errors import StreamsemError
    from airflow_provider_streamsem.expectations import Expect
    from airflow_provider_streamsem.gates import Gate
    from airflow_provider_streamsem.limits import Limits
    from airflow_provider_streamsem.operators.actions import ActionOperator, actions_dag
    from airflow_provider_streamsem.operators.compact import CompactOperator
    from airflow_provider_streamsem.operators.erase import EraseOperator
    from airflow_provider_streamsem.operators.maintenance import VacuumOperator, VerifyOperator
    from airflow_provider_streamsem.operators.micro_batch import MicroBatchOperator
    from airflow_provider_streamsem.operators.reprocess import ReprocessOperator
    from airflow_provider_streamsem.partitions import Partitions
    from airflow_provider_streamsem.pipeline.maintenance.alter import alter
    from airflow_provider_streamsem.pipeline.maintenance.compact import compact
    from airflow_provider_streamsem.pipeline.maintenance.drop import drop
    from airflow_provider_streamsem.pipeline.maintenance.erase import erase
    from airflow_provider_streamsem.pipeline.maintenance.fork import fork
    from airflow_provider_streamsem.pipeline.maintenance.rollback import rollback
    from airflow_provider_streamsem.pipeline.run.interval import run_interval
    from airflow_provider_streamsem.pipeline.run.reprocess import reprocess
    from airflow_provider_streamsem.pipeline.run.review import commit_held, stage_reprocessing
    from airflow_provider_streamsem.pipeline.run.run import run_batch
    from airflow_provider_streamsem.pipeline.spec.guarantee import Guarantee, guarantee
    from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
    from airflow_provider_streamsem.pipeline.versions.result import CompletedVersion, RunResult
    from airflow_provider_streamsem.readers.diff import diff
    from airflow_provider_streamsem.readers.diff_state import diff_state
    from airflow_provider_streamsem.readers.files import open_log
    from airflow_provider_streamsem.readers.held import diff_held
    from airflow_provider_streamsem.readers.partitions import partition_states
    from airflow_provider_streamsem.readers.spark import read_committed
    from airflow_provider_streamsem.readers.state import read_state
    from airflow_provider_streamsem.readers.verify import verify
    from airflow_provider_streamsem.sensors.committed import BatchCommittedSensor
    from airflow_provider_streamsem.sensors.freshness import FreshnessSensor
    from airflow_provider_streamsem.sensors.offsets import OffsetsAvailableSensor
    from airflow_provider_streamsem.sensors.partition import PartitionCompleteSensor
    from airflow_provider_streamsem.sensors.retention import RetentionSensor
    from airflow_provider_streamsem.spark.spark_engine import SparkEngine
    from airflow_provider_streamsem.state.settings import State
    from airflow_provider_streamsem.transforms.aggregate import Aggregate
    from airflow_provider_streamsem.transforms.persistent_state import PersistentState, StatePerKey
    from airflow_provider_streamsem.transforms.window import Window
    from airflow_provider_streamsem.triggers.offsets import OffsetRangeTrigger


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return __all__
