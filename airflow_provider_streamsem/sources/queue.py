"""
Messages of a queue that cannot be read twice: landed first, then read as files (:mod:`airflow_provider_streamsem.sources.landing`).

A run that plans takes what waits in the queue, lands it and acknowledges it; what it plans are the landed files, as :class:`FilesSource` plans files. So a
replay, a redo and every attempt read files, and never the queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position
from airflow_provider_streamsem.sources.amqp import AmqpQueue
from airflow_provider_streamsem.sources.contract import Cut, Limits
from airflow_provider_streamsem.sources.files import PARTITION, FilesPlanner, FilesSource
from airflow_provider_streamsem.sources.landing import Landing, Window
from airflow_provider_streamsem.sources.sqs import SqsQueue
from airflow_provider_streamsem.stores.contract import lineage_name, open_store, split_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.sources.queue_records import QueueRecords

FORMATS = ("json", "text")
_QUEUES: dict[str, type[SqsQueue] | type[AmqpQueue]] = {"amqp": AmqpQueue, "sqs": SqsQueue}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSource:
    """
    Messages of a queue, each landed once and then read as often as needed.

    Offsets count landings. Beside the body's columns stand ``queue_message_id string``, ``queue_received_at timestamp`` and ``queue_headers map<string,
    string>``. A message whose body cannot be parsed, or that has no id, is landed, acknowledged, and goes to the quarantine of its commit.

    :param queue: an :class:`SqsQueue` or an :class:`AmqpQueue`
    :param landing: where messages are landed: an absolute path of a directory that is there, or ``s3://bucket/prefix``. Several pipelines may share it, if
        all of them land from the same queue: each reads every message
    :param format: of a body: ``json`` (one object) or ``text`` (one column ``body``)
    :param schema: columns as Spark DDL, ``"id long, at timestamp"``; required for ``json``, refused for ``text``
    :param options: of Spark's JSON reader, as :class:`FilesSource` takes them
    :param dedup_hours: a message that comes again is known for so long, counted back from the newest landing; ``None``: whatever its age
    :param dedup_messages: it is known until so many others were landed after it; ``None``: however many. One of the two must be given
    :param max_messages: the most that one run lands, 1 to 100,000
    """

    delivery: ClassVar[str] = "effectively_once"
    unit: ClassVar[str] = "landings"
    spark_packages: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[tuple[str, ...]] = FilesSource.limits
    reasons: ClassVar[tuple[str, ...]] = (
        "a message is acknowledged only after it was landed in an immutable file: a crash in between has it delivered again",
        "a landing is written only by who has read the ids of those before it: within the dedup window a message id gets one record; a message that comes "
        "again later than that is a second one; dedup_hours and dedup_messages make the window longer",
        "batches are cut from landed files, whose size and ETag or time of modification are pinned: the queue is never read twice",
        "a message that cannot be parsed, or has no id, goes to the quarantine of the same commit",
    )
    queue: SqsQueue | AmqpQueue
    landing: str
    format: str = "json"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    dedup_hours: int | None = 24
    dedup_messages: int | None = None
    max_messages: int = 10_000

    def __post_init__(self) -> None:
        where = "source queue:"
        object.__setattr__(self, "queue", _queue(f"{where} queue", self.queue))
        split_url(arguments.text(f"{where} landing", self.landing))
        arguments.choice(f"{where} format", self.format, FORMATS)
        object.__setattr__(self, "options", arguments.options(f"{where} options", self.options))
        self.files()  # checks schema and options
        for name in ("dedup_hours", "dedup_messages"):
            if getattr(self, name) is not None:
                arguments.whole(f"{where} {name}", getattr(self, name), least=1)
        if self.dedup_hours is None and self.dedup_messages is None:
            raise InvalidError(
                f"{where} one of dedup_hours and dedup_messages must be given, or ids would be kept for ever"
            )
        arguments.whole(f"{where} max_messages", self.max_messages, least=1, most=100_000)

    def to_json(self) -> Json:
        """The arguments, as TOML has them."""
        given = {name: getattr(self, name) for name in _names(self) if name != "queue"}
        queue = {name: value for name, value in plain(self.queue).items() if value is not None}
        return {"queue": {"type": self.queue.type, **queue}, **given, "options": dict(self.options)}

    def files(self) -> FilesSource:
        """The landed files as a source."""
        return FilesSource(
            path=self.landing,
            format=self.format,
            schema=self.schema,
            options=self.options,
            glob="*.jsonl",
            hive_partitions=False,
        )

    @property
    def window(self) -> Window:
        """For how long a message is known."""
        return Window(hours=self.dedup_hours, messages=self.dedup_messages)

    @property
    def terms(self) -> str:
        """The window."""
        return str(self.window)

    @property
    def extra(self) -> str:
        """That of the queue's client."""
        return self.queue.extra

    @property
    def place(self) -> str:
        """Where messages are landed."""
        return self.landing

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """The queue, and where its messages are landed."""
        return [self.queue.lineage(), lineage_name(self.landing)]

    def warnings(self) -> list[str]:
        """Credentials that the queue's client sends without encryption."""
        return self.queue.warnings() if isinstance(self.queue, AmqpQueue) else []

    def guarded(self) -> Json:
        """The queue, and what :class:`FilesSource` guards."""
        return {**self.files().guarded(), "type": "queue", "queue": dict(self.queue.identity())}

    def genesis(self) -> Offsets:
        """The first landing."""
        return self.files().genesis()

    def open(self, log: CommitLog, last: Outcome | None) -> QueuePlanner:
        """Bind to a log, to plan: messages are taken from the queue then."""
        return QueuePlanner(self, log, last)

    def look(self, log: CommitLog, last: Outcome | None) -> QueueLook:
        """Bind to a log, to look: the queue is asked how many messages wait, and keeps them."""
        return QueueLook(self, log, last)

    def check_pins(self, pins: Json, *, was_read: bool) -> None:
        """Each landed file is as it was planned."""
        self.files().check_pins(pins, was_read=was_read)

    def load(self, spark: SparkSession, pins: Json) -> QueueRecords:
        """The landed messages on Spark."""
        from airflow_provider_streamsem.sources.queue_records import QueueRecords

        return QueueRecords(spark, self, [path for path, _, _ in pins])


class QueuePlanner:
    """A :class:`QueueSource` bound to a log for one process: lands first, then plans as the files source does."""

    def __init__(self, source: QueueSource, log: CommitLog, last: Outcome | None) -> None:
        self._source = source
        self._place = source.files()
        self._files: FilesPlanner = self._place.open(log, last)
        self._landing = Landing(
            CommitLog(open_store(source.landing), log.clock, log.patience), source.window, source.queue.lineage
        )

    def follow(self, last: Outcome | None) -> None:
        """What it remembers stays true."""
        self._files.follow(last)

    def latest_offsets(self) -> Offsets:
        """
        Land what waits in the queue, then give ordinals to what is landed.

        :raises UnavailableError: the queue or the landing gave no clear answer; what was landed stays, and all else comes again
        """
        self._place.require_place()
        # The log is asked first: another process may land the first messages meanwhile.
        if split_url(self._source.landing)[0] == "file" and self._files.discovered() and self._landing.newest() < 0:
            what = (
                "the landing was not empty before, and nothing lies there now: is it mounted? No message was taken. If it was "
                "emptied on purpose, give the pipeline another landing and log"
            )
            raise UnavailableError(what, place=self._source.landing)
        self._files.refuse_tables()  # before a message is taken
        queue = self._source.queue
        with queue.connect() as receiver:
            self._landing.land(receiver, most=self._source.max_messages, seconds=queue.receive_s)
        return self._files.latest_offsets()

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """Landed files in the order of their ordinals, as many as the limits allow, at least one."""
        return self._files.cut(start, end, limits, on_data_loss=on_data_loss)

    def hint(self, plan: Plan, counts: Mapping[str, int]) -> Json:
        """As of files."""
        return self._files.hint(plan, counts)

    def rows(self, cut: Cut) -> int:
        """Estimated from the bytes."""
        return self._files.rows(cut)

    def lag(self, start: Offsets) -> int:
        """Landings that are not below ``start``, and those that the messages in the queue would make. Takes none."""
        return self._files.lag(start) + self._to_come(self._waiting())

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """By the time of landing. What waits in the queue does not say since when, and counts as older."""
        return self._files.unread_before(start, at_ms) + self._to_come(self._waiting())

    def _waiting(self) -> int:
        with self._source.queue.connect() as receiver:
            return receiver.waiting()

    def _to_come(self, messages: int) -> int:
        """Landings that so many messages make."""
        return -(-messages // self._source.max_messages)


class QueueLook(QueuePlanner):
    """Plans as a run would, and takes nothing: the messages that wait are one more landing of each cut that reaches them."""

    def __init__(self, source: QueueSource, log: CommitLog, last: Outcome | None) -> None:
        super().__init__(source, log, last)
        self._landed = 0
        self._messages = 0

    def latest_offsets(self) -> Offsets:
        """What is landed, and what a landing would add."""
        self._messages = self._waiting()
        self._landed = position(self._files.latest_offsets(), PARTITION)
        return {PARTITION: self._landed + self._to_come(self._messages)}

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """What is landed; behind that, where the limits allow one more, the next landing, without pins."""
        first, last = position(start, PARTITION), position(end, PARTITION)
        cut = self._files.cut(start, {PARTITION: min(last, self._landed)}, limits, on_data_loss=on_data_loss)
        stop = max(first, self._landed)
        is_whole = cut is None or cut.ranges[PARTITION][1] == stop
        if last <= stop or not is_whole or (limits.max_files is not None and stop - first >= limits.max_files):
            return cut
        gaps, pins = ({}, []) if cut is None else (cut.gaps, cut.pins)
        return Cut(ranges={PARTITION: (first, stop + 1)}, gaps=gaps, pins=pins)

    def rows(self, cut: Cut) -> int:
        """Estimated from the bytes; of the landing to come, the messages."""
        more = min(self._messages, self._source.max_messages) if cut.ranges[PARTITION][1] > self._landed else 0
        return super().rows(cut) + more


def _names(of: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(of)]


def _queue(where: str, given: object) -> SqsQueue | AmqpQueue:
    """A queue as it was given: an object, or as TOML has it a table with a ``type``."""
    if isinstance(given, (SqsQueue, AmqpQueue)):
        return given
    if not isinstance(given, Mapping):
        raise InvalidError(f"{where} must be an SqsQueue or an AmqpQueue", given=type(given).__name__)
    chosen: Any = _QUEUES[arguments.choice(f"{where}: type", given.get("type"), _QUEUES)]
    rest = {name: value for name, value in given.items() if name != "type"}
    arguments.known_keys(where, rest, _names(chosen))
    needed = "url" if chosen is SqsQueue else "name"
    if needed not in rest:
        raise InvalidError(f"{where} lacks arguments", missing=[needed])
    return chosen(**rest)  # type: ignore[no-any-return]
