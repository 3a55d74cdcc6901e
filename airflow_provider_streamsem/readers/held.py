"""Compares the staged rows of a held version with the visible rows that it would replace. Those of a batch replace none, so all of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.review import staged_attempt
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.readers.diff import different_rows, shared_columns
from airflow_provider_streamsem.readers.files import CommittedFile, CommittedLog, sink_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDifference:
    """
    The difference between the rows of a held version and the rows that it would replace, in one sink.

    :param replaces: the version that it would replace; ``None`` for a batch
    :param rows: a DataFrame with one line for each row that one side has more often. ``row`` is the JSON text of the compared columns, ``only_in`` is
        ``visible`` or ``staged``, and ``times`` is how much more often that side has the row, at least 1
    :param columns: the compared columns: those that both sides have
    :param counts: ``visible`` and ``staged`` → number of rows
    :param columns_only_in: ``visible`` and ``staged`` → columns that only this side has. They are not compared
    """

    version: int
    attempt_id: str
    replaces: int | None
    rows: DataFrame
    columns: tuple[str, ...]
    counts: dict[str, int]
    columns_only_in: dict[str, tuple[str, ...]]


def diff_held(
    spark: SparkSession, opened: CommittedLog, version: int, *, sink: str | None = None, attempt_id: str | None = None
) -> HeldDifference:
    """
    Compare the rows of a held version with the visible rows that it would replace, as multisets. A batch replaces no rows, so ``rows`` are its staged rows.

    :param spark: the session that reads the files
    :param sink: name of the sink; required if the pipeline has several. For a reprocessing run, a files sink. A sink outside the log requires that ``opened``
        has the pipeline
    :param attempt_id: which attempt, if concurrent processes have staged several
    :raises InvalidError: the version is not held, there is no such sink or attempt, or the two sides have no column in common
    """
    name = sink_of(opened, sink)
    manifest = staged_attempt(opened.log, version, attempt_id)
    plan = opened.log.plan(version)
    assert plan is not None  # the version is open
    replaces = plan.work.replaces if isinstance(plan.work, Reprocess) else None
    visible, before = [], manifest.schemas.get(name)
    if replaces is not None:
        visible = [file for file in opened.files(sink=name, with_rewrites=False) if file.version == replaces]
        before = opened.schema(name, version=replaces)
    rows = {
        1: _rows(spark, visible, before),
        -1: _rows(spark, opened.attempt_files(manifest, name), manifest.schemas.get(name)),
    }
    names = ("visible", "staged")
    shared = shared_columns(rows, names)
    different, counts = different_rows(rows, shared, names=names)
    sides = {"visible": 1, "staged": -1}
    return HeldDifference(
        version=version,
        attempt_id=manifest.attempt_id,
        replaces=replaces,
        rows=different,
        columns=tuple(shared),
        counts={side: counts.get(sign, 0) for side, sign in sides.items()},
        columns_only_in={
            side: tuple(column for column in rows[sign].columns if column not in shared) for side, sign in sides.items()
        },
    )


def _rows(spark: SparkSession, files: list[CommittedFile], schema: str | None) -> DataFrame:
    if schema is None:
        raise InvalidError("no rows of the sink were written, so its columns are not known")
    return read_files(spark, [file.path for file in files], format=files[0].format if files else "", schema=schema)
