"""The bounds of a batch: how much a run reads at once, and how many records may be quarantined."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    Bounds for one batch. With several sources, ``max_files``, ``max_bytes`` and ``max_rows`` apply to each source by itself.

    A maximum size never stops a pipeline, because a single item that exceeds it becomes a batch of one item. ``max_quarantined`` does stop a pipeline.

    :param max_files: maximum number of files, 1 or more
    :param max_bytes: maximum size in bytes as stored in the source, 1 or more
    :param max_rows: maximum number of rows, 1 or more. The files source estimates rows from the bytes per row of the last committed batch (100 bytes
        per row before the first). Kafka counts offsets
    :param min_rows: minimum number of rows, 1 or more, estimated as for ``max_rows``. A run leaves fewer rows for a later run until ``max_delay_s``
        after the last outcome. The first batch of a pipeline and later batches of a drain never wait
    :param max_delay_s: how long fewer than ``min_rows`` rows wait, in seconds, 1 or more. Required with ``min_rows``
    :param max_quarantined: maximum number of records of a batch that cannot be parsed, 0 or more, inclusive. A batch with more fails, and no offset
        advances
    :raises InvalidError: a limit is out of bounds, only one of ``min_rows`` and ``max_delay_s`` is given, or ``min_rows`` is above ``max_rows``
    """

    max_files: int | None = None
    max_bytes: int | None = None
    max_rows: int | None = None
    min_rows: int | None = None
    max_delay_s: int | None = None
    max_quarantined: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_files", "max_bytes", "max_rows", "min_rows", "max_delay_s"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidError(f"limits.{name} must be an integer of 1 or more, or absent", given=value)
        if (self.min_rows is None) != (self.max_delay_s is None):
            raise InvalidError(
                "limits.min_rows and limits.max_delay_s must be given together",
                min_rows=self.min_rows,
                max_delay_s=self.max_delay_s,
            )
        if self.min_rows is not None and self.max_rows is not None and self.min_rows > self.max_rows:
            raise InvalidError(
                "limits.min_rows must not be above limits.max_rows", min_rows=self.min_rows, max_rows=self.max_rows
            )
        if type(self.max_quarantined) is not int or self.max_quarantined < 0:
            raise InvalidError("limits.max_quarantined must be an integer of 0 or more", given=self.max_quarantined)
