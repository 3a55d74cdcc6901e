"""Compares the rows of a fork with those that the original pipeline committed since the fork."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.readers.spark import read_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    The result of :func:`diff`.

    :param rows: a DataFrame with a line for each row that one side has more often: ``row`` (JSON text of the compared columns), ``only_in`` (``original`` or
        ``fork``) and ``times`` (how much more often, at least 1)
    :param columns: the compared columns: those that both sides have
    :param original_columns: columns that only the original has
    :param fork_columns: columns that only the fork has
    :param original_next: partition → next offset of the original
    :param fork_next: partition → next offset of the fork. If it differs from ``original_next``, the sides have read different records
    """

    rows: DataFrame
    columns: tuple[str, ...]
    original_columns: tuple[str, ...]
    fork_columns: tuple[str, ...]
    original_next: Offsets
    fork_next: Offsets


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
    from pyspark.sql import functions as F

    opened = open_log(fork) if isinstance(fork, str) else fork
    position = opened.record.fork
    if position is None:
        raise InvalidError("the log is not the log of a fork", log=opened.log.store.url)
    if opened.head < 0:
        raise InvalidError(
            "the fork has no closed version, so there is nothing to compare", log=opened.log.store.url
        ).advising("run the fork first.")
    source = open_log(original) if isinstance(original, str) else original
    if source.record.pipeline_uuid != position.pipeline_uuid:
        what = "the fork was made from another log"
        raise InvalidError(what, fork=opened.log.store.url, original=source.log.store.url, forked_from=position.log)
    before = read_committed(spark, source, since=position.version, sink=sink)
    after = read_committed(spark, opened, sink=sink)
    shared = [name for name in before.columns if name in after.columns]

    def counted(frame: DataFrame, sign: int) -> DataFrame:
        columns: list[Any] = [F.col(f"`{name.replace('`', '``')}`") for name in shared]
        text = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
        return frame.select(text.alias("row"), F.lit(sign).alias("sign"))

    total = counted(before, 1).unionByName(counted(after, -1)).groupBy("row").agg(F.sum("sign").alias("balance"))
    rows = total.where("balance <> 0").selectExpr(
        "row", "CASE WHEN balance > 0 THEN 'original' ELSE 'fork' END AS only_in", "abs(balance) AS times"
    )
    return Difference(
        rows=rows,
        columns=tuple(shared),
        original_columns=tuple(name for name in before.columns if name not in shared),
        fork_columns=tuple(name for name in after.columns if name not in shared),
        original_next=source.log.find_head().next,
        fork_next=opened.log.find_head().next,
    )
