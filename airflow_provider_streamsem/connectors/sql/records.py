"""The rows of planned ranges as a Spark DataFrame. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from airflow_provider_streamsem.connectors.source import ParsedRecords
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.column_types import ReadColumn
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.executor_read import Access, Query, reader
from airflow_provider_streamsem.connectors.sql.pins import JdbcPin
from airflow_provider_streamsem.connectors.sql.table import MYSQL_UTC, SourceTable
from airflow_provider_streamsem.errors import DataError

if TYPE_CHECKING:
    import sqlalchemy as sa

_ROWS_PER_BATCH = 10_000
# A role may have other settings, for which the server rounds floating-point numbers or writes other texts.
_POSTGRES_SETTINGS = {"TimeZone": "UTC", "extra_float_digits": "3", "DateStyle": "ISO", "IntervalStyle": "postgres", "bytea_output": "hex"}  # fmt: skip
_SETTINGS = {
    "postgresql": (
        "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _POSTGRES_SETTINGS.items()),
    ),
    "mysql": (MYSQL_UTC,),
    "mariadb": (MYSQL_UTC,),
}


@dataclass(slots=True)
class CountedRecords(ParsedRecords):
    """Rows whose number the plan pins."""

    planned: int = 0

    def check_read(self, read: int) -> None:
        """If the numbers differ, the run checks the pins, whose error says what happened to the table."""
        if read != self.planned:
            raise DataError(
                "the tasks read another number of rows than planned, because rows of the range were changed or deleted during the read; "
                "nothing became visible",
                planned=self.planned,
                read=read,
            ).advising("run again.")


def load(
    spark: SparkSession,
    table: SourceTable,
    conn_id: str,
    columns: Sequence[ReadColumn],
    pins: Sequence[JdbcPin],
    *,
    is_counted: bool,
    in_order: bool,
) -> ParsedRecords:
    """
    Return a DataFrame with one task for each range. Reads no row.

    :param is_counted: whether the read must find the planned number of rows
    :param in_order: whether the database sorts the rows of each range by the cursor
    """
    query = _select(table.cursor.table, columns)
    query = query.order_by(*table.cursor.table.c) if in_order else query
    ranges = [query.where(table.cursor.from_offset(p.start), table.cursor.before_offset(p.end)) for p in pins]
    frame = _frame(spark, table.target, conn_id, columns, [_compiled(query, table.connection) for query in ranges])
    if not is_counted:
        return ParsedRecords(frame)
    return CountedRecords(frame, planned=sum(pin.rows for pin in pins))


def load_all(
    spark: SparkSession, connection: sa.Connection, target: Target, conn_id: str, columns: Sequence[ReadColumn]
) -> DataFrame:
    """Return all rows of a table as a DataFrame. One task reads them, with one query. Reads no row now."""
    return _frame(spark, target, conn_id, columns, [_compiled(_select(target.table([]), columns), connection)])


def _frame(
    spark: SparkSession, target: Target, conn_id: str, columns: Sequence[ReadColumn], queries: Sequence[Query]
) -> DataFrame:
    types = [_types(column.type) for column in columns]
    schema = T.StructType([T.StructField(column.name, kind) for column, (kind, _) in zip(columns, types, strict=True)])
    if not queries:
        return spark.createDataFrame([], schema)
    url, options = database.address(conn_id)
    function = reader(
        Access(url, options, _SETTINGS.get(target.dialect, ())),
        queries,
        schema.names,
        [arrow for _, arrow in types],
        rows_per_batch=_ROWS_PER_BATCH,
    )
    frame: Any = spark.range(0, len(queries), 1, len(queries)).mapInArrow(function, schema)
    return frame


def _types(ddl: str) -> tuple[Any, Any]:
    """The Arrow type is that in which executors hand values of the Spark type to Spark."""
    import pyarrow as pa

    if ddl.startswith("decimal"):
        precision, scale = map(int, ddl.removeprefix("decimal(").removesuffix(")").split(","))
        return T.DecimalType(precision, scale), pa.decimal128(precision, scale)
    return {
        "boolean": (T.BooleanType(), pa.bool_()), "byte": (T.ByteType(), pa.int8()), "short": (T.ShortType(), pa.int16()),
        "int": (T.IntegerType(), pa.int32()), "long": (T.LongType(), pa.int64()), "float": (T.FloatType(), pa.float32()),
        "double": (T.DoubleType(), pa.float64()), "string": (T.StringType(), pa.string()), "binary": (T.BinaryType(), pa.binary()),
        "date": (T.DateType(), pa.date32()), "timestamp": (T.TimestampType(), pa.timestamp("us", tz="UTC")),
        "timestamp_ntz": (T.TimestampNTZType(), pa.timestamp("us")),
    }[ddl]  # fmt: skip


def _select(table: sa.Table, columns: Sequence[ReadColumn]) -> sa.Select[Any]:
    import sqlalchemy as sa

    selected: list[Any] = []
    for at, column in enumerate(columns):
        value: Any = sa.column(sa.quoted_name(column.name, True))
        selected.append((value if column.cast is None else sa.cast(value, column.cast)).label(f"c{at}"))
    return sa.select(*selected).select_from(table)


def _compiled(query: sa.Select[Any], connection: sa.Connection) -> Query:
    compiled: Any = query.compile(dialect=connection.dialect)
    values = compiled.params
    return compiled.string, tuple(values[name] for name in compiled.positiontup) if compiled.positiontup else values
