"""Rewrites files of a dataset with Spark. Only the Spark engine imports this module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Contents, RewriteJob, RewrittenFiles
from airflow_provider_streamsem.protocol.entries import DataFile
from airflow_provider_streamsem.spark.row_texts import row_text

_PATH = "__streamsem_path"


def rewrite(session: SparkSession, job: RewriteJob) -> RewrittenFiles:
    """Write the rows of the files to new files, and read both; see :class:`airflow_provider_streamsem.engine.Engine`."""
    rows = _read(session, job, job.files)
    if job.erased is not None:
        rows = rows.where(~_selected(job.erased))
    accepted = job.sink.stage_rewritten(
        rows, job.version, job.attempt_id, files=job.files, target_file_bytes=job.target_file_bytes
    )
    with telemetry.phase("collect"):
        output = job.sink.collect(job.version, job.attempt_id, accepted)
    return RewrittenFiles(output=output, before=_contents(rows), after=_contents(_read(session, job, output.files)))


def count_selected(
    session: SparkSession, sink: Sink, files: Sequence[DataFile], schema: str, predicate: Predicate
) -> dict[str, int]:
    """Count the selected rows of each file; see :class:`airflow_provider_streamsem.engine.Engine`."""
    path = F.col("_metadata.file_path")
    rows = read_files(session, sink.urls(files), format=sink.format, schema=schema, metadata=[path.alias(_PATH)])
    found = rows.where(_selected(predicate)).groupBy(_PATH).count().collect()
    keys = {file.key for file in files}
    counts: dict[str, int] = {}
    for row in found:
        path = unquote(row[_PATH])
        (key,) = {path[at.start() + 1 :] for at in re.finditer("(?=/data/)", path)} & keys
        counts[key] = row["count"]
    return counts


def _selected(predicate: Predicate) -> Column:
    """Return a column that is true for selected rows, else false. It is never null, so its negation selects all other rows."""
    terms = (F.col(quoted(term.column)).isin(*term.values) for term in predicate.terms)
    return F.coalesce(reduce(and_, terms), F.lit(False))


def _read(session: SparkSession, job: RewriteJob, files: Sequence[DataFile]) -> DataFrame:
    return read_files(session, job.sink.urls(files), format=job.sink.format, schema=job.schema)


def _contents(rows: DataFrame) -> Contents:
    """Count the rows, and sum two 64-bit hashes of each row. The sums do not depend on the order. Different rows have equal sums only if both collide."""
    text = row_text(rows, rows.columns)
    hashes = {"first": F.xxhash64(text), "second": F.xxhash64(F.lit(1), text)}
    sums = [F.sum(each.cast("decimal(38,0)")).cast("string").alias(name) for name, each in hashes.items()]
    row = rows.agg(F.count(F.lit(1)).alias("rows"), *sums).first()
    assert row is not None  # an aggregation without keys returns one row
    return Contents(rows=row["rows"], digest=f"{row['first']},{row['second']}")
