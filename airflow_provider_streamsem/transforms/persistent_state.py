"""A state object for each key: :class:`PersistentState`, and the transform :class:`StatePerKey` that keeps it across batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.transforms.snapshot import as_text
from airflow_provider_streamsem.transforms.window import Window, quoted

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame


class PersistentState(ABC):
    """
    The state of one key.

    For each key of a batch, an object is created, restored from the snapshot after the batch before, updated with the rows of the key, and stored as a new
    snapshot. The snapshot is part of the commit of the batch, so a retry never applies a row twice. A batch may run more than once, so the methods must have no
    other effects, and must give the same result for the same rows in any order.
    """

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Set the state from a snapshot: the JSON value that :meth:`snapshot` returned."""

    @abstractmethod
    def update(self, rows: pandas.DataFrame) -> None:
        """
        Apply rows of the key.

        :param rows: at least one row, with all columns of the records. The rows of one batch may come in several calls, in any order
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state as a JSON value. Numbers of numpy are accepted."""

    @abstractmethod
    def value(self) -> Mapping[str, Any]:
        """Return the output row of the state: column → value, without the key."""


@dataclass(frozen=True, kw_only=True)
class StatePerKey:
    """
    A transform that keeps a :class:`PersistentState` for each key. It runs on ``transformWithStateInPandas``.

    Without a window, each batch returns one row for each of its keys, and the pipeline's output mode must be ``update``. With a window, each key has a state
    for each window, its row is returned once, when the watermark has passed the end of the window, and the output mode must be ``append``.

    The columns of the result are those of ``by``, with a window also ``window_start`` and ``window_end``, and those of ``schema``.

    :param by: the key columns, at least one
    :param state: creates the state of a new key: a subclass of :class:`PersistentState`, or a function without arguments
    :param schema: the columns of :meth:`PersistentState.value`, as a DDL text of Spark such as ``"balance decimal(12,2)"``
    :param window: windows of a fixed size in event time
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
        if self.window is not None and self.window.gap is not None:
            raise InvalidError(
                "session windows are not supported here, because a record can merge two sessions",
                gap=self.window.gap,
                accepted="a window with a size, or an Aggregate of Spark's functions with this gap",
            )

    def __call__(self, records: DataFrame) -> DataFrame:
        """Return one row for each updated key, or for each closed window of a key."""
        from pyspark.sql import functions as F

        from airflow_provider_streamsem.transforms.per_key import PerKey

        keys = list(self.by)
        if self.window is not None:
            records = self.window.watermarked(records).withColumn("window", self.window.column())
            # The bounds are integers, because pandas has local times, of which one hour a year is ambiguous.
            bounds = [f"unix_micros(window.{bound}) AS window_{bound}" for bound in ("start", "end")]
            records = records.selectExpr("*", *bounds).drop("window")
            keys += ["window_start", "window_end"]
        types = {field.name: field.dataType.simpleString() for field in records.schema}
        missing = sorted(set(self.by) - set(types))
        if missing:
            raise DataError(
                "the records lack key columns; nothing became visible", missing=missing, columns=sorted(types)
            )
        result = records.groupBy(*(F.col(quoted(name)) for name in keys)).transformWithStateInPandas(
            statefulProcessor=PerKey(self.state, keys, closes_windows=self.window is not None),
            outputStructType=", ".join([*(f"{quoted(name)} {types[name]}" for name in keys), self.schema]),
            outputMode="append" if self.window is not None else "update",
            timeMode="EventTime" if self.window is not None else "None",
        )
        if self.window is None:
            return result
        return result.withColumns({name: F.timestamp_micros(name) for name in ("window_start", "window_end")})

    @property
    def definition(self) -> str:
        """Return what the state contains: keys, class and windows. A batch with another definition is refused."""
        window = None if self.window is None else [self.window.time, self.window.size, self.window.slide]
        return as_text({"by": self.by, "state": getattr(self.state, "__qualname__", ""), "window": window})

    def __str__(self) -> str:
        name = getattr(self.state, "__qualname__", type(self.state).__qualname__)
        return f"StatePerKey(by=[{', '.join(self.by)}], state={name})"
