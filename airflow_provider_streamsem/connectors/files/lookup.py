"""A lookup table in files: all files below a path when a batch is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.connectors.lookup import SourceLookup, check_number_of_files
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTable(SourceLookup):
    """
    A lookup table in files. The plan of a batch pins every file below the path, by its size and its ETag or modification time.

    If a pinned file is overwritten or deleted, an open batch is planned again. A version that was planned with it can be reprocessed only with the current
    rows. So update the table by adding new files.

    :param path: as in :class:`FilesSource`
    :param format: as in :class:`FilesSource`
    :param schema: as in :class:`FilesSource`; required, so that an empty directory has columns
    :param options: as in :class:`FilesSource`
    :param glob: as in :class:`FilesSource`
    :raises InvalidError: an argument is not valid
    """

    reasons: ClassVar[tuple[str, ...]] = (
        "the plan pins each file by its size and its ETag or modification time, which are checked before and after the read",
    )
    path: str
    format: str
    schema: str
    options: Mapping[str, str] = field(default_factory=dict)
    glob: str = "*"

    def pin(self, now_ms: int) -> Json:
        """Pin all files below the path, at most 1,000, in the order of their paths. The path and the files must not be inside a table or dataset."""
        self._source().refuse_tables(now_ms)  # a dataset also has files that were replaced or never committed
        files = self._source().listing(now_ms)
        check_number_of_files(files, location=self.path)
        return plain(
            [FilePin(file.path, file.bytes, file.identity) for file in sorted(files, key=lambda file: file.path)],
            sparse=True,
        )

    def _source(self) -> FilesSource:
        return FilesSource(**self._arguments(), hive_partitions=False)

    def _pins(self, pin: Json) -> Sequence[FilePin]:
        return self._source().read_pins(pin)

    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        """Return the rows of the pinned files. A record that cannot be parsed fails the batch when Spark reads it."""
        from pyspark.sql import functions as F

        loaded = self._source().load(spark, self._pins(pin))
        frame: DataFrame = loaded.frame
        if loaded.bad is not None:
            error = F.raise_error(F.lit(f"a record of the lookup table at {self.path} cannot be parsed"))
            frame = frame.where(F.when(loaded.bad, error.cast("boolean")).otherwise(F.lit(True)))
        return frame.drop(*loaded.drop)
