"""A state object for each key: :class:`PersistentState`, and the transform :class:`StatePerKey` that keeps it across batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.transforms.equality import normal_form
from airflow_provider_streamsem.transforms.snapshot import as_text, text_of
from airflow_provider_streamsem.transforms.window import WINDOW, WINDOW_END, WINDOW_START, Window, refuse_reserved

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame


class PersistentState(ABC):
    """
    The state of one key.

    For each key of a batch, Spark creates an object and calls :meth:`restore` with the last committed snapshot, except for a new key. Then it calls
    :meth:`update`, and stores the value that :meth:`snapshot` returns. When a window is closed, Spark calls :meth:`restore` and :meth:`value`.

    Session windows are different: new rows are applied to a new object, and the object of an open session that the rows extend merges it (:meth:`merge`).

    Spark may run these calls several times for one batch, and commits the result of one run. So the methods must have no other effects, and must give the same
    result for the same rows in any order.
    """

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Set the state from a snapshot: the JSON value that :meth:`snapshot` returned."""

    @abstractmethod
    def update(self, rows: pandas.DataFrame) -> None:
        """
        Apply rows of the key.

        :param rows: at least one row, with all columns of the records. The rows of one batch may come in several calls, in any order. Integers have the type
            ``Int64``, booleans ``boolean`` (both with ``pandas.NA`` for null), floating-point numbers ``float64`` (``NaN`` for null), and other columns
            ``object``
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state as a JSON value. NumPy numbers are accepted."""

    @abstractmethod
    def value(self) -> Mapping[str, Any]:
        """Return the output row of the state: column → value, without the key."""

    def merge(self, other: Any) -> None:
        """
        Apply the rows of another state of this class. Only session windows need this method.

        It is called whenever new rows extend an open session, or join two. The rows of the two states may interleave in time. The result must equal that of
        :meth:`update` with all rows in any order. The other state is discarded afterwards.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StatePerKey:
    """
    A transform that keeps a :class:`PersistentState` for each key. It runs on Spark's ``transformWithState``.

    Without a window, each batch returns one row for each of its keys, and the pipeline's output mode must be ``update``. With a window, each key has a state
    for each window. Its row is returned once, when the watermark has passed the end of the window, and the output mode must be ``append``. Session windows
    need states with :meth:`PersistentState.merge`.

    The columns of the result are those of ``by``, with a window also ``window_start`` and ``window_end``, and those of ``schema``.

    :param by: the key columns, at least one
    :param state: creates the state of a new key: a subclass of :class:`PersistentState`, or a function without arguments
    :param schema: the columns of :meth:`PersistentState.value`, as a DDL text of Spark such as ``"balance decimal(12,2)"``
    :param window: windows in event time
    :raises InvalidError: an argument is not valid
    """

    by: Sequence[str]
    state: Callable[[], PersistentState]
    schema: str
    window: Window | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", arguments.text_list("by", self.by))
        if not self.by:
            raise InvalidError("by must name at least one key column", given=self.by)
        if not callable(self.state):
            raise InvalidError(
                "state must create a PersistentState", given=type(self.state).__name__, accepted="the class itself"
            )
        arguments.text("schema", self.schema)
        refuse_reserved(self.by, self.window)
        if self._has_sessions and type(self.state()).merge is PersistentState.merge:
            raise InvalidError(
                "session windows need a state with the method merge, because a record can join two sessions",
                gap=self.window and self.window.gap,
                state=type(self.state()).__qualname__,
                accepted="a state with merge, or a window with a size",
            )

    def __call__(self, records: DataFrame) -> DataFrame:
        """Return one row for each updated key, or for each closed window of a key."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        from airflow_provider_streamsem.transforms.per_key import PerKey
        from airflow_provider_streamsem.transforms.per_session import PerSession

        columns = {field.name: _pandas_type(field.dataType.typeName()) for field in records.schema}
        dotted = sorted(name for name in columns if "." in name)
        if dotted:
            summary = "Spark does not pass columns with a dot in their name to a state in Python"
            raise DataError(summary, columns=dotted).advising("rename the columns in the schema of the source.")
        key_fields = records.select(*map(quoted, self.by)).schema.fields
        keys = [field.name for field in key_fields]
        # Spark's state stores compare the bytes of a key, so NaN and 0.0 need one form each.
        normal = {f.name: normal_form(quoted(f.name), f.dataType) for f in key_fields}
        records = records.withColumns({name: F.expr(sql) for name, sql in normal.items() if sql != quoted(name)})
        if self.window is not None:
            records = self.window.watermarked(records).withColumn(WINDOW, self.window.column())
            # The bounds are integers. Spark's Python workers would convert timestamps to local times, and one hour a year is ambiguous there.
            bounds = [f"unix_micros({WINDOW}.{bound}) AS {WINDOW}_{bound}" for bound in ("start", "end")]
            # Spark compares the watermark with the first column that has its metadata. The end of the window must decide whether a row is late, as in Spark's
            # own windows, so this column is the window. PySpark ignores empty metadata in an alias.
            without_watermark = [F.col(quoted(name)).alias(name, metadata={"comment": ""}) for name in columns]
            records = records.select(*without_watermark, WINDOW, *map(F.expr, bounds))
            keys += [] if self._has_sessions else [WINDOW_START, WINDOW_END]
        schema = StructType([*key_fields])
        for bound in () if self.window is None else ("start", "end"):
            schema = schema.add(f"window_{bound}", "long")
        for field in StructType.fromDDL(self.schema):
            schema = schema.add(field)
        result = records.groupBy(*(F.col(quoted(name)) for name in keys)).transformWithState(
            statefulProcessor=(PerSession if self._has_sessions else PerKey)(
                self.state, columns, schema.names, closes_windows=self.window is not None
            ),
            outputStructType=schema,
            outputMode="append" if self.window is not None else "update",
            timeMode="EventTime" if self.window is not None else "None",
        )
        if self.window is None:
            return result
        return result.withColumns({name: F.timestamp_micros(name) for name in ("window_start", "window_end")})

    @property
    def _has_sessions(self) -> bool:
        return self.window is not None and self.window.gap is not None

    @property
    def output_modes(self) -> tuple[str, ...]:
        """Return the output modes that the pipeline's state may have."""
        return ("update",) if self.window is None else ("append",)

    @property
    def definition(self) -> str:
        """Describe the content of the state: keys, class with its arguments, and windows. A batch with another definition is refused."""
        window = None if self.window is None else self.window.bounds
        parameters = [*self.state.args, self.state.keywords] if isinstance(self.state, partial) else []
        name = f"{type(self.state()).__qualname__}({', '.join(map(text_of, parameters))})"
        return as_text({"by": self.by, "state": name, "window": window})

    def __str__(self) -> str:
        return f"StatePerKey(by=[{', '.join(self.by)}], state={type(self.state()).__qualname__})"


def _pandas_type(name: str) -> str:
    """Return the pandas type of a column of Spark. It represents every value; null is ``pandas.NA``, ``NaN`` or ``None``."""
    if name in ("byte", "short", "integer", "long"):
        return "Int64"
    return {"boolean": "boolean", "float": "float64", "double": "float64"}.get(name, "object")
