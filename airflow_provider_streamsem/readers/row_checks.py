"""Checks that need the rows or the source: ids that are visible more than once, and offsets that the source does not have (``streamsem verify --deep``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.files import CommittedLog
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.spark import rows_of
from airflow_provider_streamsem.readers.verify import Violation
from airflow_provider_streamsem.telemetry import log_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = log_of(__name__)

_SHOWN = 5
"""How many pairs of versions a violation names."""
_VERSION = re.compile(r".*/data/([0-9]{1,12})/[^/]+/")


def id_columns(opened: CommittedLog, given: Sequence[str]) -> list[str]:
    """
    Return the columns of the id: the given ones, or the keys of the pipeline's ``dedup``, if they are unique in all batches.

    :raises InvalidError: the columns are not known
    """
    dedup = None if opened.pipeline is None else opened.pipeline.dedup
    columns = list(given or (dedup.keys if dedup is not None and dedup.keeps_state else ()))
    if not columns:
        raise InvalidError("the columns of the id are not known, so rows cannot be compared", ids=list(given)).advising(
            'name them with --ids COLUMN, or give the pipeline file of a pipeline with dedup of the scope "pipeline".'
        )
    return columns


def check_rows(spark: SparkSession, opened: CommittedLog, columns: Sequence[str]) -> Iterator[Violation]:
    """
    Yield a violation for each files sink in which an id is visible more than once. Rows in which a column of the id is null are not compared.

    :param columns: the columns of the id; see :func:`id_columns`
    :raises InvalidError: no files sink has the columns
    """
    version, compared = opened.head, []
    # The files of the commits, so that a violation names the versions of the rows.
    visible = opened.files(version=version, with_rewrites=False) if version >= 0 else []
    for name in sorted({file.sink for file in visible}):
        files = [file for file in visible if file.sink == name]
        rows = rows_of(spark, opened, name, files, version=version)
        if {*columns} <= {*rows.columns}:
            logger.info("comparing the ids of %d files of sink %s", len(files), name)
            compared.append(name)
            yield from _repeated(rows, columns, name)
    if visible and not compared:
        raise InvalidError("no files sink has the columns of the id", ids=columns)


def _repeated(rows: DataFrame, columns: Sequence[str], sink: str) -> Iterator[Violation]:
    from pyspark.sql import functions as F

    named = [F.col(f"`{column.replace('`', '``')}`") for column in columns]
    with_file = rows.select(*named, F.input_file_name().alias("_file")).dropna()
    repeated = (
        with_file.groupBy(*named)
        .agg(F.count(F.lit(1)).alias("_times"), F.min("_file").alias("_first"), F.max("_file").alias("_last"))
        .where("_times > 1")
        .select("_first", "_last")
        .persist()  # read all files once
    )
    total = repeated.count()
    pairs = [(_version(row["_first"]), _version(row["_last"])) for row in repeated.distinct().limit(_SHOWN).collect()]
    repeated.unpersist()
    if total:
        where = ", ".join(
            sorted({f"{min(pair)} and {max(pair)}" if len({*pair}) > 1 else str(pair[0]) for pair in pairs})
        )
        yield Violation(
            invariant="ids",
            what=f"sink {sink}: {total} ids are visible more than once, for example in versions {where}",
            version=max(max(pair) for pair in pairs),
            do="look for the ids in the source, and in what the transform does: it may write several rows of a record, and an id may repeat after `ttl_s`. "
            "If the source has the records more than once, give the pipeline a `dedup` and reprocess the versions, oldest first",
        )


def _version(path: str) -> int:
    found = _VERSION.match(path)
    return -1 if found is None else int(found[1])


def check_source(pipeline: Pipeline) -> Iterator[Violation]:
    """
    Yield a violation if the lag cannot be computed, for example because a topic does not exist any more, or if it is negative.

    :raises StreamsemError: the source cannot be read now, and a retry may succeed
    """
    try:
        items = lag(pipeline).lag
    except StreamsemError as error:
        if error.retryable:
            raise
        summary, _, do = str(error).partition(". Do:")
        yield Violation(invariant="source", what=summary, do=do.strip())
        return
    if items < 0:
        yield Violation(
            invariant="source",
            what=f"the log is {-items} {pipeline.source.unit} ahead of the source: the source was recreated or restored from an older copy",
            do="restore the source, or start a new pipeline",
        )
