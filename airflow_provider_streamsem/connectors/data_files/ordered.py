"""
Sorts the rows of data files in the order of the files. Imports pyspark, so only engines import this module.

Spark assigns files to tasks by descending size, so it returns the rows of a larger file before those of a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.errors import DataError

FILE, BLOCK, ROW = "__streamsem_file", "__streamsem_block", "__streamsem_row"
POSITION = (FILE, BLOCK, ROW)
OFFERED = ("file_path", "file_order")
"""The columns of :func:`with_offered`."""
_PATH, _NUMBER = "__streamsem_ordered_path", "__streamsem_number"
_UNKNOWN_FILE = "streamsem: a row is of a file that was not planned"


def position(path: Column | None = None, block: Column | None = None) -> list[Column]:
    """
    Return the columns :data:`POSITION`: the file of a row, the start of its block in bytes, and a number that increases within the block.

    The DataFrame must read files, with only projections and filters above. A task reads the rows of a block in their order, so the third column numbers them.
    """
    path = F.col("_metadata.file_path") if path is None else path
    block = F.col("_metadata.file_block_start") if block is None else block
    return [plain_path(path).alias(FILE), block.alias(BLOCK), F.monotonically_increasing_id().alias(ROW)]


def plain_path(path: Column) -> Column:
    """Return a path of ``_metadata`` without escapes, below ``plain_root``. ``url_decode`` alone would turn a plus into a space."""
    decoded = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(decoded, "^file:(//)?", "")


def in_order(frame: DataFrame, paths: Iterable[str], *, first: Sequence[Column] = ()) -> DataFrame:
    """
    Sort the rows by ``first``, then by file, and within a file by position. Drops the columns :data:`POSITION`.

    A transform that only projects and filters keeps this order, and so do the staged files.
    """
    numbers = {path: number for number, path in reversed([*enumerate(paths)])}  # a path may occur twice
    return _numbered(frame, numbers).orderBy(*first, _NUMBER, BLOCK, ROW).drop(_NUMBER, *POSITION)


def with_offered(frame: DataFrame, ordinals: Mapping[str, int]) -> DataFrame:
    """
    Add the columns :data:`OFFERED`: the path of the file, and a text that increases with the ordinal of the file, then with the position of a row in it.

    Drops the columns :data:`POSITION`. Rows of a file without an ordinal fail with ``DataError``.
    """
    if min(ordinals.values()) < 0:
        summary = "the plan has no ordinals of files, because the source had no positions when it was planned"
        raise DataError(summary).advising(
            "run `streamsem abort PIPELINE.toml N --reason TEXT`: the files are planned again, with their ordinals."
        )
    order = F.format_string("%010d-%019d-%019d", _NUMBER, BLOCK, ROW)
    path, name = OFFERED
    return _numbered(frame, ordinals).withColumns({path: F.col(FILE), name: order}).drop(_NUMBER, *POSITION)


def _numbered(frame: DataFrame, numbers: Mapping[str, int]) -> DataFrame:
    rows = [(number, path) for path, number in numbers.items()]
    table = frame.sparkSession.createDataFrame(rows, f"{_NUMBER} long, {_PATH} string")
    joined = frame.join(F.broadcast(table), F.col(FILE) == F.col(_PATH), "left")
    unknown = F.raise_error(F.lit(_UNKNOWN_FILE)).cast("long")
    return joined.withColumn(_NUMBER, F.coalesce(F.col(_NUMBER), unknown)).drop(_PATH)
