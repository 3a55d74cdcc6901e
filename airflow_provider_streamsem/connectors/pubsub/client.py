"""Client for subscriptions of Google Cloud Pub/Sub. google-cloud-pubsub is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.connectors.pubsub.credentials import credentials_of
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, StreamsemError, UnavailableError

_SUBSCRIPTION = r"projects/[a-z0-9:.-]{1,100}/subscriptions/[A-Za-z][A-Za-z0-9._~+%-]{2,254}"
_AT_ONCE = 1_000
"""Maximum number of messages in one pull, a limit of Pub/Sub, and of ids in one acknowledgement, whose size Pub/Sub limits to 512 KiB."""
_TIMEOUT_S = 30.0
_EMULATOR = "PUBSUB_EMULATOR_HOST"
_MONITORING = "https://monitoring.googleapis.com"
_METRIC = "pubsub.googleapis.com/subscription/num_undelivered_messages"
_PERMANENT = "PERMANENT_FAILURE"
"""Begins the reasons for which Pub/Sub will never accept an acknowledgement, such as an expired ack id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubQueue:
    """
    A subscription of Google Cloud Pub/Sub. The message id is Pub/Sub's, which is the same in every delivery of a message and different for every publish.

    The headers of a message are its attributes, and ``goog-publish-time``, ``goog-ordering-key`` and ``goog-delivery-attempt`` if Pub/Sub reports them.
    Publishers cannot set attributes whose names begin with ``goog``.

    If the environment variable ``PUBSUB_EMULATOR_HOST`` is set, the client connects to this emulator without credentials.

    :param subscription: ``projects/<project>/subscriptions/<name>`` of a pull subscription
    :param conn_id: an Airflow connection of type ``google_cloud_platform``. Default: Application Default Credentials
    :param endpoint: ``host`` or ``host:port`` of a regional endpoint, such as ``europe-west1-pubsub.googleapis.com``. Default: the global endpoint
    :param ack_deadline_s: seconds for which a received message is hidden from other consumers, 10 to 600. The client extends the deadline of the subscription
        to this value. A run receives messages for half of this time, and has the other half to write the landing
    :param wait_s: seconds for which a request waits for the first message, 1 to 60
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "pubsub"
    type: ClassVar[str] = "pubsub"
    subscription: str
    conn_id: str | None = None
    endpoint: str | None = None
    ack_deadline_s: int = 300
    wait_s: int = 5

    def __post_init__(self) -> None:
        where = "queue pubsub:"
        arguments.text(
            f"{where} subscription",
            self.subscription,
            pattern=_SUBSCRIPTION,
            accepted="projects/<project>/subscriptions/<name>",
        )
        if self.conn_id is not None:
            arguments.text(f"{where} conn_id", self.conn_id)
        if self.endpoint is not None:
            arguments.text(
                f"{where} endpoint", self.endpoint, pattern=r"[A-Za-z0-9.-]+(:\d{1,5})?", accepted="host or host:port"
            )
        arguments.integer(f"{where} ack_deadline_s", self.ack_deadline_s, least=10, most=600)
        arguments.integer(f"{where} wait_s", self.wait_s, least=1, most=60)

    @property
    def receive_s(self) -> float:
        """Seconds for which a run receives messages for one landing: half of the ack deadline."""
        return self.ack_deadline_s / 2

    @property
    def project(self) -> str:
        """The project of the subscription."""
        return self.subscription.split("/")[1]

    def identity(self) -> Mapping[str, str]:
        """Return the immutable identity of the queue: the subscription."""
        return {"type": self.type, "subscription": self.subscription}

    def lineage(self) -> tuple[str, str]:
        """Return the OpenLineage dataset ``("pubsub", "subscription:project:name")``."""
        return "pubsub", f"subscription:{self.project}:{self.subscription.split('/')[-1]}"

    @contextmanager
    def connect(self) -> Iterator[PubSubReceiver]:
        """
        Create a client of the subscription, and close it at the end of the context. Sends no request to the subscription.

        :raises InvalidError: google-cloud-pubsub is not installed, or the connection is not valid
        :raises StoreRefusedError: there are no credentials
        """
        try:
            from google.cloud.pubsub_v1 import SubscriberClient
        except ImportError as error:
            raise InvalidError("google-cloud-pubsub is not installed").advising(
                "run `pip install 'airflow-provider-streamsem[pubsub]'`, then run again."
            ) from error
        client_arguments: dict[str, Any] = {}
        if not os.environ.get(_EMULATOR):
            client_arguments["credentials"] = credentials_of(self.conn_id)
            if self.endpoint is not None:
                client_arguments["client_options"] = {"api_endpoint": self.endpoint}
        client = SubscriberClient(**client_arguments)
        try:
            yield PubSubReceiver(self, client, client_arguments.get("credentials"))
        finally:
            client.close()


class PubSubReceiver:
    """Receives from one subscription with a ``SubscriberClient``. ``credentials`` are those of google-auth; ``None`` for an emulator."""

    def __init__(self, queue: PubSubQueue, client: Any, credentials: Any) -> None:
        self._queue = queue
        self._client = client
        self._credentials = credentials

    def receive(self, most: int) -> Sequence[Message]:
        """At most 1,000, with one pull. Extends their ack deadlines."""
        from google.api_core.exceptions import DeadlineExceeded

        with _translated(self._queue.subscription):
            try:
                # A retry inside the client could get another delivery while the first one is lost. A lost delivery is delivered again in any case.
                response = self._client.pull(
                    subscription=self._queue.subscription,
                    max_messages=min(most, _AT_ONCE),
                    timeout=float(self._queue.wait_s),
                    retry=None,
                )
            except DeadlineExceeded:
                return []
        received = [*response.received_messages]
        self._extend([delivery.ack_id for delivery in received])
        return [
            Message(
                id=delivery.message.message_id or None,
                body=delivery.message.data,
                headers=_headers(delivery),
                handle=delivery.ack_id,
            )
            for delivery in received
        ]

    def _extend(self, ack_ids: list[str]) -> None:
        """Extend the ack deadlines of new deliveries. An ack id that has already expired is skipped: its message is landed and delivered again."""
        if ack_ids:
            self._request(self._client.modify_ack_deadline, ack_ids, ack_deadline_seconds=self._queue.ack_deadline_s)

    def acknowledge(self, handles: Sequence[Any]) -> None:
        """Sends at most 1,000 ids in a request. Expired ack ids are skipped."""
        for at in range(0, len(handles), _AT_ONCE):
            self._request(self._client.acknowledge, [*handles[at : at + _AT_ONCE]])

    def _request(self, method: Any, ack_ids: list[str], **more: Any) -> None:
        """Without exactly-once delivery Pub/Sub ignores expired ack ids. With it, an error names those that were refused; it accepted the others."""
        from google.api_core.exceptions import GoogleAPICallError

        with _translated(self._queue.subscription):
            try:
                method(subscription=self._queue.subscription, ack_ids=ack_ids, timeout=_TIMEOUT_S, **more)
            except GoogleAPICallError as error:
                reasons = {str(key): str(reason) for key, reason in (error.metadata or {}).items() if key in ack_ids}
                if not reasons:
                    raise
                if not all(reason.startswith(_PERMANENT) for reason in reasons.values()):
                    summary = "Pub/Sub could not process some ack ids; it delivers their messages again"
                    raise UnavailableError(
                        summary, subscription=self._queue.subscription, count=len(reasons)
                    ) from error

    def waiting(self) -> int:
        """
        As Cloud Monitoring reports it: some minutes late, with messages that are being processed.

        Pub/Sub itself has no such request. A pull would count as a delivery, and move messages to the dead-letter topic.
        """
        if self._credentials is None:
            summary = "a Pub/Sub emulator does not report the number of waiting messages; no message was received"
            raise InvalidError(summary, subscription=self._queue.subscription).advising(
                "use sensors and `lag` with Google Cloud only. Batches need no number of waiting messages."
            )
        response = self._monitored()
        try:
            return int(response["timeSeries"][0]["points"][0]["value"]["int64Value"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            summary = (
                "Cloud Monitoring has no number of waiting messages for the subscription yet; no message was received"
            )
            raise UnavailableError(summary, subscription=self._queue.subscription) from error

    def _monitored(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, timezone.utc)
        name = self._queue.subscription.split("/")[-1]
        parameters = {
            "filter": f'metric.type="{_METRIC}" AND resource.labels.subscription_id="{name}"',
            "interval.startTime": (now - timedelta(minutes=15)).isoformat(),
            "interval.endTime": now.isoformat(),
            "pageSize": "1",
        }
        with _translated(self._queue.subscription), AuthorizedSession(self._credentials) as session:
            url = f"{_MONITORING}/v3/projects/{self._queue.project}/timeSeries"
            response = session.get(url, params=parameters, timeout=_TIMEOUT_S)
            if response.status_code in (400, 401, 403, 404):
                raise StoreRefusedError(
                    "Cloud Monitoring refused to report the number of waiting messages; no message was received",
                    subscription=self._queue.subscription,
                    status=response.status_code,
                ).advising("give the process the permission monitoring.timeSeries.list of the project; then run again.")
            response.raise_for_status()
            return response.json()


def _headers(received: Any) -> dict[str, str]:
    message = received.message
    headers = {str(name): str(value) for name, value in message.attributes.items()}
    if message.publish_time:
        headers["goog-publish-time"] = message.publish_time.rfc3339()
    if message.ordering_key:
        headers["goog-ordering-key"] = message.ordering_key
    if received.delivery_attempt:
        headers["goog-delivery-attempt"] = str(received.delivery_attempt)
    return headers


@contextmanager
def _translated(subscription: str) -> Iterator[None]:
    """Errors contain no text of the clients."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, RefreshError

    refusals = (
        exceptions.Unauthorized,
        exceptions.Forbidden,
        exceptions.NotFound,
        exceptions.BadRequest,
        exceptions.MethodNotImplemented,
    )
    try:
        yield
    except StreamsemError:
        raise
    except refusals as error:
        raise StoreRefusedError(
            "Pub/Sub refused a request; landed messages are kept", subscription=subscription, error=type(error).__name__
        ).advising(
            "check the name of the subscription, that it is a pull subscription, and that the process may consume it (roles/pubsub.subscriber); then run again."
        ) from error
    except GoogleAuthError as error:
        if isinstance(error, RefreshError) and not error.retryable:
            summary = "Google did not accept the credentials; landed messages are kept"
            raise StoreRefusedError(summary, subscription=subscription).advising(
                "check the key of the connection and whether its service account is enabled; then run again."
            ) from None
        summary = "Google's authentication did not report the result of a request; Pub/Sub will redeliver messages that were not landed"
        raise UnavailableError(summary, subscription=subscription, error=type(error).__name__) from None
    except (exceptions.GoogleAPIError, OSError, ValueError) as error:
        summary = "Pub/Sub did not report the result of a request; it will redeliver messages that were not landed"
        raise UnavailableError(summary, subscription=subscription, error=type(error).__name__) from error
