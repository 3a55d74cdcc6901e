"""Compares the rows of a fork with those that the original pipeline committed since the fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.readers.files import CommittedLog, open_log, sink_of
from airflow_provider_streamsem.readers.spark import rows_of
from airflow_provider_streamsem.spark.row_texts import row_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    One side of a comparison.

    :param log: URL of the log
    :param rows: number of rows that were compared
    :param columns: columns that only this side has. They are not compared
    :param next: partition → next offset
    :param watermark_ms: the watermark of the state after the newest version, in milliseconds since the epoch; ``None`` without one
    """

    log: str
    rows: int
    columns: tuple[str, ...]
    next: Offsets
    watermark_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    The result of :func:`diff`.

    :param rows: a DataFrame with one line for each row that one side has more often. ``row`` is the JSON text of the compared columns, ``only_in`` is
        ``original`` or ``fork``, and ``times`` is how much more often that side has the row, at least 1
    :param columns: the compared columns: those that both sides have
    """

    rows: DataFrame
    columns: tuple[str, ...]
    original: Side
    fork: Side

    @property
    def is_comparable(self) -> bool:
        """
        Whether both sides have read up to the same offsets and have the same watermark.

        If not, one side has not yet read some records or emitted some rows of its state. Rows that differ now may then be equal later.
        """
        sides = self.original, self.fork
        return sides[0].next == sides[1].next and sides[0].watermark_ms == sides[1].watermark_ms


def opened(fork: str | CommittedLog, original: str | CommittedLog) -> tuple[CommittedLog, CommittedLog, int]:
    """
    Open the logs of a fork and of its original, and return both and the version of the fork.

    :raises InvalidError: the log is no fork of the original, or has no closed version
    """
    fork_log = open_log(fork) if isinstance(fork, str) else fork
    original_log = open_log(original) if isinstance(original, str) else original
    forked_at = fork_log.record.fork
    if forked_at is None:
        raise InvalidError("the log is not the log of a fork", log=fork_log.log.store.url).advising(
            "name the log of the fork first, and that of the original second."
        )
    if original_log.record.pipeline_uuid != forked_at.pipeline_uuid:
        summary = "the fork was made from another log"
        logs = {"fork": fork_log.log.store.url, "original": original_log.log.store.url, "forked_from": forked_at.log}
        raise InvalidError(summary, **logs).advising("name the log from which the fork was made.")
    if forked_at.from_ms is not None:
        summary = "the fork starts at a time of the source, not at a version of the original, so the two have not read the same records"
        raise InvalidError(summary, log=fork_log.log.store.url, from_ms=forked_at.from_ms).advising(
            "compare a fork that starts at a version (--at or --until)."
        )
    if fork_log.head < 0:
        summary = "the fork has no closed version, so it has no rows to compare"
        raise InvalidError(summary, log=fork_log.log.store.url).advising("run the fork first.")
    removed = original_log.rolled_back(original_log.log.find_head().outcome)
    if any(forked_at.version in versions for versions in removed):
        summary = (
            "the original was rolled back to a version before the fork, so the two have not read the same records since"
        )
        raise InvalidError(summary, forked_at=forked_at.version).advising(
            "fork the pipeline again, at a version that was not rolled back."
        )
    return fork_log, original_log, forked_at.version


def diff(
    spark: SparkSession, fork: str | CommittedLog, original: str | CommittedLog, *, sink: str | None = None
) -> Difference:
    """
    Compare the visible rows of a fork with those of the original pipeline in versions after the fork. Rows are compared as multisets, without an order.

    :param spark: the session that reads the files
    :param fork: URL of the fork's log, or the open log
    :param original: the log of the original pipeline. The URL that the fork's log names is not used, because every writer of that log can set it
    :param sink: name of the files sink in both pipelines; required if the pipelines have several
    :raises InvalidError: the log is no fork of the original, or a pipeline has no such sink, publishes it outside the log, or has committed no rows
    """
    fork_log, original_log, version = opened(fork, original)
    # The keys are signs: 1 for the original, -1 for the fork. The sum of the signs of equal rows is how much more often the original has the row.
    ends = {1: original_log.head, -1: fork_log.head}
    rows = {
        1: _rows_since(spark, original_log, sink, version, ends[1]),
        -1: _rows_since(spark, fork_log, sink, -1, ends[-1]),
    }
    shared = shared_columns(rows, ("original", "fork"))
    different, counts = different_rows(rows, shared)

    def side(log: CommittedLog, sign: int) -> Side:
        outcome = log.log.outcome(ends[sign])
        return Side(
            log=log.log.store.url,
            rows=counts.get(sign, 0),
            columns=tuple(name for name in rows[sign].columns if name not in shared),
            next={} if outcome is None else outcome.next,
            watermark_ms=None if outcome is None else outcome.watermark_ms,
        )

    return Difference(
        rows=different,
        columns=tuple(shared),
        original=side(original_log, 1),
        fork=side(fork_log, -1),
    )


def shared_columns(rows: Mapping[int, DataFrame], names: tuple[str, str]) -> list[str]:
    """
    Return the columns that both sides have, in the order of the first side.

    :param rows: sign → DataFrame: 1 for the first side, -1 for the second
    :raises InvalidError: the sides have no column in common
    """
    shared = [name for name in rows[1].columns if name in rows[-1].columns]
    if not shared:
        columns = {names[0]: rows[1].columns, names[1]: rows[-1].columns}
        raise InvalidError("the two sides have no column in common, so no row can be compared", **columns)
    return shared


def different_rows(
    rows: Mapping[int, DataFrame], columns: Sequence[str], *, names: tuple[str, str] = ("original", "fork")
) -> tuple[DataFrame, dict[int, int]]:
    """
    Compare the rows of two DataFrames as multisets.

    :param rows: sign → DataFrame: 1 for the first side, -1 for the second
    :param columns: the columns to compare. Both sides have them
    :param names: the values of ``only_in`` for the two sides
    :returns: the rows that one side has more often, in the form of :attr:`Difference.rows`; and sign → number of rows, without a side that has none
    """
    from pyspark.sql import functions as F

    def texts(sign: int) -> DataFrame:
        return rows[sign].select(row_text(rows[sign], columns).alias("row"), F.lit(sign).alias("sign"))

    both = texts(1).unionByName(texts(-1))
    counts = {row["sign"]: row["count"] for row in both.groupBy("sign").count().collect()}
    total = both.groupBy("row").agg(F.sum("sign").alias("balance")).where("balance <> 0")
    only_in = F.when(F.col("balance") > 0, names[0]).otherwise(names[1]).alias("only_in")
    return total.select("row", only_in, F.abs("balance").alias("times")), counts


def _rows_since(spark: SparkSession, log: CommittedLog, sink: str | None, since: int, version: int) -> DataFrame:
    """Return the rows of the batches above a version. A reprocessing run counts as the batch that it replaced."""
    name = sink_of(log, sink)
    files = log.files(version=version, since=since, sink=name, with_rewrites=False)
    rewritten = {each.version: each.commits for each in log.view(version=version, since=since).rewrites}
    commits = {at: rewritten.get(at, (at,)) for at in {file.version for file in files}}
    is_after = {at: {log.log.find_root(commit) > since for commit in found} for at, found in commits.items()}
    if mixed := sorted(at for at, found in is_after.items() if len(found) > 1):
        raise InvalidError(
            "rows of batches before and after the fork are only in the same files: a compaction has stored them, and the versions have expired",
            log=log.log.store.url,
            compactions=mixed,
        )
    return rows_of(spark, log, name, [file for file in files if is_after[file.version] == {True}], version=version)
