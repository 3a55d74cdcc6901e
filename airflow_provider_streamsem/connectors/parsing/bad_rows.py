"""Selects the rows of bad records from parsed records, and stores their bytes as text. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.columns.identifiers import quoted


def bad_rows(parsed: DataFrame, bad: Column, selected: Sequence[Column], *, reason: str) -> Iterator[Row]:
    """
    Yield the rows of bad records. The column ``reason`` is computed for bad records only.

    Every column but ``reason`` is observed, for two reasons. First, Spark does not move a filter below an observation. Without the observation, Spark would
    move the filter below the parse, and repeat the parse for each column that the filter refers to. Second, Spark prunes columns that no operator uses, and
    does not parse their values. Then the second pass could find other bad records than the first.
    """
    counts = [F.count(F.col(quoted(name))).alias(f"c{n}") for n, name in enumerate(parsed.columns) if name != reason]
    rows = parsed.observe(Observation(), *counts).where(bad).select(*selected)
    yield from rows.toLocalIterator(prefetchPartitions=True)


def text_of(data: bytes) -> tuple[str, str]:
    """Return bytes as text, and the encoding: ``utf-8``, or ``base64`` if the bytes are not UTF-8."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"
