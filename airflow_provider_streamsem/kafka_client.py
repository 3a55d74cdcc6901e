"""How a Kafka cluster is reached, by sources and sinks alike: librdkafka's settings from a connection, and what its answers mean here."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError

TIMEOUT_S = 30.0
QUIET = logging.getLogger("airflow_provider_streamsem.librdkafka")
"""What librdkafka says for itself goes here, and not to the task's standard error."""
REFUSALS = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
)
_OF_A_CONSUMER = (
    "group.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "isolation.level",
    "enable.partition.eof",
    "client.id",
)


def settings_of(conn_id: str | None, bootstrap_servers: str | None) -> dict[str, str]:
    """
    Librdkafka's settings, from an Airflow connection of type ``kafka`` (its extra holds them) or from the servers alone.

    :raises InvalidError: the connection names no servers
    """
    if conn_id is None:
        return {"bootstrap.servers": bootstrap_servers or ""}
    extra = connection(conn_id).extra
    settings = {name: str(value) for name, value in extra.items() if name not in _OF_A_CONSUMER and not callable(value)}
    if not settings.get("bootstrap.servers"):
        raise InvalidError("a kafka connection must have bootstrap.servers in its extra", conn_id=conn_id)
    return settings


@lru_cache(maxsize=8)
def admin_client(process: int, settings: tuple[tuple[str, str], ...]) -> Any:
    """
    A client for questions, kept.

    :param process: its id: a client does not survive a fork
    :raises InvalidError: confluent-kafka is not installed
    """
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise InvalidError(
            "confluent-kafka is not installed", accepted="pip install 'airflow-provider-streamsem[kafka]'"
        ) from error
    return AdminClient(dict(settings), logger=QUIET)


def answer(ask: Any, *, missing: str = "") -> Any:
    """What a question gives; ``None`` where it fails with the error called ``missing``. Never quotes the client's text: it may hold settings."""
    from concurrent.futures import TimeoutError as FutureTimeoutError

    from confluent_kafka import KafkaException

    try:
        return ask(timeout=TIMEOUT_S + 5) if getattr(ask, "__name__", "") == "result" else ask()
    except KafkaException as error:
        name = error_name(error)
        if name == missing:
            return None
        if name in REFUSALS:
            raise StoreRefusedError("Kafka refused a request; nothing was written", error=name) from error
        raise UnavailableError("Kafka gave no clear answer; nothing was written", error=name) from error
    except (FutureTimeoutError, TimeoutError) as error:
        raise UnavailableError("Kafka gave no answer in time; nothing was written", seconds=TIMEOUT_S) from error


def error_name(error: Any) -> str:
    """What Kafka calls the error that a ``KafkaException`` holds."""
    return error.args[0].name() if error.args and hasattr(error.args[0], "name") else "unknown"
