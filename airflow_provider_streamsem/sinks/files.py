"""
Files in a dataset of this package: Parquet, ORC, JSON lines or CSV, under an attempt's own directory.

A file becomes visible by the outcome that names it, and by nothing else: readers ask the log (``read_committed``, ``streamsem files``), never a listing.
A dataset lies on local or mounted disk, or in an S3 bucket, which Spark writes through Hadoop's S3A.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    DatasetTakenError,
    LogDamagedError,
    StageError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical, read_json
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.sinks import footers
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownAnswerError, normalised
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
class FilesSink:
    """
    Files below ``path``; ``path/_streamsem.json`` says whose they are.

    Partition columns stay in the files, with their types; one file holds one value of them, so that null, an empty string and odd text stay apart.
    Timestamps are stored in microseconds (Parquet ``TIMESTAMP_MICROS``, not ``INT96``).

    :param path: the dataset's place: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param format: ``parquet``, ``orc``, ``json`` (one object a line) or ``csv`` (with header; its sign
        for null is a backslash and N: a text that equals it is refused, and so are binary columns)
    :param partition_by: columns by whose values rows are put into files
    :param codec: ``zstd`` (default of Parquet and ORC), ``snappy``, ``gzip``, ``lz4``, ``zlib``, ``none``: what the format has
    :param target_file_bytes: aim at files of this many bytes, at the price of a shuffle; absent: one file for each Spark task and partition value
    """

    extra: ClassVar[str] = ""
    publishes: ClassVar[bool] = False
    delivery: ClassVar[str] = "exactly_once"
    reasons: ClassVar[tuple[str, ...]] = (
        "every attempt writes under a name of its own, and one create-if-absent object decides which attempt's files are visible",
        "rows handed to the writer = rows in the files = rows in the manifest, or the attempt is void",
    )
    path: str
    format: str = "parquet"
    partition_by: Sequence[str] = ()
    codec: str | None = None
    target_file_bytes: int | None = None

    def __post_init__(self) -> None:
        where = "sink files:"
        open_dataset(arguments.text(f"{where} path", self.path))
        arguments.choice(f"{where} format", self.format, FORMATS)
        object.__setattr__(self, "partition_by", arguments.words(f"{where} partition_by", self.partition_by))
        if self.codec is not None:
            arguments.choice(f"{where} codec of format {self.format}", self.codec, CODECS[self.format])
        if self.target_file_bytes is not None:
            arguments.whole(f"{where} target_file_bytes", self.target_file_bytes, least=65_536)

    @property
    def place(self) -> str:
        """The dataset's place as it was given."""
        return self.path

    def guarded(self) -> Json:
        """The dataset and its format. Partitioning, codec and file size may change: the manifest holds what each file needs."""
        return {"type": "files", "path": normalised(self.path), "format": self.format}

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """Find the dataset's mark, or write it where the log is new."""
        mark = canonical({"format": 1, "entry": "dataset", "pipeline_uuid": pipeline_uuid, "log": normalised(log)})
        store = self._dataset()
        try:
            stored = store.read(keys.DATASET_MARKER)
            if stored is None and not new:
                raise LogDamagedError(
                    "a dataset has lost its mark: is it another directory, or was it emptied?",
                    place=self.path,
                    key=keys.DATASET_MARKER,
                )
            if stored is None:
                occupied = self._holds_files(store)
                # Read again: whoever put files there since has marked the dataset before them.
                stored = store.read(keys.DATASET_MARKER)
                if stored is None and occupied:
                    raise _unknown_output(self.path)
                if stored is None:
                    store.create(keys.DATASET_MARKER, mark)
                    stored = store.read(keys.DATASET_MARKER)
        except UnknownAnswerError as error:
            raise UnavailableError(
                "the dataset's place gave no clear answer; nothing became visible", place=self.path
            ) from error
        if stored != mark:
            raise DatasetTakenError(
                "the dataset belongs to another pipeline or log",
                place=self.path,
                pipeline_uuid=pipeline_uuid,
                log=normalised(log),
                **_marked(stored),
            )

    def refuse_orphan(self, log: str) -> None:
        """A marked dataset without its log is never started over."""
        store = self._dataset()
        if store.stat(keys.DATASET_MARKER) is not None:
            raise DatasetTakenError(
                "the dataset is marked as the output of a log, but there is no log at the given place",
                place=self.path,
                log=normalised(log),
                **_marked(store.read(keys.DATASET_MARKER)),
            )
        if self._holds_files(store):
            raise _unknown_output(self.path)

    def _holds_files(self, store: Dataset) -> bool:
        return next(store.list("data/", limit=1), None) is not None

    def attempt_place(self, version: int, attempt_id: str) -> str:
        """The attempt's own directory or prefix."""
        return self._dataset().engine_path(keys.data_prefix(version, attempt_id))

    def accept(self, schema: str) -> str:
        """
        Every column that the format can hold. CSV has no form for bytes, JSON none for keys of maps that are not text: Spark writes them as text that it does
        not read back. In ORC it does not find columns again whose names hold a backtick.
        """
        fields = json.loads(schema)["fields"]
        binary = [field["name"] for field in fields if field["type"] == "binary"]
        keyed = [field["name"] for field in fields if self.format == "json" and _has_other_keys(field["type"])]
        if keyed:
            what = "JSON files cannot hold maps whose keys are not text: cast the keys in the transform; nothing became visible"
            raise DataError(what, sink=self.path, columns=keyed)
        zoned = [field["name"] for field in fields if self.format == "orc" and _has(field["type"], "timestamp")]
        if zoned:
            what = (
                "ORC files give timestamps with a time zone back by the time zone of the Java that reads; nothing became visible. "
                "Cast them to timestamp_ntz in the transform"
            )
            raise DataError(what, sink=self.path, columns=zoned)
        unread = sorted(name for name in _names(fields) if self.format == "orc" and ("`" in name or not name))
        if unread:
            what = (
                "Spark cannot read ORC columns with these names: rename them in the transform; nothing became visible"
            )
            raise DataError(what, sink=self.path, columns=unread)
        if self.format == "csv" and binary:
            raise DataError(
                "CSV files cannot hold binary columns: convert them in the transform, to text by base64(column); nothing became visible",
                sink=self.path,
                columns=binary,
            )
        return schema

    def grows(self, column: str, recorded: str, wider: str) -> bool:
        """Whether files of earlier batches are read with the same values in a wider type: 0.1 as text is another number as ``float`` than as ``double``."""
        return self.format not in ("csv", "json") or recorded != "float"

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """Write with Spark's own writer."""
        from airflow_provider_streamsem.sinks import write

        return write.write_files(frame, self, self.attempt_place(version, attempt_id))

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Sync and count each file of the attempt."""
        return self.collected(version, attempt_id, accepted)

    def collected(
        self,
        version: int,
        attempt_id: str,
        accepted: frozenset[str] | None,
        stats: Callable[[Any], str] = lambda parquet: "",
    ) -> Committable:
        """
        As :meth:`collect`.

        :param stats: what to note of a Parquet file's metadata
        """
        prefix = keys.data_prefix(version, attempt_id)
        dataset = self._dataset()
        found = {stat.key[len(prefix) :]: stat for stat in dataset.list(prefix) if _is_data(stat.key[len(prefix) :])}
        missing = (accepted or frozenset()) - found.keys()
        if missing:
            what = "files that Spark wrote are not at the attempt's place; nothing became visible"
            raise StageError(what, place=self.path, version=version, missing=sorted(missing)[:3])
        staged = [stat for name, stat in found.items() if accepted is None or name in accepted]
        dataset.make_durable([stat.key for stat in staged], prefix)

        def counted(stat: ObjectStat) -> DataFile:
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

        at_once = 1 if self.format == "csv" else _FILES_AT_ONCE  # a CSV file is counted in memory
        with ThreadPoolExecutor(at_once) as pool:
            files = tuple(pool.map(counted, staged))
        return Committable(format=self.format, rows=sum(f.rows for f in files), files=files)

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """The attempts' directories."""
        dataset = self._dataset()
        versions = dataset.directories("data/") if version is None else [str(version)]
        directories = (f"data/{v}/{name}/" for v in versions for name in dataset.directories(f"data/{v}/"))
        return {attempt for key in directories if (attempt := keys.attempt_of_data(key))}

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """Remove the attempt's directory."""
        dataset, prefix = self._dataset(), keys.data_prefix(version, attempt_id)
        size = sum(stat.bytes for stat in dataset.list(prefix))
        if not dry_run:
            dataset.remove_tree(prefix)
        return size

    def identify(self, key: str, format: str) -> tuple[int, str] | None:
        """Size and checksum."""
        dataset = self._dataset()
        stat = dataset.stat(key)
        return None if stat is None else (stat.bytes, footers.checksum(dataset, stat, format))

    def count(self, key: str, format: str) -> int:
        """Rows by the footer, or by reading."""
        dataset = self._dataset()
        stat = dataset.stat(key)
        return 0 if stat is None else footers.describe(dataset, stat, format).rows

    def is_complete(self, committable: Committable) -> bool:
        """Size and checksum of every file."""
        return all(
            self.identify(file.key, committable.format) == (file.bytes, file.checksum) for file in committable.files
        )

    def _dataset(self) -> Dataset:
        return open_dataset(self.path)


def _marked(mark: bytes | None) -> dict[str, str]:
    """The pipeline and the log that a mark names, as fields of an error; empty where it cannot be read."""
    try:
        found = read_json(mark or b"{}", keys.DATASET_MARKER)
    except LogDamagedError:
        found = {}
    named = found if isinstance(found, dict) else {}
    return {"marked_uuid": str(named.get("pipeline_uuid", "")), "marked_log": str(named.get("log", ""))}


def _has_other_keys(kind: Any) -> bool:
    """Whether a type holds a map whose keys are not text."""
    if not isinstance(kind, dict):
        return False
    return (kind["type"] == "map" and kind["keyType"] != "string") or any(map(_has_other_keys, _parts(kind)))


def _has(kind: Any, sought: str) -> bool:
    """Whether a type is of this name, or made of such."""
    return kind == sought if isinstance(kind, str) else any(_has(part, sought) for part in _parts(kind))


def _names(fields: Sequence[Any]) -> Iterator[str]:
    """The names of columns and of the fields inside them."""
    for field in fields:
        yield field["name"]
        kinds = [field["type"]]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, dict):
                yield from (inner["name"] for inner in kind.get("fields", ()))
                kinds += _parts(kind)


def _parts(kind: Any) -> list[Any]:
    """The types of which a nested type is made."""
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return [*inner, *(field["type"] for field in kind.get("fields", ()))]


def _is_data(relative: str) -> bool:
    """Whether a name is that of a data file: not a committer's own, and not the mark that S3A leaves for a directory."""
    parts = relative.split("/")
    return bool(parts[-1]) and not any(part.startswith(("_", ".")) and "=" not in part for part in parts)


def _unknown_output(place: str) -> ConflictError:
    return ConflictError("the dataset's place holds output that no log names", place=place, directory="data/")
