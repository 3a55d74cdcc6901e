"""
Monoids: the values that :class:`~airflow_provider_streamsem.transforms.aggregate.Aggregate` computes.

A monoid is an aggregate function with an identity, and an associative and commutative combination of partial values. So the value of a group does not depend
on how its records are divided into batches. The functions of this module are aggregate functions of Spark. A subclass of :class:`Monoid` is an aggregate
function in Python. Import the module under a short name, as for Spark's functions: ``from airflow_provider_streamsem.transforms import monoids as m``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.transforms import equality
from airflow_provider_streamsem.transforms.snapshot import as_text, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas
    from pyspark.sql.types import DataType, StructType

_VALUE = "{value}"


@dataclass(frozen=True, slots=True)
class SparkMonoid:
    """
    An aggregate function of Spark, which combines partial values itself.

    Spark evaluates the expression in ANSI mode, whatever ``spark.sql.ansi.enabled`` of the session is. So an overflow of a sum fails the batch.

    :param sql: the aggregate expression in Spark SQL
    """

    sql: str

    def expression(self, columns: StructType) -> str:
        """Return the expression for records with these columns."""
        return self.sql

    def __str__(self) -> str:
        return self.sql


@dataclass(frozen=True, slots=True)
class _Comparing(SparkMonoid):
    """Compares the bytes of the values of a column. ``sql`` has ``{value}`` for what ``form`` returns from the SQL of the column and its type."""

    column: str
    form: Callable[[str, DataType], str]

    def expression(self, columns: StructType) -> str:
        # Spark ignores the case of names.
        kinds = [each.dataType for each in columns.fields if each.name.lower() == self.column.lower()]
        name = quoted(self.column)
        return self.sql.replace(_VALUE, self.form(name, kinds[0]) if kinds else name)

    def __str__(self) -> str:
        return self.sql.replace(_VALUE, quoted(self.column))


class Monoid(ABC):
    """
    An aggregate function in Python. ``streamsem check-monoid`` tests its laws.

    Partial values are stored as the text that :meth:`serialize` returns. Objects are pickled by Spark to its Python workers, so they must hold no connections.
    """

    type: str
    """Spark SQL type of the result, such as ``"bigint"`` or ``"array<string>"``."""

    @abstractmethod
    def identity(self) -> Any:
        """Return the partial value of no rows."""

    @abstractmethod
    def of(self, rows: pandas.DataFrame) -> Any:
        """
        Return the partial value of some rows.

        :param rows: at least one row of one group, with all columns of the records. The order of the rows may differ in a retry. The types are those of
            ``PersistentState.update``: an integer is ``Int64``, with ``pandas.NA`` for null
        """

    @abstractmethod
    def combine(self, left: Any, right: Any) -> Any:
        """Return the partial value of the rows of both. Must be associative and commutative, and must not change its arguments."""

    def result(self, partial: Any) -> Any:
        """Return the value of :attr:`type` for a partial value. Default: the partial value itself."""
        return partial

    def serialize(self, partial: Any) -> str:
        """Return a partial value as text. Default: JSON, which has no tuples, sets or decimals. NumPy numbers are accepted."""
        return as_text(partial)

    def deserialize(self, text: str) -> Any:
        """Return the partial value of a text that :meth:`serialize` returned."""
        return json.loads(text)

    def __str__(self) -> str:
        """Return the class and its attributes. A changed text means that the stored values have another meaning."""
        slots = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        names = sorted({*getattr(self, "__dict__", ()), *slots} - {"__weakref__", "__dict__"})
        attributes = (f"{name}={text_of(getattr(self, name))}" for name in names if hasattr(self, name))
        return f"{type(self).__qualname__}({', '.join(attributes)})"


@dataclass(frozen=True)
class Top(Monoid):
    """
    The largest values of a column, largest first. Nulls and NaN are ignored. Repeated values count separately.

    :param column: a column of integers, floating-point numbers or text
    :param k: how many values, at least 1
    :param type: type of the result, for example ``"array<bigint>"`` for a column of integers
    """

    column: str
    k: int
    type: str

    def __post_init__(self) -> None:
        arguments.text("top.column", self.column)
        arguments.integer("top.k", self.k, least=1)
        accepted = "array<T>, where T is tinyint, smallint, int, bigint, float, double or string"
        arguments.text(
            "top.type",
            self.type,
            pattern=r"array<(tinyint|smallint|int|bigint|float|double|string)>",
            accepted=accepted,
        )

    def identity(self) -> list[Any]:
        """Return an empty list."""
        return []

    def of(self, rows: pandas.DataFrame) -> list[Any]:
        """Return the ``k`` largest values of the rows, largest first."""
        # Adding 0.0 makes 0.0 of -0.0. The two are equal, so the result would depend on the order of the rows.
        values = [value + 0.0 if isinstance(value, float) else value for value in rows[self.column].dropna().tolist()]
        return sorted(values, reverse=True)[: self.k]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return the ``k`` largest values of both, largest first."""
        return sorted([*left, *right], reverse=True)[: self.k]


def _function(name: str, *columns: str) -> SparkMonoid:
    for column in columns:
        arguments.text(f"the column of {name}", column)
    return SparkMonoid(f"{name}({', '.join(map(quoted, columns))})")


def _comparing(name: str, sql: str, column: str, form: Callable[[str, DataType], str]) -> SparkMonoid:
    arguments.text(f"the column of {name}", column)
    return _Comparing(sql, column, form)


def count(column: str | None = None) -> SparkMonoid:
    """Return the number of rows; of a column, the number of its values that are not null."""
    return SparkMonoid("count(*)") if column is None else _function("count", column)


def sum(column: str) -> SparkMonoid:
    """
    Return the sum. Sums of decimals and integers are exact. The last digits of a floating-point sum depend on the order of the rows.

    A sum that its type cannot hold fails the batch. The sum of integers has the type ``bigint``.
    """
    return _function("sum", column)


def min(column: str) -> SparkMonoid:
    """Return the smallest value."""
    return _function("min", column)


def max(column: str) -> SparkMonoid:
    """Return the largest value."""
    return _function("max", column)


def min_by(column: str, by: str) -> SparkMonoid:
    """Return the value of ``column`` in the row with the smallest ``by``. If several rows have it, Spark uses any of them, so choose a unique ``by``."""
    return _function("min_by", column, by)


def max_by(column: str, by: str) -> SparkMonoid:
    """Return the value of ``column`` in the row with the largest ``by``. If several rows have it, Spark uses any of them, so choose a unique ``by``."""
    return _function("max_by", column, by)


def mean(column: str) -> SparkMonoid:
    """Return the arithmetic mean."""
    return _function("avg", column)


def variance(column: str) -> SparkMonoid:
    """Return the sample variance; null for a single row."""
    return _function("var_samp", column)


def distinct_values(column: str) -> SparkMonoid:
    """
    Return the distinct values as a sorted array, without null. Values are equal as in ``GROUP BY``: NaN equals NaN, and 0.0 equals -0.0.

    The state has every distinct value, so use it for columns with few of them.
    """
    # collect_set compares numbers by Scala's ==, for which no NaN equals another. It compares arrays by their bytes.
    values = f"collect_set(IF({_VALUE} IS NULL, NULL, array({_VALUE})))"
    return _comparing(
        "distinct_values", f"transform(array_sort({values}), entry -> entry[0])", column, equality.normal_form
    )


def approximate_distinct(column: str) -> SparkMonoid:
    """Return an estimate of the number of distinct values by an HLL sketch of constant size. The column must be an integer, text or binary."""
    sql = f"hll_sketch_estimate(hll_sketch_agg({_VALUE}))"
    return _comparing("approximate_distinct", sql, column, equality.never_empty)


def approximate_distinct_theta(column: str) -> SparkMonoid:
    """
    Return an estimate of the number of distinct values by a theta sketch of constant size.

    The column must be an integer, a floating-point number, text or binary.
    """
    sql = f"theta_sketch_estimate(theta_sketch_agg({_VALUE}))"
    return _comparing("approximate_distinct_theta", sql, column, equality.never_empty)


def approximate_quantile(column: str, fraction: float) -> SparkMonoid:
    """
    Return an estimate of a quantile by a KLL sketch of constant size. The estimate depends on the order of the rows.

    Nulls and NaN are ignored. The result is null if the column has no other value.

    :param column: a column of floating-point numbers
    :param fraction: from 0.0, the minimum, to 1.0, the maximum
    """
    if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
        raise InvalidError("the fraction of approximate_quantile must be a number from 0 to 1", given=fraction)
    sketch = _function("kll_sketch_agg_double", column)
    numbers = f"count_if({quoted(column)} IS NOT NULL AND NOT isnan({quoted(column)}))"
    # Spark raises an error for the quantile of an empty sketch.
    return SparkMonoid(f"IF({numbers} = 0, NULL, kll_sketch_get_quantile_double({sketch}, {float(fraction)}D))")


def approximate_most_frequent(column: str, k: int) -> SparkMonoid:
    """
    Return the most frequent values with their estimated counts, the most frequent first, by a sketch of frequent items of constant size.

    The result is an array of structs ``item`` and ``count``. It is exact while the column has no more distinct values than the 10,000 that Spark tracks.
    Values are equal as in ``GROUP BY``: NaN equals NaN, and 0.0 equals -0.0. Null is a value too.

    :param column: a column of booleans, numbers, dates, timestamps or text
    :param k: how many values, from 1 to 1,000
    """
    arguments.integer("k of approximate_most_frequent", k, least=1, most=1_000)
    return _comparing("approximate_most_frequent", f"approx_top_k({_VALUE}, {k})", column, equality.normal_form)
