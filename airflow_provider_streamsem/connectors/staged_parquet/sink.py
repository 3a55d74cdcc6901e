"""Base of the sinks outside the log: stages their rows as Parquet files in a dataset before the commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem.connectors.contract import Batch
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 10_000


class StagedSink:
    """
    The staging half of a publishing sink. A subclass adds the publishing half (:class:`airflow_provider_streamsem.connectors.contract.PublishingSink`).

    The files are stored at :attr:`location`. They are named, counted and adopted as the files of :class:`FilesSink` are.
    """

    __slots__ = ()

    extra: ClassVar[str] = ""
    publishes: ClassVar[bool] = True
    format: ClassVar[str] = "parquet"

    @property
    def location(self) -> str:
        """The location of the staged files."""
        raise NotImplementedError

    @property
    def partitions(self) -> Sequence[str]:
        """Columns by whose values rows are grouped into files."""
        return ()

    @property
    def _staging(self) -> FilesSink:
        return FilesSink(self.location, partition_by=self.partitions)

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """Verify the mark of the staging location, or write it if the log is new."""
        self._staging.claim(pipeline_uuid, log, new=new)

    def refuse_orphan(self, log: str) -> None:
        """Refuse a marked staging location whose log is missing. It is never reused for a new log."""
        self._staging.refuse_orphan(log)

    def attempt_location(self, version: int, attempt_id: str) -> str:
        """The directory or prefix of the attempt."""
        return self._staging.attempt_location(version, attempt_id)

    def resolve_schema(self, schema: str) -> str:
        """Accept every column that Parquet can hold."""
        return schema

    def check_reprocess(self, replaced: Committable | None) -> None:
        """Accept every reprocessing run. Subclasses check their tables."""

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write the rows with Spark's own writer.

        Refuses values that a Python client cannot read unchanged. Python clients fail on a file with text that is not UTF-8. Publishers that read the
        rows lose one of two equal keys of a map.
        """
        from airflow_provider_streamsem.connectors.data_files import write

        checked = write.refusing_lossy_values(frame, keeps_maps=self.keeps_staged)
        return self._staging.stage(checked, version, attempt_id)

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published files."""
        return False

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Count each file of the attempt, and record the column bounds that :meth:`stats` returns."""
        return self._staging.collected(version, attempt_id, accepted, self.stats)

    def stats(self, parquet: Any) -> str:
        """Return the bounds of a file's columns in this sink's own form, from pyarrow's metadata; ``""`` if the sink needs none."""
        return ""

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """The attempts that have a directory."""
        return self._staging.attempts(version)

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """No attempts: only publishers read the staged files."""
        return set()

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """Remove the directory of the attempt."""
        return self._staging.discard(version, attempt_id, dry_run=dry_run)

    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        """Size and checksum of the file."""
        return self._staging.file_identity(key, format)

    def count(self, key: str, format: str) -> int:
        """Number of rows, from the footer."""
        return self._staging.count(key, format)

    def is_complete(self, committable: Committable) -> bool:
        """Compare the size and checksum of every file."""
        return self._staging.is_complete(committable)

    def dataset(self) -> Dataset:
        """Open the staging location."""
        return open_dataset(self.location)


def record_batches(location: str, batch: Batch, *, rows: int = _ROWS) -> Iterator[Any]:
    """
    Yield the staged rows as pyarrow record batches, in the order of the manifest. The result is the same for every publisher.

    :param rows: maximum number of rows in a record batch
    :raises UnavailableError: a staged file is missing
    """
    for parquet in parquet_files(location, batch.committable):
        yield from parquet.iter_batches(batch_size=rows)


def parquet_files(location: str, staged: Committable) -> Iterator[Any]:
    """
    Yield each staged file as a pyarrow ``ParquetFile``, in the order of the manifest. It is open until the next one is requested.

    :raises UnavailableError: a staged file is missing
    """
    import pyarrow.parquet

    dataset = open_dataset(location)
    for file in staged.files:
        stat = dataset.stat(file.key)
        if stat is None:
            # Another publisher may have published the batch first, and vacuum may have deleted the files since.
            what = "a staged file is missing: another publisher has published the batch, or the file was deleted"
            raise UnavailableError(what, invariant="I6", location=location, key=file.key)
        with dataset.open(stat) as opened:
            yield pyarrow.parquet.ParquetFile(opened)
