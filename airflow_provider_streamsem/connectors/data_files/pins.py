"""
The pin of a file: its path, size and identity in a plan (D5).

Pins come from the log, which is not trusted, so their paths are checked against the files that the source may read (R6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import SPARSE, Json


@dataclass(frozen=True, slots=True)
class FilePin:
    """
    A planned file.

    :param path: relative to the location of the source
    :param identity: ``etag:<etag>`` or ``mtime:<nanoseconds>``
    :param ordinal: the number of the file in the order of discovery, if the source offers it as a column; else -1
    """

    path: str
    bytes: int
    identity: str
    partition_types: Mapping[str, str] = field(default_factory=dict, metadata=SPARSE)
    ordinal: int = field(default=-1, metadata=SPARSE)


def read_pins(pins: Json, *, location: str, is_read: Callable[[str], bool]) -> tuple[FilePin, ...]:
    """Decode pins. A pin of another form, or of a path that the source may not read, is refused (``LogDamagedError``)."""
    summary = "the pins of a plan are not files of the source; nothing was read"
    decoded = decoded_pins(FilePin, pins, summary, location=location)
    if not all(is_read(pin.path) for pin in decoded):
        raise LogDamagedError(summary, invariant="R6", location=location)
    return decoded
