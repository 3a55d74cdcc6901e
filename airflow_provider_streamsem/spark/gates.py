"""Checks the conditions of gates that read the staged rows of an attempt. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError
from airflow_provider_streamsem.gates import Gate, exceeds
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.spark import causes, expectation_suite, failures, user_code

_ROWS, _VERSIONS = "rows", "versions"
_VERSION_COLUMNS = (
    "version long, committed_at timestamp, read long, quarantined long, filtered long, rows long, bytes long"
)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """
    The staged rows of a sink.

    :param frame: reads the staged files
    :param count: their number
    :param planned_at_ms: when the batch was planned, in milliseconds since the epoch
    :param versions: see :class:`airflow_provider_streamsem.engine.Job`
    """

    session: SparkSession
    sink: str
    frame: DataFrame
    count: int
    planned_at_ms: int
    versions: Callable[[int], Sequence[Outcome]]

    def problems(self, gate: Gate) -> list[str]:
        """
        Return a sentence for each condition of a gate that does not hold.

        :raises DataError: Spark cannot evaluate a condition on the columns of the rows
        :raises InvalidError: the function of ``check`` cannot be imported
        """
        try:
            return [*self._of_columns(gate), *self._of_query(gate), *self._of_check(gate)]
        except AnalysisException as error:
            raise DataError(
                "Spark cannot evaluate a gate on the columns of the staged rows",
                sink=self.sink,
                gate=gate.to_json(),
                condition=error.getCondition(),
                **causes.named(error),
                columns=self.frame.columns,
            ).advising(
                "correct the gate, then run again. The version stays open, and the next run reads its ranges again."
            ) from causes.short(error)
        except PySparkException as error:
            if not failures.is_of_query(error):
                raise
            raise DataError(
                "Spark could not evaluate a gate on the staged rows",
                sink=self.sink,
                gate=gate.to_json(),
                condition=error.getCondition(),
            ).advising("correct the gate, then run again. Nothing became visible.") from causes.short(error)

    def _of_columns(self, gate: Gate) -> Iterator[str]:
        nulls = {name: F.count_if(F.col(quoted(name)).isNull()) for name in gate.max_null}
        newest = {name: F.unix_millis(F.max(F.col(quoted(name))).cast("timestamp")) for name in gate.freshness_s}
        aggregates = [*nulls.values(), *newest.values()]
        found = list(self.frame.agg(*aggregates).first() or ()) if aggregates else []
        for name, count in zip(nulls, found, strict=False):
            if exceeds(count, self.count, gate.max_null[name]):
                yield f"{count} of {self.count} values of {name} in {self.sink} are null, and max_null is {gate.max_null[name]}"
        for name, at_ms in zip(newest, found[len(nulls) :], strict=True):
            age_s = None if at_ms is None else (self.planned_at_ms - at_ms) / 1000
            if age_s is not None and age_s > gate.freshness_s[name]:
                yield f"the newest value of {name} in {self.sink} is {age_s:.0f} s old, and freshness_s is {gate.freshness_s[name]}"
        for columns in gate.unique:
            keys = [F.col(quoted(name)) for name in columns]
            repeated = (
                self.frame.dropna(subset=[quoted(name) for name in columns])
                .groupBy(*keys)
                .count()
                .where("count > 1")
                .count()
            )
            if repeated:
                yield f"{repeated} values of {', '.join(columns)} in {self.sink} are not unique"

    def _of_query(self, gate: Gate) -> Iterator[str]:
        if gate.sql is None:
            return
        self.frame.createOrReplaceTempView(_ROWS)
        self._earlier(gate).createOrReplaceTempView(_VERSIONS)
        result = self.session.sql(gate.sql)
        found = result.limit(2).collect()
        if len(found) != 1 or len(result.columns) != 1 or not isinstance(found[0][0], (bool, type(None))):
            raise DataError(
                "the query of a gate does not return one row with one boolean column",
                sink=self.sink,
                sql=gate.sql,
                columns=result.columns,
                rows=len(found),
            ).advising("correct the query, then run again. Without rows, aggregates such as avg are null.")
        if found[0][0] is not True:
            yield f"the query returns {'null' if found[0][0] is None else 'false'} for {self.sink}: {gate.sql}"

    def _earlier(self, gate: Gate) -> DataFrame:
        rows: list[tuple[Any, ...]] = []
        for outcome in self.versions(gate.versions):
            counts = [
                outcome.counts.get(name, 0) for name in ("read", "quarantined", "filtered", f"written.{self.sink}")
            ]
            output = outcome.sinks.get(self.sink)
            size = 0 if output is None else sum(file.bytes for file in output.files)
            rows.append((outcome.version, outcome.decided_at_ms, *counts, size))
        stored = self.session.createDataFrame(rows, _VERSION_COLUMNS.replace("timestamp", "long"))
        return stored.withColumn("committed_at", F.timestamp_millis("committed_at"))

    def _of_check(self, gate: Gate) -> Iterator[str]:
        if gate.check is None:
            return
        module, _, name = gate.check.partition(":")
        try:
            function: Any = import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
        except Exception as error:  # the module may raise any
            reason = f"{type(error).__name__}: {error}"
            raise InvalidError("the function of a gate cannot be imported", check=gate.check, reason=reason).advising(
                "install the module, or correct the name, then run again. Nothing became visible."
            ) from error
        if expectation_suite.is_suite(function):
            found: Any = expectation_suite.problems(function, self.frame)
        else:
            found = self._called(gate, function)
        if not all(isinstance(each, str) for each in found):
            raise _other_result(gate)
        yield from (f"{self.sink}: {each}" for each in found)

    def _called(self, gate: Gate, function: Any) -> list[Any]:
        """Return what the function of a gate returns or yields."""
        try:
            found = function(self.frame)
            if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
                raise _other_result(gate)
            return [*found]
        except (StreamsemError, PySparkException, OSError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("py4j"):  # of Spark, whose text says whether a retry may help
                raise
            raised = user_code.in_driver(error)
            raise DataError(
                "the function of a gate raised an exception",
                sink=self.sink,
                check=gate.check,
                error=type(error).__name__,
                **({} if raised is None else {"at": raised.at}),
            ).advising("correct the function, then run again. Nothing became visible.") from error


def _other_result(gate: Gate) -> DataError:
    return DataError("the function of a gate returns something else than sentences", check=gate.check).advising(
        "return a list of sentences, which is empty if there is no problem; then run again."
    )
