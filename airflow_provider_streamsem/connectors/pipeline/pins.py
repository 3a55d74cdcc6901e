"""
The pin of a plan that reads another pipeline: the versions, the commits that held their rows, and the files of these commits.

Pins come from the log, which is not trusted, so keys and numbers are checked (R6).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_streamsem.connectors.pins import decoded_pins
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import DataFile, Json

_SUMMARY = "the pins of a plan are not versions of the upstream pipeline; nothing was read"


@dataclass(frozen=True, slots=True)
class VersionPin:
    """
    A planned batch of the upstream, with one file or more.

    :param commit: the commit that held the rows of the batch: the batch itself, or the newest reprocessing run that had replaced it
    """

    version: int
    commit: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class UpstreamPin:
    """
    The rows that a plan reads. Pins of the same rows are equal, even if the columns are those of different versions.

    :param as_of: the newest version of the upstream when the plan was created. Its outcome has the columns
    :param outcome: sha256 of the outcome of ``as_of``
    :param versions: the versions with rows, in ascending order
    """

    pipeline_uuid: str
    sink: str
    as_of: int = field(compare=False)
    outcome: str = field(compare=False)
    versions: tuple[VersionPin, ...]

    @property
    def files(self) -> list[DataFile]:
        """In the order of their versions."""
        return [file for version in self.versions for file in version.files]


def read_pins(pins: Json, *, log: str, sink: str | None) -> tuple[UpstreamPin, ...]:
    """
    Decode the pins of a plan: one, or none if there are no rows. ``sink=None``: the source reads the only sink.

    Another form, another sink, or a file that the commit cannot have written is refused (``LogDamagedError``).
    """
    decoded = decoded_pins(UpstreamPin, pins, _SUMMARY, upstream=log)
    if len(decoded) > 1 or not all(_is_valid(pin) and sink in (None, pin.sink) for pin in decoded):
        raise LogDamagedError(_SUMMARY, invariant="R6", upstream=log)
    return decoded


def _is_valid(pin: UpstreamPin) -> bool:
    numbers = [version.version for version in pin.versions]
    return (
        keys.is_digest(pin.outcome)
        and numbers == sorted(set(numbers))
        and all(0 <= version.version <= version.commit <= pin.as_of for version in pin.versions)
        and all(_may_have_written(version.commit, file) for version in pin.versions for file in version.files)
    )


def _may_have_written(commit: int, file: DataFile) -> bool:
    """Return whether an attempt of this version can have written the file."""
    attempt = keys.attempt_of_data(file.key)
    return attempt is not None and attempt[0] == commit and file.bytes >= 0 and file.rows >= 0
