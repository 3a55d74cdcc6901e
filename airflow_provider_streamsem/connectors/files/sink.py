"""
The files sink: writes rows as files in Parquet, ORC, JSON lines or CSV. Each attempt writes to its own directory of the dataset.

A file becomes visible only when an outcome names it. Readers find the visible files through the log (``read_committed``, ``streamsem files``), and never list
the dataset. A dataset is stored on a local or mounted disk, or in an S3 bucket, to which Spark writes through Hadoop's S3A.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.contract import EVOLVE, Contract
from airflow_provider_streamsem.connectors.data_files import footers
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    DatasetOwnedError,
    InvalidError,
    LogDamagedError,
    StageError,
    UnavailableError,
)
from airflow_provider_streamsem.expectations import Expect, set_expectations
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical, read_json
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError, check_location, normalised
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILES_AT_ONCE = 8
FORMATS = ("csv", "json", "orc", "parquet")
CODECS = {
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "orc": ("zstd", "snappy", "zlib", "lz4", "none"),
    "json": ("gzip", "none"),
    "csv": ("gzip", "none"),
}


@dataclass(frozen=True, slots=True)
class FilesSink(Sink):
    """
    Writes rows as files below ``path``. The log names the visible files. The ownership marker ``path/_streamsem.json`` names the pipeline and the log that own
    the dataset.

    Partition columns stay in the files, with their types. Each file contains one combination of partition values, so null, an empty string and strings with
    special characters stay distinct. Timestamps are stored in microseconds (Parquet ``TIMESTAMP_MICROS``, not ``INT96``).

    :param path: the root of the dataset: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param format: ``parquet``, ``orc``, ``json`` (one object per line) or ``csv`` (with header). In CSV, null is written as a backslash and N. A batch with a
        string of this text, or with a binary column, is refused
    :param partition_by: partition columns
    :param codec: ``zstd`` (default of Parquet and ORC), ``snappy``, ``gzip``, ``lz4``, ``zlib`` or ``none``, if the format supports it
    :param target_file_bytes: target size of a file in bytes, 65,536 or more. Requires a shuffle. ``None``: one file for each Spark task and partition value
    :param contract: which changes of the columns a batch may make: a mode, or :class:`Contract`. Default: ``evolve``
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    reasons: ClassVar[tuple[str, ...]] = (
        "every attempt writes to its own directory, and one create-if-absent object determines which attempt's files are visible",
        "rows passed to the writer = rows in the files = rows in the manifest, or the attempt is discarded",
    )
    path: str
    format: str = "parquet"
    partition_by: Sequence[str] = ()
    codec: str | None = None
    target_file_bytes: int | None = None
    contract: Contract | None = None
    expect: Mapping[str, Expect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink files:"
        set_expectations(where, self)
        if self.contract is not None:
            object.__setattr__(self, "contract", Contract.of(where, self.contract))
            if self.contract.tables != EVOLVE:
                raise InvalidError(f"{where} contract.tables needs a sink with a table", given=self.contract.tables)
        open_dataset(check_location(f"{where} path", self.path))
        arguments.choice(f"{where} format", self.format, FORMATS)
        object.__setattr__(self, "partition_by", arguments.text_list(f"{where} partition_by", self.partition_by))
        if self.codec is not None:
            arguments.choice(f"{where} codec of format {self.format}", self.codec, CODECS[self.format])
        if self.target_file_bytes is not None:
            arguments.integer(f"{where} target_file_bytes", self.target_file_bytes, least=65_536)

    @property
    def location(self) -> str:
        return self.path

    def immutable_config(self) -> Json:
        """Partition columns, codec and file size may change, because the log stores the partition values of each file."""
        return {"type": "files", "path": normalised(self.path), "format": self.format}

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        mark = canonical({"format": 1, "entry": "dataset", "pipeline_uuid": pipeline_uuid, "log": normalised(log)})
        store = self._dataset()
        try:
            stored = store.read(keys.DATASET_MARKER)
            if stored is None and not new:
                raise LogDamagedError(
                    "the dataset's ownership marker is missing although the log has versions: the path leads to another directory, or the dataset was emptied",
                    location=self.path,
                    key=keys.DATASET_MARKER,
                )
            if stored is None:
                occupied = self._holds_files(store)
                # Read the marker again: another writer creates its marker before its first file, so the files found may be those of a writer with a marker.
                stored = store.read(keys.DATASET_MARKER)
                if stored is None and occupied:
                    raise _unknown_output_error(self.path)
                if stored is None:
                    store.create(keys.DATASET_MARKER, mark)
                    stored = store.read(keys.DATASET_MARKER)
        except UnknownResultError as error:
            raise UnavailableError(
                "the dataset's location did not report the result of a request; nothing became visible",
                location=self.path,
            ) from error
        if stored != mark:
            raise DatasetOwnedError(
                "the dataset belongs to another pipeline or log, which its ownership marker names",
                location=self.path,
                pipeline_uuid=pipeline_uuid,
                log=normalised(log),
                **_marked(stored),
            )

    def refuse_existing_output(self, log: str) -> None:
        store = self._dataset()
        if store.stat(keys.DATASET_MARKER) is not None:
            raise DatasetOwnedError(
                "the dataset's ownership marker names a log, but the pipeline's own log does not exist",
                location=self.path,
                log=normalised(log),
                **_marked(store.read(keys.DATASET_MARKER)),
            ).advising(
                "correct `log` of the pipeline, if `marked_log` is its log. If that log was deleted, restore it. If it was moved by hand, run "
                "`streamsem move-log OLD NEW --already-moved`. Otherwise give this pipeline its own dataset."
            )
        if self._holds_files(store):
            raise _unknown_output_error(self.path)

    def _holds_files(self, store: Dataset) -> bool:
        return next(store.list("data/", limit=1), None) is not None

    def attempt_location(self, version: int, attempt_id: str) -> str:
        return self._dataset().engine_path(keys.data_prefix(version, attempt_id))

    def resolve_schema(self, schema: str) -> str:
        """
        Refuse columns that the format cannot store, and return the schema unchanged.

        * CSV cannot represent binary values.
        * JSON cannot represent map keys that are not strings. Spark writes such keys as text that it cannot read back.
        * From ORC, Spark cannot read columns whose names contain a backtick or are empty.
        * From ORC, Spark returns timestamps with a time zone in the time zone of the Java process that reads them.
        """
        fields = json.loads(schema)["fields"]
        binary = [field["name"] for field in fields if field["type"] == "binary"]
        keyed = [field["name"] for field in fields if self.format == "json" and _has_other_keys(field["type"])]
        if keyed:
            summary = "JSON files cannot hold maps whose keys are not strings"
            raise DataError(summary, location=self.path, columns=keyed).advising(
                "cast the keys to string in the transform, and run again."
            )
        zoned = [field["name"] for field in fields if self.format == "orc" and _contains(field["type"], "timestamp")]
        if zoned:
            summary = (
                "Spark returns ORC timestamps with a time zone in the time zone of the Java process that reads them"
            )
            raise DataError(summary, location=self.path, columns=zoned).advising(
                "cast the columns to timestamp_ntz in the transform, and run again."
            )
        unreadable = sorted(name for name in _names(fields) if self.format == "orc" and ("`" in name or not name))
        if unreadable:
            summary = "Spark cannot read ORC columns with these names"
            raise DataError(summary, location=self.path, columns=unreadable).advising(
                "rename the columns in the transform, and run again."
            )
        if self.format == "csv" and binary:
            summary = "CSV files cannot hold binary columns"
            raise DataError(summary, location=self.path, columns=binary).advising(
                "convert the columns to text in the transform, for example with base64(column), and run again."
            )
        return schema

    def grows(self, column: str, recorded: str, wider: str) -> bool:
        """
        Return whether a column may change to a wider type, so that readers get the same values from files of earlier batches.

        In text formats, ``float`` cannot become ``double``, because the text 0.1 is a different number in each type.

        :param recorded: the recorded type of the column
        :param wider: the wider type
        """
        return self.format not in ("csv", "json") or recorded != "float"

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        from airflow_provider_streamsem.connectors.data_files import write

        return write.write_files(frame, self, self.attempt_location(version, attempt_id))

    @property
    def can_rewrite(self) -> bool:
        return True

    def stage_rewritten(
        self, frame: DataFrame, version: int, attempt_id: str, *, files: Sequence[DataFile], target_file_bytes: int
    ) -> frozenset[str] | None:
        if self.partition_by:
            return replace(self, target_file_bytes=target_file_bytes).stage(frame, version, attempt_id)
        # Spark measures the target size in shuffled rows, which may be several times larger than files. The size of the old files is a better measure.
        frame = frame.repartition(max(1, -(-sum(file.bytes for file in files) // target_file_bytes)))
        return replace(self, target_file_bytes=None).stage(frame, version, attempt_id)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Make each file of the attempt durable, and count its rows."""
        return self.collected(version, attempt_id, accepted)

    def collected(
        self,
        version: int,
        attempt_id: str,
        accepted: frozenset[str] | None,
        stats: Callable[[Any], str] = lambda parquet: "",
    ) -> Committable:
        """
        Collect the files as :meth:`collect` does, and record statistics for each Parquet file.

        :param stats: returns the statistics of a file as text, from pyarrow's metadata of the file
        """
        prefix = keys.data_prefix(version, attempt_id)
        dataset = self._dataset()
        existing = {stat.key[len(prefix) :]: stat for stat in dataset.list(prefix) if _is_data(stat.key[len(prefix) :])}
        missing = (accepted or frozenset()) - existing.keys()
        if missing:
            summary = "files that Spark wrote are missing from the attempt's location"
            raise StageError(summary, location=self.path, version=version, missing=sorted(missing)[:3])
        staged = [stat for name, stat in existing.items() if accepted is None or name in accepted]
        dataset.make_durable([stat.key for stat in staged], prefix)

        def data_file(stat: ObjectStat) -> DataFile:
            described = footers.describe(dataset, stat, self.format)
            values = footers.partition_values(stat.key[len(prefix) :], dataset, stat, self.format, self.partition_by)
            return DataFile(
                key=stat.key,
                bytes=stat.bytes,
                rows=described.rows,
                checksum=described.checksum,
                partition=values,
                stats="" if described.parquet is None else stats(described.parquet),
            )

        threads = 1 if self.format == "csv" else _FILES_AT_ONCE  # counting loads a CSV file into memory
        with ThreadPoolExecutor(threads) as pool:
            files = tuple(pool.map(data_file, staged))
        return Committable(format=self.format, rows=sum(f.rows for f in files), files=files)

    @property
    def partitions(self) -> Sequence[str]:
        return self.partition_by

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """Return the attempts that have a directory. A directory with another name than that of an attempt was not written by this package."""
        dataset = self._dataset()
        versions = dataset.directories("data/") if version is None else [str(version)]
        directories = (f"data/{v}/{name}/" for v in versions for name in dataset.directories(f"data/{v}/"))
        found = {attempt for key in directories if (attempt := keys.attempt_of_data(key))}
        return {(of_version, attempt_id) for of_version, attempt_id in found if keys.is_attempt_id(attempt_id)}

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        dataset, prefix = self._dataset(), keys.data_prefix(version, attempt_id)
        size = sum(stat.bytes for stat in dataset.list(prefix))
        if not dry_run:
            dataset.remove_tree(prefix)
        return size

    def file_identity(self, key: str, format: str) -> tuple[int, str] | None:
        dataset = self._dataset()
        stat = dataset.stat(key)
        return None if stat is None else (stat.bytes, footers.checksum(dataset, stat, format))

    def count(self, key: str, format: str) -> int:
        dataset = self._dataset()
        stat = dataset.stat(key)
        return 0 if stat is None else footers.describe(dataset, stat, format).rows

    def is_complete(self, committable: Committable) -> bool:
        return all(
            self.file_identity(file.key, committable.format) == (file.bytes, file.checksum)
            for file in committable.files
        )

    def _dataset(self) -> Dataset:
        return open_dataset(self.path)


def _marked(mark: bytes | None) -> dict[str, str]:
    """Empty values if the marker is unreadable."""
    try:
        stored = read_json(mark or b"{}", keys.DATASET_MARKER)
    except LogDamagedError:
        stored = {}
    named = stored if isinstance(stored, dict) else {}
    return {"marked_uuid": str(named.get("pipeline_uuid", "")), "marked_log": str(named.get("log", ""))}


def _has_other_keys(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    return (kind["type"] == "map" and kind["keyType"] != "string") or any(map(_has_other_keys, _parts(kind)))


def _contains(kind: Any, sought: str) -> bool:
    return kind == sought if isinstance(kind, str) else any(_contains(part, sought) for part in _parts(kind))


def _names(fields: Sequence[Any]) -> Iterator[str]:
    for column in fields:
        yield column["name"]
        kinds = [column["type"]]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, dict):
                yield from (inner["name"] for inner in kind.get("fields", ()))
                kinds += _parts(kind)


def _parts(kind: Any) -> list[Any]:
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return [*inner, *(field["type"] for field in kind.get("fields", ()))]


def _is_data(relative: str) -> bool:
    """Not a file of a Hadoop committer, nor a directory marker of S3A."""
    parts = relative.split("/")
    return bool(parts[-1]) and not any(part.startswith(("_", ".")) and "=" not in part for part in parts)


def _unknown_output_error(location: str) -> ConflictError:
    return ConflictError(
        "the dataset's location contains files, but no ownership marker that names the log of these files",
        location=location,
        directory="data/",
    ).advising(
        "correct `path` of the sink, or `log` of the pipeline. If the files are of a pipeline whose log was deleted, restore the log and the marker, or use "
        "another path."
    )
