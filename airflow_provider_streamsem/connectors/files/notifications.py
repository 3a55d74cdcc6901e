"""
Notifications of a bucket about new objects, in an SQS queue. Between complete listings, they replace the listing of the files source.

A notification may be lost, late or repeated. It only names an object: the object itself is requested before it is recorded. A lost notification delays the
file until the next complete listing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.connectors.sqs.client import SqsQueue, SqsReceiver
from airflow_provider_streamsem.errors import InvalidError

logger = telemetry.log_of(__name__)

_MOST_MESSAGES = 10_000
"""Maximum number of messages that one poll receives."""
_PER_REQUEST = 10
_LONGEST_KEY = 1_024
"""Maximum number of bytes in a key of S3, which refuses requests with longer keys."""


@dataclass(slots=True)
class Notified:
    """Paths that a poll has received, relative to the source, and ``(handle, paths)`` of each message, to acknowledge when its objects are in the log."""

    paths: set[str] = field(default_factory=set)
    handles: list[tuple[Any, frozenset[str]]] = field(default_factory=list)

    def handles_without(self, paths: Collection[str]) -> list[Any]:
        return [handle for handle, named in self.handles if named.isdisjoint(paths)]


def receive(receiver: SqsReceiver, bucket: str, prefix: str) -> Notified:
    """``prefix`` has no trailing slash; ``""`` for the whole bucket."""
    notified = Notified()
    while len(notified.handles) < _MOST_MESSAGES and (messages := receiver.receive(_PER_REQUEST)):
        for message in messages:
            root = f"{prefix}/" if prefix else ""
            named = {
                key.removeprefix(root) for name, key in created(message.body) if name == bucket and key.startswith(root)
            }
            notified.paths |= named
            notified.handles.append((message.handle, frozenset(named)))
    return notified


def created(body: bytes) -> Iterator[tuple[str, str]]:
    """
    Yield bucket and key of each object that a message reports as created: from S3, from S3 through SNS, or from EventBridge.

    Other messages are only logged, so they are acknowledged and do not block the queue. The next complete listing finds their objects.
    """
    try:
        message = json.loads(body)
        if isinstance(message.get("Message"), str) and "TopicArn" in message:
            message = json.loads(message["Message"])
        for bucket, key in _of_event_bridge(message) if "detail-type" in message else _of_s3(message):
            if not isinstance(key, str) or not 0 < len(key.encode()) <= _LONGEST_KEY:
                raise ValueError
            yield bucket, key
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        logger.warning("a message of the queue is not a notification of S3 and was ignored: %d bytes", len(body))


def _of_s3(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if message.get("Event") == "s3:TestEvent":
        return
    for record in message["Records"]:
        if record["eventName"].removeprefix("s3:").startswith("ObjectCreated:"):
            yield record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])


def _of_event_bridge(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if message["detail-type"] == "Object Created":
        yield message["detail"]["bucket"]["name"], message["detail"]["object"]["key"]


def queue_of(where: str, given: object) -> SqsQueue:
    """Return the queue from an object, or from its arguments."""
    if isinstance(given, SqsQueue):
        return given
    names = [each.name for each in dataclasses.fields(SqsQueue)]
    if not isinstance(given, Mapping) or "url" not in given:
        raise InvalidError(f"{where} must be an SqsQueue, or its arguments with `url`", accepted=names)
    arguments.known_keys(where, given, names)
    return SqsQueue(**given)


def to_json(queue: SqsQueue) -> dict[str, Any]:
    """Return the queue as a TOML table."""
    return {name: value for name, value in dataclasses.asdict(queue).items() if value is not None}
