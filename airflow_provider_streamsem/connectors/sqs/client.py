"""Client for Amazon SQS queues. boto3 is imported on first use."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.errors import StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores import aws, s3

_AT_ONCE = 10
"""Maximum number of messages in one request, a limit of SQS."""
_REGION = re.compile(r"https?://sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?/")
_URL = r"https?://[^@\s/]+/[^@\s]+"
_EXPIRED_HANDLE = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight")
_TRANSIENT_CODES = ("Throttl", "RequestLimit", "Expired", "RequestTimeout", "OverLimit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsQueue:
    """
    A queue of Amazon SQS. The message id is the SQS ``MessageId``, which is the same in every delivery of a message and different for every send.

    :param url: URL of the queue, without credentials
    :param conn_id: an Airflow connection of type ``aws``. Default: boto3's default credential chain
    :param region: AWS region. Default: the region of the connection, of ``url``, or of boto3
    :param endpoint_url: URL of an SQS-compatible server. Default: the endpoint of the connection, or that of AWS
    :param visibility_timeout_s: seconds for which a received message is hidden from other consumers, 2 to 43,200. A run receives messages for half of this
        time, and has the other half to write the landing. After the timeout, SQS delivers a message again, and the next landing drops it as a duplicate
    :param wait_s: seconds for which a request waits for the first message (long polling), 1 to 20. 0 is refused, because SQS would then query only some of its
        servers
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = ""
    type: ClassVar[str] = "sqs"
    url: str
    conn_id: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    visibility_timeout_s: int = 300
    wait_s: int = 1

    def __post_init__(self) -> None:
        where = "queue sqs:"
        arguments.text(f"{where} url", self.url, pattern=_URL, accepted="the queue's URL, without credentials")
        for name in ("conn_id", "region"):
            if getattr(self, name) is not None:
                arguments.text(f"{where} {name}", getattr(self, name))
        if self.endpoint_url is not None:
            arguments.text(
                f"{where} endpoint_url",
                self.endpoint_url,
                pattern=r"https?://[^@\s]+",
                accepted="a URL without credentials",
            )
        arguments.integer(f"{where} visibility_timeout_s", self.visibility_timeout_s, least=2, most=43_200)
        arguments.integer(f"{where} wait_s", self.wait_s, least=1, most=20)

    @property
    def receive_s(self) -> float:
        """Seconds for which a run receives messages for one landing: half of the visibility timeout."""
        return self.visibility_timeout_s / 2

    def identity(self) -> Mapping[str, str]:
        """Return the immutable identity of the queue: its URL."""
        return {"type": self.type, "url": self.url}

    def lineage(self) -> tuple[str, str]:
        """Return the OpenLineage dataset ``("sqs://host", "account/name")``."""
        host, _, name = self.url.partition("://")[2].partition("/")
        return f"sqs://{host}", name

    @contextmanager
    def connect(self) -> Iterator[SqsReceiver]:
        """
        Create a client of the queue. Sends no request to the queue.

        :raises InvalidError: the connection is not valid
        """
        access = s3.S3Access() if self.conn_id is None else aws.access_of(self.conn_id, service="sqs")
        url_region = _REGION.match(self.url)
        region = self.region or access.region_name or (url_region[1] if url_region else None)
        session = s3.session(dataclasses.replace(access, region_name=region))
        yield SqsReceiver(self, session.client("sqs", endpoint_url=self.endpoint_url or access.endpoint_url))


class SqsReceiver:
    """A client of one queue. Implements :class:`airflow_provider_streamsem.connectors.landing.messages.Receiver`."""

    def __init__(self, queue: SqsQueue, client: Any) -> None:
        self._queue = queue
        self._client = client

    def receive(self, most: int) -> Sequence[Message]:
        """At most ten, with one request."""
        response = self._call(
            self._client.receive_message,
            MaxNumberOfMessages=min(most, _AT_ONCE),
            VisibilityTimeout=self._queue.visibility_timeout_s,
            WaitTimeSeconds=self._queue.wait_s,
            MessageAttributeNames=["All"],
        )
        return [
            Message(
                id=message["MessageId"],
                body=message["Body"].encode("utf-8", "surrogatepass"),
                headers={name: _text(value) for name, value in message.get("MessageAttributes", {}).items()},
                handle=message["ReceiptHandle"],
            )
            for message in response.get("Messages", [])
        ]

    def acknowledge(self, handles: Sequence[Any]) -> None:
        """Sends at most ten handles in a request. Expired receipt handles are skipped."""
        for at in range(0, len(handles), _AT_ONCE):
            entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[at : at + _AT_ONCE])]
            failed = self._call(self._client.delete_message_batch, Entries=entries).get("Failed", [])
            for entry in failed:
                if not entry.get("Code", "").endswith(_EXPIRED_HANDLE):
                    summary = "SQS did not delete a landed message; SQS delivers it again, and the next landing drops it as a duplicate"
                    raise UnavailableError(summary, queue=self._queue.url, code=entry.get("Code"))

    def waiting(self) -> int:
        """Messages that are neither hidden nor delayed, approximately."""
        name = "ApproximateNumberOfMessages"
        return int(self._call(self._client.get_queue_attributes, AttributeNames=[name])["Attributes"][name])

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            NoRegionError,
            PartialCredentialsError,
        )

        try:
            return method(QueueUrl=self._queue.url, **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if 400 <= status < 500 and not any(word in code for word in _TRANSIENT_CODES):
                raise StoreRefusedError(
                    "SQS refused a request; landed messages are kept",
                    queue=self._queue.url,
                    status=status,
                    code=code,
                ).advising(
                    "give the process the right to receive and delete messages of this queue, and check its address and region; then run again."
                ) from error
            raise UnavailableError(
                "SQS did not report the result of a request; it will redeliver messages that were not landed",
                queue=self._queue.url,
                code=code,
            ) from error
        except (NoCredentialsError, NoRegionError, PartialCredentialsError) as error:
            summary = "the process lacks credentials or a region for SQS; no message was received"
            raise StoreRefusedError(summary, queue=self._queue.url).advising(
                "set the credentials and the region of the connection or of the process, then run again."
            ) from error
        except (BotoCoreError, OSError) as error:
            summary = "SQS did not report the result of a request; it will redeliver messages that were not landed"
            raise UnavailableError(summary, queue=self._queue.url) from error


def _text(attribute: Mapping[str, Any]) -> str:
    if "StringValue" in attribute:
        return str(attribute["StringValue"])
    return base64.b64encode(attribute.get("BinaryValue", b"")).decode()
