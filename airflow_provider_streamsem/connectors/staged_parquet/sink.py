"""Base class of the sinks outside the log: stages rows as Parquet files in a dataset before the commit. Also reads the staged rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.sink import PublishingSink, SinkCommit
from airflow_provider_streamsem.errors import StageError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 10_000


class StagedSink(PublishingSink):
    """Implements the staging of a publishing sink: files at :attr:`location`, in the form of a dataset of :class:`FilesSink`."""

    __slots__ = ()

    format: ClassVar[str] = "parquet"

    @property
    def _staging(self) -> FilesSink:
        return FilesSink(self.location, partition_by=self.partitions)

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """If the log is new, writes the ownership marker."""
        self._staging.claim(pipeline_uuid, log, new=new)

    def refuse_existing_output(self, log: str) -> None:
        """A new log must not reuse a location with an ownership marker or files."""
        self._staging.refuse_existing_output(log)

    def attempt_location(self, version: int, attempt_id: str) -> str:
        return self._staging.attempt_location(version, attempt_id)

    def resolve_schema(self, schema: str) -> str:
        """Accepts every column. Subclasses check their tables."""
        return schema

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """Refuses text that is not UTF-8, on which Python clients fail, and, if publishers read rows, maps with duplicate keys: Python keeps one."""
        from airflow_provider_streamsem.connectors.data_files import write

        checked = write.refusing_lossy_values(frame, keeps_maps=self.keeps_staged)
        return self._staging.stage(checked, version, attempt_id)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Count the rows of each file of the attempt, and record the statistics that :meth:`stats` returns."""
        return self._staging.collected(version, attempt_id, accepted, self.stats)

    def stats(self, parquet: Any) -> str:
        """Return the statistics of a file to store in the log, as text in this sink's own form; ``""`` if the sink needs none."""
        return ""

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        return self._staging.attempts(version)

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        return self._staging.discard(version, attempt_id, dry_run=dry_run)

    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        """Size in bytes and checksum; ``None`` if the file is missing."""
        return self._staging.file_identity(key, format)

    def count(self, key: str, format: str) -> int:
        """Reads the footer; 0 if the file is missing."""
        return self._staging.count(key, format)

    def is_complete(self, committable: Committable) -> bool:
        """The recorded size and checksum are compared."""
        return self._staging.is_complete(committable)

    def dataset(self) -> Dataset:
        return open_dataset(self.location)


def record_batches(location: str, batch: SinkCommit, *, rows: int = _ROWS) -> Iterator[Any]:
    """Yield record batches of at most ``rows`` rows, in the order of the manifest: the same for every publisher."""
    for parquet in parquet_files(location, batch.committable, is_committed=True):
        yield from parquet.iter_batches(batch_size=rows)


def parquet_files(location: str, staged: Committable, *, is_committed: bool = False) -> Iterator[Any]:
    """
    Yield each staged file as a pyarrow ``ParquetFile``, in the order of the manifest. A file is closed when the next one is requested.

    :raises StageError: a file of an attempt is missing. If another attempt was committed, vacuum may have deleted it, and the run continues with that commit
    :raises UnavailableError: with ``is_committed``: a file is missing
    """
    import pyarrow.parquet

    dataset = open_dataset(location)
    for file in staged.files:
        stat = dataset.stat(file.key)
        if stat is None and not is_committed:
            raise StageError("a staged file of the attempt is missing", location=location, key=file.key)
        if stat is None:
            # Another publisher may have published the batch first, and vacuum may have deleted the files since.
            summary = "a staged file is missing: another publisher has published the batch, or the file was deleted"
            raise UnavailableError(summary, invariant="I6", location=location, key=file.key)
        with dataset.open(stat) as opened:
            yield pyarrow.parquet.ParquetFile(opened)
