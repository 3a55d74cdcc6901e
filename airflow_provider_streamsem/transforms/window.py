"""Windows in event time for ready-made transforms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW = "__streamsem_window"
"""Name of the column that holds the window of a record. The records must not have a column with this name."""
WINDOW_START, WINDOW_END = f"{WINDOW}_start", f"{WINDOW}_end"
"""Names of the columns with the bounds of the window, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    Windows in event time, with a watermark. Durations are texts of Spark, such as ``"5 minutes"``.

    Exactly one of ``size`` and ``gap`` must be given. A window contains its start and not its end, but a record at the end of a session extends it.

    :param time: the timestamp column with the event time. A record whose event time is null belongs to no window: it is dropped, and not counted as late
    :param delay: delay of the watermark: how much older than the newest record a record may be without being late
    :param size: length of the windows
    :param slide: distance between the starts of windows. Default: ``size``, so that each record is in one window
    :param gap: session windows: a session ends when its key has no record for this long
    :raises InvalidError: an argument is not valid
    """

    time: str
    delay: str
    size: str | None = None
    slide: str | None = None
    gap: str | None = None

    def __post_init__(self) -> None:
        arguments.text("window.time", self.time)
        arguments.text("window.delay", self.delay)
        if (self.size is None) == (self.gap is None) or (self.gap is not None and self.slide is not None):
            raise InvalidError(
                "a window must have either a size, with or without a slide, or a gap",
                size=self.size,
                slide=self.slide,
                gap=self.gap,
            )
        for name in ("size", "slide", "gap"):
            if getattr(self, name) is not None:
                arguments.text(f"window.{name}", getattr(self, name))

    @property
    def bounds(self) -> list[str | None]:
        """Return the arguments that define the windows: all except the delay."""
        return [self.time, self.size, self.slide, self.gap]

    def watermarked(self, records: DataFrame) -> DataFrame:
        """Return the records with the watermark."""
        return records.withWatermark(quoted(self.time), self.delay)

    def column(self) -> Column:
        """Return the window of a record: a struct of the timestamps ``start`` (inclusive) and ``end`` (exclusive)."""
        from pyspark.sql import functions as F

        time = quoted(self.time)
        if self.gap is not None:
            return F.session_window(time, self.gap)
        assert self.size is not None
        return F.window(time, self.size, self.slide)


def refuse_reserved(columns: Iterable[str], window: Window | None) -> None:
    """Check that no column of the result has the name of the bounds of the window."""
    reserved = {"window_start", "window_end"} & {column.lower() for column in columns}
    if window is not None and reserved:
        summary = "with a window, the result has the columns window_start and window_end, so no other column may have these names"
        raise InvalidError(summary, given=sorted(reserved))
