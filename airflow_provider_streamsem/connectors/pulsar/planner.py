"""Plans the next ranges of a Pulsar topic: finds the end of each partition, and messages that Pulsar has deleted."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from airflow_provider_streamsem.connectors.pulsar import reading
from airflow_provider_streamsem.connectors.pulsar.access import Access
from airflow_provider_streamsem.connectors.pulsar.admin import DO_REFUSED, PulsarAdmin
from airflow_provider_streamsem.connectors.pulsar.entries import ENTRIES, LedgerPin, Ledgers, refuse_other_topics
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, between, position
from airflow_provider_streamsem.stores.concurrency import in_threads

logger = logging.getLogger(__name__)

DO_LOST = (
    "restore the messages of the partition, or start a new pipeline with a new log that reads the topic as it is now. Messages may differ from those that were "
    "read."
)
DO_WITHOUT_MESSAGE = (
    "if the entry is part of a transaction or of a message in several chunks, or a marker of a replicated subscription, read another topic: this source does "
    "not support them. Otherwise run again."
)


class PulsarPlanner(Planner):
    """The hint has the end of each partition, and the oldest entry of any plan: ``{"ends": {partition: offset}, "oldest": {partition: offset}}``."""

    def __init__(self, topic: str, access: Access) -> None:
        self._topic, self._access = topic, access
        self._admin = PulsarAdmin(access, topic)

    def ledgers(self) -> dict[str, Ledgers]:
        """Leaves out partitions without a message."""
        names = self._admin.partitions()
        found = in_threads(self._admin.ledgers, names)
        return {name: ledgers for name, ledgers in zip(names, found, strict=True) if ledgers is not None}

    def poll(self, hint: Json) -> SourceEnd:
        """For a missing partition, return the last known end, so that its unread messages are not skipped silently."""
        return SourceEnd({**_known_ends(hint), **{name: ledgers.end for name, ledgers in self.ledgers().items()}})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        With ``limits.max_rows``, the planner reads the messages that it counts. Partitions share the limit equally, and gaps do not count towards it. A batch
        of messages is never divided.
        """
        refuse_other_topics({*start, *end.offsets}, self._topic)
        ledgers = self.ledgers()
        self._check_ends(start, ledgers)
        unread = between(start, end.offsets)
        oldest = _oldest(hint)
        lost = {name: _lost_before(bounds, ledgers.get(name), oldest.get(name)) for name, bounds in unread.items()}
        gaps: Gaps = {name: ((unread[name][0], low),) for name, low in sorted(lost.items()) if low > unread[name][0]}
        if gaps and on_data_loss == "fail":
            summary = "unread messages are missing in Pulsar, or Pulsar cannot prove that none is; nothing was written"
            raise SourceChangedError(summary, lost=gaps).advising(OR_RECORD_GAP)
        if gaps:
            logger.warning("recording offsets as gaps, because Pulsar no longer has their messages: %s", gaps)
        share = None if limits.max_rows is None or not unread else max(1, limits.max_rows // len(unread))
        ranges: dict[str, tuple[int, int]] = {}
        pins: list[LedgerPin] = []
        for name, (first, last) in sorted(unread.items()):
            whole = ledgers[name].between(name, max(first, lost[name]), last) if name in ledgers else []
            planned = whole if share is None else self._within(whole, share)
            ranges[name] = (first, last if planned == whole else planned[-1].ledger * ENTRIES + planned[-1].end)
            pins += planned
        if not ranges:
            return None
        ends = {**_known_ends(hint), **{name: part.end for name, part in ledgers.items()}}
        return SourceSlice(
            ranges=ranges,
            gaps=gaps,
            pins=pins,
            hint={
                "ends": dict(sorted(ends.items())),
                "oldest": {**{name: part.first for name, part in sorted(ledgers.items())}, **oldest},
            },
            rows=sum(pin.end - pin.start for pin in pins),  # an entry has one message or more
        )

    def _check_ends(self, start: Offsets, ledgers: Mapping[str, Ledgers]) -> None:
        """No partition may end below its committed offset."""
        for name, offset in sorted(start.items()):
            if name in ledgers and ledgers[name].end < offset:
                summary = "a partition ends below the committed offset: Pulsar lost messages; nothing was written"
                raise SourceChangedError(summary, partition=name, committed=offset, end=ledgers[name].end).advising(
                    DO_LOST
                )

    def _within(self, pins: list[LedgerPin], most: int) -> list[LedgerPin]:
        """The ranges up to the entry that contains message number ``most``. Reads the messages."""
        within: list[LedgerPin] = []
        with self._connected() as connected:
            for pin in pins:
                for (entry, _), _ in reading.messages(connected, dataclasses.asdict(pin)):
                    if most <= 0 and (not within or within[-1].ledger != pin.ledger or within[-1].end != entry + 1):
                        return within
                    most -= 1
                    if within and within[-1].ledger == pin.ledger:
                        within[-1] = dataclasses.replace(within[-1], end=entry + 1)
                    else:
                        within.append(dataclasses.replace(pin, end=entry + 1))
        return within

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """Return partition → the first entry that was published at or after ``at_ms`` (milliseconds UTC), or the end if there is none."""
        ledgers = self.ledgers()
        with self._connected() as connected:
            return {name: _first_at(connected, name, part, at_ms) for name, part in ledgers.items()}

    def lag(self, start: Offsets, hint: Json) -> int:
        """The number of partitions with unread messages."""
        return len(self._first_unread(start))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """Counts partitions by the publishing time of their first unread message."""
        return sum(published_ms < at_ms for published_ms in self._first_unread(start).values())

    def minimum_clock(self, start: Offsets) -> int | None:
        return min(self._first_unread(start).values(), default=None)

    def _first_unread(self, start: Offsets) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._connected() as connected:
            for name, ledgers in self.ledgers().items():
                pins = ledgers.between(name, position(start, name), ledgers.end)
                if pins:
                    pin = dataclasses.asdict(dataclasses.replace(pins[0], end=pins[0].start + 1))
                    _, message = next(reading.messages(connected, pin))
                    found[name] = message.publish_timestamp()
        return found

    def _connected(self) -> Any:
        return _reporting(reading.client(**self._access.for_executors()), self._access.service_url)


@contextmanager
def _reporting(client: AbstractContextManager[Any], service_url: str) -> Iterator[Any]:
    """Errors have no text of the client, because it may contain settings."""
    import pulsar

    try:
        with client as connected:
            yield connected
    except (pulsar.AuthenticationError, pulsar.AuthorizationError) as error:
        raise StoreRefusedError(
            "Pulsar refused a request; nothing was written", service_url=service_url, error=type(error).__name__
        ).advising(DO_REFUSED) from None
    except reading.RangeChangedError as error:
        raise SourceChangedError(
            "an entry of the topic has no message; nothing was written", problem=str(error)
        ).advising(DO_WITHOUT_MESSAGE) from error
    except (pulsar.PulsarException, TimeoutError) as error:
        summary = "no Pulsar broker responded, or a request failed; nothing was written"
        raise UnavailableError(summary, service_url=service_url, error=type(error).__name__).advising(
            "check the service URL, and that this host reaches the brokers; then run again."
        ) from None


def _lost_before(unread: tuple[int, int], ledgers: Ledgers | None, oldest: int | None) -> int:
    """
    Return the offset below which messages of an unread range ``[first, last)`` may be missing; ``first`` if none is.

    If Pulsar has deleted the ledger of ``first``, it may have deleted messages after ``first`` with it. Pulsar does not report how many it had. ``oldest``, the
    oldest entry of an earlier plan, matters if ``first`` is 0, after the first plan was aborted or rolled back.
    """
    first, last = unread
    if ledgers is None:
        return last
    is_new = first == 0 and (oldest is None or oldest >= ledgers.first)
    is_known = is_new or first // ENTRIES in ledgers.entries or first >= ledgers.first
    return first if is_known else min(last, ledgers.first)


def _first_at(connected: Any, name: str, ledgers: Ledgers, at_ms: int) -> int:
    import pulsar

    reader = connected.create_reader(name, pulsar.MessageId.earliest)
    try:
        reader.seek(at_ms)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=30_000)
            if message.publish_timestamp() >= at_ms:
                id = message.message_id()
                return int(id.ledger_id()) * ENTRIES + int(id.entry_id())
        return ledgers.end
    finally:
        reader.close()


def _known_ends(hint: Json) -> dict[str, int]:
    """A hint of another form is ignored, because hints are not trusted."""
    return _offsets(hint, "ends")


def _oldest(hint: Json) -> dict[str, int]:
    return _offsets(hint, "oldest")


def _offsets(hint: Json, field: str) -> dict[str, int]:
    offsets = hint.get(field) if isinstance(hint, Mapping) else None
    return {name: n for name, n in offsets.items() if type(n) is int} if isinstance(offsets, Mapping) else {}
