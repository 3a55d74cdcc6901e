"""Detects files of which Spark would silently lose records if they were truncated. Inspects only name and size."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.protocol.entries import FoundFile

_COLUMNAR = ("parquet", "orc")
_ENDLESS = ("snappy", "lz4")
_LEAST_BYTES = {"gz": 1, "bz2": 14, "zst": 1, "deflate": 1}
DO = (
    "put a complete copy into the source under another name (a text format: not compressed, or as gzip, bzip2 or zstd), delete the file, and run again with "
    'on_data_loss="record_gap": the file becomes a gap, and the copy is read.'
)
"""Advice for a file with a flaw."""


def flaw(format: str, path: str, size: int) -> str:
    """Return why a file must not be read; ``""`` if it may, because Spark fails on a truncated file of this kind. The extension names the codec."""
    if format in _COLUMNAR:
        return "" if size else "a file of this format cannot be empty"
    codec = path.lower().rpartition(".")[2]
    if codec in _ENDLESS:
        return "Spark cannot detect that a file of this compression is truncated"
    return "a file of this compression cannot be that small" if size < _LEAST_BYTES.get(codec, 0) else ""


def flaws(format: str, first: int, files: Sequence[FoundFile]) -> dict[int, str]:
    """Return ordinal → flaw of the files that must not be read. ``first`` is the ordinal of the first file."""
    flaws_by_ordinal = {first + n: flaw(format, file.path, file.bytes) for n, file in enumerate(files)}
    return {ordinal: reason for ordinal, reason in flaws_by_ordinal.items() if reason}
