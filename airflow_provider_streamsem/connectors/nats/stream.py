"""The state of a stream, and checks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_streamsem.connectors.nats.client import NatsClient, Stored
from airflow_provider_streamsem.connectors.nats.pins import partition_name
from airflow_provider_streamsem.errors import InvalidError


@dataclass(frozen=True, slots=True)
class StreamState:
    """
    A stream as its leader describes it.

    :param first: first sequence that the stream has; if it has no messages, its end
    :param end: one past the last sequence that the stream has assigned to a message
    :param kept_ms: age in milliseconds at which the server deletes a message; ``None``: no limit by age
    """

    name: str
    created: str
    first: int
    end: int
    kept_ms: int | None

    @property
    def partition(self) -> str:
        """The key of the stream in offsets and ranges."""
        return partition_name(self.name, self.created)


def state_of(client: NatsClient, name: str) -> StreamState | None:
    """Return the state of a stream; ``None`` if it does not exist. Refuses a stream that deletes messages when other consumers acknowledge them."""
    description = client.stream(name)
    if description is None:
        return None
    config, state = description["config"], description["state"]
    _refuse_deletion_on_acknowledgement(name, config)
    end = int(state["last_seq"]) + 1
    return StreamState(
        name=name,
        created=str(description["created"]),
        first=int(state["first_seq"]) if state["messages"] else end,
        end=end,
        kept_ms=int(config.get("max_age", 0)) // 1_000_000 or None,
    )


def _refuse_deletion_on_acknowledgement(name: str, config: Mapping[str, Any]) -> None:
    retention = config.get("retention", "limits")
    if retention != "limits":
        raise InvalidError(
            "the stream deletes a message when its consumers have acknowledged it, so a range cannot be read twice; nothing was read",
            stream=name,
            retention=retention,
            accepted="limits",
        ).advising("create a stream with retention `limits` that has this stream as a source, and read that stream.")


def time_ms(message: Stored) -> int:
    """Return when a message was stored, in milliseconds UTC, rounded down."""
    seconds, _, fraction = message.time.removesuffix("Z").partition(".")
    at = datetime.fromisoformat(f"{seconds}+00:00")
    return int(at.timestamp()) * 1000 + int(f"{fraction:0<3}"[:3])


def first_at(client: NatsClient, state: StreamState, subject: str, at_ms: int) -> int | None:
    """
    Return a sequence such that the messages at or above it are those stored at or after a time (milliseconds UTC); ``None`` if there are none.

    It requests one message for each step of a bisection: about 20 for a million messages. Every version of the server can answer these requests.
    """
    low, high, exists = state.first, state.end, False
    while low < high:
        middle = (low + high) // 2
        message = client.next(state.name, middle, subject)
        if message is None:
            high = middle
        elif time_ms(message) >= at_ms:
            high, exists = middle, True
        else:
            low = message.sequence + 1
    return low if exists else None
