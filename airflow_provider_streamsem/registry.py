"""
Names of sources, sinks, stores and engines, and where their classes are.

Looking a name up imports its module; nothing else does. Other packages add names by entry points of the groups ``streamsem.sources``,
``streamsem.sinks``, ``streamsem.stores`` and ``streamsem.engines``; a name of this package cannot be replaced.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from airflow_provider_streamsem.errors import InvalidError

Kind = Literal["sources", "sinks", "stores", "engines"]

_BUILT_IN: dict[Kind, dict[str, str]] = {
    "sources": {
        "files": "airflow_provider_streamsem.sources.files:FilesSource",
        "kafka": "airflow_provider_streamsem.sources.kafka:KafkaSource",
        "queue": "airflow_provider_streamsem.sources.queue:QueueSource",
    },
    "sinks": {
        "delta": "airflow_provider_streamsem.sinks.delta:DeltaSink",
        "files": "airflow_provider_streamsem.sinks.files:FilesSink",
        "http": "airflow_provider_streamsem.sinks.http:HttpSink",
        "iceberg": "airflow_provider_streamsem.sinks.iceberg:IcebergSink",
        "jdbc": "airflow_provider_streamsem.sinks.jdbc:JdbcSink",
        "kafka": "airflow_provider_streamsem.sinks.kafka:KafkaSink",
    },
    "stores": {
        "memory": "airflow_provider_streamsem.stores.memory:open_memory_store",
        "file": "airflow_provider_streamsem.stores.local:open_local_store",
        "s3": "airflow_provider_streamsem.stores.s3:open_s3_store",
    },
    "engines": {"spark": "airflow_provider_streamsem.engines.spark:SparkEngine"},
}


def names(kind: Kind) -> list[str]:
    """Every name of a kind, this package's and others', sorted."""
    return sorted({*_BUILT_IN[kind], *_others(kind)})


@cache
def _others(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"streamsem.{kind}") if entry.name not in _BUILT_IN[kind]}


def knows(kind: Kind, name: str) -> bool:
    """Whether a name is registered. The metadata of installed packages is read once, and only for a name that is not this package's."""
    return name in _BUILT_IN[kind] or name in _others(kind)


def is_built_in(kind: Kind, name: object) -> bool:
    """Whether a name is this package's own. Reads no metadata of installed packages."""
    return isinstance(name, str) and name in _BUILT_IN[kind]


def lookup(kind: Kind, name: str) -> Any:
    """
    The class or factory of a name.

    :raises InvalidError: no such name
    """
    if name in _BUILT_IN[kind]:
        module, attribute = _BUILT_IN[kind][name].split(":")
        return getattr(import_module(module), attribute)
    others = _others(kind)
    if name not in others:
        raise InvalidError(f"there is no such name among the {kind}", name=name, accepted=names(kind))
    return others[name].load()


def name_of(kind: Kind, value: object) -> str:
    """The name under which an object's class is registered."""
    where = f"{type(value).__module__}:{type(value).__qualname__}"
    for name, target in _BUILT_IN[kind].items():
        if target == where:
            return name
    for name, entry in _others(kind).items():
        if entry.value == where:
            return name
    raise InvalidError(f"this class is not registered among the {kind}", given=where, accepted=names(kind))
