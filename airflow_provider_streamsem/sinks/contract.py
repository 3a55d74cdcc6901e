"""What a sink is. A new sink is one file with one class, one line in the registry, one conformance fixture and one page of docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_provider_streamsem.protocol.entries import Committable, Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sink(Protocol):
    """
    Where rows become visible.

    * :meth:`stage` writes under paths that contain the attempt id, so that no two attempts share a name (I8); until the outcome nobody reads them.
    * :meth:`collect` is called after the last byte, and returns exactly what the engine was handed, counted in the files themselves.
    * A file, once collected, never changes.
    """

    delivery: ClassVar[str]
    reasons: ClassVar[tuple[str, ...]]

    @property
    def format(self) -> str:
        """What Spark's reader calls the format of the files."""
        ...

    @property
    def place(self) -> str:
        """URL of the dataset."""
        ...

    def guarded(self) -> Json:
        """What may not change under one log."""
        ...

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """
        Mark the dataset as this pipeline's, or find that it is.

        :param new: the log has no version yet, so that a dataset without a mark may be taken
        :raises ConflictError: the dataset belongs to another log, or holds output that no log names
        """
        ...

    def refuse_orphan(self, log: str) -> None:
        """
        Called where the log does not exist: the dataset must not hold output of an earlier log.

        :raises ConflictError: it does
        """
        ...

    def attempt_place(self, version: int, attempt_id: str) -> str:
        """Directory or prefix of one attempt, as the engine's writer takes it."""
        ...

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> None:
        """Write a DataFrame into the attempt's own place. Returns after the last byte."""
        ...

    def collect(self, version: int, attempt_id: str) -> Committable:
        """What lies in the attempt's place, each file counted by reading its footer (formats without one: by reading it)."""
        ...

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """``(version, attempt_id)`` of every attempt that left anything here, or of one version's; half-written ones too."""
        ...

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """Delete what one attempt left; returns its bytes. Only vacuum calls this, for attempts that have lost."""
        ...

    def identify(self, key: str, format: str) -> tuple[int, str] | None:
        """Bytes and checksum of a file as it lies there now; ``None`` where it is gone."""
        ...

    def count(self, key: str, format: str) -> int:
        """
        Rows of a file, counted anew; 0 where it is gone.

        :raises DataError: it is not a whole file of its format
        """
        ...

    def is_complete(self, committable: Committable) -> bool:
        """Whether every file is there with the recorded size and checksum (W17)."""
        ...
