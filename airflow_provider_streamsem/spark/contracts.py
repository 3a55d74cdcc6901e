"""Applies the schema contract of a sink to the rows of a batch. This module imports pyspark."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.columns.types import VOID, bare, widened
from airflow_provider_streamsem.connectors.contract import DISCARD_ROW, DISCARD_VALUE, EVOLVE, FREEZE, Contract
from airflow_provider_streamsem.errors import DataError

logger = telemetry.log_of(__name__)

_INTEGERS = ("byte", "short", "integer", "long")
_WIDE = "decimal(38,18)"
"""A decimal in which a text is compared with its rounded value. A number that it does not hold is discarded."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """
    What a contract discards of the rows of a batch.

    :param columns: name → value of the columns that are left
    :param drops: whether a row is discarded
    :param loses: how many values of a row are discarded
    """

    columns: Mapping[str, Column]
    drops: Column
    loses: Column

    @property
    def counts(self) -> list[Column]:
        """Aggregates with the names ``rows`` and ``values``: how many of them are discarded."""
        kept = F.when(~self.drops, self.loses)
        return [F.count_if(self.drops).alias("rows"), F.coalesce(F.sum(kept), F.lit(0)).alias("values")]

    def applied(self, frame: DataFrame) -> DataFrame:
        """Return the rows and columns that are left."""
        return frame.where(~self.drops).select(*(column.alias(name) for name, column in self.columns.items()))


def fitting(
    sink: str, frame: DataFrame, known: Mapping[str, Any], contract: Contract, marks: Collection[str]
) -> Fitting | None:
    """
    Return what the contract discards of the rows; ``None`` if it discards nothing.

    :param known: column of the sink → its type in Spark's form; empty if it has none yet
    :param marks: columns that only staged rows have
    :raises DataError: the contract forbids the change
    """
    if not known:
        return None
    given = {
        field["name"]: field["type"]
        for field in json.loads(frame.schema.json())["fields"]
        if field["name"] not in marks
    }
    folded = {name.lower() for name in known}
    added = [name for name, kind in given.items() if name.lower() not in folded and kind != VOID]
    changed = {name: kind for name, kind in given.items() if name in known and not _fits(known[name], kind)}
    if not added and not changed:
        return None
    found = [f"new column {name} {_text(given[name])}" for name in added]
    found += [f"{name}: {_text(kind)} does not fit {_text(known[name])}" for name, kind in changed.items()]
    if (added and contract.columns == FREEZE) or (changed and contract.data_type == FREEZE):
        raise DataError(
            "the rows do not fit the columns of the sink, and its contract forbids changing them",
            sink=sink,
            found=found,
        ).advising(
            "correct the transform. Or let the contract accept the change: evolve, discard_row or discard_value. Then run again."
        )
    logger.info("sink %s: the columns of this batch differ: %s (%s)", sink, "; ".join(found), contract)
    discarded = [] if contract.columns == EVOLVE else added
    cast = {} if contract.data_type == EVOLVE else changed
    if not discarded and not cast:
        return None
    nested = sorted(name for name, kind in cast.items() if not (isinstance(kind, str) and isinstance(known[name], str)))
    if nested:
        raise DataError("the contract cannot discard values of nested columns", sink=sink, columns=nested).advising(
            "select the fields that the sink has in the transform, then run again."
        )
    return _fitting(frame, known, discarded, cast, contract)


def _fitting(
    frame: DataFrame, known: Mapping[str, Any], discarded: list[str], cast: Mapping[str, Any], contract: Contract
) -> Fitting:
    columns = {name: F.col(quoted(name)) for name in frame.columns if name not in discarded}
    misfits = {name: F.col(quoted(name)).isNotNull() for name in discarded}
    for name, kind in cast.items():
        value = _exact(frame, name, kind, known[name])
        columns[name] = value
        misfits[name] = F.col(quoted(name)).isNotNull() & value.isNull()
    modes = {**dict.fromkeys(discarded, contract.columns), **dict.fromkeys(cast, contract.data_type)}
    drops = [misfit for name, misfit in misfits.items() if modes[name] == DISCARD_ROW]
    loses = [misfit.cast("long") for name, misfit in misfits.items() if modes[name] == DISCARD_VALUE]
    return Fitting(columns, reduce(Column.__or__, drops, F.lit(False)), reduce(Column.__add__, loses, F.lit(0)))


def _exact(frame: DataFrame, name: str, kind: str, wanted: str) -> Column:
    """Return a value in another type; null if that type does not hold it exactly. Spark's cast of a text rounds a number, and drops the time of a date."""
    value = F.col(quoted(name))
    cast = value.try_cast(wanted)
    try:
        frame.select(cast).schema  # noqa: B018  with Spark Connect, reading the schema analyzes the plan, which raises AnalysisException
    except AnalysisException:  # no value of the type can be cast
        return F.lit(None).cast(wanted)
    if wanted == "string":
        return cast
    if kind != "string":
        return F.when(cast.try_cast(kind).eqNullSafe(value), cast)
    if wanted == "date":
        return F.when(value.try_cast("timestamp_ntz").eqNullSafe(cast.cast("timestamp_ntz")), cast)
    if wanted in _INTEGERS or wanted.startswith("decimal("):
        return F.when(value.try_cast(_WIDE).eqNullSafe(cast.try_cast(_WIDE)), cast)
    return cast


def _fits(known: Any, given: Any) -> bool:
    """Return whether the type of the sink holds every value of the other type exactly."""
    try:
        return bool(bare(widened(known, given)) == bare(known))
    except DataError:
        return False


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
