"""
A client of NATS JetStream with blocking calls. nats-py, which is imported on first use, runs in a thread with an event loop.

The thread answers the pings of the server even while the caller is busy. The client requests metadata and single messages from the leader of the stream. It
never uses "direct get", which any replica or mirror answers, because these may lack the newest messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from airflow_provider_streamsem.connectors.nats.access import Access
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, StreamsemError, UnavailableError

TIMEOUT_S = 15.0
_SERVER_TIMEOUT_S = 4
"""Seconds for which the client waits for one server before it tries the next."""
_STREAM_NOT_FOUND, _NO_MESSAGE, _CONSUMER_NOT_FOUND = 10059, 10037, 10014
_REFUSED_ADVICE = (
    "check the credentials of the connection, and that the user may request $JS.API.STREAM.INFO, STREAM.MSG.GET, CONSUMER.CREATE, CONSUMER.MSG.NEXT and "
    "CONSUMER.DELETE of this stream and subscribe to _INBOX.>; then run again."
)
_UNREACHABLE_ADVICE = (
    "check that the servers run with JetStream and that this host reaches them (address, port, TLS); then run again."
)

T = TypeVar("T")


class Stored(NamedTuple):
    """The sequence and the time of a message, as the server writes times: RFC 3339 in UTC with nanoseconds."""

    sequence: int
    time: str


class Delivered(NamedTuple):
    """A message as a consumer gets it. ``number`` counts the deliveries of the consumer from 1; ``time_ns`` is when the server stored it, UTC."""

    subject: str
    sequence: int
    number: int
    time_ns: int
    headers: Mapping[str, str] | None
    data: bytes


@dataclass(slots=True)
class NatsClient:
    """
    An open connection to NATS.

    :raises UnavailableError: from any method: the server did not report the result of a request
    :raises StoreRefusedError: from any method: the server denied the request
    """

    api: str
    _loop: asyncio.AbstractEventLoop
    _connection: Any
    _problems: list[Exception] = field(default_factory=list)

    def stream(self, name: str) -> dict[str, Any] | None:
        """Return the configuration and state of a stream as JetStream's API returns it; ``None`` if the stream does not exist."""
        return self._request(f"STREAM.INFO.{name}", {}, missing=_STREAM_NOT_FOUND)

    def message(self, stream: str, sequence: int) -> Stored | None:
        return self._message(stream, {"seq": sequence})

    def next(self, stream: str, sequence: int, subject: str) -> Stored | None:
        """Return the first message that has a matching subject and a sequence at or above ``sequence``; ``None`` if there is none."""
        return self._message(stream, {"seq": max(1, sequence), "next_by_subj": subject})

    def last(self, stream: str, subject: str) -> Stored | None:
        return self._message(stream, {"last_by_subj": subject})

    def _message(self, stream: str, request: Mapping[str, Any]) -> Stored | None:
        response = self._request(f"STREAM.MSG.GET.{stream}", request, missing=_NO_MESSAGE)
        return None if response is None else Stored(response["message"]["seq"], response["message"]["time"])

    @contextmanager
    def consumer(self, stream: str, start: int, subject: str | None) -> Iterator[str]:
        """
        Create an ephemeral consumer for the block, from sequence ``start`` (1 or more), and yield its name. ``subject=None``: all messages.

        The consumer acknowledges nothing, keeps its state in memory, and has no effect on the stream or on other consumers. If the process dies, the server
        deletes it after five idle minutes.
        """
        name = self._connection.new_inbox().rpartition(".")[2]
        config = {
            "name": name, "description": "streamsem", "deliver_policy": "by_start_sequence", "opt_start_seq": start, "ack_policy": "none",
            "replay_policy": "instant", "inactive_threshold": 300 * 10**9, "mem_storage": True, "num_replicas": 1,
            **({} if subject is None else {"filter_subject": subject}),
        }  # fmt: skip
        # The name of the request contains the filter, so that permissions can depend on it.
        filtered = f".{subject}" if subject else ""
        self._request(f"CONSUMER.CREATE.{stream}.{name}{filtered}", {"stream_name": stream, "config": config})
        try:
            yield name
        finally:
            with suppress(StreamsemError):
                self._request(f"CONSUMER.DELETE.{stream}.{name}", {}, missing=_CONSUMER_NOT_FOUND)

    def pull(self, stream: str, consumer: str, *, max_messages: int, max_bytes: int) -> list[Delivered]:
        """Return the next messages of a consumer, none if there are none now. A single message may exceed ``max_bytes``, which include headers."""
        subject = f"{self.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        messages = self._wait(_pull_once(self._connection, subject, {"batch": max_messages, "max_bytes": max_bytes}))
        return messages or self._wait(_pull_once(self._connection, subject, {"batch": 1}))

    def _request(self, operation: str, request: Mapping[str, Any], *, missing: int = 0) -> dict[str, Any] | None:
        """``operation`` is the subject without the API's prefix (``STREAM.INFO.orders``). ``missing`` is the error code for which ``None`` is returned."""
        payload = json.dumps(request).encode() if request else b""
        pending = self._connection.request(f"{self.api}.{operation}", payload, timeout=TIMEOUT_S)
        try:
            response: dict[str, Any] = dict(json.loads(self._wait(pending).data))
            error = None if "error" not in response else dict(response["error"])
        except (ValueError, TypeError, RecursionError):
            summary = "JetStream's response is not valid; nothing became visible"
            raise UnavailableError(summary, request=operation) from None
        if error is None:
            return response
        if missing and error.get("err_code") == missing:
            return None
        where = {"request": operation.rpartition(".")[0], "code": error.get("code"), "error": error.get("err_code")}
        if error.get("code", 500) < 500:
            raise StoreRefusedError("JetStream refused a request; nothing became visible", **where).advising(
                _REFUSED_ADVICE
            )
        raise UnavailableError("JetStream did not report the result of a request; nothing became visible", **where)

    def _wait(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Map the errors of a coroutine. Errors contain no text of the client, because it may contain settings."""
        try:
            return _result(self._loop, awaited)
        except Exception as error:
            if any("permissions violation" in str(problem).lower() for problem in self._problems):
                summary = "NATS denied the user a request or a subscription; nothing became visible"
                raise StoreRefusedError(summary).advising(_REFUSED_ADVICE) from error
            summary = "NATS did not report the result of a request; nothing became visible"
            raise UnavailableError(summary, error=type(error).__name__).advising(_UNREACHABLE_ADVICE) from error


@contextmanager
def connected(access: Access, domain: str | None) -> Iterator[NatsClient]:
    """
    Connect to NATS for the block. The client does not reconnect, so that a lost connection fails the caller instead of its next request.

    :param domain: JetStream domain; ``None``: that of the server
    """
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="streamsem-nats", daemon=True)
    thread.start()
    problems: list[Exception] = []
    try:
        connection = _result(loop, _open(access, problems))
        api = f"$JS.{domain}.API" if domain else "$JS.API"
        try:
            yield NatsClient(api, loop, connection, problems)
        finally:
            with suppress(Exception):
                _result(loop, connection.close())
    finally:
        with suppress(Exception):
            _result(loop, _cancel_rest())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _result(loop: asyncio.AbstractEventLoop, awaited: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(awaited, loop).result(2 * TIMEOUT_S)


async def _cancel_rest() -> None:
    """A loop must not be closed before its tasks have ended."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _open(access: Access, problems: list[Exception]) -> Any:
    """The client adds to ``problems`` the errors that it reports outside of a call."""
    try:
        from nats.aio.client import Client
    except ImportError as error:
        raise InvalidError("nats-py is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[nats]'`."
        ) from error
    connection = Client()

    async def record(problem: Exception) -> None:
        problems.append(problem)

    options = _security_options(access, connection)
    try:
        opening = connection.connect(
            servers=[f"{'tls' if access.tls else 'nats'}://{server}" for server in access.servers],
            name="streamsem", error_cb=record, allow_reconnect=False, connect_timeout=_SERVER_TIMEOUT_S, max_reconnect_attempts=1,
            reconnect_time_wait=1, **options,
        )  # fmt: skip
        await asyncio.wait_for(opening, TIMEOUT_S)
        _require_tls(access, connection)
    except StreamsemError:
        await _close(connection)
        raise
    except Exception as error:
        await _close(connection)
        raise _connection_error(access, error, problems) from None
    return connection


def _security_options(access: Access, connection: Any) -> dict[str, Any]:
    from nats.aio.client import RawCredentials

    def secret(value: str) -> Any:
        """The client calls the function after the TLS handshake. Without TLS it fails before the secret is sent."""

        def give() -> str:
            _require_tls(access, connection)
            return value

        return give

    options: dict[str, Any] = {"tls": access.context()} if access.tls else {}
    if access.login:
        options |= {"user": secret(access.login), "password": secret(access.password)}
    if access.token:
        options["token"] = secret(access.token)
    if access.creds:
        options["user_credentials"] = RawCredentials(access.creds)
    return options


def _connection_error(access: Access, error: Exception, problems: list[Exception]) -> StreamsemError:
    where = {"servers": list(access.servers), "error": type(error).__name__}
    texts = " ".join(str(problem).lower() for problem in (error, *problems))
    if "authorization" in texts or "authentication" in texts or "credentials" in texts:
        summary = "NATS did not accept the credentials; nothing was read"
        return StoreRefusedError(summary, **where).advising(_REFUSED_ADVICE)
    summary = "no NATS server answered at these addresses; nothing was read"
    return UnavailableError(summary, **where).advising(_UNREACHABLE_ADVICE)


def _require_tls(access: Access, connection: Any) -> None:
    """The client itself would continue without encryption."""
    if access.tls and not connection._server_info.get("tls_required"):
        raise StoreRefusedError(
            "the connection requires TLS, and the NATS server does not offer it; no credentials were sent",
            servers=list(access.servers),
        ).advising("enable TLS on the server, or remove the TLS settings of the connection; then run again.")


async def _close(connection: Any) -> None:
    with suppress(Exception):
        await connection.close()


async def _pull_once(connection: Any, subject: str, request: Mapping[str, int]) -> list[Delivered]:
    """Each request has its own subscription, so that a late status message (without a reply subject) of an earlier request cannot end it."""
    received: list[Delivered] = []
    ended = asyncio.Event()

    async def receive(message: Any) -> None:
        if message.reply:
            received.append(_decode(message))
        if not message.reply or len(received) == request["batch"]:
            ended.set()

    # No limit of the client may drop messages. The size of the request limits them.
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)
    try:
        await connection.publish(subject, json.dumps({**request, "no_wait": True}).encode(), reply=inbox)
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
    finally:
        await subscription.unsubscribe()
    return received


def _decode(message: Any) -> Delivered:
    """The subject for the acknowledgement contains sequence and time: nine tokens, or more with a domain and an account."""
    tokens = message.reply.split(".")
    sequence, number, time_ns = (int(token) for token in (tokens[5:8] if len(tokens) == 9 else tokens[7:10]))
    headers = None if message.headers is None else {str(name): str(value) for name, value in message.headers.items()}
    return Delivered(message.subject, sequence, number, time_ns, headers, message.data)
