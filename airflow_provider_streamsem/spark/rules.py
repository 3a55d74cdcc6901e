"""Evaluates the expectations of a pipeline or of a sink in the pass that reads or writes the rows. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.changes import CHANGE, UPSERT
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.expectations import ACTIONS, DROP, FAIL, QUARANTINE, WARN, Expect, failed
from airflow_provider_streamsem.spark import causes
from airflow_provider_streamsem.spark.row_texts import row_text

BROKEN = "__streamsem_broken"
"""The column with the rules that a row breaks, one bit for each."""
JUDGED, DROPPED, QUARANTINED = "judged", "dropped", "quarantined_by_rule"
"""Names of aggregates: the number of rows, and of those that are dropped and quarantined."""


@dataclass(frozen=True, slots=True)
class Rules:
    """
    The expectations of the records of a source, or of the rows of a sink.

    :param expect: name of a rule → the rule
    :param sink: the sink; ``None`` for the records of a source
    """

    expect: Mapping[str, Expect]
    sink: str | None = None

    @property
    def text(self) -> str:
        """All predicates as one, to find out whether Spark evaluates them to the same values in each action."""
        return " AND ".join(f"({rule.predicate}\n)" for rule in self.expect.values())

    @property
    def has_quarantine(self) -> bool:
        """Whether a rule quarantines rows."""
        return any(rule.on_failure == QUARANTINE for rule in self.expect.values())

    def marked(self, frame: DataFrame, applies: Column | None = None) -> DataFrame:
        """
        Add the column :data:`BROKEN`.

        :param applies: whether a row is judged; default: every row. Of the rows of a sink with ``changes``, only upserts are judged, because a delete has no
            values
        """
        if self.sink is not None and CHANGE in frame.columns:
            applies = F.col(CHANGE) == UPSERT
        try:
            marked = _with_bits(frame, self.expect.values(), applies)
        except AnalysisException as error:
            raise self._refusal(frame, applies) or error from causes.short(error)
        return marked

    def _refusal(self, frame: DataFrame, applies: Column | None) -> DataError | None:
        """Return the error for the first rule that Spark cannot evaluate; ``None`` if it evaluates each of them alone."""
        for name, rule in self.expect.items():
            try:
                _with_bits(frame, [rule], applies)
            except AnalysisException as error:
                return self._error(name, rule, frame, error)
        return None

    def _error(self, name: str, rule: Expect, frame: DataFrame, error: AnalysisException) -> DataError:
        where = {} if self.sink is None else {"sink": self.sink}
        columns = [column for column in frame.columns if not column.startswith("__streamsem")]
        return DataError(
            "Spark cannot evaluate the predicate of an expectation on the columns of the rows",
            rule=name,
            **where,
            predicate=rule.predicate,
            condition=error.getCondition(),
            **causes.named(error),
            columns=columns,
        ).advising(
            "correct the predicate, then run again. The version stays open, and the next run reads its ranges with the corrected predicate."
        )

    @property
    def aggregates(self) -> list[Column]:
        """Aggregates over rows with :data:`BROKEN`, under the names in :attr:`names`."""
        bits = [
            F.count_if(F.col(BROKEN).bitwiseAND(1 << bit) != 0).alias(failed(name, self.sink))
            for bit, name in enumerate(self.expect)
        ]
        removed = {DROPPED: self._removed_by(DROP), QUARANTINED: self._removed_by(QUARANTINE)}
        return [
            F.expr(f"count(1) AS {JUDGED}"),
            *bits,
            *(F.count_if(column).alias(name) for name, column in removed.items()),
        ]

    @property
    def names(self) -> list[str]:
        """The names of the aggregates."""
        return [JUDGED, *(failed(name, self.sink) for name in self.expect), DROPPED, QUARANTINED]

    def passing(self, marked: DataFrame) -> DataFrame:
        """Return the rows that are kept, without :data:`BROKEN`."""
        kept = ~self._breaks(QUARANTINE) & ~self._breaks(DROP)
        return marked.where(kept).drop(BROKEN)

    def quarantined(self, marked: DataFrame, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """
        Yield the rows that are quarantined, as quarantined records.

        :param columns: the columns of the record
        """
        rows = marked.where(self._removed_by(QUARANTINE)).select(row_text(marked, columns), BROKEN)
        for raw, broken in rows.toLocalIterator(prefetchPartitions=True):
            rules = [name for bit, name in enumerate(self.expect) if broken & 1 << bit]
            where = {} if self.sink is None else {"sink": self.sink}
            yield {
                **where,
                "rules": rules,
                "encoding": "utf-8",
                "raw": raw,
                "error": f"breaks the rule {', '.join(rules)}",
            }

    def refuse_failures(self, counts: Mapping[str, int], version: int) -> None:
        """Fail the attempt if rows break a rule with the action ``fail``."""
        found = {
            name: rows
            for name, rule in self.expect.items()
            if rule.on_failure == FAIL and (rows := counts.get(failed(name, self.sink), 0))
        }
        if found:
            where = {} if self.sink is None else {"sink": self.sink}
            raise DataError("rows break a rule with on_failure='fail'", version=version, **where, rows=found).advising(
                "correct the data, the transform or the rule, then run again: the same range is read again. To find the rows, set "
                "on_failure='quarantine' for the rule."
            )

    def _breaks(self, action: str) -> Column:
        mask = sum(1 << bit for bit, rule in enumerate(self.expect.values()) if rule.on_failure == action)
        return F.col(BROKEN).bitwiseAND(F.lit(mask).cast("long")) != 0

    def _removed_by(self, action: str) -> Column:
        """Whether this action is the one that applies to a row, and no action before it."""
        earlier = [self._breaks(each) for each in ACTIONS[: ACTIONS.index(action)] if each not in (FAIL, WARN)]
        return reduce(lambda found, each: found & ~each, earlier, self._breaks(action))


def _with_bits(frame: DataFrame, rules: Iterable[Expect], applies: Column | None) -> DataFrame:
    bits = [
        F.when(F.coalesce(F.expr(rule.predicate), F.lit(False)), F.lit(0)).otherwise(F.lit(1 << bit)).cast("long")
        for bit, rule in enumerate(rules)
    ]
    broken = reduce(Column.__add__, bits)
    marked = frame.withColumn(BROKEN, broken if applies is None else F.when(applies, broken).otherwise(F.lit(0)))
    marked.schema  # noqa: B018  with Spark Connect, reading the schema analyzes the plan, which raises AnalysisException
    return marked
