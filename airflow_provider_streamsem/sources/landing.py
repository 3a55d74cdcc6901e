"""
Messages of a queue, saved in files of our own before the queue may forget them.

A queue cannot be read twice, so its messages are landed: landing i is one immutable file that is created by create-if-absent, and only after that are its
messages acknowledged. The files are their own index. Landing i + 1 is written only by who has read which ids the landings before it hold, so a message id
gets one record within the window, whoever lands, and however many at once: the loser of a create reads the winner's landing, drops what is there, and
tries the next number. What counts as a repeat is a function of the landings alone; no clock decides it.

| key below the landing | holds |
|---|---|
| ``<inv(i)>-<i>.jsonl`` | landing i, a line for each message; the newest sorts first |
| ``_queue.json`` | whose messages these are |
| ``_ids/<inv(i)>-<i>.json`` | digests of the ids of landing i and of some before it, for few requests; where it is missing, landings are read |
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
from airflow_provider_streamsem.stores.contract import UnknownAnswerError

logger = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""of bodies in one landing: they are held in memory"""
IDS_PER_OBJECT = 65_536
_DIGEST_BYTES = 16
_IDS = "_ids/"
_MARK = "_queue.json"
_N = 10**12
_NAME = re.compile(r"\d{12}-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """
    A message as a queue delivered it.

    :param id: the same in every delivery of it; ``None`` where the queue gives none, so that no repeat can be known
    :param handle: by which this delivery is acknowledged
    """

    id: str | None
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    handle: Any = field(default=None, repr=False)


class Receiver(Protocol):
    """
    A connection to a queue.

    :raises UnavailableError: from any method: no clear answer
    :raises StoreRefusedError: from any method: not allowed, or no such queue
    """

    def receive(self, most: int) -> Sequence[Message]:
        """Up to ``most`` messages, which others do not get for a while; none: the queue is empty."""
        ...

    def acknowledge(self, handles: Sequence[Any]) -> None:
        """
        Have the queue forget these deliveries.

        One that can no longer be acknowledged, since it waited too long, is passed over: its message comes again, and is then known.
        """
        ...

    def waiting(self) -> int:
        """About how many messages would be delivered now. Takes none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    How far back a message id is known, counted from the newest landing: a pause between runs does not use it up.

    :param hours: a landing that is so much older than the newest is forgotten; ``None``: no age makes it so
    :param messages: a landing is forgotten where so many messages or more were landed after it; ``None``: no number makes it so
    """

    hours: int | None
    messages: int | None

    def __str__(self) -> str:
        hours = [] if self.hours is None else [f"{self.hours} h"]
        return "dedup " + ", ".join(hours + ([] if self.messages is None else [f"{self.messages} messages"]))

    def holds(self, *, age_ms: int, later: int) -> bool:
        """Whether a landing is known, which is so much older than the newest one, and has so many messages after it."""
        return (self.hours is None or age_ms <= self.hours * 3_600_000) and (
            self.messages is None or later < self.messages
        )


@dataclass(frozen=True, slots=True)
class _Landed:
    """Of landing ``i``: when it was received, and the digests of its ids."""

    i: int
    at_ms: int
    digests: tuple[bytes, ...]


class Landing:
    """
    The landings at one place, as far as this process has read them. Two of these on one place are as good as one.

    :param log: the place, as a log: it sends a create without a clear answer again, with the same bytes
    :param window: how far back ids are known
    :param queue: gives the queue's server and name
    """

    def __init__(self, log: CommitLog, window: Window, queue: Callable[[], tuple[str, str]]) -> None:
        self._log = log
        self._window = window
        self._queue = queue
        self._known: dict[int, tuple[_Landed, ...]] = {}

    def newest(self) -> int:
        """Number of the newest landing that a listing shows; -1: none. One that it does not show is found by the create that it makes fail."""
        return self._listed("", _key)

    def _listed(self, prefix: str, key_of: Callable[[int], str]) -> int:
        try:
            for stat in self._log.store.list(prefix):
                match = _NAME.fullmatch(stat.key.removeprefix(prefix).partition(".")[0])
                if match is not None and stat.key == key_of(int(match[1])):
                    return int(match[1])
        except UnknownAnswerError as error:
            what = "the landing gave no clear answer to a listing; nothing was landed or acknowledged"
            raise UnavailableError(what, place=self._log.store.url) from error
        return -1

    def land(self, receiver: Receiver, *, most: int, seconds: float) -> int:
        """
        Take what the queue gives, until it is empty, as one landing; returns how many messages are new.

        A process may die at any line: what is not acknowledged comes again, and is known if it was landed.

        :param most: messages, 1 or more
        :param seconds: for which messages are received
        :raises UnavailableError: the queue or the place gave no clear answer; nothing was acknowledged that is not landed
        :raises InvalidError: the place is the landing of another queue; nothing was landed or acknowledged
        """
        is_marked = self._check_mark()
        i = self.newest()  # before a message is taken: a place that cannot be reached takes none
        taken = self._received(receiver, most, seconds)
        if not taken:
            return 0
        if not is_marked:  # only now: a name that was misspelt must not take the place
            self._log.create(_MARK, canonical({"queue": list(self._queue())}))
            self._check_mark()
        # Where somebody has deleted landings and left their ids, their numbers are not given again: the ids would be taken for those of the new ones.
        i = max(i, self._listed(_IDS, _ids_key))
        landed = 0
        while fresh := self._fresh(i, taken):
            data, own = self._file(i, fresh)
            i += 1
            if self._log.create(_key(i), data).mine:
                self._known[i] = (own,)
                landed = len(fresh)
                break
        self._acknowledge(receiver, taken)
        if landed:
            self._write_ids(i)
        return landed

    def _check_mark(self) -> bool:
        """Whether the place is marked as the landing of this queue."""
        found = self._log.read(_MARK)
        if found is None:
            return False
        stored, queue = read_json(found, _MARK), list(self._queue())
        if stored != {"queue": queue}:
            raise InvalidError(
                "the landing is that of another queue: messages of both would be taken for one queue's, and equal ids for one message",
                landing=self._log.store.url,
                mark=_MARK,
                marked=stored,
                queue=queue,
            ).advising(
                "give each queue a landing of its own. If the same queue has moved to another server, delete the mark. No message was acknowledged."
            )
        return True

    def _received(self, receiver: Receiver, most: int, seconds: float) -> list[Message]:
        until_ms = self._log.clock.now_ms() + seconds * 1000
        taken: list[Message] = []
        size = 0
        while len(taken) < most and size < MOST_BYTES and self._log.clock.now_ms() < until_ms:
            more = receiver.receive(most - len(taken))
            if not more:
                break
            taken += more
            size += sum(len(message.body) for message in more)
        return taken

    def _fresh(self, i: int, taken: Sequence[Message]) -> list[Message]:
        """Of each id the first, where no landing up to ``i`` has it. Without an id nothing is known to be a repeat."""
        seen = {digest for landed in self._in_window(i) for digest in landed.digests}
        fresh = []
        for message in taken:
            if message.id is not None:
                digest = _digest(message.id)
                if digest in seen:
                    continue
                seen.add(digest)
            fresh.append(message)
        return fresh

    def _file(self, i: int, fresh: Sequence[Message]) -> tuple[bytes, _Landed]:
        """Landing ``i + 1``: its bytes, and what is known of it. Its time is never before that of landing ``i``, whatever this machine's clock says."""
        before = next(self._back_from(i), None)
        at_ms = max(self._log.clock.now_ms(), 0 if before is None else before.at_ms)
        digests = tuple(_digest(message.id) for message in fresh if message.id is not None)
        return b"".join(_line(message, at_ms) for message in fresh), _Landed(i + 1, at_ms, digests)

    def _acknowledge(self, receiver: Receiver, taken: Sequence[Message]) -> None:
        try:
            receiver.acknowledge([message.handle for message in taken])
        except UnavailableError as error:
            # They are landed: the run goes on with them.
            logger.warning(
                "%d messages are landed and may not be acknowledged; they come again and are dropped then: %s", len(taken), error
            )  # fmt: skip

    # --- which ids are known

    def _in_window(self, i: int) -> Iterator[_Landed]:
        """The landings up to ``i`` whose ids are known, the newest first."""
        newest_ms, later = None, 0
        for landed in self._back_from(i):
            newest_ms = landed.at_ms if newest_ms is None else newest_ms
            if not self._window.holds(age_ms=newest_ms - landed.at_ms, later=later):
                return
            yield landed
            later += len(landed.digests)

    def _back_from(self, i: int) -> Iterator[_Landed]:
        """The landings up to ``i``, the newest first; ends before one that somebody has deleted."""
        while i >= 0 and (run := self._run(i)):
            yield from reversed(run)
            i = run[0].i - 1

    def _run(self, i: int) -> tuple[_Landed, ...]:
        """Landing ``i`` and perhaps some before it, without a gap, in order; empty where it is gone."""
        if i not in self._known:
            data = self._log.read(_ids_key(i))
            ids = None if data is None else _decoded(i, data)
            if ids is not None:
                self._known[i] = ids
            else:  # the process that landed it died before it wrote the ids, or the ids are damaged
                lines = self._log.read(_key(i))
                self._known[i] = () if lines is None else (_landed(i, lines),)
        return self._known[i]

    def _write_ids(self, i: int) -> None:
        """
        Fold the ids of landing ``i`` with those of runs that are not much larger.

        So the runs that a reader meets double in size as he goes back: few objects for many landings, and each id is written few times.
        """
        run = self._known[i]
        while run[0].i > 0 and (before := self._run(run[0].i - 1)):
            here, there = _count(run), _count(before)
            if there >= 2 * max(here, 1) or here + there > IDS_PER_OBJECT:
                break
            run = (*before, *run)
        self._known[i] = run
        self._log.create(_ids_key(i), _encoded(run))


def body_of(line: str) -> str:
    """A landed message's body as text, ``""`` where it is not UTF-8 or has no id: for readers without Spark."""
    landed = read_json(line, "a landed message")
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
    """One line of a landing. ASCII: whatever a body holds, nobody takes it for the end of a line."""
    record = {"id": message.id, "received_ms": at_ms, "headers": dict(message.headers)}
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record |= {"body": base64.b64encode(message.body).decode(), "encoding": "base64"}
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _landed(i: int, data: bytes) -> _Landed:
    records = [read_json(line, _key(i)) for line in data.splitlines()]
    try:
        digests = tuple(_digest(record["id"]) for record in records if record["id"] is not None)
        return _Landed(i, int(records[0]["received_ms"]), digests)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LogDamagedError("a landing has lines that no run has written", invariant="I1", key=_key(i)) from error


def _count(run: Sequence[_Landed]) -> int:
    return sum(len(landed.digests) for landed in run)


def _encoded(run: Sequence[_Landed]) -> bytes:
    return canonical(
        {"landings": [[one.i, one.at_ms, base64.b64encode(b"".join(one.digests)).decode()] for one in run]}
    )


def _decoded(i: int, data: bytes) -> tuple[_Landed, ...] | None:
    """The ids of landing ``i`` and of some before it, without a gap; ``None`` where nothing is to be learnt from them, so that the landings are read."""
    run = []
    try:
        for number, at_ms, text in read_json(data, _IDS)["landings"]:
            joined = base64.b64decode(text, validate=True)
            digests = tuple(joined[at : at + _DIGEST_BYTES] for at in range(0, len(joined), _DIGEST_BYTES))
            run.append(_Landed(int(number), int(at_ms), digests))
    except (KeyError, LogDamagedError, TypeError, ValueError):
        return None
    is_run = [landed.i for landed in run] == list(range(i - len(run) + 1, i + 1))
    return tuple(run) if run and is_run else None
