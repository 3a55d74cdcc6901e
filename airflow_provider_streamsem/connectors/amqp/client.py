"""Client for the queues of an AMQP 0-9-1 broker such as RabbitMQ. pika is imported on first use."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.connections import clear_text_warning, connection
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError

logger = telemetry.log_of(__name__)

_AT_ONCE = 100
_PORT = 5672
_NUMBERS = {b"f": ">f", b"d": ">d"}
_TIMEOUT_S = 30
_HEARTBEAT_S = 60
"""
Seconds between AMQP heartbeats.

The broker closes a connection without heartbeats after about two intervals. The client sends no heartbeats while it writes a landing. If the write takes
longer than that, the broker delivers the messages again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpQueue:
    """
    A queue of an AMQP 0-9-1 broker, such as RabbitMQ. When a connection ends, the broker delivers its unacknowledged messages again.

    :param name: name of the queue, which must exist
    :param conn_id: an Airflow connection of type ``amqp`` or ``amqps``: host, port, login, password, and the virtual host as schema. Exactly one of ``conn_id``
        and ``host`` must be given
    :param host: ``host`` or ``host:port`` of a broker that accepts the guest user
    :param id_from: the source of the message id. ``message_id``: the property that the producer sets; a message without it is quarantined. ``body``: the sha256
        of the body; of several messages with equal bodies within the dedup window, only one is read
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "amqp"
    type: ClassVar[str] = "amqp"
    name: str
    conn_id: str | None = None
    host: str | None = None
    id_from: str = "message_id"

    def __post_init__(self) -> None:
        where = "queue amqp:"
        arguments.text(f"{where} name", self.name)
        arguments.exactly_one(where, conn_id=self.conn_id, host=self.host)
        for name in ("conn_id", "host"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}",
                    getattr(self, name),
                    pattern=r"[^\s@/]+",
                    accepted="text without spaces, '@', '/'",
                )
        if self.host is not None:
            _host_and_port(self.host)
        arguments.choice(f"{where} id_from", self.id_from, ("message_id", "body"))

    @property
    def receive_s(self) -> float:
        """Seconds for which a landing receives messages: a third of RabbitMQ's delivery acknowledgement timeout (30 minutes by default)."""
        return 600.0

    def identity(self) -> Mapping[str, str]:
        """Return the immutable identity of the queue: its name. The broker is not included, because a queue may move to another broker."""
        return {"type": self.type, "name": self.name}

    def lineage(self) -> tuple[str, str]:
        """Return the OpenLineage dataset ``("amqp://host:port", "virtual host/name")``."""
        address = self._address()
        return (
            f"amqp://{address['host']}:{address['port']}",
            f"{address['virtual_host'].strip('/')}/{self.name}".lstrip("/"),
        )

    def _address(self) -> dict[str, Any]:
        if self.conn_id is None:
            host, port = _host_and_port(self.host or "")
            return {"host": host, "port": port, "virtual_host": "/", "tls": False, "login": None}
        conn = connection(self.conn_id)
        if conn.conn_type not in ("amqp", "amqps"):
            raise InvalidError(
                "queue amqp: conn_id must name a connection of type amqp or amqps",
                conn_id=self.conn_id,
                given=conn.conn_type,
            )
        tls = conn.conn_type == "amqps"
        return {
            "host": conn.host or "localhost", "port": conn.port or (5671 if tls else 5672), "virtual_host": conn.schema or "/", "tls": tls,
            "login": (conn.login, conn.password) if conn.login else None,
        }  # fmt: skip

    def warnings(self) -> list[str]:
        address = self._address()
        if address["tls"] or address["login"] is None:
            return []
        return clear_text_warning("queue amqp", self.conn_id or "", address["host"], "use a connection of type amqps")

    @contextmanager
    def connect(self) -> Iterator[AmqpReceiver]:
        """
        Open a connection and a channel, and close the connection at the end of the context.

        :raises StoreRefusedError: access denied
        :raises UnavailableError: the broker cannot be reached or did not report the result of a request
        :raises InvalidError: pika is not installed, or the connection is not of type ``amqp`` or ``amqps``
        """
        try:
            import pika
        except ImportError as error:
            raise InvalidError("pika is not installed").advising(
                "run `pip install 'airflow-provider-streamsem[amqp]'`, then run again."
            ) from error
        for warning in self.warnings():
            logger.warning("%s", warning)
        _keep_numbers_of_headers()
        with _translated(self.name):
            pika_connection = pika.BlockingConnection(self._parameters())
        try:
            with _translated(self.name):
                channel = pika_connection.channel()
            yield AmqpReceiver(self, channel)
        finally:
            with suppress(Exception):  # The broker delivers unacknowledged messages again in any case.
                pika_connection.close()

    def _parameters(self) -> Any:
        import ssl

        import pika

        address = self._address()
        more = {} if address["login"] is None else {"credentials": pika.PlainCredentials(*address["login"])}
        if address["tls"]:
            more["ssl_options"] = pika.SSLOptions(ssl.create_default_context(), address["host"])
        return pika.ConnectionParameters(
            host=address["host"], port=address["port"], virtual_host=address["virtual_host"], heartbeat=_HEARTBEAT_S, socket_timeout=_TIMEOUT_S,
            stack_timeout=_TIMEOUT_S, blocked_connection_timeout=_TIMEOUT_S, **more,
        )  # fmt: skip


class AmqpReceiver:
    """A channel to one queue. Implements :class:`airflow_provider_streamsem.connectors.landing.messages.Receiver`."""

    def __init__(self, queue: AmqpQueue, channel: Any) -> None:
        self._queue = queue
        self._channel = channel

    def receive(self, most: int) -> Sequence[Message]:
        """At most 100, each with one ``basic.get``."""
        received: list[Message] = []
        with _translated(self._queue.name):
            while len(received) < min(most, _AT_ONCE):
                method, properties, body = self._channel.basic_get(self._queue.name)
                if method is None:
                    break
                received.append(self._message(method, properties, body))
        return received

    def _message(self, method: Any, properties: Any, body: bytes) -> Message:
        property_id = properties.message_id
        message_id = property_id if isinstance(property_id, str) and property_id else None
        if self._queue.id_from == "body":
            message_id = hashlib.sha256(body).hexdigest()
        headers = {str(name): str(value) for name, value in (properties.headers or {}).items()}
        return Message(id=message_id, body=body, headers=headers, handle=method.delivery_tag)

    def acknowledge(self, handles: Sequence[Any]) -> None:
        """The broker does not reply to an acknowledgement. So the client then sends a request with a reply, which fails if an acknowledgement failed."""
        with _translated(self._queue.name):
            for handle in handles:
                self._channel.basic_ack(handle)
            self._channel.queue_declare(self._queue.name, passive=True)

    def waiting(self) -> int:
        """Number of messages that are ready for delivery."""
        with _translated(self._queue.name):
            count: int = self._channel.queue_declare(self._queue.name, passive=True).method.message_count
        return count


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{text}")
        host, port = parsed.hostname, parsed.port or _PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise InvalidError(
            "queue amqp: host must be a host name or address, with or without a port",
            given=text,
            accepted="rabbit, rabbit:5672, [::1]:5672",
        )
    return host, port


@cache
def _keep_numbers_of_headers() -> None:
    """Patch pika in the whole process. Unpatched, it truncates floats in headers to integers, and fails at each delivery of a timestamp after the year 9999."""
    from pika import data

    original = data.decode_value

    def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
        form = _NUMBERS.get(encoded[offset : offset + 1])
        if form is not None:
            return struct.unpack_from(form, encoded, offset + 1)[0], offset + 1 + struct.calcsize(form)
        try:
            decoded: tuple[Any, int] = original(encoded, offset)
            return decoded
        except (OverflowError, ValueError, OSError):
            if encoded[offset : offset + 1] != b"T":
                raise
            return struct.unpack_from(">Q", encoded, offset + 1)[0], offset + 9

    data.decode_value = decode_value


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Errors never contain pika's text, because it may contain settings."""
    from pika import exceptions

    refusals = (
        exceptions.AuthenticationError,
        exceptions.ProbableAuthenticationError,
        exceptions.ProbableAccessDeniedError,
    )
    try:
        yield
    except exceptions.AMQPError as error:
        causes = (error, *error.args)
        refused = next((cause for cause in causes if isinstance(cause, refusals)), None)
        code = getattr(error, "reply_code", None)
        if refused is not None or (isinstance(error, exceptions.ChannelClosedByBroker) and code in (403, 404)):
            raise StoreRefusedError(
                "the AMQP broker denied access, or the queue does not exist; landed messages are kept",
                queue=name,
                code=code,
            ).advising(
                "give the user of the connection the right to read the queue, and check the queue's name and virtual host; then run again."
            ) from error
        summary = (
            "the AMQP broker did not report the result of a request; it will redeliver messages that were not landed"
        )
        raise UnavailableError(summary, queue=name, error=type(error).__name__) from error
    except OSError as error:
        summary = "the AMQP broker cannot be reached; it will redeliver messages that were not landed"
        raise UnavailableError(summary, queue=name, error=type(error).__name__) from error
