"""Files of which Spark would lose records without an error, known by their names and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.protocol.entries import FoundFile

_COLUMNAR = ("parquet", "orc")
_ENDLESS = ("snappy", "lz4")
_LEAST_BYTES = {"gz": 1, "bz2": 14, "zst": 1, "deflate": 1}


def flaw(format: str, path: str, size: int) -> str:
    """
    Why a file may not be read; ``""`` where Spark finds out itself whether the file is whole.

    :param format: of the source
    :param size: bytes
    """
    if format in _COLUMNAR:
        return "" if size else "a file of this format cannot be empty"
    codec = path.lower().rpartition(".")[2]
    if codec in _ENDLESS:
        return "Spark cannot tell whether a file of this compression is truncated: compress it as gzip, bzip2 or zstd"
    return "a file of this compression cannot be that small" if size < _LEAST_BYTES.get(codec, 0) else ""


def flaws(format: str, first: int, files: Sequence[FoundFile]) -> dict[int, str]:
    """Ordinal → flaw of the files that may not be read, where ``first`` is the ordinal of the first file."""
    found = {first + n: flaw(format, file.path, file.bytes) for n, file in enumerate(files)}
    return {ordinal: what for ordinal, what in found.items() if what}
