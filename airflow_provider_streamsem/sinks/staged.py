"""What sinks outside the log have in common: their rows are staged as Parquet files, in a dataset as any other, before the batch is decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.files import FilesSink
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 10_000


class StagedSink:
    """
    The staging half of a sink that publishes; the other half is what a subclass adds (:class:`airflow_provider_streamsem.sinks.contract.PublishingSink`).

    Files lie at :attr:`place` and are named, counted and adopted as those of :class:`FilesSink`.
    """

    __slots__ = ()

    extra: ClassVar[str] = ""
    publishes: ClassVar[bool] = True
    format: ClassVar[str] = "parquet"

    @property
    def place(self) -> str:
        """Where rows are staged."""
        raise NotImplementedError

    @property
    def partitions(self) -> Sequence[str]:
        """Columns by whose values rows are put into files."""
        return ()

    @property
    def _staging(self) -> FilesSink:
        return FilesSink(self.place, partition_by=self.partitions)

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """Find the mark of the staging place, or write it where the log is new."""
        self._staging.claim(pipeline_uuid, log, new=new)

    def refuse_orphan(self, log: str) -> None:
        """A marked place without its log is never started over."""
        self._staging.refuse_orphan(log)

    def attempt_place(self, version: int, attempt_id: str) -> str:
        """The attempt's own directory or prefix."""
        return self._staging.attempt_place(version, attempt_id)

    def accept(self, schema: str) -> str:
        """Every column that Parquet can hold."""
        return schema

    def check_redo(self, replaced: Committable | None) -> None:
        """Nothing but the sink's own kind speaks against it."""

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write with Spark's own writer.

        Python clients fail on a file with text that is not UTF-8. Those that publish rows lose one of two equal keys of a map.
        """
        from airflow_provider_streamsem.sinks import write

        checked = write.refusing_lossy_values(frame, keeps_maps=self.keeps_staged)
        return self._staging.stage(checked, version, attempt_id)

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published ones."""
        return False

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Count each file of the attempt, and note the bounds that :meth:`stats` makes."""
        return self._staging.collected(version, attempt_id, accepted, self.stats)

    def stats(self, parquet: Any) -> str:
        """The bounds of a file's columns in this sink's own form, from pyarrow's metadata; ``""`` where it needs none."""
        return ""

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """The attempts' directories."""
        return self._staging.attempts(version)

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """None: the staged files are read by publishers alone."""
        return set()

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """Remove the attempt's directory."""
        return self._staging.discard(version, attempt_id, dry_run=dry_run)

    def identify(self, key: str, format: str) -> tuple[int, str] | None:
        """Size and checksum."""
        return self._staging.identify(key, format)

    def count(self, key: str, format: str) -> int:
        """Rows by the footer."""
        return self._staging.count(key, format)

    def is_complete(self, committable: Committable) -> bool:
        """Size and checksum of every file."""
        return self._staging.is_complete(committable)

    def dataset(self) -> Dataset:
        """The staging place."""
        return open_dataset(self.place)


def record_batches(place: str, batch: Batch, *, rows: int = _ROWS) -> Iterator[Any]:
    """
    The staged rows as pyarrow record batches, in the order of the manifest: the same for everyone who publishes them.

    :param rows: the most in one record batch
    :raises UnavailableError: a file is not there
    """
    import pyarrow.parquet

    dataset = open_dataset(place)
    for file in batch.committable.files:
        stat = dataset.stat(file.key)
        if stat is None:
            # Another publisher may have been faster, and vacuum after it.
            what = "a staged file is not there: the batch was published meanwhile, or the file was deleted"
            raise UnavailableError(what, invariant="I6", place=place, key=file.key, version=batch.version)
        with dataset.open(stat) as opened:
            yield from pyarrow.parquet.ParquetFile(opened).iter_batches(batch_size=rows)
