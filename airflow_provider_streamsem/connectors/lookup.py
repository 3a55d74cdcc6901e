"""The interface of lookup tables, which a transform reads beside the records of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem.errors import InvalidError, LookupChangedError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.stores.contract import lineage_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_FILES = 1_000
"""Maximum number of files that a pin names. It bounds the size of a plan and the requests of a check."""


class Lookup(ABC):
    """
    A table that a transform reads beside the records of a batch.

    The plan of a batch stores a *pin* for each lookup. Every attempt of the batch, and by default every reprocessing run, reads the rows of the pin.

    * For the same pin, :meth:`load` returns the same rows every time, or :meth:`check_pin` raises ``LookupChangedError``. A lookup without this guarantee
      says so in :attr:`reasons`.
    * A lookup is a frozen dataclass. Its fields are the keys of its table in TOML.
    """

    __slots__ = ()
    extra: ClassVar[str] = ""
    """The extra of this package that installs the client library; ``""`` if there is no such extra."""
    spark_packages: ClassVar[tuple[str, ...]] = ()
    """As :attr:`airflow_provider_streamsem.connectors.source.Source.spark_packages`."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """The guarantee of the pin, one sentence each."""

    @property
    @abstractmethod
    def location(self) -> str | None:
        """URL of the location of the rows; ``None`` if there is none. It must not overlap the log or a dataset of the pipeline."""

    @abstractmethod
    def lineage(self) -> list[tuple[str, str]]:
        """Return the ``(namespace, name)`` of the table, in the form of OpenLineage dataset names. May read an Airflow connection or a log."""

    @abstractmethod
    def pin(self, now_ms: int) -> Json:
        """
        Return the pin that identifies the current rows of the table.

        :param now_ms: the time of the plan, in milliseconds UTC
        :raises UnavailableError: the table did not report the result of a request. Nothing was written
        """

    @abstractmethod
    def check_pin(self, pin: Json) -> None:
        """
        Check that the rows of a pin still exist, unchanged. The run calls this method before and after the transform.

        :raises LogDamagedError: the pin has another form, or names another table
        :raises LookupChangedError: the error names what was changed or is missing. Nothing became visible
        """

    @abstractmethod
    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        """Return the rows of a pin as a DataFrame."""


class SourceLookup(Lookup):
    """A lookup that reads the rows of a source. A subclass is a frozen dataclass, and its fields are arguments of the source."""

    __slots__ = ()
    path: str

    @abstractmethod
    def _source(self) -> Any:
        """Return the source."""

    @abstractmethod
    def _pins(self, pin: Json) -> Sequence[Any]:
        """Return the pins of the source for the rows of a pin."""

    def __post_init__(self) -> None:
        source = self._source()  # validates the arguments
        for name in self._arguments():
            object.__setattr__(self, name, getattr(source, name))

    def _arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @property
    def location(self) -> str:
        return self.path

    def lineage(self) -> list[tuple[str, str]]:
        return [lineage_name(self.path)]

    def check_pin(self, pin: Json) -> None:
        pins = self._pins(pin)
        with checking_pin():
            self._source().check_pins(pins, was_read=False)

    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        frame: DataFrame = self._source().load(spark, self._pins(pin)).frame
        return frame


@contextmanager
def checking_pin(**facts: object) -> Iterator[None]:
    """If the block reports changed or missing pinned rows, raise ``LookupChangedError`` instead, with ``facts`` as further fields."""
    try:
        yield
    except SourceChangedError as error:
        raise LookupChangedError(error.summary, **{**error.fields, **facts}) from error


def check_number_of_files(files: Sized, **where: object) -> None:
    """Refuse a table with more files than a pin names. ``where`` has the fields of the error that name the table."""
    if len(files) > MOST_FILES:
        summary = "a lookup has more files than a plan can pin; nothing was written"
        raise InvalidError(summary, **where, files=len(files), accepted=MOST_FILES)
