"""
Lands messages of a queue: writes them to immutable files, acknowledges them after that, and drops messages that were delivered twice.

A queue cannot be read twice. Landing i is one immutable file that is created with create-if-absent. Its messages are acknowledged after the create.

A process writes landing i + 1 only after it has read the message ids of the earlier landings in the dedup window. So within the window each message id gets
one record, even if several processes land messages concurrently. If another process has created landing i + 1 first, the process reads that landing, drops
the messages that it contains, and tries the next number. Whether a message is a duplicate depends only on the landings, and not on a clock.

| key below the landing directory | content |
|---|---|
| ``<inv(i)>-<i>.jsonl`` | landing i, one line for each message; the newest sorts first |
| ``_queue.json`` | the queue to which the messages belong |
| ``_ids/<inv(i)>-<i>.json`` | digests of the ids of landing i and of some earlier ones, which saves requests; if it is missing, the landings are read |
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, UnavailableError
from airflow_provider_streamsem.protocol.codec import canonical, read_json
from airflow_provider_streamsem.stores.contract import UnknownResultError

logger = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""When the bodies of the received messages exceed this many bytes, no more messages are received for the landing, which is built in memory."""
IDS_PER_OBJECT = 65_536
_DIGEST_BYTES = 16
_IDS = "_ids/"
_MARKER = "_queue.json"
_N = 10**12  # the prefix of a key is N - 1 - i, so that the newest landing sorts first
_NAME = re.compile(r"\d{12}-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """
    One delivery of a queue message.

    :param id: the same in every delivery of the message. ``None`` if the message has none; duplicates of it cannot be detected
    :param handle: identifies this delivery for :meth:`Receiver.acknowledge`
    """

    id: str | None
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    handle: Any = field(default=None, repr=False)


class Receiver(Protocol):
    """
    A connection to a queue.

    :raises UnavailableError: from any method: the queue did not report the result of a request
    :raises StoreRefusedError: from any method: access was denied, or the queue does not exist
    """

    def receive(self, most: int) -> Sequence[Message]:
        """Receive up to ``most`` messages. The queue hides them from other consumers for some time. Returns no messages if the queue is empty."""
        ...

    def acknowledge(self, handles: Sequence[Any]) -> None:
        """
        Acknowledge deliveries, so that the queue deletes their messages.

        A delivery that has expired is skipped. The queue delivers its message again, and the next landing drops the message as a duplicate.
        """
        ...

    def waiting(self) -> int:
        """Return the approximate number of messages that the queue could deliver now. Receives no message."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    The dedup window: the newest landings, whose message ids are compared with those of new messages.

    It ends at the newest landing, so a pause between runs does not shorten it. A landing is in the window if it is within both limits.

    :param hours: a landing is outside the window if it is more than this many hours older than the newest one; ``None``: no limit by age
    :param messages: a landing is outside the window if this many or more messages with an id were landed after it; ``None``: no limit by number
    """

    hours: int | None
    messages: int | None

    def __str__(self) -> str:
        hours = [] if self.hours is None else [f"{self.hours} h"]
        return "dedup " + ", ".join(hours + ([] if self.messages is None else [f"{self.messages} messages"]))

    def holds(self, *, age_ms: int, later: int) -> bool:
        """Return whether a landing that is ``age_ms`` older than the newest one, with ``later`` messages with ids after it, is in the window."""
        return (self.hours is None or age_ms <= self.hours * 3_600_000) and (
            self.messages is None or later < self.messages
        )


@dataclass(frozen=True, slots=True)
class _Landed:
    """The time (milliseconds UTC) and the digests of the message ids of landing ``i``."""

    i: int
    at_ms: int
    digests: tuple[bytes, ...]


class LandingDirectory:
    """
    Writes the landings of one queue to a directory or S3 prefix, and caches the message ids of those that this process has read.

    Several instances may use one location concurrently. If the result of a create is unknown, the commit log repeats it with the same bytes.

    :param queue: returns the server and the name of the queue, which the landing marker contains
    """

    def __init__(self, log: CommitLog, window: Window, queue: Callable[[], tuple[str, str]]) -> None:
        self._log = log
        self._window = window
        self._queue = queue
        self._known: dict[int, tuple[_Landed, ...]] = {}

    def newest(self) -> int:
        """-1 without landings. The listing may lag. The create of the next number then fails."""
        return self._listed("", _key)

    def _listed(self, prefix: str, key_of: Callable[[int], str]) -> int:
        try:
            for stat in self._log.store.list(prefix):
                match = _NAME.fullmatch(stat.key.removeprefix(prefix).partition(".")[0])
                if match is not None and stat.key == key_of(int(match[1])):
                    return int(match[1])
        except UnknownResultError as error:
            summary = (
                "the store of the landing did not report the result of a listing; nothing was landed or acknowledged"
            )
            raise UnavailableError(summary, location=self._log.store.url) from error
        return -1

    def land(self, receiver: Receiver, *, most: int, seconds: float) -> int:
        """
        Receive messages until the queue is empty, or up to ``most`` messages, ``MOST_BYTES`` or ``seconds``. Write the new ones as one landing, then
        acknowledge all received messages. Return the number of messages in the landing; 0 if none was written. Every acknowledged message is landed.

        The process may die at any line. The queue delivers unacknowledged messages again, and a later landing drops those that were landed. A location of
        another queue is refused (``InvalidError``).
        """
        is_marked = self._check_marker()
        i = self.newest()  # before a message is received, so that no message is hidden from other consumers if the location cannot be reached
        received = self._received(receiver, most, seconds)
        if not received:
            return 0
        if not is_marked:  # after a message has arrived, so that a wrong queue name creates no landing marker
            self._log.create(_MARKER, canonical({"queue": list(self._queue())}))
            self._check_marker()
        # A user may have deleted landings but not the objects with their ids. New landings must not get these numbers, or the old ids would count as theirs.
        i = max(i, self._listed(_IDS, _ids_key))
        landed = 0
        while fresh := self._fresh(i, received):
            data, summary = self._next_landing(i, fresh)
            i += 1
            if self._log.create(_key(i), data).mine:
                self._known[i] = (summary,)
                landed = len(fresh)
                break
        self._acknowledge(receiver, received)
        if landed:
            self._write_ids(i)
        return landed

    def _check_marker(self) -> bool:
        """The marker must name this queue."""
        data = self._log.read(_MARKER)
        if data is None:
            return False
        stored, queue = read_json(data, _MARKER), list(self._queue())
        if stored != {"queue": queue}:
            raise InvalidError(
                "the location of the landings belongs to another queue: messages of both queues would be mixed, and equal ids would count as duplicates; no "
                "message was received",
                landing=self._log.store.url,
                marker=_MARKER,
                marked=stored,
                queue=queue,
            ).advising(
                "set a separate `landing` for each queue. If the same queue has moved to another server, delete the object `_queue.json` of the location. No "
                "message was acknowledged."
            )
        return True

    def _received(self, receiver: Receiver, most: int, seconds: float) -> list[Message]:
        until_ms = self._log.clock.now_ms() + seconds * 1000
        received: list[Message] = []
        size = 0
        while len(received) < most and size < MOST_BYTES and self._log.clock.now_ms() < until_ms:
            batch = receiver.receive(most - len(received))
            if not batch:
                break
            received += batch
            size += sum(len(message.body) for message in batch)
        return received

    def _fresh(self, i: int, received: Sequence[Message]) -> list[Message]:
        """Messages whose ids are in no landing of the window up to ``i``, one for each id. Messages without an id never count as duplicates."""
        known = {digest for landed in self._in_window(i) for digest in landed.digests}
        fresh = []
        for message in received:
            if message.id is not None:
                digest = _digest(message.id)
                if digest in known:
                    continue
                known.add(digest)
            fresh.append(message)
        return fresh

    def _next_landing(self, i: int, fresh: Sequence[Message]) -> tuple[bytes, _Landed]:
        """The time of landing ``i + 1`` is at least that of landing ``i``, even if this machine's clock is behind."""
        before = next(self._back_from(i), None)
        at_ms = max(self._log.clock.now_ms(), 0 if before is None else before.at_ms)
        digests = tuple(_digest(message.id) for message in fresh if message.id is not None)
        return b"".join(_line(message, at_ms) for message in fresh), _Landed(i + 1, at_ms, digests)

    def _acknowledge(self, receiver: Receiver, received: Sequence[Message]) -> None:
        try:
            receiver.acknowledge([message.handle for message in received])
        except UnavailableError as error:
            # The messages are landed, so the run continues.
            logger.warning(
                "%d messages are landed, but some may not be acknowledged. The queue delivers these again, and a later landing drops them: %s",
                len(received),
                error,
            )

    # --- deduplication state

    def _in_window(self, i: int) -> Iterator[_Landed]:
        """The newest landing comes first."""
        newest_ms, later = None, 0
        for landed in self._back_from(i):
            newest_ms = landed.at_ms if newest_ms is None else newest_ms
            if not self._window.holds(age_ms=newest_ms - landed.at_ms, later=later):
                return
            yield landed
            later += len(landed.digests)

    def _back_from(self, i: int) -> Iterator[_Landed]:
        """The newest landing comes first. Stops at a deleted landing."""
        while i >= 0 and (landings := self._ending_at(i)):
            yield from reversed(landings)
            i = landings[0].i - 1

    def _ending_at(self, i: int) -> tuple[_Landed, ...]:
        """Landing ``i`` and possibly some landings directly before it, in order. Empty if landing ``i`` is missing."""
        if i not in self._known:
            data = self._log.read(_ids_key(i))
            ids = None if data is None else _decoded(i, data)
            if ids is not None:
                self._known[i] = ids
            else:  # The process that wrote the landing died before it wrote the ids, or the object with the ids is damaged.
                lines = self._log.read(_key(i))
                self._known[i] = () if lines is None else (_landed(i, lines),)
        return self._known[i]

    def _write_ids(self, i: int) -> None:
        """
        The object has the ids of landing ``i``, merged with the ids in preceding objects that are not much larger. So the sizes of older objects about double.
        A reader needs few objects for many landings, and each id is written only a few times.
        """
        landings = self._known[i]
        while landings[0].i > 0 and (before := self._ending_at(landings[0].i - 1)):
            here, previous = _ids_in(landings), _ids_in(before)
            if previous >= 2 * max(here, 1) or here + previous > IDS_PER_OBJECT:
                break
            landings = (*before, *landings)
        self._known[i] = landings
        self._log.create(_ids_key(i), _encoded(landings))


def body_of(line: str) -> str:
    """Return the body of a landed message as text; ``""`` if it is not UTF-8 or the message has no id. For readers without Spark."""
    landed = read_json(line, "a landed message", any_text=True)
    return "" if landed.get("encoding") or landed["id"] is None else str(landed["body"])


def _name(i: int) -> str:
    return f"{_N - 1 - i:012d}-{i}"


def _key(i: int) -> str:
    return f"{_name(i)}.jsonl"


def _ids_key(i: int) -> str:
    return f"{_IDS}{_name(i)}.json"


def _digest(message_id: str) -> bytes:
    return hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]


def _line(message: Message, at_ms: int) -> bytes:
    """The line is ASCII, so that no character of the body is read as the end of a line."""
    record = {"id": message.id, "received_ms": at_ms, "headers": dict(message.headers)}
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record |= {"body": base64.b64encode(message.body).decode(), "encoding": "base64"}
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _landed(i: int, data: bytes) -> _Landed:
    records = [read_json(line, _key(i), any_text=True) for line in data.splitlines()]
    try:
        digests = tuple(_digest(record["id"]) for record in records if record["id"] is not None)
        return _Landed(i, int(records[0]["received_ms"]), digests)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LogDamagedError(
            "a landing contains lines that no run has written", invariant="I1", key=_key(i)
        ) from error


def _ids_in(landings: Sequence[_Landed]) -> int:
    return sum(len(landed.digests) for landed in landings)


def _encoded(landings: Sequence[_Landed]) -> bytes:
    return canonical(
        {
            "landings": [
                [landed.i, landed.at_ms, base64.b64encode(b"".join(landed.digests)).decode()] for landed in landings
            ]
        }
    )


def _decoded(i: int, data: bytes) -> tuple[_Landed, ...] | None:
    """Decode the ids of landing ``i`` and of some landings directly before it. ``None`` if the object is damaged."""
    landings = []
    try:
        for number, at_ms, text in read_json(data, _IDS)["landings"]:
            joined = base64.b64decode(text, validate=True)
            digests = tuple(joined[at : at + _DIGEST_BYTES] for at in range(0, len(joined), _DIGEST_BYTES))
            landings.append(_Landed(int(number), int(at_ms), digests))
    except (KeyError, LogDamagedError, TypeError, ValueError):
        return None
    is_adjacent = [landed.i for landed in landings] == list(range(i - len(landings) + 1, i + 1))
    return tuple(landings) if landings and is_adjacent else None
