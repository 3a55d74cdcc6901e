"""Maps the extras of this package to the client libraries that sources and sinks require. Imports none of these libraries."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from airflow_provider_streamsem.errors import InvalidError

MODULES = {
    "amqp": "pika",
    "delta": "deltalake",
    "iceberg": "pyiceberg",
    "jdbc": "sqlalchemy",
    "kafka": "confluent_kafka",
    "nats": "nats",
    "pubsub": "google.cloud.pubsub_v1",
    "pulsar": "pulsar",
}
"""Extra → the module of its client library."""


def missing(extras: Iterable[str]) -> list[str]:
    """Return the extras whose library is not installed in this environment, sorted. Unknown extras are ignored."""
    return sorted({name for name in extras if name in MODULES and not _is_installed(MODULES[name])})


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that contains the module is missing
        return False


def check(extras: Iterable[str], *, pipeline: str) -> None:
    """Reject a pipeline whose libraries are not installed, before anything is read or written."""
    if lacking := missing(extras):
        raise InvalidError(
            "the environment of this process lacks libraries that the pipeline needs; nothing was read or written",
            pipeline=pipeline,
            missing=[MODULES[name] for name in lacking],
        ).advising(f"run `{install_command(lacking)}`, then run again.")


def install_command(extras: Iterable[str]) -> str:
    """Return the command that installs these extras."""
    return f"pip install 'airflow-provider-streamsem[{','.join(extras)}]'"
