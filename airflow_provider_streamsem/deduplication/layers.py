"""
Reads and writes the files of the deduplication state.

A large file is kept as a copy on the local disk, which is mapped into memory: a batch then reads the pages near its own ids. A copy is only a cache. If it is
missing, the file is read again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.files.layers import layers_dataset
from airflow_provider_streamsem.deduplication.ids import ID_BYTES, Ids, halves, in_order
from airflow_provider_streamsem.deduplication.state import AT, ID
from airflow_provider_streamsem.errors import StageError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Committable, DataFile
from airflow_provider_streamsem.state.layers import Layer
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = telemetry.log_of(__name__)

_FILES_AT_ONCE = 4
"""Files of a large layer that are read at a time. Each needs about 100 MB of memory."""
_ROW_BYTES = ID_BYTES + 8
_DAMAGED = "a file of the deduplication state is damaged; nothing became visible"
_SCHEMA = pa.schema([(ID, pa.binary(ID_BYTES)), (AT, pa.int64())])


class _NotPrivateError(OSError):
    pass


class LayerFiles:
    """
    The files of the layers of a log.

    :param log: URL of the log
    :param copied_bytes: files of at least this size are copied to the local disk; smaller ones are read for each batch
    :param most_copies_bytes: maximum size of all copies on the local disk
    """

    def __init__(
        self, log: str, *, rows_of_file: int = 1_000_000, copied_bytes: int = 1 << 20, most_copies_bytes: int = 4 << 30
    ) -> None:
        self._rows_of_file = rows_of_file
        self._copied_bytes = copied_bytes
        self._most_copies_bytes = most_copies_bytes
        self._dataset = layers_dataset(log)
        self._store = open_dataset(self._dataset.location)

    def read(self, layers: Iterable[Layer]) -> list[Ids]:
        """Return the ids of the files of layers."""
        files = [file for layer in layers for file in layer.files]
        parts = [files[start : start + _FILES_AT_ONCE] for start in range(0, len(files), _FILES_AT_ONCE)]
        return [ids for part in parts for ids in in_threads(self._ids, part)]

    def write(self, ids: Ids, version: int, attempt_id: str) -> Committable:
        """Write the files of a layer, and read them back."""
        names: list[str] = []
        for start in range(0, len(ids), self._rows_of_file):
            part = ids.where(slice(start, start + self._rows_of_file))
            names.append(f"ids-{len(names):05d}.parquet")
            data = _parquet(part)
            if not _are_equal(_parsed(data), part):
                summary = "a file of the deduplication state differs from what was written"
                raise StageError(summary, version=version, file=names[-1])
            self._store.create(keys.data_prefix(version, attempt_id) + names[-1], data)
        written = self._dataset.collect(version, attempt_id, frozenset(names))
        for number, file in enumerate(written.files):
            start = number * self._rows_of_file
            self._copy(file, ids.where(slice(start, start + self._rows_of_file)))
        return written

    def _ids(self, file: DataFile) -> Ids:
        if (mapped := self._mapped(file)) is not None:
            return mapped
        data = self._store.read(file.key)
        if data is None:
            raise StageError("a file of the deduplication state is missing", file=file.key)
        try:
            ids = _parsed(data)
        except (OSError, ValueError) as error:  # pyarrow's exceptions
            raise StageError(_DAMAGED, file=file.key) from error
        if len(data) != file.bytes or len(ids) != file.rows:
            raise StageError(
                _DAMAGED, file=file.key, log_bytes=file.bytes, bytes=len(data), log_ids=file.rows, ids=len(ids)
            )
        self._copy(file, ids)
        return self._mapped(file) or ids

    def _mapped(self, file: DataFile) -> Ids | None:
        """Map the copy of a file into memory; ``None`` if there is none of its size."""
        if file.bytes < self._copied_bytes:
            return None
        try:
            path = self._path_of_copy(file)
            if path.stat().st_size != file.rows * _ROW_BYTES:
                return None
            numbers = np.memmap(path, np.uint64, "r", shape=(3, file.rows))
            os.utime(path)
        except (OSError, ValueError):  # numpy's exception if another process has truncated the file
            return None
        return Ids(numbers[0], numbers[1], numbers[2].view(np.int64))

    def _copy(self, file: DataFile, ids: Ids) -> None:
        """Write the copy of a large file. Without space for it, the file is read for each batch."""
        if file.bytes < self._copied_bytes:
            return
        try:
            path = self._path_of_copy(file)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with open(handle, "wb") as copy:
                    for column in (ids.high, ids.low, ids.at_ms):
                        copy.write(np.ascontiguousarray(column).data)
                    copy.flush()
                    os.fsync(copy.fileno())  # a file of the right size without its content would hide ids
                os.replace(name, path)
            except OSError:
                os.unlink(name)
                raise
            _delete_oldest(path, self._most_copies_bytes)
        except OSError as error:
            logger.warning("no local copy of a file of the deduplication state was written: %s", error.strerror)

    def _path_of_copy(self, file: DataFile) -> Path:
        """Return the path of the copy of a file. A file never changes, and its key has the id of an attempt."""
        identity = f"{self._store.url}\n{file.key}\n{file.bytes}\n{file.checksum}"
        return _directory() / f"{hashlib.sha256(identity.encode()).hexdigest()}.ids"


def _parquet(ids: Ids) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table([ids.to_arrow(), pa.array(ids.at_ms)], schema=_SCHEMA)
    pyarrow.parquet.write_table(
        table,
        sink,
        compression={ID: "none", AT: "zstd"},
        use_dictionary=[AT],
        write_statistics=False,
        write_page_checksum=True,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _parsed(data: bytes) -> Ids:
    table = pyarrow.parquet.read_table(
        pa.BufferReader(data), schema=_SCHEMA, page_checksum_verification=True
    ).combine_chunks()
    column = table.column(ID).combine_chunks()
    buffer = column.buffers()[1].slice(column.offset * ID_BYTES, len(column) * ID_BYTES) if len(column) else b""
    high, low = halves(buffer)
    return in_order(high, low, table.column(AT).to_numpy())


def _are_equal(first: Ids, second: Ids) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("high", "low", "at_ms"))


def _delete_oldest(newest: Path, most_bytes: int) -> None:
    """Delete the copies that were not used for the longest time, if all copies together are too large."""
    found = []
    for path in newest.parent.iterdir():
        with suppress(OSError):  # another process has deleted it
            found.append((path.stat(), path))
    total = 0
    for info, path in sorted(found, key=lambda each: -each[0].st_mtime):
        total += info.st_size
        if total > most_bytes and path != newest:
            with suppress(OSError):
                path.unlink()


def _directory() -> Path:
    """Another user who can write to the directory could hide ids. So no copies are used if it is not private."""
    path = Path(tempfile.gettempdir()) / f"streamsem-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise _NotPrivateError(errno.EPERM, f"{path} is not a directory that only this user can use")
    return path
