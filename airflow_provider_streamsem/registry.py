"""
Maps the names of sources, lookups, sinks, stores and engines to their classes or factories.

Only :func:`load` imports the module of a name. Other packages add names through entry points of the groups ``streamsem.sources``,
``streamsem.lookups``, ``streamsem.sinks``, ``streamsem.stores`` and ``streamsem.engines``. They cannot replace a built-in name.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from airflow_provider_streamsem.errors import InvalidError

Kind = Literal["sources", "lookups", "sinks", "stores", "engines"]

_BUILT_IN: dict[Kind, dict[str, str]] = {
    "sources": {
        "delta": "airflow_provider_streamsem.connectors.delta.source:DeltaSource",
        "files": "airflow_provider_streamsem.connectors.files.source:FilesSource",
        "jdbc": "airflow_provider_streamsem.connectors.sql.source:JdbcSource",
        "iceberg": "airflow_provider_streamsem.connectors.iceberg.source:IcebergSource",
        "kafka": "airflow_provider_streamsem.connectors.kafka.source:KafkaSource",
        "pipeline": "airflow_provider_streamsem.connectors.pipeline.source:PipelineSource",
        "nats": "airflow_provider_streamsem.connectors.nats.source:NatsSource",
        "pulsar": "airflow_provider_streamsem.connectors.pulsar.source:PulsarSource",
        "kinesis": "airflow_provider_streamsem.connectors.kinesis.source:KinesisSource",
        "queue": "airflow_provider_streamsem.connectors.queue.source:QueueSource",
        "rate": "airflow_provider_streamsem.connectors.rate.source:RateSource",
        "replay": "airflow_provider_streamsem.connectors.replay.source:ReplaySource",
    },
    "lookups": {
        "delta": "airflow_provider_streamsem.connectors.delta.lookup:DeltaTable",
        "files": "airflow_provider_streamsem.connectors.files.lookup:FilesTable",
        "iceberg": "airflow_provider_streamsem.connectors.iceberg.lookup:IcebergTable",
        "jdbc": "airflow_provider_streamsem.connectors.sql.lookup:JdbcTable",
        "pipeline": "airflow_provider_streamsem.connectors.pipeline.lookup:PipelineTable",
    },
    "sinks": {
        "delta": "airflow_provider_streamsem.connectors.delta.sink:DeltaSink",
        "files": "airflow_provider_streamsem.connectors.files.sink:FilesSink",
        "http": "airflow_provider_streamsem.connectors.http.sink:HttpSink",
        "iceberg": "airflow_provider_streamsem.connectors.iceberg.sink:IcebergSink",
        "jdbc": "airflow_provider_streamsem.connectors.sql.sink:JdbcSink",
        "kafka": "airflow_provider_streamsem.connectors.kafka.sink:KafkaSink",
    },
    "stores": {
        "memory": "airflow_provider_streamsem.stores.memory:open_memory_store",
        "file": "airflow_provider_streamsem.stores.local:open_local_store",
        "s3": "airflow_provider_streamsem.stores.s3:open_s3_store",
    },
    "engines": {"spark": "airflow_provider_streamsem.spark.spark_engine:SparkEngine"},
}


def names(kind: Kind) -> list[str]:
    """Return all names of a kind, built in or from other packages, sorted."""
    return sorted({*_BUILT_IN[kind], *_entry_points(kind)})


@cache
def _entry_points(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"streamsem.{kind}") if entry.name not in _BUILT_IN[kind]}


def knows(kind: Kind, name: str) -> bool:
    """Return whether a name is registered. Reads the entry points of packages only for a name that is not built in, and at most once per process."""
    return name in _BUILT_IN[kind] or name in _entry_points(kind)


def is_built_in(kind: Kind, name: object) -> bool:
    """Whether a name is built into this package. Does not read the metadata of installed packages."""
    return isinstance(name, str) and name in _BUILT_IN[kind]


def load(kind: Kind, name: str) -> Any:
    """Import and return the class or factory of a name."""
    if name in _BUILT_IN[kind]:
        module, attribute = _BUILT_IN[kind][name].split(":")
        return getattr(import_module(module), attribute)
    entries = _entry_points(kind)
    if name not in entries:
        raise InvalidError(f"no type of this name is registered for {kind}", name=name, accepted=names(kind))
    return entries[name].load()


def name_of(kind: Kind, value: object) -> str:
    """Return the name under which the class of an object is registered."""
    path = f"{type(value).__module__}:{type(value).__qualname__}"
    for name, built_in_path in _BUILT_IN[kind].items():
        if built_in_path == path:
            return name
    for name, entry in _entry_points(kind).items():
        if entry.value == path:
            return name
    raise InvalidError(f"this class is not registered for {kind}", given=path, accepted=names(kind))
