"""The part of a source that is the same for each table format: its plans name the files of the table."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.source import Loaded, Source
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, RecordsMissingError
from airflow_provider_streamsem.protocol.codec import build
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.stores.contract import lineage_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableSource(Source):
    """A source that reads the files of a table. The first pin of a plan is the state of the table, and the others are its files, which never change."""

    __slots__ = ()
    delivery: ClassVar[str] = "exactly_once"
    limits: ClassVar[tuple[str, ...]] = ("max_files", "max_bytes", "max_rows", "min_rows")
    unit: ClassVar[str]
    start_names: ClassVar[str] = "earliest|latest"
    """Pattern of the values of ``starting`` that are neither an integer nor a time."""
    table_pin: ClassVar[Any]
    file_pin: ClassVar[Any]
    """
    Classes of the pins. ``table_pin.check`` raises ``ValueError`` for text of another form. ``file_pin.is_inside``: whether it is a file of the table.
    ``file_pin.facts``: the fields of an error that name the file.
    """
    pins_error: ClassVar[str]
    missing_file_error: ClassVar[str]
    path: str
    starting: str | int
    changes: str

    @property
    def name(self) -> str:
        return self.path

    @abstractmethod
    def check_table(self, planned: Any) -> None:
        """The table must be that of a pin."""

    @abstractmethod
    def _load(self, spark: SparkSession, pins: Sequence[Any], *, in_order: bool) -> Loaded: ...

    def _check_starting(self, where: str, *accepted: object) -> None:
        if type(self.starting) is int:
            arguments.integer(f"{where} starting", self.starting, least=0)
        elif not self._has_name_as_start():
            try:
                arguments.time_ms(f"{where} starting", arguments.text(f"{where} starting", self.starting))
            except InvalidError as error:
                names = ["earliest", "latest", "2026-01-31T00:00:00Z", *accepted]
                raise InvalidError(f"{where} starting is not valid", given=self.starting, accepted=names) from error

    def _has_name_as_start(self) -> bool:
        return isinstance(self.starting, str) and re.fullmatch(self.start_names, self.starting, re.DOTALL) is not None

    @property
    def conditions(self) -> str:
        return f"without {self.unit} that change rows" if self.changes == "skip" else ""

    @property
    def location(self) -> str:
        return self.path

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [lineage_name(self.path)]

    def read_pins(self, pins: Json) -> Sequence[Any]:
        """The log is not trusted, so the paths of the files are checked (R6)."""
        if pins == []:
            return ()
        try:
            items = list(pins) if isinstance(pins, list) else [pins]
            table = build(self.table_pin, items[0], "pins")
            files = [build(self.file_pin, pin, "pins") for pin in items[1:]]
            table.check()
        except (LogDamagedError, ValueError) as error:
            raise LogDamagedError(self.pins_error, invariant="R6", table=self.name) from error
        if not all(file.is_inside for file in files):
            raise LogDamagedError(self.pins_error, invariant="R6", table=self.name)
        return (table, *files)

    def check_pins(self, pins: Sequence[Any], *, was_read: bool) -> None:
        """Check the table, and the files with their sizes unless Spark has read them: Spark fails on a missing file."""
        if not pins:
            return
        table, *files = pins
        self.check_table(table)
        if not was_read and (missing_files := missing(self.path, files)):
            facts = {**missing_files[0].facts, "files": len(missing_files)}
            raise RecordsMissingError(self.missing_file_error, table=self.name, **facts)

    def load(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded:
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded:
        """Return the rows of :meth:`load`, distributed by version. Rows of one version have no order, except that former values precede new ones."""
        return self._load(spark, pins, in_order=True)
