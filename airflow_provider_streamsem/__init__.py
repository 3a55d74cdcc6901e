"""
Micro-batch exactly-once ETL for Apache Airflow: bounded PySpark batches over offset ranges, an idempotent commit log, retries without duplicates.

The public names are imported when they are first used: importing this package loads neither Airflow, pyspark nor boto3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_NAMES = {
    "AmqpQueue": "airflow_provider_streamsem.sources.amqp",
    "Avro": "airflow_provider_streamsem.sources.decoding",
    "BatchCommittedSensor": "airflow_provider_streamsem.sensors.committed",
    "CompletedVersion": "airflow_provider_streamsem.batch.result",
    "Dedup": "airflow_provider_streamsem.engines.dedup",
    "DeltaSink": "airflow_provider_streamsem.sinks.delta",
    "FilesSink": "airflow_provider_streamsem.sinks.files",
    "FilesSource": "airflow_provider_streamsem.sources.files",
    "FreshnessSensor": "airflow_provider_streamsem.sensors.freshness",
    "Guarantee": "airflow_provider_streamsem.batch.guarantee",
    "HttpSink": "airflow_provider_streamsem.sinks.http",
    "IcebergSink": "airflow_provider_streamsem.sinks.iceberg",
    "JdbcSink": "airflow_provider_streamsem.sinks.jdbc",
    "Json": "airflow_provider_streamsem.sources.decoding",
    "KafkaSink": "airflow_provider_streamsem.sinks.kafka",
    "KafkaSource": "airflow_provider_streamsem.sources.kafka",
    "Limits": "airflow_provider_streamsem.sources.contract",
    "MicroBatchOperator": "airflow_provider_streamsem.operators.micro_batch",
    "OffsetRangeTrigger": "airflow_provider_streamsem.triggers.offsets",
    "OffsetsAvailableSensor": "airflow_provider_streamsem.sensors.offsets",
    "Pipeline": "airflow_provider_streamsem.batch.pipeline",
    "QueueSource": "airflow_provider_streamsem.sources.queue",
    "RedoOperator": "airflow_provider_streamsem.operators.redo",
    "RetentionSensor": "airflow_provider_streamsem.sensors.retention",
    "RunResult": "airflow_provider_streamsem.batch.result",
    "SparkEngine": "airflow_provider_streamsem.engines.spark",
    "SqsQueue": "airflow_provider_streamsem.sources.sqs",
    "StreamsemError": "airflow_provider_streamsem.errors",
    "VacuumOperator": "airflow_provider_streamsem.operators.maintenance",
    "VerifyOperator": "airflow_provider_streamsem.operators.maintenance",
    "guarantee": "airflow_provider_streamsem.batch.guarantee",
    "load_pipeline": "airflow_provider_streamsem.batch.pipeline",
    "log_uri": "airflow_provider_streamsem.assets",
    "open_log": "airflow_provider_streamsem.readers.files",
    "read_committed": "airflow_provider_streamsem.readers.spark",
    "redo": "airflow_provider_streamsem.batch.redo",
    "run_batch": "airflow_provider_streamsem.batch.run",
    "verify": "airflow_provider_streamsem.readers.verify",
}

__all__ = [
    "AmqpQueue",
    "Avro",
    "BatchCommittedSensor",
    "CompletedVersion",
    "Dedup",
    "DeltaSink",
    "FilesSink",
    "FilesSource",
    "FreshnessSensor",
    "Guarantee",
    "HttpSink",
    "IcebergSink",
    "JdbcSink",
    "Json",
    "KafkaSink",
    "KafkaSource",
    "Limits",
    "MicroBatchOperator",
    "OffsetRangeTrigger",
    "OffsetsAvailableSensor",
    "Pipeline",
    "QueueSource",
    "RedoOperator",
    "RetentionSensor",
    "RunResult",
    "SparkEngine",
    "SqsQueue",
    "StreamsemError",
    "VacuumOperator",
    "VerifyOperator",
    "__version__",
    "guarantee",
    "load_pipeline",
    "log_uri",
    "open_log",
    "read_committed",
    "redo",
    "run_batch",
    "verify",
]

if TYPE_CHECKING:
    from airflow_provider_streamsem.assets import log_uri
    from airflow_provider_streamsem.batch.guarantee import Guarantee, guarantee
    from airflow_provider_streamsem.batch.pipeline import Pipeline, load_pipeline
    from airflow_provider_streamsem.batch.redo import redo
    from airflow_provider_streamsem.batch.result import CompletedVersion, RunResult
    from airflow_provider_streamsem.batch.run import run_batch
    from airflow_provider_streamsem.engines.dedup import Dedup
    from airflow_provider_streamsem.engines.spark import SparkEngine
    from airflow_provider_streamsem.errors import StreamsemError
    from airflow_provider_streamsem.operators.maintenance import VacuumOperator, VerifyOperator
    from airflow_provider_streamsem.operators.micro_batch import MicroBatchOperator
    from airflow_provider_streamsem.operators.redo import RedoOperator
    from airflow_provider_streamsem.readers.files import open_log
    from airflow_provider_streamsem.readers.spark import read_committed
    from airflow_provider_streamsem.readers.verify import verify
    from airflow_provider_streamsem.sensors.committed import BatchCommittedSensor
    from airflow_provider_streamsem.sensors.freshness import FreshnessSensor
    from airflow_provider_streamsem.sensors.offsets import OffsetsAvailableSensor
    from airflow_provider_streamsem.sensors.retention import RetentionSensor
    from airflow_provider_streamsem.sinks.delta import DeltaSink
    from airflow_provider_streamsem.sinks.files import FilesSink
    from airflow_provider_streamsem.sinks.http import HttpSink
    from airflow_provider_streamsem.sinks.iceberg import IcebergSink
    from airflow_provider_streamsem.sinks.jdbc import JdbcSink
    from airflow_provider_streamsem.sinks.kafka import KafkaSink
    from airflow_provider_streamsem.sources.amqp import AmqpQueue
    from airflow_provider_streamsem.sources.contract import Limits
    from airflow_provider_streamsem.sources.decoding import Avro, Json
    from airflow_provider_streamsem.sources.files import FilesSource
    from airflow_provider_streamsem.sources.kafka import KafkaSource
    from airflow_provider_streamsem.sources.queue import QueueSource
    from airflow_provider_streamsem.sources.sqs import SqsQueue
    from airflow_provider_streamsem.triggers.offsets import OffsetRangeTrigger


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return __all__
