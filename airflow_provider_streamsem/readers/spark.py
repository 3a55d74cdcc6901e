"""Reads the rows of a dataset, as of a version, as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.readers.files import CommittedFile, CommittedLog, open_log, sink_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_committed(
    spark: SparkSession,
    log: str | CommittedLog,
    *,
    version: int | None = None,
    since: int | None = None,
    sink: str | None = None,
) -> DataFrame:
    """
    Return the visible rows of one sink as a DataFrame.

    The columns are those of the sink's schema at ``version``. A column that a file does not have is null in its rows.

    :param spark: the session that reads the files
    :param log: URL of the log, or an open log
    :param version: as of this version, inclusive; default: the newest closed one
    :param since: only rows that became visible in versions *above* this one, including rows of reprocessing runs
    :param sink: name of the sink; required if the pipeline has several
    :raises InvalidError: there is no such log, version or sink, the sink publishes outside the log, or no commit has recorded the columns yet
    :raises ConflictError: the dataset belongs to another log
    :raises LogDamagedError: an entry of the log is damaged, the dataset has no ownership marker, or this Spark version cannot parse the recorded schema
    """
    opened = open_log(log) if isinstance(log, str) else log
    at = opened.head if version is None else version
    name = sink_of(opened, sink, version=at)
    return rows_of(spark, opened, name, opened.files(version=at, since=since, sink=name), version=at)


def rows_of(
    spark: SparkSession, opened: CommittedLog, name: str, files: Sequence[CommittedFile], *, version: int
) -> DataFrame:
    """
    Return the rows of some visible files of one sink as a DataFrame.

    :param version: the version whose schema of the sink applies
    :raises InvalidError: no commit up to this version has recorded the columns
    :raises LogDamagedError: as :func:`read_committed`
    """
    stored = opened.schema(name, version=version)
    if stored is None:
        raise InvalidError(
            "no version up to this one has committed rows of the sink, so its columns are not known",
            log=opened.log.store.url,
            version=version,
        )
    try:
        return read_files(spark, [f.path for f in files], format=files[0].format if files else "", schema=stored)
    except LogDamagedError as error:
        raise error.with_fields(version=version, sink=name) from error
