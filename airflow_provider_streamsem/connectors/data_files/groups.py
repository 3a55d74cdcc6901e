"""
Distributes the rows of data files over Spark partitions by *group*, such as the version of the table that added their file. Imports pyspark, so only engines
import this module.

The rows of a group have no order, because the writer of the files had none. Each Spark partition has rows of one group only, and the groups ascend. So the
number of a partition, and that of the file that Spark writes for it, identify the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.data_files import ordered

PARTITION_BYTES = 128 << 20
MOST_GROUPS = 2_000
"""Maximum number of groups. It bounds the number of Spark tasks and of staged files."""
_KEY, _FIRST, _PARTITIONS, _AT = (
    "__streamsem_key",
    "__streamsem_first",
    "__streamsem_partitions",
    "__streamsem_partition",
)
_SEED = 42
_WRONG_PARTITION = "streamsem: Spark has distributed a row to another partition than planned"
_UNKNOWN_GROUP = "streamsem: a row is of a group that was not planned"
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GroupedFile:
    """A file below ``plain_root`` with rows of the versions ``first`` to ``last`` (inclusive). The rows have no order. ``bytes`` below 0: unknown."""

    path: str
    first: int
    last: int
    bytes: int


def of_items(items: Iterable[tuple[K, int, int]]) -> dict[K, int]:
    """
    Return key → group of items ``(key, first, last)``, with inclusive versions. A key may occur several times. Groups ascend by version.

    Items whose spans overlap are of one group, and so are all items if there are more than :data:`MOST_GROUPS` groups.
    """
    spans: dict[K, tuple[int, int]] = {}
    for key, first, last in items:
        known = spans.get(key, (first, last))
        spans[key] = min(first, known[0]), max(last, known[1])
    groups: dict[K, int] = {}
    number, end = -1, -1
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if first > end:
            number += 1
        end = max(end, last)
        groups[key] = number
    return groups if number < MOST_GROUPS else dict.fromkeys(groups, 0)


def partitions(groups: Mapping[K, int], sizes: Mapping[K, int]) -> list[int]:
    """Return the group of each Spark partition, ascending; empty for one group. A group has a partition for each :data:`PARTITION_BYTES`."""
    total = dict.fromkeys(sorted(set(groups.values())), 0)
    for key, group in groups.items():
        total[group] += max(sizes[key], 0)
    if len(total) < 2:
        return []
    most = max(PARTITION_BYTES, sum(total.values()) // MOST_GROUPS)
    return [group for group, size in total.items() for _ in range(1 + size // most)]


def by_file(frame: DataFrame, files: Sequence[GroupedFile]) -> tuple[DataFrame, list[int]]:
    """Distribute rows, which have the columns of :func:`block`, by the versions of their files. Return them, and the group of each Spark partition."""
    numbers = of_items((file.path, file.first, file.last) for file in files)
    layout = partitions(numbers, {file.path: file.bytes for file in files})
    if layout:
        frame = distributed(frame, F.col(ordered.FILE), numbers, layout, F.col(ordered.BLOCK))
    return frame.drop(ordered.FILE, ordered.BLOCK), layout


def distributed(
    frame: DataFrame, key: Column, groups: Mapping[K, int], layout: Sequence[int], spread: Column
) -> DataFrame:
    """
    Distribute rows to the Spark partitions of their groups. ``key`` is the key of a row in ``groups``, and ``layout`` has the group of each partition.

    The rows of a group are distributed over its partitions by ``spread``.
    """
    first = {group: at for at, group in reversed([*enumerate(layout)])}
    partitions_of = Counter(layout)
    planned = [(item, first[group], partitions_of[group]) for item, group in groups.items()]
    kind = "long" if isinstance(planned[0][0], int) else "string"
    table = frame.sparkSession.createDataFrame(planned, f"{_KEY} {kind}, {_FIRST} int, {_PARTITIONS} int")
    joined = frame.withColumn(_KEY, key).join(F.broadcast(table), _KEY, "left")
    number = F.col(_FIRST) + F.pmod(F.xxhash64(spread), F.col(_PARTITIONS)).cast("int")
    known = F.coalesce(number, F.raise_error(F.lit(_UNKNOWN_GROUP)).cast("int"))
    return in_partitions(joined.withColumn(_AT, known).drop(_KEY, _FIRST, _PARTITIONS), F.col(_AT), len(layout)).drop(
        _AT
    )


def in_partitions(frame: DataFrame, number: Column, partitions: int) -> DataFrame:
    """Shuffle the rows to numbered partitions. Fails if Spark distributes a row otherwise."""
    salts = _salts(partitions)
    shuffled = frame.repartition(partitions, F.element_at(F.array(*map(F.lit, salts)), number + 1))
    is_right = F.when(F.spark_partition_id() == number, F.lit(True))
    return shuffled.where(F.coalesce(is_right, F.raise_error(F.lit(_WRONG_PARTITION)).cast("boolean")))


def _salts(partitions: int) -> list[int]:
    """Return an integer for each partition that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    for salt in count():
        found.setdefault(spark_hash(salt) % partitions, salt)
        if len(found) == partitions:
            return [found[number] for number in range(partitions)]
    raise AssertionError


def spark_hash(number: int) -> int:
    """Return Spark's hash of an ``int`` from 0 to 2³¹ - 1: Murmur3 with seed 42, as a signed integer of 32 bits."""
    mask = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) & mask
    mixed = mixed * 0x1B873593 & mask
    state = _SEED ^ mixed
    state = (state << 13 | state >> 19) & mask
    state = (state * 5 + 0xE6546B64) & mask
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def block() -> list[Column]:
    """Return the columns :data:`ordered.FILE` and :data:`ordered.BLOCK` of a frame that reads files."""
    return ordered.position()[:2]
