"""
The queue source: writes the messages of a queue to files, and reads the files (:mod:`airflow_provider_streamsem.connectors.landing.messages`).

A queue cannot be read twice. So the planner of a run receives the waiting messages, writes them to an immutable file, the *landing*, and acknowledges them. It
then plans the landings as :class:`FilesSource` plans files. Every attempt and every reprocessing run reads landings, never the queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.amqp.client import AmqpQueue
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.data_files.read import plain_root
from airflow_provider_streamsem.connectors.files.source import PARTITION, FilesPlanner, FilesSource
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory, Window
from airflow_provider_streamsem.connectors.pubsub.client import PubSubQueue
from airflow_provider_streamsem.connectors.source import Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.sqs.client import SqsQueue
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, position
from airflow_provider_streamsem.stores.contract import check_location, lineage_name, open_store, spark_path, split_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.queue.records import QueueRecords

FORMATS = ("json", "text")
_QUEUES: dict[str, type[SqsQueue] | type[AmqpQueue] | type[PubSubQueue]] = {
    "amqp": AmqpQueue,
    "pubsub": PubSubQueue,
    "sqs": SqsQueue,
}
_NEEDED = {"amqp": "name", "pubsub": "subscription", "sqs": "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSource(Source):
    """
    Reads the messages of a queue. A run writes the waiting messages to a file, the *landing*, and acknowledges them. Batches read the landings.

    An offset is the number of a landing. The columns are those of the body, ``queue_message_id string``, ``queue_received_at timestamp`` and
    ``queue_headers map<string, string>``. A message that has no id, or whose body cannot be parsed, is landed and acknowledged too. It goes to the
    quarantine of its commit.

    :param queue: an :class:`SqsQueue`, an :class:`AmqpQueue` or a :class:`PubSubQueue`
    :param landing: location of the landings: the absolute path of an existing directory, or ``s3://bucket/prefix``. Several pipelines may share it if they
        read the same queue. Each of them reads every message
    :param format: format of a body: ``json`` (one object) or ``text`` (one column ``body``)
    :param schema: columns as Spark DDL, such as ``"id long, at timestamp"``; required for ``json``, refused for ``text``
    :param options: options of Spark's JSON reader, as in :class:`FilesSource`
    :param dedup_hours: length of the dedup window in hours before the newest landing, 1 or more; ``None``: no limit by age
    :param dedup_messages: length of the dedup window in messages, 1 or more: an id is removed from the window after this many later messages; ``None``: no
        limit by number. At least one of the two must be given. If both are given, the shorter window applies
    :param max_messages: maximum number of messages that one run receives, 1 to 100,000, inclusive
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "effectively_once"
    removes_records: ClassVar[bool] = True
    unit: ClassVar[str] = "landings"
    limits: ClassVar[tuple[str, ...]] = FilesSource.limits
    reasons: ClassVar[tuple[str, ...]] = (
        "a message is acknowledged only after it was landed in an immutable file; after a crash in between, the queue delivers it again",
        "a process writes a landing only after it has read the message ids of the earlier landings; within the dedup window each message id gets one "
        "record; a message that is delivered again after the window gets a second record; dedup_hours and dedup_messages set the window",
        "batches read landed files, whose size and ETag or modification time the plan pins; the queue is never read twice",
        "a message that cannot be parsed, or has no id, goes to the quarantine of the same commit",
    )
    queue: SqsQueue | AmqpQueue | PubSubQueue
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
        check_location(f"{where} landing", self.landing)
        arguments.choice(f"{where} format", self.format, FORMATS)
        object.__setattr__(self, "options", arguments.options(f"{where} options", self.options))
        self.files()  # validates schema and options
        for name in ("dedup_hours", "dedup_messages"):
            if getattr(self, name) is not None:
                arguments.integer(f"{where} {name}", getattr(self, name), least=1)
        if self.dedup_hours is None and self.dedup_messages is None:
            raise InvalidError(
                f"{where} dedup_hours or dedup_messages must be given, because otherwise message ids would be stored forever"
            )
        arguments.integer(f"{where} max_messages", self.max_messages, least=1, most=100_000)

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        given = {name: getattr(self, name) for name in _field_names(self) if name != "queue"}
        queue = {name: value for name, value in plain(self.queue).items() if value is not None}
        return {"queue": {"type": self.queue.type, **queue}, **given, "options": dict(self.options)}

    def files(self) -> FilesSource:
        """Return the source that reads the landed files."""
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
        """The dedup window of message ids."""
        return Window(hours=self.dedup_hours, messages=self.dedup_messages)

    @property
    def conditions(self) -> str:
        """The dedup window as text, for the label of the delivery guarantee."""
        return f"queue {self.window}"

    @property
    def extra(self) -> str:
        return self.queue.extra

    def copies_of_erased(self) -> tuple[str, ...]:
        return (f"the landings below {self.landing}: delete those that contain the records",)

    @property
    def location(self) -> str:
        return self.landing

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [self.queue.lineage(), lineage_name(self.landing)]

    def warnings(self) -> list[str]:
        return self.queue.warnings() if isinstance(self.queue, AmqpQueue) else []

    def immutable_config(self) -> Json:
        """Return the identity of the queue, and the immutable fields of the :class:`FilesSource` that reads the landings."""
        return {**self.files().immutable_config(), "type": "queue", "queue": dict(self.queue.identity())}

    def initial_offsets(self) -> Offsets:
        return self.files().initial_offsets()

    def open(self, log: CommitLog, hint: Json) -> QueuePlanner:
        """Bind the source to a commit log. The returned planner receives messages from the queue."""
        return QueuePlanner(self, log, hint)

    def peek(self, log: CommitLog, hint: Json) -> QueuePeek:
        return QueuePeek(self, log, hint)

    def read_pins(self, pins: Json) -> tuple[FilePin, ...]:
        return self.files().read_pins(pins)

    def next_hint(self, hint: Json, pins: Sequence[FilePin], counts: Mapping[str, int]) -> Json:
        return self.files().next_hint(hint, pins, counts)

    def check_pins(self, pins: Sequence[FilePin], *, was_read: bool) -> None:
        self.files().check_pins(pins, was_read=was_read)

    def load(self, spark: SparkSession, pins: Sequence[FilePin]) -> QueueRecords:
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[FilePin]) -> QueueRecords:
        """Return the messages of :meth:`load` in the order in which the queue delivered them."""
        return self._load(spark, pins, in_order=True)

    def _load(self, spark: SparkSession, pins: Sequence[FilePin], *, in_order: bool) -> QueueRecords:
        from airflow_provider_streamsem.connectors.queue.records import QueueRecords

        located = [spark_path(self.landing, pin.path) for pin in pins]
        paths = [plain_root(self.landing) + pin.path for pin in pins] if in_order and len(pins) > 1 else []
        return QueueRecords(spark, located, schema=self.schema, options=self.options, ordered_paths=paths)


class QueuePlanner(Planner):
    """A :class:`QueueSource` that is bound to a commit log. It lands the waiting messages, then plans as :class:`FilesPlanner` does."""

    def __init__(self, source: QueueSource, log: CommitLog, hint: Json) -> None:
        self._source = source
        self._files_source = source.files()
        self._files_planner: FilesPlanner = self._files_source.open(log, hint)
        self._clock = log.clock
        self._landing_directory = LandingDirectory(
            CommitLog(open_store(source.landing), log.clock, log.retry_policy), source.window, source.queue.lineage
        )

    def poll(self, hint: Json) -> SourceEnd:
        """Land the waiting messages, then discover the landings. After an error, landed messages stay landed, and the queue delivers the others again."""
        self._files_source.require_location()
        # The order of the two requests matters: another process may write the first landing between them.
        if (
            split_url(self._source.landing)[0] == "file"
            and self._files_planner.discovered()
            and self._landing_directory.newest() < 0
        ):
            summary = (
                "the location of the landings is empty, but earlier runs found landings in it; no message was received"
            )
            raise UnavailableError(summary, location=self._source.landing).advising(
                "check that the directory is mounted, and run again. If it was emptied on purpose, set another `landing` and another log."
            )
        if hint is None:
            self._files_source.refuse_tables(self._clock.now_ms())  # before a message is received
        queue = self._source.queue
        with queue.connect() as receiver:
            self._landing_directory.land(receiver, most=self._source.max_messages, seconds=queue.receive_s)
        return self._files_planner.discover()

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        return self._files_planner.slice(start, end, limits, hint, on_data_loss=on_data_loss)

    def lag(self, start: Offsets, hint: Json) -> int:
        """Landings from ``start``, plus those that the waiting messages will need. Receives no message."""
        return self._files_planner.lag(start, hint) + self._to_come(self._waiting())

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Waiting messages all count, as the landings that they will need, because a queue does not report their age."""
        return self._files_planner.unread_before(start, at_ms) + self._to_come(self._waiting())

    def minimum_clock(self, start: Offsets) -> int | None:
        """While messages wait, the result is 0, because a queue does not report their age."""
        return 0 if self._waiting() else self._files_planner.minimum_clock(start)

    def _waiting(self) -> int:
        with self._source.queue.connect() as receiver:
            return receiver.waiting()

    def _to_come(self, messages: int) -> int:
        return -(-messages // self._source.max_messages)


@dataclass(frozen=True, slots=True)
class PeekedEnd(SourceEnd):
    """Offsets of a dry run, with the landings that waiting messages will need. ``landed`` is the end of those that exist."""

    landed: SourceEnd
    messages: int


class QueuePeek(QueuePlanner):
    """A :class:`QueuePlanner` for dry runs. It receives no message. A slice that reaches the waiting messages includes one more landing for them."""

    def poll(self, hint: Json) -> PeekedEnd:
        messages, landed = self._waiting(), self._files_planner.poll(hint)
        end = position(landed.offsets, PARTITION) + self._to_come(messages)
        return PeekedEnd({PARTITION: end}, landed, messages)

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Select existing landings, then the next landing without pins if the limits allow one more."""
        assert isinstance(end, PeekedEnd)
        selected = self._files_planner.slice(start, end.landed, limits, hint, on_data_loss=on_data_loss)
        first, last = position(start, PARTITION), position(end.offsets, PARTITION)
        stop = max(first, position(end.landed.offsets, PARTITION))
        is_whole = selected is None or selected.ranges[PARTITION][1] == stop
        if last <= stop or not is_whole or (limits.max_files is not None and stop - first >= limits.max_files):
            return selected
        selected = selected or SourceSlice(ranges={}, pins=[], hint=hint, rows=0)
        more = min(end.messages, self._source.max_messages)
        return dataclasses.replace(selected, ranges={PARTITION: (first, stop + 1)}, rows=selected.rows + more)


def _field_names(owner: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(owner)]


def _queue(where: str, given: object) -> SqsQueue | AmqpQueue | PubSubQueue:
    if isinstance(given, (SqsQueue, AmqpQueue, PubSubQueue)):
        return given
    if not isinstance(given, Mapping):
        raise InvalidError(f"{where} must be an SqsQueue, an AmqpQueue or a PubSubQueue", given=type(given).__name__)
    kind = arguments.choice(f"{where}: type", given.get("type"), _QUEUES)
    queue_type: Any = _QUEUES[kind]
    rest = {name: value for name, value in given.items() if name != "type"}
    arguments.known_keys(where, rest, _field_names(queue_type))
    if _NEEDED[kind] not in rest:
        raise InvalidError(f"{where} lacks required arguments", missing=[_NEEDED[kind]])
    return queue_type(**rest)  # type: ignore[no-any-return]
