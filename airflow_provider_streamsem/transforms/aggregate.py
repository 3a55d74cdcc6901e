"""The transform :class:`Aggregate`: values per key, or per key and window, that are kept across batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.transforms.monoids import Monoid, SparkMonoid
from airflow_provider_streamsem.transforms.persistent_state import PersistentState, StatePerKey
from airflow_provider_streamsem.transforms.snapshot import as_text
from airflow_provider_streamsem.transforms.window import WINDOW, Window, refuse_reserved

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

_ANSI = "spark.sql.ansi.enabled"


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """
    A transform that groups the records by key columns and computes values over all batches.

    Use it as ``transform=`` of a pipeline with ``state=``. The columns of the result are those of ``by``, with a window also ``window_start`` and
    ``window_end``, and those of ``values``. With ``output_mode="update"``, a batch returns the groups that it changed. With ``"append"``, a window is required,
    and the row of a window is returned once, after the watermark has passed its end. With ``"complete"``, each batch returns all groups. Session windows
    support only ``"append"``.

    :param values: column → monoid. Either all of them are functions of Spark, or all of them are of Python
    :param by: the key columns. Empty: one group, only for functions of Spark
    :param window: windows in event time
    :raises InvalidError: an argument is not valid, or functions of Spark and of Python are mixed
    """

    values: Mapping[str, SparkMonoid | Monoid]
    by: Sequence[str] = field(default=())
    window: Window | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", arguments.text_list("by", self.by))
        if not isinstance(self.values, Mapping) or not self.values:
            raise InvalidError("values must map at least one column to a monoid", given=type(self.values).__name__)
        refuse_reserved(arguments.text_list("the columns of the result", [*self.by, *self.values]), self.window)
        kinds = {name: _kind(name, value) for name, value in self.values.items()}
        if len(set(kinds.values())) > 1:
            raise InvalidError(
                "an aggregation cannot mix functions of Spark and of Python, because they have different state operators",
                given=kinds,
                accepted="two aggregations in two pipelines, or only one kind of function",
            )
        if "Python" in kinds.values():
            self._in_python()

    def __call__(self, records: DataFrame) -> DataFrame:
        """Return the rows of the groups."""
        from pyspark.sql import functions as F

        if self._is_in_python:
            return self._in_python()(records)
        keys = [F.col(quoted(name)) for name in self.by]
        if self.window is not None:
            records = self.window.watermarked(records)
        groups = records.groupBy(*keys, *([] if self.window is None else [self.window.column().alias(WINDOW)]))
        with _ansi(records.sparkSession):
            result = groups.agg(*(F.expr(sql).alias(name) for name, sql in self._expressions(records).items()))
        ends = [] if self.window is None else [f"{WINDOW}.{bound} AS window_{bound}" for bound in ("start", "end")]
        return result.selectExpr(*map(quoted, self.by), *ends, *map(quoted, self.values))

    def _expressions(self, records: DataFrame) -> dict[str, str]:
        spark_values = {name: value for name, value in self.values.items() if isinstance(value, SparkMonoid)}
        return {name: value.expression(records.schema) for name, value in spark_values.items()}

    @property
    def output_modes(self) -> tuple[str, ...]:
        """Return the output modes that the pipeline's state may have."""
        if self._is_in_python:
            return self._in_python().output_modes
        if self.window is None:
            return ("update", "complete")
        # A later record may merge open sessions. Spark does not return them in update mode. In complete mode, a sink would keep the rows of the merged ones.
        return ("append", "update", "complete") if self.window.gap is None else ("append",)

    @property
    def _is_in_python(self) -> bool:
        return any(isinstance(value, Monoid) for value in self.values.values())

    def _in_python(self) -> StatePerKey:
        values: dict[str, Any] = dict(self.values)
        schema = ", ".join(f"{quoted(name)} {value.type}" for name, value in values.items())
        return StatePerKey(by=self.by, state=partial(_Partials, values), schema=schema, window=self.window)

    @property
    def definition(self) -> str:
        """Describe the content of the state: keys, values, and the size of the windows. A batch with another definition is refused."""
        window = None if self.window is None else self.window.bounds
        return as_text(
            {"by": self.by, "values": {name: str(value) for name, value in self.values.items()}, "window": window}
        )

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        window = "" if self.window is None else f", window={self.window.size or self.window.gap} of {self.window.time}"
        return f"Aggregate(by=[{', '.join(self.by)}], {values}{window})"


@contextmanager
def _ansi(session: SparkSession) -> Iterator[None]:
    """Without ANSI mode, overflows give wrong sums or null. Spark's aggregate functions keep the mode in which they were analyzed."""
    before = session.conf.get(_ANSI)
    session.conf.set(_ANSI, "true")
    try:
        yield
    finally:
        session.conf.set(_ANSI, before)


def _kind(name: str, value: object) -> str:
    if isinstance(value, SparkMonoid):
        return "Spark"
    if isinstance(value, Monoid):
        return "Python"
    raise InvalidError(
        "a value of an aggregation must be a monoid",
        column=name,
        given=type(value).__name__,
        accepted="a function of airflow_provider_streamsem.transforms.monoids, or a Monoid",
    )


class _Partials(PersistentState):
    """The partial values of one group. The snapshot maps each column to the text of its partial value."""

    def __init__(self, monoids: Mapping[str, Monoid]) -> None:
        self._monoids = monoids
        self._partials = {name: monoid.identity() for name, monoid in monoids.items()}

    def restore(self, snapshot: Any) -> None:
        self._partials = {name: monoid.deserialize(snapshot[name]) for name, monoid in self._monoids.items()}

    def update(self, rows: pandas.DataFrame) -> None:
        for name, monoid in self._monoids.items():
            self._partials[name] = monoid.combine(self._partials[name], monoid.of(rows))

    def merge(self, other: Any) -> None:
        for name, monoid in self._monoids.items():
            self._partials[name] = monoid.combine(self._partials[name], other._partials[name])

    def snapshot(self) -> dict[str, str]:
        return {name: monoid.serialize(self._partials[name]) for name, monoid in self._monoids.items()}

    def value(self) -> dict[str, Any]:
        return {name: monoid.result(self._partials[name]) for name, monoid in self._monoids.items()}
