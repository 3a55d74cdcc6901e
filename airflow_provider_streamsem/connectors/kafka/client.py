"""Settings and error handling of Kafka clients, shared by the source and the sink. The settings come from an Airflow connection."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.connectors.kafka import authentication
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError

TIMEOUT_S = 30.0
QUIET = logging.getLogger("airflow_provider_streamsem.librdkafka")
"""Logger that receives librdkafka's log messages. Without it, librdkafka writes them to the task's standard error."""
REFUSALS = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "POLICY_VIOLATION",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
)
_UNREACHABLE = ("_TIMED_OUT", "_TRANSPORT", "_RESOLVE", "_ALL_BROKERS_DOWN")
_DO_UNREACHABLE = (
    "check that the brokers run and that this host reaches them (address, port, TLS or plain text); then run again."
)
_DO_REFUSED = "check the user, the password or client secret, and the SASL mechanism of the connection, and the user's ACLs; then run again."
BOTH_CLIENTS = (
    "bootstrap.servers",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
)
"""Connection properties that are passed to both librdkafka and Spark's Java client"""
ONLY_LIBRDKAFKA = (
    "api.version.request",
    "api.version.request.timeout.ms",
    "batch.size",
    "broker.address.family",
    "broker.address.ttl",
    "broker.version.fallback",
    "client.dns.lookup",
    "client.rack",
    "compression.codec",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "linger.ms",
    "log.connection.close",
    "log_level",
    "message.max.bytes",
    "metadata.max.age.ms",
    "partitioner",
    "queue.buffering.max.ms",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "statistics.interval.ms",
    "topic.metadata.propagation.max.ms",
    "topic.metadata.refresh.fast.interval.ms",
    "topic.metadata.refresh.interval.ms",
    "topic.metadata.refresh.sparse",
)
"""Tuning properties that are passed to librdkafka but not to Spark's Java client"""
# Ignored properties: the source and the sink set them, and a connection that other tasks use too may contain them.
_IGNORED = (
    "acks",
    "auto.offset.reset",
    "client.id",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "message.timeout.ms",
    "request.required.acks",
)


def settings_of(conn_id: str | None, bootstrap_servers: str | None) -> dict[str, str]:
    """
    Return the settings of librdkafka clients.

    The settings of every client come from this function. It returns only the properties in :data:`BOTH_CLIENTS`,
    :data:`authentication.PROPERTIES` and :data:`ONLY_LIBRDKAFKA`.
    Other properties may load native code or Java classes (``plugin.library.paths``, ``interceptor.classes``), run commands
    (``sasl.kerberos.kinit.cmd``) or call Python functions (``error_cb``).

    :param conn_id: an Airflow connection of type ``kafka``, which has the settings in its extra; ``None``: use ``bootstrap_servers`` only
    :param bootstrap_servers: ``host:port,…``; used only without ``conn_id``
    """
    if conn_id is None:
        return {"bootstrap.servers": bootstrap_servers or ""}
    extra = connection(conn_id).extra
    accepted = (*BOTH_CLIENTS, *authentication.PROPERTIES, *ONLY_LIBRDKAFKA)
    refused = sorted(name for name in extra if name not in (*accepted, *_IGNORED))
    if refused:
        raise InvalidError(
            "a kafka connection has a property that this package does not pass to Kafka clients; no client was started",
            conn_id=conn_id,
            property=refused[0] if len(refused) == 1 else refused,
            accepted=sorted(accepted),
        )
    settings = {name: str(value) for name, value in extra.items() if name in accepted}
    if not settings.get("bootstrap.servers"):
        raise InvalidError("a kafka connection must have bootstrap.servers in its extra", conn_id=conn_id)
    authentication.check(conn_id, settings)
    return settings


def admin_client(settings: Mapping[str, str]) -> Any:
    """Return the ``AdminClient`` of this process for the settings."""
    return _admin_client(*_cache_key(settings))


def _cache_key(settings: Mapping[str, str]) -> tuple[int, tuple[tuple[str, str], ...]]:
    """A client cannot be used in a forked process, so the key has the process id."""
    return os.getpid(), tuple(sorted(settings.items()))


@lru_cache(maxsize=8)
def _admin_client(process: int, settings: tuple[tuple[str, str], ...]) -> Any:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise InvalidError("confluent-kafka is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[kafka]'`, then run again."
        ) from error
    reported = _reported_errors(process, settings)
    own = {"error_cb": lambda error: reported.append(error.name())}
    return AdminClient({**authentication.client_settings(dict(settings)), **own}, logger=QUIET)


@lru_cache(maxsize=8)
def _reported_errors(process: int, settings: tuple[tuple[str, str], ...]) -> deque[str]:
    """Names of the newest errors that an ``AdminClient`` has reported outside of its requests."""
    return deque(maxlen=8)


def _refuses_credentials(settings: Mapping[str, str]) -> bool:
    """Return whether the credentials were refused. The client tries again, so its requests time out, and it reports the refusal to a callback."""
    admin_client(settings).poll(0)  # calls the callback
    return any(name in REFUSALS for name in _reported_errors(*_cache_key(settings)))


def call(request: Any, *, missing: str = "", settings: Mapping[str, str] | None = None) -> Any:
    """
    Call a function of a Kafka client, and map Kafka's exceptions to the errors of this package.

    Errors contain the name of Kafka's error, never its text, because the text may contain settings.

    :param missing: name of the Kafka error for which ``None`` is returned
    :raises StoreRefusedError: Kafka refused the credentials or the request
    :raises UnavailableError: no broker answered, or the call failed for another reason. Also if the authentication by OAUTHBEARER failed, because the token
        endpoint may be temporarily unavailable
    """
    from concurrent.futures import TimeoutError as FutureTimeoutError

    from confluent_kafka import KafkaException

    where = {} if settings is None else {"bootstrap_servers": settings.get("bootstrap.servers", "")}
    try:
        result = request(timeout=TIMEOUT_S + 5) if getattr(request, "__name__", "") == "result" else request()
        if settings is not None:
            _reported_errors(*_cache_key(settings)).clear()
        return result
    except KafkaException as error:
        name = error_name(error)
        if name == missing:
            return None
        if name in REFUSALS:
            raise StoreRefusedError(
                "Kafka refused a request; this request wrote no records", **where, error=name
            ).advising(_DO_REFUSED) from error
        if name in _UNREACHABLE and settings is not None and _refuses_credentials(settings):
            raise _refused_credentials_error(settings) from error
        if name in _UNREACHABLE:
            summary = "no Kafka broker answered at these addresses; this request wrote no records"
            raise UnavailableError(summary, **where, error=name).advising(_DO_UNREACHABLE) from error
        raise UnavailableError(
            "a request to Kafka failed; this request wrote no records", **where, error=name
        ) from error
    except (FutureTimeoutError, TimeoutError) as error:
        summary = "Kafka did not answer in time; this request wrote no records"
        raise UnavailableError(summary, **where, seconds=TIMEOUT_S).advising(_DO_UNREACHABLE) from error


def _refused_credentials_error(settings: Mapping[str, str]) -> StoreRefusedError | UnavailableError:
    where = {"bootstrap_servers": settings.get("bootstrap.servers", "")}
    if endpoint := authentication.token_endpoint(settings):
        summary = "the token endpoint issued no token, or Kafka refused the token; this request wrote no records"
        return UnavailableError(summary, **where, token_endpoint=endpoint).advising(
            "check that this host reaches the endpoint, and that the connection has the correct client id, client secret, scope and extensions; then run again."
        )
    summary = "Kafka refused the credentials of the connection; this request wrote no records"
    return StoreRefusedError(summary, **where).advising(_DO_REFUSED)


def error_name(error: Any) -> str:
    """Return the name of the Kafka error in a ``KafkaException``, such as ``_TIMED_OUT``; ``unknown`` if it has none."""
    return error.args[0].name() if error.args and hasattr(error.args[0], "name") else "unknown"
