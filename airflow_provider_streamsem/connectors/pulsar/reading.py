"""
Reads planned ranges of a Pulsar topic. Needs only the standard library, pulsar-client and pyarrow, because executors run this module.

An executor gets the functions of this module by value, so it needs no installation of this package.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.python_worker import keep_import_caches
from airflow_provider_streamsem.connectors.varints import varint

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_MESSAGES = 5_000
_BATCH_BYTES = 8 << 20
OPERATION_TIMEOUT_S = 30
_TIMEOUT_MS = 30_000
_Found = tuple[int, int, Any, bytes]
"""The id of a message's entry, its index in the entry, the message, and its data."""


class RangeChangedError(Exception):
    """Pulsar did not return a message for each entry of a planned range. The next attempt determines what is missing."""


@contextmanager
def client(*, service_url: str, token: str, ca: str) -> Iterator[Any]:
    """Connect to Pulsar for the block. ``token=""``: no authentication; ``ca=""``: the certificates of the package certifi."""
    import pulsar

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(ca)
        file.flush()
        connected = pulsar.Client(
            service_url,
            authentication=pulsar.AuthenticationToken(token) if token else None,
            operation_timeout_seconds=OPERATION_TIMEOUT_S,
            tls_trust_certs_file_path=file.name if ca else None,
            tls_validate_hostname=True,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),  # its log may contain URLs
        )
        try:
            yield connected
        finally:
            connected.close()


def messages(connected: Any, pin: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    """
    Yield the messages of a range (fields of a ``LedgerPin``), in the order of the topic, each with the id of its entry and its index in the entry.

    :raises RangeChangedError: an entry of the range has no message. It was deleted; or it is part of a transaction or of a message in several chunks, or a
        marker of Pulsar, which are not supported
    :raises TimeoutError: the broker delivered no message in time. It may be encrypted, which is not supported
    """
    import pulsar

    _, _, number = pin["topic"].rpartition("-partition-")
    before = pulsar.MessageId(int(number) if number.isdecimal() else -1, pin["ledger"], pin["start"] - 1, -1)
    reader = connected.create_reader(pin["topic"], before)
    try:
        expected = (pin["start"], 0)
        entry, size = -1, 1
        # The broker delivers the messages of an entry together. So the reader is asked for each entry, because this takes longer than reading a message.
        while expected < (pin["end"], 0) and (expected[1] > 0 or reader.has_message_available()):
            message = _next(reader, pin, expected)
            id = message.message_id()
            ledger, found = id.ledger_id(), (id.entry_id(), max(id.batch_index(), 0))
            if (ledger, *found) < (pin["ledger"], *expected):
                continue  # The client repeats messages after it has connected again.
            if (ledger, *found) != (pin["ledger"], *expected):
                raise RangeChangedError(_without_message(pin, expected))
            yield found, message
            if found[0] != entry:
                entry, size = found[0], _batch_size(id.serialize())
            expected = (found[0] + 1, 0) if found[1] + 1 >= size else (found[0], found[1] + 1)
        if expected != (pin["end"], 0):
            raise RangeChangedError(_without_message(pin, expected))
    finally:
        reader.close()


def _next(reader: Any, pin: Mapping[str, Any], expected: tuple[int, int]) -> Any:
    import pulsar

    try:
        return reader.read_next(timeout_millis=_TIMEOUT_MS)
    except pulsar.Timeout:
        at = f"{pin['topic']} {pin['ledger']}:{expected[0]}"
        # The text of the client's error is not shown, because it may contain settings.
        raise TimeoutError(f"Pulsar delivered no message within {_TIMEOUT_MS} ms at {at}") from None


def _without_message(pin: Mapping[str, Any], expected: tuple[int, int]) -> str:
    return f"{pin['topic']} has no message for the planned entry {pin['ledger']}:{expected[0]}"


def _batch_size(id: bytes) -> int:
    """Return the number of messages in the entry of a message, from its encoded id (``MessageIdData`` of Pulsar's protocol, field 6); 1 without a batch."""
    at = 0
    while at < len(id):
        tag, at = varint(id, at)
        value, at = varint(id, at)
        if tag >> 3 == 6:
            return value
        if tag & 7 == 2:  # a nested message: the value is its length
            at += value
    return 1


def batches(
    parts: Iterator[pa.RecordBatch], *, access: Mapping[str, Any], pins: Sequence[Mapping[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Return messages as Arrow batches. ``parts`` are batches with one column, positions in ``pins``; ``access`` has the arguments of :func:`client`."""
    keep_import_caches()
    for part in parts:
        for position in part.column(0).to_pylist():
            with client(**access) as connected:
                found: list[_Found] = []
                size = 0
                for at, message in messages(connected, pins[position]):
                    data = message.data()
                    found.append((*at, message, data))
                    size += len(data)
                    if len(found) == _BATCH_MESSAGES or size > _BATCH_BYTES:
                        yield _batch(found, pins[position])
                        found, size = [], 0
                if found:
                    yield _batch(found, pins[position])


def _batch(found: Sequence[_Found], pin: Mapping[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    times = pa.timestamp("us", tz="UTC")
    properties = [message.properties() for _, _, message, _ in found]
    names = pa.array([name for each in properties for name in each], pa.string())
    values = pa.array([value for each in properties for value in each.values()], pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pin["topic"], len(found)),
            pa.repeat(pa.scalar(pin["ledger"], pa.int64()), len(found)),
            pa.array([entry for entry, _, _, _ in found], pa.int64()),
            pa.array([index for _, index, _, _ in found], pa.int32()),
            pa.array([message.publish_timestamp() * 1000 for _, _, message, _ in found], times),
            pa.array([message.event_timestamp() * 1000 or None for _, _, message, _ in found], times),
            pa.array([message.partition_key() or None for _, _, message, _ in found], pa.string()),
            pa.MapArray.from_arrays([0, *accumulate(map(len, properties))], names, values),
            pa.array([data or (None if message.has_null_value() else data) for _, _, message, data in found], pa.binary()),
        ],
        names=["topic", "ledger_id", "entry_id", "batch_index", "publish_timestamp", "event_timestamp", "key", "properties", "data"],
    )  # fmt: skip
